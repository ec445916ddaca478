"""Which code made a number: the version that is installed, and a digest of the source, for versions change seldom."""

import hashlib
from importlib import metadata
from pathlib import Path

LENGTH = 12


def own_version() -> str:
    """Such as "0.1.0, code 4b456e69fac3"."""
    return f"{installed_version('widemargin')}, code {CODE}"


def installed_version(package: str) -> str:
    """The installed version, or "source" where it runs without being installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "source"


def source_digest(folder: Path) -> str:
    """Twelve hexadecimal digits over names and contents of a package's Python files, wherever it lies.

    An editor's files beside them do not count; what cannot be read is no reason to stop a run.
    """
    digest = hashlib.sha256()
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py") if path.name[0] != "."}
    try:
        for name, path in sorted(files.items()):
            for part in (name.encode(), path.read_bytes().replace(b"\r\n", b"\n")):
                digest.update(len(part).to_bytes(8, "little") + part)
    except OSError:
        return "unknown"
    return digest.hexdigest()[:LENGTH]


CODE = source_digest(Path(__file__).parents[1])
"""Of the code that was loaded, not of what the files hold when a long run ends."""

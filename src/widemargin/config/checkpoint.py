"""A checkpoint: one safetensors file, no pickle, with its whole description and its checksum inside.

*Content.* Weights are stored under the field's public key names; what only a resumed run needs (momentum, running sums)
sits beside them under ``train/``. The description, a JSON table in the header, holds the run's configuration, how these
weights were chosen, and the versions.

*Checksum.* It is inside the file, so no kill can part the two: the SHA-256 of the whole file, taken while the place of
the digest itself holds zeros. A changed bit anywhere, in the weights, the offsets or the description, is seen. The
description is JSON text in a JSON header, so its quotes are escaped once: ``\\"checksum\\": \\"sha256:...\\"``. Text of
the user's is escaped twice there and cannot look like it.

*Writing.* A new file takes the old one's place only after it was read back whole; the one before stays under another
name until then, and is what a run goes on from when the last one is damaged or missing.
"""

import errno
import hashlib
import json
import platform
import re
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from widemargin.config.run import RunConfig
from widemargin.config.toml import differences, from_dict
from widemargin.core.files import check_file, drop_cached, write_atomic
from widemargin.core.versions import own_version
from widemargin.errors import InputError, WidemarginWarning
from widemargin.models.classifier import build_model
from widemargin.models.libraries import LibraryConfig
from widemargin.models.public_weights import no_larger_than

BEST, LAST, PREVIOUS = "best.safetensors", "last.safetensors", "previous.safetensors"
CONFIG, METRICS = "config.toml", "metrics.jsonl"
"""The files of a run folder."""
AVERAGED = "averaged"
"""The folder of averaged weights that are judged beside a run's own, and what their measurements begin with."""
FORMAT, METADATA, TRAIN_PREFIX = "widemargin-checkpoint-1", "widemargin", "train/"
KEY, BLANK = "checksum", "sha256:" + "0" * 64
_CHECKSUM = re.compile(rb'\\"checksum\\": \\"sha256:([0-9a-f]{64})\\"')
_TENSOR_ENDS = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d{1,20}\s*,\s*(\d{1,20})\s*\]')
_LONGEST_HEADER = 100_000_000  # what the safetensors library itself allows
_CHUNK = 1 << 20
Which = Literal["last", "best"]


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a reader must know about these weights."""

    which: Which
    selection: str
    config: dict[str, Any]
    image_shape: tuple[int, int, int]
    num_classes: int
    epoch: int
    step: int
    scores: dict[str, float]
    versions: dict[str, str] = field(default_factory=dict)
    format: str = FORMAT

    def run_config(self) -> RunConfig:
        """The configuration of the run that made them."""
        return from_dict(self.config)


@dataclass(frozen=True)
class Checkpoint:
    """The weights, what resuming needs, and the description."""

    weights: dict[str, Tensor]
    training: dict[str, Tensor]
    description: Description


def software_versions() -> dict[str, str]:
    """The versions that made a number."""
    return {"widemargin": own_version(), "torch": torch.__version__, "python": platform.python_version()}


class DamagedError(InputError):
    """The file is not what was written; ``reason`` says how that shows."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is not a readable checkpoint: {reason}; put back a copy of it, or choose another")
        self.reason = reason


def save_checkpoint(path: Path, checkpoint: Checkpoint, previous: Path | None = None) -> None:
    """Write the file whole or not at all; with ``previous``, the file that was there goes on under that name.

    The new file takes the old one's place only after it was read back from the disk and its checksum fits. An old file
    that is damaged is not kept, since it would push out a good one.
    """
    tensors = dict(checkpoint.weights) | {TRAIN_PREFIX + key: value for key, value in checkpoint.training.items()}
    # on the host, contiguous, and sharing memory with no other, by one copy each
    stored = {
        key: value.detach().to("cpu", memory_format=torch.contiguous_format, copy=True)
        for key, value in tensors.items()
    }
    table = {KEY: BLANK} | asdict(checkpoint.description)
    # not save_file: it hides the errors of the disk and the user's umask
    pieces = seal(save(stored, metadata={METADATA: json.dumps(table)}))

    def write(partial: Path) -> None:
        with partial.open("wb") as stream:
            for piece in pieces:
                stream.write(piece)

    def read_back(partial: Path) -> None:
        drop_cached(partial)
        try:
            check_whole(partial)
        except DamagedError as error:
            raise OSError(f"what was read back is not what was written ({error.reason})") from None

    keep = None
    if previous is not None:
        with suppress(InputError):
            load_description(path)
            keep = previous
    write_atomic(path, write, verify=read_back, keep=keep)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint of ours."""
    description = load_description(path)
    try:
        with safe_open(path, framework="pt") as stream:
            tensors = {key: stream.get_tensor(key) for key in stream.keys()}  # noqa: SIM118 - not a dict
    except Exception as error:  # a file without a checksum may hold anything
        raise DamagedError(path, str(error)) from None
    return Checkpoint(
        weights={key: value for key, value in tensors.items() if not key.startswith(TRAIN_PREFIX)},
        training={k.removeprefix(TRAIN_PREFIX): v for k, v in tensors.items() if k.startswith(TRAIN_PREFIX)},
        description=description,
    )


def load_description(path: Path) -> Description:
    """What the file says about itself, after a look at every byte."""
    try:
        sealed = check_whole(path)
        with safe_open(path, framework="pt") as stream:
            header = stream.metadata()
    except InputError:
        raise
    except OSError as error:
        if error.errno == errno.EIO:
            raise DamagedError(path, "the disk cannot read it") from None
        raise InputError(f"{path} is not a readable checkpoint: {error.strerror or error}") from None
    except Exception as error:  # whatever the reader makes of bytes nobody wrote
        raise DamagedError(path, str(error)) from None
    return _parsed(path, header, sealed=sealed)


def _parsed(path: Path, header: Mapping[str, str] | None, *, sealed: bool) -> Description:
    try:
        table: dict[str, Any] = json.loads((header or {})[METADATA])
        if table.pop(KEY, None) is not None and not sealed:
            raise ValueError("its checksum cannot be read")
        other = other_version(table, sealed=sealed)
        if other is None:
            for name, is_valid in _FIELD_CHECKS.items():
                if name in table and not is_valid(table[name]):
                    raise ValueError(f"its {name} is {str(table[name])[:80]!r}")
            return Description(**(table | {"image_shape": tuple(table["image_shape"])}))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = f"it holds weights but no widemargin description; it was not written by widemargin ({error})"
        raise DamagedError(path, reason) from None
    raise InputError(f"{path} {other}")


def check_run(file: Path, description: Description, config: RunConfig) -> None:
    """Refuse a checkpoint of another run than this."""
    changed = differences(description.run_config(), config)
    if changed:
        raise InputError(
            f"{file} is of another run than the {CONFIG} of its folder ({'; '.join(changed[:3])}); put back the one "
            "that belongs there"
        )


def load_newest(last: Path, previous: Path) -> tuple[Checkpoint, Path] | None:
    """The last checkpoint and its path, or the previous one and a warning; None where there is neither."""
    if not last.exists() and not previous.exists():
        return None
    trouble = f"{last} is missing"
    try:
        if last.exists():
            return load_checkpoint(last), last
    except DamagedError as error:
        trouble = f"{last} is damaged ({error.reason})"
    if not previous.exists():
        raise InputError(
            f"{trouble} and there is no {previous.name} to go on from; put back a copy, or remove it to begin anew"
        )
    try:
        checkpoint = load_checkpoint(previous)
    except DamagedError as error:
        raise InputError(
            f"{trouble} and {previous} is damaged ({error.reason}); put back a copy of one, or remove both to begin "
            "anew"
        ) from None
    at = f"epoch {checkpoint.description.epoch} and step {checkpoint.description.step}"
    text = f"{trouble}; going on from {previous}, {at}; what was trained after it is trained again"
    warnings.warn(text, WidemarginWarning, stacklevel=2)
    return checkpoint, previous


def other_version(table: Mapping[str, Any], *, sealed: bool) -> str | None:
    """Why only another version can read the description, and what to do; None where this one can.

    What this one does not know in a file that is not ``sealed`` by its checksum may as well be damage.
    """
    found, known = table.get("format", FORMAT), {field.name for field in fields(Description)}
    unknown = [name for name in table if name not in known and sealed]
    if found == FORMAT and not unknown:
        return None
    what = f"says {unknown[0][:80]!r} of itself" if found == FORMAT else f"has the format {str(found)[:80]!r}"
    versions = table.get("versions")
    writer = str(versions.get("widemargin", "unknown") if isinstance(versions, dict) else "unknown")[:80]
    return (
        f"{what}; this version reads {FORMAT!r}; use the version of widemargin that wrote it ({writer}), or choose "
        "another checkpoint"
    )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


_FIELD_CHECKS: dict[str, Callable[[Any], bool]] = {
    "which": lambda value: value in ("last", "best"),
    "selection": lambda value: isinstance(value, str),
    "config": lambda value: isinstance(value, dict),
    "image_shape": lambda value: isinstance(value, list) and len(value) == 3 and all(map(_is_count, value)),
    "num_classes": _is_count,
    "epoch": _is_count,
    "step": _is_count,
    "scores": lambda value: isinstance(value, dict) and all(type(score) in (int, float) for score in value.values()),
    "versions": lambda value: isinstance(value, dict),
    "format": lambda value: isinstance(value, str),
}
"""What is so in every checkpoint of ours."""


def seal(content: bytes) -> list[memoryview]:
    """The same bytes with the digest in place of the blank one, in pieces, since a copy would double the memory."""
    length = header_length(content[:8])
    place = _CHECKSUM.search(content, 8, 8 + length)
    if place is None:  # a bug of ours: whoever saves puts the blank there
        raise ValueError("the header has no place for the checksum")
    digest = hashlib.sha256(content).hexdigest().encode()
    whole = memoryview(content)
    return [whole[: place.start(1)], memoryview(digest), whole[place.end(1) :]]


def check_whole(path: Path) -> bool:
    """Read every byte; a file whose checksum does not fit is damaged. False where there is no checksum to compare."""
    check_file(path)
    with path.open("rb") as stream:
        header = read_header(stream, path)
        place = _CHECKSUM.search(header)
        if place is None:
            return False
        described = 8 + len(header) + max((int(end) for end in _TENSOR_ENDS.findall(header)), default=0)
        if described < (size := path.stat().st_size):  # which may be terabytes of nothing
            raise DamagedError(path, f"it has {size} bytes, {size - described} more than it describes")
        blank = header[: place.start(1)] + b"0" * 64 + header[place.end(1) :]
        running = hashlib.sha256(struct.pack("<Q", len(header)) + blank)
        while chunk := stream.read(_CHUNK):
            running.update(chunk)
    if running.hexdigest().encode() != place.group(1):
        raise DamagedError(path, "its bytes do not fit its checksum")
    return True


def read_checksum(path: Path) -> str | None:
    """What a checkpoint carries, ``sha256:...``, by its header alone; None where there is none to be read."""
    try:
        check_file(path)
        with path.open("rb") as stream:
            place = _CHECKSUM.search(read_header(stream, path))
    except (InputError, OSError):
        return None
    return None if place is None else f"sha256:{place.group(1).decode()}"


def read_header(stream: BinaryIO, path: Path) -> bytes:
    """The JSON header, if the file can hold one of the length it claims."""
    size = path.stat().st_size
    start = stream.read(8)
    if len(start) < 8:
        raise DamagedError(path, f"it has {size} bytes in all")
    length = header_length(start)
    if length > min(size - 8, _LONGEST_HEADER):
        if stream.read(1) != b"{":
            raise DamagedError(path, "it does not begin as a safetensors file does, so it holds something else")
        raise DamagedError(path, f"it claims a header of {length} bytes and has {size} bytes in all")
    return stream.read(length)


def header_length(start: bytes) -> int:
    """The number the first eight bytes hold."""
    (length,) = struct.unpack("<Q", start)
    return int(length)


def restore_model(checkpoint: Checkpoint, *, source: Path) -> nn.Module:
    """The model the checkpoint describes, with its weights, in evaluation mode."""
    description = checkpoint.description
    config = description.run_config()
    with no_larger_than(checkpoint.weights, source=str(source)):
        model = build_model(
            config.model.without_weights() if isinstance(config.model, LibraryConfig) else config.model,
            image_shape=description.image_shape,
            num_classes=description.num_classes,
            seed=0,
            make_head=config.head,
        )
    load_weights(model, checkpoint.weights, source=source)
    return model.eval()


def load_weights(model: torch.nn.Module, weights: Mapping[str, Tensor], *, source: Path) -> None:
    """Load weights that must fit, or say which do not."""
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    found = {key: tuple(value.shape) for key, value in weights.items()}
    wrong = [
        key for key in [*expected, *(k for k in found if k not in expected)] if expected.get(key) != found.get(key)
    ]
    if wrong:
        key = wrong[0]
        raise InputError(
            f"{source} does not fit a {type(model).__name__}: {key} is {found.get(key, 'missing')} in the file and "
            f"{expected.get(key, 'absent')} in the model ({len(wrong)} such); is it a checkpoint of another model?"
        )
    model.load_state_dict(dict(weights))


@contextmanager
def fitting(source: Path) -> Iterator[None]:
    """What a checkpoint holds for training is put back inside; where it does not fit, that is said in one line."""
    try:
        yield
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{source} does not fit this run: {reason}; is it a checkpoint of another run?") from None

"""Try an installed widemargin as a newcomer would: ``make release-check`` runs it in a clean environment.

The package must be the installed one, not this checkout. The two lines of the README, two short trainings, evaluations,
margins, a comparison and the report run on the data that come with the wheel.
"""

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHORT = ["--set", "data.train_limit=600", "--set", "data.test_limit=200"]
SOURCES = ("README.md", "constraints.txt", "Makefile", "mkdocs.yml", "notebooks/margins.ipynb", "tests/conftest.py")


def command(*words: str) -> None:
    """Run ``widemargin`` and stop where it fails."""
    print("widemargin", *words, flush=True)
    subprocess.run([str(Path(sys.executable).parent / "widemargin"), *words], check=True)


def two_lines() -> None:
    """Those of the README, on a network of our own, with their gradient and what they are for."""
    import torch
    import torch.nn.functional as F

    import widemargin

    place = Path(str(widemargin.__file__)).resolve()
    if ROOT / "src" in place.parents:
        raise SystemExit(f"this is the checkout, not the installed package: {place}")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    x, y = torch.rand(16, 1, 28, 28), torch.arange(16) % 10
    emr = widemargin.ApproximateEMR(temperature=1.0)
    loss = F.cross_entropy(model(x), y) + 0.1 * emr(model, x).mean()
    loss.backward()
    report = widemargin.evaluate(model, (x, y), ["clean", "pgd20", "autoattack"], eps=0.1)
    print("two lines: loss", round(float(loss.detach()), 3), "accuracy", report.accuracy, flush=True)
    if not (loss.isfinite() and all(weights.grad is not None for weights in model.parameters())):
        raise SystemExit("the two lines gave no gradient")


def archives(folder: Path) -> None:
    """The wheel has the package and nothing else; the source archive has what its tests and pages need."""
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    others = {name.split("/")[0] for name in names} - {"widemargin"}
    if not (len(others) == 1 and others.pop().endswith(".dist-info") and "widemargin/py.typed" in names):
        raise SystemExit(f"{wheel.name} holds other things than the package, or no py.typed")
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    missing = [name for name in SOURCES if name not in inside]
    if missing:
        raise SystemExit(f"{source.name} lacks {', '.join(missing)}")
    if version("widemargin") not in wheel.name:
        raise SystemExit(f"installed is {version('widemargin')}, built was {wheel.name}")


def main(folder: Path) -> None:
    """Try everything, in a folder of its own."""
    archives(folder)
    two_lines()
    with tempfile.TemporaryDirectory() as work:
        for name in ("plain", "emr"):
            run, judged = f"{work}/runs/{name}", f"{work}/evaluations/{name}"
            command("train", f"demo/{name}", "--out", run, *SHORT)
            command("evaluate", run, "--attacks", "clean,pgd20,autoattack", "--limit", "30", "--out", judged)
        command("margins", f"{work}/runs/emr", "--limit", "50")
        command("compare", f"{work}/evaluations/emr", f"{work}/evaluations/plain", "--by", "pgd20")
        command("report", work, "--out", f"{work}/report.html")
    print(f"widemargin {version('widemargin')}: the wheel works on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

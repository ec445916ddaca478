"""Whatever bytes a reader is given, it reads them or refuses them with an InputError; nothing else comes out.

A few hundred inputs in the normal run, the same ones every time; tens of thousands, new ones, in ``make test-long``.
"""

import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import EDITS, mutated
from readers import Reader, readers

from widemargin.errors import InputError

NAMES = (
    "idx",
    "idx labels",
    "idx.gz",
    "idx.gz, inside",
    "cifar binary",
    "cifar python",
    "cifar pickle",
    "cifar tar.gz",
    "cifar tar.gz, inside",
    "npz",
    "npz, images inside",
    "npz, labels inside",
    "image folder",
    "run configuration",
    "checkpoint",
    "checkpoint, checksum made to fit",
    "public .pt",
    "public .pt, pickle inside",
    "public .pt, old form",
    "public .safetensors",
)
QUICK, LONG = 20, 1000


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Reader]:
    found = readers(tmp_path_factory.mktemp("real"))
    assert tuple(found) == NAMES
    return found


@pytest.fixture(scope="module")
def tally(request):
    """How many inputs each reader was given and how many of them it read; shown after the long run."""
    given_to, read_by = Counter(), Counter()
    yield given_to, read_by
    if sum(given_to.values()) > LONG:
        show = request.config.pluginmanager.getplugin("terminalreporter").write_line
        show("")
        for name, count in given_to.items():
            show(f"{name:34} {count:6} inputs, {read_by[name]:5} read, {count - read_by[name]:6} refused")
        show(f"{'all':34} {given_to.total():6} inputs, {read_by.total():5} read")


def fuzz(reader: Reader, name: str, folder: Path, tally, *, examples: int, again: bool) -> None:
    path = folder / reader.name

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=again,
        suppress_health_check=list(HealthCheck),
    )
    @given(which=st.sampled_from(range(len(reader.files))), edits=EDITS)
    def attempt(which, edits):
        path.write_bytes(reader.pack(mutated(reader.files[which], edits, reader.files)))
        tally[0][name] += 1
        with suppress(InputError):
            reader.read(path)
            tally[1][name] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow and pickletools, about what is odd in a file
        attempt()


@pytest.mark.parametrize("name", NAMES)
def test_the_real_files_are_read(name, made, tmp_path):
    reader = made[name]
    path = tmp_path / reader.name
    path.write_bytes(reader.pack(reader.files[0]))
    reader.read(path)


@pytest.mark.parametrize("name", NAMES)
def test_mutated_files(name, made, tmp_path, tally):
    fuzz(made[name], name, tmp_path, tally, examples=QUICK, again=True)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_mutated_files_for_long(name, made, tmp_path, tally):
    fuzz(made[name], name, tmp_path, tally, examples=LONG, again=False)
    assert tally[0][name] >= LONG

"""Whatever bytes a reader is given, it reads them or refuses them with an InputError; nothing else comes out.

A few hundred inputs in the normal run, the same ones every time; tens of thousands, new ones, in ``make test-long``.
"""

import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import EDITS, mutated
from readers import SHOWN, Reader, readers
from structures import structures

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
    *(f"report, {name}" for name in SHOWN),
    "report, gallery inside",
)
STRANGE = tuple(structures(Path()))
QUICK, LONG = 20, 1000
PAGES = 4
"""Of these the normal run makes fewer: a whole page takes longer than a reader."""


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
        lines = [f"{name:34} {count:6} inputs, {read_by[name]:5} read" for name, count in given_to.items()]
        lines.append(f"{'all':34} {given_to.total():6} inputs, {read_by.total():5} read")
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print("\n" + "\n".join(lines))


def fuzz(reader: Reader, contents, tally, *, name: str, folder: Path, examples: int, again: bool) -> None:
    path = folder / reader.name

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=again,
        suppress_health_check=list(HealthCheck),
    )
    @given(content=contents)
    def attempt(content):
        path.write_bytes(content)
        tally[0][name] += 1
        with suppress(InputError):
            reader.read(path)
            tally[1][name] += 1
            assert not reader.sealed or content in reader.files, "a change was not seen"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow and pickletools, about what is odd in a file
        attempt()


def quick(name: str) -> int:
    return PAGES if name.startswith("report") else QUICK


def mutations_of(reader: Reader) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda whole, edits: reader.pack(mutated(whole, edits, reader.files)), st.sampled_from(reader.files), EDITS
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_real_files_are_read(name, made, tmp_path):
    reader = made[name]
    path = tmp_path / reader.name
    path.write_bytes(reader.pack(reader.files[0]))
    reader.read(path)


@pytest.mark.parametrize("name", NAMES)
def test_mutated_files(name, made, tmp_path, tally):
    reader = made[name]
    fuzz(reader, mutations_of(reader), tally, name=name, folder=tmp_path, examples=quick(name), again=True)


@pytest.mark.parametrize("name", STRANGE)
def test_strange_files(name, made, tmp_path, tally):
    reader, make = structures(tmp_path)[name]
    fuzz(
        replace(made[reader], sealed=False), make(), tally, name=name, folder=tmp_path, examples=quick(name), again=True
    )


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_mutated_files_for_long(name, made, tmp_path, tally):
    reader = made[name]
    fuzz(reader, mutations_of(reader), tally, name=name, folder=tmp_path, examples=LONG, again=False)
    assert tally[0][name] >= LONG


@pytest.mark.long
@pytest.mark.parametrize("name", STRANGE)
def test_strange_files_for_long(name, made, tmp_path, tally):
    reader, make = structures(tmp_path)[name]
    fuzz(replace(made[reader], sealed=False), make(), tally, name=name, folder=tmp_path, examples=LONG, again=False)
    assert tally[0][name] >= LONG

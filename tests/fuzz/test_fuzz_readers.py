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
from readers import READERS, Reader
from structures import structures

from widemargin.errors import InputError

STRANGE = tuple(structures(Path()))
QUICK, LONG = 20, 1000
PAGES = 4
"""Of these the normal run makes fewer: a whole page takes longer than a reader."""


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Reader]:
    folder = tmp_path_factory.mktemp("real")
    return {name: make(folder) for name, make in READERS.items()}


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


def fuzz(reader: Reader, contents, tally, *, name: str, folder: Path, long: bool) -> None:
    """As many inputs as a run makes: in a long one other ones every time."""
    path = folder / reader.name

    @settings(
        max_examples=LONG if long else PAGES if name.startswith("report") else QUICK,
        deadline=None,
        database=None,
        derandomize=not long,
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
    assert not long or tally[0][name] >= LONG


def mutations_of(reader: Reader) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda whole, edits: reader.pack(mutated(whole, edits, reader.files)), st.sampled_from(reader.files), EDITS
    )


@pytest.mark.parametrize("name", READERS)
def test_the_real_files_are_read(name, made, tmp_path):
    reader = made[name]
    path = tmp_path / reader.name
    path.write_bytes(reader.pack(reader.files[0]))
    reader.read(path)


HOW_LONG = pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.long)], ids=["quick", "long"])


@HOW_LONG
@pytest.mark.parametrize("name", READERS)
def test_mutated_files(name, long, made, tmp_path, tally):
    fuzz(made[name], mutations_of(made[name]), tally, name=name, folder=tmp_path, long=long)


@HOW_LONG
@pytest.mark.parametrize("name", STRANGE)
def test_strange_files(name, long, made, tmp_path, tally):
    reader, make = structures(tmp_path)[name]
    fuzz(replace(made[reader], sealed=False), make(), tally, name=name, folder=tmp_path, long=long)

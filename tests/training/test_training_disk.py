"""Checkpoints on disks that are full, read-only, failing or cut off: the old file or the new one, never neither."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from faults import KilledError, contents, failing_flush, files_no_larger_than, full_disk, killed_after, no_links
from widemargin import InputError
from widemargin.config import checkpoint as checkpoint_file
from widemargin.config.checkpoint import (
    PREVIOUS,
    Checkpoint,
    DamagedError,
    Description,
    load_checkpoint,
    load_newest,
    save_checkpoint,
)
from widemargin.core import files
from widemargin.core.files import LONG_AGO, make_folder, partial_of, write_atomic, write_text_atomic
from widemargin.training import train


def checkpoint(epoch: int, *, side: int = 100) -> Checkpoint:
    """About 40 kB, or less, that differ from epoch to epoch."""
    weights = {"a": torch.full((side, side), float(epoch)), "b": torch.arange(7)}
    description = Description(
        which="last",
        selection='by hand: "checksum": "sha256:' + "0" * 64 + '"',  # a user's text does not pass for the checksum
        config={},
        image_shape=(1, 2, 2),
        num_classes=2,
        epoch=epoch,
        step=0,
        scores={"test_clean": 1.5},
    )
    return Checkpoint(weights, {"sums/loss": torch.tensor(1.0)}, description)


@pytest.fixture
def places(tmp_path):
    return tmp_path / "last.safetensors", tmp_path / PREVIOUS


@pytest.fixture
def saved(places):
    """Those places with the checkpoints of two epochs."""
    for epoch in (1, 2):
        save_checkpoint(places[0], checkpoint(epoch), places[1])
    return places


def epoch_in(path: Path) -> int:
    return load_checkpoint(path).description.epoch


@pytest.mark.parametrize("links", [True, False])
def test_the_one_before_is_kept_linked_or_copied(places, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    last, previous = places
    save_checkpoint(last, checkpoint(1), previous)
    assert not previous.exists()
    for epoch in (2, 3):
        save_checkpoint(last, checkpoint(epoch), previous)
        assert (epoch_in(last), epoch_in(previous)) == (epoch, epoch - 1)
    assert not last.samefile(previous)
    assert sorted(path.name for path in last.parent.iterdir()) == ["last.safetensors", PREVIOUS]


def test_a_damaged_one_does_not_push_out_a_good_one(saved):
    last, previous = saved
    last.write_bytes(last.read_bytes()[:-1])
    save_checkpoint(last, checkpoint(3), previous)
    assert (epoch_in(last), epoch_in(previous)) == (3, 1)


def test_every_changed_bit_of_the_header_and_any_of_the_weights_is_seen(places):
    last, _ = places
    save_checkpoint(last, checkpoint(1, side=5))
    whole = last.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    flips = [(at, bit) for at in range(header) for bit in range(8)]
    flips += [(at, at % 8) for at in range(header, len(whole))]
    for at, bit in flips:
        changed = bytearray(whole)
        changed[at] ^= 1 << bit
        last.write_bytes(changed)
        with pytest.raises(DamagedError, match="is not a readable checkpoint"):
            load_checkpoint(last)


def test_every_truncation_is_seen(places):
    last, _ = places
    save_checkpoint(last, checkpoint(1))
    whole = last.read_bytes()
    for length in [*range(0, 2000, 13), *range(2000, len(whole), 997), len(whole) - 1]:
        last.write_bytes(whole[:length])
        with pytest.raises(DamagedError):
            load_checkpoint(last)
    last.write_bytes(whole + b"\0")
    with pytest.raises(DamagedError):
        load_checkpoint(last)


def test_checkpoints_of_versions_without_a_checksum_still_load(places):
    last, previous = places
    new = checkpoint(4)
    save_checkpoint(last, new)
    header = json.loads(last.read_bytes()[8 : 8 + int.from_bytes(last.read_bytes()[:8], "little")])
    table = json.loads(header["__metadata__"]["widemargin"])
    assert table.pop("checksum").startswith("sha256:")
    save_file(load_file(last), last, metadata={"widemargin": json.dumps(table)})
    assert load_checkpoint(last).description == new.description
    save_checkpoint(last, checkpoint(5), previous)
    assert (epoch_in(last), epoch_in(previous)) == (5, 4)


def test_the_same_checkpoint_is_the_same_bytes(tmp_path):
    for name in "ab":
        save_checkpoint(tmp_path / name, checkpoint(1))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("links", [True, False])
def test_a_kill_between_any_two_system_calls_leaves_a_checkpoint_and_the_next_save_cleans_up(
    tmp_path, monkeypatch, links
):
    """Also that the run can go on from what is left: the last one of then or the new one, nothing older."""
    for calls in range(100):
        folder = tmp_path / str(calls)
        folder.mkdir()
        last, previous = folder / "last.safetensors", folder / PREVIOUS
        for epoch in (1, 2):
            save_checkpoint(last, checkpoint(epoch), previous)
        with monkeypatch.context() as patch:
            if not links:
                patch.setattr(os, "link", no_links)
            made = killed_after(patch, calls)
            try:
                save_checkpoint(last, checkpoint(3), previous)
                finished = True
            except KilledError:
                finished = False
        newest = load_newest(last, previous)
        assert newest is not None
        assert newest[1] == last
        assert newest[0].description.epoch in ((3,) if finished else (2, 3)), made
        assert epoch_in(previous) in ((2,) if finished else (1, 2)), made
        save_checkpoint(last, checkpoint(4), previous)
        assert sorted(path.name for path in folder.iterdir()) == ["last.safetensors", PREVIOUS], made
        if finished:
            assert calls > 8  # write, flush, verify, link, rename, rename, flush
            return
    pytest.fail("never finished")


@pytest.mark.parametrize("kind", ["limit", "full", "flush"])
def test_a_full_disk_is_told_and_the_former_checkpoints_stay(saved, monkeypatch, kind):
    last, previous = saved
    before = contents(last.parent)
    make, words = {
        "limit": (lambda: files_no_larger_than(10_000), "File too large"),
        "full": (lambda: full_disk(last), "No space left on device"),
        "flush": (lambda: failing_flush(monkeypatch), "No space left on device"),
    }[kind]
    says = rf"cannot write .*last.safetensors: {words}; free space or choose"
    for _ in range(2):  # nothing is left that breaks the second attempt
        with make(), pytest.raises(InputError, match=says):
            save_checkpoint(last, checkpoint(3), previous)
        assert contents(last.parent) == before
    save_checkpoint(last, checkpoint(3), previous)
    assert (epoch_in(last), epoch_in(previous)) == (3, 2)


def test_a_run_on_a_full_disk_stops_with_one_line_and_goes_on_when_there_is_room(tiny, tmp_path, left_in):
    config = tiny("data.held_out=20", 'watch.attack={kind="fgsm", eps=0.1}')
    full, never = tmp_path / "full", tmp_path / "never"
    train(config, out=never)
    for name in ("best.safetensors", "last.safetensors"):
        full.mkdir(exist_ok=True)
        train(config, out=full, max_seconds=0)
        says = rf"cannot write .*{name}: No space left on device"
        with full_disk(full / name), pytest.raises(InputError, match=says):
            train(config, out=full)
        assert not [path for path in full.iterdir() if path.name.endswith(".partial")]
    train(config, out=full)
    with full_disk(full / "metrics.jsonl"), pytest.raises(InputError, match=r"cannot write .*metrics.jsonl: No space"):
        train(config, out=full)
    left_in(full).assert_same(left_in(never))


def test_a_disk_that_gives_back_other_bytes_is_told_and_the_former_checkpoints_stay(saved, monkeypatch):
    last, previous = saved
    before = contents(last.parent)

    def rotten(path):
        content = bytearray(path.read_bytes())
        content[-5] ^= 4
        path.write_bytes(content)

    monkeypatch.setattr(checkpoint_file, "drop_cached", rotten)
    says = r"cannot write .*last.safetensors: what was read back is not what was written"
    with pytest.raises(InputError, match=says):
        save_checkpoint(last, checkpoint(3), previous)
    assert contents(last.parent) == before


@pytest.fixture
def read_only():
    """A folder that this process may read and not write, whoever runs the tests."""
    folder = Path(tempfile.mkdtemp())
    save_checkpoint(folder / "last.safetensors", checkpoint(1))
    folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)  # nobody; root may write anywhere
    yield folder
    if root:
        os.seteuid(0)
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_folder_is_told_and_left_alone(read_only):
    last, previous = read_only / "last.safetensors", read_only / PREVIOUS
    rights = r"Permission denied; get the right to write there or choose another folder \(--out at the command line\)$"
    with pytest.raises(InputError, match=rf"cannot write .*last.safetensors: {rights}"):
        save_checkpoint(last, checkpoint(2), previous)
    with pytest.raises(InputError, match=rf"cannot write to the folder .*: {rights}"):
        make_folder(read_only)
    assert epoch_in(last) == 1
    assert [path.name for path in read_only.iterdir()] == ["last.safetensors"]


def test_a_checkpoint_that_may_not_be_read_is_no_damage(read_only):
    last, user = read_only / "last.safetensors", os.geteuid()
    os.seteuid(os.getuid())  # whose file it is
    last.chmod(0)
    os.seteuid(user)
    with pytest.raises(InputError, match="Permission denied") as caught:
        load_newest(last, read_only / PREVIOUS)
    assert not isinstance(caught.value, DamagedError)


def test_a_folder_that_cannot_be_flushed_is_no_failure(places, monkeypatch):
    real = os.fsync

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):  # noqa: PTH112 - a descriptor, not a path of ours
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    save_checkpoint(places[0], checkpoint(1))
    assert epoch_in(places[0]) == 1


def test_what_is_flushed_and_when(places, monkeypatch):
    """The file before its name changes, the folder after."""
    last, previous = places
    save_checkpoint(last, checkpoint(1), previous)
    seen = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor):
        seen.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))  # noqa: PTH115
        real_fsync(descriptor)

    def replace(path, target):
        seen.append(("replace", str(target)))
        return real_replace(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    save_checkpoint(last, checkpoint(2), previous)
    assert seen == [
        ("fsync", str(partial_of(last))),
        ("replace", str(previous)),
        ("replace", str(last)),
        ("fsync", str(last.parent)),
    ]


OTHER_MACHINE = "node-17.cluster-4026531836-1-140.partial"


@pytest.mark.parametrize("name", [".config.toml.partial", ".writable", f".config.toml.{OTHER_MACHINE}"])
def test_what_a_kill_leaves_of_the_first_file_does_not_take_the_folder(tiny, tmp_path, name):
    (tmp_path / name).write_text("name = ")
    assert train(tiny("epochs=1"), out=tmp_path).finished
    assert (tmp_path / name).exists() == (OTHER_MACHINE in name)  # who may still be writing


def test_a_folder_that_cannot_be_opened_or_locked_is_told(tmp_path, monkeypatch):
    with (
        pytest.raises(InputError, match=r"cannot open the folder .*absent: No such file or directory; choose another"),
        files.folder_lock(tmp_path / "absent"),
    ):
        pass

    def failing(descriptor, how):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files.fcntl, "flock", failing)
    with pytest.raises(InputError, match=r"cannot lock the folder .*: Input/output error"), files.folder_lock(tmp_path):
        pass


def test_partial_files_beside_others_are_left_alone(tmp_path):
    (tmp_path / ".a.partial").write_text("another process is writing")
    (tmp_path / "b").write_text("b")
    files.make_folder(tmp_path)
    assert (tmp_path / ".a.partial").exists()
    write_text_atomic(tmp_path / "a", "a")
    assert not (tmp_path / ".a.partial").exists()


def test_two_writers_at_once_each_put_a_whole_file_there(tmp_path):
    path = tmp_path / "a"

    def slowly(partial):
        partial.write_text("the first half")
        other = threading.Thread(target=write_text_atomic, args=(path, "another's"))
        other.start()
        other.join()
        assert path.read_text() == "another's"
        with partial.open("a") as stream:
            stream.write(" and the second")

    write_atomic(path, slowly)
    assert path.read_text() == "the first half and the second"
    assert list(tmp_path.iterdir()) == [path]


WRITING = """
import sys
from pathlib import Path
from widemargin.core.files import write_atomic

def write(partial):
    partial.write_text("half")
    print(partial, flush=True)
    sys.stdin.read()

write_atomic(Path(sys.argv[1]), write)
"""


def test_the_partial_file_of_another_process_goes_when_that_process_is_gone(tmp_path):
    path = tmp_path / "a"
    command = [sys.executable, "-c", WRITING, path]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    partial = Path(child.stdout.readline().strip())
    assert partial.read_text() == "half"
    files.make_folder(tmp_path)
    write_text_atomic(path, "a")
    assert partial.exists()
    child.kill()
    child.communicate()
    write_text_atomic(path, "b")
    assert list(tmp_path.iterdir()) == [path]


def test_the_partial_file_of_another_machine_goes_when_nobody_has_touched_it_for_long(tmp_path):
    path, partial = tmp_path / "a", tmp_path / f".a.{OTHER_MACHINE}"
    partial.write_text("half")
    files.make_folder(tmp_path)
    write_text_atomic(path, "a")
    assert partial.exists()
    then = time.time() - LONG_AGO - 60
    os.utime(partial, (then, then))
    write_text_atomic(path, "b")
    assert list(tmp_path.iterdir()) == [path]


def test_two_may_ask_for_a_folder_at_once(tmp_path, monkeypatch):
    folder, touch = tmp_path / "new", Path.touch

    def touched_and_asked_for_by_another(path, **options):
        touch(path, **options)
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=make_folder, args=(folder,))
            other.start()
            other.join()
            asked.append(folder.exists())

    asked = []
    monkeypatch.setattr(Path, "touch", touched_and_asked_for_by_another)
    assert make_folder(folder) == folder
    assert asked == [True]
    assert list(folder.iterdir()) == []

"""Stop a run anywhere, start it again, and it ends bit for bit where an uninterrupted run ends."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file

import faults
from faults import clock_of_steps, contents, interrupt_at, interrupted
from widemargin import InputError
from widemargin.config.checkpoint import BLANK, load_checkpoint, seal
from widemargin.core.precision import deterministic_algorithms
from widemargin.core.versions import own_version
from widemargin.engine.plan import searching_kernels
from widemargin.errors import WidemarginWarning
from widemargin.training import train

VALIDATED = ("data.held_out=40", 'watch.attack={kind="pgd", eps=0.1, step_size=0.05, steps=2}', "watch.margins=[]")
AT = 'objective={kind="adversarial", attack={kind="pgd", eps=0.1, step_size=0.05, steps=2, random_start="uniform"}}'
METHODS = {  # the kills have more
    "st": (),
    "at-stochastic": (AT, 'emr={kind="stochastic", weight=0.1, at="adversarial"}', 'watch.margins=["train"]'),
}
STEPS = 4  # in an epoch of 150 images


@pytest.fixture(scope="module")
def uninterrupted(tiny, tmp_path_factory, left_in):
    """name -> (configuration, what the run left), each trained once."""
    done = {}

    def get(name):
        if name not in done:
            config, out = tiny(*VALIDATED, *METHODS[name]), tmp_path_factory.mktemp(name) / "run"
            train(config, out=out)
            done[name] = config, left_in(out)
        return done[name]

    return get


def test_epochs_within_the_pause_have_no_checkpoint_and_are_trained_again(
    uninterrupted, tmp_path, monkeypatch, left_in
):
    config, expected = uninterrupted("at-stochastic")
    clock_of_steps(monkeypatch)
    interrupt_at(monkeypatch, 2 * STEPS + 3)  # the clock counts no more
    with pytest.raises(KeyboardInterrupt):
        train(config, out=tmp_path, checkpoint_pause=STEPS + 1)
    assert load_checkpoint(tmp_path / "last.safetensors").description.epoch == 1
    monkeypatch.undo()
    assert train(config, out=tmp_path, checkpoint_pause=1e9).finished
    left_in(tmp_path).assert_same(expected)


def test_a_run_that_stops_within_the_pause_keeps_its_last_epoch(uninterrupted, tmp_path, monkeypatch, left_in):
    config, expected = uninterrupted("st")
    clock_of_steps(monkeypatch)
    assert train(config, out=tmp_path, max_seconds=2 * STEPS, checkpoint_pause=1e9).epoch == 2
    description = load_checkpoint(tmp_path / "last.safetensors").description
    assert (description.epoch, description.step) == (2, 0)
    assert description.scores
    assert train(config, out=tmp_path, checkpoint_pause=1e9).finished
    left_in(tmp_path).assert_same(expected)


@pytest.mark.parametrize("name", METHODS)
def test_after_the_time_is_out_in_mid_epoch_again_and_again(name, uninterrupted, tmp_path, monkeypatch, left_in):
    config, expected = uninterrupted(name)
    clock_of_steps(monkeypatch)
    nothing = train(config, out=tmp_path, max_seconds=0)
    assert (nothing.finished, nothing.epoch, nothing.metrics) == (False, 0, [])
    for seconds, epoch, step in ((2, 0, 2), (3, 1, 1), (6, 2, 3)):
        result = train(config, out=tmp_path, max_seconds=seconds)
        assert (result.finished, result.epoch) == (False, epoch)
        description = load_checkpoint(tmp_path / "last.safetensors").description
        assert (description.epoch, description.step, description.which) == (epoch, step, "last")
    assert train(config, out=tmp_path).finished
    left_in(tmp_path).assert_same(expected)


def test_after_the_time_is_out_at_the_end_of_an_epoch(uninterrupted, tmp_path, monkeypatch, left_in):
    config, expected = uninterrupted("at-stochastic")
    clock_of_steps(monkeypatch)
    for epoch in (1, 2):
        result = train(config, out=tmp_path, max_seconds=STEPS)
        assert (result.finished, result.epoch, len(result.metrics)) == (False, epoch, epoch)
    assert train(config, out=tmp_path, max_seconds=STEPS).finished
    left_in(tmp_path).assert_same(expected)


def test_a_metrics_line_cut_off_by_a_crash_is_written_again(uninterrupted, tmp_path, left_in):
    config, expected = uninterrupted("st")
    interrupted(config, tmp_path, step=2 * STEPS + 1)
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"epoch": 3, "lo')
    train(config, out=tmp_path)
    left_in(tmp_path).assert_same(expected)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def garble_header(path):
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])


def empty(path):
    path.write_bytes(b"")


def without_description(path):
    save_file(load_file(path), path)


def described_otherwise(path, changes, *, sealed):
    with safe_open(path, framework="pt") as stream:
        table = json.loads(stream.metadata()["widemargin"])
    del table["checksum"]
    table = ({"checksum": BLANK} if sealed else {}) | table | changes
    content = save(load_file(path), metadata={"widemargin": json.dumps(table)})
    path.write_bytes(b"".join(seal(content)) if sealed else content)


def flip_a_weight(path):
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes(content)


DAMAGES = [
    (truncate, "not fit its checksum"),
    (garble_header, "it claims a header of 18446744073709551615 bytes"),
    (empty, "it has 0 bytes in all"),
    (without_description, "holds weights but no widemargin description"),
    (flip_a_weight, "its bytes do not fit its checksum"),
    (Path.unlink, r"last.safetensors is missing; going on from"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_a_damaged_last_checkpoint_is_told_and_the_run_goes_on_from_the_previous(
    damage, reason, uninterrupted, tmp_path, left_in
):
    config, expected = uninterrupted("at-stochastic")
    interrupted(config, tmp_path, step=2 * STEPS + 1)
    damage(tmp_path / "last.safetensors")
    with pytest.warns(WidemarginWarning, match=reason) as told:
        assert train(config, out=tmp_path).finished
    assert str(tmp_path / "last.safetensors") in str(told[0].message)
    assert "previous.safetensors, epoch 1 and step 0" in str(told[0].message)
    left_in(tmp_path).assert_same(expected)
    load_checkpoint(tmp_path / "previous.safetensors")  # the damaged one did not push it out


def test_a_damaged_last_checkpoint_of_a_middle_of_an_epoch(uninterrupted, tmp_path, monkeypatch, left_in):
    config, expected = uninterrupted("at-stochastic")
    clock_of_steps(monkeypatch)
    for seconds in (2, 4):
        train(config, out=tmp_path, max_seconds=seconds)
    flip_a_weight(tmp_path / "last.safetensors")
    with pytest.warns(WidemarginWarning, match="previous.safetensors, epoch 1 and step 0"):
        train(config, out=tmp_path)
    left_in(tmp_path).assert_same(expected)


@pytest.mark.parametrize(("damage", "reason"), DAMAGES[:-1])
@pytest.mark.parametrize("other", ["damaged", "absent"])
def test_without_a_good_previous_one_a_damaged_checkpoint_is_refused_and_nothing_is_trained_over_it(
    tiny, tmp_path, damage, reason, other
):
    config = tiny("epochs=2")
    train(config, out=tmp_path)
    damage(tmp_path / "last.safetensors")
    (damage if other == "damaged" else Path.unlink)(tmp_path / "previous.safetensors")
    before = contents(tmp_path)
    with pytest.raises(InputError, match=reason) as caught:
        train(config, out=tmp_path)
    assert str(tmp_path / "last.safetensors") in str(caught.value)
    assert "previous.safetensors" in str(caught.value)
    assert "to begin anew" in str(caught.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("changes", "sealed", "message"),
    [
        ({"format": "widemargin-checkpoint-9"}, False, "has the format 'widemargin-checkpoint-9'"),
        ({"format": "widemargin-checkpoint-9", "license": "MIT"}, False, "has the format 'widemargin-checkpoint-9'"),
        ({"format": "widemargin-checkpoint-9", "license": "MIT"}, True, "has the format 'widemargin-checkpoint-9'"),
        ({"format": 9, "epoch": {"whole": 2}, "versions": 3}, True, "has the format '9'"),
        ({"license": "MIT"}, True, "says 'license' of itself"),
    ],
)
def test_a_checkpoint_of_another_version_is_no_damage(tiny, tmp_path, changes, sealed, message):
    config = tiny("epochs=2")
    train(config, out=tmp_path)
    described_otherwise(tmp_path / "last.safetensors", changes, sealed=sealed)
    before = contents(tmp_path)
    writer = "unknown" if "versions" in changes else own_version()
    with pytest.raises(InputError, match=f"last.safetensors {message}; this version reads .*; use the") as caught:
        train(config, out=tmp_path)
    assert f"use the version of widemargin that wrote it ({writer}), or choose another checkpoint" in str(caught.value)
    assert contents(tmp_path) == before


METRICS_FAULTS = {
    "one damaged byte": (lambda text: "}" + text[1:], [2], "line 1 cannot be read; nothing is left of epoch 1"),
    "a changed number": (
        lambda text: text.replace('accuracy": ', 'accuracy": 1', 1),
        [2],
        "line 1 is not what this run measured in epoch 1",
    ),
    "a line twice": (lambda text: text.splitlines(True)[0] + text, [1, 2], "line 2 repeats epoch 1"),
    "out of order": (lambda text: "".join(text.splitlines(True)[::-1]), [1, 2], "its lines are out of order"),
    "empty": (lambda text: "", [], "nothing is left of epochs 1-2"),
    "no table": (lambda text: "[1, 2]\n" + text.splitlines(True)[1], [2], "line 1 cannot be read"),
}


@pytest.mark.parametrize("name", METRICS_FAULTS)
def test_a_damaged_file_of_metrics_is_set_aside_and_what_reads_is_kept(name, tiny, tmp_path):
    damage, kept, told = METRICS_FAULTS[name]
    config, path = tiny("epochs=2"), tmp_path / "metrics.jsonl"
    train(config, out=tmp_path)
    path.write_text(damage(path.read_text()))
    before = path.read_text()
    with pytest.warns(WidemarginWarning, match=told):
        result = train(config, out=tmp_path)
    assert [line["epoch"] for line in result.metrics] == kept
    if before:
        assert (tmp_path / "metrics.jsonl.damaged").read_text() == before


def test_line_ends_and_a_byte_order_mark_are_no_damage(tiny, tmp_path):
    config, path = tiny("epochs=2"), tmp_path / "metrics.jsonl"
    train(config, out=tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert len(train(config, out=tmp_path).metrics) == 2


@pytest.mark.parametrize(
    ("interrupted_in", "told"),
    [
        (2, "best.safetensors was missing and is saved again from last.safetensors"),
        (3, "best.safetensors was missing and is saved again from previous.safetensors"),
        (4, "best.safetensors is missing: the weights of epoch 1, the best so far, are lost; the run goes on"),
    ],
)
def test_lost_best_weights_are_saved_again_or_told(interrupted_in, told, tiny, tmp_path, left_in):
    config = tiny(*VALIDATED, "epochs=4", "optimizer.lr=1e-6")  # too little for a later epoch to be better
    train(config, out=tmp_path / "expected")
    interrupted(config, tmp_path / "run", step=(interrupted_in - 1) * STEPS + 1)
    (tmp_path / "run" / "best.safetensors").unlink()
    with pytest.warns(WidemarginWarning, match=told):
        train(config, out=tmp_path / "run")
    left, expected = left_in(tmp_path / "run"), left_in(tmp_path / "expected")
    if "lost" in told:
        expected.files.remove("best.safetensors")
        del expected.tensors["best.safetensors"]
    left.assert_same(expected)


OTHER_SCORES = {"scores": {"validation_robust": 3.0}}
RUN_FAULTS = {
    "another run's last": (
        lambda run, other: shutil.copy(other / "last.safetensors", run),
        r"last\S+ is of another run than .* \(seed: 1 here, 0 there",
    ),
    "another run's best": (
        lambda run, other: shutil.copy(other / "best.safetensors", run),
        r"best\S+ is of another run than .* \(seed: 1 here, 0 there",
    ),
    "best weights of other scores": (
        lambda run, _: described_otherwise(run / "best.safetensors", OTHER_SCORES, sealed=True),
        r"best.safetensors is not what this run saved in epoch \d",
    ),
    "an edited configuration": (
        lambda run, _: edit(run / "config.toml", "seed = 0", "seed = 7"),
        r"holds another run \(seed: 0 here, 7 there\)",
    ),
}


def edit(path, old, new):
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize("name", RUN_FAULTS)
def test_what_another_run_or_hand_put_into_a_half_done_run_is_refused(name, tiny, tmp_path):
    damage, told = RUN_FAULTS[name]
    config, run, other = tiny(*VALIDATED), tmp_path / "run", tmp_path / "other"
    train(tiny(*VALIDATED, "seed=1"), out=other)
    interrupted(config, run, step=2 * STEPS + 1)
    damage(run, other)
    before = contents(run)
    with pytest.raises(InputError, match=told):
        train(config, out=run)
    assert contents(run) == before


def test_checkpoints_of_a_run_whose_configuration_was_edited_are_refused_under_it_too(tiny, tmp_path):
    train(tiny(*VALIDATED), out=tmp_path)
    edit(tmp_path / "config.toml", "seed = 0", "seed = 7")
    with pytest.raises(InputError, match=r"last.safetensors is of another run than .* \(seed: 0 here, 7 there\)"):
        train(tiny(*VALIDATED, "seed=7"), out=tmp_path)


# ``deterministic``: on a GPU a run repeats its bits, resumed in another process or not; settings are restored

CIFAR = 'data={name="cifar10-embedded", train_limit=80, test_limit=20, augmentation="crop-flip"}'
REPEATED = {
    "mlp": ('emr={kind="exact", weight=0.1}',),
    "cnn": ('model={kind="cnn"}', CIFAR, AT, 'emr={kind="approximate", weight=0.1, at="adversarial"}'),
    "resnet": ('model={kind="resnet18", width=4}', CIFAR, AT, 'emr={kind="stochastic", weight=0.1}'),
    "lsoftmax": ('head={kind="large-margin"}', "averaging={decay=0.9}"),
}
WATCHED = ("batch_size=16", 'watch.margins=["train"]', "watch.margin_samples=20")


def settings() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
    )


def test_settings_are_those_asked_for_and_restored():
    before = settings()
    with deterministic_algorithms(False):
        assert settings() == before
    with deterministic_algorithms(True):
        assert settings() == (True, False, False)
        with searching_kernels(True):
            assert settings() == (True, False, False)
    assert settings() == before
    with pytest.raises(ZeroDivisionError), deterministic_algorithms(True):
        _ = 1 // 0
    assert settings() == before
    with searching_kernels(True):
        assert torch.backends.cudnn.benchmark
    assert settings() == before


@pytest.mark.parametrize("name", REPEATED)
def test_a_cpu_does_the_same_with_and_without(name, tiny, tmp_path, left_in):
    config = tiny(*WATCHED, *REPEATED[name], "epochs=1")
    for wanted in (False, True):
        train(config, out=tmp_path / str(wanted), device="cpu", deterministic=wanted)
    left_in(tmp_path / "True").assert_same(left_in(tmp_path / "False"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("engine", ["fast", "eager"])
@pytest.mark.parametrize("name", REPEATED)
def test_a_resumed_run_on_a_gpu_has_the_bits_of_an_uninterrupted_one(name, engine, tiny, tmp_path, left_in):
    config = tiny(*WATCHED, *REPEATED[name])
    train(config, out=tmp_path / "whole", device="cuda", engine=engine, deterministic=True)
    for steps in (1, 4, 7, 1000):  # before, at and after the capture of a step, each in a process of its own
        folders = (tmp_path / "whole" / "config.toml", tmp_path / "cut")
        subprocess.run([sys.executable, faults.__file__, "stop", *folders, engine, str(steps)], check=True)
    left_in(tmp_path / "cut").assert_same(left_in(tmp_path / "whole"))

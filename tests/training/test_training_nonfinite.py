"""A NaN or an infinity never reaches the weights: the run stops, and the step can be taken again; or it is skipped."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import faults
from faults import Breaking, breaking
from widemargin import InputError
from widemargin.config.checkpoint import load_checkpoint
from widemargin.config.toml import to_toml
from widemargin.data import Batch
from widemargin.engine import make_plan
from widemargin.objectives import OBJECTIVES
from widemargin.regularizers import Penalty
from widemargin.training import StepContext, nonfinite_step, replay, train
from widemargin.training import step as steps_module
from widemargin.training.graphed_step import GraphedSteps, make_steps
from widemargin.training.nonfinite import DeviceGuard, HostGuard, make_guard
from widemargin.training.nonfinite_step import check_finite
from widemargin.training.run_folder import read_metrics
from widemargin.training.setup import load_splits, make_batches, make_state
from widemargin.training.step import set_learning_rate, train_step
from widemargin.types import Nets

CIFAR = 'data={name="cifar10-embedded", train_limit=40, test_limit=9}'
BN = ('model={kind="resnet18", width=2}', "batch_size=10", CIFAR)
LATE = ("watch.margins=[]", "watch.test=false")


@pytest.fixture(autouse=True)
def _breaking(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "breaking", Breaking)


def snapshot(state):
    tensors = {f"{name}/{key}": v for name, net in state.nets.all().items() for key, v in net.state_dict().items()}
    momenta = {f"momentum/{i}": s.get("momentum_buffer") for i, s in enumerate(state.optimizer.state.values())}
    return {key: value.clone() for key, value in (tensors | momenta).items() if value is not None}


def assert_equal(left, right):
    assert left.keys() == right.keys()
    assert all(value.equal(right[key]) for key, value in left.items())


@pytest.mark.parametrize(
    ("settings", "says", "names"),
    [
        ({}, "the loss became nan", {"loss", "total", "gradient"}),
        ({"value": "inf"}, "the loss became inf", {"loss", "total", "gradient"}),
        ({"how": "gradient"}, "the gradient became infinite or not a number", {"gradient"}),
        ({"how": "term"}, "odd became nan", {"odd"}),
    ],
)
def test_the_run_stops_names_the_step_and_keeps_it(tiny, tmp_path, settings, says, names):
    with pytest.raises(InputError) as caught:
        train(tiny(breaking(**settings)), out=tmp_path)
    message = str(caught.value)
    assert message.startswith(f"tiny: {says}")
    table = json.loads((tmp_path / "nonfinite.json").read_text())
    context = table["moment"]
    assert set(table["at_fault"]) == names
    assert f"in epoch 2, step {context['step'] + 1} of 4, on training images " in message
    assert ", ".join(map(str, table["indices"][:8])) + ", ..." in message
    assert "--on-nonfinite skip" in message
    assert load_checkpoint(tmp_path / "last.safetensors").description.epoch == 1


def test_a_replay_computes_as_the_run_did(tiny, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="replay"):
        train(tiny(*LATE, breaking()), out=tmp_path)
    asked = []

    def noted(*args, **options):
        asked.append(options["began_as"])
        return make_plan(*args, **options)

    monkeypatch.setattr(nonfinite_step, "make_plan", noted)
    replay(tmp_path)
    versions = load_checkpoint(tmp_path / "last.safetensors").description.versions
    assert asked == [versions["engine"]]


@pytest.mark.parametrize("settings", [{}, {"how": "gradient"}, {"how": "term", "value": "-inf"}])
@pytest.mark.parametrize("model", [(), BN, ('emr={kind="stochastic", weight=0.1}', "head={kind='large-margin'}")])
def test_a_replay_gives_the_values_of_the_run(tiny, tmp_path, settings, model, monkeypatch):
    seen, before = [], []

    def looking(state, *args, **options):
        before.append(snapshot(state))
        seen.append(train_step(state, *args, **options))
        return seen[-1]

    monkeypatch.setattr(steps_module, "train_step", looking)
    with pytest.raises(InputError, match="replay"):
        train(tiny(*model, *LATE, breaking(**settings)), out=tmp_path)
    again = replay(tmp_path)
    assert again.values.keys() == seen[-1].keys()
    for name, value in again.values.items():
        assert torch.equal(value.nan_to_num(7.5), seen[-1][name].detach().nan_to_num(7.5)), name
    table = json.loads((tmp_path / "nonfinite.json").read_text())
    tensors = load_file(tmp_path / "nonfinite.safetensors")
    assert again.indices == table["indices"]
    assert again.context.epoch == 1
    faults = {name.partition(" ")[0] for name in again.at_fault}
    assert faults == set(table["at_fault"])
    weights = {key.removeprefix("nets/"): value for key, value in tensors.items() if key.startswith("nets/")}
    assert_equal(weights, {key: value for key, value in before[-1].items() if not key.startswith("momentum/")})


def test_a_penalty_at_fault_is_named(tiny, tmp_path, monkeypatch):
    real = Penalty.__call__

    def broken(self, model, x, x_adv, y, *, generator):
        return real(self, model, x, x_adv, y, generator=generator) * torch.where(y == 3, float("nan"), 1.0)

    monkeypatch.setattr(Penalty, "__call__", broken)
    says = r"tiny: emr became nan \(and total, gradient\) in epoch 1, step 1 of 4.*; lower optimizer.lr .0.1. or emr"
    with pytest.raises(InputError, match=says):
        train(tiny('emr={kind="exact", weight=0.1}'), out=tmp_path)
    assert not (tmp_path / "last.safetensors").exists()


def test_a_folder_without_a_kept_step_cannot_be_replayed(tiny, tmp_path):
    train(tiny("epochs=1"), out=tmp_path)
    with pytest.raises(InputError, match=r"has no nonfinite.json: no step of this run was stopped"):
        replay(tmp_path)
    (tmp_path / "nonfinite.json").write_text("{}")
    with pytest.raises(InputError, match=r"cannot be read"):
        replay(tmp_path)


@pytest.mark.parametrize("model", [(), BN, ("head={kind='hypersphere'}", "averaging={decay=0.9}")])
def test_skipping_leaves_everything_as_it_was_and_counts(tiny, tmp_path, model, monkeypatch):
    config = tiny("epochs=2", *model, "batch_size=8", *LATE, breaking(label=3))  # some batches have no three
    skipped = []

    def looking(state, objective, penalties, batch, context, **options):
        before = snapshot(state)
        values = train_step(state, objective, penalties, batch, context, **options)
        if context.epoch == 1 and bool((batch.labels == 3).any()):
            assert_equal(before, snapshot(state))
            assert float(values["samples"].sum()) == 0
            skipped.append(context.step)
        else:
            assert any(not value.equal(before[key]) for key, value in snapshot(state).items())
        return values

    monkeypatch.setattr(steps_module, "train_step", looking)
    result = train(config, out=tmp_path, on_nonfinite="skip")
    assert skipped
    assert result.finished
    assert [line["skipped_steps"] for line in result.metrics] == [0, len(skipped)]
    assert all(isinstance(line["loss"], float) and line["loss"] == line["loss"] for line in result.metrics)
    assert result.metrics[1]["samples"] < result.metrics[0]["samples"]


@pytest.mark.parametrize(("choice", "said"), [("stop", {}), ("skip", {"on_nonfinite": "skip"})])
def test_a_checkpoint_says_that_steps_may_have_been_skipped(tiny, tmp_path, choice, said):
    train(tiny("epochs=1", *BN), out=tmp_path, on_nonfinite=choice)
    versions = load_checkpoint(tmp_path / "last.safetensors").description.versions
    software = dict.fromkeys(("widemargin", "torch", "python", "engine"))
    assert {key: value for key, value in versions.items() if key not in software} == said


def test_an_epoch_without_a_finite_step_ends_the_run(tiny, tmp_path):
    with pytest.raises(InputError, match=r"every step of epoch 2 was skipped, since none was finite; train with"):
        train(tiny(breaking()), out=tmp_path, on_nonfinite="skip")


def test_skipped_steps_survive_a_stop_in_mid_epoch(tiny, tmp_path, left_in):
    config = tiny("batch_size=8", *LATE, breaking(label=3))
    train(config, out=tmp_path / "whole", on_nonfinite="skip")
    train(config, out=tmp_path / "parts", on_nonfinite="skip", checkpoint_every=3)
    left_in(tmp_path / "parts").assert_same(left_in(tmp_path / "whole"))


def test_without_bad_steps_skip_and_stop_train_the_same(tiny, tmp_path, left_in):
    config = tiny('emr={kind="exact", weight=0.1}')
    for choice in ("stop", "skip"):
        train(config, out=tmp_path / choice, on_nonfinite=choice)
    stop, skip = (left_in(tmp_path / choice) for choice in ("stop", "skip"))
    for left in (stop, skip):
        del left.tensors["last.safetensors"]["train/metrics"]  # the number of skipped steps is one of them
    assert_equal(stop.tensors["last.safetensors"], skip.tensors["last.safetensors"])
    assert [line | {"skipped_steps": 0} for line in stop.metrics] == skip.metrics


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("place", [0, 5, -1])
def test_one_bad_number_in_one_gradient_is_seen(tiny, value, place):
    config = tiny()
    state = make_state(config, load_splits(config.data, seed=0, data_dir=None, device=torch.device("cpu")).train)
    guard = make_guard(state.nets, state.optimizer, "stop")
    values = {"loss": torch.ones(3), "correct": torch.ones(3).bool(), "samples": torch.ones(3)}
    for parameter in state.nets.model.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e30
    guard.begin(7)
    guard.remember()
    assert guard.passes(values)
    list(state.nets.model.parameters())[2].grad.view(-1)[place] = float(value)
    assert not guard.passes(values)
    assert guard.found(wait=False).names == ("gradient",)
    assert guard.found(wait=False).step == 7


@pytest.mark.parametrize(("choice", "code"), [("skip", 0), ("stop", 2)])
def test_at_the_command_line(tiny, tmp_path, capsys, choice, code):
    from widemargin.cli.main import run

    (tmp_path / "tiny.toml").write_text(to_toml(tiny("batch_size=8", *LATE, breaking(label=3))))
    command = ["train", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "run"), "--on-nonfinite", choice]
    assert run(command) == code
    assert ("widemargin.training.replay(" in capsys.readouterr().err) == (choice == "stop")


def test_another_word_is_refused(tiny, tmp_path):
    with pytest.raises(InputError, match=r"--on-nonfinite must be one of 'stop', 'skip', got 'ignore'"):
        train(tiny(), out=tmp_path / "run", on_nonfinite="ignore")
    assert not (tmp_path / "run").exists()


# What a GPU does, on the CPU: fused SGD takes the same flag here. In float64, for it rounds otherwise than SGD does.


def wide_state(config, splits):
    state = make_state(config, splits.train)
    for net in state.nets.all().values():
        net.double()
    return state


def masked_state(config, splits, on_nonfinite):
    state = wide_state(config, splits)
    for group in state.optimizer.param_groups:
        group.update(fused=True, foreach=False)
    state.guard = make_guard(state.nets, state.optimizer, on_nonfinite)
    return state


@pytest.fixture
def take(tiny):
    """take(state, config, batches): the steps of two epochs; yields (context, batch) before each one is taken."""

    def steps(state, config, splits):
        batches = make_batches(config, splits.train)
        for epoch in range(2):
            for given in batches.epoch(epoch):
                batch = Batch(given.step, given.indices, given.images.double(), given.labels)
                context = StepContext(seed=0, epoch=epoch, step=batch.step, steps_per_epoch=batches.steps_per_epoch)
                state.guard.begin(context.total_steps)
                yield context, batch
                state.add(train_step(state, config.objective, config.penalties(), batch, context))

    return steps


@pytest.fixture(params=[(), BN, ("head={kind='hypersphere'}",), (breaking(epoch=0),)])
def masked_case(request, tiny):
    config = tiny(breaking(label=3), *request.param, "batch_size=8", "optimizer.lr=0.01", *LATE)
    return config, load_splits(config.data, seed=0, data_dir=None, device=torch.device("cpu"))


def test_masked_steps_change_nothing_after_the_first_bad_one(masked_case, take):
    config, splits = masked_case
    state = masked_state(config, splits, "stop")
    assert isinstance(state.guard, DeviceGuard)
    before = first = None
    for context, batch in take(state, config, splits):
        hit = bool((batch.labels == config.objective.label).any())
        if before is None and context.epoch == config.objective.epoch and hit:
            before, first = snapshot(state), context.total_steps
        assert state.guard.found(wait=False) is None
    assert before is not None
    assert_equal(snapshot(state), before)
    found = state.guard.found(wait=True)
    assert found is not None
    assert (found.step, set(found.names)) == (first, {"loss", "total", "gradient"})


def test_masked_steps_are_skipped_as_checked_ones_are(masked_case, take):
    config, splits = masked_case
    masked, checked = masked_state(config, splits, "skip"), wide_state(config, splits)
    checked.guard = make_guard(checked.nets, checked.optimizer, "skip")
    assert isinstance(checked.guard, HostGuard)
    for state in (masked, checked):
        for _ in take(state, config, splits):
            pass
    assert masked.sums.keys() == checked.sums.keys()
    assert masked.sums["skipped_steps"] == checked.sums["skipped_steps"] > 0
    for name, value in masked.sums.items():
        assert float(value) == pytest.approx(float(checked.sums[name]), rel=1e-6), name
    left, right = snapshot(masked), snapshot(checked)
    for key, value in left.items():
        torch.testing.assert_close(value, right[key], rtol=1e-6, atol=1e-9)
    assert masked.guard.found(wait=True) is None


@pytest.mark.long
@pytest.mark.parametrize("choice", ["stop", "skip"])
def test_two_processes_do_as_one(tiny, tmp_path, choice):
    """They share the batch, so that a bad sample is in one of them alone; both must answer."""
    config = tiny("batch_size=8", *LATE, breaking(label=3))
    (tmp_path / "tiny.toml").write_text(to_toml(config))
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command = [*launch, faults.__file__, "break", tmp_path / "tiny.toml", tmp_path / "two", choice]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    if choice == "stop":
        with pytest.raises(InputError) as caught:
            train(config, out=tmp_path / "one")
        assert done.stdout.count("refused: tiny: the loss became") == 2
        one, two = (json.loads((tmp_path / name / "nonfinite.json").read_text()) for name in ("one", "two"))
        assert one == two
        assert f"step {one['moment']['step'] + 1} of" in str(caught.value)
        assert "loss" in replay(tmp_path / "two").at_fault
    else:
        metrics = train(config, out=tmp_path / "one", on_nonfinite="skip").metrics
        both = [{key: line[key] for key in ("epoch", "samples", "skipped_steps")} for line in metrics]
        assert [{key: line[key] for key in both[0]} for line in read_metrics(tmp_path / "two")] == both


class Waits(TorchDispatchMode):
    """Counts the numbers that the host asks of the device."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._schema.name == "aten::_local_scalar_dense"
        return func(*args, **(kwargs or {}))


def layers_of(layers):
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers)))
    sums = {"total": torch.tensor(1.0), "samples": torch.tensor(2.0)}
    return SimpleNamespace(nets=Nets(model), sums=sums, epoch=0)


def test_the_weights_are_looked_at_in_one_wait_however_many_they_are(tiny):
    counts = []
    for layers in (1, 7):
        with Waits() as waits:
            check_finite(layers_of(layers), tiny())
        counts.append(waits.count)
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_one_bad_weight_among_many_is_seen(tiny, number):
    state = layers_of(7)
    with torch.no_grad():
        state.nets.model[5].bias[1] = number
    with pytest.raises(InputError, match=r"a weight became infinite or not a number in epoch 1; lower optimizer.lr"):
        check_finite(state, tiny())


# On a GPU: seen without waiting for it at every step, and answered as on the CPU

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
GPU_CIFAR = 'data={name="cifar10-embedded", train_limit=80, test_limit=9}'
ON_GPU = {
    "mlp": (),
    "resnet": ('model={kind="resnet18", width=4}', GPU_CIFAR),
    "he": ("head={kind='hypersphere'}", 'emr={kind="approximate", weight=0.1, every=2}'),
}


@pytest.fixture(params=ON_GPU)
def gpu_config(request, tiny):
    quiet = ("watch.margins=[]", "watch.test=false", "optimizer.lr=0.001")
    return tiny(*ON_GPU[request.param], *quiet, "batch_size=8", breaking(label=3))


def table_of(folder):
    return json.loads((folder / "nonfinite.json").read_text())


@needs_gpu
@pytest.mark.parametrize("engine", ["fast", "eager"])
def test_the_run_stops_at_the_step_at_which_it_stops_on_the_cpu(gpu_config, tmp_path, engine):
    for device in ("cpu", "cuda"):
        with pytest.raises(InputError, match=r"the loss became .* in epoch 2, step "):
            train(gpu_config, out=tmp_path / device, device=device, engine=engine if device == "cuda" else "eager")
    here, there = table_of(tmp_path / "cpu"), table_of(tmp_path / "cuda")
    assert {key: here[key] for key in ("moment", "indices")} == {key: there[key] for key in ("moment", "indices")}
    assert set(there["at_fault"]) == set(here["at_fault"]) == {"loss", "total", "gradient"}
    cpu, cuda = (load_file(tmp_path / device / "nonfinite.safetensors") for device in ("cpu", "cuda"))
    here, there = (
        torch.cat([value.double().flatten() for key, value in sorted(found.items()) if key.startswith("nets/")])
        for found in (cpu, cuda)
    )
    assert there.isfinite().all()
    assert float((there - here).norm() / here.norm()) < 0.05  # before the bad step, on either
    again = replay(tmp_path / "cuda")
    assert {"loss", "total"} <= set(again.at_fault)
    assert any(name.startswith("gradient of ") for name in again.at_fault)


@needs_gpu
@pytest.mark.parametrize("engine", ["fast", "eager"])
def test_skipped_steps_are_those_of_the_cpu(gpu_config, tmp_path, engine):
    cpu, cuda = (
        train(gpu_config, out=tmp_path / device, device=device, engine=engine, on_nonfinite="skip").metrics
        for device, engine in (("cpu", "eager"), ("cuda", engine))
    )
    for key in ("skipped_steps", "samples"):
        assert [line[key] for line in cuda] == [line[key] for line in cpu]
    assert cuda[1]["skipped_steps"] > 0
    assert [line["loss"] for line in cuda] == pytest.approx([line["loss"] for line in cpu], rel=0.05)


@needs_gpu
@pytest.mark.parametrize("on_nonfinite", ["stop", "skip"])
def test_no_step_waits_for_the_gpu(gpu_config, on_nonfinite):
    device = torch.device("cuda")
    splits = load_splits(gpu_config.data, seed=0, data_dir=None, device=device)
    state, batches = make_state(gpu_config, splits.train), make_batches(gpu_config, splits.train)
    steps = make_steps(make_plan("fast", state.nets.model, splits.train.image_shape, device), state, gpu_config)
    state.guard = make_guard(state.nets, state.optimizer, on_nonfinite)
    assert isinstance(steps, GraphedSteps)
    assert isinstance(state.guard, DeviceGuard)
    every = [batch for batch in batches.epoch(0) if len(batch.labels) == 8]
    for number, batch in enumerate(every):
        context = StepContext(seed=0, epoch=0, step=batch.step, steps_per_epoch=batches.steps_per_epoch)
        torch.cuda.set_sync_debug_mode("error" if number >= 9 else "default")  # the first ones warm up and capture
        try:
            state.guard.begin(context.total_steps)
            set_learning_rate(state.optimizer, 0.01)
            steps(batch, context)
            assert state.guard.found(wait=False) is None
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert number >= 9
    assert state.guard.found(wait=True) is None

"""Values that are not finite, on a GPU: seen without waiting for it at every step, and answered as on the CPU."""

import json

import pytest
import torch
from breaking import Breaking, breaking
from safetensors.torch import load_file

from widemargin import InputError
from widemargin.engine import make_plan
from widemargin.objectives import OBJECTIVES
from widemargin.training import StepContext, replay, train
from widemargin.training.graphed_step import GraphedSteps, make_steps
from widemargin.training.nonfinite import DeviceGuard, make_guard
from widemargin.training.setup import load_splits, make_batches, make_state
from widemargin.training.step import set_learning_rate

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CIFAR = 'data={name="cifar10-embedded", train_limit=80, test_limit=9}'
MODELS = {
    "mlp": (),
    "resnet": ('model={kind="resnet18", width=4}', CIFAR),
    "he": ("head={kind='hypersphere'}", 'emr={kind="approximate", weight=0.1, every=2}'),
}


@pytest.fixture(autouse=True)
def _breaking(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "breaking", Breaking)


@pytest.fixture(params=MODELS)
def config(request, tiny):
    quiet = ("watch.margins=[]", "watch.test=false", "optimizer.lr=0.001")
    return tiny(*MODELS[request.param], *quiet, "batch_size=8", breaking(label=3))


def table_of(folder):
    return json.loads((folder / "nonfinite.json").read_text())


@pytest.mark.parametrize("engine", ["fast", "eager"])
def test_the_run_stops_at_the_step_at_which_it_stops_on_the_cpu(config, tmp_path, engine):
    for device in ("cpu", "cuda"):
        with pytest.raises(InputError, match=r"the loss became .* in epoch 2, step "):
            train(config, out=tmp_path / device, device=device, engine=engine if device == "cuda" else "eager")
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


@pytest.mark.parametrize("engine", ["fast", "eager"])
def test_skipped_steps_are_those_of_the_cpu(config, tmp_path, engine):
    cpu, cuda = (
        train(config, out=tmp_path / device, device=device, engine=engine, on_nonfinite="skip").metrics
        for device, engine in (("cpu", "eager"), ("cuda", engine))
    )
    for key in ("skipped_steps", "samples"):
        assert [line[key] for line in cuda] == [line[key] for line in cpu]
    assert cuda[1]["skipped_steps"] > 0
    assert [line["loss"] for line in cuda] == pytest.approx([line["loss"] for line in cpu], rel=0.05)


@pytest.mark.parametrize("on_nonfinite", ["stop", "skip"])
def test_no_step_waits_for_the_gpu(config, on_nonfinite):
    device = torch.device("cuda")
    splits = load_splits(config.data, seed=0, data_dir=None, device=device)
    state, batches = make_state(config, splits.train), make_batches(config, splits.train)
    steps = make_steps(make_plan("fast", state.nets.model, splits.train.image_shape, device), state, config)
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

"""Weight averaging by hand, and averaged weights that are evaluated beside the trained ones.

That an average survives kills and goes on bit for bit is tested with the kills.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oracles import golden
from widemargin import PGD, InputError
from widemargin.config import AveragingConfig, DataConfig, OptimizerConfig, RunConfig
from widemargin.config.checkpoint import load_checkpoint
from widemargin.core.signals import StopNowError
from widemargin.data import ImageSet
from widemargin.evaluation.target import load_target
from widemargin.heads import Hypersphere, LargeMargin, Linear
from widemargin.models import WideResNetConfig
from widemargin.training import StepContext, train, train_step, trainer
from widemargin.training.setup import Splits, held_out_images, make_batches, make_state
from widemargin.training.state import TrainState, make_average, update_average
from widemargin.training.trainer import finish_epoch


def tiny_set() -> ImageSet:
    images = torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return ImageSet(images=images, labels=torch.arange(20) % 3, num_classes=3, name="tiny")


def run_of(**changes: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "name": "averaged",
        "epochs": 1,
        "batch_size": 5,
        "data": DataConfig(name="tiny"),
        "model": WideResNetConfig(depth=10, widen=1, variant="madry"),
        "optimizer": OptimizerConfig(lr=0.1, weight_decay=1e-3),
        "averaging": AveragingConfig(decay=0.9),
    }
    return RunConfig(**(settings | changes))


def train_steps(config: RunConfig, state: TrainState, last: int) -> None:
    """The steps from where the state is to ``last``, as a run takes them."""
    batches = make_batches(config, tiny_set())
    for batch in batches.epoch(0, state.step):
        if batch.step == last:
            return
        context = StepContext(seed=0, epoch=0, step=batch.step, steps_per_epoch=batches.steps_per_epoch)
        state.add(train_step(state, config.objective, config.penalties(), batch, context))
        if state.average is not None and config.averaging is not None:
            update_average(state.average, state.nets.model, decay=config.averaging.decay, updates=batch.step)
        state.step = batch.step + 1


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in tensors.items()}


# The average by hand


def is_followed(name: str) -> bool:
    """Learned numbers and batch-norm statistics are averaged; counters and constants are taken over."""
    return not name.endswith(("num_batches_tracked", "padding", "steps"))


@pytest.mark.parametrize(("decay", "head"), [(0.9, Linear()), (0.3, LargeMargin(margin=2))])
def test_the_average_is_the_formula(decay: float, head: Linear | LargeMargin) -> None:
    """With decay 0.3, min(decay, (1 + n) / (10 + n)) takes its first side from n = 3 on."""
    config = run_of(averaging=None, head=head)
    state = make_state(config, tiny_set())
    average = make_average(state.nets.model)
    by_hand = {name: value.detach().double().clone() for name, value in average.state_dict().items()}
    for n in range(4):
        train_steps(config, state, n + 1)
        update_average(average, state.nets.model, decay=decay, updates=n)
        d = min(decay, (1 + n) / (10 + n))
        for name, value in state.nets.model.state_dict().items():
            mixed = d * by_hand[name] + (1 - d) * value.double()
            by_hand[name] = mixed if is_followed(name) else value.double()
        for name, value in average.state_dict().items():
            torch.testing.assert_close(value.double(), by_hand[name], rtol=1e-5, atol=1e-6, msg=f"{name} after {n}")
    moved = [
        name
        for name, value in state.nets.model.state_dict().items()
        if not torch.equal(value, average.state_dict()[name])
    ]
    assert {name for name in average.state_dict() if is_followed(name)} == set(moved)


def test_statistics_are_averaged_and_other_buffers_copied() -> None:
    class Counted(nn.BatchNorm1d):
        def __init__(self) -> None:
            super().__init__(2)
            self.register_buffer("seen", torch.tensor(0.0))

    model = Counted()
    average = make_average(model)
    model(torch.tensor([[0.0, 4.0], [2.0, 8.0]]))
    model.seen += 7
    update_average(average, model, decay=0.999, updates=8)  # halfway
    torch.testing.assert_close(average.running_mean, torch.tensor([0.5 * 0.1 * 1, 0.5 * 0.1 * 6]))
    torch.testing.assert_close(average.running_var, torch.tensor([1 + 0.5 * 0.1 * 1, 1 + 0.5 * 0.1 * 7]))
    assert average.num_batches_tracked.item() == 1
    assert average.seen.item() == 7


def test_the_model_is_left_alone_and_the_average_is_never_trained() -> None:
    config = run_of(head=Hypersphere())
    state = make_state(config, tiny_set())
    assert state.average is not None
    assert not any(p.requires_grad for p in state.average.parameters())
    assert not any(module.training for module in state.average.modules())
    assert all(module.training for module in state.nets.model.modules())
    train_steps(config, state, 1)
    before = copied(state.nets.model.state_dict())
    update_average(state.average, state.nets.model, decay=0.9, updates=1)
    assert all(torch.equal(value, before[name]) for name, value in state.nets.model.state_dict().items())
    assert not any(module.training for module in state.average.modules())
    assert state.eval_model is state.average


def test_hypersphere_rows_are_put_back_on_their_sphere() -> None:
    config = run_of(head=Hypersphere(), optimizer=OptimizerConfig(lr=1.0))
    state = make_state(config, tiny_set())
    train_steps(config, state, 3)
    average = state.average
    assert average is not None
    lengths = average.head.weight.square().sum(1).sqrt()
    torch.testing.assert_close(lengths, torch.ones(3), rtol=0, atol=1e-6)
    assert not torch.allclose(average.head.weight, state.nets.model.head.weight, atol=1e-3)


def test_layers_of_the_users_own_that_project_are_not_called() -> None:
    class Projecting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(2, 2)

    model = Projecting()
    average = make_average(model)
    with torch.no_grad():
        model.project.weight += 1
    update_average(average, model, decay=0.999, updates=8)
    torch.testing.assert_close(average.project.weight, model.project.weight - 0.5)


def test_updates_are_counted_over_epochs(tiny, tmp_path, monkeypatch):
    seen, real = [], trainer.update_average

    def counting(*args, updates, **options):
        seen.append(updates)
        real(*args, updates=updates, **options)

    monkeypatch.setattr(trainer, "update_average", counting)
    train(tiny("epochs=2", "averaging={decay=0.9}"), out=tmp_path)
    assert len(seen) > 1
    assert seen == list(range(len(seen)))


# With a warm-up, as in the published code


PUBLISHED = {0: (0.995, 0.0), 1: (0.995, 6.25), 2: (0.6, 3.0)}
"""Decay, and the steps of the warm-up."""


@pytest.mark.parametrize("case", PUBLISHED)
def test_averages_of_the_published_code(case: int) -> None:
    (decay, steps), stored = PUBLISHED[case], golden("schedules")
    model, average = nn.Linear(5, 1, bias=False).double(), nn.Linear(5, 1, bias=False).double()
    averaging = AveragingConfig(decay=decay, warmup=steps / 5)
    with torch.no_grad():
        average.weight.copy_(stored["ema/start"])
    for step, (value, expected) in enumerate(
        zip(stored["ema/sequence"], stored[f"ema/case{case}/average"], strict=True)
    ):
        with torch.no_grad():
            model.weight.copy_(value)
        updates = averaging.updates(step, steps_per_epoch=5) if steps else step + 1
        update_average(average, model, decay=decay, updates=updates)
        torch.testing.assert_close(average.weight[0].detach(), expected, rtol=0, atol=1e-12)


def test_the_average_of_a_run_is_the_model_until_the_warm_up_is_over(tiny, tmp_path, monkeypatch):
    seen, real = [], trainer.update_average

    def noted(average, model, **options):
        real(average, model, **options)
        equal = all(map(torch.equal, average.state_dict().values(), model.state_dict().values()))
        seen.append((options["updates"], equal))

    monkeypatch.setattr(trainer, "update_average", noted)
    train(tiny("epochs=2", "averaging={decay=0.9, warmup=0.6}"), out=tmp_path)  # 4 steps an epoch
    assert [n for n, _ in seen] == pytest.approx([-1.4, -0.4, 0.6, 1.6, 2.6, 3.6, 4.6, 5.6])
    assert [equal for _, equal in seen] == [True, True] + [False] * 6


def test_statistics_of_the_trained_model_for_the_averaged_one(tmp_path):
    config = run_of(averaging=AveragingConfig(decay=0.9, batch_norm="copy", beside=True))
    data = tiny_set()
    train(config, out=tmp_path, splits=Splits(train=data, validation=None, test=data))
    trained, averaged = (load_checkpoint(tmp_path / f"{part}last.safetensors").weights for part in ("", "averaged/"))
    moved = {name for name, value in trained.items() if not torch.equal(value, averaged[name])}
    statistics = {name for name in trained if name.endswith(("running_mean", "running_var"))}
    assert statistics
    assert not statistics & moved
    assert {"fc.weight", "conv1.weight"} <= moved


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("averaging={warmup=-1}", r"averaging.warmup must be a number >= 0, got -1"),
        ("averaging={warmup=2}; epochs=2", r"averaging.warmup must be less than epochs = 2, got 2: nothing would be"),
        ("averaging={batch_norm='sum'}", r"averaging.batch_norm must be one of 'average', 'copy', got 'sum'"),
    ],
)
def test_averages_that_mean_nothing(settings, message, tiny):
    with pytest.raises(InputError, match=message):
        tiny(*settings.split("; "))


def test_statistics_that_the_model_does_not_have_are_not_copied(tiny, tmp_path):
    with pytest.raises(InputError, match=r'averaging.batch_norm = "copy" has no effect on a model without running'):
        train(tiny("averaging={batch_norm='copy'}"), out=tmp_path)


def test_the_best_average_is_chosen_by_pgd_on_the_margin(tiny, tmp_path):
    """As published: PGD-40 with the margin loss on held-out images, of the averaged weights."""
    attack = '{kind="pgd", eps=0.1, step_size=0.01, steps=40, loss="margin"}'
    config = tiny("epochs=3", "data.held_out=40", "averaging={decay=0.9, warmup=0.5}", f"watch.attack={attack}")
    metrics = train(config, out=tmp_path).metrics
    best = load_checkpoint(tmp_path / "best.safetensors")
    assert best.description.epoch == 1 + max(range(3), key=lambda n: metrics[n]["validation_robust"])
    model, held = load_target(tmp_path).model, held_out_images(config, data_dir=None)
    by_hand = PGD(eps=0.1, step_size=0.01, steps=40, loss="margin")(model, held.floats(), held.labels)
    accuracy = 100 * (model(by_hand).argmax(1) == held.labels).double().mean()
    assert best.description.scores["validation_robust"] == pytest.approx(float(accuracy))


# Evaluated in addition to the trained weights: such a run is, bit for bit, the two runs that it stands for


WATCHED = (
    "epochs=6",
    "optimizer.schedule.milestones=[5]",
    "data.held_out=40",
    'watch={attack={kind="pgd", eps=0.03, step_size=0.02, steps=2}, margins=["test"]}',
)
AVERAGINGS = {
    "plain": (),
    "averaged": ("averaging={decay=0.9}",),
    "both": ("averaging={decay=0.9, beside=true}",),
}
MEASURED = {"validation_clean", "validation_robust", "test_clean", "test_robust"}


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("beside")
    for name, settings in AVERAGINGS.items():
        train(tiny(*WATCHED, *settings), out=out / name)
    return out


@pytest.mark.parametrize("which", ["best", "last"])
@pytest.mark.parametrize(("alone", "kept"), [("plain", "both"), ("averaged", "both/averaged")])
def test_weights_and_scores_are_those_of_a_run_of_their_own(folders, alone, kept, which):
    ours, theirs = (load_checkpoint(folders / name / f"{which}.safetensors") for name in (kept, alone))
    assert ours.weights.keys() == theirs.weights.keys()
    assert all(torch.equal(value, theirs.weights[key]) for key, value in ours.weights.items())
    for field in ("epoch", "selection", "scores"):
        assert getattr(ours.description, field) == getattr(theirs.description, field)
    assert {"validation_clean", "validation_robust"} <= ours.description.scores.keys()


def test_the_averaged_weights_do_not_pass_for_the_trained_ones(folders):
    kept, alone, both = (load_target(folders / name) for name in ("both/averaged", "averaged", "both"))
    pairs = zip(kept.model.parameters(), both.model.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)
    assert kept.description.config == alone.description.config
    assert both.description.config["averaging"] == {"decay": 0.9, "beside": True}
    assert "weights averaged with decay 0.9" in kept.description.selection
    assert "averaged" not in both.description.selection


def test_every_line_has_the_measurements_of_both(folders, left_in):
    both, plain, averaged = (left_in(folders / name).metrics for name in ("both", "plain", "averaged"))
    assert len(both) == 6
    for line, trained, average in zip(both, plain, averaged, strict=True):
        assert {key: line[key] for key in trained} == trained
        measured = {key: value for key, value in average.items() if key.startswith(("validation_", "test_"))}
        assert measured.keys() >= MEASURED
        assert {key: line[f"averaged_{key}"] for key in measured} == measured
    assert "test_margin_mean" in measured


def test_without_a_validation_split_the_last_weights_are_there(tiny, tmp_path):
    train(tiny("epochs=1", "averaging={decay=0.9, beside=true}"), out=tmp_path)
    assert sorted(path.name for path in (tmp_path / "averaged").iterdir()) == ["last.safetensors"]


def test_early_stopping_is_refused(tiny):
    settings = ("data.held_out=40", "stopping={patience=1}")
    with pytest.raises(InputError, match=r"averaging\.beside = true and stopping do not go together"):
        tiny(*settings, "averaging={decay=0.99, beside=true}")
    assert tiny(*settings, "averaging={decay=0.99}").stopping is not None


class LeftError(Exception):
    """The epoch was left; the test needs no more of the run."""


def test_a_measurement_that_is_left_leaves_the_statistics_of_both_as_they_were(tiny, tmp_path, monkeypatch):
    """A watched attack in train mode moves them; a signal comes while the averaged weights are measured."""
    seen: list[dict[str, torch.Tensor]] = []

    def moved(nets, *_, **__):
        seen.append({name: buffer.clone() for name, buffer in nets.model.named_buffers()})
        for buffer in nets.model.buffers():
            buffer.add_(1)
        if len(seen) == 2:
            raise StopNowError
        return {}

    monkeypatch.setattr(trainer, "watch", moved)
    monkeypatch.setattr(trainer, "finish_epoch", lambda *args, **options: (finish_epoch(*args, **options), stop())[1])

    def stop() -> None:
        raise LeftError

    images = 'data={name="cifar10-embedded", train_limit=20, test_limit=10}'
    config = tiny("epochs=1", images, 'model={kind="resnet18", width=2}', "averaging={decay=0.9, beside=true}")
    with pytest.raises(LeftError):
        train(config, out=tmp_path)
    left = load_checkpoint(tmp_path / "last.safetensors")
    trained, averaged = seen
    assert trained.keys() == averaged.keys() != set()
    assert all(left.weights[name].equal(value) for name, value in trained.items())
    assert all(left.training[f"average/{name}"].equal(value) for name, value in averaged.items())

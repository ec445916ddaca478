"""Averaged weights judged beside the trained ones: such a run is, bit for bit, the two runs that it stands for."""

import pytest
import torch

from widemargin import InputError
from widemargin.config.checkpoint import load_checkpoint
from widemargin.core.signals import StopNowError
from widemargin.evaluation.target import load_target
from widemargin.training import train, trainer
from widemargin.training.trainer import finish_epoch

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
def test_the_weights_are_those_of_a_run_of_their_own(folders, alone, kept, which):
    ours, theirs = (load_checkpoint(folders / name / f"{which}.safetensors") for name in (kept, alone))
    assert ours.weights.keys() == theirs.weights.keys()
    assert all(torch.equal(value, theirs.weights[key]) for key, value in ours.weights.items())
    assert (ours.description.epoch, ours.description.selection) == (
        theirs.description.epoch,
        theirs.description.selection,
    )


def test_the_two_arms_differ(folders):
    trained, averaged = (load_target(folders / name) for name in ("both", "both/averaged"))
    assert any(
        not torch.equal(a, b) for a, b in zip(trained.model.parameters(), averaged.model.parameters(), strict=True)
    )
    assert "averaged" not in trained.description.selection
    assert "weights averaged with decay 0.9" in averaged.description.selection


@pytest.mark.parametrize("which", ["best", "last"])
def test_the_weights_have_their_scores(folders, which):
    for kept, alone in (("both", "plain"), ("both/averaged", "averaged")):
        files = (folders / name / f"{which}.safetensors" for name in (kept, alone))
        ours, theirs = (load_checkpoint(file).description.scores for file in files)
        assert ours == theirs
        assert {"validation_clean", "validation_robust"} <= ours.keys()


def test_the_averaged_weights_do_not_pass_for_the_trained_ones(folders):
    kept, alone, both = (load_target(folders / name).description for name in ("both/averaged", "averaged", "both"))
    assert kept.config == alone.config
    assert both.config["averaging"] == {"decay": 0.9, "beside": True}


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

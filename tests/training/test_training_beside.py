"""Averaged weights judged beside the trained ones: such a run is, bit for bit, the two runs that it stands for."""

import pytest
import torch

from widemargin.checkpoints import load_checkpoint
from widemargin.evaluation.target import load_target
from widemargin.training import train

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


def test_the_best_weights_have_their_scores(folders):
    for kept, alone in (("both", "plain"), ("both/averaged", "averaged")):
        ours, theirs = (load_target(folders / name).description.scores for name in (kept, alone))
        assert ours == theirs
        assert {"validation_clean", "validation_robust"} <= ours.keys()


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


def test_early_stopping_looks_at_the_trained_weights(tiny, tmp_path):
    settings = ("epochs=9", "optimizer.lr=0.5", "data.held_out=40", "stopping={patience=1}")
    alone = train(tiny(*settings), out=tmp_path / "alone")
    both = train(tiny(*settings, "averaging={decay=0.99, beside=true}"), out=tmp_path / "both")
    assert both.finished
    assert both.epoch == alone.epoch < 9

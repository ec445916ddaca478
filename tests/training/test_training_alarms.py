"""Alarms: found from the lines of the metrics, told once, with a suggestion, whatever stops and goes on between."""

import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from faults import interrupted
from widemargin.data import load
from widemargin.errors import WidemarginWarning
from widemargin.models import MODELS
from widemargin.models.classifier import Classifier, InitializedConfig
from widemargin.report.runs import RunAlarm, read_run
from widemargin.training import Splits, train, trainer
from widemargin.training.alarms import meaning_of, new_alarms
from widemargin.training.run_folder import read_metrics

AT = 'objective={kind="adversarial", attack={kind="fgsm", eps=0.1}}'
PGD = 'watch={attack={kind="pgd", eps=0.1, step_size=0.05, steps=2}, margins=[]}'
EMR = 'emr={kind="exact", weight=0.1}'
HELD = "data.held_out=1000"


def lines_of(**columns):
    """Lines from columns; None is a value that was not measured."""
    rows = zip(*columns.values(), strict=True)
    kept = [{key: value for key, value in zip(columns, row, strict=True) if value is not None} for row in rows]
    return [{"epoch": number, "loss": 2.0 / number, **line} for number, line in enumerate(kept, start=1)]


def told(lines, config):
    """(epoch, name) of every alarm of a run with these lines, as a run writes them down."""
    found = []
    for end in range(1, len(lines) + 1):
        alarms = new_alarms(lines[:end], config)
        if alarms:
            lines[end - 1]["alarms"] = [alarm.name for alarm in alarms]
        found += [(end, alarm.name) for alarm in alarms]
    return found


RISING = [30.0, 40.0, 50.0, 60.0, 70.0, 75.0, 80.0, 85.0]
CO = "catastrophic-overfitting"
RO = "robust-overfitting"


@pytest.mark.parametrize(
    ("settings", "training", "robust", "expected"),
    [
        ((AT, PGD, HELD), RISING, [20, 30, 35, 38, 5, 3, 0, 0], [(5, CO)]),
        ((AT, PGD), RISING, [20, 30, 35, 38, 5, 3, 0, 0], [(5, CO)]),  # the test curve, where no split is held out
        ((AT, PGD, HELD), RISING, [20, 30, 35, 38, 30, 30, 22, 20], []),  # a fall is no collapse
        ((AT, PGD, HELD), RISING[::-1], [20, 30, 35, 38, 5, 3, 0, 0], []),  # training fell too: it diverged
        ((PGD, HELD), RISING, [20, 30, 35, 38, 5, 3, 0, 0], []),  # standard training promises nothing
        ((AT, HELD, 'watch={attack={kind="fgsm", eps=0.1}, margins=[]}'), RISING, [20, 30, 35, 38, 5, 3, 0, 0], []),
        ((AT, PGD, HELD), RISING, [8, 9, 3, 9, 3, 9, 3, 9], []),  # small numbers go up and down
    ],
)
def test_catastrophic_overfitting(tiny, settings, training, robust, expected):
    config = tiny(*settings)
    split = "validation" if config.data.held_out else "test"
    lines = lines_of(train_accuracy=training, **{f"{split}_robust": robust})
    assert told(lines, config) == expected


TEXTBOOK = {
    "train_accuracy": [
        *(0.0, 4.5, 11.2, 14.1, 15.2, 16.0, 16.2, 16.5, 16.6, 17.0),
        *(17.1, 17.0, 17.4, 17.6, 18.0, 18.6, 19.5, 21.6, 24.4, 31.1),
    ],
    "validation_robust": [
        *(0.0, 9.6, 12.2, 13.1, 14.3, 15.0, 14.3, 13.7, 14.7, 14.4),
        *(16.3, 15.3, 14.5, 13.8, 12.8, 12.8, 2.6, 0.3, 0.0, 0.1),
    ],
}
"""Measured: FGSM at 10/255 on CIFAR-10, a convolution of 4 filters and a linear layer (docs/reliability.md)."""


def test_the_textbook_collapse_is_told_in_its_epoch_and_as_nothing_else(tiny):
    assert told(lines_of(**TEXTBOOK), tiny(AT, PGD, HELD)) == [(17, CO)]
    before = {name: values[:16] for name, values in TEXTBOOK.items()}
    assert told(lines_of(**before), tiny(AT, PGD, HELD)) == []


FALLING = [40, 50, 45, 44, 45, 43, 44, 42]


@pytest.mark.parametrize(
    ("held", "robust", "training", "expected"),
    [
        (1000, FALLING, RISING, [(7, RO)]),
        (1000, FALLING, RISING[::-1], []),  # training fell too
        (1000, FALLING, [50.0] * 8, []),
        (1000, [40, 50, 49, 48, 49, 48, 49, 48], RISING, []),  # within two standard errors of 1,000 images
        (100000, [40, 50, 47.5, 47, 47, 47, 46, 46], RISING, [(7, RO)]),
        (100, FALLING, RISING, []),  # of 100 images that is noise
        (1000, [40, 50, 45, 44, 45, 43, 50, 42], RISING, []),  # it came back
        (1000, [40, 50, None, 45, None, 44, None, 42], RISING, []),  # not yet watched often enough
    ],
)
def test_robust_overfitting_is_a_fall_while_training_goes_on_learning(tiny, held, robust, training, expected):
    for method, alarms in ((AT, expected), (EMR, expected), ("seed=0", [])):  # plain training promises nothing
        lines = lines_of(train_accuracy=training, validation_robust=robust)
        assert told(lines, tiny(method, PGD, f"data.held_out={held}")) == alarms


@pytest.mark.parametrize(
    ("settings", "values", "loss", "expected"),
    [
        ((EMR,), [5, 4, 3, 3, 3, 3, 3, 3], None, [(7, "emr-still")]),
        ((EMR,), [5, 4, 3, 3.1, 3, 3.1, 3, 3.1], None, []),
        ((EMR,), [5, 4, 3, 3, 3, 3, 3, 3], [1.0] * 8, []),  # nothing moves any more
        ((EMR,), [0, 0, 0, 0, 0, 0, 0, 0], [1.0] * 8, [(5, "emr-still")]),
        ((EMR, "emr.weight=0.0"), [0, 0, 0, 0, 0, 0, 0, 0], None, []),  # switched off
        (("grad_align={weight=0.2, eps=0.1}",), [0, 0, 0, 0, 0, 0, 0, 0], None, [(5, "grad_align-still")]),
        (("igr={weight=0.1}",), [5, 4, 3, 3, 3, 3, 3, 3], None, [(7, "igr-still")]),
        ((), [5, 4, 3, 3, 3, 3, 3, 3], None, []),
    ],
)
def test_a_penalty_that_stands_still(tiny, settings, values, loss, expected):
    name = next((name for name in ("igr", "grad_align") if name in str(settings)), "emr")
    lines = lines_of(**{name: values})
    for number, line in enumerate(lines if loss else []):
        line["loss"] = loss[number]
    assert told(lines, tiny(*settings)) == expected


SCORES = [20.0, 38.0, 5.0, 3.0]


@pytest.fixture
def collapsing(tiny, monkeypatch):
    """A run of four epochs whose robust accuracy collapses in the third."""

    def watched(nets, config, splits, *, epoch, **options):
        return {"test_clean": 50.0, "test_robust": SCORES[epoch - 1]}

    monkeypatch.setattr(trainer, "watch", watched)
    return tiny("epochs=4", AT, PGD)


def warned(work):
    """The warnings of ours, and what came of it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work()
    return [str(w.message) for w in caught if issubclass(w.category, WidemarginWarning)], result


def test_an_alarm_is_a_warning_and_stands_in_the_line_of_its_epoch(collapsing, tmp_path):
    messages, result = warned(lambda: train(collapsing, out=tmp_path))
    (message,) = messages
    assert message.startswith("tiny: epoch 3: accuracy under attack fell to 5.0% from 38.0% at epoch 2")
    assert "use more steps (objective.attack)" in message
    assert [line.get("alarms") for line in result.metrics] == [None, None, [CO], None]
    assert read_metrics(tmp_path) == result.metrics
    assert read_run(tmp_path).alarms == [RunAlarm(3, CO)]  # as a report has it


def test_a_resumed_run_does_not_tell_it_again(collapsing, tmp_path, left_in):
    warned(lambda: train(collapsing, out=tmp_path / "whole"))
    assert len(warned(lambda: interrupted(collapsing, tmp_path / "parts", step=3 * 4 + 1))[0]) == 1
    assert warned(lambda: train(collapsing, out=tmp_path / "parts"))[0] == []
    left_in(tmp_path / "parts").assert_same(left_in(tmp_path / "whole"))


def test_a_crash_between_line_and_checkpoint_loses_no_alarm(collapsing, tmp_path, monkeypatch, left_in):
    warned(lambda: train(collapsing, out=tmp_path / "whole"))
    real = trainer.append_line

    def crashing(folder, line):
        real(folder, line)
        if line["epoch"] == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "append_line", crashing)
    with pytest.raises(KeyboardInterrupt):
        train(collapsing, out=tmp_path / "parts")
    monkeypatch.setattr(trainer, "append_line", real)
    assert len(warned(lambda: train(collapsing, out=tmp_path / "parts"))[0]) == 1
    left_in(tmp_path / "parts").assert_same(left_in(tmp_path / "whole"))


def test_every_alarm_has_a_meaning(tiny):
    """A report has the names alone: their meaning must be known, and what it suggests what the run suggested."""
    config = tiny(AT, PGD, HELD, EMR, "igr={weight=0.1}")
    robust = [38.0, 5.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    lines = lines_of(train_accuracy=RISING, validation_robust=robust, emr=[3.0] * 8, igr=[0.0] * 8)
    alarms = new_alarms(lines, config) + new_alarms(lines_of(train_accuracy=RISING, validation_robust=FALLING), config)
    assert {alarm.name for alarm in alarms} == {CO, RO, "emr-still", "igr-still"}
    for alarm in alarms:
        meaning = meaning_of(alarm.name)
        assert meaning.message
        assert meaning.suggestion == alarm.suggestion != ""


# The textbook collapse, small enough to be trained here


class FewFilters(Classifier):
    """A convolution and a linear layer."""

    def __init__(self, *, image_shape, num_classes, make_head, normalize, activation):
        channels, height, width = image_shape
        sizes = {"num_classes": num_classes, "feature_size": 4 * height * width}
        super().__init__(image_shape=image_shape, normalize=normalize, **sizes)
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)
        self.fc = self._new_head(make_head)

    def embed(self, x):
        return torch.relu(self.conv(x)).flatten(1)


@dataclass(frozen=True, kw_only=True)
class FewFiltersConfig(InitializedConfig):
    architecture = FewFilters


SMALL = (
    'data={name="cifar10-embedded"}',
    'model={kind="few-filters", init="he"}',
    'optimizer={kind="adamw", lr=0.005, weight_decay=0.0}',
    'watch={every=15, attack={kind="pgd", eps="10/255", step_size="2.5/255", steps=10}, margins=[]}',
    "batch_size=50",
    "epochs=240",
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("attack", "expected"),
    [('{kind="fgsm", eps="10/255"}', [CO]), ('{kind="fgsm", eps="10/255", noise="20/255", clip=false}', [])],
    ids=["fgsm", "n-fgsm"],
)
def test_a_small_network_learns_to_fool_fgsm_and_not_n_fgsm(attack, expected, tiny, tmp_path, monkeypatch):
    """Watched on the images it trains on, where a collapse shows as well."""
    monkeypatch.setitem(MODELS, "few-filters", FewFiltersConfig)
    config = tiny(*SMALL, f'objective={{kind="adversarial", attack={attack}}}')
    images = load("cifar10-embedded", "train")
    splits = Splits(train=images, validation=None, test=images)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WidemarginWarning)
        lines = train(config, out=tmp_path, splits=splits, device="cpu", checkpoint_pause=1e9).metrics
    assert [name for line in lines for name in line.get("alarms", [])] == expected
    assert (lines[-1]["test_robust"] < 25) == (expected == [CO])
    assert lines[-1]["train_accuracy"] > 75

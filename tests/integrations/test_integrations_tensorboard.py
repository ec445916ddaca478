"""TensorBoard's own reader finds each point once, of runs that were stopped, and not logged at first."""

import pytest

from widemargin.training import train

pytest.importorskip("tensorboard", reason="tensorboard is in the extra of that name")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from widemargin.integrations import make_tracker


def read(folder):
    found = EventAccumulator(
        str(folder / "tensorboard"), size_guidance=dict.fromkeys(("scalars", "images", "tensors", "histograms"), 0)
    )
    found.Reload()
    return found


def points(found, tag):
    return [(event.step, pytest.approx(event.value)) for event in found.Scalars(tag)]


def test_curves_histograms_and_images(tiny, tmp_path):
    out = tmp_path / "run"
    result = train(tiny(), out=out, device="cpu", trackers=[make_tracker("tensorboard", out)])
    found = read(out)
    for name in ("loss", "emr", "train_accuracy", "validation_clean", "validation_robust", "test_margin_mean", "lr"):
        assert points(found, name) == [(line["epoch"], line[name]) for line in result.metrics]
    assert [event.step for event in found.Histograms("margins")] == [1, 2, 3]
    assert found.Histograms("margins")[0].histogram_value.num == 20
    (image, *_) = found.Images("clean, adversarial, difference x 5")
    assert (image.height, image.width) == (3 * 28, 8 * 28)
    (text,) = found.Tensors("config/text_summary")
    words = text.tensor_proto.string_val[0].decode()
    assert "**tiny/st**" in words
    assert "held_out = 20" in words


def test_a_run_that_goes_on_appends_and_repeats_nothing(tmp_path, train_in_two_calls):
    out = tmp_path / "run"
    result = train_in_two_calls(out, lambda: [make_tracker("tensorboard", out)])
    found = read(out)
    assert len(list((out / "tensorboard").iterdir())) == 2
    assert points(found, "loss") == [(line["epoch"], line["loss"]) for line in result.metrics]
    assert [event.step for event in found.Histograms("margins")] == [1, 2, 3]
    assert len(found.Tensors("config/text_summary")) == 1


def test_what_was_not_logged_at_first_is_added(tmp_path, train_in_two_calls):
    out = tmp_path / "run"
    result = train_in_two_calls(out, lambda: [make_tracker("tensorboard", out)], first=False)
    assert points(read(out), "loss") == [(line["epoch"], line["loss"]) for line in result.metrics]


def test_the_command(command, tmp_path):
    small = ("epochs=1", "data.train_limit=40", "data.test_limit=20", "model.hidden=[8]", "watch.margins=[]")
    options = [part for setting in small for part in ("--set", setting)]
    answer = command("train", "demo/plain", "--out", tmp_path / "run", "--log", "tensorboard", *options)
    assert answer.code == 0, answer.err
    assert points(read(tmp_path / "run"), "epoch") == [(1, 1.0)]

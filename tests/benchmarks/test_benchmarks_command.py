"""``python -m benchmarks`` as a user gives it, with a small network in the MLP's place."""

import json
import re
from functools import partial

import pytest
from benchmarks.__main__ import BENCHMARKS

from benchmarks import distance
from widemargin.models import MLP, MODELS, MLPConfig

SMALL = ("--model", "mlp", "--batch-size", "3", "--rounds", "2", "--device", "cpu")


@pytest.fixture
def small_mlp(monkeypatch):
    monkeypatch.setitem(MODELS, "mlp", partial(MLPConfig, hidden=(16,)))


def measured(command, *arguments):
    answer = command(BENCHMARKS, *arguments, "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_the_record_has_what_was_measured(command, small_mlp):
    found = measured(command, "step", *SMALL, "--emr", "approximate", "--engine", "eager")
    assert found["device"].startswith("cpu, ")
    assert found["plan"] == "eager, float32"
    assert (found["model"], found["objective"], found["emr"], found["batch_size"]) == ("mlp", "at", "approximate", 3)
    step, naive, penalty = found["step_ms"], found["naive"], found["penalty"]
    assert 0 < step["low"] <= step["median"] <= step["high"]
    assert found["images_per_second"] == pytest.approx(3000 / step["median"])
    forward = 2 * 16 * (784 + 10)
    assert found["forward_flops_per_image"] == forward
    assert found["flops_per_step"] == 3 * ((20 * 2 + 3 + 4) * forward - 2 * 16 * 784)
    assert found["tflops"] == pytest.approx(found["flops_per_step"] / step["median"] / 1e9)
    share = 100 * found["tflops"] / found["matrix_ceiling_tflops"]
    assert found["matrix_ceiling_percent"] == pytest.approx(share)
    assert found["convolution_ceiling_tflops"] is None
    assert "peak_memory_gib" not in found
    assert penalty["name"] == "emr"
    assert penalty["ms"] == pytest.approx(step["median"] - penalty["step_ms_without"]["median"])
    assert naive["ratio"] == pytest.approx(naive["step_ms"]["median"] / step["median"])


def test_streaming_is_set_against_a_plain_loader(command):
    options = ("--images", 12, "--size", 24, "--batch-size", 5, "--workers", 1, "--rounds", 2)
    answer = command(BENCHMARKS, "streaming", *options)
    assert answer.code == 0, answer.err
    assert re.search(r"time of an epoch, streamed over plain: \d+\.\d+ \(\d+\.\d+ to \d+\.\d+\); 12 JPEGs", answer.text)


def test_without_penalty_and_loop(command, small_mlp):
    found = measured(command, "step", *SMALL, "--objective", "st", "--engine", "fast", "--no-naive")
    assert found["penalty"] is None
    assert found["naive"] is None
    assert found["plan"] in ("fast, float32", "fast, bfloat16 factors", "fast, bfloat16")


@pytest.mark.parametrize("objective", ["trades", "mart", "mail", "lbgat"])
def test_every_objective_runs(command, small_mlp, objective):
    assert measured(command, "step", *SMALL, "--objective", objective)["naive"]["ratio"] > 0


def test_igr_and_the_hypersphere_head(command, small_mlp):
    found = measured(command, "step", *SMALL, "--igr", "--head", "he")
    assert found["penalty"]["name"] == "igr"
    assert (found["igr"], found["head"]) == (True, "he")


def test_the_table_and_what_goes_where(command, small_mlp):
    answer = command(BENCHMARKS, "step", *SMALL, "--emr", "stochastic")
    assert answer.code == 0
    for words in (
        "AT + stochastic EMR: mlp, batch 3",
        "images per second",
        "matrix ceiling",
        "EMR's share",
        "times the step",
    ):
        assert words in answer.text
    assert "median of 2 rounds" in answer.text
    assert "warming up" in answer.err
    assert "warming up" not in answer.out


def test_a_network_with_convolutions_has_their_ceiling(command):
    flags = ("--model", "cnn", "--batch-size", "2", "--rounds", "1", "--device", "cpu", "--objective", "st")
    found = measured(command, "step", *flags)
    reached = 100 * found["tflops"] / found["convolution_ceiling_tflops"]
    assert found["convolution_ceiling_percent"] == pytest.approx(reached)


def test_the_papers_table(command, small_mlp):
    found = measured(command, "paper", *SMALL)
    assert [row["row"] for row in found["rows"]][::4] == ["AT", "TRADES"]
    assert len(found["rows"]) == 8
    first = found["rows"][0]
    assert (first["ratio"], first["published_ratio"]) == (1.0, 1.0)
    assert found["rows"][3]["published_ratio"] == pytest.approx(3.22 / 2.46)
    for row in found["rows"]:
        assert row["ratio"] == pytest.approx(row["step_ms"]["median"] / first["step_ms"]["median"])
    answer = command(BENCHMARKS, "paper", *SMALL)
    assert "measured with mlp; the paper's times are those of WRN-34-10" in answer.text
    assert "TRADES+EMR" in answer.text
    assert "1.31" in answer.text


SHORT = ("distance", "--images", "3", "--epochs", "1", "--train-images", "200")


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_distances_by_each_attack_and_method(command, monkeypatch, norm):
    monkeypatch.setattr(distance, "MLP", partial(MLP, hidden=(16,)))
    rows = measured(command, *SHORT, "--norm", norm)["rows"]
    alone = ["ddn-1z", "ddn-3z", "ddn-10z", "alma"] if norm == "l2" else []
    expected = ["fab-t", *alone, "--distance full", "--distance quick"]
    by_network = {name: [row for row in rows if row["network"] == name] for name in distance.NETWORKS}
    for found in by_network.values():
        assert [row["attack"] for row in found] == expected
        assert [row["share_of_fab"] for row in found] == [
            pytest.approx(row["seconds"] / found[0]["seconds"]) for row in found
        ]
        full = found[expected.index("--distance full")]
        assert all(full["median"] <= row["median"] for row in found if row["attack"] in alone)


def test_the_distances_say_whether_promises_are_kept(command, monkeypatch):
    rows = [distance.Measured("net", name, median, 1.0, seconds, seconds / 9, 3) for name, median, seconds in (
        ("fab-t", 1.0, 9.0), ("alma", 0.8, 1.0), ("--distance full", 0.9, 3.0), ("--distance quick", 0.7, 3.0)
    )]  # fmt: skip
    (note,) = distance._verdicts(rows)
    assert note == ("net: full takes 0.33 of FAB-T's time, its median 0.9000 is longer than the best attack's 0.8000")


MISTAKES = {
    "unknown model": (("step", "--model", "resnet19"), "--model must be one of 'mlp', 'cnn', 'resnet18'"),
    "unknown objective": (("step", "--objective", "pgd"), "--objective must be one of 'st', 'at', 'trades'"),
    "unknown emr": (
        ("step", "--emr", "approx"),
        "--emr must be one of 'none', 'exact', 'approximate', 'stochastic', got 'approx'",
    ),
    "unknown head": (("step", "--head", "hypersphere"), "--head must be one of 'linear', 'he'"),
    "unknown engine": (("step", "--engine", "faster"), "--engine must be one of"),
    "no images": (("step", "--batch-size", "0"), "--batch-size must be a whole number of at least 1, got 0"),
    "no rounds": (("step", "--rounds", "0"), "--rounds must be a whole number of at least 1, got 0"),
    "no such device": (("step", "--device", "gpu"), "--device 'gpu' cannot be used here"),
    "a head without a label loss": (
        ("step", "--objective", "lbgat", "--head", "he"),
        "use --head linear or another objective",
    ),
    "an emr of the paper": (("paper", "--emr", "exact"), "No such option"),
    "no images of the paper": (("paper", "--batch-size", "0"), "--batch-size must be a whole number of at least 1"),
    "no rounds of emr": (("emr-cost", "--rounds", "0"), "--rounds must be a whole number of at least 1, got 0"),
    "no images for distances": (("distance", "--images", "0"), "--images must be a whole number of at least 1"),
    "no norm": (("distance", "--norm", "l1"), "--norm must be one of 'l2', 'linf', got 'l1'"),
    "no images to attack": (("autoattack", "--images", "0"), "--images must be a whole number of at least 1"),
    "no such search": (("autoattack", "--search", "half"), "--search must be one of 'float32', 'tf32', 'folded'"),
    "no rounds of attacks": (("evaluator-overhead", "--rounds", "-1"), "--rounds must be a whole number of at least 1"),
    "no such verb": (("steps",), "No such command 'steps'"),
    "huge": (("step", "--batch-size", str(10**20)), "--batch-size must be a whole number below 2^63"),
    "beyond sizes": (("step", "--batch-size", str(10**18), "--model", "mlp"), "not enough memory: "),
    "beyond memory": (("step", "--batch-size", str(10**12), "--model", "mlp"), "not enough memory: "),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_in_a_line(refused, mistake):
    options, says = MISTAKES[mistake]
    assert says in refused(BENCHMARKS, *options)

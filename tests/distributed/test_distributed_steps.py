"""Two processes train as one does: the same parameters, statistics, averages and sums after the same steps."""

import json
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from layer_cases import NORMS, normalized, odd
from processes import run_jobs
from run_cases import begun_run, whole_run
from safetensors.torch import load_file
from step_cases import FEW, Case, difference, trained, whole_grid

from image_files import image_folder
from widemargin.config.checkpoint import TRAIN_PREFIX
from widemargin.training.run_folder import read_metrics

BESIDE = ("averaging.beside=true",)
AUGMENTED = "data.augmentation=['crop-flip', 'autoaugment', {kind='cutmix', parts=3}]"
MIXED = (AUGMENTED, "data.extra_share=0.6", "igr={weight=0.1}")
RESNET = ("data.name=cifar10-embedded", "model={kind='resnet18', width=2}", "epochs=2", "data.train_limit=60")
TUNED = (*RESNET, "freeze_batch_norm=true", "watch.margins=[]", "head={kind='hypersphere'}")
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Where runs are; one of them was begun by a process alone."""
    folder = tmp_path_factory.mktemp("places")
    images = np.random.default_rng(0).integers(0, 256, (60, 28, 28), dtype=np.uint8)
    np.savez(folder / "extra.npz", image=images, label=np.arange(60) % 10)
    image_folder(folder / "jpegs")
    begun_run(str(folder / "begun-alone"))
    whole_run(str(folder / "pretrained"), settings=(*RESNET, "epochs=1", "watch.margins=[]"))
    return folder


def mixed(places: Path) -> tuple[str, ...]:
    """AutoAugment, CutMix, and a second source."""
    return (*MIXED, f"data.extra={places / 'extra.npz'}")


def tuned(places: Path) -> tuple[str, ...]:
    """From other weights, under another head, with their statistics."""
    return (*TUNED, f"init_from={places / 'pretrained'}")


def streamed(places: Path) -> tuple[str, ...]:
    """JPEGs, each decoded in one process, of which CutMix sees all."""
    table = f'data={{name="{places / "jpegs"}", image_size=12, held_out=9}}'
    return table, "data.augmentation=['random-resized-crop', 'cutmix']", "batch_size=11"


@pytest.fixture(scope="module")
def pair(places, tmp_path_factory):
    """What two processes make of everything, started once."""
    jobs = {f"steps {case}": ("steps", (case,)) for case in FEW}
    jobs |= {f"norm {name}": ("norm", (name,)) for name in NORMS}
    jobs["odd"] = ("odd", ())
    jobs["run"] = ("run", (str(places / "pair"),))
    jobs["beside"] = ("run", (str(places / "pair-beside"), "cpu", BESIDE))
    jobs["mixed"] = ("run", (str(places / "pair-mixed"), "cpu", mixed(places)))
    jobs["tuned"] = ("run", (str(places / "pair-tuned"), "cpu", tuned(places)))
    jobs["streamed"] = ("run", (str(places / "pair-streamed"), "cpu", streamed(places)))
    jobs["on from one"] = ("run", (str(places / "begun-alone"),))
    jobs["begun"] = ("begun", (str(places / "begun-by-two"),))
    jobs["refusals"] = ("refusals", (str(places),))
    jobs["norms"] = ("norms", (str(places / "norms"),))
    jobs["stops"] = ("stops", (str(places),))
    found = run_jobs(tmp_path_factory.mktemp("pair"), list(jobs.values()))
    return dict(zip(jobs, found, strict=True))


@pytest.fixture(scope="module")
def alone(places):
    whole_run(str(places / "alone"))
    return places / "alone"


@pytest.mark.parametrize("case", [case for case in FEW if case.synchronized], ids=str)
def test_two_processes_train_as_one(case: Case, pair) -> None:
    first, second = pair[f"steps {case}"]
    assert difference(first, second) == 0
    assert difference(trained(case), first) < TOLERANCE[case.dtype]


def test_unsynchronized_batch_norm_is_different_but_the_same_everywhere(pair) -> None:
    (case,) = [case for case in FEW if not case.synchronized]
    first, second = pair[f"steps {case}"]
    assert difference(first, second) == 0
    assert difference(trained(case), first) > 1e-3


@pytest.mark.parametrize("name", NORMS)
def test_batch_norm_over_processes(name: str, pair) -> None:
    expected, found = normalized(name), pair[f"norm {name}"]
    repeated = name == "fewer samples than processes"
    for key, value in expected.items():
        parts = [part[key] for part in found]
        if key.startswith("summed"):
            whole = sum(parts)
        elif key.startswith("buffer") or repeated:
            whole = parts[0]
            assert torch.equal(parts[0], parts[1]), key
        else:
            whole = torch.cat(parts)
        torch.testing.assert_close(whole, value, rtol=1e-9, atol=1e-10, msg=lambda text, key=key: f"{key}: {text}")


def test_a_parameter_without_a_gradient_in_some_process_or_in_all(pair) -> None:
    first, second = pair["odd"]
    assert difference(first, second) == 0
    assert difference(odd(), first) < 1e-12


def assert_same_run(folder: Path, other: Path) -> None:
    """Weights and metrics within float32's tolerance."""
    for name in ("last.safetensors", "best.safetensors"):
        assert difference(load_file(folder / name), load_file(other / name)) < 1e-4
    lines, others = read_metrics(folder), read_metrics(other)
    assert len(lines) == len(others) == 2
    for line, expected in zip(lines, others, strict=True):
        assert line.keys() == expected.keys()
        same = {key: value for key, value in line.items() if not key.endswith("seconds")}
        assert same == pytest.approx({key: expected[key] for key in same}, rel=1e-4)


def test_a_run_of_two_is_a_run_of_one(pair, places, alone) -> None:
    first, second = pair["run"]
    assert first["finished"]
    assert first == second
    assert_same_run(places / "pair", alone)
    assert sorted(path.name for path in (places / "pair").iterdir()) == sorted(path.name for path in alone.iterdir())


def test_mixed_labels_and_a_second_source_are_those_of_a_run_of_one(pair, places) -> None:
    first, second = pair["mixed"]
    assert first == second
    whole_run(str(places / "alone-mixed"), settings=mixed(places))
    assert_same_run(places / "pair-mixed", places / "alone-mixed")


def test_a_fine_tuned_run_is_that_of_one(pair, places) -> None:
    first, second = pair["tuned"]
    assert first == second
    whole_run(str(places / "alone-tuned"), settings=tuned(places))
    assert_same_run(places / "pair-tuned", places / "alone-tuned")
    found, source = (load_file(places / name / "best.safetensors") for name in ("pair-tuned", "pretrained"))
    statistics = [name for name in source if "running" in name]
    assert statistics
    assert all(torch.equal(found[name], source[name]) for name in statistics)


def test_streamed_images_are_those_of_a_run_of_one(pair, places) -> None:
    first, second = pair["streamed"]
    assert first == second
    whole_run(str(places / "alone-streamed"), settings=streamed(places))
    assert_same_run(places / "pair-streamed", places / "alone-streamed")


def test_averaged_weights_beside_are_those_of_a_run_of_one(pair, places, alone) -> None:
    first, second = pair["beside"]
    assert first == second
    whole_run(str(places / "alone-beside"), settings=BESIDE)
    assert_same_run(places / "pair-beside", places / "alone-beside")
    for name in ("last.safetensors", "best.safetensors"):
        averaged = load_file(places / "pair-beside" / "averaged" / name)
        own = {key: value for key, value in load_file(alone / name).items() if not key.startswith(TRAIN_PREFIX)}
        assert averaged.keys() == own.keys()
        assert difference(averaged, own) < 1e-4


def test_two_go_on_with_the_run_of_one(pair, places, alone) -> None:
    assert pair["on from one"][0]["finished"]
    assert_same_run(places / "begun-alone", alone)


def test_one_goes_on_with_the_run_of_two(pair, places, alone) -> None:
    folder = places / "begun-by-two"
    assert len(read_metrics(folder)) == 1
    assert whole_run(str(folder))["finished"]
    assert_same_run(folder, alone)


SAID = {
    "device": ("--device 'cuda' cannot be used here", "(said by process 1 of 2)"),
    "gpu number": ("--device 'cuda:1' names one GPU for several processes", "use --device cuda, each takes its own"),
    "folder": ("b is not empty and holds no config.toml", "(said by process 0 of 2)"),
    "disk": ("the disk is full", "(said by process 0 of 2)"),
    "not finite": ("tiny: ", "--on-nonfinite skip leaves such steps out"),
    "weights": ("the processes' weights differ (first in ", "see docs/clusters.md"),
}


@pytest.mark.parametrize("about", SAID)
def test_what_one_process_refuses_all_refuse(about: str, pair) -> None:
    first, second = (answers[about] for answers in pair["refusals"])
    assert first == second
    for words in SAID[about]:
        assert words in first


def test_a_checkpoint_says_where_batch_norm_was_not_synchronized(pair) -> None:
    assert pair["norms"][0] == {"shared": None, "own": "each process its own", "none": None}


def test_all_stop_where_one_is_asked_to(pair) -> None:
    first, second = pair["stops"]
    assert first == second
    assert first["late"] == first["asked"] == (False, 0)


def test_a_skipped_step_is_counted_once(pair) -> None:
    (skipped,) = pair["stops"][0]["skipped"]
    assert 1 <= skipped <= 4


# Every objective x regularizer x head x batch norm, and three processes: minutes


@pytest.mark.long
def test_the_whole_grid(tmp_path: Path) -> None:
    cases = whole_grid()
    assert len(cases) > 250
    found = run_jobs(tmp_path, [("steps", (case,)) for case in cases])
    largest: defaultdict[str, float] = defaultdict(float)
    for case, (first, second) in zip(cases, found, strict=True):
        assert difference(first, second) == 0, case
        gap = difference(trained(case), first)
        for name in (case.objective, case.penalty, case.head, case.model, "all"):
            largest[name] = max(largest[name], gap)
        assert gap < 1e-9, case
    if "DIFFERENCES" in os.environ:
        Path(os.environ["DIFFERENCES"]).write_text(json.dumps(largest | {"cases": len(cases)}, indent=2))


@pytest.mark.long
def test_three_processes(tmp_path: Path) -> None:
    cases = [case for case in FEW if case.synchronized]
    for case, processes in zip(cases, run_jobs(tmp_path, [("steps", (c,)) for c in cases], processes=3), strict=True):
        assert {difference(processes[0], other) for other in processes} == {0.0}
        assert difference(trained(case), processes[0]) < (1e-9 if "float32" not in str(case) else 1e-4), case


# Two processes on one GPU, through gloo (NCCL wants a GPU each): torch's own SyncBatchNorm, and the fast engine

HEAVY = ("model={kind='resnet18'}", "averaging=none", "epochs=1", "data.augmentation=none")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_two_processes_on_a_gpu(tmp_path: Path) -> None:
    cases = [case for case in FEW if case.synchronized]
    jobs = [("steps", (case, "cuda")) for case in cases]
    runs = {"light": (), "heavy": HEAVY}
    jobs += [("run", (str(tmp_path / f"{name}-two"), "cuda", settings)) for name, settings in runs.items()]
    found = run_jobs(tmp_path, jobs)
    for case, (first, second) in zip(cases, found, strict=False):
        assert difference(first, second) == 0, case
        gap = difference(trained(case, "cuda"), first)
        print(case, gap)
        assert gap < (1e-9 if case.dtype == torch.float64 else 1e-3), case
    for name, settings in runs.items():
        alone = whole_run(str(tmp_path / f"{name}-one"), "cuda", settings)
        two = found[jobs.index(("run", (str(tmp_path / f"{name}-two"), "cuda", settings)))][0]
        print(name, alone["metrics"], two["metrics"])
        weights = [load_file(tmp_path / f"{name}-{count}" / "last.safetensors") for count in ("one", "two")]
        print(name, difference(*weights))
        assert two["finished"]
        losses = [[line["loss"] for line in run["metrics"]] for run in (alone, two)]
        assert losses[0] == pytest.approx(losses[1], rel=0.05)

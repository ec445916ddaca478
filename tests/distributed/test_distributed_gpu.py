"""Two processes on one GPU, through gloo (NCCL wants a GPU each): torch's own SyncBatchNorm, and the fast engine."""

from pathlib import Path

import pytest
import torch
from processes import run_jobs
from run_cases import whole_run
from safetensors.torch import load_file
from step_cases import FEW, difference, trained

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
HEAVY = ("model={kind='resnet18'}", "averaging=none", "epochs=1", "data.augmentation=none")


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

"""Every objective x regularizer x head x batch norm, and three processes: as one process trains. Minutes."""

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest
from processes import run_jobs
from step_cases import FEW, difference, trained, whole_grid

pytestmark = pytest.mark.long


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


def test_three_processes(tmp_path: Path) -> None:
    cases = [case for case in FEW if case.synchronized]
    for case, processes in zip(cases, run_jobs(tmp_path, [("steps", (c,)) for c in cases], processes=3), strict=True):
        assert {difference(processes[0], other) for other in processes} == {0.0}
        assert difference(trained(case), processes[0]) < (1e-9 if "float32" not in str(case) else 1e-4), case

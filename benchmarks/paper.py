"""The paper's table of step times (supplement): AT and TRADES, plain and with IGR, HE or EMR, as ratios to plain AT.

Each row has the objective of its name; only the addition differs, so HE runs with the attack of its row and not with
its own recipe's. EMR is the approximation, as in the paper's large networks.
"""

from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console

from benchmarks.case import Case, engine_variant, plan_of
from benchmarks.measure import milliseconds
from benchmarks.timing import Clock, Phases, Timing, describe_device, interleaved, tf32_settings
from widemargin.engine.plan import Plan
from widemargin.recipes.recipe import published_step_times

ADDITIONS = {"standard": "", "igr": "IGR", "he": "HE", "emr": "EMR"}
PAPER_MODEL = "wrn-34-10"


@dataclass(frozen=True)
class PaperRow:
    """One step: its time here and as published (seconds), and its peak of memory."""

    name: str
    step: Timing
    ratio: float
    published: float
    published_ratio: float
    peak_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """The whole table."""

    model: str
    batch_size: int
    device: str
    torch: str
    plan: Plan
    rounds: int
    tf32: dict[str, bool]
    rows: tuple[PaperRow, ...]

    @property
    def note(self) -> str:
        """What a reader must know before comparing with the paper."""
        if self.model == PAPER_MODEL:
            return ""
        return f"measured with {self.model}; the paper's times are those of WRN-34-10: the ratios are not comparable"

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "model": self.model,
            "batch_size": self.batch_size,
            "device": self.device,
            "torch": self.torch,
            "plan": self.plan.describe(),
            "tf32": self.tf32,
            "rounds": self.rounds,
            "note": self.note,
            "rows": [_row_record(row) for row in self.rows],
        }


def _row_record(row: PaperRow) -> dict[str, Any]:
    found: dict[str, Any] = {
        "row": row.name,
        "step_ms": milliseconds(row.step),
        "ratio": row.ratio,
        "published_seconds": row.published,
        "published_ratio": row.published_ratio,
    }
    return found | ({} if row.peak_bytes is None else {"peak_memory_gib": row.peak_bytes / 2**30})


def paper_cases(model: str, batch_size: int) -> dict[str, tuple[Case, float]]:
    """The table's steps by name, in its order, each with the published seconds."""
    cases: dict[str, tuple[Case, float]] = {}
    for row, seconds in published_step_times().items():
        for column, addition in ADDITIONS.items():
            case = Case(
                model=model,
                objective=row.lower(),
                batch_size=batch_size,
                igr=column == "igr",
                head="he" if column == "he" else "linear",
                emr="approximate" if column == "emr" else "none",
            )
            cases[f"{row}+{addition}" if addition else row] = case, seconds[column]
    return cases


def paper_table(
    model: str, *, batch_size: int, engine: str, device: torch.device, rounds: int, console: Console | None = None
) -> PaperTable:
    """Build the eight steps and time them in turn."""
    cases = paper_cases(model, batch_size)
    first = next(iter(cases))
    plan = plan_of(cases[first][0], engine, device)
    with Phases(console or Console(quiet=True)) as phases:
        variants = {}
        for number, (name, (case, _)) in enumerate(cases.items(), start=1):
            phases.say(f"{name}, {plan.describe()}: warming up ({number} of {len(cases)})")
            variants[name] = engine_variant(case, plan, device)
        phases.say("timing", rounds)
        times = interleaved({name: v.step for name, v in variants.items()}, Clock(device), rounds, phases.advance)
    rows = [
        PaperRow(
            name=name,
            step=times[name],
            ratio=times[name].median / times[first].median,
            published=seconds,
            published_ratio=seconds / cases[first][1],
            peak_bytes=variants[name].peak_bytes,
        )
        for name, (_, seconds) in cases.items()
    ]
    return PaperTable(
        model=model,
        batch_size=batch_size,
        device=describe_device(device),
        torch=torch.__version__,
        plan=plan,
        rounds=rounds,
        tf32=tf32_settings(device),
        rows=tuple(rows),
    )

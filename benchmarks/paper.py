"""The paper's table of step times (supplement): AT and TRADES, plain and with IGR, HE or EMR, as ratios to plain AT.

Each row has the objective of its name; only the addition differs, so HE runs with the attack of its row and not with
its own recipe's. EMR is the approximation, as in the paper's large networks.
"""

from typing import Any

import torch
from rich.console import Console

from benchmarks.case import Case, engine_variant, plan_of
from benchmarks.timing import Clock, Phases, interleaved, memory, milliseconds, surroundings
from widemargin.recipes.recipe import published_step_times

ADDITIONS = {"standard": "", "igr": "IGR", "he": "HE", "emr": "EMR"}
PAPER_MODEL = "wrn-34-10"


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
) -> dict[str, Any]:
    """Build the eight steps and time them in turn; the table as a record for JSON."""
    cases = paper_cases(model, batch_size)
    (first, published) = next(iter(cases.values()))
    plan = plan_of(first, engine, device)
    with Phases(console or Console(quiet=True)) as phases:
        variants = {}
        for number, (name, (case, _)) in enumerate(cases.items(), start=1):
            phases.say(f"{name}, {plan.describe()}: warming up ({number} of {len(cases)})")
            variants[name] = engine_variant(case, plan, device)
        phases.say("timing", rounds)
        times = interleaved({name: v.step for name, v in variants.items()}, Clock(device), rounds, phases.advance)
    note = f"measured with {model}; the paper's times are those of WRN-34-10: the ratios are not comparable"
    rows = [
        {
            "row": name,
            "step_ms": milliseconds(times[name]),
            "ratio": times[name].median / next(iter(times.values())).median,
            "published_seconds": seconds,
            "published_ratio": seconds / published,
            **memory(variants[name].peak_bytes),
        }
        for name, (_, seconds) in cases.items()
    ]
    about = {"model": model, "batch_size": batch_size} | surroundings(device, plan, rounds)
    return about | {"note": "" if model == PAPER_MODEL else note, "rows": rows}

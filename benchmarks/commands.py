"""The verbs ``step`` and ``paper`` of ``python -m benchmarks``: how fast a training step is, and what that is worth."""

import json
from typing import Annotated

import torch
import typer

from benchmarks.case import EMR_KINDS, HEAD_NAMES, OBJECTIVE_NAMES, Case, find_model
from benchmarks.measure import Measured, measure
from benchmarks.paper import PaperTable, paper_table
from widemargin.cli.options import Device, EngineOption, Json
from widemargin.core.checks import check_count, choice
from widemargin.core.device import choose_device
from widemargin.core.screen import console_for, show_table
from widemargin.engine.plan import ENGINES

GPU_MODEL, CPU_MODEL = "wrn-34-10", "mlp"
GPU_ROUNDS, CPU_ROUNDS = 10, 5
MLP_BATCH, BATCH = 100, 128

Model = Annotated[
    str | None,
    typer.Option(
        help="A model's name, such as mlp, resnet-18 or wrn-34-10.",
        show_default=f"{GPU_MODEL}; on a CPU {CPU_MODEL}",
    ),
]
Batch = Annotated[
    int | None, typer.Option("--batch-size", help="Images a step.", show_default=f"{BATCH}; {MLP_BATCH} for mlp")
]
Rounds = Annotated[
    int | None, typer.Option(help="How often each is timed.", show_default=f"{GPU_ROUNDS}; on a CPU {CPU_ROUNDS}")
]


def step(
    model: Model = None,
    objective: Annotated[str, typer.Option(help=f"One of {', '.join(OBJECTIVE_NAMES)}.")] = "at",
    emr: Annotated[str, typer.Option(help=f"One of {', '.join(EMR_KINDS)}.")] = "none",
    igr: Annotated[bool, typer.Option("--igr", help="Add input-gradient regularization.")] = False,
    head: Annotated[str, typer.Option(help=f"One of {', '.join(HEAD_NAMES)}.")] = "linear",
    engine: EngineOption = "auto",
    batch_size: Batch = None,
    rounds: Rounds = None,
    no_naive: Annotated[bool, typer.Option("--no-naive", help="Leave out the loop written by hand.")] = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Time a training step on synthetic images; set it against the machine's ceilings and a loop written by hand."""
    name, size, count, chosen = _checked(model, batch_size, rounds, engine, device)
    case = Case(model=name, objective=objective, emr=emr, igr=igr, head=head, batch_size=size)
    console = console_for(stderr=True)
    measured = measure(case, engine=engine, device=chosen, rounds=count, naive=not no_naive, console=console)
    if as_json:
        typer.echo(json.dumps(measured.record(), indent=2))
        return
    title = f"{case.label()}: {case.model}, batch {case.batch_size}"
    header = ("what", "measured")
    show_table(console_for(), header, _lines(measured).items(), left=2, title=title, notes=[_where(measured)])


def paper(
    model: Model = None,
    engine: EngineOption = "auto",
    batch_size: Batch = None,
    rounds: Rounds = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """The paper's table of step times: AT and TRADES, plain, +IGR, +HE, +EMR, as ratios to plain AT."""
    name, size, count, chosen = _checked(model, batch_size, rounds, engine, device)
    console = console_for(stderr=True)
    table = paper_table(name, batch_size=size, engine=engine, device=chosen, rounds=count, console=console)
    if as_json:
        typer.echo(json.dumps(table.record(), indent=2))
        return
    title = f"step times: {table.model}, batch {table.batch_size}; ratios to plain AT, ours beside the paper's"
    rows = []
    for row in table.rows:
        spread = f"{1000 * row.step.low:.4g} to {1000 * row.step.high:.4g}"
        ours = (f"{1000 * row.step.median:.4g}", spread, f"{row.ratio:.2f}")
        rows.append((row.name, *ours, f"{row.published:.2f}", f"{row.published_ratio:.2f}"))
    header = ("step", "ms", "spread", "ratio", "paper's s", "paper's ratio")
    show_table(console_for(), header, rows, title=title, notes=[part for part in (_where(table), table.note) if part])


def _checked(
    model: str | None, batch_size: int | None, rounds: int | None, engine: str, device: str
) -> tuple[str, int, int, torch.device]:
    """Model, batch size, rounds and device, each as given or as is usual on this device."""
    choice("", "--engine", engine, ENGINES)
    chosen = choose_device(device)
    gpu = chosen.type == "cuda"
    name = find_model(model or (GPU_MODEL if gpu else CPU_MODEL))
    size = (MLP_BATCH if name == "mlp" else BATCH) if batch_size is None else batch_size
    count = (GPU_ROUNDS if gpu else CPU_ROUNDS) if rounds is None else rounds
    check_count("--batch-size", size)
    check_count("--rounds", count)
    return name, size, count, chosen


def _lines(measured: Measured) -> dict[str, str]:
    """What is said and how."""
    step, case = measured.step, measured.case
    lines = {
        "step": f"{1000 * step.median:.4g} ms ({1000 * step.low:.4g} to {1000 * step.high:.4g})",
        "images per second": f"{measured.images_per_second:,.0f}",
        "FLOPs of a step": f"{measured.flops:.4g}",
        "achieved": _rate(measured.rate),
        "matrix ceiling": f"{_rate(measured.matrix_ceiling)}, reached to {measured.rate / measured.matrix_ceiling:.1%}",
    }
    if measured.convolution_ceiling is not None:
        reached = measured.rate / measured.convolution_ceiling
        lines["convolution ceiling"] = f"{_rate(measured.convolution_ceiling)}, reached to {reached:.1%}"
    if measured.peak_bytes is not None:
        lines["peak memory"] = f"{measured.peak_bytes / 2**30:.2f} GiB"
    if measured.penalty_seconds is not None:
        name, seconds = str(case.penalty).upper(), measured.penalty_seconds
        lines[f"{name}'s share"] = f"{1000 * seconds:.4g} ms, {seconds / step.median:.1%} of the step"
    if measured.naive is not None:
        naive = f"{1000 * measured.naive.median:.4g} ms, {measured.naive_ratio:.2f} times the step"
        memory = measured.naive_peak_bytes
        lines["loop by hand"] = naive + ("" if memory is None else f", {memory / 2**30:.2f} GiB")
    elif measured.naive_note:
        lines["loop by hand"] = measured.naive_note
    return lines


def _rate(rate: float) -> str:
    return f"{rate / 1e12:.4g} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:.4g} GFLOP/s"


def _where(measured: Measured | PaperTable) -> str:
    tf32 = [name for name, allowed in measured.tf32.items() if allowed]
    parts = [
        measured.device,
        f"torch {measured.torch}",
        measured.plan.describe(),
        f"median of {measured.rounds} rounds",
    ]
    return "; ".join(parts + [f"TF32 where float32: {', '.join(tf32)}"] * bool(tf32))

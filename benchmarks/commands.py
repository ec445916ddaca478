"""The verbs ``step`` and ``paper`` of ``python -m benchmarks``: how fast a training step is, and what that is worth."""

import json
from typing import Annotated, Any

import torch
import typer

from benchmarks.case import EMR_KINDS, HEAD_NAMES, OBJECTIVE_NAMES, Case, find_model
from benchmarks.measure import measure
from benchmarks.paper import paper_table
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
    found = measure(case, engine=engine, device=chosen, rounds=count, naive=not no_naive, console=console)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    title = f"{case.label()}: {case.model}, batch {case.batch_size}"
    show_table(console_for(), ("what", "measured"), _lines(found).items(), left=2, title=title, notes=[_where(found)])


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
        typer.echo(json.dumps(table, indent=2))
        return
    title = f"step times: {name}, batch {size}; ratios to plain AT, ours beside the paper's"
    rows = []
    for row in table["rows"]:
        median, spread = _milliseconds(row["step_ms"])
        ratios = (f"{row[key]:.2f}" for key in ("ratio", "published_seconds", "published_ratio"))
        rows.append((row["row"], median, spread, *ratios))
    header = ("step", "ms", "spread", "ratio", "paper's s", "paper's ratio")
    show_table(console_for(), header, rows, title=title, notes=list(filter(None, (_where(table), table["note"]))))


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


def _lines(found: dict[str, Any]) -> dict[str, str]:
    """What is said and how."""
    median, spread = _milliseconds(found["step_ms"])
    lines = {
        "step": f"{median} ms ({spread})",
        "images per second": f"{found['images_per_second']:,.0f}",
        "FLOPs of a step": f"{found['flops_per_step']:.4g}",
        "achieved": _rate(found["tflops"]),
    }
    for what in ("matrix", "convolution"):
        ceiling, reached = found[f"{what}_ceiling_tflops"], found[f"{what}_ceiling_percent"]
        if ceiling is not None:
            lines[f"{what} ceiling"] = f"{_rate(ceiling)}, reached to {reached:.1f}%"
    if "peak_memory_gib" in found:
        lines["peak memory"] = f"{found['peak_memory_gib']:.2f} GiB"
    if penalty := found["penalty"]:
        share = f"{penalty['ms']:.4g} ms, {penalty['share_percent']:.1f}% of the step"
        lines[f"{penalty['name'].upper()}'s share"] = share
    if naive := found["naive"]:
        memory = f", {naive['peak_memory_gib']:.2f} GiB" if "peak_memory_gib" in naive else ""
        lines["loop by hand"] = naive.get("note") or (
            f"{naive['step_ms']['median']:.4g} ms, {naive['ratio']:.2f} times the step{memory}"
        )
    return lines


def _milliseconds(timing: dict[str, float]) -> tuple[str, str]:
    """(the median, the spread)."""
    return f"{timing['median']:.4g}", f"{timing['low']:.4g} to {timing['high']:.4g}"


def _rate(tflops: float) -> str:
    return f"{tflops:.4g} TFLOP/s" if tflops >= 1 else f"{1000 * tflops:.4g} GFLOP/s"


def _where(found: dict[str, Any]) -> str:
    tf32 = [name for name, allowed in found["tf32"].items() if allowed]
    parts = [found["device"], f"torch {found['torch']}", found["plan"], f"median of {found['rounds']} rounds"]
    return "; ".join(parts + [f"TF32 where float32: {', '.join(tf32)}"] * bool(tf32))

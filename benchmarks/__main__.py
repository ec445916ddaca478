"""``widemargin bench``: how fast a training step is here, and what that is worth."""

import json
from typing import Annotated

import typer

from benchmarks import measure
from benchmarks.case import EMR_KINDS, HEAD_NAMES, OBJECTIVE_NAMES, Case, find_model
from benchmarks.measure import Measured
from benchmarks.paper import PaperTable, paper_table
from widemargin.cli.options import Device, EngineOption, Json
from widemargin.core.checks import check_count, choice
from widemargin.core.device import choose_device
from widemargin.core.screen import console_for, show_table
from widemargin.engine.plan import ENGINES
from widemargin.errors import InputError

GPU_MODEL, CPU_MODEL = "wrn-34-10", "mlp"
GPU_ROUNDS, CPU_ROUNDS = 10, 5
MLP_BATCH, BATCH = 100, 128


def bench(
    model: Annotated[
        str | None,
        typer.Option(
            help="A model's name, such as mlp, resnet-18 or wrn-34-10.",
            show_default=f"{GPU_MODEL}; on a CPU {CPU_MODEL}",
        ),
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(OBJECTIVE_NAMES)}.", show_default="at")
    ] = None,
    emr: Annotated[str | None, typer.Option(help=f"One of {', '.join(EMR_KINDS)}.", show_default="none")] = None,
    igr: Annotated[bool, typer.Option("--igr", help="Add input-gradient regularization.")] = False,
    head: Annotated[str | None, typer.Option(help=f"One of {', '.join(HEAD_NAMES)}.", show_default="linear")] = None,
    engine: EngineOption = "auto",
    batch_size: Annotated[
        int | None, typer.Option(help="Images a step.", show_default=f"{BATCH}; {MLP_BATCH} for mlp")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="How often each is timed.", show_default=f"{GPU_ROUNDS}; on a CPU {CPU_ROUNDS}")
    ] = None,
    no_naive: Annotated[bool, typer.Option("--no-naive", help="Leave out the loop written by hand.")] = False,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's table of step times: AT and TRADES, plain, +IGR, +HE, +EMR.")
    ] = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Time a training step on synthetic images; set it against the machine's ceilings and a loop written by hand."""
    if paper:
        given = {"--objective": objective, "--emr": emr, "--igr": igr, "--head": head, "--no-naive": no_naive}
        _refuse_beside_paper([option for option, value in given.items() if value not in (None, False)])
    choice("", "--engine", engine, ENGINES)
    chosen = choose_device(device)
    gpu = chosen.type == "cuda"
    name = find_model(model or (GPU_MODEL if gpu else CPU_MODEL))
    size = (MLP_BATCH if name == "mlp" else BATCH) if batch_size is None else batch_size
    count = (GPU_ROUNDS if gpu else CPU_ROUNDS) if rounds is None else rounds
    check_count("--batch-size", size)
    check_count("--rounds", count)
    console = console_for(stderr=True)
    if paper:
        table = paper_table(name, batch_size=size, engine=engine, device=chosen, rounds=count, console=console)
        _print_paper(table, as_json=as_json)
        return
    case = Case(
        model=name, objective=objective or "at", emr=emr or "none", igr=igr, head=head or "linear", batch_size=size
    )
    measured = measure(case, engine=engine, device=chosen, rounds=count, naive=not no_naive, console=console)
    _print(measured, as_json=as_json)


def _refuse_beside_paper(options: list[str]) -> None:
    if options:
        raise InputError(
            f"{' and '.join(options)}: no effect with --paper, which times AT and TRADES, plain, +IGR, +HE and +EMR; "
            "leave out one or the other"
        )


def _print(measured: Measured, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(measured.record(), indent=2))
        return
    case = measured.case
    title = f"{case.label()}: {case.model}, batch {case.batch_size}"
    header = ("what", "measured")
    show_table(console_for(), header, _lines(measured).items(), left=2, title=title, notes=[_where(measured)])


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


def _print_paper(table: PaperTable, *, as_json: bool) -> None:
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

"""A report of an evaluation on the screen: the table, what was measured, and what a reader must know beside it."""

from collections.abc import Iterator

from rich.console import Console

from widemargin.evaluation import Report
from widemargin.evaluation.report import Subject
from widemargin.evaluation.settings import AUTOATTACK, written
from widemargin.screen import console_for, say, show_table


def print_report(report: Report) -> None:
    """Print it all."""
    console = console_for()
    say(console, _title(report))
    show_table(console, ("attack", "accuracy %"), _rows(report))
    _print_measured(console, report)
    _print_known(console, report)
    if report.files is not None:
        say(console, f"records: {report.files}")


def _title(report: Report) -> str:
    settings, subject = report.settings, report.subject
    what = "test" if subject.split == "test" else "held-out"
    count = f"{report.count:,}" if subject.whole is None else f"the first {report.count:,} of {subject.whole:,}"
    title = f"{subject.target}: {count} {what} images of {subject.data}"
    if not settings.attacked:
        return title
    radii = ", ".join(_spelled(eps) for eps in settings.eps)
    size = "eps/4" if settings.step_size is None else f"{settings.step_size:g}"
    step = f"; step {size}" if any(name.startswith("pgd") for name in settings.attacks) else ""
    return f"{title}; {settings.norm} eps {radii}{step}; seed {settings.seed}"


def _spelled(eps: float) -> str:
    """As written, with its value where that is another spelling."""
    value = f"{float(eps):.6g}"
    return value if written(eps) == value else f"{written(eps)} = {value}"


def _rows(report: Report) -> Iterator[tuple[str, str]]:
    for name, value in report.accuracy.items():
        part = name.startswith(f"{AUTOATTACK}/")
        yield f"  after {name.removeprefix(AUTOATTACK + '/')}" if part else name, f"{value:.2f}"


def _print_measured(console: Console, report: Report) -> None:
    record = report.to_json()
    margins, distance = record["margins"], record["distance"]
    if margins is not None and margins["correct"]["mean"] is not None:
        correct = margins["correct"]
        say(
            console,
            f"effective margin ({record['norm']}): {correct['mean']:.4g} ± {correct['std']:.4g} if classified right",
        )
    if distance is not None and distance["median"] is not None:
        rank = distance["rank_correlation"]
        shown = "" if rank is None else f"; rank correlation with the margin {rank:.3f}"
        say(
            console,
            f"distance ({record['norm']}) to the nearest adversarial image: median {distance['median']:.4g}{shown}",
        )


def described_weights(subject: Subject) -> str:
    """Which weights were judged, and how they were chosen."""
    epoch = f" (epoch {subject.epoch})" if subject.epoch is not None else ""
    return f"{subject.weights}, {subject.selection}{epoch}"


def _print_known(console: Console, report: Report) -> None:
    """Which weights, notes, alarms."""
    say(console, f"weights: {described_weights(report.subject)}")
    for note in report.notes:
        say(console, f"note: {note}")
    for alarm in report.alarms:
        say(console, f"alarm {alarm.name}: {alarm.message}. {alarm.suggestion}", style="bold red")

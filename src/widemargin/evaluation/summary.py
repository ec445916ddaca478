"""An evaluation's record as a person reads it on a screen: a table of accuracies, what was measured, notes, alarms."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from widemargin.attacks.names import AUTOATTACK
from widemargin.core.screen import say, show_table


def show_report(console: Console, record: Mapping[str, Any], files: Path | None = None) -> None:
    """Print it all; ``record`` is what ``report.json`` holds, ``files`` the folder it is in."""
    say(console, title_of(record))
    part = f"{AUTOATTACK}/"
    rows = [
        (
            f"  after {name.removeprefix(part)}" if name.startswith(part) else name,
            f"{value:.2f}",
            "{:.2f} to {:.2f}".format(*record["intervals"][name]),
        )
        for name, value in record["accuracy"].items()
    ]
    show_table(console, ("attack", "accuracy %", "95% interval"), rows)
    for name, variants in record["strongest"].items():
        told = ", ".join(f"{variant} {broke['first']} ({broke['alone']} alone)" for variant, broke in variants.items())
        say(console, f"{name}, images broken, in this order: {told}")
    for line in measured_lines(record):
        say(console, line)
    say(console, f"weights: {describe_weights(record)}")
    for note in record["notes"]:
        say(console, f"note: {note}")
    for alarm in record["alarms"]:
        say(console, "alarm {name}: {message}. {suggestion}".format(**alarm), style="bold red")
    if files is not None:
        say(console, f"records: {files}")


def title_of(record: Mapping[str, Any]) -> str:
    """What was judged, on which images, at which eps."""
    data, step = record["data"], record["step_size"]
    what = "test" if data["split"] == "test" else "held-out"
    whole = data.get("whole")
    count = f"{data['count']:,}" if whole is None else f"the first {data['count']:,} of {whole:,}"
    title = f"{record['target']}: {count} {what} images of {data['name']}"
    if set(record["attacks"]) == {"clean"}:
        return title
    radii = ", ".join(_spelled(eps) for eps in record["eps"])
    is_default = step is None or step == record["eps"][0]["value"] / 4
    size = "eps/4" if is_default else f"{step:g}"
    if step is None:
        own = {each["eps"]: each["step_size"] for each in record["columns"].values() if "step_size" in each}
        size += "".join(f" ({step:g} at {eps})" for eps, step in own.items())
    steps = f"; step {size}" if any(name.startswith("pgd") for name in record["attacks"]) else ""
    return f"{title}; {record['norm']} eps {radii}{steps}; seed {record['seed']}"


def _spelled(eps: Mapping[str, Any]) -> str:
    """As written, with its value where that is a fraction."""
    value = f"{eps['value']:.6g}"
    return f"{eps['written']} = {value}" if "/" in eps["written"] else str(eps["written"])


def measured_lines(record: Mapping[str, Any]) -> list[str]:
    """Margins, distances and certified radii, a sentence each, as far as there are any."""
    norm, margins, distance, certified = (record[key] for key in ("norm", "margins", "distance", "certified"))
    lines = []
    if margins is not None and margins["correct"]["mean"] is not None:
        correct = margins["correct"]
        lines.append(f"effective margin ({norm}): {correct['mean']:.4g} ± {correct['std']:.4g} if classified right")
    if distance is not None and distance["median"] is not None:
        rank = distance["rank_correlation"]
        shown = "" if rank is None else f"; rank correlation with the margin {rank:.3f}"
        counts = ", ".join(f"{name} {count}" for name, count in distance["found_by"].items())
        lines.append(
            f"distance ({norm}) to the nearest adversarial image: median {distance['median']:.4g}{shown}; "
            f"method {distance['method']}" + (f", found by {counts}" if counts else "")
        )
    if certified is not None:
        median = "none" if certified["median"] is None else f"{certified['median']:.4g}"
        at = ", ".join(f"{share:.2f}% at {eps}" for eps, share in certified["accuracy"].items())
        lines.append(
            f"certified radius ({norm}) of the first {certified['count']:,} images: median {median} if classified "
            f"right; certified accuracy {at}"
        )
    return lines


def describe_weights(record: Mapping[str, Any]) -> str:
    """Which weights were judged, and how they were chosen."""
    epoch = f" (epoch {record['epoch']})" if record["epoch"] is not None else ""
    return f"{record['weights']}, {record['selection']}{epoch}"

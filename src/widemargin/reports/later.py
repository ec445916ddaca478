"""What a later judgment of a job found, in one line: distances, accuracy over eps, or AutoAttack at another eps."""

from collections.abc import Mapping
from typing import Any


def later_line(report: Mapping[str, Any]) -> str:
    """The numbers of a finished evaluation that no column of a table has room for."""
    images = f"{report['data']['count']:,} images"
    if report["distance"] is not None:
        return f"{_distances(report)}; {images}"
    eps, *more = report["eps"]
    if more:
        return f"{_curves(report['curves'])}; {images}"
    shown = ", ".join(f"{name} {report['accuracy'][name]:.2f}" for name in report["attacks"])
    return f"{shown} at eps {eps['written']}; {images}"


def _distances(report: Mapping[str, Any]) -> str:
    found, norm = report["distance"], report["norm"]
    if found["median"] is None:
        return f"no adversarial image was found ({norm})"
    rank = found["rank_correlation"]
    shown = "" if rank is None else f", rank correlation with the margin {rank:.3f}"
    return f"median distance {found['median']:.3f} ({norm}){shown}"


def _curves(curves: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{attack} " + ", ".join(f"{point['accuracy']:.2f} at {point['written']}" for point in points)
        for attack, points in curves.items()
    )

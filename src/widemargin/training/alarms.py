"""Signs in the metrics that training goes wrong: catastrophic and robust overfitting, a penalty that stands still.

They are found from the lines of ``metrics.jsonl`` alone. An alarm stands by its name in the line of the epoch that
raised it, so a resumed run neither repeats nor loses one. Training warns with the numbers and a suggestion; a report,
which reads names only, shows ``meaning_of`` them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from widemargin.attacks.pgd import FGSM
from widemargin.config.run import RunConfig
from widemargin.types import Alarm

CATASTROPHIC_OVERFITTING = "catastrophic-overfitting"
ROBUST_OVERFITTING = "robust-overfitting"
_STILL = "-still"
"""What follows a penalty's name in the name of its alarm."""
Lines = Sequence[Mapping[str, Any]]
"""Of ``metrics.jsonl``, one for each epoch."""

COLLAPSED = 0.5
"""The share of its best robust accuracy under which a model has collapsed."""
POINTS = 10.0
"""A collapse is at least so many points deep."""
LASTING = 5
"""Watched epochs that a fall must last, and epochs over which a penalty must stand still."""
FALLEN = 2.0
"""A fall is at least so many points, and two standard errors of a validation split of its size."""
STILL = 1e-3
"""The relative change under which a penalty stands still."""
MOVES = 1e-2
"""The relative change from which a loss does not: in a run that has ended its learning nothing moves."""


_MEANINGS = {
    CATASTROPHIC_OVERFITTING: (
        "accuracy under attack collapsed while accuracy in training rose",
        "the model has learned to fool the attack it trains with: use more steps (objective.attack), more "
        "noise (N-FGSM: twice eps, and no clip), grad_align, or a lower learning rate",
    ),
    ROBUST_OVERFITTING: (
        "accuracy under attack on held-out images fell below its best and stayed there while accuracy in training rose",
        "the best epoch is in best.safetensors; set stopping.patience or averaging.decay, or lower the learning rate "
        "earlier",
    ),
}


def meaning_of(name: str) -> Alarm:
    """What an alarm says without the numbers of a run, and what to do; nothing for one this version does not know."""
    penalty = name.removesuffix(_STILL)
    still = (
        f"the {penalty} penalty was zero, or did not change though the loss did",
        f"it teaches the model nothing: change {penalty}.weight, or look at the penalty's {penalty}.kind and the model",
    )
    return Alarm(name, *_MEANINGS.get(name, ("", "") if name == penalty else still))


def new_alarms(lines: Lines, config: RunConfig) -> list[Alarm]:
    """The alarms that the last line raises and no line before it did."""
    raised = {name for line in lines[:-1] for name in line.get("alarms", [])}
    collapsed = _catastrophic_overfitting(lines, config)
    found = [collapsed]
    if collapsed is None and CATASTROPHIC_OVERFITTING not in raised:  # which is worse, and needs another remedy
        found.append(_robust_overfitting(lines, config))
    found += [_still(lines, penalty.name) for penalty in config.penalties() if penalty.weight > 0]
    return [alarm for alarm in found if alarm is not None and alarm.name not in raised]


def _catastrophic_overfitting(lines: Lines, config: RunConfig) -> Alarm | None:
    """Accuracy on the attack of training rises while that on a stronger attack collapses."""
    if not config.objective.attacks or config.watch.attack is None or isinstance(config.watch.attack, FGSM):
        return None
    key = "validation_robust" if config.data.held_out else "test_robust"
    watched, now = [line for line in lines if key in line], lines[-1]
    if key not in now:
        return None
    best = max(watched, key=lambda line: float(line[key]))
    deep = now[key] < COLLAPSED * best[key] and now[key] <= best[key] - POINTS
    if not deep or now["train_accuracy"] <= best["train_accuracy"]:
        return None
    return _alarm(
        CATASTROPHIC_OVERFITTING,
        f"accuracy under attack fell to {now[key]:.1f}% from {best[key]:.1f}% at epoch {best['epoch']}, while accuracy "
        f"in training rose to {now['train_accuracy']:.1f}%",
    )


def _robust_overfitting(lines: Lines, config: RunConfig) -> Alarm | None:
    """Robust accuracy on the validation split stays below its best."""
    if not (config.objective.attacks or config.penalties()):
        return None
    key = "validation_robust"
    watched = [line for line in lines if key in line]
    if key not in lines[-1] or len(watched) <= LASTING:
        return None
    best, recent = max(watched, key=lambda line: float(line[key])), [line[key] for line in watched[-LASTING:]]
    share = best[key] / 100
    error = 100 * math.sqrt(share * (1 - share) / config.data.held_out)
    if max(recent) > best[key] - max(FALLEN, 2 * error) or lines[-1]["train_accuracy"] <= best["train_accuracy"]:
        return None
    return _alarm(
        ROBUST_OVERFITTING,
        f"validation accuracy under attack has been below {best[key]:.1f}%, its value at epoch {best['epoch']}, for "
        f"{LASTING} watched epochs and is {recent[-1]:.1f}%",
    )


def _still(lines: Lines, name: str) -> Alarm | None:
    """A penalty that is zero, or does not change though the loss does."""
    recent = lines[-LASTING:]
    values = [line[name] for line in recent if name in line]
    if len(values) < LASTING:
        return None
    zero = not any(values)
    if not zero and (_change(values) >= STILL or _change([line["loss"] for line in recent]) < MOVES):
        return None
    how = "has been zero" if zero else f"has stayed at {values[-1]:.3g}, within {STILL:.1%},"
    return _alarm(f"{name}{_STILL}", f"the {name} penalty {how} for {LASTING} epochs")


def _alarm(name: str, message: str) -> Alarm:
    return replace(meaning_of(name), message=message)


def _change(values: Sequence[float]) -> float:
    largest = max(abs(value) for value in values)
    return (max(values) - min(values)) / largest if largest > 0 else 0.0

"""A recipe made small: every line of its code still runs, on two cores, in seconds. Its numbers mean nothing.

Two epochs (schedules and burn-in shrunk with them), a handful of embedded images, two attack steps, narrow networks.
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any

from widemargin.attacks import PGD
from widemargin.config import DataConfig, RunConfig
from widemargin.models import LBGATTeacherConfig, PreActResNet18Config, ResNet18Config, WideResNetConfig
from widemargin.objectives import Mail
from widemargin.schedules import Piecewise, Steps

EPOCHS, BATCH, TRAIN, TEST, HELD_OUT, MARGINS, ATTACK_STEPS = 2, 32, 64, 40, 20, 16, 2
EMBEDDED = {"mnist": "mnist-embedded", "cifar10": "cifar10-embedded"}
SUMMARY = (
    f"{EPOCHS} epochs, {TRAIN} embedded training and {TEST} test images, batches of {BATCH}, {ATTACK_STEPS} attack "
    "steps, WRN-10-1 and ResNet-18 of width 8"
)


def quick(config: RunConfig) -> RunConfig:
    """The same run, made small."""
    small: RunConfig = _small(config, EPOCHS / config.epochs)
    return replace(
        small,
        epochs=EPOCHS,
        batch_size=min(config.batch_size, BATCH),
        data=replace(
            config.data,
            name=EMBEDDED.get(config.data.name, config.data.name),
            held_out=min(config.data.held_out, HELD_OUT),
            train_limit=TRAIN,
            test_limit=TEST,
        ),
        watch=replace(small.watch, margin_samples=MARGINS),
    )


def _small(value: Any, ratio: float) -> Any:
    """The value with everything inside it made small."""
    if isinstance(value, WideResNetConfig):
        return replace(value, depth=10, widen=1)
    if isinstance(value, ResNet18Config | PreActResNet18Config | LBGATTeacherConfig):
        return replace(value, width=8)
    if isinstance(value, PGD):
        return replace(value, steps=min(value.steps, ATTACK_STEPS))
    if isinstance(value, Steps):
        return replace(value, milestones=tuple(epoch * ratio for epoch in value.milestones))
    if isinstance(value, Piecewise):
        return replace(value, points=tuple((epoch * ratio, factor) for epoch, factor in value.points))
    if not is_dataclass(value) or isinstance(value, type | DataConfig):
        return value
    parts = {field.name: _small(getattr(value, field.name), ratio) for field in fields(value) if field.init}
    if isinstance(value, Mail):
        parts["burn_in"] = min(value.burn_in, 1)
    return replace(value, **parts)

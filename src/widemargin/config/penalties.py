"""The penalties of a run as tables: [emr] and [igr]."""

from dataclasses import dataclass
from typing import Literal

from widemargin.checks import choice
from widemargin.errors import InputError
from widemargin.regularizers import ApproximateEMR, ExactEMR, InputGradient, Penalty, StochasticEMR
from widemargin.schedules import Constant, Schedule
from widemargin.types import Point, Scaling

FORM_OF = {"temperature": "approximate", "projections": "stochastic"}
"""The settings that one form of EMR alone has."""


@dataclass(frozen=True, kw_only=True)
class EMRConfig:
    """Effective margin regularization: which form, how strong, where and when."""

    kind: Literal["exact", "approximate", "stochastic"]
    weight: float
    temperature: float | None = None
    projections: int | None = None
    at: Point = "clean"
    scaling: Scaling = "mean"
    every: int = 1
    schedule: Schedule = Constant()

    def __post_init__(self) -> None:
        choice("emr", "kind", self.kind, ("exact", "approximate", "stochastic"))
        for name, form in FORM_OF.items():
            if getattr(self, name) is not None and self.kind != form:
                raise InputError(f'emr.{name} has no effect on {self.kind} EMR; remove it, or use kind = "{form}"')
        self.penalty()

    def penalty(self) -> Penalty:
        """The penalty this describes."""
        return Penalty(
            name="emr",
            regularizer=self._regularizer(),
            weight=self.weight,
            at=self.at,
            scaling=self.scaling,
            every=self.every,
            schedule=self.schedule,
        )

    def _regularizer(self) -> ExactEMR | ApproximateEMR | StochasticEMR:
        if self.kind == "exact":
            return ExactEMR()
        if self.kind == "approximate":
            return ApproximateEMR(temperature=1.0 if self.temperature is None else self.temperature)
        return StochasticEMR(projections=1 if self.projections is None else self.projections)


@dataclass(frozen=True, kw_only=True)
class IGRConfig:
    """Input-gradient regularization: how strong, where and when."""

    weight: float
    at: Point = "clean"
    scaling: Scaling = "mean"
    every: int = 1
    schedule: Schedule = Constant()

    def __post_init__(self) -> None:
        self.penalty()

    def penalty(self) -> Penalty:
        """The penalty this describes."""
        return Penalty(
            name="igr",
            regularizer=InputGradient(),
            weight=self.weight,
            at=self.at,
            scaling=self.scaling,
            every=self.every,
            schedule=self.schedule,
        )

"""A setting that has no effect in a run is an error that says so; without that setting the run is fine.

Those of an objective with a penalty or a head are refused in the grid.
"""

from collections.abc import Callable
from typing import Any

import pytest

from widemargin import FGSM, PGD, InputError
from widemargin.config import DataConfig, EMRConfig, OptimizerConfig, RunConfig, StoppingConfig, WatchConfig
from widemargin.models import LBGATTeacherConfig, MLPConfig
from widemargin.objectives import Lbgat, Mail, Trades

UNIFORM = PGD(eps=0.1, step_size=0.05, steps=2, random_start="uniform")
AT_X = PGD(eps=0.1, step_size=0.05, steps=2)
TEACHER = LBGATTeacherConfig(width=2)


def run_of(**changes: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "name": "refused",
        "epochs": 3,
        "batch_size": 4,
        "data": DataConfig(name="mnist-embedded"),
        "model": MLPConfig(hidden=(4,)),
        "optimizer": OptimizerConfig(lr=0.1),
    }
    return RunConfig(**(settings | changes))


def emr(**settings: Any) -> EMRConfig:
    return EMRConfig(weight=0.1, **settings)


def mail(**settings: Any) -> Mail:
    return Mail(attack=settings.pop("attack", UNIFORM), slope=5.0, bias=0.0, **settings)


Make = Callable[[], object]
CASES: dict[str, tuple[Make, str, Make]] = {
    # what is refused, what the message says, its neighbor that is not refused
    "temperature on exact": (
        lambda: emr(kind="exact", temperature=1.0),
        r'emr.temperature has no effect on exact EMR; remove it, or use kind = "approximate"',
        lambda: emr(kind="approximate", temperature=1.0),
    ),
    "temperature on stochastic": (
        lambda: emr(kind="stochastic", temperature=1.0),
        r'emr.temperature has no effect on stochastic EMR; remove it, or use kind = "approximate"',
        lambda: emr(kind="stochastic"),
    ),
    "projections on exact": (
        lambda: emr(kind="exact", projections=2),
        r'emr.projections has no effect on exact EMR; remove it, or use kind = "stochastic"',
        lambda: emr(kind="stochastic", projections=2),
    ),
    "projections on approximate": (
        lambda: emr(kind="approximate", projections=2),
        r'emr.projections has no effect on approximate EMR; remove it, or use kind = "stochastic"',
        lambda: emr(kind="approximate"),
    ),
    "a teacher without lbgat": (
        lambda: run_of(objective=Trades(attack=UNIFORM), teacher=TEACHER),
        r'teacher has no effect with this objective; remove it, or use objective.kind = "lbgat"',
        lambda: run_of(objective=Lbgat(attack=UNIFORM), teacher=TEACHER),
    ),
    "lbgat without a teacher": (
        lambda: run_of(objective=Lbgat(attack=UNIFORM)),
        r'objective "lbgat" needs a \[teacher\] table; the published one is kind = "lbgat-teacher"',
        lambda: run_of(objective=Lbgat(attack=UNIFORM), teacher=TEACHER),
    ),
    "mail's weight over at": (
        lambda: mail(over="at", weight=5.0),
        r'Mail.weight has no effect over AT, which has one term; remove it, or use over = "trades"',
        lambda: mail(over="trades", weight=5.0),
    ),
    "mail's inner problem over at": (
        lambda: mail(over="at", inner="kl"),
        r"Mail.inner has no effect over at, whose inner problem is the cross-entropy",
        lambda: mail(over="trades", inner="kl"),
    ),
    "mail's inner problem over mart": (
        lambda: mail(over="mart", inner="ce"),
        r"Mail.inner has no effect over mart, whose inner problem is the cross-entropy",
        lambda: mail(over="mart"),
    ),
    "mail's burn-in attack without a burn-in": (
        lambda: mail(over="at", burn_in_attack=AT_X),
        r"Mail.burn_in_attack has no effect without a burn-in; set burn_in, or remove it",
        lambda: mail(over="at", burn_in_attack=AT_X, burn_in=1),
    ),
    "mail's burn-in method without a burn-in": (
        lambda: mail(over="trades", burn_in_with="same"),
        r"Mail.burn_in_with has no effect without a burn-in; set burn_in, or remove it",
        lambda: mail(over="trades", burn_in_with="same", burn_in=1),
    ),
    "mail's weights that never begin": (
        lambda: run_of(objective=mail(over="at", burn_in=3)),
        r"objective.burn_in must be less than epochs = 3, got 3: MAIL's weights would have no effect; lower objective",
        lambda: run_of(objective=mail(over="at", burn_in=2)),
    ),
    "stopping without a validation split": (
        lambda: run_of(stopping=StoppingConfig(patience=2)),
        r"stopping has no effect without a validation split; set data.held_out, or remove it",
        lambda: run_of(stopping=StoppingConfig(patience=2), data=DataConfig(name="mnist-embedded", held_out=10)),
    ),
    "an attack on nothing that is watched": (
        lambda: run_of(watch=WatchConfig(attack=FGSM(eps=0.1), test=False)).check_watched(),
        r"watch.attack has no effect: .*; set data.held_out or watch.test = true, or remove it \(--set watch.attack=",
        lambda: run_of(
            watch=WatchConfig(attack=FGSM(eps=0.1), test=False), data=DataConfig(name="mnist-embedded", held_out=10)
        ),
    ),
    "a kl attack from the image, trades": (
        lambda: Trades(attack=AT_X),
        r'Trades.attack must be PGD with a random start when inner = "kl".*set random_start = "gaussian"',
        lambda: Trades(attack=AT_X, inner="ce"),
    ),
    "a kl attack of one step, trades": (
        lambda: Trades(attack=FGSM(eps=0.1)),
        r'Trades.attack must be PGD with a random start when inner = "kl"',
        lambda: Trades(attack=FGSM(eps=0.1), inner="ce"),
    ),
    "a kl attack from the image, lbgat": (
        lambda: Lbgat(attack=AT_X),
        r'Lbgat.attack must be PGD with a random start when inner = "kl"',
        lambda: Lbgat(attack=AT_X, inner="ce"),
    ),
    "a kl attack from the image, mail over trades": (
        lambda: mail(over="trades", attack=AT_X),
        r'Mail.attack must be PGD with a random start when inner = "kl"',
        lambda: mail(over="mart", attack=AT_X),
    ),
    "a kl burn-in from the image": (
        lambda: mail(over="trades", burn_in=1, burn_in_with="same", burn_in_attack=AT_X),
        r'Mail.burn_in_attack must be PGD with a random start when inner = "kl"',
        lambda: mail(over="trades", burn_in=1, burn_in_with="at", burn_in_attack=AT_X),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refused_in_one_line_and_its_neighbor_is_not(name: str) -> None:
    refused, message, neighbor = CASES[name]
    with pytest.raises(InputError, match=message) as caught:
        refused()
    assert "\n" not in str(caught.value)
    neighbor()

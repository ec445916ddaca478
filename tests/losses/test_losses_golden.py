"""The losses against numbers of the public implementations (``tests/golden``): values and gradients."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from oracles import golden, under
from widemargin import losses

F64, F32 = torch.float64, torch.float32
Case = tuple[Tensor, dict[str, Tensor]]
"""(mean loss, the golden name of each gradient -> the leaf it belongs to)."""


def leaf(key: str, dtype: torch.dtype) -> Tensor:
    return golden("losses")[key].to(dtype, copy=True).requires_grad_(True)


def settings(case: str) -> dict[str, float]:
    return {name: float(value) for name, value in under("losses", f"{case}/").items() if value.dim() == 0}


def pair(group: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    return leaf(f"{group}/clean", dtype), leaf(f"{group}/adv", dtype), golden("losses")[f"{group}/y"]


# Each case calls the loss by position, as users write it; s are the settings stored with it.

Make = Callable[[Tensor, Tensor, Tensor, dict[str, float]], Tensor]


def of_pair(group: str, loss: Make) -> Callable[[str, torch.dtype], Case]:
    def case(name: str, dtype: torch.dtype) -> Case:
        clean, adv, y = pair(group, dtype)
        return loss(clean, adv, y, settings(name)), {"dclean": clean, "dadv": adv}

    return case


def lbgat_case(case: str, dtype: torch.dtype) -> Case:
    clean, adv, y = pair("g", dtype)
    teacher = leaf("g/teacher", dtype)
    loss = losses.lbgat(clean, adv, teacher, y, settings(case)["beta"])
    return loss, {"dclean": clean, "dadv": adv, "dteacher": teacher}


def hypersphere_case(case: str, dtype: torch.dtype) -> Case:
    cosines, s = leaf("he/cos_adv", dtype), settings(case)
    return losses.hypersphere(cosines, golden("losses")["he/y"], s["s"], s["m"]), {"dcos": cosines}


def trades_hypersphere_case(case: str, dtype: torch.dtype) -> Case:
    clean, adv, y, s = leaf("he/cos_clean", dtype), leaf("he/cos_adv", dtype), golden("losses")["he/y"], settings(case)
    label = losses.hypersphere_logits(clean, y, s["s"], s["m"])
    loss = losses.trades(s["s"] * clean, s["s"] * adv, y, s["beta"], label_logits=label)
    return loss, {"dclean": clean, "dadv": adv}


def mart(z: Tensor, a: Tensor, y: Tensor, s: dict[str, float]) -> Tensor:
    return losses.mart(z, a, y, s["beta"])


TRADES = of_pair("g", lambda z, a, y, s: losses.trades(z, a, y, s["beta"]))
MART, SATURATED = of_pair("g", mart), of_pair("x", mart)
MAIL_AT = of_pair("m", lambda z, a, y, s: losses.mail_at(a, y, s["slope"], s["bias"]))
MAIL_TRADES = of_pair("m", lambda z, a, y, s: losses.mail_trades(z, a, y, s["beta"], s["slope"], s["bias"]))
MAIL_MART = of_pair("m", lambda z, a, y, s: losses.mail_mart(z, a, y, s["beta"], s["slope"], s["bias"]))
CASES: dict[str, Callable[[str, torch.dtype], Case]] = (
    dict.fromkeys(["trades0", "trades1"], TRADES)
    | dict.fromkeys(["mart0", "mart1"], MART)
    | {"mart_sat": SATURATED, "mail_mart0": MAIL_MART, "trades_he0": trades_hypersphere_case}
    | dict.fromkeys(["mail_at0", "mail_at1"], MAIL_AT)
    | dict.fromkeys(["mail_trades0", "mail_trades1"], MAIL_TRADES)
    | dict.fromkeys(["lbgat0", "lbgat1"], lbgat_case)
    | dict.fromkeys(["he0", "he1", "he2"], hypersphere_case)
)


def test_no_stored_case_is_forgotten() -> None:
    assert {key.removesuffix("/loss") for key in golden("losses") if key.endswith("/loss")} == set(CASES)


@pytest.mark.parametrize("dtype", [F64, F32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_value_and_gradients(case: str, dtype: torch.dtype) -> None:
    per_sample, leaves = CASES[case](case, dtype)
    expected = under("losses", f"{case}/")
    loss_rtol, gradient_atol = (1e-10, 1e-10) if dtype == F64 else (1e-5, 2e-5)
    assert per_sample.shape == (len(next(iter(leaves.values()))),)
    assert per_sample.dtype == dtype
    loss = per_sample.mean()
    torch.testing.assert_close(loss.detach().double(), expected["loss"], rtol=loss_rtol, atol=0)
    assert leaves.keys() == {name for name in expected if name.startswith("d")}
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    for (name, of), gradient in zip(leaves.items(), gradients, strict=True):
        actual = torch.zeros_like(of) if gradient is None else gradient
        torch.testing.assert_close(actual.double(), expected[name], rtol=0, atol=gradient_atol)


@pytest.mark.parametrize("case", ["mail_at0", "mail_at1", "mail_trades0", "mail_trades1", "mail_mart0"])
@pytest.mark.parametrize("dtype", [F64, F32], ids=["float64", "float32"])
def test_the_weights_of_mail(case: str, dtype: torch.dtype) -> None:
    _, adv, y = pair("m", dtype)
    weights = losses.mail_weights(adv, y, settings(case)["slope"], settings(case)["bias"])
    assert not weights.requires_grad
    tolerance = 1e-10 if dtype == F64 else 2e-5
    torch.testing.assert_close(weights.double(), golden("losses")[f"{case}/weights"], rtol=0, atol=tolerance)


@pytest.mark.parametrize("case", ["trades0", "trades1", "mart0", "mart1"])
def test_the_two_terms(case: str) -> None:
    clean, adv, y = pair("g", F64)
    first, second = ("ce", "kl") if case.startswith("trades") else ("bce", "wkl")
    loss = losses.trades if case.startswith("trades") else losses.mart
    without, with_one = loss(clean, adv, y, 0.0).mean(), loss(clean, adv, y, 1.0).mean()
    torch.testing.assert_close(without.detach(), golden("losses")[f"{case}/{first}"], rtol=1e-10, atol=0)
    torch.testing.assert_close((with_one - without).detach(), golden("losses")[f"{case}/{second}"], rtol=1e-10, atol=0)


# L-Softmax


@pytest.mark.parametrize("dtype", [F64, F32], ids=["float64", "float32"])
@pytest.mark.parametrize("j", range(4))
@pytest.mark.parametrize("margin", [1, 2, 3, 4])
def test_large_margin_logits(margin: int, j: int, dtype: torch.dtype) -> None:
    stored, expected = golden("lsoftmax"), under("lsoftmax", f"m{margin}_l{j}/")
    features, weight = (stored[key].to(dtype, copy=True).requires_grad_(True) for key in ("features", "weight"))
    logits = losses.large_margin_logits(features, weight, stored["y"], margin, float(stored["lam"][j]))
    loss = F.cross_entropy(logits, stored["y"])
    gradients = torch.autograd.grad(loss, (features, weight))
    actual = dict(zip(("logits", "loss", "dfeatures", "dweight"), (logits, loss, *gradients), strict=True))
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        assert value.dtype == dtype
        torch.testing.assert_close(value.detach().double(), expected[name], rtol=0, atol=1e-7 if dtype == F64 else 1e-4)


def test_every_angle_bin_is_among_the_stored_cases() -> None:
    assert [sorted(set(golden("lsoftmax")[f"m{m}/k"].tolist())) for m in (1, 2, 3, 4)] == [
        [float(k) for k in range(m)] for m in (1, 2, 3, 4)
    ]


@pytest.mark.parametrize("margin", [1, 2, 3, 4])
def test_only_the_labels_logit_changes(margin: int) -> None:
    stored = golden("lsoftmax")
    logits = losses.large_margin_logits(stored["features"], stored["weight"], stored["y"], margin, 0.5)
    others = ~F.one_hot(stored["y"], 7).bool()
    assert torch.equal(logits[others], (stored["features"] @ stored["weight"].T)[others])
    torch.testing.assert_close(logits[others], stored["plain_logits"][others], rtol=0, atol=1e-12)

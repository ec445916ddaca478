"""Attacks of the user's own beside those with names: any object or function ``(model, x, y) -> x_adv``.

- Where it is called: at its own ``eps`` where it has one (``PGD(eps=0.1, ...)``); at each eps of the evaluation where
  it takes a keyword ``eps``, or is a class that does; else it is for the one eps of the evaluation. It is given
  ``norm`` and a ``generator`` too where it takes them.
- What it gives is checked: the shape, finite numbers, the ball, the pixel range. One image outside stops everything.
- How it is called: a dataclass by its repr, a function by its name, or as you say, with a pair or a table of names.
- Whether it is the one of before, when an evaluation goes on: by its repr, its source and the weights of its networks.
"""

import dataclasses
import hashlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.attacks import ATTACKS
from widemargin.attacks.names import AUTOATTACK, AUTOATTACK_PARTS, attack_named
from widemargin.attacks.threat import make_threat
from widemargin.errors import InputError
from widemargin.types import Norm

ROUNDING = 1e-6
"""By which float32 may carry an image out of the ball or the pixel range; and as a share of eps, ten times as much."""
LONGEST = 200
GIVEN = ("eps", "norm", "generator")
"""Keywords that an attack may take."""


@dataclass(frozen=True)
class OwnAttack:
    """An attack with its name."""

    name: str
    attack: Callable[..., Any]

    def __post_init__(self) -> None:
        if not callable(self.attack):
            raise InputError(f"evaluate.attacks: {self.name} must be called as (model, x, y), got {self.attack!r}")
        if (
            not 0 < len(self.name) <= LONGEST
            or not self.name.isprintable()
            or "@" in self.name
            or self.name.strip() != self.name
        ):
            raise InputError(
                f"evaluate.attacks: the name of an attack is 1 to {LONGEST} printable characters without @, got "
                f"{self.name[:LONGEST]!r}; give a pair (name, attack)"
            )
        if is_known(self.name) or self.name.startswith(f"{AUTOATTACK}/"):
            raise InputError(
                f"evaluate.attacks: {self.name!r} is the name of another attack; give a pair (name, attack)"
            )

    @property
    def eps(self) -> float | None:
        """Its own, where it has one."""
        eps = None if isinstance(self.attack, type) else getattr(self.attack, "eps", None)
        return eps if isinstance(eps, int | float) and not isinstance(eps, bool) and math.isfinite(eps) else None

    @property
    def takes(self) -> frozenset[str]:
        """The keywords of ``GIVEN`` that it, or the class it is, takes."""
        try:
            parameters = inspect.signature(self.attack).parameters.values()
        except (TypeError, ValueError):
            return frozenset()
        return frozenset(
            p.name for p in parameters if p.name in GIVEN and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
        )

    @cached_property
    def code(self) -> str:
        """A digest of what it does, as far as its repr, its source and the weights of its networks tell."""
        digest = hashlib.sha256(_described(self.attack).encode())
        for network in _networks(self.attack):
            digest.update(weights_digest(network).encode())
        return digest.hexdigest()

    def check(self, radii: tuple[float, ...], norm: Norm) -> None:
        """Refuse what does not say at which eps, or is of another norm."""
        own = getattr(self.attack, "norm", norm)
        if self.eps is not None and own in ("linf", "l2") and own != norm:
            raise InputError(
                f"evaluate.attacks: {self.name} is of norm {own!r}, the evaluation of {norm!r}; give norm={own!r}"
            )
        if self.eps is None and "eps" not in self.takes and len(radii) > 1:
            raise InputError(
                f"evaluate.attacks: {self.name} has no eps, so it does not say to which of {len(radii)} it belongs; "
                "let it take a keyword eps, or evaluate it at one"
            )

    def run(
        self, model: nn.Module, x: Tensor, y: Tensor, *, eps: float, norm: Norm, generator: torch.Generator
    ) -> Tensor:
        """What it makes of the images, checked, as float32."""
        given = {"eps": eps, "norm": norm, "generator": generator}
        attack, takes = self.attack, self.takes
        if isinstance(attack, type):
            attack = attack(**{key: given[key] for key in takes})
            takes = OwnAttack("made", attack).takes - {"eps", "norm"}
        found = attack(model, x.clone(), y.clone(), **{key: given[key] for key in takes})
        return self._checked(found, x, eps, norm)

    def _checked(self, found: Any, x: Tensor, eps: float, norm: Norm) -> Tensor:
        if not isinstance(found, Tensor) or found.shape != x.shape or not found.is_floating_point():
            got = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise InputError(f"{self.name} must return images of shape {tuple(x.shape)}, floating point, got {got}")
        images = found.detach().to(device=x.device, dtype=x.dtype)
        if not images.isfinite().all():
            raise InputError(
                f"{self.name} returned images with a NaN or an infinity; an attack returns images in [0, 1]"
            )
        outside = float(torch.maximum(-images, images - 1).max())
        if outside > ROUNDING:
            raise InputError(
                f"{self.name} returned pixels outside [0, 1], by up to {outside:.3g}; clip what it returns"
            )
        largest = float(make_threat(norm, eps).size(images - x).max())
        if largest > eps * (1 + 10 * ROUNDING) + ROUNDING:
            raise InputError(
                f"{self.name} went outside its ball: {norm} {largest:.6g} from the image, {largest - eps:.3g} more "
                f"than eps {float(eps):.6g}; project what it returns"
            )
        return images


def is_known(name: str) -> bool:
    """Whether it is the name of an attack of the package."""
    if name in ("clean", AUTOATTACK, *AUTOATTACK_PARTS):
        return True
    try:
        attack_named(name, eps=0.1)
    except InputError:
        return False
    return True


def named_attacks(attacks: Any) -> tuple[tuple[str, ...], tuple[OwnAttack, ...]]:
    """The names in their order, and the user's own among them: of a name, an attack, a table of names, or several."""
    several = isinstance(attacks, Iterable) and not isinstance(attacks, str | Mapping) and not callable(attacks)
    names: list[str] = []
    own: dict[str, OwnAttack] = {}
    for given in list(attacks) if several else [attacks]:
        for name, attack in _named(given):
            names.append(name)
            if attack is None and not is_known(name) and name in ATTACKS:
                attack = ATTACKS[name]
            if attack is not None:
                own[name] = OwnAttack(name, attack)
    return tuple(names), tuple(own.values())


def _named(given: Any) -> list[tuple[str, Any]]:
    if isinstance(given, str):
        return [(given, None)]
    if isinstance(given, Mapping):
        return [_pair(name, attack) for name, attack in given.items()]
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        return [_pair(*given)]
    if not callable(given):
        raise InputError(
            f"evaluate.attacks must be names such as 'pgd20', attacks, or pairs (name, attack), got {given!r}; eps, "
            "norm and step_size are given beside them"
        )
    return [(name_of_own(given), given)]


def _pair(name: Any, attack: Any) -> tuple[str, Any]:
    if not isinstance(name, str):
        raise InputError(f"evaluate.attacks: a name is text, got {name!r}")
    return name, attack


def name_of_own(attack: Any) -> str:
    """As a report calls it where nobody says how."""
    if dataclasses.is_dataclass(attack) and not isinstance(attack, type):
        return repr(attack)
    name = getattr(attack, "__name__", "" if hasattr(attack, "func") else type(attack).__name__)
    if not name or not name.isidentifier():
        raise InputError(f"evaluate.attacks: {attack!r} has no name; give a pair, such as ('mine', attack)")
    return str(name)


def _described(attack: Any) -> str:
    told = repr(attack) if dataclasses.is_dataclass(attack) and not isinstance(attack, type) else ""
    of = attack if inspect.isfunction(attack) or inspect.ismethod(attack) or isinstance(attack, type) else type(attack)
    try:
        return f"{told}\n{inspect.getsource(of)}" if not of.__module__.startswith("widemargin.") else told
    except (OSError, TypeError):  # written at a prompt, or in C
        return f"{told}\n{getattr(of, '__qualname__', '')}"


def _networks(attack: Any) -> list[nn.Module]:
    held = vars(attack).values() if hasattr(attack, "__dict__") and not isinstance(attack, type) else ()
    return [attack] * isinstance(attack, nn.Module) + [value for value in held if isinstance(value, nn.Module)]


def weights_digest(model: nn.Module) -> str:
    """What tells the weights of a model from all others."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        if not isinstance(tensor, torch.Tensor):  # a module's extra state, which may be anything
            digest.update(repr(tensor).encode())
            continue
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

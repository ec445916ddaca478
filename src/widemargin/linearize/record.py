"""Run a model's own forward once and write down what it did: a tape of layers that can be swept in both directions.

Whatever the tape cannot account for (a custom autograd function, a weight computed from parameters, an operator it does
not know, a tensor from nowhere) raises :class:`NotLinear`, and the caller falls back to double backward. Nothing is
guessed. Operators that work in place run out of place here; the tensor they would have changed is replaced wherever it
is used again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from widemargin.linearize.operators import Operator
from widemargin.linearize.rules import Call, Layer, NotLinear, mapped, layer_of, tensors_in

Function = Callable[..., Any]
MAY_ALIAS = frozenset(
    """view reshape flatten unflatten permute transpose swapaxes movedim unsqueeze squeeze contiguous to float double
    bfloat16 expand getitem view_as reshape_as type_as dropout""".split()
)


@dataclass(frozen=True)
class Entry:
    """One operator: values are numbered in the order they were made, the images are number 0."""

    inputs: tuple[int, ...]
    output: int
    layer: Layer


@dataclass(frozen=True)
class Tape:
    """The operators from the images to the logits, in order."""

    entries: list[Entry]
    output: int

    @property
    def curved(self) -> bool:
        """Whether some operator bends its tangent with the activations."""
        return any(entry.layer.curved for entry in self.entries)

    def forget_activations(self) -> "Tape":
        """Keep what the straight sweeps need and drop the rest."""
        return Tape([replace(entry, layer=entry.layer.forget()) for entry in self.entries], self.output)


def record(model: nn.Module, x: Tensor, trained: frozenset[str]) -> tuple[Tensor, Tape]:
    """(logits, tape) of the model's forward as it is now; no autograd graph is made.

    ``trained`` are the names of the parameters whose gradients will be asked for.
    """
    recorder = _Recorder(model, x, trained)
    with torch.compiler.set_stance("force_eager"), torch.enable_grad(), recorder:
        logits = recorder.now(model(recorder.images))
    if not isinstance(logits, Tensor) or id(logits) not in recorder.number:
        raise NotLinear("the logits do not come from the images by operators it knows")
    tape = _needed(Tape(recorder.entries, recorder.number[id(logits)]))
    if not any(_trains(entry.layer, curved=tape.curved) for entry in tape.entries):
        raise NotLinear("no parameter that is trained changes an input gradient")
    if any(isinstance(entry.layer, Operator) for entry in tape.entries):
        _check_transforms()
    return logits, tape


def _check_transforms() -> None:
    """Torch's function transforms refuse to run inside hooks on saved tensors (checkpointing, offloading)."""
    try:
        torch.func.vjp(torch.neg, torch.zeros(()))
    except RuntimeError as error:
        raise NotLinear(str(error)) from None


def _trains(layer: Layer, *, curved: bool) -> bool:
    names = [getattr(layer, "weight_name", None), *getattr(layer, "names", [])]
    return any(names) or (curved and getattr(layer, "bias_name", None) is not None)


def _needed(tape: Tape) -> Tape:
    """Without operators the logits do not depend on."""
    wanted, entries = {tape.output}, []
    for entry in reversed(tape.entries):
        if entry.output in wanted:
            wanted |= set(entry.inputs)
            entries.append(entry)
    return Tape(entries[::-1], tape.output)


class _Recorder(TorchFunctionMode):
    def __init__(self, model: nn.Module, x: Tensor, trained: frozenset[str]) -> None:
        super().__init__()
        self.images = x.detach()
        self.entries: list[Entry] = []
        self.number: dict[int, int] = {id(self.images): 0}
        self.parameters = {id(p): name for name, p in model.named_parameters() if name in trained}
        frozen = [p for name, p in model.named_parameters() if name not in trained]
        self.constants = {id(tensor) for tensor in [*model.buffers(), *frozen]}
        self.replaced: dict[int, Tensor] = {}
        self.aliased: set[int] = {id(self.images)}
        self.alive: list[Any] = [self.images]  # the id of a freed tensor could come back

    def now(self, value: Any) -> Any:
        """The same arguments with every tensor that was changed in place replaced."""
        return mapped(value, lambda tensor: self.replaced.get(id(tensor), tensor)) if self.replaced else value

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        given = args
        args, options = self.now((args, kwargs or {}))
        tensors = tensors_in((args, options))
        name = getattr(func, "__name__", str(func))
        tracked = [tensor for tensor in tensors if id(tensor) in self.number]
        if not tracked or not torch.is_grad_enabled() or name == "detach":
            return self._constant(func, args, options, tensors)
        name, in_place, function, options = _out_of_place(name, func, options)
        with torch.no_grad():
            result = function(*args, **options)
            outputs = tensors_in(result)
            if not outputs and name not in ("setitem", "set"):
                return result  # a shape, a type, a flag
            if outputs and not any(output.is_floating_point() for output in outputs):
                self._known(outputs)
                return result
            self._check(name, tensors, result, in_place)
            call = Call(name, function, args, options, self._depends, self._parameter, result)
            self._enter(call, tracked, layer_of(call))
        if in_place:
            self._replace(given[0], args[0], result)
        return result

    def _constant(self, func: Function, args: Any, options: Any, tensors: list[Tensor]) -> Any:
        """What has no derivative by the images: computed, and known if all it was made from is."""
        with torch.no_grad():
            result = func(*args, **options)
        if all(id(tensor) in self.constants or id(tensor) in self.number for tensor in tensors):
            self._known(tensors_in(result))
        return result

    def _known(self, outputs: list[Tensor]) -> None:
        new = [output for output in outputs if id(output) not in self.number]
        self.alive += new
        self.constants |= {id(output) for output in new}

    def _depends(self, tensor: Any) -> bool:
        return id(tensor) in self.number

    def _parameter(self, tensor: Any) -> str | None:
        return self.parameters.get(id(tensor))

    def _check(self, name: str, tensors: list[Tensor], result: Any, in_place: bool) -> None:
        for tensor in tensors:
            if not (id(tensor) in self.number or id(tensor) in self.constants or id(tensor) in self.parameters):
                raise NotLinear(f"{name} uses a tensor computed from parameters, or from outside the model")
        if not isinstance(result, Tensor):
            raise NotLinear(f"no rule for {name}")
        if in_place and (id(tensors[0]) in self.aliased or id(tensors[0]) not in self.number):
            raise NotLinear(f"{name} in place on a tensor that others may see")

    def _enter(self, call: Call, tracked: list[Tensor], layer: Layer) -> None:
        result = call.result
        inputs = tuple(self.number[id(tensor)] for tensor in tracked)
        self.number[id(result)] = len(self.entries) + 1
        self.entries.append(Entry(inputs, len(self.entries) + 1, layer))
        self.alive.append(result)
        if call.name in MAY_ALIAS or any(result is tensor for tensor in tracked):
            self.aliased |= {id(result), *(id(tensor) for tensor in tracked)}

    def _replace(self, given: Tensor, actual: Tensor, new: Tensor) -> None:
        self.alive.append(given)
        same = [key for key, tensor in self.replaced.items() if tensor is actual]
        for key in (id(given), id(actual), *same):
            self.replaced[key] = new


def _out_of_place(name: str, function: Function, options: dict[str, Any]) -> tuple[str, bool, Function, dict[str, Any]]:
    """(plain name, whether it would work in place, the operator that does not, its options)."""
    in_place = bool(options.get("inplace", False))
    options = {key: value for key, value in options.items() if key != "inplace"}
    if name.startswith("__i") and name.endswith("__"):
        name = name[3:-2]
        return name, True, getattr(Tensor, f"__{name}__"), options
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
        plain = getattr(Tensor, name, None) or getattr(torch, name, None) or getattr(torch.nn.functional, name, None)
        if plain is None:
            raise NotLinear(f"no rule for {name}_")
        return name, True, plain, options
    plain_name = name.strip("_") if name.startswith("__") else name
    return {"radd": "add", "rmul": "mul", "rsub": "rsub"}.get(plain_name, plain_name), in_place, function, options

"""A model's own forward, run once and recorded as a tape of layers that can be swept in both directions.

``EagerSweeps`` has the stages. For vectors c at the logits, g = J^T c is the adjoint that arrives at the images
(``adjoints``). For vectors v at the images, the gradient of <c, J v> by a weight W is d<a, W t>/dW with a the adjoint
after W and t the tangent before it: one ordinary weight-gradient kernel per layer, on numbers the two sweeps have at
hand (``tangents``). Where an operator is curved, or c depends on the logits, an ordinary reverse pass adds what reaches
the weights through the activations (``reverse``). The engine compiles them.

What a forward computes from parameters alone (a class token for every image, a weight from its parametrization) is one
more parameter to the sweeps; its gradient goes on to those it was made of in the end (``to_parameters``).

Whatever the tape cannot account for (a custom autograd function, an operator it does not know, a tensor from nowhere,
what ``no_grad`` hides) raises ``NotSweepable``, and the caller falls back to double
backward. Nothing is guessed. Operators that work in place run out of place here; the tensor they would have changed is
replaced wherever it is used again.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from widemargin.core.checks import logits_of
from widemargin.gradients.double_backward import eager_operators
from widemargin.gradients.sweeps.calls import (
    METADATA,
    NAMES,
    OF_PARAMETERS,
    OUT_OF_PLACE,
    SEVERAL,
    Call,
    Function,
    NotSweepable,
    NotWorthwhile,
    UnknownOperator,
)
from widemargin.gradients.sweeps.layers import Convolution, Gradients, Slopes
from widemargin.gradients.sweeps.operators import Operator, mapped, tensors_in
from widemargin.gradients.sweeps.rules import Layer, layer_of, operator, parts_of
from widemargin.gradients.sweeps.shapes import Part

_REQUIRES_GRAD = vars(torch._C.TensorBase)["requires_grad"].__get__


@dataclass(frozen=True)
class Entry:
    """One operator: values are numbered in the order they were made, the images are number 0."""

    inputs: tuple[int, ...]
    output: int
    layer: Layer


@dataclass(frozen=True)
class Computed:
    """What an operator made of parameters alone, and counts as one, under a name of its own."""

    name: str
    value: Tensor | None
    """With its graph; None where the recording itself is traced, which makes none."""
    layer: Operator | None
    """The operator, where there is no graph."""
    sources: dict[str, Tensor]
    """The model's own parameters among those it was made of."""


@dataclass(frozen=True)
class Tape:
    """The operators from the images to the logits, in order."""

    entries: list[Entry]
    output: int
    reads: frozenset[str]
    """The names of the parameters that they read, frozen ones too."""
    computed: tuple["Computed", ...] = ()

    @property
    def curved(self) -> bool:
        """Whether some operator bends its tangent with the activations."""
        return any(entry.layer.curved for entry in self.entries)

    def refuse_unless_worthwhile(self, vectors: int) -> None:
        """Sweeps save the reverse pass of a piecewise linear network, and what torch wastes in the second derivative
        of a convolution, most of all of one in groups. A smooth network costs six forwards either way, and there
        torch's own engine has less to do for an operator."""
        if not self.curved or vectors > 1:
            return
        layers = [entry.layer for entry in self.entries if isinstance(entry.layer, Convolution)]
        saved = sum(layer.output_shape.numel() / WASTED[layer.geometry[3] > 1] for layer in layers)
        if saved < WORTHWHILE * len(self.entries):
            raise NotWorthwhile(
                f"smooth, and its convolutions are too few or too small ({len(layers)} of {len(self.entries)} "
                "operators): as fast by double backward"
            )


WASTED = {False: 30_000, True: 640}
"""So many elements of a convolution's output cost double backward as much more as sweeps cost for an operator, without
groups and with (docs/models.md)."""
WORTHWHILE = 1.0
"""How much of their own cost sweeps must save."""


def record(model: nn.Module, x: Tensor, trained: frozenset[str]) -> tuple[Tensor, Tape]:
    """(logits, tape) of the model's forward as it is now; no autograd graph is made.

    ``trained`` are the names of the parameters whose gradients will be asked for.
    """
    _check_hooks(model)
    recorder = _Recorder(model, x, trained, layer_of)
    logits = recorder.run()
    output = recorder.finish(logits)
    tape = _tidied(Tape(recorder.entries, output, frozenset(recorder.read), tuple(recorder.computed)))
    _check_trains(tape)
    if tape.computed or any(isinstance(entry.layer, Operator) for entry in tape.entries):
        _check_transforms()
    return logits, tape


def record_calls(model: nn.Module, x: Tensor) -> tuple[Tensor, list[tuple[tuple[int, ...], int, Call]], int]:
    """(logits, the calls of operators from the images on, in order, the number of the logits), for other readers.

    A call comes with the numbers of its inputs that depend on the images, and of its result. What holds at these images
    alone is refused: a comparison of activations, a branch taken on their numbers.
    """
    recorder = _CallRecorder(model, x, frozenset(), lambda call: call)
    logits = recorder.run()
    calls: list[Any] = [(entry.inputs, entry.output, entry.layer) for entry in recorder.entries]
    return logits, calls, recorder.finish(logits)


def _check_hooks(model: nn.Module) -> None:
    """Hooks on a module's backward pass may change gradients; no such pass is run here."""
    everywhere = nn.modules.module._global_backward_hooks or nn.modules.module._global_backward_pre_hooks
    if everywhere or any(module._backward_hooks or module._backward_pre_hooks for module in model.modules()):
        raise NotSweepable("hooks on the backward pass")


def _check_transforms() -> None:
    """Torch's function transforms refuse to run inside hooks on saved tensors (checkpointing, offloading)."""
    try:
        torch.func.vjp(torch.neg, torch.zeros(()))
    except RuntimeError as error:
        raise NotSweepable(str(error)) from None


def _check_trains(tape: Tape) -> None:
    """A penalty that trains nothing is refused, in the words of double backward."""
    acting = ["weight_name", "factors"]
    # what is added acts by moving activations along a curve
    moving = ["bias_name", "mask_name", "names"] if tape.curved else []
    if not any(getattr(entry.layer, name, None) for entry in tape.entries for name in acting + moving):
        raise NotSweepable("no parameter that is trained changes an input gradient")


def _tidied(tape: Tape) -> Tape:
    """Without the operators that the logits do not depend on; a curved one may have an infinite slope, and a ReLU
    behind it must give 0, where a product would give NaN."""
    wanted, entries = {tape.output}, []
    for entry in reversed(tape.entries):
        if entry.output in wanted:
            wanted |= set(entry.inputs)
            entries.append(entry)
    tape = replace(tape, entries=entries[::-1])
    strict = [
        replace(entry, layer=replace(entry.layer, strict=True)) if isinstance(entry.layer, Slopes) else entry
        for entry in tape.entries
    ]
    return replace(tape, entries=strict) if tape.curved else tape


class _Recorder(TorchFunctionMode):
    """Sees every call of a torch operator. Tensors are known by their id, so all that are known are held alive.

    ``number``: those that depend on the images. ``parameters``: those that are trained, and what is computed from such
    alone. ``constants``: the rest that may be used. A tensor that is none of these came about in a way that was not
    seen, and may not be used; ``lost`` says how, where that was seen.
    """

    def __init__(self, model: nn.Module, x: Tensor, trained: frozenset[str], layer_of: Callable[[Call], Any]) -> None:
        super().__init__()
        self.model, self.layer_of = model, layer_of
        self.images = x.detach()
        self.entries: list[Entry] = []
        named = dict(model.named_parameters())
        self.number: dict[int, int] = {id(self.images): 0}
        self.parameters = {id(p): name for name, p in named.items() if name in trained}
        self.weights = {id(p): name for name, p in named.items()}
        fixed = [buffer for buffer in model.buffers() if not buffer.requires_grad]  # others may come from parameters
        self.constants = {id(tensor) for tensor in [*fixed, *named.values()]} - self.parameters.keys()
        self.read: set[str] = set()
        self.computed: list[Computed] = []
        self.lost: dict[int, str] = {}
        self.replaced: dict[int, Tensor] = {}
        self.aliased: set[int] = {id(self.images)}
        self.made: set[int] = set()
        self.alive: list[Any] = [self.images, *named.values(), *model.buffers()]
        self.versions = [(self.images, _version(self.images))]

    def run(self) -> Tensor:
        """The model's forward, seen."""
        try:
            with eager_operators(), torch.enable_grad(), self:
                logits: Tensor = self.current(logits_of(self.model(self.images)))
        except (RuntimeError, AssertionError) as error:  # such as a hook on an activation: here it has no graph
            raise NotSweepable(f"the forward pass: {error}") from None
        return logits

    def current(self, value: Any) -> Any:
        """The same arguments with every tensor that was changed in place replaced."""
        return mapped(value, lambda tensor: self.replaced.get(id(tensor), tensor)) if self.replaced else value

    def finish(self, logits: Any) -> int:
        """The number of the logits; nothing on the tape was changed behind its back."""
        if not isinstance(logits, Tensor) or id(logits) not in self.number:
            self._refuse_lost([logits])
            raise NotSweepable("the logits do not come from the images by operators it knows")
        if any(_version(tensor) != version for tensor, version in self.versions):
            raise NotSweepable("an activation or a parameter was changed in place")
        return self.number[id(logits)]

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if func in METADATA:
            return func(*args, **(kwargs or {}))
        given, options = tensors_in(args), kwargs or {}
        if self.replaced:
            args, options = self.current((args, options))
        tensors = tensors_in((args, options)) if self.replaced or options else given
        if not torch.is_grad_enabled():
            return self._off_the_tape(func, args, options, tensors)
        if not any(map(self._depends, tensors)):
            return self._of_parameters(func, args, options, tensors)
        if func == _REQUIRES_GRAD and not sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
            return True  # as in a pass with a graph: the model may go on to put a hook there
        if func in OUT_OF_PLACE or options.get("inplace", False):
            return self._in_place(func, args, options, given)
        if func in NAMES and options.get("out") is None:
            return self._on_the_tape(func, args, options, tensors)
        _refuse_effects(func, options)
        if func in SEVERAL:
            return self._several(func, args, options, tensors)
        return self._off_the_tape(func, args, options, tensors)

    def _of_parameters(self, func: Function, args: Any, options: Any, tensors: list[Tensor]) -> Any:
        """What is computed from parameters, and constants perhaps, is one more parameter.

        It has its graph, as in any pass: a model may keep it for later.
        """
        if any(id(tensor) in self.made for tensor in tensors):
            _refuse_effects(func, options)
        trained = [tensor for tensor in tensors if id(tensor) in self.parameters]
        works = func in OF_PARAMETERS and options.get("out") is None and not options.get("inplace", False)
        if not trained or not works or not all(map(self._is_known, tensors)):
            return self._off_the_tape(func, args, options, tensors)
        call = self._call(OF_PARAMETERS[func], func, args, options, tensors)
        versions = [_version(tensor) for tensor in tensors]
        result = call.result
        if versions != [_version(tensor) for tensor in tensors]:
            raise NotSweepable("a parameter or a constant that an operator changes")
        if not any(result is tensor for tensor in tensors):
            name = f"computed {len(self.computed)}"
            sources = {self.weights[id(tensor)]: tensor for tensor in trained if id(tensor) in self.weights}
            value, layer = (result, None) if result.requires_grad else (None, operator(call))
            self.computed.append(Computed(name, value, layer, sources))
            self.parameters[id(result)] = name
            self.made.add(id(result))
            self.alive.append(result)
            self._note_read([*tensors, result])
        return result

    def _off_the_tape(self, func: Function, args: Any, options: Any, tensors: list[Tensor]) -> Any:
        """Its result may be used there if it is a constant: made of such, or no real numbers.

        Without gradients nothing is sure: the forward of a custom autograd function runs so.
        """
        graph = torch.is_grad_enabled()
        constants = [tensor for tensor in tensors if id(tensor) in self.constants]
        constant = graph and len(constants) == len(tensors)
        may_not_change = constants if graph and not constant else []
        versions = [_version(tensor) for tensor in may_not_change]
        result = func(*args, **options)
        if versions != [_version(tensor) for tensor in may_not_change]:
            raise NotSweepable("a constant into which an activation or a parameter is written")
        outputs = tensors_in(result)
        whole = [output for output in outputs if not (output.is_floating_point() or output.is_complex())]
        new = [output for output in (outputs if constant else whole) if not self._is_known(output)]
        self.alive += new
        self.constants |= set(map(id, new))
        if not constant:
            self._lose([output for output in outputs if not self._is_known(output)], func, tensors, graph)
        self.aliased |= {id(t) for t in tensors if self._depends(t) and any(_share(t, output) for output in outputs)}
        return result

    def _in_place(self, func: Function, args: Any, options: Any, given: list[Tensor]) -> Tensor:
        """An operator that works in place runs out of place; its result stands for the tensor from now on."""
        options = {key: value for key, value in options.items() if key != "inplace"}
        old: Any = args[0] if args else None
        if not self._depends(old) or id(old) in self.aliased:
            raise NotSweepable("an operator in place on a tensor that others may see")
        new = self._on_the_tape(OUT_OF_PLACE.get(func, func), args, options, tensors_in((args, options)))
        if new.shape != old.shape or new.dtype != old.dtype:
            raise NotSweepable("an operator in place that changes shape or type")
        self.alive.append(given[0])
        same = [key for key, tensor in self.replaced.items() if tensor is old]
        self.replaced |= dict.fromkeys([id(given[0]), id(old), *same], new)
        return new

    def _on_the_tape(self, func: Function, args: Any, options: Any, tensors: list[Tensor]) -> Tensor:
        name = NAMES.get(func, "")
        if not name or not all(map(self._is_known, tensors)):
            self._refuse_lost([tensor for tensor in tensors if not self._is_known(tensor)])
            raise NotSweepable(f"{name or func} of a tensor from outside the model")
        call = self._call(name, func, args, options, tensors)
        torch._C._set_grad_enabled(False)  # a context manager would take as long as all the rest
        try:
            layer = self.layer_of(call)
            result = call.result
        finally:
            torch._C._set_grad_enabled(True)
        if not any(result is tensor for tensor in tensors):
            self._enter(result, [tensor for tensor in tensors if self._depends(tensor)], layer)
        self._note_read(tensors)
        return result

    def _several(self, func: Function, args: Any, options: Any, tensors: list[Tensor]) -> Any:
        """A tensor cut into several, each a part of it."""
        call = self._call(SEVERAL[func], func, args, options, tensors)
        if not self._depends(call.x):
            raise NotSweepable(f"{call.name} by an activation")
        with torch.no_grad():
            results = func(*args, **options)
        for result, part in zip(results, parts_of(call, results), strict=True):
            self._enter(result, [call.x], part)
        return results

    def _call(self, name: str, func: Function, args: Any, options: Any, tensors: list[Tensor]) -> Call:
        return Call(
            name, func, args, options, tensors, self._depends, lambda t: self.parameters.get(id(t)), self._snapshot
        )

    def _note_read(self, tensors: list[Tensor]) -> None:
        """From now on they must not change."""
        read = [tensor for tensor in tensors if id(tensor) in self.weights or id(tensor) in self.made]
        if not read:
            return
        self.read |= {self.weights[id(tensor)] for tensor in read if id(tensor) in self.weights}
        self.versions += [(tensor, _version(tensor)) for tensor in read]

    def _enter(self, result: Tensor, inputs: list[Tensor], layer: Layer) -> None:
        number = len(self.entries) + 1
        self.entries.append(Entry(tuple(self.number[id(tensor)] for tensor in inputs), number, layer))
        self.number[id(result)] = number
        self.alive.append(result)
        self.versions.append((result, _version(result)))
        if result._is_view():
            self.aliased |= {id(result), *map(id, inputs)}

    def _lose(self, outputs: list[Tensor], func: Function, tensors: list[Tensor], graph: bool) -> None:
        """Remember why what an operator made may not be used."""
        what = "an activation" if any(map(self._depends, tensors)) else "parameters"
        own = f"no rule for {getattr(func, '__name__', func)} of {what}" if graph else "something made under no_grad"
        self.alive += outputs
        self.lost |= dict.fromkeys(map(id, outputs), self._why_lost(tensors) or own)

    def _refuse_lost(self, tensors: list[Any]) -> None:
        why = self._why_lost(tensors)
        if why:
            raise UnknownOperator(why) if why.startswith("no rule") else NotSweepable(why)

    def _why_lost(self, tensors: list[Any]) -> str:
        return next((self.lost[id(tensor)] for tensor in tensors if id(tensor) in self.lost), "")

    def _is_known(self, tensor: Tensor) -> bool:
        key = id(tensor)
        return key in self.number or key in self.parameters or key in self.constants

    def _depends(self, tensor: Any) -> bool:
        return id(tensor) in self.number

    def _snapshot(self, constant: Tensor) -> Tensor:
        """Weights as they are: autograd notices when they change. Of anything else a copy."""
        known = id(constant) in self.weights or id(constant) in self.made
        return constant.detach() if known else constant.clone()


_QUESTIONS = {"size", "dim", "ndimension", "numel", "nelement", "stride", "get_device", "element_size", "is_contiguous"}
_QUESTIONS |= {
    "is_floating_point",
    "is_complex",
    "is_signed",
    "is_conj",
    "is_neg",
    "is_inference",
    "__len__",
    "__get__",
}


class _CallRecorder(_Recorder):
    """Derivatives at the images may take a mask for a constant; what is to hold around them may not."""

    def _off_the_tape(self, func: Function, args: Any, options: Any, tensors: list[Tensor]) -> Any:
        name = getattr(func, "__name__", str(func))
        if any(map(self._depends, tensors)) and name not in _QUESTIONS:
            raise NotSweepable(f"no rule for {name} of an activation")
        return super()._off_the_tape(func, args, options, tensors)

    def _several(self, func: Function, args: Any, options: Any, tensors: list[Tensor]) -> Any:
        del args, options, tensors
        raise NotSweepable(f"no rule for {SEVERAL[func]} of an activation")


def _refuse_effects(func: Function, options: dict[str, Any]) -> None:
    """What would change a tensor in a way that cannot be followed, or take its numbers out of torch."""
    name = getattr(func, "__name__", str(func))
    changes = name.startswith(("register_", "__set")) or (name.endswith("_") and not name.endswith("__"))
    if changes or options.get("out") is not None or name in ("numpy", "__array__"):
        raise NotSweepable(f"no rule for {name} on an activation")


def _share(tensor: Tensor, other: Tensor) -> bool:
    """Whether a change of one in place is a change of the other."""
    return tensor is not other and torch._C._is_alias_of(tensor, other)  # type: ignore[attr-defined]


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


Values = dict[int, Tensor]
"""Vectors at some of the tape's values, by the value's number."""
Key = TypeVar("Key", int, str)


def add_to(total: dict[Key, Tensor], more: Iterable[tuple[Key, Tensor]]) -> None:
    """Add each to what ``total`` has under its key."""
    for key, value in more:
        total[key] = total[key] + value if key in total else value


@dataclass(frozen=True)
class EagerSweeps:
    """The sweeps of a model, operator by operator (``types.Sweeps``)."""

    model: nn.Module
    trained: frozenset[str]

    def record(self, x: Tensor, *, keep_activations: bool) -> tuple[Tensor, Tape]:
        """Run the model; keep the activations if asked to or if some operator is curved."""
        logits, tape = record(self.model, x, self.trained)
        if keep_activations or tape.curved:
            return logits, tape
        return logits, replace(tape, entries=[replace(entry, layer=entry.layer.forget()) for entry in tape.entries])

    def adjoints(self, tape: Tape, cotangents: Tensor) -> tuple[Tensor, list[Tensor]]:
        """(g (M, B, ...), the adjoint (M, B, ...) of every operator's result, in the tape's order)."""
        at: Values = {tape.output: cotangents}
        own: set[int] = set()
        adjoints: list[Tensor] = []
        for entry in reversed(tape.entries):
            a = at.pop(entry.output)
            adjoints.append(a)
            if isinstance(entry.layer, Part):
                _add_part(at, own, entry.inputs[0], entry.layer, a, 1)
            else:
                _add_vectors(at, own, entry.inputs, entry.layer.adjoint(a))
        return at[0], adjoints[::-1]

    def tangents(self, tape: Tape, adjoints: list[Tensor], v: Tensor) -> tuple[Tensor, Gradients, Values]:
        """(J v, the weights' gradients of <c, J v> at fixed activations, what it adds to the activations (B, ...))."""
        at: Values = {0: v}
        gradients: Gradients = {}
        bends: Values = {}
        last_use = {number: i for i, entry in enumerate(tape.entries) for number in entry.inputs}
        for i, (entry, a) in enumerate(zip(tape.entries, adjoints, strict=True)):
            layer, tangents = entry.layer, [at[number] for number in entry.inputs]
            at[entry.output], found, bent = layer.bend(tangents, a)
            add_to(gradients, found.items())
            add_to(bends, zip(entry.inputs, bent, strict=layer.curved))
            for number in entry.inputs:
                if last_use[number] == i:
                    at.pop(number, None)
        return at[tape.output], gradients, bends

    def reverse(self, tape: Tape, bends: Values) -> Gradients:
        """The ordinary backward pass from ``bends``."""
        at = dict(bends)
        own: set[int] = set()
        gradients: Gradients = {}
        for entry in reversed(tape.entries):
            b = at.pop(entry.output, None)
            if b is None:
                continue
            if isinstance(entry.layer, Part):
                _add_part(at, own, entry.inputs[0], entry.layer, b, 0)
                continue
            vectors, found = entry.layer.reverse(b)
            add_to(gradients, found.items())
            _add_vectors(at, own, entry.inputs, vectors)
        return gradients

    def to_parameters(self, tape: Tape, gradients: Gradients) -> Gradients:
        """Those of what was computed from parameters go on to these."""
        gradients = dict(gradients)
        sources: dict[str, Tensor] = {}
        values: list[Tensor] = []
        vectors: list[Tensor] = []
        for made in reversed(tape.computed):
            sources |= made.sources
            if made.name not in gradients:
                continue
            if made.layer is not None:
                add_to(gradients, made.layer.reverse(gradients.pop(made.name))[1].items())
            elif made.value is not None:
                values.append(made.value)
                vectors.append(gradients.pop(made.name).to(made.value.dtype))
        if values:
            found = torch.autograd.grad(values, list(sources.values()), vectors, retain_graph=True, allow_unused=True)
            add_to(gradients, ((name, g) for name, g in zip(sources, found, strict=True) if g is not None))
        return gradients


def _add_vectors(at: Values, own: set[int], numbers: tuple[int, ...], vectors: list[Tensor]) -> None:
    """Add each to what there is of its number; only totals in ``own`` may be written to."""
    add_to(at, zip(numbers, vectors, strict=True))
    own.difference_update(numbers)


def _add_part(at: Values, own: set[int], number: int, layer: Part, part: Tensor, first: int) -> None:
    """Without a tensor of zeros for each part."""
    if number in own:
        layer.add(at[number], part, first)
        return
    whole = layer.add(None, part, first)
    at[number] = at[number] + whole if number in at else whole
    own.add(number)

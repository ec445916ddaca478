"""Will it work with this model, and what will it cost? Everything is tried on a few images; nothing is left changed.

Each part that may spoil attacks, margins and penalties is looked for by itself, so that a finding names the cause and
not the operator that failed. Costs are counted in floating-point operations (of matrix products and convolutions), and
told in forward passes of the model.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import conv_flop_count, flop_registry

from widemargin.attacks.pgd import PGD
from widemargin.certificates.margin import certified_margin
from widemargin.core.checks import check_batch, check_logits, check_model, logits_of, usable
from widemargin.core.modes import copied_buffers, ddp_of, evaluating, frozen, outside_inference_mode, with_values
from widemargin.errors import InputError
from widemargin.gradients.path import path_of
from widemargin.margins import effective_margin
from widemargin.models.classifier import Normalize
from widemargin.regularizers.emr import ApproximateEMR

IMAGES = 4
"""So many of those given are looked at."""
OWNER = "check"
STEP = 1 / 255
COUPLING, COUPLED = "batch-norm-without-statistics", "images-see-each-other"
"""The cause, and what is seen of it."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is in the way, each part in one line."""

    name: str
    what: str
    why: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class ModelCheck:
    """What was found; as text it is plain words."""

    findings: tuple[Finding, ...]
    works: dict[str, str]
    """By what was tried ("attacks", "margins", "penalties", "certificates"): "yes", or why not."""
    way: str | None
    """"sweeps" or "double backward": how a penalty's gradient is computed; None where it is not."""
    reason: str
    """Why that way."""
    costs: dict[str, float]
    """In forward passes, by what is done; empty where nothing could be counted."""
    num_classes: int | None

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{what}: {'work' if told == 'yes' else f'do not work: {told}'}" for what, told in self.works.items()]
        if self.way is not None:
            lines.append(f"a penalty takes {self.way}: {self.reason}")
        lines += [f"cost of {what}: {cost:.1f} forward passes" for what, cost in self.costs.items()]
        for finding in self.findings:
            lines.append(f"found {finding.name}: {finding.what}")
            lines += [f"  why it matters: {finding.why}", f"  fix: {finding.fix}"]
        return "\n".join([*lines, *([] if self.findings else ["nothing is in the way"])])


def check(model: nn.Module | Any, x: Tensor) -> ModelCheck:
    """Try the model on a few of the images x (B, ...): what works, what does not and how to fix it, what it costs."""
    check_batch(OWNER, x)
    if not isinstance(model, nn.Module):
        raise InputError(f"{OWNER}: the model comes first and must be a torch.nn.Module, got {type(model).__name__}")
    x = x[:IMAGES].detach()
    buffers = copied_buffers(model)
    with (
        torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []),
        outside_inference_mode(),
        with_values(buffers),  # copies: what a forward writes is forgotten
    ):
        torch.manual_seed(0)
        return _checked(model, usable(x))


def _checked(model: nn.Module, x: Tensor) -> ModelCheck:
    findings = [*_of_modules(model), *_of_images(model, x)]
    try:
        check_model(OWNER, model)
        with torch.no_grad(), evaluating(model):
            z = check_logits(OWNER, model(x.clone()), batch=len(x))
    except Exception as error:  # whatever somebody's model makes of it
        failed = _forward_failed(error)
        works = dict.fromkeys(("attacks", "margins", "penalties", "certificates"), failed.what)
        return ModelCheck(
            findings=(*findings, failed), works=works, way=None, reason=failed.what, costs={}, num_classes=None
        )
    looks = _writes(model, x), _changes_itself(model, x), _probabilities(z), _empty(model, x), _answers(model, x, z)
    known = {finding.name for finding in findings}
    findings += [found for look in looks for found in look if not (found.name == COUPLED and COUPLING in known)]
    y = z.argmax(1)
    works, failures = {}, {}
    for what, attempt in _attempts(model, x, y).items():
        failures[what] = _failure(attempt)
        works[what] = "yes" if failures[what] is None else str(failures[what])
    path = None
    if failures["penalties"] is None:
        path = path_of(model, x)
    elif not findings and failures["margins"] is None:
        findings.append(_no_second_derivative(works["penalties"]))
    return ModelCheck(
        findings=tuple(findings),
        works=works,
        way=None if path is None else path.way,
        reason=works["penalties"] if path is None else path.reason,
        costs=_costs(model, x, y, works),
        num_classes=z.shape[1],
    )


def _attempts(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Callable[[], Any]]:
    inside = x.clamp(0, 1)
    return {
        "attacks": lambda: PGD(eps=STEP, step_size=STEP, steps=1)(model, inside, y),
        "margins": lambda: effective_margin(model, x[:1], y[:1], candidates=1),
        "penalties": lambda: _penalty_gradients(model, x),
        "certificates": lambda: certified_margin(model, inside[:1], y[:1], method="lipschitz"),
    }


def _penalty_gradients(model: nn.Module, x: Tensor) -> None:
    """As ``backward`` would take them; that leaves gradients behind, and calls hooks of optimizers."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.enable_grad():
        penalty = ApproximateEMR()(model, x).sum()
    if _refuses_a_derivative(penalty.grad_fn):  # which backward would come to, and a search for parameters does not
        raise InputError("an operator's own backward pass is marked with once_differentiable")
    if all(found is None for found in torch.autograd.grad(penalty, parameters, allow_unused=True)):
        raise InputError("the penalty does not depend on the parameters")


def _refuses_a_derivative(node: Any) -> bool:
    waiting, seen = [node], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name().endswith("Error"):
            return True
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
    return False


def _failure(attempt: Callable[[], Any]) -> str | None:
    """What it said, in one line."""
    try:
        attempt()
    except Exception as error:  # whatever somebody's model makes of it
        return " ".join(str(error).split())[:300]
    return None


def _costs(model: nn.Module, x: Tensor, y: Tensor, works: dict[str, str]) -> dict[str, float]:
    """Of what works; an image's worth of floating-point operations over those of a forward pass."""
    one = x[:1].clamp(0, 1), y[:1]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def plain_step() -> None:
        with evaluating(model), torch.enable_grad():
            loss = torch.nn.functional.cross_entropy(logits_of(model(one[0].clone())), one[1])
        torch.autograd.grad(loss, parameters, allow_unused=True)

    def forward() -> None:
        with torch.no_grad(), evaluating(model):
            model(one[0].clone())

    def attack_step() -> None:
        with frozen(model):
            PGD(eps=STEP, step_size=STEP, steps=1)(model, *one)

    unit = _operations(forward)
    if not unit:
        return {}
    asked: dict[str, Callable[[], Any]] = {"a training step": plain_step}
    if works["penalties"] == "yes":
        asked["a penalty beside it (one vector, as approximate EMR)"] = lambda: _penalty_gradients(model, one[0])
    if works["attacks"] == "yes":
        asked["a step of PGD"] = attack_step
    if works["margins"] == "yes":
        asked["an effective margin"] = lambda: effective_margin(model, *one, candidates=10)
    counted = {what: _operations(function) for what, function in asked.items()}
    return {what: round(operations / unit, 2) for what, operations in counted.items() if operations}


def _operations(function: Callable[[], Any]) -> int:
    with _Counter() as counter:
        return 0 if _failure(function) is not None else counter.total


class _Counter(TorchDispatchMode):
    """Counts as torch's ``FlopCounterMode`` does, whose hooks on modules do not allow ``torch.autograd.grad``.

    Of a convolution's backward pass each half is as much work as the convolution; torch's formula forgets the groups.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if func._overloadpacket is torch.ops.aten.convolution_backward:
            grad_out, x, weight, *_, mask = args
            transposed = bool(args[7])
            self.total += sum(mask[:2]) * int(conv_flop_count(x.shape, weight.shape, grad_out.shape, transposed))
        elif formula is not None:
            self.total += int(formula(*args, **(kwargs or {}), out_val=result))
        return result


# What is seen without running the model


def _of_modules(model: nn.Module) -> Iterator[Finding]:
    norms = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None
    ]
    if norms:
        yield Finding(
            name=COUPLING,
            what=f"batch norm without running statistics: {_named(norms)}",
            why="it normalizes by the batch at hand, so an image's logits depend on the images beside it",
            fix="make it with track_running_stats=True and train again, or use group norm (nn.GroupNorm)",
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        yield Finding(
            name="nothing-to-train",
            what="no parameter requires a gradient",
            why="a penalty would train nothing and is refused; attacks and margins work",
            fix="unfreeze what is to be trained: model.requires_grad_(True)",
        )
    if ddp_of(model) is not None:
        yield Finding(
            name="inside-ddp",
            what="the model is inside DistributedDataParallel",
            why="gradients are averaged in the backward pass of its own output alone",
            fix="add the penalty to the loss and call backward() once; evaluate and save model.module",
        )
    if isinstance(model, nn.DataParallel):
        yield Finding(
            name="inside-data-parallel",
            what="the model is inside DataParallel",
            why="its copies have no parameters of their own, which penalties could be differentiated by",
            fix="give model.module, and use DistributedDataParallel for several GPUs",
        )
    if _is_sharded(model):
        yield Finding(
            name="sharded-weights",
            what="the weights are sharded over processes (FSDP, fully_shard or tensor parallelism)",
            why="sharded weights have no second derivatives, so penalties are refused",
            fix="use DistributedDataParallel; to evaluate, load the full weights into an ordinary model",
        )


def _is_sharded(model: nn.Module) -> bool:
    names = {cls.__name__ for module in model.modules() for cls in type(module).__mro__}
    types = {cls.__name__ for parameter in model.parameters() for cls in type(parameter).__mro__}
    return bool({"FullyShardedDataParallel", "FSDPModule"} & names) or "DTensor" in types


def _of_images(model: nn.Module, x: Tensor) -> Iterator[Finding]:
    low, high = (float(v) for v in x.aminmax())
    if low < 0 or high > 1:
        yield Finding(
            name="normalized-outside",
            what=f"the images have values from {low:.4g} to {high:.4g}, not in [0, 1]",
            why="eps, margins and penalties would not be in pixels, and attacks refuse such images",
            fix="give images in [0, 1] and put the normalization inside: widemargin.pixels(model, mean=..., std=...)",
        )
        return
    told = next((config for module in model.modules() if (config := _preprocessing(module))), None)
    told = None if told is None or x.dim() != 4 or len(told[0]) != x.shape[1] else told
    inside = any(isinstance(m, Normalize) or "normalize" in type(m).__name__.lower() for m in model.modules())
    if told is not None and not inside:
        mean, std = told
        yield Finding(
            name="expects-normalized-images",
            what=f"the model says it was trained on images normalized by mean {mean} and std {std}, and does not do it",
            why="images in [0, 1] are not what its weights know, so every number would be of a worse model",
            fix=f"widemargin.pixels(model, mean={mean}, std={std})",
        )


def _preprocessing(module: nn.Module) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and std by which timm's models say that images are to be normalized."""
    for name in ("pretrained_cfg", "default_cfg"):
        config = getattr(module, name, None)
        if isinstance(config, dict) and config.get("mean") and config.get("std"):
            mean, std = tuple(map(float, config["mean"])), tuple(map(float, config["std"]))
            return None if set(mean) == {0.0} and set(std) == {1.0} else (mean, std)
    return None


# What is seen of its answers


def _forward_failed(error: Exception) -> Finding:
    text = " ".join(str(error).split())[:300]
    if "must return" in text:
        return Finding(
            name="no-logits",
            what=text.removeprefix(f"{OWNER}: "),
            why="attacks, margins and penalties are about the logits of one classification for each image",
            fix="wrap it in a module whose forward returns logits (B, K), or an output with .logits",
        )
    return Finding(
        name="forward-fails",
        what=f"a forward pass in evaluation mode fails: {text}",
        why="nothing can be done with a model that does not take these images",
        fix="give images of the shape and type it wants, and a model that was called once if it has lazy layers",
    )


def _answers(model: nn.Module, x: Tensor, z: Tensor) -> Iterator[Finding]:
    """Whether they are those of one function of one image, which has a gradient; the first thing that is not so."""
    found = [*_random(model, x, z)]
    found += _gradients(model, x, z)
    if not found:
        found += _neighbors(model, x, z)
    yield from found


def _random(model: nn.Module, x: Tensor, z: Tensor) -> Iterator[Finding]:
    with torch.no_grad(), evaluating(model):
        again = [logits_of(model(x.clone())) for _ in range(2)]
    if any(_differ(z, other) for other in again):
        yield Finding(
            name="random-at-evaluation",
            what="the same images give other logits at every call in evaluation mode",
            why="verdicts and margins would be of one draw, and an attack's gradient of another",
            fix="draw only if self.training (F.dropout needs training=self.training), or average over draws inside",
        )


def _writes(model: nn.Module, x: Tensor) -> Iterator[Finding]:
    given = x.clone()
    with torch.no_grad(), evaluating(model):
        model(given)
    if not torch.equal(given, x):
        yield Finding(
            name="writes-into-images",
            what="its forward changes the images it is given, in place",
            why="such images cannot be differentiated by, so attacks, margins and penalties fail",
            fix="begin the forward with x = x.clone(), or use the operator that is not in place (inplace=False)",
        )


def _changes_itself(model: nn.Module, x: Tensor) -> Iterator[Finding]:
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad(), evaluating(model):
        model(x.clone())
    changed = [name for name, buffer in model.named_buffers() if not torch.equal(buffer, before.get(name, buffer))]
    if changed:
        yield Finding(
            name="changes-at-evaluation",
            what=f"a forward pass in evaluation mode changes buffers: {_named(changed)}",
            why="the model that is attacked is another one at every step, and evaluating it changes it",
            fix="update them only if self.training",
        )


def _gradients(model: nn.Module, x: Tensor, z: Tensor) -> Iterator[Finding]:
    """One backward pass of the first image's logits: does it reach the image, and no other?"""
    leaf = x.clone().requires_grad_(True)
    direction = torch.linspace(1, 2, z.shape[1], dtype=torch.float64, device=z.device).cos()
    try:
        with evaluating(model), torch.enable_grad():
            logits = logits_of(model(leaf.clone()))
        if not logits.requires_grad:
            gradient = None
        else:
            score = (logits[0].double() * direction).sum()
            (gradient,) = torch.autograd.grad(score, leaf, allow_unused=True)
    except RuntimeError as error:
        text = " ".join(str(error).split())[:300]
        in_place = "inplace operation" in text or "in-place" in text
        yield Finding(
            name="in-place-operation" if in_place else "backward-fails",
            what=f"its backward pass fails: {text}",
            why="attacks, margins and penalties need the gradient of the logits by the image",
            fix="use the operator that is not in place (x = x + 1 for x += 1, inplace=False)"
            if in_place
            else "replace the operator that has no derivative",
        )
        return
    if gradient is None:
        yield Finding(
            name="no-gradient-to-images",
            what="its logits carry no gradient to the images",
            why="gradient attacks, margins and penalties need one; without it a model looks robust and is not",
            fix="take out detach(), torch.no_grad(), torch.inference_mode() and conversions to numpy in its forward",
        )
    elif not bool(gradient.isfinite().all()) or not bool(z.isfinite().all()):
        yield Finding(
            name="not-finite",
            what="its logits or their gradient hold a NaN or an infinity",
            why="no attack can move there, and a penalty would make the weights NaN",
            fix="find the operator (0/0, log 0, the slope of the square root at 0, an overflow in half precision)",
        )
    elif bool((gradient[:1] == 0).all()):
        yield Finding(
            name="zero-gradient",
            what="the gradient of its logits by the image is zero everywhere",
            why="gradient attacks do not move and margins are infinite, whatever the model does",
            fix="replace what has no slope (round, sign, argmax, a saturated output), or attack a smooth stand-in",
        )
    elif bool((gradient[1:] != 0).any()):
        yield _coupled("the gradient of an image's logits reaches the images beside it")


def _neighbors(model: nn.Module, x: Tensor, z: Tensor) -> Iterator[Finding]:
    with torch.no_grad(), evaluating(model):
        try:
            mixed = logits_of(model(torch.cat([x[:1], 1 - x, 1 - x])))[:1]
        except RuntimeError:
            yield _coupled("it fails on a batch of another size")
            return
    if _differ(z[:1], mixed):
        yield _coupled("an image's logits change with the images beside it")


def _coupled(what: str) -> Finding:
    return Finding(
        name=COUPLED,
        what=what,
        why="margins and penalties are of an image by itself, and attacks on one would change the others",
        fix="normalize each image by itself (layer norm, group norm, running statistics), and allow any batch size",
    )


def _probabilities(z: Tensor) -> Iterator[Finding]:
    if bool((z >= 0).all()) and bool(((z.double().sum(1) - 1).abs() < 1e-3).all()):
        yield Finding(
            name="probability-outputs",
            what="its outputs are probabilities, not logits",
            why="behind a softmax gradients vanish, attacks look weak and margins are of another function",
            fix="take the softmax at its end out",
        )


def _empty(model: nn.Module, x: Tensor) -> Iterator[Finding]:
    with torch.no_grad(), evaluating(model):
        told = _failure(lambda: model(x[:0].clone()))
    if told is not None:
        yield Finding(
            name="empty-batch-refused",
            what=f"it fails on a batch of no images: {told}",
            why="nothing here makes one, but a loop that picks images out of a batch may be left with none",
            fix="flatten with x.flatten(1) in place of x.view(len(x), -1), or skip empty batches in your loop",
        )


def _no_second_derivative(told: str) -> Finding:
    return Finding(
        name="no-second-derivative",
        what=f"its input gradient cannot be differentiated again: {told}",
        why="a penalty is trained by a second derivative; attacks and margins work",
        fix="write the operator in torch's own, or give its backward pass one of its own (no once_differentiable)",
    )


def _differ(z: Tensor, other: Tensor) -> bool:
    """By more than rounding in another order."""
    if z.shape != other.shape:
        return True
    scale = float(z.double().abs().nan_to_num().max()) or 1.0
    room = 1e-3 if z.dtype in (torch.float16, torch.bfloat16) else 1e-4
    return not torch.allclose(z.double(), other.double(), rtol=0, atol=room * scale, equal_nan=True)


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(name or "the model itself" for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")

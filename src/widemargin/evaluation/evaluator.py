"""Whether a model, its device, the images, the settings and the records go together; seen before any work is done.

A model judged under attack, shard by shard, resumable, shared by any number of processes.
"""

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from widemargin.core.checks import check_labels, check_model
from widemargin.core.modes import outside_inference_mode
from widemargin.core.screen import say
from widemargin.data.datasets import load
from widemargin.data.image_set import ImageSet
from widemargin.distributed.group import Processes, evaluation_processes
from widemargin.errors import InputError
from widemargin.evaluation.alarms import alarms_of_model, alarms_of_numbers, alarms_of_undecided
from widemargin.evaluation.autoattack import LEAST_HEIGHT_IN_L2, undisturbed
from widemargin.evaluation.folder import GALLERY, IN_MEMORY, ModelInfo
from widemargin.evaluation.judge import Float32Classifier, Judge, Say
from widemargin.evaluation.report import (
    UNKNOWN,
    Report,
    collect,
    is_displayable,
    notes_for,
    notes_on,
    notes_on_records,
    write_gallery,
    write_report,
)
from widemargin.evaluation.settings import (
    AUTOATTACK,
    BATCH_SIZE,
    SHARD_SIZE,
    EvaluationSettings,
    attack_names,
    eps_text,
    number,
    radii,
)
from widemargin.evaluation.shards import Shard, Store, shards, size_of
from widemargin.evaluation.tf32_search import has_tf32, search_model
from widemargin.types import Alarm, Norm

ANSWERS, LATE, ASKED = "answers", "late", 8
"""The record of what the model says to so many images; it may be later than the first verdicts."""
ROUNDING, HALF = 1e-3, 5e-2
"""What devices may differ by, as a share of the largest logit: in float32, and in less."""


def check_search(settings: EvaluationSettings, device: torch.device) -> None:
    """Refuse TF32 where it would make no difference."""
    if settings.search == "float32":
        return
    if not settings.searches:
        raise InputError(f"evaluate.search={settings.search!r} has no effect where nothing attacks; leave --search out")
    if not has_tf32(device):
        raise InputError(
            f"evaluate.search must be 'float32' on a device without TF32, got 'tf32' on {device}; leave --search out, "
            "or use a GPU that has TF32"
        )


def check_inputs(model: Float32Classifier, shard: Shard, settings: EvaluationSettings, device: torch.device) -> Tensor:
    """One pass tells whether the model takes these images, can be attacked, and knows every label.

    Returns the logits of the first images.
    """
    if AUTOATTACK in settings.attacks and not shard.shows_images:
        raise InputError(
            "evaluate: autoattack takes images (N, C, H, W) or flat squares, since its black-box part draws squares on "
            f"them, got shape {tuple(shard.images.shape)}; leave autoattack out, or let the model reshape images"
        )
    if AUTOATTACK in settings.attacks and settings.norm == "l2" and shard.images.shape[2] < LEAST_HEIGHT_IN_L2:
        raise InputError(
            f"evaluate: autoattack in L2 takes images of at least {LEAST_HEIGHT_IN_L2} rows, where its black-box part "
            f"begins, got shape {tuple(shard.images.shape)}; leave autoattack out"
        )
    leaf = shard.images[: min(ASKED, settings.batch_size)].to(device, copy=True).requires_grad_(True)
    with torch.enable_grad(), undisturbed(model):
        logits = _taken(model, leaf)
        attackable = not settings.needs_gradients or _reaches(logits, leaf)
    if not attackable:
        raise InputError(
            "evaluate: the model's logits carry no gradient to the images; its forward detaches them, or runs under "
            "torch.no_grad() or torch.inference_mode()"
        )
    check_labels("evaluate", shard.labels, batch=len(shard.labels), num_classes=logits.shape[1])
    return logits.detach()


def check_answers(model: Float32Classifier, shard: Shard, logits: Tensor, store: Store, device: torch.device) -> None:
    """The first logits are the same, up to rounding, whenever an evaluation goes on: weights are not all of a model.

    Where a model gives other logits from call to call, as far as those may differ, four times over.
    """
    images = shard.images[: len(logits)]
    shown = hashlib.sha256(images.cpu().contiguous().numpy().tobytes()).hexdigest()
    found = store.note(ANSWERS)
    if found is None:
        rows = [[value if math.isfinite(value) else str(value) for value in row] for row in logits.tolist()]
        store.write_note(ANSWERS, {"images": shown, "logits": rows, LATE: store.begun})
        return
    if found["images"] != shown:  # which will be refused
        return
    logits = logits.cpu()
    before = torch.tensor([[float(value) for value in row] for row in found["logits"]], dtype=logits.dtype)
    if before.shape != logits.shape:
        raise _other_model(store, f"{before.shape[1]} classes there, {logits.shape[1]} here")
    largest = float(torch.cat([before, logits]).nan_to_num(0.0, 0.0, 0.0).abs().max())
    allowed = largest * (ROUNDING if model.dtype in (torch.float32, torch.float64) else HALF)
    if _apart(before, logits) > allowed:
        with torch.no_grad(), undisturbed(model):
            more = [logits, *(model(images.to(device)).cpu() for _ in range(3))]
        allowed += 4 * max(_apart(one, other) for one, other in itertools.combinations(more, 2))
        if not _apart(before, logits) <= allowed:
            raise _other_model(store, f"its logits differ by up to {_apart(before, logits):.3g}")


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference; infinite where one is a number and the other is not."""
    same = (one == other) | (one.isnan() & other.isnan())
    return float(torch.where(same, 0.0, (one - other).abs()).nan_to_num(math.inf).max())


def _other_model(store: Store, how: str) -> InputError:
    return InputError(
        f"{store.folder} holds an evaluation of another model, of the same weights, which gives other answers to the "
        f"first images ({how}); give the model it was begun with, or choose another --out"
    )


def _taken(model: Float32Classifier, leaf: Tensor) -> Tensor:
    try:
        logits: Tensor = model(leaf)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"evaluate: the model does not take images of shape {tuple(leaf.shape[1:])}: {reason}"
        ) from error
    return logits


def _reaches(logits: Tensor, leaf: Tensor) -> bool:
    """Whether the logits depend on the images in a way that can be differentiated."""
    return logits.requires_grad and torch.autograd.grad(logits.sum(), leaf, allow_unused=True)[0] is not None


SANITY = "sanity"
SANITY_BATCH = 100
MANY = 500
"""Images in a shard from which on compiling pays where the search is long: it takes 20 s, AutoAttack on 500 images and
a ResNet-18 takes as long."""


def evaluate(
    model: nn.Module,
    data: ImageSet | str | tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]],
    attacks: str | Sequence[str] = ("clean", "pgd20", "autoattack"),
    eps: float | str | Sequence[float | str] = 8 / 255,
    norm: Norm = "linf",
    step_size: float | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    *,
    shard_size: int = SHARD_SIZE,
    batch_size: int = BATCH_SIZE,
    distance: bool = False,
    margins: bool = True,
    sanity: bool = True,
    search: str = "float32",
    limit: int | None = None,
    data_dir: str | None = None,
    max_steps: int | None = None,
    subject: ModelInfo | None = None,
    console: Console | None = None,
) -> Report:
    """Judge ``model`` on ``data``: images in [0, 1] and labels, a data set's name, or batches of them.

    FGSM and PGD start at the image and attack every example; AutoAttack's parts attack the survivors of the parts
    before. ``search="tf32"`` lets attacks search faster on a GPU; what they find is checked in float32. With ``out``
    every finished piece is written down and the same call goes on where it stopped. The model, its mode, its gradients
    and the global random state are left as they were.
    """
    check_model("evaluate", model)
    store = Store(None if out is None else Path(out))
    with outside_inference_mode(), evaluation_processes(store.folder) as group:
        with group.sync_errors():
            settings = EvaluationSettings(
                attacks=attack_names(attacks),
                eps=radii(eps),
                norm=norm,
                step_size=None if step_size is None else number("step_size", step_size),
                seed=seed,
                shard_size=shard_size,
                batch_size=batch_size,
                distance=distance,
                margins=margins,
                sanity=sanity,
                search=search,
                max_steps=max_steps,
            )
            check_search(settings, _device_of(model))
            subject = subject or ModelInfo(data=_name(data))
            data = load(data, "test", data_dir=data_dir) if isinstance(data, str) else data
        whole = size_of(data)
        count = whole if whole is None or limit is None else min(whole, limit)
        if count != whole:
            subject = dataclasses.replace(subject, whole=whole)
        pieces = shards(data, shard_size, limit=limit)
        say = _telling(console or Console(quiet=True), count, shard_size, notes_on(subject))
        with _held(store, group):
            return _run(model, pieces, settings, subject, store, group, say)


def _telling(console: Console, count: int | None, shard_size: int, notes: Sequence[str]) -> Say:
    """How a shard's progress is told: with their number, where it is known; before the first, what must be known."""
    left = list(notes)
    total = "" if count is None else f" of {math.ceil(count / shard_size)}"

    def tell(shard: int, what: str) -> None:
        while left:
            say(console, f"note: {left.pop(0)}")
        say(console, f"shard {shard + 1}{total}: {what}")

    return tell


@contextmanager
def _held(store: Store, group: Processes) -> Iterator[None]:
    """The first process holds the folder for all of them; where it is refused, all are."""
    with ExitStack() as inside:
        with group.sync_errors():
            if group.first:
                inside.enter_context(store.held())
        yield


def _device_of(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _name(data: object) -> str:
    if isinstance(data, ImageSet):
        return data.name
    return data if isinstance(data, str) else IN_MEMORY


def _run(
    model: nn.Module,
    pieces: Iterator[Shard],
    settings: EvaluationSettings,
    subject: ModelInfo,
    store: Store,
    group: Processes,
    say: Say,
) -> Report:
    device = _device_of(model)
    with group.sync_errors():  # before any work is done
        if group.first:
            store.claim(_identity(model, settings, subject))
        first = _first(pieces)
        logits = check_inputs(Float32Classifier(model, flat=first.flat), first, settings, device)
        if group.first:
            check_answers(Float32Classifier(model, flat=first.flat), first, logits, store, device)
    numbers: list[int] = []
    to_search: nn.Module | None = None
    with group.sync_errors():
        if group.first:
            _look(Float32Classifier(model, flat=first.flat), first, settings, store, device)
        for shard in itertools.chain([first], pieces):
            numbers.append(shard.number)
            if group.mine(shard.number) and not store.finished(shard):
                if to_search is None:  # not before something is left to do: it may have to be compiled
                    to_search = search_model(
                        model, tf32=settings.search == "tf32", many_like=_many_like(first, settings)
                    )
                wrapped = Float32Classifier(model, flat=shard.flat)
                with undisturbed(wrapped):
                    searching = wrapped if to_search is model else Float32Classifier(to_search, flat=shard.flat)
                    Judge(wrapped, searching, settings, store, device, say).judge(shard)
    report = _collected(store, numbers, settings, subject, device, logits.shape[1])
    if group.first:
        write_report(report, store, numbers)
    group.wait()
    return report


def _many_like(shard: Shard, settings: EvaluationSettings) -> Tensor | None:
    """A batch like those of a search so long that compiling for it pays; None where it does not."""
    long = (settings.distance or AUTOATTACK in settings.attacks) and settings.max_steps is None
    if not long or len(shard.images) < MANY:
        return None
    images = shard.images[: settings.batch_size]
    return images.flatten(1) if shard.flat else images


def _first(pieces: Iterator[Shard]) -> Shard:
    shard = next(pieces, None)
    if shard is None:
        raise InputError("evaluate: the data is empty; give at least one example")
    return shard


def _collected(
    store: Store,
    numbers: list[int],
    settings: EvaluationSettings,
    subject: ModelInfo,
    device: torch.device,
    classes: int,
) -> Report:
    """The report, with its alarms and notes."""
    alarms = [Alarm(**alarm) for alarm in (store.note(SANITY) or {"alarms": []})["alarms"]]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    report = collect(store, numbers, settings, subject, alarms, name)
    return dataclasses.replace(
        report,
        alarms=[
            *alarms,
            *alarms_of_undecided(report.undecided),
            *alarms_of_numbers(report.accuracy, settings, report.count),
        ],
        notes=notes_on(subject)
        + notes_for(settings, classes, report.refuted, report.again)
        + notes_on_records(len(store.without_digest), late=bool((store.note(ANSWERS) or {}).get(LATE))),
    )


def _identity(model: nn.Module, settings: EvaluationSettings, subject: ModelInfo) -> dict[str, Any]:
    """What must be equal for an evaluation to be continued: the weights, the data's name and the settings."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        if not isinstance(tensor, torch.Tensor):  # a module's extra state, which may be anything
            digest.update(repr(tensor).encode())
            continue
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    table = dataclasses.asdict(settings) | {"eps": [eps_text(eps) for eps in settings.eps]}
    sizes = [float(eps) for eps in settings.eps]
    table |= {"radii": sizes}
    if [settings.step_size] == [eps / 4 for eps in sizes]:
        table["step_size"] = None  # eps/4 said aloud
    if settings.search == "float32":
        del table["search"]  # as in the records of versions that knew no other
    else:
        table["search"] = f"{settings.search}, {_what_is_searched(settings)}"
    if subject.split != "test":
        table["split"] = subject.split
    if subject.head_scale is not None:
        table["head_scale"] = subject.head_scale  # which no tensor holds
    if subject.normalize not in (None, "none", UNKNOWN):
        table["normalize"] = subject.normalize  # nor this
    return table | {"attacks": list(settings.attacks), "data": subject.data, "weights": digest.hexdigest()}


def _what_is_searched(settings: EvaluationSettings) -> str:
    """There were versions in which TF32 was for AutoAttack alone, and some in which nothing was pushed."""
    what = "every attack and distance" if settings.distance else "every attack"
    return f"{what}, pushed" if AUTOATTACK in settings.attacks else what


def _look(
    model: Float32Classifier, shard: Shard, settings: EvaluationSettings, store: Store, device: torch.device
) -> None:
    """What is seen once, on the first images: alarms of the model itself, and a gallery where there are attacks."""
    if settings.sanity:
        _sanity(model, shard, settings, store, device)
    if (
        settings.attacked
        and is_displayable(shard)
        and store.folder is not None
        and not (store.folder / GALLERY).exists()
    ):
        with undisturbed(model):
            write_gallery(model, shard, settings, store.folder, device)


def _sanity(
    model: Float32Classifier, shard: Shard, settings: EvaluationSettings, store: Store, device: torch.device
) -> None:
    """Write down the alarms of the model itself, from its first images; looked at once."""
    if store.note(SANITY) is None:
        x, y = shard.images[:SANITY_BATCH].to(device), shard.labels[:SANITY_BATCH].to(device)
        with undisturbed(model):
            alarms = alarms_of_model(model, x, y, settings)
        store.write_note(SANITY, {"alarms": [dataclasses.asdict(alarm) for alarm in alarms]})

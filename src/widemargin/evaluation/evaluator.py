"""A model judged under attack, shard by shard, resumable, shared by any number of processes.

Before any work it is seen whether the model, its device, the images, the settings and the records on disk go together.
Then the first images give the alarms of the model itself and a gallery, each shard is judged (``judge.py``), and the
shards are summed up in a report.
"""

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from widemargin.attacks.names import AUTOATTACK, AUTOATTACK_PARTS
from widemargin.core.checks import check_labels, check_model
from widemargin.core.files import folder_lock
from widemargin.core.modes import outside_inference_mode
from widemargin.core.precision import quickest_cpu_products
from widemargin.data.datasets import open_images
from widemargin.data.image_stream import StoredImages
from widemargin.distributed.group import Processes, Share, evaluation_processes
from widemargin.errors import InputError
from widemargin.evaluation.alarms import alarms_of_model, alarms_of_numbers, alarms_of_undecided
from widemargin.evaluation.autoattack import FEWEST_FOR_APGD_T, LEAST_HEIGHT_IN_L2, parts_for, undisturbed
from widemargin.evaluation.certified import alarms_of_certificates, check_certifiable, wanted
from widemargin.evaluation.cpu_search import cpu_search_model
from widemargin.evaluation.folder import IN_MEMORY, SETTINGS, ModelInfo
from widemargin.evaluation.gallery import GALLERY
from widemargin.evaluation.identity import begun_with
from widemargin.evaluation.judge import Float32Classifier, Judge, is_judged
from widemargin.evaluation.minimal_norm import FULL, ONLY_FAB, method_named
from widemargin.evaluation.own_attacks import named_attacks
from widemargin.evaluation.progress import EvaluationDisplay, default_console
from widemargin.evaluation.report import (
    Report,
    collect,
    is_displayable,
    notes_for,
    notes_on,
    notes_on_columns,
    notes_on_records,
    write_gallery,
    write_report,
)
from widemargin.evaluation.settings import (
    BATCH_SIZE,
    SHARD_SIZE,
    EvaluationSettings,
    number,
    radii,
)
from widemargin.evaluation.shards import Shard, Store, shards, size_of
from widemargin.evaluation.tf32_search import has_tf32, search_model
from widemargin.losses import FEWEST_FOR_DLR
from widemargin.types import Alarm, Norm

CPU_SEARCHES = ("folded", "bfloat16")
ANSWERS, LATE, ANSWERED = "answers", "late", 8
"""The record of the logits of so many first images, and its mark where it was written after the first verdicts."""
ROUNDING, HALF = 1e-3, 5e-2
"""What devices may differ by, as a share of the largest logit: in float32, and in less."""
SANITY, SANITY_BATCH = "sanity", 100
"""The record of the alarms of the model itself, and how many first images they look at."""
MANY = 500
"""Images in a shard from which on compiling pays where the search is long: it takes 20 s, AutoAttack on 500 images and
a ResNet-18 takes as long."""


class NoShardsError(InputError):
    """There are more shares than shards."""


def evaluate(
    model: nn.Module,
    data: StoredImages | str | Iterable[Any],
    attacks: Any = ("clean", "pgd20", "autoattack"),
    eps: float | str | Sequence[float | str] = 8 / 255,
    norm: Norm = "linf",
    step_size: float | Mapping[float | str, float] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    *,
    shard_size: int = SHARD_SIZE,
    batch_size: int = BATCH_SIZE,
    distance: bool | str = False,
    certify: bool | int | str = False,
    margins: bool = True,
    sanity: bool = True,
    search: str = "float32",
    limit: int | None = None,
    data_dir: str | None = None,
    max_steps: int | None = None,
    save_adversarial: bool = False,
    subject: ModelInfo | None = None,
    console: Console | None = None,
    share: tuple[int, int] | None = None,
) -> Report:
    """Judge ``model`` on ``data``: images in [0, 1] and labels, a data set's name, or batches of them.

    A batch may be a dictionary, too (``data/unpacking.py``).

    ``attacks`` are names, attacks such as ``PGD(...)``, functions ``(model, x, y) -> x_adv``, or pairs of a name and
    one (``own_attacks.py``). FGSM and PGD start at the image and attack every example, PGD with steps of eps/4 unless
    ``step_size`` says otherwise (for all eps, or by eps); AutoAttack's parts attack the survivors of the parts before.
    ``search="tf32"`` lets attacks search faster on a GPU, ``"folded"`` and ``"bfloat16"`` on a CPU; what they find is
    checked in float32.
    ``certify``, of all images or of so many first ones, adds radii that are proven (``certified_margin``).
    With ``out`` every finished piece is written down: the same call goes on where it stopped, another one adds what is
    missing of what it asks for. The model, its mode, its gradients and the global random state are left as they were.
    ``share=(k, n)`` judges shards k, k + n, ... alone, beside other shares on other machines, and reports those; the
    call without it gathers them all.
    """
    check_model("evaluate", model)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    store = Store(None if out is None else Path(out))
    with outside_inference_mode(), evaluation_processes(store.folder, share) as group:
        with group.sync_errors():
            names, own = named_attacks(attacks)
            steps = step_size if isinstance(step_size, Mapping) else {}
            settings = EvaluationSettings(
                attacks=names,
                own=own,
                eps=radii(eps),
                norm=norm,
                step_size=None if step_size is None or step_size is steps else number("step_size", step_size),
                own_steps=tuple((number("eps", at), number("step_size", step)) for at, step in steps.items()),
                seed=seed,
                shard_size=shard_size,
                batch_size=batch_size,
                distance=method_named(distance),
                certify=wanted(certify),
                margins=margins,
                sanity=sanity,
                search=search,
                max_steps=max_steps,
                save_adversarial=save_adversarial,
            )
            _check_search(settings, device)
            if save_adversarial and out is None:
                raise InputError("evaluate: adversarial images are saved in a folder; give out=... (--out)")
            if save_adversarial and not settings.attacked:
                raise InputError("evaluate.save_adversarial has no effect where nothing attacks; leave it out")
            if subject is None:
                subject = ModelInfo(data=_name(data))
            data = open_images(data, "test", data_dir=data_dir) if isinstance(data, str) else data
        whole = size_of(data)
        count = whole if whole is None or limit is None else min(whole, limit)
        if count != whole:
            subject = dataclasses.replace(subject, whole=whole)
        display = EvaluationDisplay(
            default_console() if console is None else console,
            count=count,
            shard_size=shard_size,
            notes=list(notes_on(subject)),
            first_process=group.first,
        )
        with ExitStack() as locked, display:
            with group.sync_errors():  # the first process locks the folder for all; where it is refused, all are
                if group.first:
                    locked.enter_context(store.locked(shared=share is not None))
            return _evaluate(
                model, shards(data, shard_size, limit=limit), settings, subject, store, group, device, display
            )


def _name(data: object) -> str:
    if isinstance(data, StoredImages):
        return data.name
    return data if isinstance(data, str) else IN_MEMORY


def _evaluate(
    model: nn.Module,
    pieces: Iterator[Shard],
    settings: EvaluationSettings,
    subject: ModelInfo,
    store: Store,
    group: Processes,
    device: torch.device,
    display: EvaluationDisplay,
) -> Report:
    with group.sync_errors():  # before any work is done
        settings = _as_begun(settings, store)
        if group.first:
            store.claim(begun_with(model, settings, subject))
        first = next(pieces, None)
        if first is None:
            raise InputError("evaluate: the data is empty; give at least one example")
        classifier = Float32Classifier(model, flat=first.flat)
        logits = _check_inputs(classifier, first, settings, device)
        if settings.certify is not None:
            check_certifiable(classifier, first.images[:1].to(device), first.labels[:1].to(device), settings.norm)
        classes = logits.shape[1]
        if group.first:
            with _one_share_at_a_time(group, store):
                _check_answers(classifier, first, logits, store, device)
    numbers: list[int] = []
    to_search: nn.Module | None = None
    with group.sync_errors():
        if group.first:
            with _one_share_at_a_time(group, store):
                _look_at_first_images(classifier, first, settings, store, device)
        display.begin(len(settings.columns(classes)) + len(settings.measured))
        for shard in itertools.chain([first], pieces):
            numbers.append(shard.number)
            judged = store.judged(shard) if group.mine(shard.number) else None
            if group.mine(shard.number) and not is_judged(store, shard.number, judged, settings, classes):
                if to_search is None:  # not before something is left to do: it may have to be compiled
                    to_search = _search_model(model, first, settings, device)
                classifier = Float32Classifier(model, flat=shard.flat)
                with undisturbed(classifier):
                    searched = classifier if to_search is model else Float32Classifier(to_search, flat=shard.flat)
                    Judge(classifier, searched, settings, store, device, display, classes).judge(shard, judged)
            display.finish(shard.number)
    if isinstance(group, Share):
        own = [number for number in numbers if group.mine(number)]
        if not own:
            raise NoShardsError(f"evaluate: of {len(numbers)} shards none is for share {group.rank}; take fewer shares")
        return _report(store, own, settings, subject, device, classes)
    report = _report(store, numbers, settings, subject, device, classes)
    if group.first:
        write_report(report, store, numbers)
    group.wait()
    return report


def _one_share_at_a_time(group: Processes, store: Store) -> AbstractContextManager[object]:
    """What is written down once is not begun by two shares at once."""
    if isinstance(group, Share) and store.folder is not None:
        return folder_lock(store.folder / SETTINGS, wait=True)
    return nullcontext()


def _check_search(settings: EvaluationSettings, device: torch.device) -> None:
    """Refuse a search where it would make no difference."""
    if settings.search == "float32":
        return
    if not settings.searches:
        raise InputError(f"evaluate.search={settings.search!r} has no effect where nothing attacks; leave --search out")
    if settings.search in CPU_SEARCHES:
        if device.type != "cpu":
            raise InputError(f"evaluate.search={settings.search!r} is for CPUs, the model is on {device}; use 'tf32'")
        if settings.search == "bfloat16" and quickest_cpu_products() == "float32":
            raise InputError("evaluate.search='bfloat16' is no faster on this processor; use 'folded'")
    elif not has_tf32(device):
        raise InputError(
            f"evaluate.search must be 'float32' on a device without TF32, got 'tf32' on {device}; leave --search out, "
            "or use a GPU that has TF32"
        )


def _as_begun(settings: EvaluationSettings, store: Store) -> EvaluationSettings:
    """An evaluation of an earlier version, whose distances are FAB-T's alone, goes on with these."""
    old = settings.distance == FULL and store.begun_with().get("distance") is True
    return dataclasses.replace(settings, distance=ONLY_FAB) if old else settings


def _check_inputs(model: Float32Classifier, shard: Shard, settings: EvaluationSettings, device: torch.device) -> Tensor:
    """One pass tells whether the model takes these images, can be attacked, and knows every label.

    Returns the logits of the first images.
    """
    squares = next((name for name in (AUTOATTACK, "square") if name in settings.attacks), None)
    if squares and not shard.shows_images:
        raise InputError(
            f"evaluate: {squares} takes images (N, C, H, W) or flat squares, since its black-box part draws squares on "
            f"them, got shape {tuple(shard.images.shape)}; leave {squares} out, or let the model reshape images"
        )
    if squares and settings.norm == "l2" and shard.images.shape[2] < LEAST_HEIGHT_IN_L2:
        raise InputError(
            f"evaluate: {squares} in L2 takes images of at least {LEAST_HEIGHT_IN_L2} rows, where its black-box part "
            f"begins, got shape {tuple(shard.images.shape)}; leave {squares} out"
        )
    leaf = shard.images[: min(ANSWERED, settings.batch_size)].to(device, copy=True).requires_grad_(True)
    with torch.enable_grad(), undisturbed(model):
        try:
            logits: Tensor = model(leaf)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"evaluate: the model does not take images of shape {tuple(leaf.shape[1:])}: {reason}"
            ) from error
        attackable = not settings.needs_gradients or (
            logits.requires_grad and torch.autograd.grad(logits.sum(), leaf, allow_unused=True)[0] is not None
        )
    if not attackable:
        raise InputError(
            "evaluate: the model's logits carry no gradient to the images; its forward detaches them, or runs under "
            "torch.no_grad() or torch.inference_mode()"
        )
    check_labels("evaluate", shard.labels, batch=len(shard.labels), num_classes=logits.shape[1])
    for name in settings.attacks:
        if name in AUTOATTACK_PARTS and name not in parts_for(logits.shape[1]):
            raise InputError(
                f"evaluate: {name} needs {FEWEST_FOR_APGD_T} classes, the model has {logits.shape[1]}; leave it out"
            )
        attack = settings.attack(name, settings.eps[0])
        if getattr(attack, "loss", "") == "dlr" and logits.shape[1] < FEWEST_FOR_DLR:
            raise InputError(
                f"evaluate: {name} needs {FEWEST_FOR_DLR} classes, the model has {logits.shape[1]}; leave it out"
            )
    return logits.detach()


def _check_answers(model: Float32Classifier, shard: Shard, logits: Tensor, store: Store, device: torch.device) -> None:
    """The first logits are the same, up to rounding, whenever an evaluation goes on: weights are not all of a model.

    Where a model gives other logits from call to call, as far as those may differ, four times over.
    """
    found = store.note(ANSWERS)
    if found is not None:
        logits = logits[: len(found["logits"])]  # it may have begun with fewer images
    images = shard.images[: len(logits)]
    digest = hashlib.sha256(images.cpu().contiguous().numpy().tobytes()).hexdigest()
    if found is None:
        rows = [[value if math.isfinite(value) else str(value) for value in row] for row in logits.tolist()]
        store.write_note(ANSWERS, {"images": digest, "logits": rows, LATE: store.begun})
        return
    if found["images"] != digest:  # which will be refused
        return
    logits = logits.cpu()
    before = torch.tensor([[float(value) for value in row] for row in found["logits"]], dtype=logits.dtype)
    if before.shape != logits.shape:
        raise _other_model(store, f"{before.shape[1]} classes there, {logits.shape[1]} here")
    largest = float(torch.cat([before, logits]).nan_to_num(0.0, 0.0, 0.0).abs().max())
    allowed = largest * (ROUNDING if model.dtype in (torch.float32, torch.float64) else HALF)
    if _difference(before, logits) > allowed:
        with torch.no_grad(), undisturbed(model):
            more = [logits, *(model(images.to(device)).cpu() for _ in range(3))]
        allowed += 4 * max(_difference(one, other) for one, other in itertools.combinations(more, 2))
        if not _difference(before, logits) <= allowed:
            raise _other_model(store, f"its logits differ by up to {_difference(before, logits):.3g}")


def _difference(one: Tensor, other: Tensor) -> float:
    """The largest difference; infinite where one is a number and the other is not."""
    same = (one == other) | (one.isnan() & other.isnan())
    return float(torch.where(same, 0.0, (one - other).abs()).nan_to_num(math.inf).max())


def _other_model(store: Store, how: str) -> InputError:
    return InputError(
        f"{store.folder} holds an evaluation of another model, of the same weights, which gives other answers to the "
        f"first images ({how}); give the model it was begun with, or choose another --out"
    )


def _look_at_first_images(
    model: Float32Classifier, shard: Shard, settings: EvaluationSettings, store: Store, device: torch.device
) -> None:
    """Write down what is seen once: the alarms of the model itself, and a gallery where there are attacks."""
    if settings.sanity and store.note(SANITY) is None:
        x, y = shard.images[:SANITY_BATCH].to(device), shard.labels[:SANITY_BATCH].to(device)
        with undisturbed(model):
            alarms = alarms_of_model(model, x, y, settings)
        store.write_note(SANITY, {"alarms": [dataclasses.asdict(alarm) for alarm in alarms]})
    if settings.attacked and is_displayable(shard) and store.folder and not (store.folder / GALLERY).exists():
        with undisturbed(model):
            write_gallery(model, shard, settings, store.folder, device)


def _search_model(model: nn.Module, shard: Shard, settings: EvaluationSettings, device: torch.device) -> nn.Module:
    """The model, or the copy of it that attacks search on."""
    if settings.search not in CPU_SEARCHES:
        return search_model(model, tf32=settings.search == "tf32", many_like=_many_like(shard, settings))
    images = shard.images[:ANSWERED].to(device)
    return cpu_search_model(model, images.flatten(1) if shard.flat else images, reduced=settings.search == "bfloat16")


def _many_like(shard: Shard, settings: EvaluationSettings) -> Tensor | None:
    """A batch like those of a search so long that compiling for it pays; None where it does not."""
    if not settings.searches_long or len(shard.images) < MANY:
        return None
    images = shard.images[: settings.batch_size]
    return images.flatten(1) if shard.flat else images


def _report(
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
            *alarms_of_certificates(report.certified, report.distance, report.attacked),
        ],
        notes=notes_on(subject)
        + notes_for(settings, classes, report.refuted, report.again)
        + notes_on_columns(report)
        + notes_on_records(len(store.without_digest), late=bool((store.note(ANSWERS) or {}).get(LATE))),
    )

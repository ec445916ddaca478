"""A model judged under attack, shard by shard, resumable, shared by any number of processes."""

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

from widemargin.checks import check_model
from widemargin.data import ImageSet, load
from widemargin.errors import InputError
from widemargin.evaluation.alarms import Alarm, alarms_of_model, alarms_of_numbers, alarms_of_undecided
from widemargin.evaluation.arguments import attack_names, number, radii
from widemargin.evaluation.backend import undisturbed
from widemargin.evaluation.fits import ANSWERS, LATE, check_answers, check_fits, check_search
from widemargin.evaluation.gallery import GALLERY, can_be_shown, write_gallery
from widemargin.evaluation.judge import Judge, Say
from widemargin.evaluation.notes import UNKNOWN, notes_for, notes_on, notes_on_records
from widemargin.evaluation.processes import Processes, processes
from widemargin.evaluation.report import IN_MEMORY, Report, Subject, collect, write_report
from widemargin.evaluation.searched import searched
from widemargin.evaluation.settings import AUTOATTACK, BATCH_SIZE, SHARD_SIZE, EvaluationSettings, written
from widemargin.evaluation.shards import Shard, shards, size_of
from widemargin.evaluation.store import Store
from widemargin.evaluation.wrapped import Wrapped
from widemargin.modes import outside_inference_mode
from widemargin.screen import say
from widemargin.types import Norm

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
    subject: Subject | None = None,
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
    with outside_inference_mode(), processes(store.folder) as group:
        with group.agreeing():
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
            subject = subject or Subject(data=_name(data))
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
        with group.agreeing():
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
    subject: Subject,
    store: Store,
    group: Processes,
    say: Say,
) -> Report:
    device = _device_of(model)
    with group.agreeing():  # before any work is done
        if group.first:
            store.claim(_identity(model, settings, subject))
        first = _first(pieces)
        logits = check_fits(Wrapped(model, flat=first.flat), first, settings, device)
        if group.first:
            check_answers(Wrapped(model, flat=first.flat), first, logits, store, device)
    numbers: list[int] = []
    to_search: nn.Module | None = None
    with group.agreeing():
        if group.first:
            _look(Wrapped(model, flat=first.flat), first, settings, store, device)
        for shard in itertools.chain([first], pieces):
            numbers.append(shard.number)
            if group.mine(shard.number) and not store.finished(shard):
                if to_search is None:  # not before something is left to do: it may have to be compiled
                    to_search = searched(model, tf32=settings.search == "tf32", many_like=_many_like(first, settings))
                wrapped = Wrapped(model, flat=shard.flat)
                with undisturbed(wrapped):
                    searching = wrapped if to_search is model else Wrapped(to_search, flat=shard.flat)
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
    subject: Subject,
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


def _identity(model: nn.Module, settings: EvaluationSettings, subject: Subject) -> dict[str, Any]:
    """What must be equal for an evaluation to be continued: the weights, the data's name and the settings."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        if not isinstance(tensor, torch.Tensor):  # a module's extra state, which may be anything
            digest.update(repr(tensor).encode())
            continue
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    table = dataclasses.asdict(settings) | {"eps": [written(eps) for eps in settings.eps]}
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


def _look(model: Wrapped, shard: Shard, settings: EvaluationSettings, store: Store, device: torch.device) -> None:
    """What is seen once, on the first images: alarms of the model itself, and a gallery where there are attacks."""
    if settings.sanity:
        _sanity(model, shard, settings, store, device)
    if settings.attacked and can_be_shown(shard) and store.folder is not None and not (store.folder / GALLERY).exists():
        with undisturbed(model):
            write_gallery(model, shard, settings, store.folder, device)


def _sanity(model: Wrapped, shard: Shard, settings: EvaluationSettings, store: Store, device: torch.device) -> None:
    """Write down the alarms of the model itself, from its first images; looked at once."""
    if store.note(SANITY) is None:
        x, y = shard.images[:SANITY_BATCH].to(device), shard.labels[:SANITY_BATCH].to(device)
        with undisturbed(model):
            alarms = alarms_of_model(model, x, y, settings)
        store.write_note(SANITY, {"alarms": [dataclasses.asdict(alarm) for alarm in alarms]})

"""``widemargin margins``: how far the decision boundary of a trained model is from its data, clean or attacked."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
import typer
from rich.progress import Progress
from torch import Tensor, nn

from widemargin.attacks.strongest import StrongestPGD
from widemargin.cli.options import (
    DataDir,
    Dataset,
    Device,
    HeadScale,
    Json,
    Limit,
    NormalizeBy,
    TargetName,
    check_split,
)
from widemargin.config.run import kinds
from widemargin.core import randomness
from widemargin.core.checks import choice
from widemargin.core.device import choose_device
from widemargin.core.files import make_folder
from widemargin.core.modes import copied_buffers, with_values
from widemargin.core.schema import to_table
from widemargin.core.screen import console_for, say, show_table
from widemargin.data.batches import in_order
from widemargin.data.datasets import open_images
from widemargin.data.image_stream import StoredImages
from widemargin.errors import InputError
from widemargin.evaluation.accuracy import MeasuredMargins, measure_margins, percent
from widemargin.evaluation.report import note_on_proven, notes_on
from widemargin.evaluation.summary import describe_weights
from widemargin.evaluation.target import LoadedModel, Target, load_model
from widemargin.report.compare import toml_value
from widemargin.report.pictures import margin_figure, save_picture
from widemargin.training.setup import held_out_images, stored_images
from widemargin.types import Nets, Norm

BATCH = 250
Perturb = Callable[[Tensor, Tensor, torch.Generator], Tensor | None]


@dataclass(frozen=True)
class OwnAttack:
    """What makes the images, and in words what that is."""

    perturb: Perturb
    described: str


def margins(
    target: TargetName,
    split: Annotated[str, typer.Option(help="train (what it was trained on), validation (held out) or test.")] = "test",
    at: Annotated[str, typer.Option(help="clean images, or adversarial ones of the run's own attack.")] = "clean",
    norm: Annotated[str, typer.Option(help="l2 or linf.")] = "l2",
    dataset: Dataset = None,
    limit: Limit = None,
    head_scale: HeadScale = None,
    normalize: NormalizeBy = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Where the histogram goes; default: beside the checkpoint of a run, else here.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """Effective margins: mean, spread and quantiles, over all and over correctly classified images, and a histogram."""
    check_split(split, dataset, ("train", "validation", "test"))
    choice("", "--at", at, ("clean", "adversarial"))
    unit: Norm = choice("", "--norm", norm, get_args(Norm))
    if picture is not None and picture.suffix != ".png":
        raise InputError(f"--picture must name a .png file, got {picture}")
    chosen = choose_device(device)
    loaded, data = _model_and_images(target, split, dataset, limit, data_dir, head_scale, normalize)
    loaded.check_fits(data)
    attack = own_attack(_run(loaded, "--at adversarial")) if at == "adversarial" else None
    data = data.to(chosen)
    path = picture or _picture(loaded, f"{split}-{at}-{norm}.png")
    make_folder(path.parent)
    model = loaded.model.to(chosen)
    console = console_for(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("measuring margins", total=len(data))
        points = _points(data, None if attack is None else attack.perturb, model)
        measured = measure_margins(model, points, norm=unit, advance=lambda n: progress.advance(task, n))
    title = f"{loaded.subject.name}: {split} images, {at}"
    save_picture(margin_figure({"all images": measured.margins}, title=title, unit=norm), path)
    subject = loaded.subject
    notes = [*notes_on(subject), *([] if measured.proven is None else [note_on_proven(percent(measured.proven))])]
    known = {"weights": describe_weights(asdict(subject)), "notes": notes}
    _print(measured, title, norm, path, known | ({} if attack is None else {"attack": attack.described}), as_json)


def own_attack(target: Target) -> OwnAttack:
    """Its objective's, else the one it was watched with, else the strongest it is judged by."""
    config = target.description.run_config()
    if config.objective.attacks:
        nets, epoch = Nets(model=target.model), target.description.epoch - 1
        return OwnAttack(
            lambda x, y, generator: config.objective.perturb(nets, x, y, epoch=epoch, generator=generator),
            f"that of training, objective = {_as_setting(config.objective)}",
        )
    judged = None if config.evaluation is None else config.evaluation.strongest()
    attack, whose = (config.watch.attack, "watch") if config.watch.attack is not None else (judged, "evaluation")
    if attack is None:
        raise InputError(
            "--at adversarial: this run has no attack of its own (objective, watch or evaluation); use clean"
        )
    return OwnAttack(
        lambda x, y, generator: attack(target.model, x, y, generator=generator),
        f"that of its {whose}, {_as_setting(attack)}",
    )


def _run(loaded: LoadedModel, option: str) -> Target:
    """The run that made the model."""
    if loaded.target is None:
        raise InputError(
            f"{option}: only a run of ours says what that is, {loaded.subject.target} does not; leave it out"
        )
    return loaded.target


def _picture(loaded: LoadedModel, name: str) -> Path:
    if loaded.target is not None:
        return loaded.target.path.with_name(f"margins-{name}")
    return Path(f"margins-{re.sub('[^A-Za-z0-9._-]+', '-', str(loaded.subject.name)).strip('-')}-{name}")


def _model_and_images(
    target: str,
    split: str,
    dataset: str | None,
    limit: int | None,
    data_dir: str | None,
    head_scale: float | None,
    normalize: str | None,
) -> tuple[LoadedModel, StoredImages]:
    """Whatever ``evaluate`` takes, and its images; weights may not say what images they want."""
    data = None
    if dataset is not None:
        data = open_images(dataset, "train" if split == "train" else "test", data_dir=data_dir, limit=limit)
    shape = data.image_shape if data is not None and Path(target).is_file() else None
    loaded = load_model(target, image_shape=shape, head_scale=head_scale, normalize=normalize)
    if data is None and loaded.target is None:
        if split == "validation":
            _run(loaded, "--split validation")
        raise InputError(
            "--dataset is missing: this target does not say which images it wants; give e.g. --dataset cifar10"
        )
    return loaded, data or _images(_run(loaded, "--dataset"), split, limit, data_dir)


def _as_setting(part: Any) -> str:
    """As one writes it in a configuration."""
    return toml_value(to_table(part, {**kinds(), "pgd-strongest": StrongestPGD}))


def _images(target: Target, split: str, limit: int | None, data_dir: str | None) -> StoredImages:
    """Of the run's own data; ``train`` is what it was trained on, nothing held out."""
    config = target.description.run_config()
    if split == "test":
        limit = target.test_limit(limit)
        return open_images(config.data.name, "test", data_dir=data_dir, limit=limit, **config.data.reading())
    if split == "validation":
        return held_out_images(config, data_dir=data_dir, limit=limit)
    train, _, _ = stored_images(config.data, seed=config.seed, data_dir=data_dir)
    return train if limit is None else train.first(limit)


def _points(data: StoredImages, perturb: Perturb | None, model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """The images, attacked where asked for; an attack in training mode leaves the statistics alone."""
    for number, (x, y) in enumerate(in_order(data, BATCH)):
        if perturb is None:
            yield x, y
            continue
        with with_values(copied_buffers(model)):
            x_adv = perturb(x, y, randomness.derived(0, "margins", number))
        yield (x if x_adv is None else x_adv), y


def _print(
    measured: MeasuredMargins, title: str, norm: str, path: Path, known: Mapping[str, Any], as_json: bool
) -> None:
    summaries = {"all": measured.over_all(), "correctly classified": measured.over_correct()}
    if as_json:
        record = {"title": title, "norm": norm, "picture": str(path), **known}
        typer.echo(json.dumps(record | {key: asdict(value) for key, value in summaries.items()}, indent=2))
        return
    console = console_for()
    say(console, f"effective margins ({norm}), {title}")
    named = zip(("all", "correct"), summaries.values(), strict=True)  # 80 columns have no room for more
    rows = []
    for key, summary in named:
        values = (summary.mean, summary.std, *summary.quantiles.values())
        rows.append((key, f"{summary.count:,}", *("-" if value is None else f"{value:.3f}" for value in values)))
    show_table(console, ("", "images", "mean", "std", *summaries["all"].quantiles), rows, plain=True)
    for name in ("attack", "weights"):
        if name in known:
            say(console, f"{name}: {known[name]}")
    for note in known["notes"]:
        say(console, f"note: {note}")
    say(console, f"histogram: {path}")

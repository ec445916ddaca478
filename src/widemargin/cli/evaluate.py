"""``widemargin evaluate``: accuracy of a model, clean and under attack, with what a reader must know beside it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
import typer

from widemargin.cli.options import (
    IMPORTED,
    Attacks,
    BatchSize,
    Certify,
    DataDir,
    Dataset,
    Device,
    Distance,
    Eps,
    HeadScale,
    ImageSize,
    Jobs,
    Json,
    Launcher,
    Limit,
    NormalizeBy,
    NormName,
    Out,
    RayAddress,
    SaveAdversarial,
    Search,
    Seed,
    ShardSize,
    Share,
    SlurmOptions,
    SplitName,
    StepSize,
    TargetName,
    Workers,
    check_split,
    given_again,
    listed,
    number,
)
from widemargin.config.run import EvaluationConfig
from widemargin.core import signals
from widemargin.core.checks import choice
from widemargin.core.child_process import Command, is_finished
from widemargin.core.device import choose_device
from widemargin.core.files import make_folder
from widemargin.core.records import read_table
from widemargin.core.screen import console_for, say
from widemargin.data.datasets import open_images
from widemargin.data.image_stream import StoredImages
from widemargin.distributed.group import env_number, evaluation_processes, is_first_process
from widemargin.errors import InputError
from widemargin.evaluation.evaluator import NoShardsError
from widemargin.evaluation.evaluator import evaluate as judge
from widemargin.evaluation.folder import DIGESTS, REPORT
from widemargin.evaluation.settings import BATCH_SIZE, SHARD_SIZE
from widemargin.evaluation.summary import show_report
from widemargin.evaluation.target import LoadedModel, load_model
from widemargin.jobs.launch import job_command, make_launcher, run_jobs
from widemargin.jobs.status import PlannedJob, write_plan
from widemargin.training.setup import held_out_images
from widemargin.types import Norm

Steps = float | Mapping[float | str, float] | None
"""PGD's step size: at every eps, or at those named."""


def evaluate(
    context: typer.Context,
    target: TargetName,
    attacks: Attacks = None,
    eps: Eps = None,
    norm: NormName = None,
    step_size: StepSize = None,
    dataset: Dataset = None,
    split: SplitName = "test",
    distance: Distance = None,
    certify: Certify = None,
    limit: Limit = None,
    seed: Seed = 0,
    shard_size: ShardSize = SHARD_SIZE,
    batch_size: BatchSize = BATCH_SIZE,
    search: Search = "float32",
    save_adversarial: SaveAdversarial = False,
    head_scale: HeadScale = None,
    normalize: NormalizeBy = None,
    image_size: ImageSize = None,
    workers: Workers = None,
    out: Out = None,
    share: Share = None,
    launcher: Launcher = "local",
    jobs: Jobs = None,
    slurm: SlurmOptions = None,
    ray: RayAddress = None,
    as_json: Json = False,
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """Accuracy on the test images, clean and under each attack, with alarms where one should doubt the numbers.

    --launcher gives the work to Slurm or to Ray, in --jobs jobs that share it.
    """
    if launcher != "local" or jobs is not None or slurm is not None or ray is not None:
        record = _launched(context, out, launcher, slurm=slurm, ray=ray, jobs=jobs, share=share, quiet=as_json)
        _show(record, out, as_json=as_json)
        return
    own_share = None if share is None else _share(share)
    speaks = is_first_process()  # of several processes, one
    interrupted = "interrupted; nothing of this evaluation was kept: with --out FOLDER the same command could go on"
    if out is not None:
        interrupted = f"interrupted; what this evaluation finished is in {out}: the same command goes on from there"
    with signals.on_interrupt(interrupted), evaluation_processes(out, own_share) as group:
        with group.sync_errors():
            asked: Norm | None = None if norm is None else choice("", "--norm", norm, get_args(Norm))
            chosen = choose_device(device, local_rank=env_number("LOCAL_RANK", 0))
            how = {"data_dir": data_dir, "image_size": image_size, "workers": workers}
            found, data = _model_and_images(target, dataset, split, how, head_scale, normalize, chosen)
            plan, radii, steps = _plan(found.plan, attacks, eps, step_size, asked)
            if found.target is not None and dataset is None and split == "test":
                limit = found.target.test_limit(limit)
        try:
            report = judge(
                found.model,
                data,
                plan.attacks,
                radii,
                plan.norm,
                steps,
                seed,
                out,
                shard_size=shard_size,
                batch_size=batch_size,
                distance=distance or False,
                certify=certify or False,
                search=search,
                save_adversarial=save_adversarial,
                limit=limit,
                subject=found.subject,
                console=console_for(stderr=True, quiet=as_json),
                share=own_share,
            )
        except NoShardsError as error:
            say(console_for(stderr=True), f"{error}; there is nothing to do")
            return
    if own_share is not None:
        say(console_for(stderr=True), f"share {share} is judged; without --share the command gathers them all")
    elif speaks:
        _show(report.to_json(), report.files, as_json=as_json)


def _show(record: Mapping[str, Any], files: Path | None, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(record, indent=2))
    else:
        show_report(console_for(), record, files)


def _share(text: str) -> tuple[int, int]:
    """ "0/4" is the first of four."""
    parts = text.split("/")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts) or not int(parts[0]) < int(parts[1]):
        raise InputError(f"--share must be K/N with K from 0 to N - 1, such as 0/4, got {text!r}")
    return int(parts[0]), int(parts[1])


@dataclass(frozen=True)
class ShareJob:
    """A share of the shards as a job, or, when all are judged, the report."""

    command: Command
    makes: Path | None = None
    """The report, where all shares are gathered."""

    @property
    def label(self) -> str:
        """For people."""
        return self.command.label

    @property
    def done(self) -> bool:
        """Whether exactly this was done."""
        return is_finished(self.command) and (self.makes is None or self.makes.is_file())


def _launched(
    context: typer.Context,
    out: Path | None,
    name: str,
    *,
    slurm: str | None,
    ray: str | None,
    jobs: int | None,
    share: str | None,
    quiet: bool,
) -> dict[str, Any]:
    """The report that the jobs made."""
    if out is None:
        raise InputError("--launcher needs a folder that the jobs share: give --out FOLDER")
    if share is not None:
        raise InputError("--share has no effect with --launcher, whose jobs have shares; say how many with --jobs")
    launcher = make_launcher(name, out, slurm=slurm, ray=ray)
    count = 1 if jobs is None else jobs
    if launcher is None:
        raise InputError("--jobs has no effect with --launcher local; on one machine torchrun shares the work")
    if not 1 <= count <= 10_000:
        raise InputError(f"--jobs must be at least 1 and at most 10000, got {count}")
    make_folder(out)
    imported = [word for module in IMPORTED for word in ("--import", module)]
    again = given_again(context, ("launcher", "slurm", "ray", "jobs", "share", "as_json"))
    line = ["-m", "widemargin", *imported, "evaluate", *again]
    work = [
        ShareJob(job_command(out, f"share {k} of {count}", [*line, "--share", f"{k}/{count}"]))
        for k in (range(count) if count > 1 else ())
    ]
    work.append(ShareJob(job_command(out, "report", line), makes=out / REPORT))
    write_plan(out, [PlannedJob(label=job.label, folder=job.command.folder.name) for job in work])
    failures = run_jobs(
        work,
        lambda job: job.command,
        launcher,
        console=console_for(stderr=True, quiet=quiet),
        may_begin=lambda job, waiting, running: job.makes is None or (len(waiting) == 1 and not running),
    )
    if failures or not work[-1].done:
        why = "; ".join(f"{failure.label}: {failure.why}" for failure in failures) or "interrupted"
        raise InputError(f"evaluate --launcher {name}: {why}; the same command goes on")
    record = read_table(out / REPORT, "give the same command again")
    return {key: value for key, value in record.items() if key not in DIGESTS.values()}


def _model_and_images(
    target: str,
    dataset: str | None,
    split: str,
    how: Mapping[str, Any],
    head_scale: float | None,
    normalize: str | None,
    device: torch.device,
) -> tuple[LoadedModel, StoredImages]:
    """The model and the images to judge it on, on the device."""
    check_split(split, dataset, ("test", "validation"))
    if dataset is not None and Path(target).is_file():  # weights may not say what images they want
        data = open_images(dataset, "test", **how)
        found = load_model(target, image_shape=data.image_shape, head_scale=head_scale, normalize=normalize)
    else:
        found = load_model(target, image_shape=None, head_scale=head_scale, normalize=normalize)
        data = _images(found, dataset, split, how)
    found.check_fits(data)
    asked = dataset or found.data
    subject = replace(found.subject, data=data.name, source=None if asked == data.name else asked, split=split)
    return replace(found, model=found.model.to(device), subject=subject), data.to(device)


def _images(found: LoadedModel, dataset: str | None, split: str, how: Mapping[str, Any]) -> StoredImages:
    """The images asked for, or those of the run."""
    if split == "validation":
        if found.target is None:
            raise InputError("--split validation: only a run of ours says which images it held out; use --split test")
        if how["image_size"] is not None:
            raise InputError("--image-size: what a run held out is resized as the run did; leave it out")
        config = found.target.description.run_config()
        return held_out_images(config, data_dir=how["data_dir"], workers=how["workers"])
    name = dataset or found.data
    if name is None:
        raise InputError(
            "--dataset is missing: this target does not say which images it wants; give e.g. --dataset cifar10"
        )
    if dataset is None and found.target is not None and how["image_size"] is None:
        return open_images(name, "test", **{**how, **found.target.description.run_config().data.reading()})
    return open_images(name, "test", **how)


def _plan(
    own: EvaluationConfig | None, attacks: str | None, eps: str | None, step_size: str | None, norm: Norm | None
) -> tuple[EvaluationConfig, tuple[float, ...], Steps]:
    """The run's own plan, with what the command line says in its place, the radii, and PGD's steps.

    A step that is not given is the run's own at the run's own eps and norm, however many eps there are, else eps/4.
    """
    names = _names("--attacks", attacks) if attacks is not None else own.attacks if own else ("clean",)
    step = number("--step-size", step_size)
    radii = None if eps is None else tuple(number("--eps", text) or 0.0 for text in _names("--eps", eps))
    if own is not None and norm in (None, own.norm):
        radii = radii or (own.eps,)
        plan = replace(own, attacks=names, step_size=own.step_size if step is None else step)
        if step is not None or own.step_size is None or radii == (own.eps,):
            return plan, radii, plan.step_size
        return plan, radii, {eps: own.step_size for eps in radii if eps == own.eps}
    attacked = [name for name in names if name != "clean"]
    if radii is None and attacked:
        raise InputError(f"--eps is missing for {', '.join(attacked)}; give e.g. --eps 8/255")
    radii = radii or (1.0,)
    chosen = norm or (own.norm if own else "linf")
    return EvaluationConfig(attacks=names, eps=radii[0], step_size=step, norm=chosen), radii, step


def _names(option: str, text: str) -> tuple[str, ...]:
    names = tuple(listed(text))
    if not names:
        example = "clean,fgsm,pgd20" if option == "--attacks" else "8/255"
        raise InputError(f"{option} must name at least one, got {text!r}; write e.g. {example}")
    return names

"""``widemargin push``: a trained network to Hugging Face's hub, with a card that says what was measured."""

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from widemargin.cli.options import TargetArgument
from widemargin.config.checkpoint import Checkpoint, read_checksum, save_checkpoint
from widemargin.config.toml import to_toml
from widemargin.core.screen import console_for, say
from widemargin.errors import InputError
from widemargin.evaluation.folder import REPORT, read_evaluation
from widemargin.evaluation.target import load_target
from widemargin.integrations import missing
from widemargin.report.model_card import model_card


def push(
    run: TargetArgument,
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The repository; it is made if need be.")],
    evaluation: Annotated[
        list[Path] | None,
        typer.Option(
            help="An evaluation folder of these weights, for the card; may be given again.", show_default=False
        ),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Where the repository is new: not for everybody.")] = False,
) -> None:
    """Put a run's weights on Hugging Face's hub: safetensors, the configuration, and a card of what was measured.

    widemargin.load("hf://OWNER/NAME") loads them.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise InputError(f"the repository must be OWNER/NAME, got {repository!r}")
    try:
        from widemargin.integrations import hub
    except ImportError as error:
        raise missing("push", "hub", error) from None
    target = load_target(run)
    records = [_record(folder, read_checksum(target.path)) for folder in evaluation or []]
    paths: dict[str, str] = {}
    for table in (target.description.config, *({"data": record["data"]} for record in records)):
        paths |= hub.local_paths(table)
    config, records = _without(paths, target.description.config), [_without(paths, record) for record in records]
    description = replace(target.description, config=config)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        save_checkpoint(folder / hub.WEIGHTS, Checkpoint(dict(target.model.state_dict()), {}, description))
        (folder / "config.toml").write_text(to_toml(description.run_config()), encoding="utf-8")
        (folder / "README.md").write_text(model_card(repository, description, records), encoding="utf-8")
        message = f"{description.run_config().name}: {description.selection}, epoch {description.epoch}"
        url = hub.upload(folder, repository, private=private, message=message)
    say(console_for(), f'pushed to {url}; next: widemargin.load("hf://{repository}")')
    for path, name in paths.items():
        say(console_for(stderr=True), f"note: {path} is a path of this machine; published is its last part, {name}")
    if not records:
        say(
            console_for(stderr=True),
            "note: the card has no numbers; evaluate with --out DIR, then push --evaluation DIR",
        )


def _without(paths: Mapping[str, str], value: Any) -> Any:
    """The same with the last parts in place of these paths, also where a sentence has one."""
    if isinstance(value, Mapping):
        return {key: _without(paths, part) for key, part in value.items()}
    if isinstance(value, list):
        return [_without(paths, part) for part in value]
    if isinstance(value, str):
        for path in sorted(paths, key=len, reverse=True):
            value = value.replace(path, paths[path])
    return value


def _record(folder: Path, checksum: str | None) -> dict[str, Any]:
    """What a finished evaluation of these weights wrote down."""
    found = read_evaluation(folder) if (folder / REPORT).is_file() else None
    if found is None:
        raise InputError(f"--evaluation {folder}: it holds no {REPORT} of an evaluation; is it finished?")
    if checksum is None or found.checkpoint != checksum:
        raise InputError(
            f"--evaluation {folder}: it judged other weights ({found.target}); give an evaluation of those to be pushed"
        )
    record: dict[str, Any] = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    return record

"""One of several processes, some of which refuse their input: ``torchrun refusing_child.py FOLDER``.

Writes what each case ended with to FOLDER/RANK.json.
"""

import contextlib
import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from small_networks import pictures, taught_conv
from torch import Tensor

import widemargin
from widemargin.cli.main import run
from widemargin.core.files import folder_lock

CLASSES, COUNT = 4, 8
RANK = int(os.environ.get("RANK", "0"))


def _evaluate(data: object, out: Path, **changes: object) -> object:
    options = {"eps": 0.1, "shard_size": 2, "margins": False, "sanity": False} | changes
    return widemargin.evaluate(taught_conv(CLASSES), data, ["clean"], out=out, **options).accuracy


def _late() -> Iterator[tuple[Tensor, Tensor]]:
    """Data whose last shard is wrong in the second process."""
    x, y = pictures(CLASSES, COUNT)
    yield x[:6], y[:6]
    yield x[6:] + RANK, y[6:]


def one_has_other_images(folder: Path) -> object:
    x, y = pictures(CLASSES, COUNT)
    return _evaluate((x + RANK, y), folder)


def one_has_other_images_late(folder: Path) -> object:
    return _evaluate(_late(), folder)


def one_has_other_settings(folder: Path) -> object:
    return _evaluate(pictures(CLASSES, COUNT), folder, shard_size=2 * (1 - RANK))


def the_first_finds_another_evaluation(folder: Path) -> object:
    _evaluate(pictures(CLASSES, COUNT), folder)
    return _evaluate(pictures(CLASSES, COUNT), folder, seed=1)


def the_folder_is_anothers(folder: Path) -> object:
    folder.mkdir(exist_ok=True)
    with folder_lock(folder) if RANK == 0 else contextlib.nullcontext():
        return _evaluate(pictures(CLASSES, COUNT), folder)


def all_have_no_images(folder: Path) -> object:
    return _evaluate([], folder)


def one_has_no_weights_at_the_command_line(folder: Path) -> object:
    name = f"{folder}.pt" if RANK == 0 else "absent.pt"
    model = widemargin.models.MLPConfig(hidden=(4,)).build(image_shape=(1, 28, 28), num_classes=10, seed=0)
    torch.save(model.state_dict(), f"{folder}.pt" if RANK == 0 else f"{folder}-unused.pt")
    words = io.StringIO()
    with contextlib.redirect_stderr(words):
        code = run(["evaluate", name, "--dataset", "mnist-embedded", "--limit", "4", "--out", str(folder)])
    return {"code": code, "said": words.getvalue()}


CASES: list[Callable[[Path], object]] = [
    one_has_other_images,
    one_has_other_images_late,
    one_has_other_settings,
    the_first_finds_another_evaluation,
    the_folder_is_anothers,
    all_have_no_images,
    one_has_no_weights_at_the_command_line,
]


def main(place: Path) -> None:
    torch.set_num_threads(1)
    # Imported while a group is there, it keeps gloo's threads until Python ends, which they may abort (torch 2.13).
    importlib.import_module("torch._dynamo")
    dist.init_process_group("gloo")
    ended: dict[str, object] = {}
    for case in CASES:
        try:
            ended[case.__name__] = case(place / case.__name__)
        except widemargin.InputError as error:
            ended[case.__name__] = str(error)
    (place / f"{RANK}.json").write_text(json.dumps(ended))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Folders such as the commands leave behind, made up: runs, evaluations, a sweep, reproduced rows."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from widemargin.cli.report import references
from widemargin.config.toml import to_dict, to_toml
from widemargin.recipes import find_recipe
from widemargin.report import write_report

PARTS = ("apgd-ce", "apgd-t", "fab-t", "square")
CLASSES = 10


def write_run(
    folder: Path,
    recipe: str = "cifar-resnet18/at",
    *,
    epochs: int = 100,
    gain: float = 0.0,
    alarms: Mapping[int, list[str]] | None = None,
) -> Path:
    """A run of so many epochs; gain moves its curves, alarms are raised at epochs."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(find_recipe(recipe).config))
    lines = [_epoch(number, gain, penalty="emr" in recipe) for number in range(1, epochs + 1)]
    for number, names in (alarms or {}).items():
        lines[number - 1]["alarms"] = names
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def checksum_of(name: str) -> str:
    """As checkpoints carry it."""
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"


def write_checkpoint(path: Path, name: str) -> None:
    """A file that says of itself what a checkpoint says, with hardly any weights."""
    description = {"checksum": checksum_of(name), "which": path.stem}
    save_file({"weight": np.zeros(3)}, path, metadata={"widemargin": json.dumps(description)})


def _epoch(number: int, gain: float, *, penalty: bool) -> dict:
    progress = 1 - math.exp(-number / 18) + (0.09 if number > 60 else 0.0) + 0.012 * math.sin(2.3 * number)
    loss = 2.4 * math.exp(-number / 40) + 0.9 - 0.3 * (number > 60)
    line = {
        "epoch": number,
        "samples": 48000,
        "loss": loss,
        "total": loss + 0.1 * penalty,
        "train_accuracy": 30 + 52 * progress,
        "lr": 0.1 if number <= 60 else 0.01,
        "seconds": 81.5,
        "test_clean": 35 + 45 * progress,
        "test_robust": 20 + 27 * progress + 3 * gain,
        "validation_clean": 36 + 44 * progress,
        "validation_robust": 21 + 27 * progress + 3 * gain,
        "test_margin_mean": 0.6 * progress + 0.2 * gain,
        "test_margin_std": 0.3 * progress,
        "watch_seconds": 12.5,
    }
    return line | ({"emr": 9.0 * math.exp(-number / 30) + 1} if penalty else {})


def write_evaluation(
    folder: Path,
    *,
    name: str | None = "cifar-resnet18/at",
    target: str = "runs/at",
    count: int = 1000,
    gain: float = 0.0,
    alarms: tuple = (),
    norm: str = "linf",
    gallery: bool = True,
    seed: int = 3,
    **changes: object,
) -> dict:
    """A finished evaluation; its report, which has these ``changes``, is returned."""
    folder.mkdir(parents=True)
    examples = _examples(np.random.default_rng(seed), count, gain)
    accuracy = {
        key: 100.0 * sum(example["verdicts"][key] for example in examples) / count for key in examples[0]["verdicts"]
    }
    report = {
        "format": "widemargin-evaluation-1",
        "target": target,
        "name": name,
        "weights": "best",
        "selection": "highest robust accuracy on 2,000 held-out images",
        "epoch": 64,
        "data": {"name": "cifar10", "split": "test", "count": count},
        "norm": norm,
        "eps": [{"written": "0.031", "value": 0.031}],
        "step_size": 0.00784,
        "seed": 0,
        "shard_size": 500,
        "batch_size": 250,
        "attacks": ["clean", "fgsm", "pgd10", "pgd100", "autoattack"],
        "search": "float32",
        "accuracy": accuracy,
        "curves": {
            "pgd10": [
                {"eps": k / 255, "written": f"{k}/255", "accuracy": accuracy["clean"] * math.exp(-k / (12 + 4 * gain))}
                for k in (2, 4, 8, 12, 16)
            ]
        },
        "margins": _margins(examples),
        "distance": {"count": int(accuracy["clean"] * count / 100), "median": 0.0391, "rank_correlation": 0.874},
        "alarms": list(alarms),
        "versions": {"widemargin": "0.1.0", "torch": "2.11.0", "python": "3.11.2"},
        "device": "NVIDIA H200",
        "precision": "float32 (no TF32)",
        "seconds": {"clean": 0.8, "fgsm": 1.9, "pgd10": 9.7, "pgd100": 95.0, "autoattack": 2213.4},
    }
    report |= changes
    (folder / "report.json").write_text(json.dumps(report, indent=2))
    (folder / "examples.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    if gallery:
        write_gallery(folder / "gallery.npz")
    return report


def _examples(rng: np.random.Generator, count: int, gain: float) -> list[dict]:
    return [_example(rng, index, gain) for index in range(count)]


def _example(rng: np.random.Generator, index: int, gain: float) -> dict:
    margin = float(rng.normal(0.034 + 0.006 * gain, 0.032))
    right = margin > 0
    distance = max(0.001, margin * rng.lognormal(-0.1, 0.25)) if right else 0.0
    broken_by = None
    verdicts = {"clean": right}
    for attack, strength in (("fgsm", 0.8), ("pgd10", 1.0), ("pgd100", 1.02)):
        verdicts[attack] = right and distance > 0.03 * strength
    alive = right
    for part, strength in zip(PARTS, (1.0, 1.08, 1.08, 1.085), strict=True):
        if alive and distance <= 0.03 * strength:
            alive, broken_by = False, part
        verdicts[f"autoattack/{part}"] = alive
    verdicts["autoattack"] = alive
    label = index % CLASSES
    return {
        "index": index,
        "label": label,
        "prediction": label if right else (label + 1) % CLASSES,
        "verdicts": verdicts,
        "broken_by": broken_by,
        "margin": margin,
        "distance": distance,
    }


def _margins(examples: list[dict]) -> dict:
    found = {"all": examples, "correct": [example for example in examples if example["verdicts"]["clean"]]}
    return {key: _summary([example["margin"] for example in members]) for key, members in found.items()}


def _summary(values: list[float]) -> dict:
    quantiles = {str(q): float(np.quantile(values, q)) for q in (0.05, 0.25, 0.5, 0.75, 0.95)}
    return {
        "count": len(values),
        "mean": float(np.mean(values)),
        "std": float(np.std(values, ddof=1)),
        "quantiles": quantiles,
    }


def write_gallery(path: Path, count: int = 6, channels: int = 3, attack: str = "autoattack") -> None:
    """Blobs and their noisy twins."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[0:32, 0:32] / 32
    waves = [
        np.sin(6 * rows * (k + 1) / 3 + c) + np.cos(5 * columns + k) for k in range(count) for c in range(channels)
    ]
    images = (127 + 55 * np.array(waves).reshape(count, channels, 32, 32)).clip(0, 255).astype(np.uint8)
    noise = rng.choice([-8, 8], size=images.shape)
    labels = np.arange(count) % CLASSES
    np.savez(
        path,
        images=images,
        adversarial=(images.astype(int) + noise).clip(0, 255).astype(np.uint8),
        labels=labels,
        predictions=labels,
        adversarial_predictions=np.where(labels % 3 == 0, labels, (labels + 5) % CLASSES),
        attack=np.array(attack),
    )


def write_sweep(folder: Path) -> Path:
    """A sweep with one point still to do, and the run of one point."""
    grid = {"emr.weight": ["0.1", "0.3", "1"], "emr.temperature": ["0.1", "1", "40"]}
    points = [
        {"emr.weight": weight, "emr.temperature": temperature}
        for weight in grid["emr.weight"]
        for temperature in grid["emr.temperature"]
    ]
    folder.mkdir(parents=True)
    done = [
        {"point": point, "results": {"score": 47.5 + 1.7 * math.sin(3.0 * number), "scored": "validation_robust"}}
        for number, point in enumerate(points[:-1])
    ]
    record = {"recipe": "cifar-resnet18/at-emr", "grid": grid, "points": done}
    (folder / "sweep.json").write_text(json.dumps(record))
    write_run(folder / "points" / "emr.weight=0.1,emr.temperature=0.1", "cifar-resnet18/at-emr", epochs=2)
    return folder


def write_result(
    folder: Path, *, recipe: str = "mnist-mlp/st-emr", seed: int = 0, clean: float = 97.4, quick: bool = False
) -> dict:
    """A reproduced row."""
    folder.mkdir(parents=True)
    config = to_dict(find_recipe(recipe).config) | {"seed": seed}
    margins = {"count": 9700, "mean": 2.25, "std": 0.97, "quantiles": {"0.5": 2.2}}
    result = {
        "recipe": recipe,
        "seed": seed,
        "quick": quick,
        "accuracy": {"clean": clean, "pgd20": clean - 10},
        "margin_train": margins | {"mean": 4.4},
        "margin_test": margins,
        "weights": "last",
        "selection": "the last epoch",
        "epoch": 30,
        "training_seconds": 310.2,
        "evaluation_seconds": 4.5,
        "device": "cpu",
        "versions": {"widemargin": "0.1.0"},
        "config": config,
    }
    (folder / "result.json").write_text(json.dumps(result))
    return result


ALARM = {
    "name": "black-box attack wins",
    "message": "Square broke 12 images that the gradient attacks left standing.",
    "suggestion": "Gradients may be masked; look for non-differentiable parts and attack through them.",
}


def write_everything(folder: Path) -> Path:
    """Two runs, one unfinished; an evaluation of each; a sweep; a row reproduced twice."""
    write_run(folder / "runs" / "at", alarms={93: ["robust-overfitting"]})
    emr = {31: ["emr-still"], 70: ["robust-overfitting"]}
    write_run(folder / "runs" / "at-emr", "cifar-resnet18/at-emr", epochs=72, gain=1.0, alarms=emr)
    with (folder / "runs" / "at-emr" / "metrics.jsonl").open("a") as stream:
        stream.write('{"epoch": 73, "loss": 0.8')
    write_evaluation(folder / "evaluations" / "at", alarms=(ALARM,))
    write_evaluation(
        folder / "evaluations" / "at-emr", name="cifar-resnet18/at-emr", target="runs/at-emr", gain=1.0, seed=4
    )
    write_sweep(folder / "sweep")
    for seed in (0, 1):
        write_result(folder / "table1" / "mnist-mlp-st-emr" / f"seed-{seed}", seed=seed, clean=97.4 + 0.2 * seed)
    return folder


def page_of(folder, **options):
    out = folder.parent / f"{folder.name}-out" / "report.html"
    write_report([folder], out, references=references(), **options)
    return out.read_text(encoding="utf-8")

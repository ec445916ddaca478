"""Folders such as ``widemargin reproduce`` leaves behind, made up; every number is a function of recipe and seed."""

import json
import math
from pathlib import Path

import numpy as np
import torch

from report_folders import write_evaluation
from widemargin.config.toml import to_dict, to_toml
from widemargin.core.schema import LiteralFloat
from widemargin.margins import WIDTHS, count_margins
from widemargin.recipes import find_recipe

VERSIONS = {"widemargin": "0.1.0", "torch": "2.13.0", "python": "3.11.2"}


def write_job(
    out: Path,
    recipe: str,
    seed: int = 0,
    *,
    clean: float = 97.0,
    robust: float = 80.0,
    margin: float = 2.0,
    quick: bool = False,
    finished: bool = True,
    later: tuple[str, ...] = (),
    epochs: int | None = None,
    attack: str = "",
) -> Path:
    """A job; ``later`` are the judgments it also has, an unfinished one has no result."""
    config = find_recipe(recipe).config
    folder = out / recipe.replace("/", "-") / f"seed-{seed}"
    (folder / "run").mkdir(parents=True)
    (folder / "run" / "config.toml").write_text(to_toml(config).replace("seed = 0", f"seed = {seed}"))
    lines = [_epoch(e, epochs or config.epochs, clean, robust, margin) for e in range(1, (epochs or config.epochs) + 1)]
    (folder / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "run" / "last.safetensors").write_bytes(bytes(1000))
    if not finished:
        return folder
    rng = np.random.default_rng(seed)
    values = torch.from_numpy(rng.normal(margin, 0.45 * margin, 2000))
    counted = count_margins(values, width=WIDTHS["l2"])
    histogram = {"width": counted.width, "first": counted.first, "counts": list(counted.counts)}
    summary = {"count": 1900, "mean": margin, "std": 0.4 * margin, "quantiles": {"0.5": margin}}
    small = recipe.startswith(("mnist-mlp", "cifar-cnn"))
    attack = attack or ("pgd20" if recipe.startswith("mnist") else "pgd10")
    result = {
        "recipe": recipe,
        "seed": seed,
        "quick": quick,
        "accuracy": {"clean": clean, attack: robust}
        | ({} if small else {"fgsm": robust + 5, "pgd100": robust - 1, "autoattack": robust - 4}),
        **({"margin_train": summary, "margin_test": summary} if small else {}),
        "histograms": {"margin_test": histogram} if small else {},
        "weights": "last",
        "selection": "the last epoch",
        "epoch": config.epochs,
        "training_seconds": 310.25,
        "evaluation_seconds": 4.5,
        "workers": 4,
        "device": "NVIDIA H200",
        "engine": "fast, float32, CUDA graphs",
        "versions": VERSIONS,
        "config": to_dict(config) | {"seed": seed},
    }
    (folder / "result.json").write_text(json.dumps(result, indent=2))
    write_evaluation(folder / "evaluation", name=recipe, count=300, gallery=False)
    for name in later:
        _write_later(folder / name, recipe, rng, clean, robust, margin)
    return folder


def _epoch(number: int, epochs: int, clean: float, robust: float, margin: float) -> dict:
    done = 1 - math.exp(-6 * number / epochs)
    wave = 0.01 * math.sin(2.3 * number)
    line = {"epoch": number, "samples": 60000, "loss": 2.3 * (1 - done) + 0.02, "seconds": 6.2051, "lr": 0.01}
    for split in ("test", "validation"):
        line |= {f"{split}_clean": clean * (done + wave), f"{split}_robust": robust * (done + 2 * wave)}
    for split, more in (("train", 1.3), ("test", 1.0)):
        line |= {f"{split}_margin_mean": more * margin * (done + wave), f"{split}_margin_std": 0.4 * margin * done}
    return line | {"watch_seconds": 1.25}


def _write_later(
    folder: Path, recipe: str, rng: np.random.Generator, clean: float, robust: float, margin: float
) -> None:
    report = write_evaluation(folder, name=recipe, count=20, gallery=False)
    if folder.name == "autoattack":
        report["accuracy"] = {"clean": 97.0, "autoattack": robust - 3.0}
    elif folder.name == "autoattack-8-255":
        report["accuracy"] = {"clean": clean + 0.5, "autoattack": robust - 5.0}
        report |= {"eps": [{"written": "8/255", "value": 8 / 255}], "data": {"name": "cifar10", "count": 1000}}
        report["precision"] = "float32 (no TF32); AutoAttack searched with TF32"
    elif folder.name in ("strongest", "autoattack-1000"):
        found = {"clean": clean, "pgd20": robust, "pgd20-margin": robust - 1.0, "pgd20-strongest": robust - 2.0}
        report["accuracy"] = found | ({"autoattack": robust - 2.5} if folder.name == "autoattack-1000" else {})
    elif folder.name == "eps":
        report |= _over_eps(recipe, clean, robust)
    else:
        report |= {"norm": "l2", "distance": {"count": 1200, "median": 1.1, "rank_correlation": 0.91234567}}
        report |= {"certified": {"count": 100, "median": 0.3, "accuracy": {}}} if folder.name == "certified" else {}
        margins = np.abs(rng.normal(margin, 0.4 * margin, 1200))
        found = margins * rng.lognormal(-0.1, 0.15, 1200)
        lines = [
            {
                "index": i,
                "label": 0,
                "prediction": 0,
                "verdicts": {"clean": True},
                "margin": float(m),
                "distance": float(d),
                **({"certified": float(d) / 5} if folder.name == "certified" else {}),
            }
            for i, (m, d) in enumerate(zip(margins, found, strict=True))
        ]
        (folder / "examples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "report.json").write_text(json.dumps(report))


def _over_eps(recipe: str, clean: float, robust: float) -> dict:
    """Accuracy falls from ``clean`` through ``robust`` at the recipe's eps."""
    trained = find_recipe(recipe).config.evaluation.eps
    sizes = ("0.02", "0.05", "0.1", "0.15", "0.2", "0.3") if trained == 0.1 else (2, 4, 6, 8, 10, 12, 16)
    radii = [LiteralFloat(size if isinstance(size, str) else f"{size}/255") for size in sizes]
    left = math.log(clean / robust)
    found = {str(eps): clean * math.exp(-left * (eps / trained) ** 2) for eps in radii}
    return {
        "eps": [{"written": str(eps), "value": float(eps)} for eps in radii],
        "step_size": None,
        "attacks": ["clean", "pgd100"],
        "accuracy": {"clean": clean} | {f"pgd100@{eps}": value for eps, value in found.items()},
        "curves": {
            "pgd100": [{"eps": float(eps), "written": str(eps), "accuracy": found[str(eps)]} for eps in radii],
        },
    }

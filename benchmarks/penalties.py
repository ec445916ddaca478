"""What a penalty costs on other people's models and on ours: the numbers behind docs/models.md.

Each model is built from its configuration with random weights. Three ways to the same penalty are timed in turn, in
steps of plain training (forward pass, cross-entropy, backward pass) of the same model and batch: approximate EMR as the
package computes it, by whichever way it takes; the same written down with ``create_graph=True``; and the Jacobian
regularizer of Hoffman et al. 2019 (one random projection), which is stochastic EMR up to a factor, beside ours.

Times are those of this process on the CPU, so that what else a machine does matters less; medians over the rounds.
"""

import importlib
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.naive import naive_penalty
from benchmarks.timing import Phases
from widemargin.cli.options import Json
from widemargin.core.checks import check_count, logits_of
from widemargin.core.screen import console_for, show_table
from widemargin.errors import InputError
from widemargin.gradients.path import path_of
from widemargin.models import CNNConfig, MLPConfig, ResNet18Config, SwishWideResNetConfig, WideResNetConfig, build_model
from widemargin.regularizers.emr import ApproximateEMR, StochasticEMR

CLASSES = 10
Make = Callable[[], nn.Module]


def timm_model(name: str, **settings: Any) -> Make:
    """One of timm's, untrained."""

    def make() -> nn.Module:
        timm = importlib.import_module("timm")
        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=CLASSES, **settings)
        return model

    return make


def timm_mixer(**settings: Any) -> Make:
    """The mixer of timm, whose entries fix their patches."""

    def make() -> nn.Module:
        mixers = importlib.import_module("timm.models.mlp_mixer")
        model: nn.Module = mixers.MlpMixer(num_classes=CLASSES, img_size=32, patch_size=4, **settings)
        return model

    return make


def hugging_face_model(kind: str, **settings: Any) -> Make:
    """One of Hugging Face's, untrained, whose output has ``.logits``."""

    def make() -> nn.Module:
        transformers = importlib.import_module("transformers")
        config = getattr(transformers, f"{kind}Config")(num_labels=CLASSES, **settings)
        model: nn.Module = getattr(transformers, f"{kind}ForImageClassification")(config)
        return model

    return make


def own_model(config: Any) -> Make:
    """One of the package's."""
    return lambda: build_model(config, image_shape=(3, 32, 32), num_classes=CLASSES, seed=0)


_VIT = {"img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 4, "num_heads": 3}
_SWIN = {"embed_dim": 48, "window_size": 4, "num_heads": (2, 4, 8, 8)}
_HF_VIT = {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 384}
MODELS: dict[str, tuple[Make, int]] = {
    "ours: MLP": (own_model(MLPConfig()), 32),
    "ours: MLP, GELU": (own_model(MLPConfig(activation="gelu")), 32),
    "ours: CNN": (own_model(CNNConfig()), 32),
    "ours: ResNet-18, width 16": (own_model(ResNet18Config(width=16)), 32),
    "ours: ResNet-18, width 16, SiLU": (own_model(ResNet18Config(width=16, activation="silu")), 32),
    "ours: WRN-10-2": (own_model(WideResNetConfig(depth=10, widen=2)), 32),
    "ours: WRN-10-2, swish": (own_model(SwishWideResNetConfig(depth=10, widen=2)), 32),
    "timm: ViT": (timm_model("vit_tiny_patch16_224", **_VIT), 32),
    "timm: DeiT III": (timm_model("deit3_small_patch16_224", **_VIT), 32),
    "timm: CaiT": (timm_model("cait_xxs24_224", **(_VIT | {"num_heads": 2, "depth": 2})), 32),
    "timm: EVA-02": (timm_model("eva02_tiny_patch14_224", img_size=56), 56),
    "timm: Swin": (timm_model("swin_tiny_patch4_window7_224", img_size=64, depths=(2, 2, 2, 2), **_SWIN), 64),
    "timm: ConvNeXt": (timm_model("convnext_atto", depths=(2, 2, 4, 2), dims=(24, 48, 96, 192)), 64),
    "timm: ConvNeXt V2": (timm_model("convnextv2_atto", depths=(2, 2, 4, 2), dims=(24, 48, 96, 192)), 64),
    "timm: MLP-Mixer": (timm_mixer(num_blocks=4, embed_dim=128), 32),
    "timm: ResNet-18": (timm_model("resnet18"), 32),
    "timm: ResNet-26-D": (timm_model("resnet26d"), 32),
    "timm: EfficientNet-Lite0": (timm_model("efficientnet_lite0"), 64),
    "timm: EfficientNet-B0": (timm_model("efficientnet_b0"), 64),
    "timm: RegNetY-200MF": (timm_model("regnety_002"), 64),
    "timm: CoAtNet": (timm_model("coatnet_nano_rw_224", img_size=64), 64),
    "timm: MaxViT": (timm_model("maxvit_pico_rw_256", img_size=64), 64),
    "timm: EdgeNeXt": (timm_model("edgenext_xx_small"), 64),
    "timm: FastViT": (timm_model("fastvit_t8"), 64),
    "hf: ViT": (hugging_face_model("ViT", image_size=32, patch_size=4, **_HF_VIT), 32),
    "hf: ConvNeXt": (hugging_face_model("ConvNext", hidden_sizes=[24, 48, 96, 192], depths=[2, 2, 4, 2]), 64),
    "hf: Swin": (
        hugging_face_model("Swin", image_size=64, window_size=4, embed_dim=48, depths=[2, 2, 2], num_heads=[2, 4, 8]),
        64,
    ),
}
"""How to make each, and the side of its images."""
BY_HAND = ("naive", "jacobian regularizer")
"""These differentiate twice, which of torch's attentions only the one by matrix products can."""
LIBRARIES = {"timm": "timm", "hf": "transformers"}


class LogitsOf(nn.Module):
    """A model whose forward gives logits, for what is written by hand."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = logits_of(self.model(x))
        return logits


def jacobian_regularizer(model: nn.Module, x: Tensor, *, generator: torch.Generator) -> Tensor:
    """K / 2 times the mean of ||v J||^2, v uniform on the unit sphere: Hoffman et al. 2019, one projection."""
    leaf = x.detach().clone().requires_grad_(True)
    logits = model(leaf)
    v = torch.randn(logits.shape, generator=generator, dtype=logits.dtype)
    v = v / v.norm(dim=1, keepdim=True)
    (gradient,) = torch.autograd.grad(logits, leaf, v, create_graph=True)
    penalty: Tensor = 0.5 * logits.shape[1] * gradient.square().sum() / len(x)
    return penalty


def measure(model: nn.Module, x: Tensor, y: Tensor, rounds: int, advance: Callable[[], None]) -> dict[str, float]:
    """Median seconds of each way over the rounds, in turn, after two of each."""
    by_hand, generator = LogitsOf(model), torch.Generator().manual_seed(0)
    approximate, stochastic = ApproximateEMR(), StochasticEMR()
    losses: dict[str, Callable[[], Tensor]] = {
        "plain": lambda: F.cross_entropy(by_hand(x), y),
        "approximate": lambda: approximate(model, x).mean(),
        "naive": lambda: naive_penalty(approximate, by_hand, x, y).mean(),
        "stochastic": lambda: stochastic(model, x, generator=generator).mean(),
        "jacobian regularizer": lambda: jacobian_regularizer(by_hand, x, generator=generator),
    }
    seconds: dict[str, list[float]] = {name: [] for name in losses}
    for turn in range(rounds + 2):
        for name, loss in losses.items():
            by_hand.eval()
            by_hand.zero_grad(set_to_none=True)
            began = time.process_time()
            with sdpa_kernel(SDPBackend.MATH) if name in BY_HAND else nullcontext():
                loss().backward()
            if turn >= 2:
                seconds[name].append(time.process_time() - began)
        advance()
    return {name: statistics.median(values) for name, values in seconds.items()}


def measured_model(name: str, batch_size: int, rounds: int, advance: Callable[[], None]) -> dict[str, Any]:
    """The record of one model."""
    make, side = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    x, y = torch.rand(batch_size, 3, side, side), torch.randint(0, CLASSES, (batch_size,))
    path = path_of(model, x)
    seconds = measure(model, x, y, rounds, advance)
    steps = {way: value / seconds["plain"] for way, value in seconds.items() if way != "plain"}
    return {
        "model": name,
        "image": side,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "way": path.way,
        "known": path.known,
        "reason": path.reason,
        "plain_ms": 1000 * seconds["plain"],
        "plain_steps": steps,
        "ours_to_naive": seconds["approximate"] / seconds["naive"],
        "ours_to_jacobian_regularizer": seconds["stochastic"] / seconds["jacobian regularizer"],
    }


def penalties(
    models: Annotated[str, typer.Option(help='Those whose name has this, such as "timm: V" or "MLP".')] = "",
    batch_size: Annotated[int, typer.Option(help="Images a step.")] = 8,
    rounds: Annotated[int, typer.Option(help="How often each is timed.")] = 7,
    as_json: Json = False,
) -> None:
    """What a penalty costs on timm's, Hugging Face's and our models, in plain steps, beside double backward by hand."""
    check_count("--batch-size", batch_size)
    check_count("--rounds", rounds)
    chosen = [name for name in MODELS if models.lower() in name.lower()]
    if not chosen:
        raise InputError(f"--models: no name has {models!r}; there are {', '.join(MODELS)}")
    missing = [library for library in LIBRARIES.values() if importlib.util.find_spec(library) is None]
    skipped = [name for name in chosen if LIBRARIES.get(name.partition(":")[0]) in missing]
    found = []
    with Phases(console_for(stderr=True)) as phases:
        for name in chosen:
            if name not in skipped:
                phases.say(name, rounds + 2)
                found.append(measured_model(name, batch_size, rounds, phases.advance))
    if as_json:
        record = {"batch_size": batch_size, "rounds": rounds, "threads": torch.get_num_threads()}
        typer.echo(json.dumps(record | {"torch": torch.__version__, "models": found, "skipped": skipped}, indent=2))
        return
    rows = [
        (
            row["model"],
            row["way"] if row["known"] else f"{row['way']} ({row['reason']})",
            f"{row['plain_ms']:.1f}",
            *(f"{row['plain_steps'][way]:.2f}" for way in ("approximate", "naive")),
            f"{row['ours_to_naive']:.2f}",
            *(f"{row['plain_steps'][way]:.2f}" for way in ("stochastic", "jacobian regularizer")),
        )
        for row in found
    ]
    header = ("model", "way", "plain ms", "EMR", "by hand", "ratio", "stochastic EMR", "Jacobian regularizer")
    notes = [f"batch {batch_size}, {torch.get_num_threads()} threads, torch {torch.__version__}; costs in plain steps"]
    notes += [f"not installed, so left out: {', '.join(skipped)}"] * bool(skipped)
    show_table(console_for(), header, rows, left=2, title="a penalty's cost", notes=notes)

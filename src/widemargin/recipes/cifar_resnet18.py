"""The ResNet-18 table of the supplement, its half of the clean-or-adversarial ablation, and the missing baseline.

The paper's AT baseline has weight decay 1e-3 and its AT+EMR 5e-4: ``at-wd0.0005`` tells the two effects apart. Weight
averaging helps robust networks by itself: the rows with it tell whether EMR helps beside it. They are the averages of
the very runs without it, which keep them beside their own weights.
"""

from dataclasses import replace

from widemargin.config.run import AveragingConfig, RunConfig
from widemargin.models.resnet import ResNet18Config
from widemargin.recipes import cifar_protocol as protocol
from widemargin.recipes.cifar_protocol import row
from widemargin.recipes.recipe import Recipe, published

TABLE, ABLATION = "supplement_resnet18", "table4_clean_or_adversarial"
MODEL = ResNet18Config()
BESIDE = AveragingConfig(beside=True)
AVERAGED = "with weight averaging; the paper has no such row"


def _averaged(run: RunConfig) -> Recipe:
    """The averaged weights of a run that keeps them."""
    config = replace(run, name=f"{run.name}-averaged", averaging=AveragingConfig())
    return Recipe(config=config, note=AVERAGED, averages_of=run.name)


def recipes() -> list[Recipe]:
    """The rows in the paper's order."""
    at = protocol.at_run("cifar-resnet18/at", MODEL, 1e-3)
    trades = protocol.trades_run("cifar-resnet18/trades", MODEL, 5e-4)
    at_emr = protocol.emr(0.1, 40.0, protocol.AT_EMR_DROPS)
    trades_emr = protocol.emr(0.3, 0.1, protocol.TRADES_EMR_DROPS)
    at_half = replace(protocol.at_run("cifar-resnet18/at-wd0.0005", MODEL, 5e-4), averaging=BESIDE)
    with_emr = replace(at_half, name="cifar-resnet18/at-emr", emr=at_emr)
    clean = replace(trades, emr=replace(trades_emr, at="clean"))
    return [
        Recipe(config=at, published=published(TABLE, "AT")),
        Recipe(config=at_half, note=protocol.SAME_DECAY),
        row("cifar-resnet18/at-igr", replace(at, igr=protocol.IGR), published(TABLE, "AT+IGR")),
        Recipe(config=with_emr, published=published(TABLE, "AT+EMR")),
        *(_averaged(run) for run in (at_half, with_emr)),
        Recipe(config=trades, published=published(TABLE, "TRADES")),
        row("cifar-resnet18/trades-igr", replace(trades, igr=protocol.IGR), published(TABLE, "TRADES+IGR")),
        row("cifar-resnet18/trades-emr", replace(trades, emr=trades_emr), published(TABLE, "TRADES+EMR")),
        row("cifar-resnet18/trades-emr-clean", clean, published(ABLATION, "TRADES+EMR-clean", model="ResNet18")),
    ]

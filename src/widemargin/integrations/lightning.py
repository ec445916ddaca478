"""Lightning: a callback adds a penalty to what ``training_step`` returns, before Lightning's one backward pass.

So precision, gradient accumulation and the processes of DDP treat it as they treat the loss. ``training_step`` is the
user's own again after the fit.
"""

from collections.abc import Mapping
from functools import wraps
from typing import Any

import lightning.pytorch as pl
from torch import Tensor, nn

from widemargin.core.checks import check_number
from widemargin.data.unpacking import unpack
from widemargin.errors import InputError
from widemargin.types import Regularizer


class EMRCallback(pl.Callback):
    """loss + weight x mean of ``emr`` at the batch's images; logged as "emr", or under another ``name``.

    The module itself maps images to logits, or ``model`` does. Labels go to penalties that take them.
    """

    def __init__(self, *, weight: float, emr: Regularizer, model: nn.Module | None = None, name: str = "emr") -> None:
        super().__init__()
        rule, hint = "a number > 0", "leave the callback out for none"
        check_number("EMRCallback.weight", weight, is_valid=lambda w: w > 0, rule=rule, hint=hint)
        self.weight, self.emr, self.model, self.name = weight, emr, model, name
        self._own: Any = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Put the penalty into the module's step for this fit."""
        del trainer
        if stage != "fit":
            return
        if not pl_module.automatic_optimization:
            raise InputError(
                "EMRCallback: this module optimizes by hand, so its training_step must add the penalty: "
                "self.manual_backward(loss + weight * emr(self, x).mean())"
            )
        before = pl_module.training_step
        own = vars(pl_module).get("training_step")
        self._own = None if hasattr(own, "adds_penalty") else own  # another callback's goes with its fit

        @wraps(before)
        def training_step(batch: Any, *arguments: Any, **named: Any) -> Any:
            output = before(batch, *arguments, **named)
            loss = output.get("loss") if isinstance(output, Mapping) else output
            if loss is None:  # Lightning skips the step
                return output
            x, y = unpack("EMRCallback", batch)
            penalty: Tensor = self.emr(self.model or pl_module, x, y).mean()
            pl_module.log(self.name, penalty.detach(), batch_size=len(x))
            loss = loss + self.weight * penalty
            return {**output, "loss": loss} if isinstance(output, Mapping) else loss

        vars(training_step)["adds_penalty"] = True
        vars(pl_module)["training_step"] = training_step

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Give the module its own step back."""
        del trainer
        if stage == "fit":
            self._restore(pl_module)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """The same, where a fit ends early."""
        del trainer, exception
        self._restore(pl_module)

    def _restore(self, pl_module: pl.LightningModule) -> None:
        if hasattr(vars(pl_module).get("training_step"), "adds_penalty"):
            del vars(pl_module)["training_step"]
            if self._own is not None:
                vars(pl_module)["training_step"] = self._own

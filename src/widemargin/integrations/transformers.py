"""Hugging Face's Trainer: a mixin adds a penalty to the loss of every training batch.

    class EMRTrainer(EMRMixin, Trainer):
        emr, emr_weight = widemargin.ApproximateEMR(), 0.1

The images are the batch's ``pixel_values`` as the model gets them: where the image processor normalizes, the penalty is
in its units, and a weight for images in [0, 1] is divided by the variance. ``do_normalize=False`` and a normalization
inside the model (``widemargin.pixels``) keep attacks and margins in pixels too.
"""

from typing import Any

from torch import Tensor, nn

from widemargin.core.checks import check_number
from widemargin.data.unpacking import unpack
from widemargin.errors import InputError
from widemargin.types import Regularizer


class EMRMixin:
    """For a class that derives from ``transformers.Trainer`` after it and sets the two attributes."""

    emr: Regularizer
    emr_weight: float
    current_gradient_accumulation_steps: int
    model_accepts_loss_kwargs: bool
    compute_loss_func: Any

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not (hasattr(cls, "emr") and hasattr(cls, "emr_weight")):
            raise InputError(
                f"{cls.__name__}: emr and emr_weight are missing; write for example "
                "emr, emr_weight = widemargin.ApproximateEMR(), 0.1"
            )
        owner, rule, hint = f"{cls.__name__}.emr_weight", "a number > 0", "use the Trainer itself for none"
        check_number(owner, cls.emr_weight, is_valid=lambda w: w > 0, rule=rule, hint=hint)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The Trainer's loss, and in training the penalty; what gradient accumulation divides later is left to it."""
        batch = dict(inputs)  # the Trainer may take labels out
        trainer: Any = super()
        found = trainer.compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not model.training:
            return found
        loss, *outputs = found if return_outputs else (found,)
        x, y = unpack("EMRMixin", batch)
        penalty = self.emr_weight * self.emr(model, x, y).mean()
        if self._is_divided_already(num_items_in_batch):
            penalty = penalty / self.current_gradient_accumulation_steps
        loss = loss + penalty
        return (loss, *outputs) if return_outputs else loss

    def _is_divided_already(self, num_items_in_batch: Tensor | int | None) -> bool:
        """As ``Trainer.training_step`` decides whether to divide the loss by the number of accumulated batches."""
        said = getattr(self, "loss_is_scaled_for_ga", None)
        if said is not None:
            return bool(said)
        counted = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        return bool(counted or self.compute_loss_func is not None)

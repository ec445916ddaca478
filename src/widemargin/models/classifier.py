"""The shape every model has: images -> normalization -> backbone -> features -> head -> logits.

``model(x) == model.head(model.features(x))`` always holds, so a loss that needs the features (large margin,
hypersphere) computes them once. A backbone writes ``embed`` and keeps its head under the name the field uses
(``fc``, ``linear``), so that public checkpoints load; ``model.head`` finds it whatever its name. No
normalization means ``nn.Identity``, which adds no keys.
"""

from torch import Tensor, nn

from widemargin.errors import InputError
from widemargin.heads import Head, MakeHead
from widemargin.models.constraints import ImageShape, require_image_shape, require_num_classes
from widemargin.models.normalize import Normalization, Normalize


class Classifier(nn.Module):
    """Images (B, C, H, W) in [0, 1] to logits (B, K). Backbones write ``embed`` and ``head``."""

    def __init__(
        self, *, image_shape: ImageShape, num_classes: int, feature_size: int, normalize: Normalization | None
    ) -> None:
        super().__init__()
        require_image_shape(f"{type(self).__name__}.image_shape", image_shape)
        require_num_classes(f"{type(self).__name__}.num_classes", num_classes)
        self.image_shape = image_shape
        self.num_classes = num_classes
        self.feature_size = feature_size
        self.normalize = self._normalization(normalize)

    @property
    def head(self) -> Head:
        """The last layer, wherever the backbone keeps it."""
        raise NotImplementedError

    def embed(self, x: Tensor) -> Tensor:
        """Normalized images (B, C, H, W) to features (B, d)."""
        raise NotImplementedError

    def features(self, x: Tensor) -> Tensor:
        """What the head sees: (B, feature_size)."""
        self.check_images(x)
        return self.embed(self.normalize(x))

    def forward(self, x: Tensor) -> Tensor:
        """The logits (B, K)."""
        return self.head(self.features(x))

    def check_images(self, x: Tensor) -> None:
        """Refuse the wrong images, by shape and dtype only: no device sync, constant under torch.compile."""
        owner = type(self).__name__
        if x.dim() != 4 or tuple(x.shape[1:]) != self.image_shape:
            expected = ", ".join(str(size) for size in self.image_shape)
            raise InputError(
                f"{owner} expects images of shape (B, {expected}), got {tuple(x.shape)}; "
                "build the model with the image_shape of the data"
            )
        if not x.is_floating_point():
            raise InputError(f"{owner} expects floating-point images in [0, 1], got {x.dtype}; divide by 255 first")

    def _new_head(self, make_head: MakeHead) -> nn.Module:
        head = make_head(self.feature_size, self.num_classes)
        if not callable(getattr(head, "training_logits", None)):
            raise InputError(
                f"{type(self).__name__}.make_head must make a module with training_logits(features, logits, y),"
                f" got {type(head).__name__}; use widemargin.heads.LinearHead in place of nn.Linear"
            )
        return head

    def _normalization(self, normalize: Normalization | None) -> nn.Module:
        if normalize is None:
            return nn.Identity()
        if len(normalize.mean) != self.image_shape[0]:
            raise InputError(
                f"{type(self).__name__}.normalize must have {self.image_shape[0]} channel(s), as the images, "
                f"got {len(normalize.mean)}; give one mean and std per channel"
            )
        return Normalize(normalize.mean, normalize.std)

"""A model that was trained on normalized images, wrapped so that it takes pixels in [0, 1].

Then eps, margins and penalties are in pixels: behind a normalization outside the model they would be in units of the
standard deviations, of another size in each channel.
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from widemargin.core.checks import check_model
from widemargin.models.classifier import Normalize


def pixels(model: nn.Module, *, mean: Sequence[float], std: Sequence[float]) -> nn.Sequential:
    """The model behind ``Normalize(mean, std)``: images in [0, 1] in, what the model returns out.

    ``mean`` and ``std`` are those of its preprocessing, one number per channel, such as ``image_mean`` of an image
    processor of Hugging Face. They take the type and the device of the model's parameters; the model is not copied.
    """
    check_model("pixels", model)
    like = next((parameter for parameter in model.parameters() if parameter.is_floating_point()), None)
    normalize = Normalize(mean, std)
    if like is not None:
        normalize.to(device=like.device, dtype=like.dtype)
    wrapped = nn.Sequential(OrderedDict(normalize=normalize, model=model))
    wrapped.training = normalize.training = model.training  # of the model's own parts none changes its mode
    return wrapped

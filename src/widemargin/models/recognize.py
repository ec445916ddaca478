"""Which architecture weights look like, from keys and shapes alone: a guess for error messages, or None."""

from collections.abc import Callable, Mapping

Shapes = Mapping[str, tuple[int, ...]]


def recognize(shapes: Shapes) -> str | None:
    """A short name such as "WideResNet(depth=34, widen=10, ...)", or None where nothing fits."""
    guesses: tuple[Callable[[Shapes], str | None], ...] = (_wide_resnet, _resnet, _cnn, _mlp)
    return next((name for name in (guess(shapes) for guess in guesses) if name is not None), None)


def _wide_resnet(shapes: Shapes) -> str | None:
    blocks = sum(key.startswith("block1.layer.") and key.endswith(".conv1.weight") for key in shapes)
    classes, features = _matrix(shapes, "fc.weight")
    if blocks == 0 or features == 0:
        return None
    variant = "madry" if any("poolpadShortcut" in key for key in shapes) else "trades"
    head = "" if "fc.bias" in shapes else " with a head without bias"
    size = f"depth={6 * blocks + 4}, widen={features // 64}"
    return f"WideResNet({size}, variant='{variant}', num_classes={classes}){head}"


def _resnet(shapes: Shapes) -> str | None:
    if "layer4.0.conv1.weight" not in shapes:
        return None
    if "layer1.0.conv3.weight" in shapes or "layer1.2.conv1.weight" in shapes:
        return "a deeper ResNet than 18"
    if "fc.weight" in shapes:
        return "torchvision's ResNet-18, which widemargin does not have"
    classes, features = _matrix(shapes, "linear.weight")
    name = "ResNet18" if "bn1.weight" in shapes else "PreActResNet18"
    return f"{name}(width={features // 8}, num_classes={classes})"


def _cnn(shapes: Shapes) -> str | None:
    convolutions = {f"conv{i}.{part}" for i in range(1, 5) for part in ("weight", "bias")}
    if not convolutions <= shapes.keys():
        return None
    return f"CNN(num_classes={_matrix(shapes, 'fc.weight')[0]})"


def _mlp(shapes: Shapes) -> str | None:
    count = sum(key.startswith("fcs.") and key.endswith(".weight") for key in shapes)
    if count == 0:
        return None
    layers = [_matrix(shapes, f"fcs.{i}.weight") for i in range(count)]  # (out, in) each
    hidden = tuple(out for out, _ in layers[:-1])
    return f"MLP(hidden={hidden}, num_classes={layers[-1][0]}) for images of {layers[0][1]} pixels"


def _matrix(shapes: Shapes, key: str) -> tuple[int, int]:
    """The two sides of a weight matrix, zeros where there is none."""
    shape = shapes.get(key, ())
    return (shape[0], shape[1]) if len(shape) == 2 else (0, 0)

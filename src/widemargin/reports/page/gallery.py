"""Examples, their adversarial twins and the difference between them, made visible."""

import base64
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from widemargin.reports.inputs.gallery_file import Bytes, Gallery
from widemargin.reports.inputs.search import Findings
from widemargin.reports.measures import attack_title
from widemargin.reports.page.section import Section, first

GRAY = 128


@dataclass(frozen=True)
class Picture:
    """An image as data, and what it is in words."""

    source: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Example:
    """Three pictures; ``fooled`` where the twin is called something else than its label."""

    pictures: tuple[Picture, Picture, Picture]
    fooled: bool


@dataclass(frozen=True)
class Shown:
    """The gallery of one evaluation."""

    label: str
    caption: str
    examples: list[Example]


def gallery(found: Findings) -> Section | None:
    """A gallery for each evaluation that kept images."""
    kept, left_out = first([e for e in found.evaluations if e.gallery is not None and len(e.gallery.images)])
    if not kept:
        return None
    return Section(
        id="gallery",
        title="Examples and their adversarial twins",
        lines=left_out,
        template="gallery.html",
        more={"galleries": [_shown(e.label, e.gallery) for e in kept if e.gallery is not None]},
    )


def _shown(label: str, found: Gallery) -> Shown:
    differences = found.adversarial.astype(np.int16) - found.images.astype(np.int16)
    gain = max(1, (GRAY - 1) // max(1, int(np.abs(differences).max())))
    amplified = np.clip(GRAY + gain * differences, 0, 255).astype(np.uint8)
    examples = [_example(found, amplified[number], gain, number) for number in range(len(found.images))]
    amplification = f"amplified {gain} times around gray" if gain > 1 else "shown around gray, as large as it is"
    return Shown(label, f"{_attacked(found.attack)}The difference is {amplification}.", examples)


def _attacked(name: str) -> str:
    """With what, and at which of several eps ("pgd20@8/255")."""
    attack, _, eps = name.partition("@")
    where = f" at eps {eps}" if eps else ""
    return f"Attacked with {attack_title(attack)}{where}. " if attack else ""


def _example(found: Gallery, difference: Bytes, gain: int, number: int) -> Example:
    label = int(found.labels[number])
    said, fooled = int(found.predictions[number]), int(found.adversarial_predictions[number])
    name = f"Example {number + 1}, class {label}"
    return Example(
        (
            Picture(
                _source(found.images[number]), f"{name}: the image, called {said}", f"class {label}, called {said}"
            ),
            Picture(
                _source(found.adversarial[number]), f"{name}: its adversarial twin, called {fooled}", f"called {fooled}"
            ),
            Picture(
                _source(difference),
                f"{name}: the difference" + f", amplified {gain} times" * (gain > 1),
                "difference" + f" \N{MULTIPLICATION SIGN}{gain}" * (gain > 1),
            ),
        ),
        fooled != label,
    )


def _source(image: Bytes) -> str:
    """(C, H, W) bytes as a PNG inside the page."""
    pixels = image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0)
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(stream, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"

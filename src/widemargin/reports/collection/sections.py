"""The kinds of pictures on the page, and what is said once for all pictures of a kind."""

from dataclasses import dataclass

from widemargin.reports.collection.strokes import COLLAPSED


@dataclass(frozen=True)
class Section:
    """Pictures that are read in the same way."""

    title: str
    said: str


ALL = (
    "Lines are means over seeds; dashed ones have a single seed where others of the same picture have more. Dotted and "
    f"pale are networks that collapsed: their clean accuracy is less than {COLLAPSED:.0%} of the panel's best."
)
MARGINS = Section(
    "Margins during training",
    "Of correctly classified images. Those of training images are at the points training sees: augmented, and attacked "
    "in adversarial training. The band is one standard deviation over images, of EMR alone: those of the other lines "
    "would hide each other. Panels of adversarial training are close-ups without a band; their axes do not begin at "
    "zero. Where a network classifies much less well than others, the legend says how well. "
    "Measured on 10,000 images of MNIST and 2,000 of CIFAR-10, so last values differ a little from the tables', which "
    "have all.",
)
ACCURACIES = Section(
    "Accuracy during training",
    "Without an attack, and under the one that the panel names; of test images, or of held-out ones for ResNet-18 and "
    "WRN-34-10. The legend has the last value. Where a network collapsed, the axis is cut above it.",
)
HISTOGRAMS = Section(
    "Margin histograms",
    "Shares of all test images, all seeds together; misclassified ones lie left of zero, and the outermost bars hold "
    "the tails. The mean is over all images with a boundary.",
)
DISTANCES = Section(
    "Margins against distances",
    "Each point is a correctly classified test image: its effective margin, and the size of the smallest adversarial "
    "perturbation that FAB found, an upper bound of the true distance. On the dashed line they are equal.",
)
OVER_EPS = Section(
    "Accuracy against eps",
    "PGD-100, steps of eps/4, on the first 1,000 test images; at 0 without attack. The dashed vertical line is at the "
    "eps of training, or the table's where training has none; the legend has the accuracy at the eps nearest to it.",
)

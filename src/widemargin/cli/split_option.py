"""--split: which images of a data set, for the commands that judge or measure."""

from widemargin.checks import choice
from widemargin.errors import InputError


def check_split(split: str, dataset: str | None, among: tuple[str, ...]) -> None:
    """One of those; what a run held out is of its own data alone."""
    choice("", "--split", split, among)
    if split == "validation" and dataset is not None:
        raise InputError("--split validation is of the run's own data; leave out --dataset")

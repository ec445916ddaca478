"""The paper's tables as lists of recipes, each row beside its published numbers, in its order; then the modern ones."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from widemargin.errors import InputError
from widemargin.recipes import all_recipes
from widemargin.recipes.recipe import Published, Recipe, published


@dataclass(frozen=True)
class Row:
    """A recipe in its place in a table."""

    recipe: Recipe
    published: Published


@dataclass(frozen=True)
class Table:
    """One table: its rows and the results it reports."""

    name: str
    """What ``widemargin reproduce`` takes."""
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


_MARGINS = ("margin_train", "margin_test")
_ATTACKS = ("clean", "fgsm", "pgd10", "pgd100", "autoattack")
_TABLE1 = (
    *(f"st-wd{decay}" for decay in ("0.1", "0.01", "0.001", "0.0001")),
    *(f"st-lsoftmax-wd{decay}" for decay in ("0.1", "0.01", "0.001", "0.0001")),
    "st-emr",
    *(f"at-wd{decay}" for decay in ("0.01", "0.001", "0.0001")),
    *(f"at-lsoftmax-wd{decay}" for decay in ("0.01", "0.001", "0.0001")),
    "at-emr",
)
_TABLE2 = tuple(name for name in _TABLE1 if not name.endswith("wd0.1"))
_TABLE3 = (
    *("at", "at-igr", "at-he", "at-emr", "trades", "trades-igr", "trades-he", "trades-emr"),
    *("at-mail", "at-mail-emr", "trades-mail", "trades-mail-emr", "mart", "mart-emr"),
)
_RESNET18 = ("at", "at-igr", "at-emr", "trades", "trades-igr", "trades-emr")
_SAME_DECAY = ("at", "at-wd0.0005", "at-emr", "at-wd0.0005-averaged", "at-emr-averaged")
_WRN_MORE = ("at-wd0.0005", "lbgat", "lbgat-emr")
_BASELINES = ("mnist-mlp/st-wd0", "cifar-cnn/st-wd0", "cifar-cnn/st-wd0.0005", "cifar-cnn/at-wd0.0005")
"""No weight decay, for Fig. 1, and the weight decay of the EMR rows."""
_MODERN = (
    *("at-awp", "at-awp-emr", "trades-awp", "trades-awp-emr", "wang2023-wrn28-10", "wang2023-wrn28-10-emr"),
    *("score", "ikl", "fgsm-rs", "n-fgsm", "fgsm-rs-short", "n-fgsm-short", "rodriguez-munoz-clean", "rodriguez-munoz"),
)
_EQUAL_PASSES = (
    *("plain", "emr", "emr-linf", "input-gradient-before", "input-gradient", "n-fgsm", "n-fgsm-emr"),
    *("at", "at-awp", "at-awp-emr"),
)
_FORMS = (("st-emr", "ST+EMR"), ("st-approximate-emr", "ST+Approx-EMR"))
_FORMS_AT = (("at-emr", "AT+EMR"), ("at-approximate-emr", "AT+Approx-EMR"))


def _published(prefix: str, names: tuple[str, ...]) -> tuple[Row, ...]:
    """Rows of the paper's own: each recipe carries the table's numbers."""
    rows = _rows(f"{prefix}/{name}" for name in names)
    for row in rows:
        if row.recipe.published is None:
            raise LookupError(f"{row.recipe.name} has no published numbers, and stands in a table of the paper")
    return rows


def _ablation() -> tuple[Row, ...]:
    rows = []
    for prefix, model in (("cifar-resnet18", "ResNet18"), ("cifar-wrn", "WRN-34-10")):
        for name, row in (("trades-emr-clean", "TRADES+EMR-clean"), ("trades-emr", "TRADES+EMR-adv")):
            numbers = published("table4_clean_or_adversarial", row, model=model)
            rows.append(Row(all_recipes()[f"{prefix}/{name}"], numbers))
    return tuple(rows)


def _approximation() -> tuple[Row, ...]:
    return tuple(
        Row(all_recipes()[f"{prefix}/{name}"], published("supplement_approximation", row, model=model))
        for prefix, model in (("mnist-mlp", "MLP"), ("cifar-cnn", "CNN"))
        for name, row in (*_FORMS, *_FORMS_AT)
    )


def _modern() -> tuple[Row, ...]:
    """Every row a method of its own, published or not."""
    rows = []
    for recipe in (all_recipes()[f"modern/{name}"] for name in _MODERN):
        nothing = Published(table="", row=recipe.name.split("/")[1], results={})
        rows.append(Row(recipe, recipe.published or nothing))
    return tuple(rows)


def _rows(names: Iterable[str]) -> tuple[Row, ...]:
    """Rows with their published numbers, where they have some."""
    recipes = [all_recipes()[name] for name in names]
    nothing = Published(table="", row="", results={})
    return tuple(Row(recipe, recipe.published or nothing) for recipe in recipes)


@cache
def all_tables() -> dict[str, Table]:
    """Every table by its name."""
    tables = (
        Table("table1", "Table 1: MLP on MNIST", ("clean", "pgd20", *_MARGINS), _published("mnist-mlp", _TABLE1)),
        Table("table2", "Table 2: CNN on CIFAR-10", ("clean", "pgd10", *_MARGINS), _published("cifar-cnn", _TABLE2)),
        Table("table3", "Table 3: WRN-34-10 on CIFAR-10", _ATTACKS, _published("cifar-wrn", _TABLE3)),
        Table("table4", "Table 4: EMR at clean or adversarial images", _ATTACKS, _ablation()),
        Table("approximation", "Exact and approximate EMR", ("clean", "pgd", *_MARGINS), _approximation()),
        Table("resnet18", "ResNet-18 on CIFAR-10", _ATTACKS, _published("cifar-resnet18", _RESNET18)),
        Table(
            "resnet18-emr",
            "ResNet-18: EMR at the same weight decay, and beside weight averaging",
            _ATTACKS,
            _rows(f"cifar-resnet18/{name}" for name in _SAME_DECAY),
        ),
        Table(
            "wrn-more",
            "WRN-34-10: EMR's own weight decay, and LBGAT, which the paper's tables lack",
            _ATTACKS,
            _rows(f"cifar-wrn/{name}" for name in _WRN_MORE),
        ),
        Table("baselines", "Baselines that the paper's tables lack", ("clean", "pgd", *_MARGINS), _rows(_BASELINES)),
        Table("modern", "Robust training since 2020, and EMR with it", ("clean", "pgd", "autoattack"), _modern()),
        Table(
            "equal-passes",
            "The MLP on MNIST with the same number of passes",
            ("clean", "pgd20", *_MARGINS),
            _rows(f"equal-passes/{name}" for name in _EQUAL_PASSES),
        ),
    )
    return {table.name: table for table in tables}


def find_table(name: str) -> Table:
    """A table by name."""
    if name not in all_tables():
        raise InputError(f"unknown table {name!r}; known are {', '.join(all_tables())}")
    return all_tables()[name]

"""A recipe: a complete run configuration with a name, and the published numbers it is to be held against."""

from dataclasses import dataclass

from widemargin.config import RunConfig
from widemargin.recipes.published import Published


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """``note`` says what a reader of the numbers must know."""

    config: RunConfig
    published: Published | None = None
    note: str = ""
    kept_by: str = ""
    """The recipe whose run keeps these weights beside its own; a table trains that one for both."""

    @property
    def name(self) -> str:
        """What the command line calls it."""
        return self.config.name

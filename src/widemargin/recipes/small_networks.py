"""What the tables of the two small networks share: rows at each weight decay, EMR's rows, and the approximation's."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from widemargin.config.run import EMRConfig, RunConfig
from widemargin.heads.linear import Linear
from widemargin.recipes.recipe import Recipe, published
from widemargin.types import MakeHead, Objective, Point

DECAYS = (0.01, 0.001, 0.0001)
SUPPLEMENT = "supplement_approximation"
TEMPERATURE = "the paper does not state the temperature of this row; 1 is used"


@dataclass(frozen=True, kw_only=True)
class SmallNetwork:
    """One network's runs: they differ from ``base`` in loss, head, weight decay and EMR."""

    base: RunConfig
    table: str
    model: str
    """What the approximation's table calls it."""
    emr_decay: float

    def run(
        self,
        name: str,
        objective: Objective,
        weight_decay: float,
        *,
        emr: EMRConfig | None = None,
        head: MakeHead = Linear(),  # noqa: B008 - immutable
    ) -> RunConfig:
        """A run of this network."""
        optimizer = replace(self.base.optimizer, weight_decay=weight_decay)
        name = f"{self.base.name}/{name}"
        return replace(self.base, name=name, objective=objective, optimizer=optimizer, emr=emr, head=head)

    def at_decays(
        self,
        name: str,
        row: str,
        objective: Objective,
        decays: Iterable[float] = DECAYS,
        *,
        head: MakeHead = Linear(),  # noqa: B008 - immutable
        note: str = "",
    ) -> list[Recipe]:
        """A baseline at each weight decay."""
        return [
            Recipe(
                config=self.run(f"{name}-wd{decay:g}", objective, decay, head=head),
                published=published(self.table, row, weight_decay=decay),
                note=note,
            )
            for decay in decays
        ]

    def with_emr(
        self, name: str, row: str, objective: Objective, *, exact: float, approximate: float, at: Point
    ) -> list[Recipe]:
        """Exact EMR of that weight, in the batch mean; approximate EMR of the other, in the released code's scaling."""
        exact_emr = EMRConfig(kind="exact", weight=exact, at=at, scaling="mean")
        approximate_emr = EMRConfig(kind="approximate", weight=approximate, temperature=1.0, at=at, scaling="released")
        return [
            Recipe(
                config=self.run(f"{name}-emr", objective, self.emr_decay, emr=exact_emr),
                published=published(self.table, f"{row}+EMR"),
            ),
            Recipe(
                config=self.run(f"{name}-approximate-emr", objective, self.emr_decay, emr=approximate_emr),
                published=published(SUPPLEMENT, f"{row}+Approx-EMR", model=self.model),
                note=TEMPERATURE,
            ),
        ]

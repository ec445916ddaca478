"""APGD, FAB-T and Square beside the official code, bit for bit, whatever the groups in which images go.

The networks compute in float64, so that the size of a batch makes no difference to the float32 logits.
"""

from functools import cache

import pytest
import torch
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
from pyautoattack.fab_projections import projection_l2, projection_linf
from pyautoattack.fab_pt import FABAttack_PT
from pyautoattack.square import SquareAttack
from torch import Tensor, nn

from widemargin.attacks.apgd import APGD
from widemargin.attacks.fab import FAB, project_linf
from widemargin.attacks.square import SquareLinf

NORMS = {"linf": "Linf", "l2": "L2"}
SHAPE = (3, 7, 6)


class Wavy(nn.Module):
    """Smooth, with many bumps: steps have to be halved. Logits of five classes."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(126, 24).double(), nn.Linear(24, 5).double()
        self.requires_grad_(False)
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return self.second(torch.sin(4 * self.first(x.double().flatten(1)))).float()


@cache
def images(count: int = 24) -> tuple[Tensor, Tensor]:
    """Coarse pixel values, many equal; labels are the model's."""
    x = (torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(1)) * 16).round() / 16
    return x, Wavy()(x).argmax(1)


def drawn(norm: str, seed: int, shape) -> Tensor:
    draw = torch.rand if norm == "linf" else torch.randn
    return draw(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def _random_state():
    with torch.random.fork_rng(devices=[]):
        yield


EPS = {("linf", "few"): 0.012, ("linf", "most"): 0.05, ("l2", "few"): 0.09, ("l2", "most"): 0.4}


@pytest.mark.parametrize("at_once", [1, 5, 250])
@pytest.mark.parametrize(("norm", "how_many"), EPS)
def test_apgd(norm, how_many, at_once):
    (x, y), model, eps = images(), Wavy(), EPS[norm, how_many]
    official = APGDAttack(model, eps=eps, norm=NORMS[norm], seed=3, device="cpu")
    theirs = official.perturb(x.clone(), y.clone())
    apgd = APGD(eps=eps, norm=norm)
    found, ours = apgd(model, x, y, apgd.start(x, drawn(norm, 3, x.shape)), at_once=at_once)
    assert found.tolist() == (model(theirs).argmax(1) != y).tolist()
    assert 0 < int(found.sum()) < len(x) or how_many == "most"
    assert (model(ours).argmax(1) != y).equal(found)
    assert ours[~found].equal(x[~found])
    size = (ours - x).flatten(1).norm(torch.inf if norm == "linf" else 2, dim=1)
    assert float(size.max()) <= eps * 1.0001


@pytest.mark.parametrize("norm", NORMS)
def test_the_whole_path_of_apgd_is_the_official_one(norm):
    """Where nothing is found, the last gradient is asked for at the official point, to the bit."""
    x, y = images()
    ordered = Wavy()(x).sort(dim=1)[0]
    safest = (ordered[:, -1] - ordered[:, -2]).topk(4).indices
    x, y = x[safest], y[safest]
    paths: list[list[Tensor]] = [[], []]

    class Watched(Wavy):
        def forward(self, x: Tensor) -> Tensor:
            if x.requires_grad:
                paths[-1].append(x.detach().clone())
            return super().forward(x)

    target = Wavy()(x).sort(dim=1)[1][:, -2]
    eps = 0.008 if norm == "linf" else 0.05
    ours = APGD(eps=eps, norm=norm)
    found, _ = ours(Watched(), x, y, ours.start(x, drawn(norm, 0, x.shape)), targets=target)
    assert not found.any()
    paths.append([])
    official = APGDAttack_targeted(Watched(), eps=eps, norm=NORMS[norm], seed=0, device="cpu", n_target_classes=1)
    official.perturb(x.clone(), y.clone())
    assert len(paths[1]) == len(paths[2]) == 101
    assert all(mine.equal(theirs) for mine, theirs in zip(paths[1], paths[2], strict=True))


def test_rows_of_a_higher_order_leave_with_a_find():
    x, y = images()
    model, apgd = Wavy(), APGD(eps=0.05)
    targets = model(x).sort(dim=1)[1][:, [-2, -3]]
    start = apgd.start(x, drawn("linf", 0, x.shape))
    first, _ = apgd(model, x, y, start, targets=targets[:, 0])
    order = torch.cat([torch.zeros_like(y), torch.ones_like(y)])
    options = {"targets": targets.T.flatten(), "order": order}
    found, _ = apgd(model, x.repeat(2, 1, 1, 1), y.repeat(2), start.repeat(2, 1, 1, 1), **options)
    assert first.any()
    assert found[: len(y)].equal(first)


@pytest.mark.parametrize("at_once", [1, 7, 250])
@pytest.mark.parametrize(("norm", "how_many"), EPS)
def test_fab(norm, how_many, at_once):
    (x, y), model, eps = images(), Wavy(), EPS[norm, how_many]
    official = FABAttack_PT(model, eps=eps, norm=NORMS[norm], n_iter=30, targeted=True, device="cpu")
    official.target_class = 2
    theirs = official.attack_single_run(x.clone(), y.clone(), is_targeted=True)
    size = (theirs - x).flatten(1).norm(torch.inf if norm == "linf" else 2, dim=1)
    expected = (model(theirs).argmax(1) != y) & (size <= eps)
    fab = FAB(eps=eps, norm=norm, steps=30)
    project = project_linf if norm == "linf" else projection_l2
    targets = model(x).sort(dim=1)[1][:, -2]
    model.seen = 0
    found, ours = fab(model, x, y, targets, project=project, at_once=at_once)
    assert found.equal(expected)
    assert found.any()
    assert (model(ours).argmax(1) != y).equal(found)
    assert model.seen < 30 * 2 * len(x)
    endless, nearest = FAB(eps=-1.0, norm=norm, steps=30)(model, x, y, targets, project=project, at_once=at_once)
    assert not endless.any()
    assert nearest.equal(x)


def test_rows_of_one_image_leave_together():
    x, y = images()
    model, order = Wavy(), Wavy()(images()[0]).sort(dim=1)[1]
    both, targets = torch.cat([x, x]), torch.cat([order[:, -2], order[:, -3]])
    fab = FAB(eps=0.05, steps=20)
    apart, _ = fab(model, both, y.repeat(2), targets, project=project_linf)
    together, _ = fab(model, both, y.repeat(2), targets, image=torch.arange(len(x)).repeat(2), project=project_linf)
    assert together.view(2, -1).any(0).equal(apart.view(2, -1).any(0))
    assert int(together.sum()) < int(apart.sum())


CASES = {
    "any": lambda x, w, b: (x, w, b),
    "equal pixels": lambda x, w, b: ((8 * x).round() / 8, w, b),
    "zero weights": lambda x, w, b: (x, w * (w.abs() > 0.7), b),
    "no weights at all": lambda x, w, b: (x, 0 * w, b),
    "out of reach": lambda x, w, b: (x, w, 10 * b),
    "on the plane": lambda x, w, b: (x, w, (w * x).sum(1)),
    "hardly off it": lambda x, w, b: (0.1 + 0.8 * x, w, (w * (0.1 + 0.8 * x)).sum(1) + 1e-3),
    "one pixel": lambda x, w, b: (x[:, :1], w[:, :1], x[:, 0] * w[:, 0] + 0.01),
}


@pytest.mark.parametrize("case", CASES)
def test_the_projection_is_the_official_one(case):
    generator = torch.Generator().manual_seed(2)
    x, w = torch.rand(60, 37, generator=generator), torch.randn(60, 37, generator=generator)
    points, normals, offsets = CASES[case](x, w, (w * torch.rand(60, 37, generator=generator)).sum(1))
    assert project_linf(points, normals, offsets).equal(projection_linf(points, normals, offsets))


@pytest.mark.parametrize("at_once", [1, 4, 9, 250])
@pytest.mark.parametrize("eps", [0.01, 0.04, 0.3])
def test_square(eps, at_once):
    (x, y), model = images(), Wavy()
    official = SquareAttack(model, eps=eps, n_queries=400, n_restarts=1, seed=4, device="cpu", resc_schedule=False)
    theirs = official.perturb(x.clone(), y.clone())
    seen, model.seen = model.seen, 0

    def margins(x: Tensor, y: Tensor) -> Tensor:
        logits = model(x)
        label = logits.gather(1, y.unsqueeze(1))
        return (label - logits.scatter(1, y.unsqueeze(1), -torch.inf).amax(1, keepdim=True)).squeeze(1)

    square = SquareLinf(eps=eps, queries=400, share=official.p_init)
    won, ours = square(margins, x, y, generator=torch.Generator().manual_seed(4), at_once=at_once)
    assert ours.equal(theirs)
    assert won.any()
    assert eps == 0.3 or not won.all()
    if at_once == 1:
        assert model.seen < 0.9 * seen  # what changes nothing is not tried


def test_square_wins_by_ties_and_leaves_nothing_to_do():
    x = torch.full((2, 1, 5, 5), 0.5)
    square, y = SquareLinf(eps=0.1), torch.zeros(2, dtype=torch.long)
    won, images = square(lambda x, y: torch.zeros(len(x)), x, y, generator=torch.Generator())
    assert won.all()
    assert not images.equal(x)

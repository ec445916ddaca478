"""Random numbers that are derived, never taken from the global state."""

import torch

from widemargin.core import randomness


def draw(generator: torch.Generator) -> list[float]:
    return torch.rand(3, generator=generator).tolist()


def test_everything_counts() -> None:
    coordinates = [
        (1, "attack", 2, 3),
        (2, "attack", 2, 3),
        (1, "order", 2, 3),
        (1, "attack", 3, 2),
        (1, "attack", 2),
        (1, "attack", 23),
        (12, "attack", 3),
        (1, "attack/2", 3, 0),
    ]
    assert len({randomness.derived_seed(seed, purpose, *rest) for seed, purpose, *rest in coordinates}) == 8


def test_seeds_fit_every_generator() -> None:
    seeds = [randomness.derived_seed(seed, "x") for seed in range(200)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62


def test_seeds_stay_what_they_were() -> None:
    """A resumed run, on another machine or another version, draws the same numbers."""
    assert randomness.derived_seed(0, "order", 0) == 3471081512423777433
    assert randomness.derived_seed(7, "attack", 3, 11) == 3864676019630475673


def test_the_same_coordinates_give_the_same_numbers_fresh_ones_others_and_the_global_state_stays() -> None:
    before = torch.random.get_rng_state()
    assert draw(randomness.derived(1, "attack", 2, 3)) == draw(randomness.derived(1, "attack", 2, 3))
    assert draw(randomness.fresh()) != draw(randomness.fresh())
    assert torch.equal(torch.random.get_rng_state(), before)

"""The gallery: the first images, what an attack makes of them, and its name as the user wrote it."""

import numpy as np
import pytest
from small_networks import pictures, taught_conv

import widemargin
from widemargin.attacks import FGSM, PGD

QUICK = {"sanity": False, "margins": False}


@pytest.mark.parametrize(
    ("attacks", "eps", "name", "attack"),
    [
        (["clean", "fgsm", "pgd3"], 0.1, "pgd3", PGD(eps=0.1, step_size=0.025, steps=3)),
        (["pgd3", "fgsm"], 0.1, "fgsm", FGSM(eps=0.1)),
        (["clean", "autoattack"], 0.1, "pgd20", PGD(eps=0.1, step_size=0.025, steps=20)),
        (["pgd-7"], "8/255", "pgd-7", PGD(eps=8 / 255, step_size=2 / 255, steps=7)),
        (["pgd3"], ["0.2", "8/255"], "pgd3@0.2", PGD(eps=0.2, step_size=0.05, steps=3)),
    ],
)
def test_the_attack_shown_is_the_attack_named(very_short, tmp_path, attacks, eps, name, attack):
    model, (x, y) = taught_conv(4), pictures(4, 12)
    widemargin.evaluate(model, (x, y), attacks, eps, out=tmp_path, **QUICK)
    with np.load(tmp_path / "gallery.npz", allow_pickle=False) as kept:
        assert str(kept["attack"]) == name
        expected = attack(model, x[:8], y[:8])
        assert np.array_equal(kept["adversarial"], (expected * 255).round().byte().numpy())


@pytest.mark.parametrize(("channels", "shown"), [(1, True), (2, False), (3, True), (4, False)])
def test_only_what_is_gray_or_in_color_is_shown(tmp_path, channels, shown):
    shape = (channels, 8, 8)
    widemargin.evaluate(taught_conv(4, shape), pictures(4, 12, shape), ["fgsm"], 0.1, out=tmp_path, **QUICK)
    assert (tmp_path / "gallery.npz").exists() is shown


@pytest.mark.parametrize("distance", [False, True])
def test_without_an_attack_there_is_nothing_to_show(very_short, tmp_path, distance):
    widemargin.evaluate(taught_conv(4), pictures(4, 12), ["clean"], 1.0, out=tmp_path, distance=distance, **QUICK)
    assert (tmp_path / "report.json").exists()
    assert not (tmp_path / "gallery.npz").exists()

"""``deterministic``: on a GPU a run repeats its bits, resumed in another process or not; settings are restored."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from widemargin.core.precision import deterministic_algorithms
from widemargin.engine.plan import searching_kernels
from widemargin.training import train

AT = 'objective={kind="adversarial", attack={kind="pgd", eps=0.1, step_size=0.05, steps=2, random_start="uniform"}}'
CIFAR = 'data={name="cifar10-embedded", train_limit=80, test_limit=20, augmentation="crop-flip"}'
METHODS = {
    "mlp": ('emr={kind="exact", weight=0.1}',),
    "cnn": ('model={kind="cnn"}', CIFAR, AT, 'emr={kind="approximate", weight=0.1, at="adversarial"}'),
    "resnet": ('model={kind="resnet18", width=4}', CIFAR, AT, 'emr={kind="stochastic", weight=0.1}'),
    "lsoftmax": ('head={kind="large-margin"}', "averaging={decay=0.9}"),
}
WATCHED = ("batch_size=16", 'watch.margins=["train"]', "watch.margin_samples=20")
CHILD = Path(__file__).with_name("stopping_run.py")


def settings() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
    )


def test_settings_are_those_asked_for_and_restored():
    before = settings()
    with deterministic_algorithms(False):
        assert settings() == before
    with deterministic_algorithms(True):
        assert settings() == (True, False, False)
        with searching_kernels(True):
            assert settings() == (True, False, False)
    assert settings() == before
    with pytest.raises(ZeroDivisionError), deterministic_algorithms(True):
        _ = 1 // 0
    assert settings() == before
    with searching_kernels(True):
        assert torch.backends.cudnn.benchmark
    assert settings() == before


@pytest.mark.parametrize("name", METHODS)
def test_a_cpu_does_the_same_with_and_without(name, tiny, tmp_path, left_in):
    config = tiny(*WATCHED, *METHODS[name])
    for wanted in (False, True):
        train(config, out=tmp_path / str(wanted), device="cpu", deterministic=wanted)
    left_in(tmp_path / "True").assert_same(left_in(tmp_path / "False"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("engine", ["fast", "eager"])
@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_on_a_gpu_has_the_bits_of_an_uninterrupted_one(name, engine, tiny, tmp_path, left_in):
    config = tiny(*WATCHED, *METHODS[name])
    train(config, out=tmp_path / "whole", device="cuda", engine=engine, deterministic=True)
    for steps in (1, 4, 7, 1000):  # before, at and after the capture of a step, each in a process of its own
        command = [sys.executable, str(CHILD), str(tmp_path / "whole" / "config.toml"), str(tmp_path / "cut"), engine]
        subprocess.run([*command, str(steps)], check=True)
    left_in(tmp_path / "cut").assert_same(left_in(tmp_path / "whole"))

"""Passes that are recorded or differentiated twice: checkpoints run as ordinary parts, threads share switches."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from sweep_checks import PENALTIES, drawn, penalty_of
from torch import Tensor, nn
from torch._dynamo import eval_frame
from torch.utils.checkpoint import checkpoint

from oracles import Network, images, labels, parameter_gradients, seeded
from widemargin import ApproximateEMR, effective_margin, evaluate
from widemargin.gradients.double_backward import differentiable_twice


def noise(self: Network, x: Tensor) -> Tensor:
    """Random in training, and not for the tape at any time."""
    return F.softsign(x + torch.randn_like(x) if self.training else x)


def attention(self: Network, x: Tensor) -> Tensor:
    """Over the rows of an image."""
    return F.scaled_dot_product_attention(*self.all(x).chunk(3, dim=-1))


PARTS: dict[str, Callable[[], nn.Module]] = {
    "relu and batch norm": lambda: nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU()),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.GELU()),
    "random in training": lambda: nn.Sequential(nn.Linear(6, 6), Network(noise), nn.Linear(6, 6)),
    "attention": lambda: Network(attention, all=nn.Linear(6, 18)),
}


def plain(self: Network, x: Tensor) -> Tensor:
    return self.last(self.part(x).flatten(1))


def checkpointed(self: Network, x: Tensor) -> Tensor:
    return self.last(checkpoint(self.part, x, use_reentrant=False).flatten(1))


def pair(name: str, training: bool) -> list[nn.Module]:
    """The same network without and with a checkpoint."""
    forwards = (plain, checkpointed)
    return [
        seeded(0, lambda f=f: Network(f, part=PARTS[name](), last=nn.Linear(60, 3))).train(training) for f in forwards
    ]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", PARTS)
class TestCheckpointed:
    @pytest.mark.parametrize("emr", PENALTIES)
    def test_penalties(self, emr, name, training):
        x, y = images(4, 2, 5, 6), labels(4, 3)
        found = []
        for model in pair(name, training):
            penalty = penalty_of(emr, model, x)
            value = PENALTIES[emr].value(model, x, y, generator=drawn())
            torch.testing.assert_close(value, penalty)
            found.append((value, parameter_gradients(model, penalty.sum())))
        torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)

    def test_margins_and_evaluations(self, name, training):
        x, y = images(4, 2, 5, 6), labels(4, 3)
        plain, checkpointed = pair(name, training)
        before = {key: value.clone() for key, value in checkpointed.state_dict().items()}
        torch.testing.assert_close(effective_margin(checkpointed, x, y), effective_margin(plain, x, y))
        found = [evaluate(model, (x, y), ["clean", "fgsm"], eps=0.02) for model in (plain, checkpointed)]
        assert found[0].accuracy == found[1].accuracy
        for key, value in checkpointed.state_dict().items():
            assert torch.equal(value, before[key]), key


def settings() -> tuple[object, ...]:
    flags = torch.backends.cuda
    return (
        eval_frame._stance.stance,
        flags.flash_sdp_enabled(),
        flags.mem_efficient_sdp_enabled(),
        flags.math_sdp_enabled(),
        torch.utils.checkpoint._checkpoint_hook,
    )


def test_the_last_thread_to_leave_puts_everything_back():
    """One enters, another enters, the first leaves, the second goes on and leaves."""
    before, seen = settings(), []
    second_is_in, first_is_out = threading.Event(), threading.Event()

    def first() -> None:
        with differentiable_twice():
            second_is_in.wait(timeout=30)
        first_is_out.set()

    def second() -> None:
        with differentiable_twice():
            second_is_in.set()
            first_is_out.wait(timeout=30)
            seen.append(settings())
        seen.append(settings())

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    inside, after = seen
    assert inside[:4] == ("force_eager", False, False, True)
    assert inside[4] is not before[4]
    assert after == before == settings()


def test_checkpoints_of_another_thread_stay_checkpoints():
    """One around another: what is run again in the backward pass must be what ran in the forward pass."""

    def gradient(during: Callable[[Callable[[], None]], None]) -> Tensor:
        inner, outer = (
            seeded(seed, lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))) for seed in (0, 1)
        )
        x = images(4, 6)
        y = checkpoint(lambda z: checkpoint(inner, outer(z), use_reentrant=False).sin(), x, use_reentrant=False)
        during(lambda: y.square().sum().backward())
        return inner[0].weight.grad

    def while_another_is_inside(backward: Callable[[], None]) -> None:
        entered, done = threading.Event(), threading.Event()

        def measure() -> None:
            with differentiable_twice():
                entered.set()
                done.wait(timeout=30)

        thread = threading.Thread(target=measure)
        thread.start()
        entered.wait(timeout=30)
        backward()
        done.set()
        thread.join(timeout=60)

    assert torch.equal(gradient(while_another_is_inside), gradient(lambda backward: backward()))


def test_a_torch_without_the_hook_of_checkpoints(monkeypatch):
    monkeypatch.delattr(torch.utils.checkpoint, "_checkpoint_hook")
    with differentiable_twice():
        assert eval_frame._stance.stance == "force_eager"
    assert not hasattr(torch.utils.checkpoint, "_checkpoint_hook")


def test_what_fails_inside_leaves_nothing_behind():
    before = settings()
    with pytest.raises(ValueError, match="inside"), differentiable_twice(), differentiable_twice():
        raise ValueError("inside")
    assert settings() == before


def penalty_gradients(seed: int) -> list[Tensor]:
    """Of a penalty on a network with layers that need torch's own forward derivatives."""
    generator = torch.Generator().manual_seed(seed)
    layers = [nn.Conv2d(2, 3, 3), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 4)]
    model = nn.Sequential(*layers).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    x = torch.rand(5, 2, 6, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 4, (5,), generator=generator)
    penalty = ApproximateEMR()(model, x, y)
    return list(torch.autograd.grad(penalty.sum(), list(model.parameters()), allow_unused=True))


def test_penalties_in_threads_are_those_alone():
    seeds = list(range(40))
    alone = [penalty_gradients(seed) for seed in seeds]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(penalty_gradients, seeds))
    for one, other in zip(alone, together, strict=True):
        for a, b in zip(one, other, strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.equal(a, b)

"""Models as people bring them: with their own ``train``, with parts outside, random, scripted, without a graph."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracles import Network, exact_emr_slowly, images, labels, relu_net, seeded
from widemargin import PGD, ApproximateEMR, ExactEMR, InputError, StochasticEMR, effective_margin, evaluate
from widemargin.objectives import Trades
from widemargin.types import Nets

PENALTIES = [ApproximateEMR(temperature=1.0), ExactEMR(), ExactEMR(classes_at_once=2), StochasticEMR(projections=2)]
ATTACK = PGD(eps=0.1, step_size=0.05, steps=2)
USES: list[Callable[[nn.Module, Tensor, Tensor], object]] = [
    lambda model, x, y: ATTACK(model, x, y),
    lambda model, x, y: effective_margin(model, x, y),
    lambda model, x, y: evaluate(model, (x, y), ["clean"], sanity=False),
    *[lambda model, x, y, emr=emr: emr(model, x) for emr in PENALTIES],  # type: ignore[misc]
]


class Merging(nn.Linear):
    """Adds a product of its own to its weights for evaluation and takes it away again for training."""

    def __init__(self) -> None:
        super().__init__(15, 4)
        self.product, self.merged = nn.Parameter(torch.randn(4, 15)), False

    def train(self, mode: bool = True) -> "Merging":
        super().train(mode)
        if self.merged == mode:
            self.weight.data += (-1 if mode else 1) * self.product.data
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight if self.merged else self.weight + self.product, self.bias)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("training", [True, False])
def test_a_modules_own_train_is_not_called(use, training):
    model = seeded(0, lambda: nn.Sequential(nn.Flatten(), Merging())).train(training)
    before = model[1].weight.detach().clone(), model[1].merged
    use(model, images(3, 1, 3, 5), labels(3, 4))
    assert model[1].merged == before[1] == (not training)
    assert torch.equal(model[1].weight, before[0])
    assert model.training == model[1].training == training


@pytest.mark.parametrize("emr", PENALTIES)
@pytest.mark.parametrize("smooth", [True, False])
def test_weights_that_are_merged_for_evaluation_get_the_right_gradients(emr, smooth):
    parts = [nn.Flatten(), Merging(), nn.Tanh() if smooth else nn.ReLU(), nn.Linear(4, 5)]
    model, x = seeded(0, lambda: nn.Sequential(*parts)).train(), images(3, 1, 3, 5)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(15, 4), parts[2], nn.Linear(4, 5)).double()
    plain.load_state_dict(
        {
            "1.weight": model[1].weight + model[1].product,
            "1.bias": model[1].bias,
            **{f"3.{k}": v for k, v in parts[3].state_dict().items()},
        }
    )
    for net in (model, plain):
        emr(net, x, generator=torch.Generator().manual_seed(0)).sum().backward()
    for name in ("weight", "product"):
        torch.testing.assert_close(getattr(model[1], name).grad, plain[1].weight.grad)
    torch.testing.assert_close(model[3].weight.grad, plain[3].weight.grad)


@pytest.mark.parametrize("training", [True, False])
def test_modes_are_put_back_after_a_forward_that_switches(training):
    class Switching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.train()
            return super().forward(x)

    model = nn.Sequential(nn.Flatten(), Switching(15, 4)).double().train(training)
    effective_margin(model, images(3, 1, 3, 5), labels(3, 4))
    assert {module.training for module in model.modules()} == {training}


def test_an_attack_in_training_mode_leaves_frozen_what_is_frozen():
    model = nn.Sequential(nn.BatchNorm1d(15), nn.Flatten(), nn.Linear(15, 4), nn.BatchNorm1d(4)).double().train()
    model[0].eval()
    frozen, moving = model[0].running_mean.clone(), model[3].running_mean.clone()
    PGD(eps=0.1, step_size=0.05, steps=2, mode="train")(model, images(3, 15), labels(3, 4))
    assert torch.equal(model[0].running_mean, frozen)
    assert not torch.equal(model[3].running_mean, moving)
    assert [module.training for module in model] == [False, True, True, True]


@pytest.mark.parametrize("classes_at_once", [2, 16])
def test_parameters_outside_the_model_are_trained_too(classes_at_once):
    torch.manual_seed(0)
    outside = nn.Linear(15, 6).double()
    model = Network(lambda self, x: self.head(F.softsign(outside(x.flatten(1)))), head=nn.Linear(6, 5).double())
    x = images(3, 1, 3, 5)
    found = torch.autograd.grad(ExactEMR(classes_at_once=classes_at_once)(model, x).sum(), outside.weight)[0]
    expected = torch.autograd.grad(exact_emr_slowly(model, x).sum(), outside.weight)[0]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("classes_at_once", [2, 16])
def test_a_random_forward_runs_once_for_value_and_gradient(classes_at_once):
    head = seeded(0, lambda: nn.Linear(15, 7, bias=False))
    model = Network(lambda self, x: self.head(F.dropout(x.flatten(1), 0.5, training=True)), head=head)
    penalty = ExactEMR(classes_at_once=classes_at_once)(model, images(4, 1, 3, 5)).sum()
    (gradient,) = torch.autograd.grad(penalty, head.weight)
    torch.testing.assert_close((gradient * head.weight).sum(), 2 * penalty)  # quadratic in the weights


@pytest.mark.parametrize("emr", PENALTIES)
def test_a_penalty_that_trains_nothing_is_refused(emr):
    x = images(3, 2, 4, 5)
    norm = seeded(
        0, lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 4))
    )
    norm.requires_grad_(False)
    norm[1].bias.requires_grad_(True)
    with pytest.raises(InputError, match="does not depend on the parameters"):
        emr(norm, x)
    frozen = relu_net(shape=(2, 4, 5)).requires_grad_(False)
    prompt = nn.Parameter(torch.zeros(2, 4, 5, dtype=torch.float64))
    added = Network(lambda self, x: self.net(x + self.prompt), net=frozen, prompt=prompt)
    with pytest.raises(InputError, match="does not depend on the parameters"):
        emr(added, x)
    scaled = Network(lambda self, x: self.net(x * (self.prompt)), net=frozen, prompt=nn.Parameter(prompt.detach() + 1))
    emr(scaled, x).sum().backward()
    assert scaled.prompt.grad.abs().sum() > 0


@pytest.mark.parametrize("emr", PENALTIES)
def test_images_with_a_graph_are_refused_and_those_of_inference_mode_taken(emr):
    backbone, head = seeded(0, lambda: nn.Linear(15, 15)), relu_net()
    with pytest.raises(
        InputError, match=r"the images are the result of something that is differentiated.*x.detach\(\)"
    ):
        emr(head, backbone(images(3, 15)).unflatten(1, (1, 3, 5)))
    emr(head, images(3, 1, 3, 5).requires_grad_(True)).sum().backward()
    with torch.inference_mode():
        x = images(3, 1, 3, 5)
    emr(head, x).sum().backward()
    emr.value(head, x)


def test_images_of_inference_mode_are_attacked_and_measured():
    with torch.inference_mode():
        x, y = images(3, 1, 3, 5), labels(3, 4)
    model = relu_net()
    assert torch.equal(ATTACK(model, x, y), ATTACK(model, x.clone(), y))
    assert torch.equal(ATTACK(model, x, y, start=x), ATTACK(model, x.clone(), y))
    assert torch.equal(effective_margin(model, x, y), effective_margin(model, x.clone(), y))


def test_a_function_that_keeps_something_called_variable_is_no_parameter():
    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.variable = 3
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0].cos()

    model = Network(lambda self, x: self.head(Kept.apply(x.flatten(1))), head=nn.Linear(15, 5).double())
    ExactEMR(classes_at_once=2)(model, images(3, 1, 3, 5)).sum().backward()
    assert model.head.weight.grad.abs().sum() > 0


def test_threads_that_share_a_model_leave_its_buffers():
    model = nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(40, 4)).double().eval()
    model.register_forward_hook(lambda module, given, found: torch.special.expit(found))  # to the other way
    before, x = [id(buffer) for buffer in model.buffers()], images(2, 2, 4, 5)
    threads = [
        threading.Thread(target=lambda: [ApproximateEMR(temperature=1.0)(model, x) for _ in range(20)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [id(buffer) for buffer in model.buffers()] == before


@pytest.mark.parametrize("emr", PENALTIES)
@pytest.mark.parametrize("kind", ["scripted", "torch.batch_norm"])
def test_statistics_that_change_before_backward_do_not_matter(emr, kind):
    def by_hand(self: Network, x: Tensor) -> Tensor:
        norm = self.norm
        moving = norm.weight, norm.bias, norm.running_mean, norm.running_var
        return self.head(torch.batch_norm(self.conv(x), *moving, self.training, 0.1, 1e-5, False).relu().flatten(1))

    def gradients(after: bool) -> tuple[Tensor, ...]:
        norm = seeded(1, lambda: nn.BatchNorm2d(3)).double()
        parts = seeded(0, lambda: nn.Conv2d(2, 3, 2)).double(), norm, seeded(2, lambda: nn.Linear(36, 4)).double()
        if kind == "scripted":
            model: Any = torch.jit.script(nn.Sequential(*parts[:2], nn.ReLU(), nn.Flatten(), parts[2]))
        else:
            model = Network(by_hand, conv=parts[0], norm=norm, head=parts[2])
        x = images(3, 2, 4, 5)
        penalty = emr(model, x, generator=torch.Generator().manual_seed(0)).sum()
        if after:
            model(x)
        wanted = [p for name, p in model.named_parameters() if name.endswith("weight")]
        return torch.autograd.grad(penalty, wanted)

    torch.testing.assert_close(gradients(after=True), gradients(after=False), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("emr", PENALTIES)
def test_layer_norm_under_autocast(emr, dtype):
    layers = nn.Linear(15, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4)
    model = nn.Sequential(nn.Flatten(), *layers)
    x = images(3, 1, 3, 5, dtype=torch.float32)
    with torch.autocast("cpu", dtype):
        penalty = emr(model, x, generator=torch.Generator().manual_seed(0))
    wide = emr(model, x, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(penalty, wide, rtol=0.1, atol=0)
    penalty.sum().backward()


def test_a_view_by_an_operator_we_do_not_know_keeps_the_tensor_from_being_changed_aside():
    def forward(self: Network, x: Tensor) -> Tensor:
        h = self.conv(x)
        keep = h.detach()
        h.add_(0.3)
        return self.head((h * (keep > 0)).flatten(1))

    parts = {
        "conv": seeded(0, lambda: nn.Conv2d(2, 3, 2)).double(),
        "head": seeded(1, lambda: nn.Linear(36, 4)).double(),
    }
    model, x = Network(forward, **parts), images(3, 2, 4, 5)
    torch.testing.assert_close(ExactEMR()(model, x), exact_emr_slowly(model, x))


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("known", [True, False])
def test_hardsigmoid_on_both_ways(inplace, known):
    def forward(self: Network, x: Tensor) -> Tensor:
        gate = F.hardsigmoid(4 * self.gate(x.flatten(1)), inplace=inplace)
        h = gate if known else torch.special.expit(gate)  # an operator the tape does not have
        return self.head(h)

    parts = {"gate": seeded(0, lambda: nn.Linear(15, 9)).double(), "head": seeded(1, lambda: nn.Linear(9, 4)).double()}
    model, x = Network(forward, **parts), images(3, 1, 3, 5)
    penalty = ExactEMR()(model, x)
    eps, weight = 1e-6, model.gate.weight
    (gradient,) = torch.autograd.grad(penalty.sum(), weight)
    with torch.no_grad():
        sums = []
        for sign in (1, -1):
            weight[0, 0] += sign * eps
            sums.append(ExactEMR().value(model, x).sum())
            weight[0, 0] -= sign * eps
    torch.testing.assert_close(gradient[0, 0], (sums[0] - sums[1]) / (2 * eps), rtol=1e-5, atol=1e-8)


def test_hooks_on_every_modules_backward_pass_are_obeyed():
    model, x = relu_net(), images(3, 1, 3, 5)
    plain = ApproximateEMR(temperature=1.0)(model, x)
    hook = nn.modules.module.register_module_full_backward_hook(
        lambda module, into, _: (
            tuple(None if g is None else 2 * g for g in into) if isinstance(module, nn.Linear) else None
        )
    )
    try:
        doubled = ApproximateEMR(temperature=1.0)(model, x)
    finally:
        hook.remove()
    assert (doubled > 3 * plain).all()


TRADES = Trades(attack=PGD(eps=0.1, step_size=0.05, steps=2, random_start="gaussian"), beta=6.0)
NO_LOGITS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "a tuple": (lambda z: (z, z), "got tuple; wrap it in a module whose forward returns the logits"),
    "a dictionary": (lambda z: {"scores": z}, "got dict; wrap it in a module whose forward returns the logits"),
    "one class": (lambda z: z[:, :1], r"must return logits of shape \(3, K\) with K >= 2, got \(3, 1\)"),
    "no classes": (lambda z: z[:, 0], r"must return logits of shape \(3, K\) with K >= 2, got \(3,\)"),
    "too many axes": (lambda z: z.unsqueeze(1), r"must return logits of shape \(3, K\) with K >= 2, got \(3, 1, 4\)"),
    "another batch": (lambda z: z[:1], r"must return logits of shape \(3, K\) with K >= 2, got \(1, 4\)"),
}


@pytest.mark.parametrize("use", [*USES, lambda model, x, y: TRADES(Nets(model), x, y, epoch=0)])
@pytest.mark.parametrize("name", NO_LOGITS)
def test_a_model_that_returns_no_logits_is_told_so(use, name):
    after, message = NO_LOGITS[name]
    model = Network(lambda self, x: after(self.net(x)), net=relu_net(num_classes=4))
    with pytest.raises(InputError, match=message):
        use(model, images(3, 1, 3, 5), labels(3, 4))


@pytest.mark.parametrize("use", USES)
def test_what_is_no_model_and_no_tensor_is_named(use):
    model, x, y = relu_net(), images(3, 1, 3, 5), labels(3, 4)
    with pytest.raises(InputError, match=r"must be a torch\.nn\.Module, got function; put a function into"):
        use(lambda x: model(x), x, y)
    with pytest.raises(InputError, match="call it once on a batch first"):
        use(nn.Sequential(nn.Flatten(), nn.LazyLinear(4)).double(), x, y)
    if use is not USES[2]:  # an evaluation has its own words for data
        with pytest.raises(InputError, match=r"images must be a torch\.Tensor, got ndarray"):
            use(model, x.numpy(), y)
    if use in USES[:2]:
        with pytest.raises(InputError, match=r"labels must be a torch\.Tensor, got list"):
            use(model, x, [0, 1, 2])


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "grey in three channels": lambda: images(3, 1, 2, 3).expand(-1, 3, -1, -1),
    "one image often": lambda: images(1, 3, 2, 3).expand(3, -1, -1, -1),
    "windows that overlap": lambda: images(1, 40).flatten().unfold(0, 18, 4)[:3].unflatten(1, (3, 2, 3)),
    "every second pixel": lambda: images(3, 3, 4, 6)[:, :, ::2, ::2],
}


@pytest.mark.parametrize("emr", PENALTIES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("first", ["normalization", "sigmoid", "expand"])
def test_images_whose_pixels_share_memory(emr, layout, first):
    def forward(self: Network, x: Tensor) -> Tensor:
        if first == "expand":
            x = x[:, :1].expand(-1, 3, -1, -1)
        x = torch.sigmoid(x) if first == "sigmoid" else (x - self.mean) / 0.25
        return self.net(x)

    mean = nn.Buffer(torch.rand(3, 1, 1, dtype=torch.float64))
    model, x = Network(forward, net=relu_net(shape=(3, 2, 3)), mean=mean), LAYOUTS[layout]()
    weights = [model.net[1].weight, model.net[5].weight]
    found, expected = (
        torch.autograd.grad(emr(model, given, generator=torch.Generator().manual_seed(0)).sum(), weights)
        for given in (x, x.contiguous().clone())
    )
    torch.testing.assert_close(found, expected)
    if isinstance(emr, ExactEMR):
        torch.testing.assert_close(found, torch.autograd.grad(exact_emr_slowly(model, x).sum(), weights))


@pytest.mark.parametrize("use", [*USES[1:2], *USES[3:], lambda model, x, y: ExactEMR().value(model, x)])
@pytest.mark.parametrize(("of_images", "of_weights"), [("float64", "float32"), ("float16", "float32")])
def test_images_of_another_type_are_named(use, of_images, of_weights):
    model, x = relu_net().to(getattr(torch, of_weights)), images(3, 1, 3, 5).to(getattr(torch, of_images))
    with pytest.raises(InputError, match=rf"images are torch.{of_images}, the model's weights torch.{of_weights}"):
        use(model, x, labels(3, 4))
    use(Network(lambda self, x: self.net(x.to(self.net[1].weight.dtype)), net=model), x, labels(3, 4))


@pytest.mark.parametrize("use", [*USES[1:2], *USES[3:], lambda model, x, y: ExactEMR().value(model, x)])
def test_what_cannot_be_differentiated_is_said(use):
    net, x, y = relu_net(), images(3, 1, 3, 5), labels(3, 4)
    with pytest.raises(InputError, match=r"must return real, dense logits, got torch.complex128"):
        use(Network(lambda self, x: self.net(x).to(torch.complex128), net=net), x, y)
    with pytest.raises(InputError, match=r"called inside a transform of torch\.func"):
        torch.func.vmap(lambda sample: use(net, sample[None], y[:1])[0])(x)
    with pytest.raises(InputError, match=r"writes into its images"):
        use(Network(lambda self, x: self.net(x.sub_(0.5)), net=net), x, y)
    assert torch.equal(x, images(3, 1, 3, 5))
    with torch.inference_mode():
        kept = images(1, 1, 3, 5)
    with pytest.raises(InputError, match=r"uses tensors made under torch\.inference_mode\(\)"):
        use(Network(lambda self, x: self.net(x * kept), net=net), x, y)


@pytest.mark.parametrize("use", USES)
def test_extra_state_of_a_module_is_let_be(use):
    class Counting(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"calls": 3}

        def set_extra_state(self, state: Any) -> None:
            raise AssertionError("nobody loads it")

    model = seeded(0, lambda: nn.Sequential(nn.Flatten(), Counting(15, 4)))
    use(model, images(3, 1, 3, 5), labels(3, 4))

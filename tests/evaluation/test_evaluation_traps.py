"""The traps of the backend, each either handled so that verdicts are right, or refused in one clear line."""

import logging
import sys

import numpy as np
import pyautoattack.checks
import pytest
import torch
from official import SHORT, VERY_SHORT, assert_official, assert_same, officially
from small_networks import Around, Rough, flat_net, pictures, taught, taught_conv, taught_flat
from torch import nn
from torch.utils.data import Subset, TensorDataset

import widemargin
from widemargin import InputError

QUICK = {"sanity": False, "margins": False}


# Numbers of classes


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_too_few_classes_for_the_targeted_loss(short, classes, norm):
    model, (x, y) = Rough(taught_conv(classes)), pictures(classes, 12)
    eps = 0.15 if norm == "linf" else 1.2
    official = officially(model, x, y, eps=eps, norm=norm, classes=classes, lengths=SHORT)
    report = widemargin.evaluate(model, (x, y), ["clean", "autoattack"], eps, norm, **QUICK)
    assert_official(report, official)
    assert list(report.verdicts) == [
        "clean",
        "autoattack/apgd-ce",
        "autoattack/fab-t",
        "autoattack/square",
        "autoattack",
    ]
    assert report.verdicts["clean"].any()


def test_four_classes_are_enough(very_short):
    model, (x, y) = Rough(taught_conv(4)), pictures(4, 8)
    official = officially(model, x, y, eps=0.2, classes=4, lengths=VERY_SHORT)
    report = widemargin.evaluate(model, (x, y), ["autoattack"], 0.2, **QUICK)
    assert_official(report, official)
    assert "autoattack/apgd-t" in report.verdicts


# Forms of input and arithmetic


@pytest.mark.parametrize("attacks", [("clean", "fgsm", "pgd5"), ("autoattack",)])
def test_a_network_of_flat_inputs(very_short, attacks):
    model, (x, y) = taught_flat(5), pictures(5, 12)
    seen_flat = widemargin.evaluate(model, (x.flatten(1), y), attacks, 0.08, distance=True, sanity=True)
    flattening = nn.Sequential(nn.Flatten(), model)
    assert_same(seen_flat, widemargin.evaluate(flattening, (x, y), attacks, 0.08, distance=True, sanity=True))
    if "autoattack" in attacks:
        assert_official(seen_flat, officially(flattening, x, y, eps=0.08, classes=5, lengths=VERY_SHORT))


FORMS = {"flat, no square": (60,), "a signal": (3, 20), "gray images": (6, 10), "a film": (1, 3, 4, 5)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_inputs_that_are_no_images(very_short, tmp_path, form, norm):
    """As the same numbers in images, for a model that sees them in their own form."""
    x, y = pictures(5, 12, (1, 6, 10))
    network = taught(lambda: nn.Sequential(nn.Flatten(), flat_net(5, 60)), *pictures(5, 60, (1, 6, 10), seed=1))
    own = x.reshape(12, *FORMS[form])

    def in_its_form(net, x):
        assert x.shape[1:] == FORMS[form]
        return net(x)

    model = Around(network, in_its_form)
    attacks = ["clean", "fgsm", "pgd5"]
    options = {"distance": True, "norm": norm, "eps": 0.2 if norm == "linf" else 1.5}
    found = widemargin.evaluate(model, (own, y), attacks, out=tmp_path, **options)
    assert_same(found, widemargin.evaluate(network, (x, y), attacks, **options))
    assert len(set(found.accuracy.values())) > 1
    assert (tmp_path / "report.json").exists()
    assert not (tmp_path / "gallery.npz").exists()
    with pytest.raises(InputError, match=r"autoattack takes images \(N, C, H, W\) or flat squares, .*; leave auto"):
        widemargin.evaluate(model, (own, y), ["clean", "autoattack"], 0.2, norm)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_of_another_precision(short, dtype):
    model, (x, y) = Rough(taught_conv(5)).to(dtype), pictures(5, 12)
    official = officially(
        Around(model, lambda net, x: net(x.to(dtype)).float()), x, y, eps=0.2, classes=5, lengths=SHORT
    )
    report = widemargin.evaluate(model, (x, y), ["clean", "pgd3", "autoattack"], 0.2, distance=True)
    assert_official(report, official)
    assert report.verdicts["clean"].tolist() == (model(x.to(dtype)).argmax(1) == y).tolist()
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert report.margin.isfinite().all()


class Scaled(nn.Module):
    """A temperature of one arithmetic in front of a network of another."""

    def __init__(self, dtype, other):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0, dtype=other))
        self.network = taught_conv(5).to(dtype)

    def forward(self, x):
        return self.network(x) / self.temperature


@pytest.mark.parametrize("other", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_scale_of_another_precision_than_the_network(dtype, other):
    model, (x, y) = Scaled(dtype, other), pictures(5, 12)
    report = widemargin.evaluate(model, (x, y), ["clean", "fgsm"], 0.1)
    assert report.verdicts["clean"].tolist() == (model(x.to(dtype)).argmax(1) == y).tolist()


def test_images_of_another_precision_are_read_as_float32():
    model, (x, y) = taught_conv(5), pictures(5, 12)
    plain, wide = (widemargin.evaluate(model, (images, y), ["clean", "fgsm"], 0.1) for images in (x, x.double()))
    assert_same(plain, wide)


LAYOUTS = {
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "arrays (H, W, C)": lambda x: torch.from_numpy(x.permute(0, 2, 3, 1).numpy().copy()).permute(0, 3, 1, 2),
    "turned around": lambda x: x.permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0),
    "every second pixel": lambda x: x.repeat_interleave(2, 2).repeat_interleave(2, 3)[:, :, ::2, ::2],
    "asking for gradients": lambda x: x.clone().requires_grad_(True),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.8)])
def test_the_layout_of_images_makes_no_difference(very_short, layout, norm, eps):
    model = Around(
        taught_conv(5, (3, 8, 8)), lambda net, x: net((x - 0.1) / 0.9)
    )  # the first operator keeps the layout
    x, y = pictures(5, 12, (3, 8, 8))
    attacks = ["clean", "fgsm", "autoattack"]
    plain = widemargin.evaluate(model, (x, y), attacks, eps, norm, distance=True)
    assert_same(widemargin.evaluate(model, (LAYOUTS[layout](x), y), attacks, eps, norm, distance=True), plain)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_what_is_around_makes_no_difference(very_short, norm):
    """A default of float64, as some libraries set, autocast, and the validation of Lightning."""
    model, (x, y) = Rough(taught_conv(5)), pictures(5, 12)
    attacks, options = ["clean", "fgsm", "pgd2", "autoattack"], {"eps": 0.2, "norm": norm, "distance": True}
    plain = widemargin.evaluate(model, (x, y), attacks, **options)
    with torch.inference_mode():
        assert_same(widemargin.evaluate(model, (x.clone(), y.clone()), attacks, **options), plain)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(widemargin.evaluate(model, (x, y), attacks, **options), plain)
    torch.set_default_dtype(torch.float64)
    try:
        found = widemargin.evaluate(model, (x, y), attacks, **options)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same(found, plain)
    assert found.distance.dtype == found.margin.dtype == torch.float32


def test_a_model_keeps_the_default_type_of_its_user(very_short):
    model, (x, y) = Around(taught_conv(5).double(), lambda net, x: net(x) @ torch.eye(5)), pictures(5, 8)
    torch.set_default_dtype(torch.float64)
    try:
        found = widemargin.evaluate(model, (x, y), ["clean", "pgd2", "autoattack"], 0.1)
    finally:
        torch.set_default_dtype(torch.float32)
    expected = widemargin.evaluate(taught_conv(5).double(), (x, y), ["clean", "pgd2", "autoattack"], 0.1)
    assert found.accuracy == expected.accuracy


def test_a_model_that_writes_into_its_images_and_keeps_its_logits(very_short):
    kept, scaling = [], Around(taught_conv(5), lambda net, x: net(x * 0.9))

    def writing(net, x):
        kept.append(net(x.mul_(0.9)))
        return kept[-1]

    model, (x, y) = Around(taught_conv(5), writing), pictures(5, 8)
    attacks, before = ["clean", "fgsm", "pgd2", "autoattack"], x.clone()
    found = widemargin.evaluate(model, (x, y), attacks, 0.1, distance=True)
    assert_same(found, widemargin.evaluate(scaling, (x, y), attacks, 0.1, distance=True))
    assert x.equal(before)
    assert all(logits.isfinite().all() for logits in kept)


# Training mode


def test_a_model_left_in_training_mode(short):
    x, y = pictures(10, 20)
    model = Rough(taught_conv(dropout=0.3))
    official = officially(model, x, y, eps=0.2, lengths=SHORT)
    attacks = ["clean", "fgsm", "pgd3", "autoattack"]
    expected = widemargin.evaluate(model, (x, y), attacks, 0.2, distance=True)
    model.train()
    model.model[5].eval()  # one batch norm that the user froze
    model.model[0].weight.requires_grad_(False)
    model.model[8].weight.grad = torch.ones_like(model.model[8].weight)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    report = widemargin.evaluate(model, (x, y), attacks, 0.2, distance=True)
    assert_same(report, expected)
    assert report.alarms == expected.alarms
    assert_official(report, official)
    assert [module.training for module in model.modules()] == modes
    assert all(value.equal(state[key]) for key, value in model.state_dict().items())
    assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == ["model.0.weight"]
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert list(gradients) == ["model.8.weight"]
    assert gradients["model.8.weight"].eq(1).all()


def test_a_model_is_restored_when_the_evaluation_is_interrupted(very_short):
    model, (x, y) = taught_conv(5).train(), pictures(5, 8)
    for hook_at in (1, 3, 20):
        calls = []

        def interrupt(module, inputs, calls=calls, hook_at=hook_at):
            calls.append(1)
            if len(calls) == hook_at:
                raise KeyboardInterrupt

        handle = model.register_forward_pre_hook(interrupt)
        torch.manual_seed(4)
        before = torch.get_rng_state()
        with pytest.raises(KeyboardInterrupt):
            widemargin.evaluate(model, (x, y), ["autoattack"], 0.2)
        handle.remove()
        assert all(module.training for module in model.modules())
        assert all(parameter.requires_grad for parameter in model.parameters())
        assert torch.get_rng_state().equal(before)


# Wrong data


def labels(*values):
    return torch.tensor(values)


BLACK, TWO = torch.zeros(2, 1, 8, 8), labels(0, 1)
EMPTY = "the data is empty; give at least one example"
WRONG = {
    "brighter than one": ((BLACK + 1.5, TWO), r"images must be in \[0, 1\], got .* 1.5"),
    "negative": ((BLACK - 0.5, TWO), r"images must be in \[0, 1\]"),
    "not a number": ((BLACK + float("nan"), TWO), r"images must be in \[0, 1\]"),
    "bytes": ((BLACK.byte(), TWO), "images must be floating point .* divide by 255"),
    "label too large": ((BLACK, labels(0, 5)), r"labels must be in 0..4, got 0..5; the model has 5 out"),
    "negative label": ((BLACK, labels(-1, 0)), r"labels must be in 0..4, got -1..0"),
    "too few labels": ((BLACK, labels(0)), r"labels must be \(2,\) integers"),
    "one-hot labels": ((BLACK, torch.eye(5)[:2]), r"labels must be \(2,\) integers, got torch.float32"),
    "switches for labels": ((BLACK, torch.tensor([True, False])), r"labels must be \(2,\) integers"),
    "no images": ((BLACK[:0], labels()), "at least one sample"),
    "sparse images": ((BLACK.to_sparse(), TWO), "images must be a dense tensor with values"),
    "images without values": ((BLACK.to("meta"), TWO), "images must be a dense tensor .*"),
    "sparse labels": ((BLACK, TWO.to_sparse()), "labels must be a dense tensor with values"),
    "images of eight bits": (
        (BLACK.to(torch.float8_e4m3fn), TWO),
        r"images must be float32 or of 16 or 64 bits, got torch.float8_e4m3fn; use x.float\(\)",
    ),
    "images of another shape": ((torch.zeros(2, 3, 8, 8), TWO), r"the model does not take .*\(3, 8, 8\)"),
    "no batches": ([], EMPTY),
    "empty batches alone": ([(BLACK[:0], labels())] * 3, EMPTY),
    "labels without images": ([pictures(5, 3), (BLACK[:0], labels(1, 2))], "at least one sample"),
    "images alone": (BLACK, r"data must give pairs \(images, labels\) of tensors, got Tensor"),
    "single examples": (TensorDataset(*pictures(5, 3)), "got a TensorDataset of single examples; wrap it in a .*DataL"),
    "some single examples": (
        Subset(TensorDataset(*pictures(5, 3)), [0, 1]),
        "got a Subset of single examples; wrap it in a .*DataLoader",
    ),
    "a number": (3, r"data must be \(images, labels\), a data set or its name, or batches of pairs, got int"),
    "labels in a list": ((BLACK, [0, 1]), "labels must be a torch.Tensor, got list; convert them"),
    "arrays": ((np.zeros((2, 1, 8, 8)), np.zeros(2)), "images must be a torch.Tensor, got ndarray; convert them"),
    "batches of arrays": (
        [(np.zeros((2, 1, 8, 8)), np.zeros(2))],
        "images must be a torch.Tensor, got ndarray; convert",
    ),
    "no labels among the entries": (
        [{"image": BLACK, "target": torch.zeros(2)}],
        "a batch must hold its labels under one of labels, label, cls, got 'image', 'target'; rename",
    ),
    "splits in place of batches": (
        {"train": BLACK},
        "a batch must hold its images under one of pixel_values, .*, got 'train'",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("attacks", [("clean",), ("autoattack",)])
def test_wrong_data_is_refused_in_one_line(wrong, attacks):
    data, says = WRONG[wrong]
    with pytest.raises(InputError, match=f"evaluate: .*{says}") as refusal:
        widemargin.evaluate(taught_conv(5), data, attacks, 0.1, **QUICK)
    assert "\n" not in str(refusal.value)


def test_images_too_small_for_the_black_box_in_l2():
    model, data = nn.Sequential(nn.Flatten(), nn.Linear(16, 5)), (torch.rand(2, 1, 4, 4), labels(0, 1))
    with pytest.raises(InputError, match=r"autoattack in L2 takes images of at least 5 rows, .* shape \(2, 1, 4, 4\)"):
        widemargin.evaluate(model, data, ["autoattack"], 0.1, "l2", **QUICK)
    assert widemargin.evaluate(model, data, ["autoattack"], 0.1, max_steps=2, **QUICK).count == 2


def test_a_wrong_label_in_a_later_shard_is_seen_too():
    x, y = pictures(5, 12)
    y = y.clone()
    y[9] = 7
    for attacks in (["clean"], ["autoattack"]):
        with pytest.raises(InputError, match=r"evaluate: labels must be in 0..4, got 0..7"):
            widemargin.evaluate(taught_conv(5), (x, y), attacks, 0.1, shard_size=4, max_steps=1, **QUICK)


NO_LOGITS = r"the model must return logits of shape \(4, K\) with K >= 2, got "
WRONG_MODELS = {
    "of flat inputs": (lambda: taught_flat(5), r"the model does not take images of shape \(1, 8, 8\)"),
    "without a head": (nn.Identity, NO_LOGITS + r"\(4, 1, 8, 8\)"),
    "of one class": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 1)), NO_LOGITS + r"\(4, 1\)"),
    "of sparse logits": (
        lambda: Around(taught_conv(5), lambda net, x: net(x).to_sparse()),
        "the model must return real, dense logits, got ",
    ),
    "of complex logits": (
        lambda: Around(taught_conv(5), lambda net, x: net(x).to(torch.complex64)),
        "the model must return real, dense logits, got ",
    ),
}


@pytest.mark.parametrize("wrong", WRONG_MODELS)
def test_a_wrong_model_is_refused_in_one_line(wrong):
    make, says = WRONG_MODELS[wrong]
    with pytest.raises(InputError, match=f"evaluate: .*{says}") as refusal:
        widemargin.evaluate(make(), pictures(5, 4), ["clean"], **QUICK)
    assert "\n" not in str(refusal.value)


def detached():
    return Around(taught_conv(5), lambda net, x: net(x.detach()))


def deaf():
    """The same logits whatever the image: a view of a parameter, which asks for gradients as soon as that does."""
    return Around(nn.ParameterList([torch.arange(5.0)]), lambda bias, x: bias[0].expand(len(x), -1))


def restarted():
    """Its logits have a gradient, which ends short of the images."""
    return Around(taught_conv(5), lambda net, x: net(x.detach().requires_grad_(True)))


@pytest.mark.parametrize("make", [detached, deaf, restarted])
@pytest.mark.parametrize(("attacks", "sanity"), [(["autoattack"], False), (["pgd2"], False), (["clean"], True)])
def test_a_model_without_input_gradients_is_refused_in_one_line(make, attacks, sanity):
    with pytest.raises(InputError, match="evaluate: the model's logits carry no gradient to the images") as refusal:
        widemargin.evaluate(make(), pictures(5, 4), attacks, 0.1, sanity=sanity, margins=False)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("make", "right"), [(detached, 100.0), (deaf, 0.0), (restarted, 100.0)])
def test_a_model_without_input_gradients_has_a_clean_accuracy(make, right):
    report = widemargin.evaluate(make(), pictures(5, 4), ["clean"], **QUICK)
    assert report.accuracy == {"clean": right}


# The world around it


def disturb_and_evaluate(model, **options):
    x, y = pictures(5, 6)
    return widemargin.evaluate(model, (x, y), ["clean", "fgsm", "pgd2", "autoattack"], 0.2, **options)


def noise(net, x):
    return net(x) + torch.randn(len(x), 5) + float(np.random.rand())


@pytest.mark.parametrize("forward", [lambda net, x: net(x), noise], ids=["honest", "noisy"])
@pytest.mark.parametrize("sanity", [True, False])
def test_global_random_states_are_unchanged(very_short, forward, sanity):
    model = Around(taught_conv(5), forward)
    torch.manual_seed(11)
    np.random.seed(12)
    before = torch.get_rng_state(), np.random.get_state()
    disturb_and_evaluate(model, distance=True, sanity=sanity)
    assert torch.get_rng_state().equal(before[0])
    after = np.random.get_state()
    assert after[2] == before[1][2]
    assert (after[1] == before[1][1]).all()


def test_the_global_random_state_does_not_matter(very_short):
    model = taught_conv(5)
    reports = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        reports.append(disturb_and_evaluate(model, distance=True))
    assert_same(*reports)


def test_the_tracer_is_kept(very_short):
    def tracer(frame, event, argument):
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        disturb_and_evaluate(taught_conv(5))
        kept = sys.gettrace()
    finally:
        sys.settrace(before)
    assert kept is tracer


def test_the_flag_of_dynamic_defenses_does_not_stick(very_short, caplog):
    def differentiating(net, x):  # in its forward pass, as dynamic defenses do
        with torch.enable_grad():
            leaf = x.detach().requires_grad_(True)
            torch.autograd.grad(leaf.sum(), leaf)
        return net(x)

    model = Around(taught_conv(5), differentiating)
    pyautoattack.checks.check_dynamic(model, pictures(5, 2)[0])
    assert any(pyautoattack.checks.funcs.values()), "the backend no longer has this trap"
    disturb_and_evaluate(model)
    assert not any(pyautoattack.checks.funcs.values())


# Few examples


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("eps", [0.0001, 0.9])
def test_a_single_example(very_short, norm, eps):
    model, (x, y) = taught_conv(5), pictures(5, 1)
    official = officially(model, x, y, eps=eps, norm=norm, classes=5, lengths=VERY_SHORT)
    report = widemargin.evaluate(model, (x, y), ["clean", "pgd2", "autoattack"], eps, norm, distance=True)
    assert_official(report, official)
    assert report.count == 1
    assert report.accuracy["autoattack"] == (100.0 if eps < 0.01 or norm == "l2" else 0.0)


def test_every_example_misclassified(very_short):
    model, (x, _) = taught_conv(5), pictures(5, 8)
    wrong = (model(x).argmax(1) + 1) % 5
    report = widemargin.evaluate(model, (x, wrong), ["clean", "fgsm", "autoattack"], 0.05, distance=True)
    assert set(report.accuracy.values()) == {0.0}
    assert report.distance.eq(0).all()
    assert report.margin.lt(0).all()
    assert report.to_json()["distance"]["count"] == 0
    assert report.distance_by == (None,) * len(report.distance)


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.9), ("l2", 20.0)])
@pytest.mark.parametrize("shard_size", [4, 500])
def test_the_model_never_sees_an_empty_batch(short, norm, eps, shard_size):
    """Nobody survives a part, a whole shard is misclassified, or all logits are tied, which Square takes for won."""
    x, y = pictures(5, 8)
    wrong = torch.cat([(y[:4] + 1) % 5, y[4:]])
    for scale, answers in ((1.0, y), (1.0, wrong), (1.0, (y + 1) % 5), (0.0, 0 * y)):

        def needy(net, x, scale=scale):
            assert len(x), "an empty batch, which x.view(x.size(0), -1) could not take"
            return scale * net(x)

        attacks = ["clean", "fgsm", "pgd2", "autoattack"]
        options = {"distance": True, "batch_size": 3, "shard_size": shard_size}
        report = widemargin.evaluate(Around(taught_conv(5), needy), (x, answers), attacks, eps, norm, **options)
        assert report.count == 8
        assert report.accuracy["autoattack"] == (0.0 if scale else 100.0)


def test_the_backend_says_nothing_on_the_screen(very_short, capfd, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # which pytest adds, and programs may not have
    model = Around(taught_conv(5), lambda net, x: net(x.detach()) + 0 * x.flatten(1)[:, :5])  # a gradient of zero
    report = widemargin.evaluate(model, pictures(5, 8), ["autoattack"], 0.1)
    assert "vanishing-gradients" in {alarm.name for alarm in report.alarms}
    assert capfd.readouterr() == ("", "")


def test_an_image_of_nan_breaks_nobody(short):
    """A gradient of NaN leads AutoAttack in L2 to images of NaN, which are no images."""

    def root(net, x):  # zero, and its gradient is no number
        return net(x) + (x - x.detach()).square().sum((1, 2, 3)).sqrt()[:, None] * torch.arange(5)

    report = widemargin.evaluate(
        Around(taught_conv(5), root), pictures(5, 8), ["clean", "autoattack"], 0.001, "l2", margins=False
    )
    assert report.accuracy["autoattack/fab-t"] == report.accuracy["clean"] == 100.0
    assert [alarm.name for alarm in report.alarms] == ["not-finite", "survives-huge-eps"]


def test_every_example_broken_before_the_black_box(short):
    model, (x, y) = taught_conv(5), pictures(5, 8)
    official = officially(model, x, y, eps=0.9, classes=5, lengths=SHORT)
    report = widemargin.evaluate(model, (x, y), ["clean", "autoattack"], 0.9, **QUICK)
    assert_official(report, official)
    assert report.accuracy["autoattack/fab-t"] == report.accuracy["autoattack/square"] == 0.0

"""Lightning with the callback takes the steps of a loop by hand, to the bits, and leaves the module as it was."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import widemargin
from widemargin import InputError

pl = pytest.importorskip("lightning.pytorch", reason="lightning is large; its extra is not in the dev environment")
from widemargin.integrations.lightning import EMRCallback  # noqa: E402

X, Y = torch.rand(24, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 4


class Net(pl.LightningModule):
    def __init__(self, form="tensor"):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
        self.form, self.logged = form, []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = (batch["image"], batch["label"]) if isinstance(batch, dict) else batch
        loss = F.cross_entropy(self(x), y)
        return {"tensor": loss, "dict": {"loss": loss, "extra": 1}, "none": None}[self.form]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def log(self, name, value, **more):
        self.logged.append((name, value))
        super().log(name, value, **more)


def fit(net, callbacks, loader, **options):
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=callbacks, **quiet, **options).fit(net, loader)
    return net.net.state_dict()


def by_hand(net, emr, batches, *, accumulate=1, precision=False):
    """The loop of the README, over the same batches."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net.train()
    for number, (x, y) in enumerate(batches, start=1):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision):
            loss = F.cross_entropy(net(x), y) + 0.1 * emr(net, x, y).mean()
        (loss / accumulate).backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return net.state_dict()


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


LOADER = DataLoader(TensorDataset(X, Y), batch_size=8)


@pytest.mark.parametrize("form", ["tensor", "dict"])
@pytest.mark.parametrize("make", [widemargin.ApproximateEMR, lambda: widemargin.StochasticEMR(seed=3)])
def test_the_steps_of_a_loop_by_hand(form, make):
    net = Net(form)
    expected = by_hand(copy.deepcopy(net.net), make(), LOADER)
    without = by_hand(copy.deepcopy(net.net), lambda *_: torch.zeros(8), LOADER)
    found = fit(net, [EMRCallback(weight=0.1, emr=make())], LOADER)
    assert_equal(found, expected)
    assert not torch.equal(found["0.weight"], without["0.weight"])
    assert "training_step" not in vars(net)
    assert [name for name, _ in net.logged] == ["emr"] * 3


def test_accumulated_gradients_and_mixed_precision():
    emr = widemargin.ApproximateEMR()
    loader = DataLoader(TensorDataset(X, Y), batch_size=6)
    net = Net()
    expected = by_hand(copy.deepcopy(net.net), emr, loader, accumulate=2)
    assert_equal(fit(net, [EMRCallback(weight=0.1, emr=emr)], loader, accumulate_grad_batches=2), expected)
    net = Net()
    expected = by_hand(copy.deepcopy(net.net), emr, loader, precision=True)
    assert_equal(fit(net, [EMRCallback(weight=0.1, emr=emr)], loader, precision="bf16-mixed"), expected)


def test_two_penalties_a_part_of_the_module_and_batches_by_name():
    rows = [{"image": x, "label": y} for x, y in zip(X, Y, strict=True)]
    net, emr = Net(), widemargin.ExactEMR()
    start = copy.deepcopy(net.net)
    calls = [
        EMRCallback(weight=0.04, emr=emr, name="one"),
        EMRCallback(weight=0.06, emr=emr, model=net.net, name="two"),
    ]
    found = fit(net, calls, DataLoader(rows, batch_size=8))
    expected = by_hand(start, emr, LOADER)
    assert all(torch.allclose(found[key].float(), expected[key].float(), atol=1e-5) for key in found)
    assert {name for name, _ in net.logged} == {"one", "two"}
    assert "training_step" not in vars(net)


def test_a_step_that_is_skipped_an_error_and_the_next_fit():
    net = Net("none")
    before = copy.deepcopy(net.net.state_dict())
    callback = EMRCallback(weight=0.1, emr=widemargin.ApproximateEMR())
    assert torch.equal(fit(net, [callback], LOADER)["0.weight"], before["0.weight"])
    wrong = DataLoader(X, batch_size=8)
    net = Net()
    with pytest.raises(ValueError, match="too many values"):
        fit(net, [callback], wrong)
    assert "training_step" not in vars(net)
    expected = by_hand(copy.deepcopy(net.net), widemargin.ApproximateEMR(), LOADER)
    assert_equal(fit(net, [callback], LOADER), expected)


def test_what_is_refused():
    with pytest.raises(InputError, match=r"EMRCallback.weight must be a number > 0, got 0"):
        EMRCallback(weight=0, emr=widemargin.ApproximateEMR())
    net = Net()
    net.automatic_optimization = False
    with pytest.raises(InputError, match="this module optimizes by hand"):
        fit(net, [EMRCallback(weight=0.1, emr=widemargin.ApproximateEMR())], LOADER)

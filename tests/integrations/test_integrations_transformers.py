"""Hugging Face's Trainer with the mixin, and accelerate's loop, take the steps of a loop by hand, to the bits."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import widemargin
from widemargin import InputError
from widemargin.integrations.transformers import EMRMixin

X, Y = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 4
ROWS = [{"pixel_values": x, "labels": y} for x, y in zip(X, Y, strict=True)]


class Vision(nn.Module):
    """A model that gives what Hugging Face's give; with ``counts`` it takes what the Trainer counts."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, pixel_values, labels=None):
        logits = self.net(pixel_values)
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Counting(Vision):
    def forward(self, pixel_values, labels=None, num_items_in_batch=None, **more):
        logits = self.net(pixel_values)
        if labels is None:
            return {"logits": logits}
        count = len(labels) if num_items_in_batch is None else num_items_in_batch
        return {"loss": F.cross_entropy(logits, labels, reduction="sum") / count, "logits": logits}


class Emulated:
    """``transformers.Trainer`` as far as the mixin knows it."""

    loss_is_scaled_for_ga = None
    model_accepts_loss_kwargs = False
    compute_loss_func = None
    current_gradient_accumulation_steps = 4

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        inputs.pop("labels")  # as label smoothing does
        loss = torch.tensor(2.0)
        return (loss, {"logits": 1}) if return_outputs else loss


class Penalized(EMRMixin, Emulated):
    emr, emr_weight = widemargin.ApproximateEMR(), 0.5


@pytest.mark.parametrize(
    ("settings", "count", "share"),
    [
        ({}, None, 1),
        ({}, 24, 1),
        ({"model_accepts_loss_kwargs": True}, None, 1),
        ({"model_accepts_loss_kwargs": True}, 24, 4),
        ({"compute_loss_func": len}, None, 4),
        ({"loss_is_scaled_for_ga": True}, None, 4),
        ({"model_accepts_loss_kwargs": True, "loss_is_scaled_for_ga": False}, 24, 1),
    ],
)
def test_the_penalty_is_divided_where_the_trainer_does_not(settings, count, share):
    trainer, model = Penalized(), Vision().train()
    vars(trainer).update(settings)
    batch = {"pixel_values": X, "labels": Y}
    expected = 2 + 0.5 * widemargin.ApproximateEMR().value(model, X).mean() / share
    found, outputs = trainer.compute_loss(model, dict(batch), return_outputs=True, num_items_in_batch=count)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    assert outputs == {"logits": 1}
    assert trainer.compute_loss(model, dict(batch), num_items_in_batch=count).item() == found.item()
    assert trainer.compute_loss(model.eval(), dict(batch)).item() == 2.0  # an evaluation has none


def test_what_is_missing_is_said_when_the_class_is_made():
    with pytest.raises(InputError, match="Missing: emr and emr_weight are missing"):
        type("Missing", (EMRMixin, Emulated), {})
    with pytest.raises(InputError, match=r"Zero.emr_weight must be a number > 0, got 0"):
        type("Zero", (EMRMixin, Emulated), {"emr": widemargin.ExactEMR(), "emr_weight": 0})


def by_hand(model, batches, *, accumulate=1, weight=0.1):
    """The loop of the README, over the same batches."""
    optimizer, emr = torch.optim.SGD(model.parameters(), lr=0.1), widemargin.ApproximateEMR()
    model.train()
    for number, (x, y) in enumerate(batches, start=1):
        loss = F.cross_entropy(model(x)["logits"], y) + weight * emr(model, x).mean()
        (loss / accumulate).backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("network", [Vision, Counting])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_trainer_takes_the_steps_of_a_loop_by_hand(network, accumulate, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is large; its extra is not in dev")
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    batches = []

    class EMRTrainer(EMRMixin, transformers.Trainer):
        emr, emr_weight = widemargin.ApproximateEMR(), 0.1

        def compute_loss(self, model, inputs, **more):
            batches.append((inputs["pixel_values"].clone(), inputs["labels"].clone()))
            return super().compute_loss(model, inputs, **more)

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=6,
        gradient_accumulation_steps=accumulate,
        learning_rate=0.1,
        optim="sgd",
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    model = network()
    start = copy.deepcopy(model)
    EMRTrainer(model=model, args=arguments, train_dataset=ROWS).train()
    assert len(batches) == 2 * accumulate
    expected, found = by_hand(start, batches, accumulate=accumulate), model.state_dict()
    exact = network is Vision  # the other divides its sum by all the images of the accumulated batches
    assert all(
        torch.equal(found[key], expected[key]) if exact else torch.allclose(found[key], expected[key], atol=1e-6)
        for key in found
    )
    without = by_hand(network(), batches, accumulate=accumulate, weight=0.0)
    assert not torch.allclose(found["net.1.weight"], without["net.1.weight"], atol=1e-6)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate_takes_the_steps_of_a_loop_by_hand(accumulate, precision):
    accelerate = pytest.importorskip("accelerate", reason="its extra is not in the dev environment")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=accumulate)
    plain = Vision().net
    net, emr = copy.deepcopy(plain), widemargin.ApproximateEMR()
    batches = [(X[start : start + 6], Y[start : start + 6]) for start in range(0, 24, 6)]
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    own = torch.optim.SGD(plain.parameters(), lr=0.1)
    for number, (x, y) in enumerate(batches, start=1):
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y) + 0.1 * emr(model, x).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits, penalty = plain(x), emr(plain, x).mean()
        ((F.cross_entropy(logits.float(), y) + 0.1 * penalty) / accumulate).backward()
        if number % accumulate == 0:
            own.step()
            own.zero_grad()
    pairs = zip(net.parameters(), plain.parameters(), strict=True)
    if precision == "no":
        assert all(torch.equal(one, other) for one, other in pairs)
    else:  # the penalty runs the model's own forward, whose autocast accelerate brings along
        assert all(torch.allclose(one, other, atol=1e-3) for one, other in pairs)

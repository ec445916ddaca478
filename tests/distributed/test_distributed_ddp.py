"""An attack and a penalty in somebody's own loop with DistributedDataParallel or FSDP, in processes of their own."""

import sys

from processes import start

TWO = """
import os, torch, torch.distributed as dist, torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from widemargin import PGD, ExactEMR, InputError, StochasticEMR, effective_margin

dist.init_process_group("gloo")
rank = dist.get_rank()
emr, images = ExactEMR(), torch.rand(4, 15, generator=torch.Generator().manual_seed(1)).double()

class Net(nn.Sequential):
    def forward(self, x):
        out = super().forward(x)
        return torch.special.expit(out) if self.unknown else out  # an operator the sweeps do not take

def make(unknown):
    torch.manual_seed(0)
    net = Net(nn.Linear(15, 8), nn.ReLU(), nn.Linear(8, 4)).double()
    net.unknown = unknown
    return net

def loss(model, rows):
    return F.cross_entropy(model(images[rows]), torch.arange(4)[rows])

def penalty(model, rows):
    return emr(model, images[rows]).mean()

def together(model, rows):
    (loss(model, rows) + penalty(model, rows) + 2 * penalty(model, rows)).backward()

def first(model, rows):
    extra = penalty(model, rows)
    (loss(model, rows) + extra).backward()

def quietly_before(model, rows):
    if isinstance(model, nn.Linear | Net):
        penalty(model, rows).backward()
    else:
        with getattr(model, "_orig_mod", model).no_sync():
            penalty(model, rows).backward()
    loss(model, rows).backward()

def after(model, rows):
    loss(model, rows).backward()
    penalty(model, rows).backward()

def after_with_weight_decay(model, rows):
    loss(model, rows).backward()
    (penalty(model, rows) + sum(p.square().sum() for p in model.parameters())).backward()

def two_forwards_one_backward_each(model, rows):
    one, other = loss(model, rows), penalty(model, rows)
    other.backward()
    one.backward()

def at_attacked_images(model, rows):
    x_adv, y = PGD(eps=0.1, step_size=0.05, steps=3)(model, images[rows], torch.arange(4)[rows]), torch.arange(4)[rows]
    (F.cross_entropy(model(x_adv), y) + emr(model, x_adv).mean()).backward()

def alone(model, rows):
    penalty(model, rows).backward()

def without_accumulating(model, rows):
    torch.autograd.grad(penalty(model, rows), [p for p in model.parameters() if p.dim() == 2])
    loss(model, rows).backward()

CASES = [(together, True), (first, True), (quietly_before, True), (without_accumulating, True)]
CASES += [(at_attacked_images, True), (after, False), (after_with_weight_decay, False)]
CASES += [(two_forwards_one_backward_each, False), (alone, False)]
KINDS = [(False, {}), (True, {}), (False, {"static_graph": True}), (False, {"gradient_as_bucket_view": True})]
KINDS += [(False, {"find_unused_parameters": True}), (False, {"compiled": True})]
for case, right in CASES:
    for unknown, options in KINDS:
        static, compiled = "static_graph" in options, options.get("compiled")
        if static and case in (quietly_before, after_with_weight_decay):
            continue  # which DDP has its own troubles with
        alone_net, shared = make(unknown), make(unknown)
        wrapped = DDP(shared, **{key: value for key, value in options.items() if key != "compiled"})
        if compiled:
            wrapped = torch.compile(wrapped, backend="eager")
        said, calls = "", []
        wrapped.register_forward_pre_hook(lambda *_: calls.append(1))
        for _ in range(3):
            alone_net.zero_grad()
            shared.zero_grad()
            case(alone_net, slice(0, 4))
            try:
                case(wrapped, slice(2 * rank, 2 * rank + 2))
            except InputError as error:
                said = str(error)
                break
        name = f"{case.__name__} {unknown} {options}"
        if right:
            assert not said, (name, said)
            # the loss alone goes through the wrapper, which counts on a backward pass after each forward
            assert compiled or len(calls) == 3, name
            for ours, expected in zip(shared.parameters(), alone_net.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, expected.grad, msg=name)
        else:
            assert "add the penalty to the loss and call backward() once" in said, name

from torch.distributed.fsdp import fully_shard
whole, sharded = make(False), make(False)
for part in (sharded[0], sharded):
    fully_shard(part)
for regularizer in (emr, StochasticEMR()):
    try:
        regularizer(sharded, images).sum().backward()
    except InputError as error:
        assert "weights are sharded over processes" in str(error)
    else:
        raise AssertionError("not refused")
y = torch.arange(4)
torch.testing.assert_close(effective_margin(sharded, images, y), effective_margin(whole, images, y))
torch.testing.assert_close(emr.value(sharded, images), emr.value(whole, images))
attack = PGD(eps=0.1, step_size=0.05, steps=2)
torch.testing.assert_close(attack(sharded, images, y), attack(whole, images, y))
F.cross_entropy(sharded(images), y).backward()
print("as it should be", flush=True)
os._exit(0)
"""


def test_two_processes_agree_or_are_told_that_they_would_not():
    answers = start([sys.executable, "-c", TWO])
    assert [answer.stdout for answer in answers] == ["as it should be\n"] * 2, answers[0].stderr

"""An attack and a penalty in somebody's own loop with DistributedDataParallel, in a process of its own."""

import subprocess
import sys

import pytest

LOOP = """
import os, sys, torch, torch.distributed as dist, torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from widemargin import PGD, ExactEMR

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(15, 8), nn.ReLU(), nn.Linear(8, 4))

x, y = torch.rand(4, 1, 3, 5), torch.arange(4)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
alone = make()
shared = make()
wrapped = DDP(shared, **{sys.argv[2]: True})
calls = []
wrapped.register_forward_pre_hook(lambda *_: calls.append(1))
for _ in range(2):
    for net, model in ((alone, alone), (shared, wrapped)):
        net.zero_grad()
        x_adv = PGD(eps=0.1, step_size=0.05, steps=3)(model, x, y)
        (F.cross_entropy(model(x_adv), y) + ExactEMR()(model, x_adv).mean()).backward()
for ours, expected in zip(shared.parameters(), alone.parameters(), strict=True):
    torch.testing.assert_close(ours.grad, expected.grad)
assert len(calls) == 2, "only the loss goes through the wrapper, which counts on a backward pass after each forward"
print("the same", flush=True)
os._exit(0)  # gloo's threads may abort a process whose Python ends around them (torch 2.13)
"""


@pytest.mark.parametrize("option", ["find_unused_parameters", "static_graph"])
def test_the_gradients_of_the_model_alone(option, tmp_path):
    command = [sys.executable, "-c", LOOP, str(tmp_path / "meeting"), option]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "the same\n", done.stderr

"""One evaluation in a process of its own: ``python evaluation_child.py WEIGHTS OUT [STOP_AT]``.

With STOP_AT it says "ready" before that call of the model and waits to be killed.
"""

import sys

import torch
from small_networks import Counted, Rough, conv_net, pictures

import widemargin

ATTACKS = ["clean", "fgsm", "pgd20", "autoattack"]
OPTIONS = {"eps": "0.2", "shard_size": 3, "batch_size": 2, "max_steps": 2, "distance": "quick"}
CLASSES, COUNT = 4, 8


def network(weights: dict[str, torch.Tensor]) -> Rough:
    model = Rough(conv_net(CLASSES))
    model.load_state_dict(weights)
    return model.eval()


def evaluate(model: torch.nn.Module, out, **changes):
    data = pictures(CLASSES, COUNT)
    return widemargin.evaluate(model, data, ATTACKS, out=out, **(OPTIONS | changes))


def _wait_for_the_end() -> None:
    print("ready", flush=True)
    sys.stdin.read()


def main(weights: str, out: str, stop_at: str | None = None) -> None:
    torch.set_num_threads(1)
    model = network(torch.load(weights, weights_only=True))
    evaluate(Counted(model, None if stop_at is None else int(stop_at), _wait_for_the_end), out)


if __name__ == "__main__":
    main(*sys.argv[1:])

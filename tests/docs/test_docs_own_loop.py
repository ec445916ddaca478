"""The code in docs/own-loop.md runs as it stands, in order, and trains."""

import re
from pathlib import Path

import torch
from torch import nn

from widemargin import StochasticEMR
from widemargin.config.checkpoint import load_checkpoint
from widemargin.config.toml import with_overrides
from widemargin.recipes import find_recipe
from widemargin.training import train

PAGE = Path(__file__).parents[2] / "docs" / "own-loop.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_every_block_runs_and_both_losses_train(capsys, tmp_path, monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    names = {"model": model, "x": torch.rand(6, 3, 8, 8), "y": torch.arange(6) % 5}
    names["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    assert len(BLOCKS) == 6
    for block in BLOCKS[:4]:
        model.zero_grad()
        exec(block, names)
        assert all(parameter.grad is not None for parameter in model.parameters())
    exec(BLOCKS[4], names)
    assert names["margins"].shape == (6,)
    assert "pgd20" in capsys.readouterr().out
    small = ["epochs=1", "data.train_limit=40", "data.test_limit=20", "model.hidden=[8]", "watch.margins=[]"]
    trained = train(with_overrides(find_recipe("demo/plain").config, small), out=tmp_path / "runs" / "st-emr")
    monkeypatch.chdir(tmp_path)
    exec(BLOCKS[5], names)
    weights = names["weights"]
    assert not names["model"].training
    kept = load_checkpoint(trained.folder / "last.safetensors").weights
    assert weights.keys() == kept.keys()
    assert all(weights[name].equal(kept[name]) for name in kept)


def test_what_it_says_of_random_numbers():
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), torch.rand(4, 3, 2, 2)

    def value(**options):
        torch.manual_seed(3)
        return StochasticEMR(projections=1).value(model, x, **options)

    assert not torch.equal(value(), value())
    same = [value(generator=torch.Generator().manual_seed(0)) for _ in range(2)]
    assert torch.equal(*same)

"""EMR with accelerate: the prepared model goes to the penalty, and one backward pass takes loss and penalty."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import widemargin


def main() -> widemargin.Report:
    """Train on random images, then judge."""
    accelerator = Accelerator()
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(64, 1, 8, 8, generator=generator), torch.arange(64) % 4
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(images, labels), batch_size=16)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    emr = widemargin.ApproximateEMR()
    for _ in range(2):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y) + 0.1 * emr(model, x).mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    return widemargin.evaluate(accelerator.unwrap_model(model), (images, labels), ["clean", "pgd5"], eps=8 / 255)


if __name__ == "__main__":
    print(main())

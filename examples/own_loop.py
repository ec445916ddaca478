"""EMR in a training loop of your own: the two lines, margins, and an evaluation under attack."""

import torch
import torch.nn.functional as F
from torch import nn

import widemargin


def main(steps: int = 20) -> widemargin.Report:
    """Train a small network on digits-like noise, then judge it."""
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(64, 1, 8, 8, generator=generator), torch.arange(64) % 4
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    emr = widemargin.ApproximateEMR(temperature=1.0)
    for _ in range(steps):
        loss = F.cross_entropy(model(images), labels) + 0.1 * emr(model, images).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    margins = widemargin.effective_margin(model, images, labels)
    print(f"median margin {widemargin.summarize(margins).quantiles['0.5']:.4f}")
    return widemargin.evaluate(model, (images, labels), ["clean", "pgd5"], eps=8 / 255)


if __name__ == "__main__":
    print(main())

"""EMR in Lightning: a callback adds the penalty; validation measures margins and PGD, in inference mode."""

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import widemargin
from widemargin.integrations.lightning import EMRCallback


class Net(pl.LightningModule):
    """A small classifier of images in [0, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.net(x)
        return logits

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The loss; the penalty comes from the callback."""
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Margins, and accuracy under attack."""
        x, y = batch
        x_adv = widemargin.PGD(eps=8 / 255, step_size=2 / 255, steps=5)(self, x, y)
        self.log("robust", (self(x_adv).argmax(1) == y).float().mean())
        self.log("margin", widemargin.effective_margin(self, x, y).median())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> widemargin.Report:
    """Train on random images, then judge."""
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(64, 1, 8, 8, generator=generator), torch.arange(64) % 4
    loader = DataLoader(TensorDataset(images, labels), batch_size=16)
    net = Net()
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="auto",
        callbacks=[EMRCallback(weight=0.1, emr=widemargin.ApproximateEMR())],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(net, loader, loader)
    return widemargin.evaluate(net, (images, labels), ["clean", "pgd5"], eps=8 / 255)


if __name__ == "__main__":
    print(main())

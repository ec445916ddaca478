"""EMR in Hugging Face's Trainer: a mixin adds the penalty to the loss of a vision transformer."""

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import widemargin
from widemargin.integrations.transformers import EMRMixin


class EMRTrainer(EMRMixin, Trainer):
    """The Trainer with a penalty."""

    emr, emr_weight = widemargin.ApproximateEMR(), 0.01


class Noise(Dataset[dict[str, Tensor]]):
    """Random images in [0, 1]."""

    def __init__(self) -> None:
        self.images = torch.rand(32, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        self.labels = torch.arange(32) % 4

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


def main() -> widemargin.Report:
    """Train for two epochs, then judge."""
    config = ViTConfig(
        image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    )  # fmt: skip
    config.num_labels = 4
    data, model = Noise(), ViTForImageClassification(config)
    arguments = TrainingArguments(
        output_dir="trained", num_train_epochs=2, per_device_train_batch_size=16, report_to="none", save_strategy="no"
    )
    EMRTrainer(model=model, args=arguments, train_dataset=data).train()
    return widemargin.evaluate(model, (data.images, data.labels), ["clean", "pgd5"], eps=8 / 255)


if __name__ == "__main__":
    print(main())

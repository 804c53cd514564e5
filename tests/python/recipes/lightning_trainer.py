"""Trains a ResNet-18 with PyTorch Lightning. The loader stands where a DataLoader would; Lightning puts no sampler of its own
in, as ranks are found from torch.distributed, and its checkpoints hold where the loader was.

python lightning_trainer.py --data 'shards/train-{000000..000146}.tar' --steps 10000
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning
import torch
import torchvision

import feedline


class Classifier(lightning.LightningModule):
    """A ResNet-18 and its loss."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.model = torchvision.models.resnet18(num_classes=num_classes).to(memory_format=torch.channels_last)

    def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
        """The loss of one batch, which Lightning has moved to the module's device."""
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        print(f"step {self.global_step + 1}: loss {loss.item():.4f}")
        return loss

    def on_train_epoch_end(self) -> None:
        """Says where the run is."""
        print(f"epoch {self.current_epoch}: {self.trainer.num_training_batches} batches")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """As ever."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()
    loader = feedline.Loader(
        args.data, batch_size=args.batch_size, shuffle=True, seed=0, drop_last=True, pin_memory=True,
        output=feedline.Output("float32", normalize=((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
        fields={"image": feedline.Image(["jpg", "jpeg", "png"], feedline.RandomResizedCrop(args.size), feedline.RandomHorizontalFlip()),
                "label": feedline.Int("cls")},
    )  # fmt: skip
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        max_steps=args.steps, accelerator="auto", devices="auto", log_every_n_steps=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(Classifier(len(loader.dataset.classes)), loader)


if __name__ == "__main__":
    main()

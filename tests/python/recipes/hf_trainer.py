"""Trains a small ResNet with the Trainer of Hugging Face transformers: one method says where batches come from.

torchrun --nproc-per-node 8 hf_trainer.py --data 'shards/train-{000000..000146}.tar' --steps 10000
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainerCallback, TrainingArguments, set_seed

import feedline


class FeedlineTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose training batches come from a loader."""

    def __init__(self, loader: feedline.Loader, **options: Any) -> None:
        super().__init__(**options)
        self.loader = loader

    def get_train_dataloader(self) -> Any:
        """The loader itself: it shards by rank, so accelerate has nothing to prepare; Trainer moves its batches."""
        return self.loader


class Losses(TrainerCallback):  # type: ignore[misc]
    """Prints the loss of each step."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """What Trainer has to say."""
        if logs and "loss" in logs:
            print(f"step {state.global_step}: loss {float(logs['loss']):.4f}")


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=256, help="per rank")
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()
    loader = feedline.Loader(
        args.data, batch_size=args.batch_size, shuffle=True, seed=0, drop_last=True, pin_memory=True,
        output=feedline.Output("float32", normalize=((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
        # The names that the model's forward() has; Trainer wants a dict.
        fields={"pixel_values": feedline.Image(["jpg", "jpeg", "png"], feedline.RandomResizedCrop(args.size), feedline.RandomHorizontalFlip()),
                "labels": feedline.Int("cls")},
        collate_fn=lambda batch: dict(zip(batch.fields, batch, strict=True)),
    )  # fmt: skip
    set_seed(0)
    config = ResNetConfig(
        num_labels=len(loader.dataset.classes), embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1], layer_type="basic"
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = FeedlineTrainer(
            loader,
            model=ResNetForImageClassification(config),
            args=TrainingArguments(
                folder, max_steps=args.steps, per_device_train_batch_size=args.batch_size, learning_rate=1e-2, logging_steps=1,
                report_to="none", save_strategy="no", disable_tqdm=True, lr_scheduler_type="constant",
            ),
            callbacks=[Losses()],
        )  # fmt: skip
        trainer.train()
    print(f"epochs {trainer.state.epoch:.2f}, device {next(trainer.model.parameters()).device}, torch {torch.__version__}")


if __name__ == "__main__":
    main()

"""Trains a small network for a few hundred steps on shards, through `feedline.Loader`.

Prints the speed, the share of the time in which training waited for a batch, Feedline's own verdict and how well the
network does on held-out samples; writes the first batch as a contact sheet.

    python tools/demo_train.py 'shards/demo-{000000..000003}.tar' [--steps 300] [--sheet first-batch.png]
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from torch import nn

import feedline

IMAGE_SOURCES = ["jpg", "png", "webp", "bmp", "tif", "ppm", "pgm", "gif"]
HELD_OUT = 5  # One sample in so many is for validation.


class LastWords(logging.Handler):
    """Keeps the newest line of the log, shows warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.line = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Takes one line."""
        if record.levelno >= logging.WARNING:
            print(f"  {record.getMessage()}")
        elif record.getMessage().startswith("epoch "):
            self.line = record.getMessage()


@dataclass
class Timing:
    """What a run took, in seconds and images, from its first batch on."""

    images: int = 0
    waited_s: float = 0.0
    wall_s: float = 0.0
    losses: list[float] = field(default_factory=list)


def make_loader(shards: str, indices: list[int], batch_size: int, size: int, *, train: bool) -> feedline.Loader:
    """Random crops in random order for training, the middle of each picture in order for validation."""
    transforms = (
        (feedline.RandomResizedCrop(size, scale=(0.3, 1.0)), feedline.RandomHorizontalFlip())
        if train
        else (feedline.Resize(size * 8 // 7), feedline.CenterCrop(size))
    )
    return feedline.Loader(
        shards,
        batch_size=batch_size,
        shuffle=train,
        seed=0,
        drop_last=train,
        indices=indices,
        fields={"image": feedline.Image(IMAGE_SOURCES, *transforms), "label": feedline.Int("cls")},
        on_error="replace",
        name="train" if train else "validation",
    )


def sample_count(shards: str) -> int:
    """How many samples the shards hold."""
    fields = {"label": feedline.Int("cls")}
    return len(feedline.Loader(shards, fields=fields).dataset)


def network(classes: int) -> nn.Module:
    """Four strided convolutions and a linear layer."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise([3, 16, 32, 64, 128]):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


def on_device(images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Pixels as the network takes them: float, around 0."""
    return images.to(device, non_blocking=True).float().div_(127.5).sub_(1)


def endless(loader: feedline.Loader) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from loader


def train(model: nn.Module, loader: feedline.Loader, steps: int, device: torch.device) -> Timing:
    """Runs `steps` steps and times the waits for batches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    batches = endless(loader)
    timing = Timing()
    images, labels = next(batches)
    started = time.perf_counter()
    for step in range(steps):
        loss = nn.functional.cross_entropy(model(on_device(images, device)), labels.to(device, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        timing.losses.append(loss.item())
        timing.images += len(labels)
        if (step + 1) % max(steps // 5, 1) == 0:
            recent = timing.losses[-max(steps // 5, 1) :]
            print(f"  step {step + 1:4} of {steps}: loss {sum(recent) / len(recent):.3f}")
        asked = time.perf_counter()
        images, labels = next(batches)
        timing.waited_s += time.perf_counter() - asked
    timing.wall_s = time.perf_counter() - started
    return timing


@torch.no_grad()
def accuracy(model: nn.Module, loader: feedline.Loader, device: torch.device) -> float:
    """Share of samples whose class the model names."""
    model.eval()
    right = total = 0
    for images, labels in loader:
        right += int((model(on_device(images, device)).argmax(1).cpu() == labels).sum())
        total += len(labels)
    return right / max(total, 1)


def contact_sheet(batch: Any, classes: list[str] | None, path: Path) -> None:
    """Draws a batch as rows of eight pictures, the class below each."""
    images, labels = batch
    pixels = images.permute(0, 2, 3, 1).contiguous().numpy()
    _, height, width, _ = pixels.shape
    columns, caption = min(8, len(pixels)), 14
    sheet = Image.new("RGB", (columns * width, -(-len(pixels) // columns) * (height + caption)), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (picture, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
        left, top = number % columns * width, number // columns * (height + caption)
        sheet.paste(Image.fromarray(picture), (left, top))
        draw.text((left + 2, top + height), classes[label] if classes else str(label), fill="black")
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)


def main() -> None:
    """Trains as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("shards", help="pattern of the shards, with classes.json beside them")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=96, help="side of the crops, in pixels (default: %(default)s)")
    parser.add_argument("--sheet", type=Path, help="where to write the first batch as a picture")
    arguments = parser.parse_args()

    words = LastWords()
    log = logging.getLogger("feedline")
    log.setLevel(logging.INFO)
    log.addHandler(words)
    torch.manual_seed(0)
    # The sidecar decodes on the other cores; without a GPU both share them.
    torch.set_num_threads(max(len(os.sched_getaffinity(0)) // 2, 1))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    samples = range(sample_count(arguments.shards))
    held_out = list(samples[::HELD_OUT])
    kept = [sample for sample in samples if sample % HELD_OUT]
    batch_size = min(arguments.batch_size, len(kept))
    loader = make_loader(arguments.shards, kept, batch_size, arguments.size, train=True)
    validation = make_loader(arguments.shards, held_out, batch_size, arguments.size, train=False)
    classes = loader.dataset.classes
    if arguments.sheet:
        contact_sheet(loader.peek(), classes, arguments.sheet)

    model = network(len(classes) if classes else 1000).to(device)
    timing = train(model, loader, arguments.steps, device)
    verdict = words.line
    print(f"  {timing.images / timing.wall_s:.0f} images/s on {device}")
    print(f"  {100 * timing.waited_s / timing.wall_s:.1f} % of the time waiting for a batch")
    print(f"  {verdict}" if verdict else "  no epoch was completed, so there is no verdict")
    share = accuracy(model, validation, device)
    print(f"  {100 * share:.0f} % of {len(held_out)} held-out pictures named rightly ({len(classes or [])} classes)")


if __name__ == "__main__":
    main()

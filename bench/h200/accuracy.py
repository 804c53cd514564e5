"""Does a CNN learn as much from Feedline as from DataLoader with torchvision?

ResNet-18 from nothing on scikit-learn's digits: 1 797 real handwritten digits in ten classes, 8 x 8 pixels, written as JPEG
files of 64 x 64 pixels; every fifth is kept for the test. Both contenders read the same tars, crop 64 pixels at random
(RandomResizedCrop, scale 0.5 to 1) and share schedule, batch size and initial weights of each seed. Accuracy on the test
digits, by seed. A small and easy set: it would show a wrong label, order, normalisation or crop, and not much less.

    python bench/h200/accuracy.py --out raw.json
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import run
import torch
import torchvision
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import feedline

SIZE, BATCH = 64, 64
NORMALIZE = ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))

Epoch = Callable[[], Iterable[tuple[torch.Tensor, torch.Tensor]]]


def main() -> None:
    """Trains all, and writes one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    digits = load_digits()
    found: dict[str, list[float]] = {"feedline": [], "dataloader": []}
    seconds: dict[str, list[float]] = {"feedline": [], "dataloader": []}
    with tempfile.TemporaryDirectory() as scratch:
        parts = [write(digits, Path(scratch), name, keep) for name, keep in (("train", range(1, 5)), ("test", range(1)))]
        train, test = (pixels_of(part) for part in parts)
        for seed in range(options.seeds):
            loader = feedline.Loader(
                str(parts[0]), BATCH, shuffle=True, seed=seed, drop_last=True, device=None if device == "cpu" else device,
                output=feedline.Output("float32", channels_last=True, normalize=NORMALIZE),
                fields={"image": feedline.Image(["jpg"], feedline.RandomResizedCrop(SIZE, scale=(0.5, 1.0))), "label": feedline.Int("cls")},
            )  # fmt: skip
            theirs = DataLoader(
                Files(train), BATCH, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(seed), num_workers=4,
                persistent_workers=True, pin_memory=device == "cuda",
            )  # fmt: skip
            for name, epoch in (("feedline", lambda loader=loader: loader), ("dataloader", lambda theirs=theirs: theirs)):
                begun = time.monotonic()
                found[name].append(trained(epoch, test, seed, options.epochs, device))
                seconds[name].append(time.monotonic() - begun)
                print(name, seed, found[name][-1], flush=True)
            loader.close()
    counts = {"train": len(train), "test": len(test)}
    spread = {name: {"mean": statistics.mean(values), "min": min(values), "max": max(values)} for name, values in found.items()}
    result: dict[str, Any] = {"machine": run.machine() if device == "cuda" else device, "samples": counts, "epochs": options.epochs, "accuracy": found, "spread": spread, "seconds": seconds}
    options.out.write_text(json.dumps(result, indent=1))
    print(json.dumps(spread))


def write(digits: Any, folder: Path, name: str, kept: range) -> Path:
    """A tar with the digits whose number modulo five is in `kept`."""
    path = folder / f"{name}-000000.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
            if number % 5 not in kept:
                continue
            picture = Image.fromarray((pixels * 255 / 16).astype(np.uint8)).resize((SIZE, SIZE), Image.Resampling.BICUBIC).convert("RGB")
            file = io.BytesIO()
            picture.save(file, "JPEG", quality=92)
            for suffix, data in (("jpg", file.getvalue()), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{number:05}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


def pixels_of(path: Path) -> list[tuple[bytes, int]]:
    """JPEG files and labels of a tar."""
    with tarfile.open(path) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    return [(data, int(files[name.replace("jpg", "cls")])) for name, data in files.items() if name.endswith("jpg")]


class Files(Dataset[tuple[torch.Tensor, int]]):
    """The same files, for DataLoader, as a torchvision recipe would read them."""

    def __init__(self, files: list[tuple[bytes, int]]) -> None:
        self._files = files
        self._transform = v2.Compose([
            v2.RandomResizedCrop(SIZE, scale=(0.5, 1.0)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(*NORMALIZE),
        ])  # fmt: skip

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        data, label = self._files[index]
        return self._transform(Image.open(io.BytesIO(data))), label


def trained(epoch: Epoch, test: list[tuple[bytes, int]], seed: int, epochs: int, device: str) -> float:
    """The test accuracy of a ResNet-18 after `epochs` epochs."""
    torch.manual_seed(seed)
    model = torchvision.models.resnet18(num_classes=10).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    steps = epochs * (1797 * 4 // 5 // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps + epochs)
    criterion = torch.nn.CrossEntropyLoss()
    for _ in range(epochs):
        model.train()
        for images, labels in epoch():
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    plain = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(*NORMALIZE)])
    images = torch.stack([plain(Image.open(io.BytesIO(data))) for data, _ in test]).to(device)
    labels = torch.tensor([label for _, label in test], device=device)
    with torch.inference_mode():
        return float((model(images).argmax(1) == labels).float().mean())


if __name__ == "__main__":
    main()

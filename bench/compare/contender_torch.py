"""Contender: `torch.utils.data.DataLoader` over the same shards, read by a prebuilt index.

Decoding by torchvision (tensors of uint8 from the first step on) or by PIL. Workers are persistent, memory is pinned
where there is CUDA, four batches a worker are prefetched; torchvision's v2 transforms with antialias do the rest.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import contend
import numpy as np
import recipes
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2


class TarSamples(Dataset[Any]):
    """Samples of tar shards by offset and length: one `pread` each."""

    def __init__(self, pattern: str, recipe: str, decode: str) -> None:
        folder = Path(pattern).parent
        self.index = np.load(folder / "index.npy")
        self.paths = sorted(map(str, folder.glob("*.tar")))
        self.files: list[int] = []
        self.is_pil = decode == "pil"
        self.views = [self.view(recipe, side, scale) for side, scale in recipes.VIEWS[recipe]]

    def view(self, recipe: str, side: int, scale: tuple[float, float]) -> v2.Transform:
        """The transforms of a view."""
        to_tensor = [v2.PILToTensor()] if self.is_pil else []
        if recipe == "validate":
            return v2.Compose([v2.Resize(recipes.RESIZED, antialias=True), v2.CenterCrop(side), *to_tensor])
        crop = [v2.RandomResizedCrop(side, scale=scale, antialias=True), v2.RandomHorizontalFlip()]
        if recipe == "policy":
            return v2.Compose([*crop, v2.RandAugment(), *to_tensor, v2.RandomErasing(p=recipes.ERASED)])
        return v2.Compose([*crop, *to_tensor])

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, place: int) -> tuple[Any, int]:
        if not self.files:
            # Opened in the worker, once.
            self.files = [os.open(path, os.O_RDONLY) for path in self.paths]
        shard, offset, size, label = self.index[place]
        data = os.pread(self.files[shard], int(size), int(offset))
        if self.is_pil:
            image: Any = Image.open(io.BytesIO(data)).convert("RGB")
        else:
            image = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB)
        views = [view(image) for view in self.views]
        return views[0] if len(views) == 1 else views, int(label)


def main() -> None:
    """Runs it."""
    parser = contend.arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--decode", choices=("torchvision", "pil"), required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(
        TarSamples(options.shards, options.recipe, options.decode),
        batch_size=options.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=options.workers,
        persistent_workers=True,
        prefetch_factor=4,
        pin_memory=torch.cuda.is_available(),
    )
    contend.run(options, lambda: iter(loader))


if __name__ == "__main__":
    main()

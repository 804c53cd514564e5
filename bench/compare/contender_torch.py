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
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2


class TarSamples(Dataset[Any]):
    """Samples of tar shards by offset and length: one `pread` each."""

    def __init__(self, pattern: str, decode: str) -> None:
        folder = Path(pattern).parent
        self.index = np.load(folder / "index.npy")
        self.paths = sorted(map(str, folder.glob("*.tar")))
        self.files: list[int] = []
        crop = [v2.RandomResizedCrop(contend.SIZE, antialias=True), v2.RandomHorizontalFlip()]
        self.is_pil = decode == "pil"
        self.transform = v2.Compose([*crop, v2.PILToTensor()] if self.is_pil else crop)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        if not self.files:
            # Opened in the worker, once.
            self.files = [os.open(path, os.O_RDONLY) for path in self.paths]
        shard, offset, size, label = self.index[place]
        data = os.pread(self.files[shard], int(size), int(offset))
        if self.is_pil:
            return self.transform(Image.open(io.BytesIO(data)).convert("RGB")), int(label)
        # `data` is only read from here.
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return self.transform(decode_jpeg(encoded, ImageReadMode.RGB)), int(label)


def main() -> None:
    """Runs it."""
    parser = contend.arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--decode", choices=("torchvision", "pil"), required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(
        TarSamples(options.shards, options.decode),
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

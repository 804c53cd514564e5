"""Contender: TurboLoader's fused training pass over the same samples, in one archive, as it wants them.

Region decode with the fast transform, crop, flip and resize without antialias (its default), normalised float32: four
times the bytes of the others, but no labels, and no shuffling, which it does not do.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import contend
import recipes
import torch
import turboloader


def one_archive(folder: Path) -> str:
    """The samples of all shards in one archive of pictures, written on the first call."""
    path = folder / "turboloader" / "pictures.tar"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        with tarfile.open(path.with_suffix(".new"), "w", format=tarfile.USTAR_FORMAT) as target:
            for shard in sorted(folder.glob("*.tar")):
                with tarfile.open(shard) as source:
                    for member in source:
                        if member.name.endswith(".jpg"):
                            target.addfile(member, source.extractfile(member))
        path.with_suffix(".new").rename(path)
    return str(path)


def main() -> None:
    """Runs it."""
    parser = contend.arguments((__doc__ or "").partition("\n")[0])
    options = parser.parse_args()
    if options.recipe != "train":
        parser.error(f"its fused pass knows the recipe train, not {options.recipe}")
    loader = turboloader.DataLoader(
        one_archive(Path(options.shards).parent),
        batch_size=options.batch_size,
        num_workers=options.workers,
        image_size=recipes.VIEWS[options.recipe][0][0],
        transform=turboloader.ImageNetNormalize(),
        output_format="pytorch",
        train_aug=True,
        drop_last=True,
    )

    def batches() -> Iterator[Any]:
        for images, described in loader:
            yield torch.as_tensor(images), [described] * len(images)

    contend.run(options, batches, dtype="torch.float32")


if __name__ == "__main__":
    main()

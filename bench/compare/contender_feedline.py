"""Contender: `feedline.Loader` with a private sidecar."""

from __future__ import annotations

import contend
import torch  # noqa: F401, a trainer has imported it before it makes a loader

import feedline


def main() -> None:
    """Runs it."""
    options = contend.arguments((__doc__ or "").strip()).parse_args()
    loader = feedline.Loader(
        options.shards,
        batch_size=options.batch_size,
        shuffle=True,
        seed=0,
        drop_last=True,
        workers=options.workers,
        fields={
            "image": feedline.Image("jpg", feedline.RandomResizedCrop(contend.SIZE), feedline.RandomHorizontalFlip()),
            "label": feedline.Int("cls"),
        },
    )
    contend.run(options, lambda: iter(loader))


if __name__ == "__main__":
    main()

"""Contender: `feedline.Loader` with a private sidecar."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import contend
import recipes
import torch  # noqa: F401, a trainer has imported it before it makes a loader

import feedline


def images(recipe: str, decode: str) -> dict[str, feedline.Image]:
    """The fields of the recipe's views."""
    fields = {}
    for view, (side, scale) in enumerate(recipes.VIEWS[recipe]):
        transforms = [feedline.RandomResizedCrop(side, scale=scale), feedline.RandomHorizontalFlip()]
        if recipe == "validate":
            transforms = [feedline.Resize(recipes.RESIZED), feedline.CenterCrop(side)]
        elif recipe == "policy":
            transforms += [feedline.RandAugment(), feedline.RandomErasing(p=recipes.ERASED)]
        fields[f"view{view}"] = feedline.Image("jpg", *transforms, view=view, decode=decode)
    return fields


def main() -> None:
    """Runs it."""
    parser = contend.arguments((__doc__ or "").strip())
    parser.add_argument("--decode", choices=("exact", "scaled"), default="exact")
    options = parser.parse_args()
    loader = feedline.Loader(
        options.shards,
        batch_size=options.batch_size,
        shuffle=True,
        seed=0,
        drop_last=True,
        workers=options.workers,
        fields=images(options.recipe, options.decode) | {"label": feedline.Int("cls")},
    )

    def batches() -> Iterator[Any]:
        for *views, labels in loader:
            yield views, labels

    contend.run(options, batches if len(recipes.VIEWS[options.recipe]) > 1 else lambda: iter(loader))


if __name__ == "__main__":
    main()

"""What a sample becomes: the recipes that every contender which knows its transforms runs."""

from __future__ import annotations

#: The views of a sample by recipe: side in pixels, and least and most share of the picture's area.
#:
#: ``train`` is ImageNet's training: a random-resized crop, flipped half the time. ``validate`` is its validation: resized
#: to 256 on the shorter side, the middle 224. ``policy`` is training with RandAugment and, for a quarter of the samples,
#: one erased box. ``multicrop`` is two large and six small random-resized crops, flipped, as self-supervised recipes take.
VIEWS: dict[str, list[tuple[int, tuple[float, float]]]] = {
    "train": [(224, (0.08, 1.0))],
    "validate": [(224, (0.08, 1.0))],
    "policy": [(224, (0.08, 1.0))],
    "multicrop": [(224, (0.14, 1.0))] * 2 + [(96, (0.05, 0.14))] * 6,
}

#: Of ``validate``: the shorter side before the middle is taken.
RESIZED = 256

#: Of ``policy``: how often a box is erased.
ERASED = 0.25

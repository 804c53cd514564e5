"""Contender: NVIDIA DALI's CPU pipeline over the same shards, with its webdataset reader.

The recipe of DALI's documentation for ImageNet: region decode of a random crop, resize (with antialias, its default, or
without), mirror, channels first, uint8; RandAugment by its `auto_aug`; several views from one whole decode. The label stays the bytes of its file, padded to one length, so DALI is spared
the parsing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import contend
import numpy as np
import recipes
from nvidia.dali import fn, math, pipeline_def, types
from nvidia.dali.auto_aug import rand_augment
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy


def write_indexes(folder: Path) -> list[str]:
    """The index files that the reader wants, from the index that all contenders share."""
    rows = np.load(folder / "index.npy")
    paths = []
    for shard in range(len(list(folder.glob("*.tar")))):
        path = folder / f"photos-{shard:06}.dali"
        paths.append(str(path))
        if path.exists():
            continue
        own = rows[rows["shard"] == shard]
        lines = [f"v1.2 {len(own)}"]
        for row in own:
            # A header of 512 bytes stands before each member, and the label's follows the picture's last block.
            picture, size = int(row["offset"]), int(row["size"])
            label = picture + -(-size // 512) * 512 + 512
            lines.append(f"jpg {picture} {size} {picture} cls {label} {len(str(int(row['label'])))} {label}")
        path.write_text("\n".join(lines) + "\n")
    return paths


@pipeline_def(enable_conditionals=True)
def samples(tars: list[str], indexes: list[str], recipe: str, is_antialiased: bool) -> Any:
    """The pipeline: the views in their order, and the label."""
    encoded, label = fn.readers.webdataset(
        paths=tars, index_paths=indexes, ext=["jpg", "cls"], random_shuffle=True, initial_fill=1024, name="Reader"
    )
    views = recipes.VIEWS[recipe]
    resize = {"interp_type": types.INTERP_LINEAR, "antialias": is_antialiased}
    shape = {"random_aspect_ratio": [3 / 4, 4 / 3], "random_area": list(views[0][1])}
    if len(views) > 1:
        # Decoded once for all views.
        whole = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
        images = []
        for side, area in views:
            shape["random_area"] = list(area)
            images.append(finish(fn.random_resized_crop(whole, size=[side, side], **shape, **resize), side, is_mirrored=True))
        return *images, fn.pad(label, fill_value=0)
    side = views[0][0]
    if recipe == "validate":
        whole = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
        image = finish(fn.resize(whole, resize_shorter=recipes.RESIZED, **resize), side, is_mirrored=False)
        return image, fn.pad(label, fill_value=0)
    image = fn.decoders.image_random_crop(encoded, device="cpu", output_type=types.RGB, **shape)
    image = fn.resize(image, size=[side, side], **resize)
    if recipe == "policy":
        image = rand_augment.rand_augment(image, n=2, m=9, shape=(side, side), fill_value=0, interp_type=types.INTERP_NN)
        if fn.random.coin_flip(probability=recipes.ERASED, dtype=types.BOOL):
            # The box's area is between 2 and 33 % as torchvision's, its anchor anywhere.
            area = fn.random.uniform(range=[0.02, 0.33])
            box = fn.stack(math.sqrt(area), math.sqrt(area))
            anchor = fn.random.uniform(range=[0.0, 1.0], shape=[2]) * (1.0 - box)
            image = fn.erase(image, anchor=anchor, shape=box, axis_names="HW", normalized=True, fill_value=0.0)
    return finish(image, side, is_mirrored=True), fn.pad(label, fill_value=0)


def finish(image: Any, side: int, is_mirrored: bool) -> Any:
    """The middle of the image, perhaps mirrored, channels first."""
    mirror = fn.random.coin_flip() if is_mirrored else 0
    return fn.crop_mirror_normalize(image, dtype=types.UINT8, output_layout="CHW", crop=(side, side), mirror=mirror)


def main() -> None:
    """Runs it."""
    parser = contend.arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--no-antialias", action="store_true")
    options = parser.parse_args()
    folder = Path(options.shards).parent
    views = [f"view{number}" for number in range(len(recipes.VIEWS[options.recipe]))]
    pipeline = samples(
        sorted(map(str, folder.glob("*.tar"))),
        write_indexes(folder),
        options.recipe,
        not options.no_antialias,
        batch_size=options.batch_size,
        num_threads=options.workers,
        device_id=None,
        seed=0,
    )
    loader = DALIGenericIterator(
        [pipeline], [*views, "label"], reader_name="Reader", last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
    )

    def batches() -> Iterator[Any]:
        for outputs in loader:
            taken = [outputs[0][view] for view in views]
            yield taken if len(taken) > 1 else taken[0], outputs[0]["label"]

    contend.run(options, batches)


if __name__ == "__main__":
    main()

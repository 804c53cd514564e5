"""Contender: NVIDIA DALI's CPU pipeline over the same shards, with its webdataset reader.

The recipe of DALI's documentation for ImageNet: region decode of a random crop, resize (with antialias, its default, or
without), mirror, channels first, uint8. The label stays the bytes of its file, padded to one length, so DALI is spared
the parsing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import contend
import numpy as np
from nvidia.dali import fn, pipeline_def, types
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


@pipeline_def
def crops(tars: list[str], indexes: list[str], is_antialiased: bool) -> Any:
    """The pipeline."""
    encoded, label = fn.readers.webdataset(
        paths=tars, index_paths=indexes, ext=["jpg", "cls"], random_shuffle=True, initial_fill=1024, name="Reader"
    )
    image = fn.decoders.image_random_crop(
        encoded, device="cpu", output_type=types.RGB, random_aspect_ratio=[3 / 4, 4 / 3], random_area=[0.08, 1.0]
    )
    image = fn.resize(image, size=[contend.SIZE, contend.SIZE], interp_type=types.INTERP_LINEAR, antialias=is_antialiased)
    image = fn.crop_mirror_normalize(image, dtype=types.UINT8, output_layout="CHW", mirror=fn.random.coin_flip())
    return image, fn.pad(label, fill_value=0)


def main() -> None:
    """Runs it."""
    parser = contend.arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--no-antialias", action="store_true")
    options = parser.parse_args()
    folder = Path(options.shards).parent
    pipeline = crops(
        sorted(map(str, folder.glob("*.tar"))),
        write_indexes(folder),
        not options.no_antialias,
        batch_size=options.batch_size,
        num_threads=options.workers,
        device_id=None,
        seed=0,
    )
    loader = DALIGenericIterator(
        [pipeline], ["image", "label"], reader_name="Reader", last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
    )

    def batches() -> Iterator[Any]:
        for outputs in loader:
            yield outputs[0]["image"], outputs[0]["label"]

    contend.run(options, batches)


if __name__ == "__main__":
    main()

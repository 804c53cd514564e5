"""How fast the machine is while contenders run: the time torchvision takes to decode a photograph in full, in one thread."""

from __future__ import annotations

import argparse
import itertools
import json
import tarfile
import time
from pathlib import Path

import torch
from torchvision.io import ImageReadMode, decode_jpeg

#: Enough for a second or less.
PHOTOS = 256


def main() -> None:
    """Decodes the first pictures of the first shard once, then measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", required=True, help="pattern of the shards")
    folder = Path(parser.parse_args().shards).parent
    torch.set_num_threads(1)
    with tarfile.open(min(folder.glob("*.tar"))) as tar:
        members = (tar.extractfile(member) for member in tar if member.name.endswith(".jpg"))
        encoded = [torch.frombuffer(bytearray(member.read()), dtype=torch.uint8) for member in itertools.islice(members, PHOTOS) if member]
    decode_jpeg(encoded[0], ImageReadMode.RGB)
    begun = time.process_time()
    for picture in encoded:
        decode_jpeg(picture, ImageReadMode.RGB)
    print(json.dumps({"decode_ms": 1000 * (time.process_time() - begun) / len(encoded)}))


if __name__ == "__main__":
    main()

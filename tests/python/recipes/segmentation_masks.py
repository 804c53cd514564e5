"""Trains a segmentation network on pictures with masks of class numbers; both get the same crops and flips, colours change in
the picture alone. Shards hold `NAME.jpg` and `NAME.seg.png`; 255 in a mask is left out of the loss.

python segmentation_masks.py --data 'shards/train-{000000..000010}.tar' --classes 21 --steps 10000
"""

from __future__ import annotations

import argparse
import itertools

import torch
from torchvision.models import segmentation

import feedline

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", required=True)
parser.add_argument("--classes", type=int, default=21)
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--size", type=int, default=480)
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else None
loader = feedline.Loader(
    args.data, batch_size=args.batch_size, shuffle=True, seed=0, drop_last=True, device=device,
    output=feedline.Output("float32", normalize=((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
    fields={"image": feedline.Image(["jpg", "png"], feedline.RandomResizedCrop(args.size, scale=(0.5, 1.0)),
                                    feedline.RandomHorizontalFlip(), feedline.ColorJitter(0.2, 0.2, 0.2)),
            "mask": feedline.Mask("seg.png", like="image", fill=255)},  # uint8 (N, size, size)
)  # fmt: skip
torch.manual_seed(0)
model = segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=args.classes)
model = model.to(device or "cpu", memory_format=torch.channels_last).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
criterion = torch.nn.CrossEntropyLoss(ignore_index=255)

endless = itertools.chain.from_iterable(itertools.repeat(loader))
for step, (images, masks) in enumerate(itertools.islice(endless, args.steps), 1):
    scores = model(images)["out"]
    targets = masks.long()
    loss = criterion(scores, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    counted = targets != 255
    right = ((scores.argmax(1) == targets) & counted).sum() / counted.sum()
    print(f"step {step}: loss {loss.item():.4f} pixels right {right.item():.4f}")

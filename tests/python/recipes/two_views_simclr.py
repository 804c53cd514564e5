"""Trains features without labels on two views of each picture, as in "A Simple Framework for Contrastive Learning of Visual
Representations" (Chen et al., 2020): two Image fields with numbers of their own draw their own crops and colours.

python two_views_simclr.py --data 'shards/train-{000000..000146}.tar' --steps 10000
"""

from __future__ import annotations

import argparse

import torch
import torchvision
from torch.nn import functional

import feedline

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", required=True)
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--batch-size", type=int, default=256)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--temperature", type=float, default=0.2)
args = parser.parse_args()

kernel = args.size // 10 // 2 * 2 + 1
transforms = (
    feedline.RandomResizedCrop(args.size),
    feedline.RandomHorizontalFlip(),
    feedline.RandomApply([feedline.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
    feedline.RandomGrayscale(0.2),
    feedline.RandomApply([feedline.GaussianBlur(kernel)], p=0.5),
)
device = "cuda" if torch.cuda.is_available() else None
loader = feedline.Loader(
    args.data, batch_size=args.batch_size, shuffle=True, seed=0, drop_last=True, device=device,
    output=feedline.Output("float32", normalize=((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
    fields={f"view{number}": feedline.Image(["jpg", "jpeg", "png"], *transforms, view=number) for number in range(2)},
)  # fmt: skip
torch.manual_seed(0)
model = torchvision.models.resnet18(num_classes=128)
model.fc = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 128))
model = model.to(device or "cpu", memory_format=torch.channels_last).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

step = 0
while step < args.steps:
    picture_count = different_count = 0
    for first, second in loader:
        features = functional.normalize(model(torch.cat([first, second])))
        likeness = features @ features.T / args.temperature
        likeness.fill_diagonal_(-torch.inf)
        rows = len(first)
        # The other view of row i of 2 N is row i + N, or i - N.
        loss = functional.cross_entropy(likeness, torch.arange(2 * rows, device=likeness.device).roll(rows))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step, picture_count = step + 1, picture_count + rows
        different_count += int((first != second).flatten(1).any(1).sum())
        print(f"step {step}: loss {loss.item():.4f}")
        if step == args.steps:
            break
    print(f"epoch {loader.epoch}: {picture_count} pictures, {different_count} of them in two views that differ")

"""Trains a ResNet-18 on shards or a class-per-folder tree, in plain PyTorch, on a GPU where there is one.

python plain_torch.py --data 'shards/train-{000000..000146}.tar' --val 'shards/val-{000000..000006}.tar' --steps 10000
"""

from __future__ import annotations

import argparse

import torch
import torchvision

import feedline

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", required=True)
parser.add_argument("--val")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--batch-size", type=int, default=256)
parser.add_argument("--size", type=int, default=224)
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else None  # None: batches are views of shared host memory.
SOURCES = ["jpg", "jpeg", "png", "webp"]
output = feedline.Output("float32", normalize=((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
train = feedline.Loader(
    args.data, batch_size=args.batch_size, shuffle=True, seed=0, drop_last=True, device=device, output=output,
    fields={"image": feedline.Image(SOURCES, feedline.RandomResizedCrop(args.size), feedline.RandomHorizontalFlip()),
            "label": feedline.Int("cls")},
)  # fmt: skip
val = feedline.Loader(
    args.val or args.data, batch_size=args.batch_size, device=device, output=output,
    fields={"image": feedline.Image(SOURCES, feedline.Resize(args.size * 8 // 7), feedline.CenterCrop(args.size)),
            "label": feedline.Int("cls")},
)  # fmt: skip

torch.manual_seed(0)
model = torchvision.models.resnet18(num_classes=len(train.dataset.classes)).to(device or "cpu", memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=args.steps)
criterion = torch.nn.CrossEntropyLoss()

step = 0
while step < args.steps:
    model.train()
    image_count = 0
    for images, labels in train:
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        step, image_count = step + 1, image_count + len(labels)
        print(f"step {step}: loss {loss.item():.4f}")  # .item() waits for the GPU: print now and then in a real run.
        if step == args.steps:
            break
    print(f"epoch {train.epoch}: {image_count} images")

model.eval()
with torch.inference_mode():
    right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in val)
print(f"accuracy {right / len(val.dataset):.4f} of {len(val.dataset)} images")

"""Trains as timm's train.py does, by its models, optimizer, schedule, loss and training task; only `create_loader` is replaced:
`create_feedline_loader` takes its arguments and gives what it gives, floating-point tensors that are normalised.

python timm_train.py --data 'shards/train-{000000..000146}.tar' --model resnet50 --steps 10000 --mixup 0.2
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import timm
import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, resolve_data_config
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.task import ClassificationTask
from timm.utils import NativeScaler

import feedline


def create_feedline_loader(
    data: str, input_size: tuple[int, int, int], batch_size: int, is_training: bool = False, *, num_classes: int | None = None,
    scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3), hflip: float = 0.5, vflip: float = 0.0,
    color_jitter: float = 0.4, re_prob: float = 0.0, rand_augment: int | None = None, interpolation: str = "bilinear",
    mean: tuple[float, ...] = IMAGENET_DEFAULT_MEAN, std: tuple[float, ...] = IMAGENET_DEFAULT_STD, crop_pct: float = 0.875,
    mixup_alpha: float = 0.0, cutmix_alpha: float = 0.0, img_dtype: torch.dtype = torch.float32, device: torch.device | None = None,
) -> feedline.Loader:  # fmt: skip
    """`timm.data.create_loader` by its arguments' names; mixup is here, as its prefetcher has it in its collate function."""
    size = input_size[1:]
    transforms: list[Any] = []
    if is_training:
        transforms.append(feedline.RandomResizedCrop(size, scale, ratio, interpolation))
        transforms += [feedline.RandomHorizontalFlip(hflip)] * (hflip > 0) + [feedline.RandomVerticalFlip(vflip)] * (vflip > 0)
        if rand_augment is not None:
            transforms.append(feedline.RandAugment(2, rand_augment, interpolation="bilinear"))
        elif color_jitter:
            transforms.append(feedline.ColorJitter(color_jitter, color_jitter, color_jitter))
    else:
        transforms += [feedline.Resize(int(size[0] / crop_pct), interpolation), feedline.CenterCrop(size)]
    output: feedline.Output | None = feedline.Output(str(img_dtype), normalize=(mean, std))
    if is_training and re_prob:
        # timm erases after it normalises: then the floats are made in the sidecar.
        transforms += [feedline.ToDtype(img_dtype, scale=True), feedline.Normalize(mean, std), feedline.RandomErasing(re_prob)]
        output = None
    mixing = [
        kind(alpha=alpha, num_classes=num_classes)
        for kind, alpha in ((feedline.MixUp, mixup_alpha), (feedline.CutMix, cutmix_alpha)) if is_training and alpha
    ]  # fmt: skip
    return feedline.Loader(
        data, batch_size=batch_size, shuffle=is_training, drop_last=is_training, seed=42, output=output,
        batch_transform=mixing or None, device=device if device is not None and device.type == "cuda" else None,
        fields={"image": feedline.Image(["jpg", "jpeg", "png"], *transforms), "label": feedline.Int("cls")},
    )  # fmt: skip


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", default="resnet10t")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--mixup", type=float, default=0.0)
    parser.add_argument("--reprob", type=float, default=0.0)
    parser.add_argument("--smoothing", type=float, default=0.1)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    num_classes = len(feedline.Loader(args.data, fields={"label": feedline.Int("cls")}).dataset.classes)
    torch.manual_seed(0)
    model = timm.create_model(args.model, num_classes=num_classes).to(device, memory_format=torch.channels_last)
    config = resolve_data_config({"input_size": (3, args.size, args.size)}, model=model)
    loader = create_feedline_loader(
        args.data, config["input_size"], args.batch_size, is_training=True, num_classes=num_classes, mean=config["mean"],
        std=config["std"], interpolation=config["interpolation"], re_prob=args.reprob, mixup_alpha=args.mixup, device=device,
    )  # fmt: skip
    loss_options = {"soft_targets": True} if args.mixup else {"smoothing": args.smoothing}
    task = ClassificationTask(model, criterion_kwargs=loss_options, device=device)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=2e-3, weight_decay=0.05)
    scheduler, _ = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=max(args.steps // len(loader), 1), updates_per_epoch=len(loader), step_on_epochs=False
    )
    scaler = NativeScaler(device=device.type)
    model.train()
    endless = itertools.chain.from_iterable(itertools.repeat(loader))
    for step, (images, labels) in enumerate(itertools.islice(endless, args.steps), 1):
        optimizer.zero_grad()
        result = task(images, labels)
        scaler(result["loss"], optimizer, parameters=model.parameters(), clip_grad=1.0)
        scheduler.step_update(step)
        print(f"step {step}: loss {result['loss'].item():.4f}")


if __name__ == "__main__":
    main()

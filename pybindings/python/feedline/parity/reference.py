"""What torchvision and Pillow make of parameters that Feedline drew, and how far Feedline may be from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy
import torch
import torchvision.transforms.v2.functional as F
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode

from .. import _native

#: Operation: largest difference in levels, and share of values with a difference of more than 1.
BOUNDS = {
    "brightness": (1, 0.0),
    "contrast": (1, 0.0),
    "saturation": (1, 0.0),
    "hue": (2, 0.001),
    "grayscale": (1, 0.0),
    "solarize": (0, 0.0),
    "posterize": (0, 0.0),
    "equalize": (0, 0.0),
    "autocontrast": (1, 0.0),
    "invert": (0, 0.0),
    "sharpness": (1, 0.0),
    "blur": (1, 0.0),
    "erase": (0, 0.0),
    "bilinear": (1, 0.0),
    "extend": (0, 0.0),
}

#: Share of pixels of a nearest pick that may differ at all.
NEAREST_SHARE = 0.01

#: Edges of boxes, in pixels of the output: largest difference, and share of boxes that only one of both keeps.
BOX_BOUND = (0.001, 0.0)

#: A resize against Pillow's, after a decode of the same JPEG: largest difference, and share of values with more than 1.
RESAMPLE_BOUND = (2, 0.001)


def drawn(
    transforms: Sequence[Any], size: tuple[int, int], seed: int, first: int = 0, count: int = 1, view: int = 0
) -> list[list[Any]]:
    """The steps of ``count`` samples from number ``first`` on, in epoch 0, of pictures of (width, height) ``size``."""
    specs = json.dumps([transform.spec() for transform in transforms])
    return json.loads(_native.draw_steps(specs, *size, seed, 0, first, count, view))  # type: ignore[no-any-return]


def named(step: dict[str, Any]) -> tuple[str, Any]:
    """Name and parameters of an operation's step."""
    operation = step["operation"]
    return (operation, None) if isinstance(operation, str) else next(iter(operation.items()))


def by_torchvision(name: str, parameters: Any, image: Any) -> Any:
    """One operation by torchvision, on (3, H, W)."""
    if name in ("brightness", "contrast", "saturation", "hue", "sharpness"):
        return getattr(F, f"adjust_{name}")(image, parameters)
    if name == "solarize":
        return F.solarize(image, parameters)
    if name == "posterize":
        return F.posterize(image, parameters)
    if name == "blur":
        return F.gaussian_blur(image, parameters["kernel"], [parameters["sigma"]] * 2)
    if name == "grayscale":
        return F.rgb_to_grayscale(image, 3)
    if name == "erase":
        box = [parameters[word] for word in ("top", "left", "height", "width")]
        return F.erase(image, *box, torch.tensor(parameters["value"])[:, None, None].to(image.dtype))
    if name == "warp":
        mode = InterpolationMode(parameters["interpolation"])
        fill = parameters["fill"]
        return F.perspective(image, None, None, mode, fill, parameters["coefficients"])
    if name == "extend":
        window = parameters["window"]
        left, top = -window["left"], -window["top"]
        right, bottom = window["width"] - left - image.shape[2], window["height"] - top - image.shape[1]
        reach = [max(side, 0) for side in (left, top, right, bottom)]
        padded = F.pad(image, reach, padding_mode=parameters["mode"])
        return F.crop(padded, reach[1] - top, reach[0] - left, window["height"], window["width"])
    return getattr(F, name)(image)


def kept(stage: dict[str, Any], image: Any) -> Any:
    """A stage that only crops, pads and mirrors, on (3, H, W)."""
    assert stage["resized"] == stage["source"][2:]
    left, top, width, height = stage["source"]
    image = image[:, top : top + height, left : left + width]
    left, top, width, height = stage["window"]
    sides = [max(-left, 0), max(-top, 0), max(left + width - image.shape[2], 0), max(top + height - image.shape[1], 0)]
    image = F.pad(image, sides, fill=stage["fill"])
    image = F.crop(image, top + sides[1], left + sides[0], height, width)
    if stage["mirrored"]:
        image = F.horizontal_flip(image)
    return F.vertical_flip(image) if stage["upside_down"] else image


def by_pillow(picture: Image.Image, stages: Sequence[dict[str, Any]]) -> Any:
    """Stages that crop, resize with antialias and mirror, as an array (H, W, 3)."""
    for stage in stages:
        left, top, width, height = stage["source"]
        picture = picture.crop((left, top, left + width, top + height))
        if tuple(stage["resized"]) != picture.size:
            picture = picture.resize(tuple(stage["resized"]), Image.Resampling.BILINEAR)
        left, top, width, height = stage["window"]
        picture = picture.crop((left, top, left + width, top + height))
        if stage["mirrored"]:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return numpy.asarray(picture)


def boxes_by_torchvision(boxes: Any, labels: Any, size: tuple[int, int], steps: Sequence[dict[str, Any]]) -> tuple[Any, Any]:
    """Boxes (N, 4) xyxy float64 in a picture of (width, height) `size`, and their labels, after `steps`.

    torchvision moves, clips and sanitises them; what one step leaves without an area is gone before the next.
    """
    made = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(size[1], size[0]))
    made, labels = _with_area(F.clamp_bounding_boxes(made), labels)
    for step in steps:
        if len(labels):
            made, labels = _with_area(_moved(step, made), labels)
    made, valid = F.sanitize_bounding_boxes(made)
    return made.as_subclass(torch.Tensor), labels[valid]


def _with_area(boxes: Any, labels: Any) -> tuple[Any, Any]:
    is_left = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    return tv_tensors.wrap(boxes[is_left], like=boxes), labels[is_left]


def _moved(step: dict[str, Any], boxes: Any) -> Any:
    """One step by torchvision, on bounding boxes."""
    if "resample" in step:
        stage = step["resample"]
        left, top, width, height = stage["source"]
        boxes = F.resize(F.crop(boxes, top, left, height, width), stage["resized"][::-1])
        left, top, width, height = stage["window"]
        boxes = F.crop(boxes, top, left, height, width)
        boxes = F.horizontal_flip(boxes) if stage["mirrored"] else boxes
        return F.vertical_flip(boxes) if stage["upside_down"] else boxes
    if "operation" not in step:
        return boxes
    name, parameters = named(step)
    if name == "warp":
        return F.perspective(boxes, None, None, coefficients=parameters["coefficients"])
    if name == "extend":
        window = parameters["window"]
        return F.crop(boxes, window["top"], window["left"], window["height"], window["width"])
    return boxes

"""From torchvision's transforms, v1 and v2, to Feedline's: what happens to images, and the tensors that they become.

A pipeline's image is a picture of Pillow's at first, then a tensor of bytes, then one of floats. What comes before the
floats goes to the field's transforms; the floats become an `Output`, or, where something paints into them, a `ToDtype` in
the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

from . import colours, transforms
from .migrate_reading import Problem, is_identity, shown
from .output import Output
from .transforms import Transform

#: What an image is, in the middle of a pipeline.
PICTURE, BYTES, FLOATS = "picture", "bytes", "floats"

_WARP = ("interpolation", "fill")

#: Transforms of one name on both sides, and the arguments that are taken over, which have one name too.
_KEPT: dict[str, tuple[str, ...]] = {
    "RandomResizedCrop": ("size", "scale", "ratio", "interpolation", "antialias"),
    "Resize": ("size", "interpolation", "max_size", "antialias"),
    "CenterCrop": ("size",),
    "RandomCrop": ("size", "padding", "pad_if_needed", "fill", "padding_mode"),
    "Pad": ("padding", "fill", "padding_mode"),
    "RandomHorizontalFlip": ("p",),
    "RandomVerticalFlip": ("p",),
    "RandomRotation": ("degrees", "interpolation", "expand", "center", "fill"),
    "RandomAffine": ("degrees", "translate", "scale", "shear", "interpolation", "fill", "center"),
    "RandomPerspective": ("distortion_scale", "p", *_WARP),
    "RandomErasing": ("p", "scale", "ratio", "value"),
    "ColorJitter": ("brightness", "contrast", "saturation", "hue"),
    "Grayscale": ("num_output_channels",),
    "RandomGrayscale": ("p",),
    "GaussianBlur": ("kernel_size", "sigma"),
    "RandomSolarize": ("threshold", "p"),
    "RandomPosterize": ("bits", "p"),
    "RandomEqualize": ("p",),
    "RandomAutocontrast": ("p",),
    "RandomInvert": ("p",),
    "RandomAdjustSharpness": ("sharpness_factor", "p"),
    "AutoAugment": ("policy", *_WARP),
    "RandAugment": ("num_ops", "magnitude", "num_magnitude_bins", *_WARP),
    "TrivialAugmentWide": ("num_magnitude_bins", *_WARP),
}

#: Transforms that leave images as they are: Feedline's images are RGB in any case.
_NOTHING = ("Identity", "RGB", "ToPureTensor")

_ON_BATCHES = "leave it out, or apply it to whole batches, after `for images, labels in loader`"

#: What to write in place of transforms that have no counterpart.
_INSTEAD = {
    "FiveCrop": "one feedline.Image field a crop, or crops of the batch",
    "TenCrop": "one feedline.Image field a crop, or crops of the batch",
    "RandomOrder": "a fixed order of the transforms; ColorJitter has a random one already",
    "MixUp": "batch_transform=feedline.MixUp(num_classes=…)",
    "CutMix": "batch_transform=feedline.CutMix(num_classes=…)",
    "AugMix": "feedline.RandAugment or feedline.TrivialAugmentWide",
    "RandomPhotometricDistort": "feedline.ColorJitter",
    "RandomResize": "feedline.RandomResizedCrop, which fixes the output size",
    "ScaleJitter": "feedline.RandomResizedCrop, which fixes the output size",
    "RandomShortestSize": "feedline.RandomResizedCrop, which fixes the output size",
}


class Pipeline:
    """What a pipeline does to an image, taken from its transforms one after the other.

    Args:
        state: What the image is at its start.
    """

    def __init__(self, state: str = PICTURE) -> None:
        self.state = state
        #: What happens to the pixels.
        self.pixels: list[Transform] = []
        #: What happens to the floats, in order.
        self.floats: list[Transform] = [transforms.ToDtype("float32", scale=True)] if state == FLOATS else []
        self.problems: list[Problem] = []

    def add(self, transform: Any, where: str) -> None:
        """Takes a transform over; `where` is how one would write it."""
        # Lambdas and other functions have no class that is worth a name.
        name = type(transform).__name__
        if is_identity(transform):
            return
        if name in ("Compose", "Sequential", "ModuleList"):
            steps = transform.transforms if name == "Compose" else transform
            for number, step in enumerate(steps):
                self.add(step, f"{where}[{number}]")
            return
        at = f"{where} {shown(transform)}"
        if not type(transform).__module__.startswith("torchvision.transforms"):
            self._refuse(at, "code of your own runs in no sidecar", _ON_BATCHES)
        elif name == "Lambda":
            instead = f"nothing for convert(\"RGB\"), as images are RGB; else {_ON_BATCHES}"
            self._refuse(at, "a Python function runs in no sidecar", instead)
        elif name in ("RandomApply", "RandomChoice"):
            self._add_nested(transform, name, where)
        elif name in _NOTHING or name == "ToPILImage" and self.state == BYTES:
            pass
        elif name in ("ToTensor", "PILToTensor", "ToImage", "ToDtype", "ConvertImageDtype"):
            self._convert(transform, name, at)
        elif name == "Normalize":
            self._normalize(transform, at)
        elif name in _KEPT:
            self._keep(transform, name, at)
        else:
            self._refuse(at, "it has no counterpart", _INSTEAD.get(name, _ON_BATCHES))

    def _refuse(self, where: str, reason: str, instead: str) -> None:
        self.problems.append(Problem(where, reason, instead, ("fields",)))

    def _make(self, make: Callable[[], Transform], at: str) -> Transform | None:
        """What `make` makes, or a problem in the words of its refusal."""
        try:
            return make()
        except (TypeError, ValueError) as error:
            reason, _, instead = str(error).partition(": leave ")
            self._refuse(at, reason, f"leave {instead}" if instead else _ON_BATCHES)
            return None

    def _keep(self, transform: Any, name: str, at: str) -> None:
        """Takes over a transform that has a counterpart."""
        is_erasing, is_flip = name == "RandomErasing", name in ("RandomHorizontalFlip", "RandomVerticalFlip")
        has_erasing = any(isinstance(step, transforms.RandomErasing) for step in self.floats)
        # A flip moves whole pixels, so it may as well come before what converts them.
        if self.state == FLOATS and not is_erasing and (not is_flip or has_erasing):
            self._refuse(at, "it comes after the conversion to floats", "put it before ToTensor or ToDtype")
            return
        arguments = {key: _plain(getattr(transform, key)) for key in _KEPT[name]}
        if name in ("Resize", "RandomResizedCrop"):
            if self.state == PICTURE:
                # Pillow looks at all pixels, whatever is asked for.
                arguments["antialias"] = True
            elif arguments["interpolation"] == "nearest":
                self._refuse(at, "of tensors, torchvision's NEAREST picks other pixels", "InterpolationMode.NEAREST_EXACT")
                return
        if is_erasing:
            arguments["value"] = _erased(arguments["value"])
        if name in ("RandomHorizontalFlip", "RandomVerticalFlip", "RandomGrayscale"):
            arguments["p"] = float(arguments["p"])
        made = self._make(lambda: _class(name)(**arguments), at)
        if made is not None:
            (self.floats if is_erasing and self.state == FLOATS else self.pixels).append(made)

    def _add_nested(self, transform: Any, name: str, where: str) -> None:
        inner = [Pipeline(self.state) for _ in transform.transforms]
        for number, (pipeline, step) in enumerate(zip(inner, transform.transforms, strict=True)):
            pipeline.add(step, f"{where}.transforms[{number}]")
            self.problems += pipeline.problems
            if pipeline.state != self.state or self.state == FLOATS:
                self._refuse(f"{where} {name}", "it has to do with the conversion to floats", "put that after it")
                return
        if any(pipeline.problems for pipeline in inner):
            return
        if name == "RandomApply":
            steps = [step for pipeline in inner for step in pipeline.pixels]
            made = self._make(lambda: colours.RandomApply(steps, float(transform.p)), f"{where} {name}") if steps else None
        elif all(len(pipeline.pixels) == 1 for pipeline in inner):
            steps = [pipeline.pixels[0] for pipeline in inner]
            made = self._make(lambda: colours.RandomChoice(steps, _weights(transform.p)), f"{where} {name}")
        else:
            self._refuse(f"{where} {name}", "each choice must be one transform", "one transform a choice")
            return
        if made is not None:
            self.pixels.append(made)

    def _convert(self, transform: Any, name: str, at: str) -> None:
        """Takes over what changes the kind or the type of the image."""
        if name in ("PILToTensor", "ToImage"):
            self.state = BYTES if self.state == PICTURE else self.state
            return
        if name == "ToTensor":
            if self.state == PICTURE:
                self._to_floats("float32", scale=True)
            elif type(transform).__module__.startswith("torchvision.transforms.v2"):
                # v2's leaves tensors as they are.
                pass
            else:
                self._refuse(at, "the image is a tensor already", "leave it out")
            return
        dtype, scale = transform.dtype, getattr(transform, "scale", name == "ConvertImageDtype")
        if isinstance(dtype, dict):
            dtype = next((wanted for kind, wanted in dtype.items() if getattr(kind, "__name__", "") == "Image"), None)
            if dtype is None:
                return
        word = str(dtype).removeprefix("torch.")
        if self.state == PICTURE:
            self._refuse(at, "the image is no tensor yet, so torchvision leaves it as it is", "ToImage() before it")
        elif word == "uint8" and self.state == BYTES:
            pass
        elif word not in ("float32", "float16", "bfloat16"):
            self._refuse(at, f"images of {word} are not offered", "float32, float16 or bfloat16")
        else:
            self._to_floats(word, bool(scale))

    def _to_floats(self, dtype: str, scale: bool) -> None:
        if self.state == FLOATS:
            # From floats to floats: the values stay, and are rounded once, to the last type.
            scale = any(isinstance(step, transforms.ToDtype) and step.scale for step in self.floats)
            self.floats = [step for step in self.floats if not isinstance(step, transforms.ToDtype)]
        self.floats.insert(0, transforms.ToDtype(dtype, scale))
        self.state = FLOATS

    def _normalize(self, transform: Any, at: str) -> None:
        if self.state != FLOATS:
            before = "ToTensor(), or ToImage() and ToDtype(torch.float32, scale=True), before it"
            self._refuse(at, "pixels are no floats yet", before)
        elif any(isinstance(step, transforms.Normalize) for step in self.floats):
            self._refuse(at, "it is a second Normalize", "one Normalize that does what both do")
        else:
            mean, std = (_numbers(value) for value in (transform.mean, transform.std))
            made = self._make(lambda: transforms.Normalize(mean * (3 // len(mean)), std * (3 // len(std))), at)
            if made is not None:
                self.floats.append(made)

    def output(self) -> Output | None:
        """The `Output` that makes the floats; what it cannot say goes to the transforms. Call it once, at the end."""
        floats, self.floats = self.floats, []
        if not floats:
            return None
        to_dtype, *rest = floats
        assert isinstance(to_dtype, transforms.ToDtype), "the conversion is the first of the floats"
        normalize = rest[0] if rest and isinstance(rest[0], transforms.Normalize) else None
        if to_dtype.scale and len(rest) == (normalize is not None):
            pair = None if normalize is None else (tuple(normalize.mean), tuple(normalize.std))
            try:
                return Output(to_dtype.dtype, channels_last=False, normalize=pair)
            except ValueError:
                # Numbers that are of no pixels from 0 to 1: a field's Normalize takes them.
                pass
        self.pixels += floats
        return None


def _class(name: str) -> Callable[..., Transform]:
    made: Callable[..., Transform] = getattr(transforms, name, None) or getattr(colours, name)
    return made


def _plain(value: Any) -> Any:
    """An argument as numbers, words and tuples; pairs of equal sides as one."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_plain, value))
    return value


def _erased(value: Any) -> Any:
    """RandomErasing's value: v2 keeps None for noise, and one number as a sequence."""
    if value is None:
        return "random"
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _numbers(values: Any) -> tuple[float, ...]:
    listed = values.tolist() if hasattr(values, "tolist") else values
    return tuple(map(float, listed)) if isinstance(listed, Iterable) else (float(listed),)


def _weights(p: Sequence[float] | None) -> tuple[float, ...] | None:
    return None if p is None or len(set(p)) == 1 else tuple(map(float, p))

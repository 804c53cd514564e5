"""Feedline: a native sidecar reads, decodes and augments; batches arrive in shared memory, without a copy.

Importing this starts nothing, opens nothing and does not import torch. See `Loader`.
"""

from __future__ import annotations

from . import _native
from .batch import Batch, FaultReport
from .boxes import Boxes, BoxRows, BoxValues
from .colours import (
    AutoAugment,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    RandAugment,
    RandomAdjustSharpness,
    RandomApply,
    RandomAutocontrast,
    RandomChoice,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
    TrivialAugmentWide,
)
from .errors import (
    BudgetError,
    ForkedError,
    GraphCaptureError,
    LoaderError,
    ProtocolError,
    ResourceError,
    SampleError,
    ShardError,
    SidecarExitError,
    SlotsHeldError,
    StallError,
)
from .fields import REQUIRED, Float, Image, Int, Mask
from .join import Join
from .loader import Loader
from .migrate import MigrationError, from_dataloader
from .mix import Mix
from .mixing import CutMix, MixUp
from .named import ServedRing
from .output import Output
from .transforms import (
    CenterCrop,
    Normalize,
    Pad,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    ToDtype,
)
from .trace import merge_states, merge_trace
from .values import Array, Bytes, Json, Text

__version__ = _native.version()

__all__ = [
    "Array",
    "AutoAugment",
    "Batch",
    "BoxRows",
    "BoxValues",
    "Boxes",
    "BudgetError",
    "Bytes",
    "CenterCrop",
    "ColorJitter",
    "CutMix",
    "FaultReport",
    "Float",
    "ForkedError",
    "GaussianBlur",
    "GraphCaptureError",
    "Grayscale",
    "Image",
    "Int",
    "Join",
    "Json",
    "Loader",
    "LoaderError",
    "Mask",
    "MigrationError",
    "Mix",
    "MixUp",
    "Normalize",
    "Output",
    "Pad",
    "ProtocolError",
    "REQUIRED",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomPerspective",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "ResourceError",
    "SampleError",
    "ServedRing",
    "ShardError",
    "SidecarExitError",
    "SlotsHeldError",
    "StallError",
    "Text",
    "ToDtype",
    "TrivialAugmentWide",
    "__version__",
    "from_dataloader",
    "merge_states",
    "merge_trace",
]

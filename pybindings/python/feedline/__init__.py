"""Feedline: a native sidecar reads, decodes and augments; batches arrive in shared memory, without a copy.

Importing this starts nothing, opens nothing and does not import torch. See `Loader`.
"""

from __future__ import annotations

from . import _native
from .batch import Batch, FaultReport
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
from .fields import (
    REQUIRED,
    CenterCrop,
    Float,
    Image,
    Int,
    Mask,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from .loader import Loader
from .mix import Mix
from .output import Output
from .values import Array, Bytes, Json, Text

__version__ = _native.version()

__all__ = [
    "Array",
    "Batch",
    "BudgetError",
    "Bytes",
    "CenterCrop",
    "FaultReport",
    "Float",
    "ForkedError",
    "GraphCaptureError",
    "Image",
    "Int",
    "Json",
    "Loader",
    "LoaderError",
    "Mask",
    "Mix",
    "Output",
    "ProtocolError",
    "REQUIRED",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "ResourceError",
    "SampleError",
    "ShardError",
    "SidecarExitError",
    "SlotsHeldError",
    "StallError",
    "Text",
    "__version__",
]

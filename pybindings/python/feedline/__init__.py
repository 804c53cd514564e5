"""Feedline: a native sidecar reads, decodes and augments; batches arrive in shared memory, without a copy.

Importing this starts nothing, opens nothing and does not import torch. See `Loader`.
"""

from __future__ import annotations

from . import _native
from .batch import Batch, FaultReport
from .errors import (
    BudgetError,
    ForkedError,
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
    Array,
    Bytes,
    CenterCrop,
    Float,
    Image,
    Int,
    Json,
    Mask,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    Text,
)
from .loader import Loader

__version__ = _native.version()

__all__ = [
    "REQUIRED",
    "Array",
    "Batch",
    "BudgetError",
    "Bytes",
    "CenterCrop",
    "FaultReport",
    "Float",
    "ForkedError",
    "Image",
    "Int",
    "Json",
    "Loader",
    "LoaderError",
    "Mask",
    "ProtocolError",
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

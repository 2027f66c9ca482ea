"""Runtime of models that ``torchmdla.export_native`` wrote.

It needs NumPy, but neither PyTorch nor torchmdla::

    model = torchmdla_runtime.Model("model.tmdla")
    session = model.session()
    scores = session(images)
"""

from __future__ import annotations

from torchmdla_runtime.library import (
    WRONG_PROCESSOR,
    ModelError,
    Raised,
    WrongTensor,
    WrongValue,
    api_version,
    load_device,
    provides,
)
from torchmdla_runtime.model import Model, TensorInfo
from torchmdla_runtime.session import Session

__all__ = [
    "WRONG_PROCESSOR",
    "Model",
    "ModelError",
    "Raised",
    "Session",
    "TensorInfo",
    "WrongTensor",
    "WrongValue",
    "api_version",
    "load_device",
    "provides",
]

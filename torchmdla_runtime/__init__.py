"""Runtime of models that ``torchmdla.export_native`` wrote.

It needs NumPy, but neither PyTorch nor torchmdla::

    model = torchmdla_runtime.Model("model.tmdla")
    (scores,) = model(images)
"""

from __future__ import annotations

from torchmdla_runtime.library import WRONG_PROCESSOR, ModelError, WrongTensor, api_version, provides
from torchmdla_runtime.model import Model, TensorInfo

__all__ = ["WRONG_PROCESSOR", "Model", "ModelError", "TensorInfo", "WrongTensor", "api_version", "provides"]

"""Run the text of a function in the Torch dialect, compiled for the cpu device without any capture."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from executing import Loaded
from torch import Tensor

from torchmdla import devices
from torchmdla.compiler.program import Argument, Program, Result
from torchmdla.importer import dtype_name


def run_text(text: str, inputs: Sequence[Tensor], expected: Sequence[Tensor]) -> list[Tensor]:
    """Return the results of ``@forward`` for ``inputs``. They have the types of ``expected``."""
    arguments = tuple(Argument("input", dtype_name(tensor.dtype), tuple(tensor.shape)) for tensor in inputs)
    results = tuple(Result(dtype_name(tensor.dtype), tuple(tensor.shape)) for tensor in expected)
    device = devices.get("cpu")
    outputs = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in expected]
    artifact = device.lower(Program(text, arguments, results, device.target()))
    Loaded(artifact).call([tensor.detach().contiguous() for tensor in inputs], outputs, ())
    return outputs

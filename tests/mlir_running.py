"""Runs the text of a function in the Torch dialect: compiled for the cpu device, without any capture."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from executing import Loaded
from torch import Tensor

from torchmdla import devices
from torchmdla.compiler.program import Argument, Program, Result
from torchmdla.importer import dtype_name


def run_text(text: str, inputs: Sequence[Tensor], expected: Sequence[Tensor]) -> list[Tensor]:
    """The results of ``@forward`` for ``inputs``; they have the types of ``expected``."""
    arguments = tuple(Argument("input", dtype_name(one.dtype), tuple(one.shape)) for one in inputs)
    results = tuple(Result(dtype_name(one.dtype), tuple(one.shape)) for one in expected)
    device = devices.get("cpu")
    made = [torch.empty(one.shape, dtype=one.dtype) for one in expected]
    artifact = device.lower(Program(text, arguments, results, device.target()))
    Loaded(artifact).call([one.detach().contiguous() for one in inputs], made, ())
    return made

"""The outputs of a group, as ``_C.Executable`` makes them."""

from __future__ import annotations

from typing import Any

import torch

from torchmdla.errors import CompileError
from torchmdla.importer import ImportedGraph, OutputBinding
from torchmdla.importer.layout import contiguous_strides


def output_of(output: OutputBinding, imported: ImportedGraph) -> tuple[str, Any]:
    """An output as ``_C.Executable`` wants it: ``"tensor"``, (result, dtype, sizes, strides), or ``"constant"``.

    Raises:
        CompileError: it is an input.
    """
    if output.source == "constant":
        return "constant", output.value
    if output.source == "input":
        raise CompileError("an output that is an input of the group is not supported")
    result = imported.results[output.index]
    strides = contiguous_strides(result.shape)
    sizes, steps = ([numbers[dim] for dim in output.permutation] for numbers in (result.shape, strides))
    return "tensor", (output.index, getattr(torch, result.dtype), sizes, steps)

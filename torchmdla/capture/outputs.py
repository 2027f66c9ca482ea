"""Outputs of a group in the form of ``_C.Executable``."""

from __future__ import annotations

from typing import Any

import torch

from torchmdla.errors import CompileError
from torchmdla.importer import ImportedGraph, OutputBinding
from torchmdla.importer.size_int import SizeInt


def output_of(output: OutputBinding, imported: ImportedGraph) -> tuple[str, Any]:
    """Return an output in the form of ``_C.Executable``: a kind and its value.

    The kind is ``"tensor"`` with (result, dtype, sizes, strides, quantisation), ``"numbers"`` with a list of integers,
    or ``"constant"``.

    Raises:
        CompileError: the output is an input.
    """
    if output.source == "constant":
        value = output.value
        is_numbers = isinstance(value, list) and bool(value) and all(type(item) in (int, SizeInt) for item in value)
        return "numbers" if is_numbers else "constant", value
    if output.source == "input":
        raise CompileError("an output that is an input of the group is not supported")
    result = imported.results[output.index]
    sizes = [result.shape[dim] for dim in output.permutation]
    return "tensor", (output.index, getattr(torch, result.dtype), sizes, list(output.strides), output.quantisation)

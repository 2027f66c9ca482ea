"""Compiles an imported graph for the cpu device and calls the code, without groups, pass or cache."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from torchmdla import devices
from torchmdla.compiler.program import Program
from torchmdla.importer import Binding, ImportedGraph


class FailedCallError(Exception):
    """The compiled code returned a status that makes the runtime fall back."""


def execute(imported: ImportedGraph, graph: torch._C.Graph, inputs: Sequence[object]) -> list[object]:
    """The outputs of the group for ``inputs``, made as the runtime makes them."""
    device = devices.get("cpu")
    program = Program(imported.mlir, imported.arguments, imported.results, device.target())
    artifact = device.lower(program)
    code = device.load(artifact)
    arguments = [_argument(binding, graph, inputs) for binding in imported.bindings]
    for made, declared in zip(arguments, imported.arguments, strict=True):
        assert made.is_contiguous()
        assert tuple(made.shape) == declared.shape
    results = [torch.empty(result.shape, dtype=getattr(torch, result.dtype)) for result in imported.results]
    workspace = Block(artifact.manifest.workspace_bytes)
    packed = [Block(pack.size) for pack in artifact.manifest.packs]
    for address, pack, made in zip(code.packs, artifact.manifest.packs, packed, strict=True):
        sources = [arguments[k].data_ptr() for k in pack.arguments]
        _call(address, [workspace.pointer, made.pointer, *sources])
    table = (ctypes.c_void_p * len(packed))(*(block.pointer for block in packed))
    pointers = [tensor.data_ptr() for tensor in (*arguments, *results)]
    _call(code.entry, [workspace.pointer, ctypes.addressof(table) if packed else None, None, *pointers])
    made = {
        "result": lambda output: results[output.index].permute(output.permutation),
        "input": lambda output: inputs[output.index],
        "constant": lambda output: output.value,
    }
    return [made[output.source](output) for output in imported.outputs]


def _argument(binding: Binding, graph: torch._C.Graph, inputs: Sequence[object]) -> torch.Tensor:
    value = (
        inputs[binding.index] if binding.source == "input" else list(graph.nodes())[binding.index].output().toIValue()
    )
    if binding.element is not None:
        value = value[binding.element]
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    value = value.detach().permute(binding.permutation)
    return value.contiguous() if binding.copy else value


class Block:
    """Memory as the runtime gives it: aligned to 64 bytes, null if it is empty."""

    def __init__(self, size: int) -> None:
        self._memory = torch.empty(size + 64, dtype=torch.uint8)
        self.pointer = self._memory.data_ptr() + -self._memory.data_ptr() % 64 if size else None


def _call(address: int, pointers: Sequence[int | None]) -> None:
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))(address)
    if function((ctypes.c_void_p * len(pointers))(*pointers)):
        raise FailedCallError

"""Compiles an imported graph for the cpu device and calls the code, without groups, pass or cache."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from torchmdla import devices
from torchmdla.compiler.program import Program
from torchmdla.importer import Binding, ImportedGraph


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
    _call(code.entry, artifact.manifest.workspace_bytes, [*arguments, *results])
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


def _call(address: int, workspace_bytes: int, tensors: Sequence[torch.Tensor]) -> None:
    block = torch.empty(workspace_bytes + 64, dtype=torch.uint8)
    aligned = block.data_ptr() + -block.data_ptr() % 64 if workspace_bytes else None
    pointers = [aligned, None, *(tensor.data_ptr() for tensor in tensors)]
    entry = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))(address)
    assert entry((ctypes.c_void_p * len(pointers))(*pointers)) == 0

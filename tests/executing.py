"""Compile an imported graph for the cpu device and call the code, without groups, pass or cache."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchmdla import devices
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program
from torchmdla.importer import Binding, ImportedGraph
from torchmdla.script.ir import Graph


class FailedCallError(Exception):
    """Error status of compiled code that makes the runtime fall back. Its text is the device's fault."""


def execute(imported: ImportedGraph, graph: Graph, inputs: Sequence[object]) -> list[object]:
    """Return the outputs of the group for ``inputs``, computed as the runtime does."""
    device = devices.get("cpu")
    program = Program(imported.mlir, imported.arguments, imported.results, device.target())
    return Loaded(device.lower(program))(imported, graph, inputs)


class Loaded:
    """Artifact of the cpu device, loaded in this process and called as the runtime calls it."""

    def __init__(self, artifact: Artifact) -> None:
        self.manifest = artifact.manifest
        self._code = devices.get("cpu").load(artifact)

    def __call__(
        self, imported: ImportedGraph, graph: Graph, inputs: Sequence[object], symbols: Sequence[int] = ()
    ) -> list[object]:
        """Return the outputs of the group for ``inputs``.

        ``imported`` is the group at these inputs, and ``symbols`` are their sizes.
        """
        arguments = [argument_of(binding, graph, inputs) for binding in imported.bindings]
        for source, declared in zip(arguments, imported.arguments, strict=True):
            assert source.is_contiguous()
            assert tuple(source.shape) == declared.shape
        results = [torch.empty(result.shape, dtype=getattr(torch, result.dtype)) for result in imported.results]
        self.call(arguments, results, symbols)
        source = {
            "result": lambda output: results[output.index].permute(output.permutation),
            "input": lambda output: inputs[output.index],
            "constant": lambda output: output.value,
        }
        return [source[output.source](output) for output in imported.outputs]

    def call(self, arguments: Sequence[torch.Tensor], results: Sequence[torch.Tensor], symbols: Sequence[int]) -> None:
        """Run the code, which writes to ``results``."""
        self.prepared(arguments, results, symbols)()

    def prepared(
        self, arguments: Sequence[torch.Tensor], results: Sequence[torch.Tensor], symbols: Sequence[int]
    ) -> Callable[[], None]:
        """Return a call that writes to ``results`` and does nothing else. Parameters are packed now."""
        sizes = (ctypes.c_int64 * len(symbols))(*symbols)
        needed = self.manifest.workspace_bytes
        if symbols:
            function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.POINTER(ctypes.c_int64))(self._code.workspace)
            needed = max(needed, function(sizes))
        workspace = Block(needed)
        packed = [Block(pack.size) for pack in self.manifest.packs]
        for address, pack, destination in zip(self._code.packs, self.manifest.packs, packed, strict=True):
            sources = [arguments[k].data_ptr() for k in pack.arguments]
            self._run(address, [workspace.pointer, destination.pointer, *sources])
        table = (ctypes.c_void_p * len(packed))(*(block.pointer for block in packed))
        tables = [ctypes.addressof(table) if packed else None, ctypes.addressof(sizes) if symbols else None]
        pointers = [workspace.pointer, *tables, *(tensor.data_ptr() for tensor in (*arguments, *results))]
        owners = [workspace, packed, table, sizes, arguments, results]

        def call() -> None:
            assert owners
            self._run(self._code.entry, pointers)

        return call

    def _run(self, address: int, pointers: Sequence[int | None]) -> None:
        function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))(address)
        if function((ctypes.c_void_p * len(pointers))(*pointers)):
            fault = ctypes.CFUNCTYPE(ctypes.c_char_p)(self._code.fault)() if self._code.fault else b""
            raise FailedCallError(fault.decode())


def argument_of(binding: Binding, graph: Graph, inputs: Sequence[object]) -> torch.Tensor:
    """Return the tensor that a group's code receives for one binding."""
    is_input = binding.source == "input"
    value: Any = inputs[binding.index] if is_input else graph.nodes[binding.index].attributes["value"]
    if binding.element is not None:
        value = value[binding.element]
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    value = value.detach().permute(binding.permutation)
    return value.contiguous() if binding.copy else value


class Block:
    """Memory as the runtime allocates it: aligned to 64 bytes, null if it is empty."""

    def __init__(self, size: int) -> None:
        self._memory = torch.empty(size + 64, dtype=torch.uint8)
        self.pointer = self._memory.data_ptr() + -self._memory.data_ptr() % 64 if size else None

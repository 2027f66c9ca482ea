"""INTERIM: the life cycle of a group in Python until the C++ class takes FX subgraphs."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from torchmdla import devices
from torchmdla.capture.fx_group import FxSubgraph
from torchmdla.compiler import service
from torchmdla.compiler.program import Program
from torchmdla.compiler.versions import producers
from torchmdla.errors import CompileError

FALLBACKS: dict[str, int] = {}
COMPILED = [0]


class Group:
    def __init__(self, subgraph: FxSubgraph, name: str, options: Any, parameters: list[int]) -> None:
        self.__name__ = self.__qualname__ = name
        self.__module__ = "torchmdla"
        self.subgraph = subgraph
        self.options = options
        self.parameters = parameters
        self.known: dict[object, Any] = {}

    def __call__(self, *inputs: Any) -> Any:
        key = tuple(
            (x.dtype, tuple(x.shape), tuple(x.stride())) if isinstance(x, torch.Tensor) else type(x) if isinstance(x, float) else x for x in inputs
        )
        if key not in self.known:
            results, record = self.subgraph.run_and_record(*inputs)
            try:
                self.known[key] = Loaded(self.subgraph, self.subgraph.import_program(record, self.parameters))
                COMPILED[0] += 1
            except CompileError as error:
                if self.options.strict:
                    raise
                text = f"{error}"[:2000]
                FALLBACKS[text] = FALLBACKS.get(text, 0) + 1
                self.known[key] = None
            return results
        loaded = self.known[key]
        return self.subgraph.run(*inputs) if loaded is None else loaded(inputs)


class Loaded:
    def __init__(self, subgraph: FxSubgraph, imported: Any) -> None:
        device = devices.get("cpu")
        program = Program(imported.mlir, imported.arguments, imported.results, device.target(), versions=producers())
        self.imported, self.subgraph = imported, subgraph
        self.artifact = service.compile_program(program).artifact
        self.code = device.load(self.artifact)

    def __call__(self, inputs: Any) -> Any:
        i, artifact, code = self.imported, self.artifact, self.code
        arguments = [self._argument(binding, inputs) for binding in i.bindings]
        for made, declared in zip(arguments, i.arguments, strict=True):
            assert made.is_contiguous() and tuple(made.shape) == declared.shape, (made.shape, declared)
        results = [torch.empty(r.shape, dtype=getattr(torch, r.dtype)) for r in i.results]
        workspace = Block(artifact.manifest.workspace_bytes)
        packed = [Block(pack.size) for pack in artifact.manifest.packs]
        for address, pack, made in zip(code.packs, artifact.manifest.packs, packed, strict=True):
            _call(address, [workspace.pointer, made.pointer, *[arguments[k].data_ptr() for k in pack.arguments]])
        table = (ctypes.c_void_p * len(packed))(*(b.pointer for b in packed))
        pointers = [t.data_ptr() for t in (*arguments, *results)]
        _call(code.entry, [workspace.pointer, ctypes.addressof(table) if packed else None, None, *pointers])
        made_by = {
            "result": lambda o: results[o.index].permute(o.permutation),
            "constant": lambda o: o.value,
        }
        return tuple(made_by[o.source](o) for o in i.outputs)

    def _argument(self, binding: Any, inputs: Any) -> torch.Tensor:
        value = inputs[binding.index] if binding.source == "input" else self.subgraph.constant(binding.index)
        if binding.element is not None:
            value = value[binding.element]
        if isinstance(value, float):
            return torch.tensor(value, dtype=torch.float64)
        value = value.detach().permute(binding.permutation)
        return value.contiguous() if binding.copy else value


class Block:
    def __init__(self, size: int) -> None:
        self._memory = torch.empty(size + 64, dtype=torch.uint8)
        self.pointer = self._memory.data_ptr() + -self._memory.data_ptr() % 64 if size else None


def _call(address: int, pointers: Any) -> None:
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))(address)
    assert function((ctypes.c_void_p * len(pointers))(*pointers)) == 0

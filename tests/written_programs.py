"""Programs of the cpu device, traced or handwritten, with eager PyTorch's results. They run between guard bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from dynamic_programs import Function, Traced
from executing import argument_of
from nest_running import KERNEL, host_target
from thread_teams import ThreadTeam
from torch import Tensor, nn
from torch_mlir import ir

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.mlir import new_context
from torchmdla.compiler.program import Argument, Program, Result, Target
from torchmdla.devices.cpu.codegen.loader import load_code
from torchmdla.devices.cpu.ir.loop_program import LoopProgram
from torchmdla.devices.cpu.lowering import loop_program, lower
from torchmdla.importer import ImportedGraph
from torchmdla.importer.types import dtype_number
from torchmdla.testing.compare import assert_matches

ELEMENTS = {
    torch.bool: "i1",
    torch.int8: "si8",
    torch.uint8: "ui8",
    torch.int32: "si32",
    torch.int64: "si64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
}

# Bytes around every buffer that compiled code must not change.
GUARD = 64
GUARD_BYTE = 0xA5


# Writing programs. A value carries eager PyTorch's tensor for it.


@dataclass(frozen=True)
class Value:
    name: str
    type: str
    data: torch.Tensor | None = None

    @property
    def tensor(self) -> torch.Tensor:
        assert self.data is not None
        return self.data


def tensor_type(tensor: torch.Tensor) -> str:
    return f"!torch.vtensor<[{','.join(map(str, tensor.shape))}],{ELEMENTS[tensor.dtype]}>"


@dataclass
class Builder:
    """Function in the Torch dialect under construction."""

    options: tuple[tuple[str, str], ...] = ()
    lines: list[str] = field(default_factory=list)
    arguments: list[Value] = field(default_factory=list)
    values: list[torch.Tensor | float] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    bits: list[int] = field(default_factory=list)

    def input(self, value: torch.Tensor | float, role: str = "input", bits: int = 0) -> Value:
        kind = tensor_type(value) if isinstance(value, torch.Tensor) else "!torch.float"
        argument = Value(f"%arg{len(self.arguments)}", kind, value if isinstance(value, torch.Tensor) else None)
        self.arguments.append(argument)
        self.values.append(value)
        self.roles.append(role)
        self.bits.append(bits)
        return argument

    def op(self, name: str, operands: Sequence[object], result: torch.Tensor) -> Value:
        return self.raw(name, [self.value(o) for o in operands], tensor_type(result), result)

    def cast(self, x: Value, dtype: torch.dtype) -> Value:
        return self.op("aten.to.dtype", [x, dtype_number(dtype), False, False, None], x.tensor.to(dtype))

    def steps(self, results: Sequence[Value], *features: str) -> LoopProgram:
        """Return the loop program on this machine with ``features``."""
        with new_context(), ir.Location.unknown():
            return loop_program(self.program(results, host_target(*features)), {})[0]

    def raw(self, name: str, operands: Sequence[Value], kind: str, data: torch.Tensor | None = None) -> Value:
        result = Value(f"%{len(self.lines)}", kind, data)
        names, types = ", ".join(o.name for o in operands), ", ".join(o.type for o in operands)
        place = f'loc("model.py":{len(self.lines) + 1}:0)'
        self.lines.append(f'{result.name} = "torch.{name}"({names}) : ({types}) -> {kind} {place}')
        return result

    def value(self, plain: object) -> Value:
        """Return a constant of the program for a Python value."""
        if isinstance(plain, Value):
            return plain
        if isinstance(plain, (list, tuple)):
            items = [self.value(item) for item in plain]
            return self.raw("prim.ListConstruct", items, f"!torch.list<{self._item_type(items)}>")
        if plain is None:
            return self._constant("none", "", "!torch.none")
        if isinstance(plain, bool):
            return self._constant("bool", str(plain).lower(), "!torch.bool")
        if isinstance(plain, int):
            return self._constant("int", f"{plain} : i64", "!torch.int")
        return self._constant("float", f"{plain:.17e} : f64", "!torch.float")

    @staticmethod
    def _item_type(items: Sequence[Value]) -> str:
        if not items:
            return "int"
        return "vtensor" if items[0].data is not None else items[0].type.removeprefix("!torch.")

    def _constant(self, kind: str, text: str, mlir_type: str) -> Value:
        result = Value(f"%{len(self.lines)}", mlir_type)
        attributes = f" {{value = {text}}}" if text else ""
        self.lines.append(f'{result.name} = "torch.constant.{kind}"(){attributes} : () -> {mlir_type}')
        return result

    def program(self, results: Sequence[Value], target: Target) -> Program:
        arguments = ", ".join(f"{a.name}: {a.type}" for a in self.arguments)
        types = ", ".join(r.type for r in results)
        body = "\n  ".join(self.lines)
        text = (
            f"func.func @forward({arguments}) -> ({types}) {{\n  {body}\n"
            f"  return {', '.join(r.name for r in results)} : {types}\n}}\n"
        )
        return Program(
            mlir=text,
            arguments=tuple(map(describe, self.values, self.roles, self.bits)),
            results=tuple(Result(dtype_name(r.tensor), tuple(r.tensor.shape)) for r in results),
            target=target,
            options=self.options,
        )


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def describe(value: torch.Tensor | float, role: str, bits: int = 0) -> Argument:
    if isinstance(value, torch.Tensor):
        shape = tuple(value.shape)
        return Argument("parameter" if role == "parameter" else "input", dtype_name(value), shape, bits=bits)
    return Argument("input", "float64", (), "scalar")


def normal(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes) + 1)
    return torch.randn(sizes, generator=generator, dtype=torch.float64).to(dtype)


# Running artifacts.


PARALLEL_FOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class Pool:
    """``mdla_parallel_for`` that runs chunks of the smallest allowed size, last to first, and counts them."""

    def __init__(self) -> None:
        self.chunks = 0
        self.function = PARALLEL_FOR(self.run)

    def run(self, body: int, operands: int, begin: int, end: int, grain: int) -> None:
        assert grain >= 1
        for start in reversed(range(begin, end, grain)):
            KERNEL(body)(operands, start, min(start + grain, end))
            self.chunks += 1


class Executable:
    """Artifact loaded as the runtime loads it, with another ``mdla_parallel_for`` and another team of threads."""

    def __init__(self, artifact: Artifact) -> None:
        self.manifest = artifact.manifest
        self.pool = Pool()
        self.team = ThreadTeam(self.pool.run)
        pool = ctypes.cast(self.pool.function, ctypes.c_void_p).value or 0
        self._code, self._address = load_code(artifact, {"mdla_parallel_for": pool, **self.team.addresses})

    def _call(self, symbol: str, pointers: Sequence[int | None]) -> int:
        function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(self._address(symbol))
        return int(function((ctypes.c_void_p * len(pointers))(*pointers)))

    def __call__(self, values: Sequence[torch.Tensor | float]) -> tuple[int, list[torch.Tensor]]:
        """Return status and results.

        Every buffer ends at guard bytes, and inputs are aligned to their elements only.
        """
        tensors = [v if isinstance(v, torch.Tensor) else torch.tensor(v, dtype=torch.float64) for v in values]
        inputs = [Guarded(t.numel() * t.element_size(), offset=t.element_size()) for t in tensors]
        for guarded, tensor in zip(inputs, tensors, strict=True):
            guarded.write(tensor)
        outputs = [Guarded(count_bytes(r), offset=item_bytes(r)) for r in self.manifest.results]
        workspace = Guarded(self.manifest.workspace_bytes, offset=0)
        packed = [Guarded(pack.size, offset=0) for pack in self.manifest.packs]
        for pack, target in zip(self.manifest.packs, packed, strict=True):
            sources = [inputs[k].pointer for k in pack.arguments]
            assert self._call(pack.symbol, [workspace.pointer, target.pointer, *sources]) == 0
            workspace.fill()
        array = (ctypes.c_void_p * len(packed))(*(g.pointer for g in packed))
        table = ctypes.addressof(array) if packed else None
        pointers = [workspace.pointer, table, None, *(g.pointer for g in inputs + outputs)]
        status = self._call(self.manifest.entry, pointers)
        if self.team.kernels:  # Another order of threads has the same results.
            first = [g.bytes for g in outputs]
            for guarded in (workspace, *outputs):
                guarded.fill()
            self.team.reverse()
            assert self._call(self.manifest.entry, pointers) == status
            assert status or all(torch.equal(before, g.bytes) for before, g in zip(first, outputs, strict=True))
        for guarded in [workspace, *packed, *inputs, *outputs]:
            guarded.check()
        for guarded, tensor in zip(inputs, tensors, strict=True):
            assert torch.equal(as_bytes(guarded.read(tensor.dtype, tensor.shape)), as_bytes(tensor))
        results = zip(outputs, self.manifest.results, strict=True)
        return status, [g.read(getattr(torch, r.dtype), torch.Size(r.shape)) for g, r in results]


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def item_bytes(result: Result) -> int:
    return torch.empty(0, dtype=getattr(torch, result.dtype)).element_size()


def count_bytes(result: Result) -> int:
    return torch.Size(result.shape).numel() * item_bytes(result)


class Guarded:
    """Memory of ``size`` bytes that starts ``offset`` bytes after a multiple of 64, between guard bytes."""

    def __init__(self, size: int, offset: int) -> None:
        self._memory = torch.full((size + 3 * GUARD + offset,), GUARD_BYTE, dtype=torch.uint8)
        start = -self._memory.data_ptr() % GUARD + GUARD + offset
        self._body = self._memory[start : start + size]
        self._around = (self._memory[:start], self._memory[start + size :])
        self.pointer = self._memory.data_ptr() + start if size else None

    def write(self, tensor: torch.Tensor) -> None:
        if self.pointer is not None:
            data = tensor.contiguous()
            ctypes.memmove(self.pointer, data.data_ptr(), self._body.numel())

    def read(self, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
        result = torch.empty(shape, dtype=dtype)
        if self.pointer is not None:
            ctypes.memmove(result.data_ptr(), self.pointer, self._body.numel())
        return result

    @property
    def bytes(self) -> Tensor:
        return self._body.clone()

    def fill(self) -> None:
        """Overwrite the contents."""
        self._body.fill_(GUARD_BYTE)

    def check(self) -> None:
        assert all(bool((part == GUARD_BYTE).all()) for part in self._around), "written outside of a buffer"


def check(builder: Builder, results: Sequence[Value], target: Target | None = None) -> Executable:
    """Compile and run the program, and compare with the results of eager PyTorch."""
    executable = Executable(lower(builder.program(results, target or host_target())))
    status, actual = executable(builder.values)
    assert status == 0
    for got, expected in zip(actual, (r.tensor for r in results), strict=True):
        assert_matches(got, expected, layers=2, strides=False)
    return executable


# Programs of PyTorch functions.


class TracedProgram:
    """Program of a module, or of a function and its weights, for given inputs. It is traced at its first use."""

    def __init__(
        self, subject: Callable[..., Any], *inputs: Tensor, weights: Sequence[Tensor | nn.Module] = ()
    ) -> None:
        self._module = subject if isinstance(subject, nn.Module) else Function(subject, *weights)
        self._inputs = inputs

    @cached_property
    def _traced(self) -> Traced:
        return Traced.of(self._module, self._inputs)

    @cached_property
    def _imported(self) -> tuple[ImportedGraph, list[Any]]:
        return self._traced.imported(self._inputs)

    @property
    def values(self) -> list[Tensor]:
        """The arguments of the compiled code."""
        everything = [*self._inputs, *self._traced.weights]
        return [argument_of(binding, self._traced.graph, everything) for binding in self._imported[0].bindings]

    def program(self, target: Target | None = None, options: tuple[tuple[str, str], ...] = ()) -> Program:
        imported, _ = self._imported
        return Program(imported.mlir, imported.arguments, imported.results, target or host_target(), options)

    def steps(self, target: Target | None = None) -> LoopProgram:
        with new_context(), ir.Location.unknown():
            return loop_program(self.program(target), {})[0]

    def check(self, target: Target | None = None, options: tuple[tuple[str, str], ...] = ()) -> Executable:
        """Compile and run the program, and compare with the results of eager PyTorch."""
        executable = Executable(lower(self.program(target, options)))
        status, results = executable(self.values)
        assert status == 0
        imported, expected = self._imported
        for output, wanted in zip(imported.outputs, expected, strict=True):
            actual = self._inputs[output.index] if output.source == "input" else results[output.index]
            actual = actual.permute(output.permutation) if output.source == "result" else actual
            assert_matches(actual, wanted, layers=2, strides=False)
        return executable

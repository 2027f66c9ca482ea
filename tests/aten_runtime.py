"""Run modules that ``lower_to_std`` emits. PyTorch's operators implement the runtime functions that they declare."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch_mlir import ir
from torch_mlir.execution_engine import ExecutionEngine
from torch_mlir.passmanager import PassManager
from torch_mlir.runtime import get_ranked_memref_descriptor

from torchmdla.aten.schemas import OpSchema, registry

_PIPELINE = (
    "builtin.module(expand-strided-metadata,finalize-memref-to-llvm,convert-arith-to-llvm,convert-func-to-llvm,"
    "reconcile-unrealized-casts)"
)
_DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "i64": torch.int64,
    "i32": torch.int32,
    "i8": torch.int8,
    "i1": torch.bool,
}
_NUMBERS = {"i64": ctypes.c_int64, "f64": ctypes.c_double, "i1": ctypes.c_bool}


def execute(module: ir.Module, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """Run ``@forward``, which writes to ``outputs``."""
    errors: list[BaseException] = []
    callbacks = []
    with module.context, ir.Location.unknown():
        for op in module.body.operations:
            if op.operation.name != "func.func":
                continue
            if len(op.regions[0].blocks):
                op.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
            else:
                callbacks.append((str(op.name.value), _callback(str(op.name.value), errors)))
        PassManager.parse(_PIPELINE).run(module.operation)
        engine = ExecutionEngine(module)
    for name, callback in callbacks:
        engine.register_runtime(name, callback)
    arguments = [_pointer(tensor) for tensor in (*inputs, *outputs)]
    engine.invoke("forward", *arguments)
    if errors:
        raise errors[0]


def _pointer(tensor: torch.Tensor) -> Any:
    assert tensor.is_contiguous()
    descriptor = get_ranked_memref_descriptor(tensor.numpy())
    return ctypes.pointer(ctypes.pointer(descriptor))


class _Signature:
    """Schema and codes of a runtime function, from its name."""

    def __init__(self, name: str) -> None:
        symbols = {schema.qualified.replace("::", "_").replace(".", "_"): schema for schema in registry().values()}
        symbol = max((s for s in symbols if name.startswith(s + "__")), key=len)
        self.schema: OpSchema = symbols[symbol]
        operands, results = name[len(symbol) + 2 :].split("__")
        self.operands, self.results = operands.split("_"), [code for code in results.split("_") if code]

    @property
    def flat(self) -> list[str]:
        """Return the codes of the passed arguments: the operands, and the results in memory."""
        return [code for code in (*self.operands, *self.results) if code != "n" and not code.startswith("l")]


def _callback(name: str, errors: list[BaseException]) -> Any:
    signature = _Signature(name)

    def answer(*passed: Any) -> None:
        try:
            _answer(signature, passed)
        except BaseException as error:
            errors.append(error)

    return ctypes.CFUNCTYPE(None, *(_NUMBERS.get(code, ctypes.c_void_p) for code in signature.flat))(answer)


def _answer(signature: _Signature, passed: Sequence[Any]) -> None:
    stream = iter(passed)
    codes = iter(signature.operands)
    arguments = [_decoded(codes, stream) for _ in signature.schema.arguments]
    keywords = {a.name: v for a, v in zip(signature.schema.schema.arguments, arguments, strict=True) if a.kwarg_only}
    if "device" in keywords:
        keywords["device"] = keywords["device"] or "cpu"
    name, _, overload = signature.schema.qualified.partition(".")
    function = torch._C._get_operation_overload(name, overload)[0]
    results = function(*arguments[: len(arguments) - len(keywords)], **keywords)
    if signature.schema.written:
        return
    tensors = [results] if isinstance(results, torch.Tensor) else list(results)
    codes = iter([code for code in signature.results if not code.startswith("l")])
    for result in tensors:
        _decoded(codes, stream).copy_(result)
    assert next(stream, None) is None


def _decoded(codes: Iterator[str], stream: Iterator[Any]) -> Any:
    code = next(codes)
    if code == "n":
        return None
    if code.startswith("l"):
        return [_decoded(codes, stream) for _ in range(int(code[1:]))]
    if code in _NUMBERS:
        return next(stream)
    if code == "str":
        return bytes(_memory(next(stream), torch.int8, 1).tolist()).decode()
    if code.endswith("s"):
        return _memory(next(stream), _DTYPES[code[:-1]], 1).tolist()
    element, _, rank = code.partition("r")
    return _memory(next(stream), _DTYPES[element], int(rank))


def _memory(descriptor: int, dtype: torch.dtype, rank: int) -> torch.Tensor:
    """Return the tensor of a pointer to a memref descriptor: allocated, aligned, offset, sizes, strides."""
    words = (ctypes.c_int64 * (3 + 2 * rank)).from_address(descriptor)
    sizes = list(words[3 : 3 + rank])
    count = int(np.prod(sizes, dtype=np.int64))
    if not count:
        return torch.empty(sizes, dtype=dtype)
    assert words[2] == 0
    assert list(words[3 + rank :]) == list(torch.empty(sizes, device="meta").stride())
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(words[1])
    return torch.frombuffer(memory, dtype=dtype).reshape(sizes)

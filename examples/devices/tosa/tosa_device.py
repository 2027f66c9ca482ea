"""Custom device that gets its programs in TOSA, with channels last and packed weights, and runs them with NumPy."""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from torchmdla.compiler.artifact import Artifact, Manifest
from torchmdla.compiler.mlir import new_context
from torchmdla.compiler.program import Program, Target
from torchmdla.devices import Device, Layouts, Legalisation, Level, LoadedCode, OpSupport
from torchmdla.errors import CompileError


def _windows(x: Any, size: Sequence[int], pad: Sequence[int], stride: Sequence[int], value: float, steps: Any) -> Any:
    """Return the windows of an image (N, H, W, C) as an array (N, H, W, C, rows, columns)."""
    padded = np.pad(x, ((0, 0), pad[:2], pad[2:], (0, 0)), constant_values=value)
    reach = [(n - 1) * step + 1 for n, step in zip(size, steps, strict=True)]
    windows = sliding_window_view(padded, reach, axis=(1, 2))
    return windows[:, :: stride[0], :: stride[1], :, :: steps[0], :: steps[1]]


def _conv2d(x: Any, weight: Any, bias: Any, *_: Any, pad: Any, stride: Any, dilation: Any, **__: Any) -> Any:
    windows = _windows(x, weight.shape[1:3], pad, stride, 0.0, dilation)
    return np.einsum("nhwcij,oijc->nhwo", windows, weight, optimize=True) + bias


def _max_pool2d(x: Any, *, kernel: Any, pad: Any, stride: Any, **_: Any) -> Any:
    return _windows(x, kernel, pad, stride, -math.inf, (1, 1)).max((4, 5))


# The instructions, by operation of TOSA. Attributes of an operation are keyword arguments.
INSTRUCTIONS: Mapping[str, Callable[..., Any]] = {
    "tosa.conv2d": _conv2d,
    "tosa.max_pool2d": _max_pool2d,
    "tosa.matmul": lambda x, y, *_: x @ y,
    "tosa.add": np.add,
    "tosa.sub": np.subtract,
    "tosa.mul": lambda x, y, shift: x * y,
    "tosa.negate": lambda x, *_: -x,
    "tosa.rsqrt": lambda x: 1 / np.sqrt(x),
    "tosa.reciprocal": np.reciprocal,
    "tosa.exp": np.exp,
    "tosa.reduce_sum": lambda x, axis: x.sum(axis, keepdims=True),
    "tosa.reduce_max": lambda x, axis, **_: x.max(axis, keepdims=True),
    "tosa.clamp": lambda x, min_val, max_val, **_: np.clip(x, min_val, max_val),
    "tosa.reshape": np.reshape,
    "tosa.transpose": lambda x, perms: np.transpose(x, perms),
    "tosa.concat": lambda *parts, axis: np.concatenate(parts, axis),
}
COMPUTE = "conv2d convolution linear mm addmm max_pool2d adaptive_avg_pool2d mean.dim softmax.int _softmax"
CHEAP = "relu hardtanh add.Tensor sub.Tensor mul.Tensor cat"
VIEWS = "flatten.using_ints view t transpose.int permute"


class TosaDevice(Device, Legalisation):
    name = "numpy_tosa"
    dtypes = frozenset({"float32"})
    ops: Mapping[str, OpSupport] = {
        **{f"aten::{name}": OpSupport("compute") for name in COMPUTE.split()},
        **{f"aten::{name}": OpSupport("cheap") for name in CHEAP.split()},
        **{f"aten::{name}": OpSupport("view") for name in VIEWS.split()},
        "aten::batch_norm": OpSupport("compute", where={"training": False}),
    }

    @property
    def level(self) -> Level:
        return "tosa"

    @property
    def layouts(self) -> Layouts:
        return Layouts(channels_last=True, packs_weights=True)

    def target(self) -> Target:
        return Target(self.name)

    def lower(self, program: Program) -> Artifact:
        """Return the functions ``@forward``, ``@pack_0``, … as JSON. This runs in a compiler process, without torch."""
        from torch_mlir import ir

        with new_context(), ir.Location.unknown():
            legal = self.legalise(program)
            functions = {op.name.value: _code_of(op.operation) for op in legal.module.body.operations}
        manifest = Manifest(
            program.key,
            "forward",
            program.arguments,
            program.results,
            workspace_bytes=0,
            packs=legal.packs,
            parameters=legal.parameters,
        )
        return Artifact(json.dumps(functions).encode(), manifest)

    def load(self, artifact: Artifact) -> LoadedCode:
        """Return C functions over buffers (docs/design/abi.md). This runs in the user's process."""
        functions, manifest = json.loads(artifact.object_code), artifact.manifest
        arguments = [argument.shape for argument in manifest.arguments]
        results = [result.shape for result in manifest.results]

        def forward(buffers: Any) -> int:
            packed = ctypes.cast(buffers[1], ctypes.POINTER(ctypes.c_void_p))
            shapes = functions["forward"]["arguments"]
            addresses = [*buffers[3 : 3 + len(arguments)], *(packed[k] for k in range(len(manifest.packs)))]
            outputs = buffers[3 + len(arguments) : 3 + len(arguments) + len(results)]
            return _run(functions["forward"], addresses, shapes, outputs, results)

        def pack_of(name: str) -> Any:
            code = functions[name]
            return lambda buffers: _run(
                code, buffers[2 : 2 + len(code["arguments"])], code["arguments"], [buffers[1]], code["results"]
            )

        entries = [_FUNCTION(function) for function in (forward, *(pack_of(pack.symbol) for pack in manifest.packs))]
        entry, *packs = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in entries]
        return LoadedCode(entry, tuple(packs), owner=entries)


_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


def _code_of(function: Any) -> dict[str, Any]:
    """Return the operations of a function, and the shapes of its arguments and results. Values are numbered.

    Raises:
        CompileError: an operation does not have an instruction; the group is then compiled around its call.
    """
    block = function.regions[0].blocks[0]
    numbers = {value: number for number, value in enumerate(block.arguments)}
    *operations, end = block.operations
    code: list[Any] = []
    for view in operations:
        operation = view.operation
        attributes = {name: _plain(operation.attributes[name]) for name in operation.attributes}
        if operation.name not in INSTRUCTIONS and not operation.name.startswith("tosa.const"):
            raise CompileError(
                f"the device does not have an instruction for {operation.name}", diagnostic=str(operation.location)
            )
        code.append((operation.name, [numbers[value] for value in operation.operands], attributes))
        numbers[operation.results[0]] = len(numbers)
    return {
        "code": code,
        "arguments": [list(value.type.shape) for value in block.arguments],
        "results": [list(value.type.shape) for value in end.operands],
        "returned": [numbers[value] for value in end.operands],
    }


def _plain(attribute: Any) -> Any:
    """Return an attribute as a value of JSON: a number, or a list of numbers."""
    from torch_mlir import ir

    if isinstance(attribute, ir.DenseElementsAttr):
        return np.array(attribute).tolist()
    if isinstance(attribute, ir.DenseI32ArrayAttr | ir.DenseI64ArrayAttr):
        return list(attribute)
    return attribute.value if isinstance(attribute, ir.FloatAttr | ir.IntegerAttr) else str(attribute)


def _run(function: Any, inputs: Any, shapes: Any, outputs: Any, results: Any) -> int:
    values = [_array(address, shape) for address, shape in zip(inputs, shapes, strict=True)]
    for name, operands, attributes in function["code"]:
        if name.startswith("tosa.const"):
            is_shape = name == "tosa.const_shape"
            values.append(attributes["values"] if is_shape else np.float32(attributes["values"]))
        else:
            values.append(INSTRUCTIONS[name](*(values[number] for number in operands), **attributes))
    for address, shape, number in zip(outputs, results, function["returned"], strict=True):
        _array(address, shape)[...] = values[number]
    return 0


def _array(address: int, shape: Sequence[int]) -> Any:
    """Return contiguous float32 numbers in memory, without a copy."""
    return np.ctypeslib.as_array((ctypes.c_float * math.prod(shape)).from_address(address)).reshape(shape)

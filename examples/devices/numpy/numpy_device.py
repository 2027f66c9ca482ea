"""Custom device: groups become lists of NumPy calls, which represent an accelerator's instructions."""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from torchmdla.compiler.artifact import Artifact, Manifest
from torchmdla.compiler.mlir import forward_of, new_context
from torchmdla.compiler.program import Program, Target
from torchmdla.devices import Device, LoadedCode, OpSupport
from torchmdla.errors import CompileError

# The operations that programs may contain: the importer writes every group in these operations of the Torch dialect.
INSTRUCTIONS: Mapping[str, Callable[..., Any]] = {
    "torch.aten.mm": np.matmul,
    "torch.aten.add.Tensor": lambda x, y, alpha: x + np.float32(alpha) * y,
    "torch.aten.mul.Tensor": np.multiply,
    "torch.aten.relu": lambda x: np.maximum(x, np.float32(0)),
    "torch.aten.tanh": np.tanh,
    "torch.aten.t": np.transpose,
    "torch.aten.transpose.int": np.swapaxes,
    "torch.aten.permute": np.transpose,
    "torch.aten.view": np.reshape,
}
ANCHORS, CHEAP, VIEWS = ("linear", "mm"), ("relu", "tanh", "add.Tensor", "mul.Tensor"), ("t", "transpose.int", "view")


class NumpyDevice(Device):
    name = "numpy"
    dtypes = frozenset({"float32"})
    ops: Mapping[str, OpSupport] = {
        **{f"aten::{name}": OpSupport("compute") for name in ANCHORS},
        **{f"aten::{name}": OpSupport("cheap") for name in CHEAP},
        **{f"aten::{name}": OpSupport("view") for name in VIEWS},
    }

    def target(self) -> Target:
        return Target(self.name)

    def lower(self, program: Program) -> Artifact:
        """Return the operations as JSON; values are numbered, arguments first.

        This runs in a compiler process, without torch.
        """
        from torch_mlir import ir

        if program.symbols:
            raise CompileError("sizes that vary are not supported")
        with new_context():
            block = forward_of(ir.Module.parse(program.mlir)).regions[0].blocks[0]
            numbers = {value: number for number, value in enumerate(block.arguments)}
            *operations, end = block.operations
            code = []
            for operation in operations:
                code.append((operation.name, _constant(operation), [numbers[value] for value in operation.operands]))
                numbers[operation.results[0]] = len(numbers)
            results = [numbers[value] for value in end.operands]
        manifest = Manifest(program.key, "entry", program.arguments, program.results, workspace_bytes=0)
        return Artifact(json.dumps([code, results]).encode(), manifest)

    def load(self, artifact: Artifact) -> LoadedCode:
        """Return a C function over buffers (docs/design/abi.md).

        This runs in the user's process.
        """
        code, results = json.loads(artifact.object_code)
        arguments, outputs = artifact.manifest.arguments, artifact.manifest.results

        def run(buffers: Any) -> int:
            values = [_array(buffers[3 + k], argument.shape) for k, argument in enumerate(arguments)]
            for name, constant, operands in code:
                values.append(_run(name, constant, [values[number] for number in operands]))
            for k, (number, result) in enumerate(zip(results, outputs, strict=True)):
                _array(buffers[3 + len(arguments) + k], result.shape)[...] = values[number]
            return 0

        entry = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))(run)
        return LoadedCode(ctypes.cast(entry, ctypes.c_void_p).value or 0, (), owner=entry)


def _constant(operation: Any) -> int | float | bool | None:
    """Return a constant's value, or None for an operation that is one of the instructions.

    Raises:
        CompileError: the instruction does not exist; the group is then compiled around the operation at that place.
    """
    if operation.name.startswith("torch.constant."):
        return None if operation.name.endswith("none") else operation.attributes["value"].value
    if operation.name not in INSTRUCTIONS and operation.name != "torch.prim.ListConstruct":
        raise CompileError(
            f"the device does not have an instruction for {operation.name}", diagnostic=str(operation.location)
        )
    return None


def _run(name: str, constant: Any, operands: list[Any]) -> Any:
    if name.startswith("torch.constant."):
        return constant
    return operands if name == "torch.prim.ListConstruct" else INSTRUCTIONS[name](*operands)


def _array(address: int, shape: tuple[int, ...]) -> Any:
    """Return contiguous float32 numbers in memory, without a copy."""
    return np.ctypeslib.as_array((ctypes.c_float * math.prod(shape)).from_address(address)).reshape(shape)

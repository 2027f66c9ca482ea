"""Conversion of a program in the Torch dialect to an ONNX model, op by op."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from torch_mlir import ir

from torchmdla.compiler.mlir import convert_errors, forward_of
from torchmdla.compiler.program import Program
from torchmdla.devices.levels.onnx import Port
from torchmdla.devices.levels.onnx.graph import OnnxGraph, Value
from torchmdla.devices.levels.onnx.weights import Weight
from torchmdla.devices.levels.onnx.writers import WRITERS, Op
from torchmdla.errors import CompileError

_TENSOR = re.compile(r"!torch\.vtensor<\[([\d,]*)\],\s*(\w+)>")
# A location from the importer, ``"aten::conv2d"("graph":3:0)``: an op of the user's program.
_ORIGIN = re.compile(r'"\w+::(\w+)[\w.]*"\("graph":(\d+)')


@dataclass(frozen=True)
class OnnxProgram:
    """Program as an ONNX model, which passes ``onnx.checker``.

    Attributes:
        model: the model. Its inputs are ``inputs`` in order, then the weights, by name and without data. Tensors are
            float32 and have at least one dimension.
        weights: the weights by name. ``evaluate`` of :mod:`torchmdla.devices.levels.onnx.weights` computes the values
            of a :attr:`Weight.recipe` from the program's parameters, and ``add_weights`` of
            :mod:`torchmdla.devices.levels.onnx.graph` adds them to the model.
        inputs: the inputs that the model reads.
        outputs: the outputs, one for each result of the program.
    """

    model: onnx.ModelProto
    weights: dict[str, Weight]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def onnx_program(program: Program) -> OnnxProgram:
    """Return a program in the Torch dialect as an ONNX model, in MLIR's current context.

    Raises:
        CompileError: a writer is missing for an op or a use of it, or no result depends on an input.
    """
    with convert_errors("the program is not valid"):
        module = ir.Module.parse(program.mlir)
    reader = _Reader(program, forward_of(module))
    results = reader.results()
    if all(isinstance(result, Weight) for result in results):
        raise CompileError("nothing in the group depends on its inputs")
    model, weights = reader.graph.model(results)
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:
        raise CompileError("the ONNX model is not valid", diagnostic=str(error)) from error
    outputs = tuple(Port(position, value.shape) for position, value in enumerate(results))
    return OnnxProgram(model, weights, tuple(reader.inputs), outputs)


class _Reader:
    """Reader of a function that writes the graph."""

    def __init__(self, program: Program, function: Any) -> None:
        self.graph = OnnxGraph()
        self.inputs: list[Port] = []
        self._block = function.regions[0].blocks[0]
        self._values: dict[Any, object] = {}
        for position, (argument, value) in enumerate(zip(program.arguments, self._block.arguments, strict=True)):
            if argument.role == "parameter":
                self._values[value] = Weight.of_argument(position, argument.shape)
            elif _uses(value):
                shape, name = _shape(value), f"input{len(self.inputs)}"
                self.inputs.append(Port(position, shape))
                self._values[value] = self.graph.input(name, shape, _uses(value) == 1)

    def results(self) -> list[Value]:
        """Write every op, and return the values that the function returns."""
        for op in self._block.operations:
            if op.operation.name == "func.return":
                return [self._values[operand] for operand in op.operation.operands]  # type: ignore[misc]
            self._op(op.operation)
        raise CompileError("the program returns nothing")

    def _op(self, op: Any) -> None:
        if op.name in _CONSTANTS:
            self._values[op.results[0]] = _CONSTANTS[op.name](op)
            return
        operands = [self._values[operand] for operand in op.operands]
        if op.name == "torch.prim.ListConstruct":
            self._values[op.results[0]] = operands
            return
        name, label = _origin(op)
        writer = WRITERS.get(op.name.removeprefix("torch.aten."))
        if writer is None or len(op.results) != 1:
            raise CompileError("level 'onnx' has no operation for this", op=name, diagnostic=str(op.location))
        self.graph.label = label
        result = op.results[0]
        try:
            self._values[result] = writer(Op(self.graph, _shape(result), _uses(result) == 1), *operands)
        except CompileError as error:
            raise CompileError(error.reason, op=name, diagnostic=str(op.location), scope=error.scope) from None


def _uses(value: Any) -> int:
    return sum(1 for _ in value.uses)


def _shape(value: Any) -> tuple[int, ...]:
    """Return the sizes of a tensor in the model. A tensor without dimensions has one dimension there."""
    match = _TENSOR.fullmatch(str(value.type))
    if match is None or match[2] != "f32":
        raise CompileError(f"level 'onnx' has no values of type {value.type}")
    shape = tuple(int(size) for size in match[1].split(",") if size) or (1,)
    if 0 in shape:
        raise CompileError(f"level 'onnx' has no tensors of sizes {list(shape)}", scope="sizes")
    return shape


def _origin(op: Any) -> tuple[str, str]:
    """Return the op's own name, ``aten::relu``, and a name for its ONNX nodes."""
    name = op.name.removeprefix("torch.").replace(".", "::", 1)
    match = _ORIGIN.search(str(op.location))
    return name, f"{match[1]}_{match[2]}" if match else name.partition("::")[2].partition(".")[0]


def _literal(op: Any) -> Weight:
    array = np.array(op.attributes["value"])
    return Weight.of_numbers([float(number) for number in array.flatten()], array.shape)


_CONSTANTS: Mapping[str, Any] = {
    "torch.constant.int": lambda op: ir.IntegerAttr(op.attributes["value"]).value,
    "torch.constant.float": lambda op: ir.FloatAttr(op.attributes["value"]).value,
    "torch.constant.bool": lambda op: bool(ir.IntegerAttr(op.attributes["value"]).value),
    "torch.constant.str": lambda op: ir.StringAttr(op.attributes["value"]).value,
    "torch.constant.none": lambda op: None,
    "torch.constant.device": lambda op: None,
    "torch.vtensor.literal": _literal,
}

"""Conversion of PyTorch graphs to the aten dialect, one op per op of the user's program, without decomposition.

A TorchScript graph runs once on eager kernels, and each op is written as it runs. Every type is therefore known, and
sizes and other numbers are literals. Only the executed control flow remains. An FX graph already contains its types.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch_mlir import ir

from torchmdla.aten import types
from torchmdla.aten.builder import FunctionBuilder
from torchmdla.aten.dialect import AtenError
from torchmdla.aten.schemas import registry
from torchmdla.errors import CompileError
from torchmdla.importer.flatten import Flattening
from torchmdla.importer.fx import read_fx
from torchmdla.importer.graph import read_graph, types_of
from torchmdla.importer.interpreter import tensors_in
from torchmdla.importer.reader import Values
from torchmdla.importer.schemas import schema_of
from torchmdla.importer.trace import qualified_name
from torchmdla.importer.types import LAYOUTS, MEMORY_FORMATS, Record, TensorMeta, dtype_number


def from_module(module: Any, *inputs: Any, name: str = "forward", context: ir.Context | None = None) -> ir.Module:
    """Convert a module or function to the aten dialect by running a copy once with ``inputs``.

    A plain module or function is traced first. Its parameters and buffers become arguments after the inputs and are
    marked ``aten.parameter``. The state of PyTorch's random number generator is preserved.

    Raises:
        TypeError: PyTorch cannot trace ``module``.
        AtenError: the aten dialect cannot express part of the program.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        scripted = _to_script(module, inputs)
        if isinstance(scripted, torch.jit.ScriptModule):
            inputs = (scripted, *inputs)
        return from_graph(scripted.inlined_graph, inputs, name=name, context=context)


def from_graph(
    graph: torch._C.Graph,
    inputs: Sequence[object],
    parameters: Collection[int] = (),
    *,
    name: str = "forward",
    context: ir.Context | None = None,
) -> ir.Module:
    """Convert a TorchScript graph to the aten dialect by running it once on ``inputs``.

    Args:
        graph: graph of a scripted or traced program with everything inlined; it is not changed.
        inputs: one value for each input of the graph, the scripted module for ``self``. Tensors become arguments, other
            values literals. In-place ops that cannot be removed write to the tensors.
        parameters: indices of the inputs that are weights; their arguments are marked ``aten.parameter``.
        name: name of the function.
        context: context of the new module; creating a context costs a few tenths of a second.

    Raises:
        AtenError: the aten dialect cannot express part of the graph; the message names the node and its location.
    """
    graph = graph.copy()
    torch._C._jit_pass_remove_mutation(graph)  # type: ignore[attr-defined]
    with _as_aten_error():
        run = _GraphRun(graph, inputs, parameters)
        return read_graph(run.graph, _DialectWriter(FunctionBuilder(name, context), run.record, run.parameters))


def from_typed_graph(
    graph: torch._C.Graph, *, name: str = "forward", share_literals: bool = True, context: ir.Context | None = None
) -> ir.Module:
    """Convert a flat TorchScript graph with known dtypes and sizes to the aten dialect, without running it.

    Args:
        graph: graph of ATen calls, constants, and lists that are packed and unpacked. A tensor constant becomes an
            argument that is marked ``aten.parameter``.
        name: name of the function.
        share_literals: whether a literal is written once, or before each use.
        context: context of the new module; creating a context costs a few tenths of a second.

    Raises:
        AtenError: the aten dialect cannot express part of the graph; the message names the op.
    """
    builder = FunctionBuilder(name, context, share_literals=share_literals)
    with _as_aten_error():
        return read_graph(graph, _DialectWriter(builder, types_of(graph)))


def from_fx(
    program: torch.fx.GraphModule | torch.export.ExportedProgram,
    parameters: Collection[str] = (),
    *,
    name: str = "forward",
    context: ir.Context | None = None,
) -> ir.Module:
    """Convert an FX graph of ATen ops, from ``torch.export`` or ``torch.compile``, to the aten dialect.

    Args:
        program: graph whose nodes have a tensor, fake or not, in ``meta["val"]``. Symbolic sizes become ``?``.
        parameters: names of the placeholders that are weights; an exported program already specifies its own.
        name: name of the function.
        context: context of the new module; creating a context costs a few tenths of a second.

    Raises:
        AtenError: a node has no ``meta["val"]``, or calls a function other than an ATen op. The message names the node
            and its location.
    """
    if isinstance(program, torch.export.ExportedProgram):
        signature = program.graph_signature
        weights = [*parameters, *signature.inputs_to_parameters, *signature.inputs_to_buffers]
        return from_fx(program.graph_module, weights, name=name, context=context)
    record = {node.name: _meta(node) for node in program.graph.nodes if node.op in ("placeholder", "call_function")}
    with _as_aten_error():
        return read_fx(program.graph, _DialectWriter(FunctionBuilder(name, context), record, parameters))


@contextmanager
def _as_aten_error() -> Iterator[None]:
    """Convert the importer's errors into those of the dialect."""
    try:
        yield
    except CompileError as error:
        raise AtenError(str(error)) from None


def _meta(node: torch.fx.Node) -> object:
    if "val" not in node.meta and node.target is not operator.getitem:
        raise AtenError(f'node {node.name}: it has no meta["val"]')
    return node.meta.get("val")


def _to_script(module: Any, inputs: tuple[Any, ...]) -> Any:
    if isinstance(module, torch.jit.ScriptFunction):
        return module
    if isinstance(module, torch.nn.Module):  # A call may update buffers.
        module = copy.deepcopy(module)
    if isinstance(module, torch.jit.ScriptModule):
        return module
    if not callable(module):
        raise TypeError(f"a module, a function or a TorchScript program is needed, got {type(module).__name__}")
    return torch.jit.trace(module, inputs, check_trace=False)


class _GraphRun(Flattening):
    """Run of a graph on ``inputs``.

    A tensor that is passed twice becomes two inputs of the flat graph. A weight, a buffer or a constant that is not yet
    an input becomes a further input and a parameter. ``parameters`` has the names of weights.
    """

    def __init__(self, graph: torch._C.Graph, inputs: Sequence[object], parameters: Collection[int]) -> None:
        super().__init__()
        expected = list(graph.inputs())
        if len(expected) != len(inputs):
            raise AtenError(f"the graph takes {len(expected)} inputs, got {len(inputs)}")
        values = [[self.argument(tensor) for tensor in tensors_in(item)] for item in inputs]
        self.parameters = {value.debugName() for index in parameters for value in values[index]}
        for leaf in pytree.tree_leaves(self.run(graph, inputs)):
            self.graph.registerOutput(self.operand(leaf, torch._C.AnyType.get()))

    def value_of(self, tensor: torch.Tensor) -> torch._C.Value:
        if id(tensor) not in self._made:
            self.parameters.add(self.argument(tensor).debugName())
        return super().value_of(tensor)

    def literal(self, known: Any, type_: Any) -> torch._C.Value:
        """Return the graph value of a literal.

        A number where the schema has a tensor comes from tracing. It is passed as a tensor, and the record keeps the
        number.
        """
        is_number = type_.kind() == "TensorType" and known is not None
        value = super().literal(torch.tensor(known) if is_number else known, type_)
        self.record[value.debugName()] = known
        return value

    def number(self, value: Any) -> Any:
        return value.item()


def _literals(operand: object) -> object:
    """Return an operand with its literals in the dialect's form."""
    if isinstance(operand, ir.Value):
        return operand
    if isinstance(operand, list | tuple):
        return [_literals(item) for item in operand]
    for kind, written in _LITERALS.items():
        if isinstance(operand, kind):
            return written(operand)
    raise CompileError(f"{type(operand).__name__} cannot be expressed in the aten dialect")


# Functions that convert a value to the dialect's literal, by the type of the value.
_LITERALS: Mapping[Any, Callable[[Any], object]] = {
    bool | int | float | complex | str | None: lambda value: value,
    torch.dtype: dtype_number,
    torch.layout: LAYOUTS.__getitem__,
    torch.memory_format: MEMORY_FORMATS.__getitem__,
    torch.device: str,
    torch.Generator: lambda value: None,
}


def _type(value: object) -> str:
    """Return the dialect type of a result: a tensor, a list of tensors, None, or a number."""
    if isinstance(value, torch.Tensor | TensorMeta):
        shape = tuple(size if isinstance(size, int) else None for size in value.shape)
        try:
            return types.tensor_type(value.dtype, shape)
        except ValueError as error:
            raise CompileError(str(error)) from None
    if isinstance(value, list | tuple):
        return f"tuple<{', '.join(_type(item) for item in value)}>"
    for kind, type_ in _SCALAR_TYPES.items():
        if isinstance(value, kind):
            return type_
    raise CompileError(f"a result of type {type(value).__name__} cannot be expressed in the aten dialect")


_SCALAR_TYPES: Mapping[Any, str] = {
    type(None): "none",
    bool: "i1",
    int: "i64",
    float: "f64",
    torch.SymInt: "i64",
    torch.SymFloat: "f64",
    torch.SymBool: "i1",
}


# Schemas of the Python functions that FX graphs call for arithmetic on sizes, by function name.
_SIZE_ARITHMETIC: Mapping[str, str] = {
    "add": "aten::add.int",
    "sub": "aten::sub.int",
    "mul": "aten::mul.int",
    "floordiv": "aten::floordiv.int",
    "mod": "aten::remainder.int",
}


class _DialectWriter(Values):
    """:class:`~torchmdla.importer.reader.GraphBuilder` of functions in the dialect.

    Args:
        record: tensors, fake or not, or their types.
        parameters: names of the inputs that are weights.
    """

    def __init__(self, builder: FunctionBuilder, record: Record, parameters: Collection[str] = ()) -> None:
        super().__init__(record)
        self._builder = builder
        self._parameters = frozenset(parameters)
        self._source = ""

    def enter(self, op: str, source: str) -> None:
        # A trace that starts in this file has no location.
        self._source = "" if source.startswith(__file__) else source

    def input(self, name: str) -> None:
        type_ = _type(self.recorded(name))
        self.define(name, self._builder.argument(type_, parameter=name in self._parameters))

    def constant(self, index: int, name: str, value: object) -> None:
        """Define a constant: a tensor becomes an argument, as weights do, unless the record has a number for it."""
        known = self._record.get(name)
        if isinstance(known, bool | int | float | complex):
            self.define(name, known)
        else:
            is_tensor = isinstance(value, torch.Tensor)
            self.define(name, self._builder.argument(_type(value), parameter=True) if is_tensor else value)

    def node(
        self, op: str, schema: torch._C.FunctionSchema | None, operands: Sequence[object], metas: Sequence[object]
    ) -> list[object]:
        if op == "prim::NumToTensor.Scalar":
            schema, operands = schema_of("aten::scalar_tensor"), [*operands, None, None, None, None]
        name = qualified_name(schema) if schema else _SIZE_ARITHMETIC.get(op, op)
        if name not in registry():
            raise CompileError("it is not an op of the aten dialect")
        arguments = [_literals(operand) for operand in operands]
        values = self._builder.call(registry()[name], arguments, [_type(meta) for meta in metas], self._source)
        return [
            self._builder.unpack(value) if isinstance(meta, list | tuple) else value
            for value, meta in zip(values, metas, strict=True)
        ]

    def finish(self, outputs: Sequence[str]) -> ir.Module:
        return self._builder.finish([_literals(self.operand(name)) for name in outputs])

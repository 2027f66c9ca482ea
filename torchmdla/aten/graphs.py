"""Graphs of PyTorch in the aten dialect, one op for each op of the user's program: nothing is decomposed.

A TorchScript graph is run once, by eager kernels, and each op is written as it runs. So every type is known, sizes and
other numbers are literals, and of control flow there remains what was executed. An FX graph has its types with it.
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
from torchmdla.aten.schemas import OpSchema, registry
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
    """A module or function, run once on a copy with ``inputs``, in the aten dialect.

    A plain module or function is traced first. Its parameters and buffers become arguments that are marked
    ``aten.parameter``, after the inputs. Random numbers drawn leave PyTorch's generator as it was.

    Raises:
        TypeError: ``module`` is none that PyTorch can trace.
        AtenError: something in it has no form in the aten dialect.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        scripted = _scripted(module, inputs)
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
    """A TorchScript graph, run once on ``inputs``, in the aten dialect.

    Args:
        graph: of a scripted or traced program with everything inlined; it stays as it is.
        inputs: one for each input of the graph; where it asks for ``self``, the scripted module. Tensors become
            arguments, the rest literals. In-place ops that cannot be removed write to them.
        parameters: the inputs that are weights: their arguments are marked ``aten.parameter``.
        name: of the function.
        context: that the module lives in; a new one costs a few tenths of a second.

    Raises:
        AtenError: something in the graph has no form in the aten dialect; names the node and its place.
    """
    graph = graph.copy()
    torch._C._jit_pass_remove_mutation(graph)  # type: ignore[attr-defined]
    with _refused():
        run = _Running(graph, inputs, parameters)
        return read_graph(run.graph, _Written(FunctionBuilder(name, context), run.record, run.parameters))


def from_typed_graph(
    graph: torch._C.Graph, *, name: str = "forward", share_literals: bool = True, context: ir.Context | None = None
) -> ir.Module:
    """A flat TorchScript graph in which every tensor has its dtype and sizes, in the aten dialect, without running it.

    Args:
        graph: ATen calls, constants, and lists that are put together and taken apart. A tensor that it holds becomes an
            argument that is marked ``aten.parameter``.
        name: of the function.
        share_literals: whether a literal is written once, or before each use.
        context: that the module lives in; a new one costs a few tenths of a second.

    Raises:
        AtenError: something in the graph has no form in the aten dialect; names the op.
    """
    builder = FunctionBuilder(name, context, share_literals=share_literals)
    with _refused():
        return read_graph(graph, _Written(builder, types_of(graph)))


def from_fx(
    program: torch.fx.GraphModule | torch.export.ExportedProgram,
    parameters: Collection[str] = (),
    *,
    name: str = "forward",
    context: ir.Context | None = None,
) -> ir.Module:
    """An FX graph of ATen ops, as ``torch.export`` and ``torch.compile`` make them, in the aten dialect.

    Args:
        program: its nodes' ``meta["val"]`` are tensors, fake or not. Symbolic sizes become ``?``.
        parameters: names of the placeholders that are weights; those of an exported program are known.
        name: of the function.
        context: that the module lives in; a new one costs a few tenths of a second.

    Raises:
        AtenError: a node has no ``meta["val"]``, or calls what is no ATen op; names it and its place.
    """
    if isinstance(program, torch.export.ExportedProgram):
        signature = program.graph_signature
        weights = [*parameters, *signature.inputs_to_parameters, *signature.inputs_to_buffers]
        return from_fx(program.graph_module, weights, name=name, context=context)
    record = {node.name: _meta(node) for node in program.graph.nodes if node.op in ("placeholder", "call_function")}
    with _refused():
        return read_fx(program.graph, _Written(FunctionBuilder(name, context), record, parameters))


@contextmanager
def _refused() -> Iterator[None]:
    """Turns the importer's errors into those of the dialect."""
    try:
        yield
    except CompileError as error:
        raise AtenError(str(error)) from None


def _meta(node: torch.fx.Node) -> object:
    if "val" not in node.meta and node.target is not operator.getitem:
        raise AtenError(f'node {node.name}: it has no meta["val"]')
    return node.meta.get("val")


def _scripted(module: Any, inputs: tuple[Any, ...]) -> Any:
    if isinstance(module, torch.jit.ScriptFunction):
        return module
    if isinstance(module, torch.nn.Module):  # A call may update buffers.
        module = copy.deepcopy(module)
    if isinstance(module, torch.jit.ScriptModule):
        return module
    if not callable(module):
        raise TypeError(f"a module, a function or a TorchScript program is needed, got {type(module).__name__}")
    return torch.jit.trace(module, inputs, check_trace=False)


class _Running(Flattening):
    """A run of a graph on ``inputs``.

    A tensor that is given twice is two inputs of the flat graph. One that no op has made (a weight, a buffer, a
    constant of the program) is a further input, and among ``parameters``, the names of weights.
    """

    def __init__(self, graph: torch._C.Graph, inputs: Sequence[object], parameters: Collection[int]) -> None:
        super().__init__()
        expected = list(graph.inputs())
        if len(expected) != len(inputs):
            raise AtenError(f"the graph takes {len(expected)} inputs, got {len(inputs)}")
        values = [[self.argument(tensor) for tensor in tensors_in(given)] for given in inputs]
        self.parameters = {value.debugName() for index in parameters for value in values[index]}
        for leaf in pytree.tree_leaves(self.run(graph, inputs)):
            self.graph.registerOutput(self.operand(leaf, torch._C.AnyType.get()))

    def value_of(self, tensor: torch.Tensor) -> torch._C.Value:
        if id(tensor) not in self._made:
            self.parameters.add(self.argument(tensor).debugName())
        return super().value_of(tensor)

    def literal(self, known: Any, type_: Any) -> torch._C.Value:
        """A number that tracing made a tensor of calls the operator for tensors; it stays a number in the record."""
        is_number = type_.kind() == "TensorType" and known is not None
        value = super().literal(torch.tensor(known) if is_number else known, type_)
        self.record[value.debugName()] = known
        return value

    def node(self, node: Any) -> None:
        if node.kind() in _IMPLICIT:  # a number that tracing made a tensor of
            (tensor,) = self.values(node.inputs())
            self.define(node.outputs(), [tensor.item()])
        else:
            super().node(node)


_IMPLICIT = frozenset(("aten::ScalarImplicit", "aten::IntImplicit", "aten::FloatImplicit"))


def _schema(op: str) -> OpSchema:
    """The schema of an op by its name with overload."""
    if op not in registry():
        raise CompileError("it is no op of the aten dialect")
    return registry()[op]


def _literals(operand: object) -> object:
    """An operand with its literals as the dialect has them."""
    if isinstance(operand, ir.Value):
        return operand
    return [_literals(item) for item in operand] if isinstance(operand, list | tuple) else _literal(operand)


def _literal(value: object) -> object:
    for kind, written in _LITERALS.items():
        if isinstance(value, kind):
            return written(value)
    raise CompileError(f"{type(value).__name__} cannot be expressed in the aten dialect")


# What the dialect has for a value, by its type.
_LITERALS: Mapping[Any, Callable[[Any], object]] = {
    bool | int | float | complex | str | None: lambda value: value,
    torch.dtype: dtype_number,
    torch.layout: LAYOUTS.__getitem__,
    torch.memory_format: MEMORY_FORMATS.__getitem__,
    torch.device: str,
    torch.Generator: lambda value: None,
}


def _type(value: object) -> str:
    """The type of a result: a tensor, a list of tensors, None, or a number."""
    if isinstance(value, torch.Tensor | TensorMeta):
        shape = tuple(size if isinstance(size, int) else None for size in value.shape)
        try:
            return types.tensor_type(value.dtype, shape)
        except ValueError as error:
            raise CompileError(str(error)) from None
    if isinstance(value, list | tuple):
        return f"tuple<{', '.join(_type(item) for item in value)}>"
    for kind, type_ in _RESULTS.items():
        if isinstance(value, kind):
            return type_
    raise CompileError(f"a result of type {type(value).__name__} cannot be expressed in the aten dialect")


_RESULTS: Mapping[Any, str] = {
    type(None): "none",
    bool: "i1",
    int: "i64",
    float: "f64",
    torch.SymInt: "i64",
    torch.SymFloat: "f64",
    torch.SymBool: "i1",
}


# What PyTorch writes for arithmetic on sizes: functions of Python, by name.
_ON_SIZES: Mapping[str, str] = {
    "add": "aten::add.int",
    "sub": "aten::sub.int",
    "mul": "aten::mul.int",
    "floordiv": "aten::floordiv.int",
    "mod": "aten::remainder.int",
}


class _Written(Values):
    """A :class:`~torchmdla.importer.reader.GraphBuilder` of functions in the dialect.

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
        self._source = "" if source.startswith(__file__) else source  # where a trace began here

    def input(self, name: str) -> None:
        type_ = _type(self.seen(name))
        self.define(name, self._builder.argument(type_, parameter=name in self._parameters))

    def constant(self, index: int, name: str, value: object) -> None:
        """A tensor is an argument, as weights are, unless the record has a number in its place."""
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
        known = _schema(qualified_name(schema) if schema else _ON_SIZES.get(op, op))
        given = [_literals(operand) for operand in operands]
        made = self._builder.call(known, given, [_type(meta) for meta in metas], self._source)
        return [
            self._builder.unpacked(value) if isinstance(meta, list | tuple) else value
            for value, meta in zip(made, metas, strict=True)
        ]

    def finish(self, outputs: Sequence[str]) -> ir.Module:
        return self._builder.finish([_literals(self.operand(name)) for name in outputs])

"""Graphs of PyTorch in the aten dialect, one op for each op of the user's program: nothing is decomposed.

A TorchScript graph is run once, by eager kernels, and each op is written as it runs. So every type is known, sizes and
other numbers are literals, and of control flow there remains what was executed. An FX graph has its types with it.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch_mlir import ir

from torchmdla.aten import types
from torchmdla.aten.builder import FunctionBuilder
from torchmdla.aten.dialect import AtenError
from torchmdla.aten.schemas import OpSchema, registry
from torchmdla.errors import CompileError
from torchmdla.importer.interpreter import Run, leaves, node_name
from torchmdla.importer.sources import source_of
from torchmdla.importer.trace import in_schema_order, qualified_name
from torchmdla.importer.types import LAYOUTS, MEMORY_FORMATS, dtype_number


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
    return _Writing(FunctionBuilder(name, context)).write(graph, inputs, frozenset(parameters))


def from_typed_graph(
    graph: torch._C.Graph, *, name: str = "forward", share_literals: bool = True, context: ir.Context | None = None
) -> ir.Module:
    """A flat TorchScript graph in which every tensor has its dtype and sizes, in the aten dialect, without running it.

    Args:
        graph: ATen calls, constants, and lists that are put together and taken apart.
        name: of the function.
        share_literals: whether a literal is written once, or before each use.
        context: that the module lives in; a new one costs a few tenths of a second.

    Raises:
        AtenError: something in the graph has no form in the aten dialect; names the node.
    """
    return _TypedWalk(FunctionBuilder(name, context, share_literals=share_literals)).run(graph)


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
        AtenError: a node has no ``meta["val"]``, or calls what is no ATen op; names it.
    """
    if isinstance(program, torch.export.ExportedProgram):
        signature = program.graph_signature
        weights = [*parameters, *signature.inputs_to_parameters, *signature.inputs_to_buffers]
        return from_fx(program.graph_module, weights, name=name, context=context)
    return _FxWalk(program, frozenset(parameters), FunctionBuilder(name, context)).run()


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


class _Writing(Run):
    """A run of a TorchScript graph that writes what it does."""

    def __init__(self, builder: FunctionBuilder) -> None:
        super().__init__()
        self._builder = builder
        # By id, and held so that ids stay.
        self._values: dict[int, ir.Value] = {}
        self._tensors: list[torch.Tensor] = []

    def write(self, graph: torch._C.Graph, inputs: Sequence[object], parameters: frozenset[int]) -> ir.Module:
        """The module that does what the graph does with ``inputs``."""
        expected = list(graph.inputs())
        if len(expected) != len(inputs):
            raise AtenError(f"the graph takes {len(expected)} inputs, got {len(inputs)}")
        for index, given in enumerate(inputs):
            for leaf in leaves(given):
                self._take(leaf, parameter=index in parameters)
        try:
            self.run(graph, inputs)
        except CompileError as error:
            raise AtenError(f"{error.op}: {error.reason} (at {error.source})") from None
        return self._builder.finish([self._operand(leaf) for leaf in leaves(self.values(graph.outputs()))])

    def node(self, node: Any) -> None:
        if node.kind() in _IMPLICIT:  # a number that tracing made a tensor of
            (tensor,) = self.values(node.inputs())
            self.define(node.outputs(), [tensor.item()])
        else:
            super().node(node)

    def op(self, node: Any, arguments: Sequence[Any], results: list[Any]) -> None:
        if not any(isinstance(leaf, torch.Tensor) for leaf in leaves(results)):
            return
        name = node_name(node)
        if node.kind() in _PRIM:
            name, arguments, results = _PRIM[node.kind()](node, arguments, results)
        if name not in registry():
            raise AtenError("it is no op of the aten dialect")
        self._write(registry()[name], arguments, results, node)

    def _write(self, schema: OpSchema, arguments: Sequence[object], results: Sequence[object], node: Any) -> None:
        operands = [self._operand(argument) for argument in arguments]
        values = self._builder.call(schema, operands, [_type(result) for result in results], _place(node))
        for result, value in zip(results, values, strict=True):
            if isinstance(result, list | tuple):
                for item, element in zip(result, self._builder.unpacked(value), strict=True):
                    self._set(item, element)
            else:
                self._set(result, value)

    def _set(self, tensor: object, value: ir.Value) -> None:
        if isinstance(tensor, torch.Tensor):
            self._values[id(tensor)] = value
            self._tensors.append(tensor)

    def _take(self, given: object, *, parameter: bool) -> None:
        """Makes an argument of a tensor; one that is given twice is two arguments."""
        if isinstance(given, torch.Tensor):
            self._set(given, self._builder.argument(_type(given), parameter=parameter))

    def _operand(self, argument: object) -> object:
        if isinstance(argument, torch.Tensor):
            if id(argument) not in self._values:  # no op has made it: a weight, a buffer, a constant of the program
                self._take(argument, parameter=True)
            return self._values[id(argument)]
        if isinstance(argument, list | tuple):
            return [self._operand(item) for item in argument]
        return _literal(argument)


_IMPLICIT = frozenset(("aten::ScalarImplicit", "aten::IntImplicit", "aten::FloatImplicit"))

# Nodes of the JIT's own: the op that they are, its arguments and its results.
_PRIM: Mapping[str, Callable[[Any, Sequence[Any], list[Any]], tuple[str, Sequence[Any], list[Any]]]] = {
    "prim::ConstantChunk": lambda node, given, made: (
        "aten::chunk", [*given, node.i("chunks"), node.i("dim")], [made]
    ),
    "prim::NumToTensor": lambda node, given, made: (
        "aten::scalar_tensor", [made[0].item(), None, None, None, None], made
    ),
}  # fmt: skip


def _place(node: Any) -> str:
    """``file:line`` in the user's program; empty where tracing began here."""
    source = source_of(node)
    return "" if source.startswith(__file__) else source


def _literal(value: object) -> object:
    """A value of PyTorch as the dialect's literals have it."""
    if isinstance(value, torch.dtype):
        try:
            return dtype_number(value)
        except CompileError as error:
            raise AtenError(str(error)) from None
    if isinstance(value, torch.layout):
        return LAYOUTS[value]
    if isinstance(value, torch.memory_format):
        return MEMORY_FORMATS[value]
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, torch.Generator):
        return None
    if value is None or isinstance(value, bool | int | float | complex | str):
        return value
    raise AtenError(f"{type(value).__name__} cannot be expressed in the aten dialect")


def _type(value: object) -> str:
    """The type of a result: a tensor, a list of tensors, None, or a number."""
    if isinstance(value, torch.Tensor):
        shape = tuple(size if isinstance(size, int) else None for size in value.shape)
        try:
            return types.tensor_type(value.dtype, shape)
        except ValueError as error:
            raise AtenError(str(error)) from None
    if isinstance(value, list | tuple):
        return f"tuple<{', '.join(_type(item) for item in value)}>"
    for kind, type_ in _RESULTS.items():
        if isinstance(value, kind):
            return type_
    raise AtenError(f"a result of type {type(value).__name__} cannot be expressed in the aten dialect")


_RESULTS: Mapping[Any, str] = {
    type(None): "none",
    bool: "i1",
    int: "i64",
    float: "f64",
    torch.SymInt: "i64",
    torch.SymFloat: "f64",
    torch.SymBool: "i1",
}


class _TypedWalk:
    """One walk over a typed graph: what every value has become, an ``ir.Value``, a literal, or a list of these."""

    def __init__(self, builder: FunctionBuilder) -> None:
        self._builder = builder
        self._seen: dict[str, object] = {}

    def run(self, graph: torch._C.Graph) -> ir.Module:
        for value in graph.inputs():
            self._seen[value.debugName()] = self._builder.argument(_written_type(value))
        for node in graph.nodes():
            try:
                made = _TYPED[node.kind()](self, node) if node.kind() in _TYPED else self._call(node)
            except AtenError as error:
                raise AtenError(f"{node.kind()}: {error}") from None
            for value, result in zip(node.outputs(), made, strict=True):
                self._seen[value.debugName()] = result
        return self._builder.finish([self._seen[value.debugName()] for value in graph.outputs()])

    def constant(self, node: Any) -> Sequence[object]:
        value = node.output().toIValue()
        return [[_literal(item) for item in value] if isinstance(value, list) else _literal(value)]

    def put_together(self, node: Any) -> Sequence[object]:
        return [self._operands(node)]

    def take_apart(self, node: Any) -> Sequence[object]:
        (values,) = self._operands(node)
        return self._builder.unpacked(values) if isinstance(values, ir.Value) else values  # type: ignore[return-value]

    def _call(self, node: Any) -> Sequence[object]:
        qualified = node.schema().partition("(")[0]
        if qualified not in registry():
            raise AtenError("it is no op of the aten dialect")
        results = [_written_type(value) for value in node.outputs()]
        return self._builder.call(registry()[qualified], self._operands(node), results)

    def _operands(self, node: Any) -> list[object]:
        return [self._seen[value.debugName()] for value in node.inputs()]


_TYPED: Mapping[str, Callable[[_TypedWalk, Any], Sequence[object]]] = {
    "prim::Constant": _TypedWalk.constant,
    "prim::ListConstruct": _TypedWalk.put_together,
    "prim::ListUnpack": _TypedWalk.take_apart,
}


def _written_type(value: Any) -> str:
    """The type of a value that a graph gives: a tensor's, None, or that of a list that is taken apart at once."""
    type_ = value.type()
    if isinstance(type_, torch._C.ListType):
        elements = [element for use in value.uses() for element in use.user.outputs()]
        return f"tuple<{', '.join(_written_type(element) for element in elements)}>"
    if type_.dtype() is None and not value.uses():
        return "none"  # a result that was not asked for, as a first layer's gradient of its input
    if type_.dtype() is None or type_.sizes() is None:
        raise AtenError(f"the graph does not say what type {value.debugName()} has")
    try:
        return types.tensor_type(type_.dtype(), tuple(type_.sizes()))
    except ValueError as error:
        raise AtenError(str(error)) from None


# What PyTorch writes for arithmetic on sizes.
_ON_SIZES: Mapping[Any, str] = {
    operator.add: "aten::add.int",
    operator.sub: "aten::sub.int",
    operator.mul: "aten::mul.int",
    operator.floordiv: "aten::floordiv.int",
    operator.mod: "aten::remainder.int",
}


class _FxWalk:
    """One walk over an FX graph: what every node has become, an ``ir.Value`` or a tuple of them."""

    def __init__(
        self, graph_module: torch.fx.GraphModule, parameters: frozenset[str], builder: FunctionBuilder
    ) -> None:
        self._module = graph_module
        self._parameters = parameters
        self._builder = builder
        self._values: dict[torch.fx.Node, Any] = {}

    def run(self) -> ir.Module:
        for node in self._module.graph.nodes:
            if node.op == "output":
                return self._builder.finish([self._operand(leaf) for leaf in leaves(node.args[0])])
            if node.op not in _FX:
                raise AtenError(f"node {node.name}: {node.op} cannot be expressed in the aten dialect")
            try:
                self._values[node] = _FX[node.op](self, node)
            except AtenError as error:
                raise AtenError(f"node {node.name}: {error}") from None
        raise AtenError("the graph has no output")

    def placeholder(self, node: torch.fx.Node) -> object:
        """An argument of the function."""
        return self._builder.argument(_type(_meta(node)), parameter=node.name in self._parameters)

    def attribute(self, node: torch.fx.Node) -> object:
        """A tensor that the graph holds."""
        value = operator.attrgetter(str(node.target))(self._module)
        if not isinstance(value, torch.Tensor):
            raise AtenError(f"attribute {node.target} is no tensor")
        return self._builder.argument(_type(value), parameter=True)

    def call(self, node: torch.fx.Node) -> object:
        """A call of an op, or of an operator of Python on sizes or lists."""
        if node.target is operator.getitem:
            made, index = node.args
            return self._values[made][index]  # type: ignore[index]
        schema, arguments = _schema_of(node)
        results = _meta(node)
        listed = list(results) if isinstance(results, list | tuple) and len(schema.returns) > 1 else [results]
        if not schema.returns:
            listed = []
        operands = [self._operand(argument) for argument in arguments]
        values = self._builder.call(schema, operands, [_type(result) for result in listed])
        if len(schema.returns) != 1:
            return tuple(values)
        return tuple(self._builder.unpacked(values[0])) if isinstance(results, list | tuple) else values[0]

    def _operand(self, argument: object) -> object:
        if isinstance(argument, torch.fx.Node):
            return self._values[argument]
        if isinstance(argument, list | tuple):
            return [self._operand(item) for item in argument]
        return _literal(argument)


_FX: Mapping[str, Callable[[_FxWalk, torch.fx.Node], object]] = {
    "placeholder": _FxWalk.placeholder,
    "get_attr": _FxWalk.attribute,
    "call_function": _FxWalk.call,
}


def _meta(node: torch.fx.Node) -> object:
    if "val" not in node.meta:
        raise AtenError('it has no meta["val"]')
    return node.meta["val"]


def _schema_of(node: torch.fx.Node) -> tuple[OpSchema, list[object]]:
    """The op that a node calls, and its arguments in the schema's order."""
    target: Any = node.target
    if target in _ON_SIZES:
        return registry()[_ON_SIZES[target]], list(node.args)
    if not isinstance(target, torch._ops.OpOverload):
        raise AtenError(f"{target} is no op of the aten dialect")
    qualified = qualified_name(target._schema)
    if qualified not in registry():
        raise AtenError(f"{qualified} is no op of the aten dialect")
    return registry()[qualified], in_schema_order(target._schema, node.args, node.kwargs)

"""Reads FX: a flat graph of ATen calls and its record become the text of a program."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx

from torchmdla.errors import CompileError
from torchmdla.importer.builder import ProgramBuilder, blame, is_known
from torchmdla.importer.operands import Operand
from torchmdla.importer.sources import source_of_trace
from torchmdla.importer.trace import in_schema_order, leaves, map_structure, qualified_name
from torchmdla.importer.types import ImportedGraph, Record, TensorMeta


def import_fx(
    graph: fx.Graph, record: Record, parameters: Collection[int], composite_ops: Collection[str] = ()
) -> ImportedGraph:
    """Writes ``graph`` (functional, of ``OpOverload`` calls) as one function in the Torch dialect.

    Besides ATen there may be ``operator.getitem`` on lists and on ops with several results, sizes, and any call whose
    result is a number that depends on sizes alone. A constant is an attribute (``get_attr``) of the graph's module.

    Args:
        graph: a group's subgraph. It returns a tuple.
        record: type or value of every node but the output, by its name; the results of an op with several are a list.
        parameters: the placeholders that are weights: their arguments get the role ``"parameter"``.
        composite_ops: operators that are written as themselves, not in terms of others.

    Raises:
        CompileError: something in the graph cannot be a program; names the op and where it stands.
    """
    return _Reader(graph, ProgramBuilder(record, parameters, composite_ops)).run()


def name_of_call(node: fx.Node) -> str:
    """The op that ``node`` calls, ``"aten::add.Tensor"``; the name of any other function; the kind of other nodes."""
    if isinstance(node.target, torch._ops.OpOverload):
        return qualified_name(node.target._schema)
    return getattr(node.target, "__name__", node.op)


def named_arguments(node: fx.Node) -> Mapping[str, Any]:
    """The arguments of the call ``node`` by name: by the schema of the op or, where it has none, by their numbers."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return {str(number): argument for number, argument in enumerate(node.args)}
    schema = node.target._schema
    values = in_schema_order(schema, node.args, node.kwargs)
    return dict(zip((argument.name for argument in schema.arguments), values, strict=True))


def source_of_node(node: fx.Node) -> str:
    """``file:line`` of the user's program that made ``node``; empty when unknown."""
    return source_of_trace(node.meta.get("stack_trace"))


def attribute(node: fx.Node) -> Any:
    """The attribute that a ``get_attr`` node reads."""
    return operator.attrgetter(str(node.target))(node.graph.owning_module)


# Ask a tensor for its type, so that the answer is known even if the tensor's data is not.
METADATA = frozenset(
    [
        torch.ops.aten.sym_size.int,
        torch.ops.aten.sym_stride.int,
        torch.ops.aten.sym_numel.default,
        torch.ops.aten.sym_storage_offset.default,
        torch.ops.aten.size.int,
        torch.ops.aten.dim.default,
        torch.ops.aten.numel.default,
    ]
)


class _Reader:
    """Walks the graph and tells the builder."""

    def __init__(self, graph: fx.Graph, builder: ProgramBuilder) -> None:
        self._graph = graph
        self._builder = builder

    def run(self) -> ImportedGraph:
        outputs: list[str] = []
        for node in self._graph.nodes:
            op, source = name_of_call(node), source_of_node(node)
            index = self._builder.enter(op, source)
            if node.op == "placeholder":
                self._builder.input(node.name)
            elif node.op == "output":
                outputs = [result.name for result in node.args[0]]
            else:
                try:
                    self._builder.define(node.name, self._value(index, node))
                except Exception as error:
                    raise blame(error, op, source, index) from error
        return self._builder.finish(outputs)

    def _value(self, index: int, node: fx.Node) -> Operand:
        if node.op == "get_attr":
            self._builder.constant(index, node.name, attribute(node))
            return self._builder.operand(node.name)
        if node.op != "call_function":
            raise CompileError(f"a node of kind {node.op} is not supported in a group")
        if node.target is operator.getitem:
            elements, position = node.args
            return self._operand(elements)[position]  # type: ignore[index]
        return self._call(node)

    def _call(self, node: fx.Node) -> Operand:
        seen = self._builder.seen(node.name)
        if not any(isinstance(leaf, TensorMeta) for leaf in leaves(seen)):
            return self._number(node, seen)
        if not isinstance(node.target, torch._ops.OpOverload):
            raise CompileError("only operators of PyTorch's registry are supported in a group")
        schema = node.target._schema
        operands = [self._operand(argument) for argument in in_schema_order(schema, node.args, node.kwargs)]
        several = len(schema.returns) != 1
        results = self._builder.call(schema, operands, seen if several else [seen])  # type: ignore[arg-type]
        return results if several else results[0]

    def _number(self, node: fx.Node, seen: object) -> Operand:
        """What a node without tensors among its results has computed, if it asked for no tensor's data."""
        if node.target not in METADATA and not is_known([self._operand(leaf) for leaf in node.all_input_nodes]):
            raise CompileError("it makes a number from data that is known only at run time", scope="place")
        return seen

    def _operand(self, argument: Any) -> Operand:
        def read(leaf: object) -> Operand:
            return self._builder.operand(leaf.name) if isinstance(leaf, fx.Node) else leaf

        return map_structure(read, argument)

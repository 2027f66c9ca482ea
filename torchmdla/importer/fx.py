"""Reader of FX: flat graphs of ATen calls."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx

from torchmdla.errors import CompileError
from torchmdla.importer.builder import ProgramBuilder, blame
from torchmdla.importer.operands import Operand
from torchmdla.importer.reader import GraphBuilder, ResultT
from torchmdla.importer.sources import source_of_trace
from torchmdla.importer.trace import in_schema_order, map_structure, qualified_name
from torchmdla.importer.types import DEFAULT_OPTIONS, ImportedGraph, ImportOptions, Record


def import_fx(
    graph: fx.Graph, record: Record, parameters: Collection[int], options: ImportOptions = DEFAULT_OPTIONS
) -> ImportedGraph:
    """Write ``graph`` (functional, with ``OpOverload`` calls) as one function in the Torch dialect.

    The graph may also contain sizes, and calls whose result is a number that depends only on sizes.

    Args:
        graph: a group's subgraph. It returns a tuple.
        record: type or value of every node except the output, by its name. An op with several results has a list.
        parameters: the placeholders that are weights. Their arguments get the role ``"parameter"``.
        options: import options of the device.

    Raises:
        CompileError: If a part of the graph cannot become a program. The error names the op and its place.
    """
    return read_fx(graph, ProgramBuilder(record, parameters, options))


def read_fx(graph: fx.Graph, builder: GraphBuilder[ResultT]) -> ResultT:
    """Return the result of ``builder`` for a graph of ``OpOverload`` calls.

    The graph may contain ``operator.getitem`` on lists and on ops with several results, and Python functions on
    numbers. A constant is an attribute (``get_attr``) of the graph's module. Values have the names of their nodes.

    Raises:
        CompileError: If a part of the graph cannot be expressed. The error names the op and its place.
    """
    outputs: list[str] = []
    for index, node in enumerate(graph.nodes):
        op, source = name_of_call(node), source_of_node(node)
        builder.enter(op, source)
        if node.op == "placeholder":
            builder.input(node.name)
        elif node.op == "output":
            outputs = _outputs(builder, node)
        else:
            try:
                _read(builder, index, node)
            except Exception as error:
                raise blame(error, op, source, index) from error
    return builder.finish(outputs)


def _outputs(builder: GraphBuilder[Any], node: fx.Node) -> list[str]:
    """Return the names of a graph's results. Results that are not nodes get a name."""
    names = []
    for index, result in enumerate(torch.utils._pytree.tree_leaves(node.args[0])):
        if not isinstance(result, fx.Node):
            builder.define(f"{node.name}.{index}", result)
        names.append(result.name if isinstance(result, fx.Node) else f"{node.name}.{index}")
    return names


def _read(builder: GraphBuilder[Any], index: int, node: fx.Node) -> None:
    if node.op == "get_attr":
        builder.constant(index, node.name, attribute(node))
    elif node.op != "call_function":
        raise CompileError(f"a node of kind {node.op} is not supported in a group")
    elif node.target is operator.getitem:
        elements, position = (_operand(builder, argument) for argument in node.args)
        builder.define(node.name, elements[position])  # type: ignore[index]
    else:
        builder.define(node.name, _call(builder, node))


def _call(builder: GraphBuilder[Any], node: fx.Node) -> Operand:
    op, seen = name_of_call(node), builder.recorded(node.name)
    if builder.is_recorded(op):
        return seen
    schema = node.target._schema if isinstance(node.target, torch._ops.OpOverload) else None
    is_single = schema is None or len(schema.returns) == 1
    metas: Any = [seen] if is_single else seen or []
    operands = [_operand(builder, argument) for argument in named_arguments(node).values()]
    results = builder.node(op, schema, operands, metas)
    return results[0] if is_single else results


def _operand(builder: GraphBuilder[Any], argument: Any) -> Operand:
    return map_structure(lambda leaf: builder.operand(leaf.name) if isinstance(leaf, fx.Node) else leaf, argument)


def name_of_call(node: fx.Node) -> str:
    """Return the op that ``node`` calls (``"aten::add.Tensor"``), another function's name, or the node's kind."""
    if isinstance(node.target, torch._ops.OpOverload):
        return qualified_name(node.target._schema)
    return getattr(node.target, "__name__", node.op)


def named_arguments(node: fx.Node) -> Mapping[str, Any]:
    """Return the arguments of the call ``node`` by name.

    The names come from the schema of the op, or are positions where the call has no schema.
    """
    if not isinstance(node.target, torch._ops.OpOverload):
        return {str(number): argument for number, argument in enumerate(node.args)}
    schema = node.target._schema
    values = in_schema_order(schema, node.args, node.kwargs)
    return dict(zip((argument.name for argument in schema.arguments), values, strict=True))


def source_of_node(node: fx.Node) -> str:
    """Return ``file:line`` of the user's program that produced ``node``, or an empty string when unknown."""
    return source_of_trace(node.meta.get("stack_trace"))


def attribute(node: fx.Node) -> Any:
    """Return the attribute that a ``get_attr`` node reads."""
    return operator.attrgetter(str(node.target))(node.graph.owning_module)

"""Replacement of operators whose meaning changed, in files of old versions.

PyTorch has a function for each, an upgrader, whose graph takes the place of the operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchmdla.script.ir import Block, Graph, Value
from torchmdla.script.schemas import Schema
from torchmdla.script.sources import Source

if TYPE_CHECKING:
    from torchmdla.script.expressions import Expressions

_RECORD = "upgraders"


def inline(builder: Expressions, schema: Schema, inputs: Sequence[Value]) -> Value:
    """Insert the graph of an operator's upgrader, and return the result."""
    graph = _graph(builder, schema.upgrader)
    values = dict(zip(graph.inputs, inputs, strict=True))
    _copy(builder, graph, values)
    return values[graph.outputs[0]]


def _graph(builder: Expressions, code: str) -> Graph:
    from torchmdla.script.emitter import compile_function

    name = code.removeprefix("def ").partition("(")[0]
    newest = builder.library.operators.newest_upgrade
    return compile_function(builder.library, Source(name, _RECORD, 0, code), None, newest)


def _copy(builder: Expressions, block: Block, values: dict[Value, Value]) -> None:
    for node in block.nodes:
        if node.op == "prim::Constant":
            values[node.outputs[0]] = builder.constant(node.attributes["value"], node.outputs[0].type)
            continue
        types = [output.type for output in node.outputs]
        copied = builder.insert(node.op, [values[value] for value in node.inputs], types, node.attributes)
        copied.blocks = [_copy_block(builder, inner, values) for inner in node.blocks]
        values.update(zip(node.outputs, copied.outputs, strict=True))


def _copy_block(builder: Expressions, block: Block, values: dict[Value, Value]) -> Block:
    result = Block()
    values.update((value, builder.input(result, value.type)) for value in block.inputs)
    with builder.inside(result):
        _copy(builder, block, values)
    result.outputs = [values[value] for value in block.outputs]
    return result

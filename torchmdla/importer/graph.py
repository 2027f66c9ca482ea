"""Reader of TorchScript: flat graphs of a group, or of a device that records calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from torchmdla.errors import CompileError
from torchmdla.importer.builder import ProgramBuilder, blame, evaluate, is_known
from torchmdla.importer.decomposing import composite_decomposition
from torchmdla.importer.emitter import Value
from torchmdla.importer.operands import NumberTensor, Operand, as_meta, as_tensor
from torchmdla.importer.promotion import number_dtype
from torchmdla.importer.reader import GraphBuilder, ResultT
from torchmdla.importer.rewrites import cast
from torchmdla.importer.schemas import find_schema, schema_of
from torchmdla.importer.trace import leaves, map_structure, number_cache_key, qualified_name, trace
from torchmdla.importer.types import DEFAULT_OPTIONS, ImportedGraph, ImportOptions, Record, TensorMeta
from torchmdla.script.ir import Graph, Node


def import_graph(
    graph: Graph, record: Record, parameters: Collection[int], options: ImportOptions = DEFAULT_OPTIONS
) -> ImportedGraph:
    """Write ``graph`` as one function in the Torch dialect.

    The graph is flat, in SSA form and functional. The exception is ops in place on the graph's own results that are not
    read later.

    Args:
        graph: the group's subgraph.
        record: type or value of every value of the graph, by name.
        parameters: the group inputs that are weights. Their arguments get the role ``"parameter"``.
        options: import options of the device.

    Raises:
        CompileError: If a part of the graph cannot become a program. The error names the op and its place.
    """
    return read_graph(graph, _ScriptProgramBuilder(record, parameters, options))


def read_graph(graph: Graph, builder: GraphBuilder[ResultT]) -> ResultT:
    """Return the result of ``builder`` for a flat graph.

    Raises:
        CompileError: If a part of the graph cannot be expressed. The error names the op and its place.
    """
    for value in graph.inputs:
        builder.input(value.name)
    for index, node in enumerate(graph.nodes):
        builder.enter(node.op, node.source)
        try:
            _read(builder, index, node)
        except Exception as error:
            raise blame(error, node.op, node.source, index) from error
    return builder.finish([value.name for value in graph.outputs])


_UNPACKS = ("prim::ListUnpack", "prim::TupleUnpack")
_CONSTRUCTS = ("prim::ListConstruct", "prim::TupleConstruct")


def _read(builder: GraphBuilder[Any], index: int, node: Node) -> None:
    if node.blocks:
        raise CompileError("control flow is not supported in a group")
    outputs = [value.name for value in node.outputs]
    if node.op == "prim::Constant":
        builder.constant(index, outputs[0], node.attributes["value"])
        return
    results = _results(builder, node, outputs)
    if not isinstance(results, list | tuple) or len(results) != len(outputs):
        raise CompileError(f"{len(outputs)} results expected")
    for output, result in zip(outputs, results, strict=True):
        builder.define(output, result)


def _results(builder: GraphBuilder[Any], node: Node, outputs: Sequence[str]) -> object:
    if builder.is_recorded(node.op):
        return [builder.recorded(output) for output in outputs]
    operands = [builder.operand(value.name) for value in node.inputs]
    if node.op in _CONSTRUCTS:
        return [operands]
    if node.op in _UNPACKS:
        return operands[0]
    if node.kind == "aten::__getitem__":
        elements, position = operands
        assert isinstance(elements, list)
        assert isinstance(position, int)
        return [elements[position]]
    metas = [builder.recorded(output) for output in outputs]
    if node.op == "prim::ConstantChunk":
        settings = [node.attributes["chunks"], node.attributes["dim"]]
        return builder.node(node.op, schema_of("aten::chunk"), [*operands, *settings], [metas])[0]
    return builder.node(node.op, find_schema(node.op), operands, metas)


class _ScriptProgramBuilder(ProgramBuilder):
    """Program of a graph that converts numbers to tensors, and writes to its own results."""

    def node(
        self, op: str, schema: torch._C.FunctionSchema | None, operands: Sequence[Operand], metas: Sequence[object]
    ) -> Sequence[Operand]:
        if schema is not None and [returned.type.kind() for returned in schema.returns] == ["TensorType"]:
            (meta,) = metas
            if (number := _fold_number(schema, operands, meta)) is not None:
                return [number]
            if functional_name(op) != op and isinstance(meta, TensorMeta):
                return [_call_in_place(self, schema, operands, meta)]
        return super().node(op, schema, operands, metas)


def _fold_number(schema: torch._C.FunctionSchema, operands: Sequence[Operand], seen: object) -> NumberTensor | None:
    """Return the result of ``prim::NumToTensor``, or of arithmetic on its results, if it is known."""
    from_number = schema.name == "prim::NumToTensor" and not isinstance(operands[0], Value)
    from_numbers = is_known(operands) and any(isinstance(leaf, NumberTensor) for leaf in leaves(operands))
    if not from_number and not (from_numbers and (not isinstance(seen, TensorMeta) or seen.shape == ())):
        return None
    if isinstance(seen, int | float):
        return NumberTensor(seen, TensorMeta.of(torch.tensor(seen, dtype=number_dtype(seen))))
    value = operands[0] if from_number else evaluate(schema, operands)
    return NumberTensor(value, seen)  # type: ignore[arg-type]


# Ops in place, which TorchScript's groups apply to their own tensors. Each becomes the op that returns a new tensor,
# converted to the dtype of the tensor that eager PyTorch writes to.


def functional_name(name: str) -> str:
    """Return the op that returns a new tensor, for the op ``name`` of a group that writes its first argument."""
    base, dot, overload = name.partition(".")
    in_place = base.startswith("aten::") and base.endswith("_") and not base.endswith("__")
    return base.removesuffix("_") + dot + overload if in_place else name


def _call_in_place(
    builder: ProgramBuilder, schema: torch._C.FunctionSchema, operands: Sequence[Operand], meta: TensorMeta
) -> Operand:
    """Return the result of an op in place. ``meta`` is its recorded type."""
    name = functional_name(qualified_name(schema))
    arguments: Any = map_structure(_as_trace_argument, list(operands))
    promoted = replace(
        meta, dtype=_promoted_dtype(name, arguments, number_cache_key(arguments), torch.get_default_dtype())
    )
    (result,) = builder.call(schema_of(name), operands, [promoted])
    value = as_tensor(builder.emitter, result)
    assert isinstance(value, Value)
    return cast(builder.emitter, value, meta)


def _as_trace_argument(operand: Operand) -> object:
    """Return the type of a tensor, or an arbitrary number for a float that is known only at run time."""
    if isinstance(operand, Value) and operand.meta is None:
        return 1.0
    return as_meta(operand)


@lru_cache(maxsize=512)
def _promoted_dtype(
    name: str, arguments: tuple[object, ...], numbers: tuple[str, ...], default_dtype: torch.dtype
) -> torch.dtype:
    """Return the dtype that PyTorch promotes the arguments of an op to. It may depend on the default dtype."""
    recorded = trace(composite_decomposition(name), arguments)
    metas = {ref: meta for call in recorded.calls for ref, meta in zip(call.results, call.metas, strict=True)}
    (output,) = recorded.outputs
    # An op that does nothing returns its argument unchanged.
    result = metas.get(output, arguments[0])
    assert isinstance(result, TensorMeta)
    return result.dtype

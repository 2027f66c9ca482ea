"""Record a graph in Python: run it node by node with eager operators, as the C++ recorder does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torchmdla.importer import TensorMeta
from torchmdla.importer.types import dtype_number

_PRIM: dict[str, Callable[[torch._C.Node, list[object]], list[object]]] = {
    "prim::Constant": lambda node, inputs: [node.output().toIValue()],
    "prim::ListConstruct": lambda node, inputs: [inputs],
    "prim::TupleConstruct": lambda node, inputs: [tuple(inputs)],
    "prim::ListUnpack": lambda node, inputs: list(inputs[0]),  # type: ignore[call-overload]
    "prim::TupleUnpack": lambda node, inputs: list(inputs[0]),  # type: ignore[call-overload]
    "prim::NumToTensor": lambda node, inputs: [torch.tensor(inputs[0])],
    "prim::ConstantChunk": lambda node, inputs: list(inputs[0].chunk(node.i("chunks"), node.i("dim"))),  # type: ignore[attr-defined]
    "prim::dtype": lambda node, inputs: [inputs[0].dtype],  # type: ignore[attr-defined]
}


def run_and_record(graph: torch._C.Graph, inputs: Sequence[object]) -> tuple[list[object], dict[str, object]]:
    """Return the outputs of a flat graph and the record of every value in it."""
    values: dict[str, object] = {v.debugName(): x for v, x in zip(graph.inputs(), inputs, strict=True)}
    for node in graph.nodes():
        arguments = [values[value.debugName()] for value in node.inputs()]
        results = _PRIM[node.kind()](node, arguments) if node.kind() in _PRIM else _call(node, arguments)
        for output, result in zip(node.outputs(), results, strict=True):
            values[output.debugName()] = result
    outputs = [values[value.debugName()] for value in graph.outputs()]
    return outputs, {name: _described(value) for name, value in values.items()}


def _call(node: torch._C.Node, arguments: list[object]) -> list[object]:
    operation, *_ = torch._C._jit_get_operation(node.kind())
    schema = torch._C.parse_schema(node.schema())
    keywords = {a.name: x for a, x in zip(schema.arguments, arguments, strict=True) if a.kwarg_only}
    result = operation(*arguments[: len(arguments) - len(keywords)], **keywords)
    if (
        isinstance(result, torch.Tensor)
        and node.outputsSize() == 1
        and node.output().type().kind() in ("IntType", "FloatType", "NumberType")
    ):
        # From Python, arithmetic on numbers selects the overload for tensors.
        result = result.item()
    return list(result) if isinstance(result, tuple) and node.outputsSize() > 1 else [result]


def _described(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return TensorMeta.of(value)
    if isinstance(value, list | tuple):
        return [_described(item) for item in value]
    if isinstance(value, torch.dtype):
        return dtype_number(value)
    return str(value) if isinstance(value, torch.device) else value

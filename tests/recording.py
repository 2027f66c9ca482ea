"""Makes the record of a graph in Python: runs it node by node with eager ops, as the C++ recorder does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torchmdla.importer import TensorMeta

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
    """The outputs of a flat graph and the record of every value in it."""
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
    return list(result) if isinstance(result, tuple) and node.outputsSize() > 1 else [result]


_ORDER = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
    torch.complex32, torch.complex64, torch.complex128, torch.bool, torch.qint8, torch.quint8, torch.qint32, torch.bfloat16,
]  # fmt: skip


def _described(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return TensorMeta.of(value)
    if isinstance(value, list | tuple):
        return [_described(item) for item in value]
    if isinstance(value, torch.dtype):
        return _ORDER.index(value)
    return str(value) if isinstance(value, torch.device) else value

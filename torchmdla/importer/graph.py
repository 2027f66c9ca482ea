"""Reads TorchScript: a group's subgraph and its record become the text of a program."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

import torch

from torchmdla.errors import CompileError
from torchmdla.importer.builder import ProgramBuilder, blame, evaluate, is_known
from torchmdla.importer.emitter import Value
from torchmdla.importer.in_place import call_in_place, functional
from torchmdla.importer.operands import NumberTensor, Operand, as_tensor
from torchmdla.importer.promotion import number_dtype
from torchmdla.importer.rewrites import split_along
from torchmdla.importer.sources import source_of
from torchmdla.importer.trace import leaves
from torchmdla.importer.types import ImportedGraph, Record, TensorMeta


def import_graph(
    graph: torch._C.Graph, record: Record, parameters: Collection[int], composite_ops: Collection[str] = ()
) -> ImportedGraph:
    """Writes ``graph`` as one function in the Torch dialect.

    The graph is flat, SSA and functional, but for ops in place on what it made itself and does not read later.

    Args:
        graph: the group's subgraph.
        record: type or value of every value of the graph, by debugName.
        parameters: the group inputs that are weights: their arguments get the role ``"parameter"``.
        composite_ops: operators that are written as themselves, not in terms of others.

    Raises:
        CompileError: something in the graph cannot be a program; names the op and where it stands.
    """
    return _Reader(graph, ProgramBuilder(record, parameters, composite_ops)).run()


# Ask a tensor for its type, so that the answer is known even if the tensor's data is not.
METADATA = frozenset(
    [
        "aten::size",
        "aten::dim",
        "aten::numel",
        "aten::len",
        "aten::stride",
        "aten::is_floating_point",
        "aten::is_complex",
        "aten::is_contiguous",
        "aten::sym_size",
        "aten::sym_numel",
        "aten::element_size",
        "aten::get_device",
        "aten::storage_offset",
        "prim::dtype",
        "prim::device",
        "prim::layout",
        "prim::is_cuda",
        "prim::shape",
        "prim::requires_grad",
    ]
)

_UNPACKS = ("prim::ListUnpack", "prim::TupleUnpack")
_CONSTRUCTS = ("prim::ListConstruct", "prim::TupleConstruct")


class _Reader:
    """Walks the graph and tells the builder."""

    def __init__(self, graph: torch._C.Graph, builder: ProgramBuilder) -> None:
        self._graph = graph
        self._builder = builder

    def run(self) -> ImportedGraph:
        for value in self._graph.inputs():
            self._builder.input(value.debugName())
        for node in self._graph.nodes():
            op, source = name_of(node), source_of(node)
            index = self._builder.enter(op, source)
            try:
                self._node(index, node)
            except Exception as error:
                raise blame(error, op, source, index) from error
        return self._builder.finish([value.debugName() for value in self._graph.outputs()])

    def _node(self, index: int, node: torch._C.Node) -> None:
        if any(True for _ in node.blocks()):
            raise CompileError("control flow is not supported in a group")
        if node.kind() == "prim::Constant":
            self._builder.constant(index, node.output().debugName(), node.output().toIValue())
        elif node.kind() in _CONSTRUCTS:
            self._define(node, [[self._operand(value) for value in node.inputs()]])
        elif node.kind() in _UNPACKS:
            self._define(node, self._operand(node.input()))
        elif node.kind() == "aten::__getitem__":
            elements, position = (self._operand(value) for value in node.inputs())
            assert isinstance(elements, list)
            assert isinstance(position, int)
            self._define(node, [elements[position]])
        elif node.kind() == "prim::ConstantChunk":
            self._chunk(node)
        else:
            self._call(node)

    def _chunk(self, node: torch._C.Node) -> None:
        value = as_tensor(self._builder.emitter, self._operand(node.input()))
        assert isinstance(value, Value)
        assert value.meta is not None
        metas = [self._builder.meta(output.debugName()) for output in node.outputs()]
        self._define(node, split_along(self._builder.emitter, value, node.i("dim") % len(value.meta.shape), metas))

    def _call(self, node: torch._C.Node) -> None:
        outputs = list(node.outputs())
        metas = [self._builder.seen(output.debugName()) for output in outputs]
        if node.kind() in METADATA:
            self._define(node, metas)
            return
        operands = [self._operand(value) for value in node.inputs()]
        if is_known(operands) and not any(_holds_tensor(output) for output in outputs):
            self._define(node, metas)
        elif len(outputs) == 1 and (number := _number(node, operands, metas[0])) is not None:
            self._define(node, [number])
        elif any(not _holds_tensor(o) and not isinstance(m, float) for o, m in zip(outputs, metas, strict=True)):
            raise CompileError("it makes a number from data that is known only at run time", scope="place")
        elif functional(node.kind()) != node.kind():
            meta = self._builder.meta(outputs[0].debugName())
            self._define(node, [call_in_place(self._builder, _schema(node), operands, meta)])
        else:
            self._define(node, self._builder.call(_schema(node), operands, metas))

    def _operand(self, value: torch._C.Value) -> Operand:
        return self._builder.operand(value.debugName())

    def _define(self, node: torch._C.Node, results: object) -> None:
        outputs = list(node.outputs())
        if not isinstance(results, list | tuple) or len(results) != len(outputs):
            raise CompileError(f"{len(outputs)} results expected")
        for output, result in zip(outputs, results, strict=True):
            self._builder.define(output.debugName(), result)


def _number(node: torch._C.Node, operands: Sequence[Operand], seen: object) -> NumberTensor | None:
    """The result of ``prim::NumToTensor`` and of arithmetic on its results, if it is known."""
    from_number = node.kind() == "prim::NumToTensor" and not isinstance(operands[0], Value)
    from_numbers = is_known(operands) and any(isinstance(leaf, NumberTensor) for leaf in leaves(operands))
    if not from_number and not (from_numbers and (not isinstance(seen, TensorMeta) or seen.shape == ())):
        return None
    if isinstance(seen, int | float):
        return NumberTensor(seen, TensorMeta.of(torch.tensor(seen, dtype=number_dtype(seen))))
    value = operands[0] if from_number else evaluate(_schema(node), operands)
    return NumberTensor(value, seen)  # type: ignore[arg-type]


def _holds_tensor(value: torch._C.Value) -> bool:
    type_ = value.type()
    while type_.kind() in ("ListType", "OptionalType"):
        type_ = type_.getElementType()
    return type_.kind() == "TensorType"


def _schema(node: torch._C.Node) -> torch._C.FunctionSchema:
    text = node.schema()
    if text == "(no schema)":
        raise CompileError("it has no schema")
    return _parsed(text)


@lru_cache(maxsize=2048)
def _parsed(text: str) -> torch._C.FunctionSchema:
    return torch._C.parse_schema(text)


def argument_names(node: torch._C.Node) -> list[str]:
    """What the node's inputs are called: by its schema or, where it has none, by their numbers."""
    text = node.schema()
    if text == "(no schema)":
        return [str(number) for number, _ in enumerate(node.inputs())]
    return [argument.name for argument in _parsed(text).arguments]


def name_of(node: torch._C.Node) -> str:
    """Schema name with overload where there is a schema, else the node's kind."""
    text = node.schema()
    return node.kind() if text == "(no schema)" else text.partition("(")[0]

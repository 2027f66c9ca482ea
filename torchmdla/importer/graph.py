"""The importer: a group's subgraph and its record become the text of a program."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from torchmdla.compiler.program import Argument, Result
from torchmdla.errors import CompileError
from torchmdla.importer.emitter import Emitter, Value, quote
from torchmdla.importer.layout import exact_memory_order, invert, memory_order
from torchmdla.importer.promotion import NUMBER_DTYPES, NumberTensor
from torchmdla.importer.rewrites import split_along
from torchmdla.importer.sources import source_of
from torchmdla.importer.trace import leaves
from torchmdla.importer.translate import Operand, as_tensor, translate
from torchmdla.importer.types import (
    Binding,
    ImportedGraph,
    OutputBinding,
    Record,
    TensorMeta,
    dtype_name,
    tensor_type,
)


def import_graph(graph: torch._C.Graph, record: Record, parameters: Collection[int]) -> ImportedGraph:
    """Writes ``graph`` (flat, functional, SSA) as one function in the Torch dialect.

    Args:
        graph: the group's subgraph.
        record: type or value of every value of the graph, by debugName.
        parameters: the group inputs that are weights: their arguments get the role ``"parameter"``.

    Raises:
        CompileError: something in the graph cannot be a program; names the op and where it stands.
    """
    return _Importer(graph, record, parameters).run()


# Ask a tensor for its type, so that the answer is known even if the tensor's data is not.
_METADATA = frozenset(
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


class _Importer:
    """State of one import: what every value of the graph has become."""

    def __init__(self, graph: torch._C.Graph, record: Record, parameters: Collection[int]) -> None:
        self._graph = graph
        self._record = record
        self._parameters = frozenset(parameters)
        self._emitter = Emitter()
        # Arguments are made on first use: an input that is only asked for its size is none.
        self._pending: dict[str, Binding] = {}
        self._arguments: list[tuple[Argument, Binding, Value]] = []
        self._values: dict[str, Operand] = {}

    def run(self) -> ImportedGraph:
        inputs = list(self._graph.inputs())
        for index, value in enumerate(inputs):
            self._input(index, value)
        sources = []
        for index, node in enumerate(self._graph.nodes()):
            sources.append(source_of(node))
            self._emitter.location = f'loc({quote(_name(node))}("graph":{index}:0))'
            try:
                self._node(index, node)
            except CompileError as error:
                raise _blame(error, node, sources[-1]) from error
        self._emitter.location = "loc(unknown)"
        results, outputs = self._outputs([value.debugName() for value in inputs])
        order = sorted(self._arguments, key=lambda item: _signature_order(item[1]))
        return ImportedGraph(
            mlir=self._emitter.text([value for _, _, value in order], [value for _, value in results]),
            arguments=tuple(argument for argument, _, _ in order),
            results=tuple(result for result, _ in results),
            bindings=tuple(binding for _, binding, _ in order),
            outputs=outputs,
            sources=tuple(sources),
        )

    # Inputs and constants

    def _input(self, index: int, value: torch._C.Value) -> None:
        seen = self._seen(value)
        if isinstance(seen, TensorMeta | float):
            self._pending[value.debugName()] = Binding("input", index, value.debugName())
        elif isinstance(seen, list) and seen and all(isinstance(item, TensorMeta) for item in seen):
            bindings = [Binding("input", index, value.debugName(), element=position) for position in range(len(seen))]
            self._values[value.debugName()] = [
                self._argument(binding, item) for binding, item in zip(bindings, seen, strict=True)
            ]
        else:
            self._values[value.debugName()] = seen

    def _constant(self, index: int, node: torch._C.Node) -> None:
        output = node.output()
        value = output.toIValue()
        if isinstance(value, torch.Tensor) and value.dim() == 0 and not value.is_complex():
            self._values[output.debugName()] = NumberTensor(value.item(), TensorMeta.of(value))
        elif isinstance(value, torch.Tensor):
            self._pending[output.debugName()] = Binding("constant", index, output.debugName())
        elif isinstance(value, list) and any(isinstance(item, torch.Tensor) for item in value):
            name = output.debugName()
            bindings = [Binding("constant", index, name, element=position) for position in range(len(value))]
            self._values[name] = [
                self._argument(binding, TensorMeta.of(item)) for binding, item in zip(bindings, value, strict=True)
            ]
        else:
            self._values[output.debugName()] = str(value) if isinstance(value, torch.device) else value

    def _argument(self, binding: Binding, seen: object) -> Value:
        name = f"%{binding.source}{binding.index}"
        if binding.element is not None:
            name += f"_{binding.element}"
        if isinstance(seen, float):
            value = Value(name, "!torch.float")
            self._arguments.append((Argument("input", "float64", (), "scalar"), binding, value))
            return value
        assert isinstance(seen, TensorMeta)
        order = memory_order(seen.shape, seen.strides)
        binding = replace(binding, permutation=order or tuple(range(len(seen.shape))), copy=order is None)
        shape = tuple(seen.shape[dim] for dim in binding.permutation)
        physical = replace(seen, shape=shape)
        is_parameter = binding.source == "constant" or binding.index in self._parameters
        argument = Argument("parameter" if is_parameter else "input", dtype_name(seen.dtype), shape)
        value = Value(name, tensor_type(physical), physical)
        self._arguments.append((argument, binding, value))
        return replace(self._permuted(value, invert(binding.permutation)), meta=seen)

    def _permuted(self, value: Value, permutation: Sequence[int]) -> Value:
        assert value.meta is not None
        if tuple(permutation) == tuple(range(len(permutation))):
            return value
        meta = replace(value.meta, shape=tuple(value.meta.shape[dim] for dim in permutation))
        return self._emitter.tensor_op("torch.aten.permute", [value, self._emitter.int_list(permutation)], meta)

    # Nodes

    def _node(self, index: int, node: torch._C.Node) -> None:
        if any(True for _ in node.blocks()):
            raise CompileError("control flow is not supported in a group")
        if node.kind() == "prim::Constant":
            self._constant(index, node)
        elif node.kind() in _CONSTRUCTS:
            self._values[node.output().debugName()] = [self._operand(value) for value in node.inputs()]
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
        value = as_tensor(self._emitter, self._operand(node.input()))
        assert isinstance(value, Value)
        assert value.meta is not None
        metas = [self._meta(output) for output in node.outputs()]
        self._define(node, split_along(self._emitter, value, node.i("dim") % len(value.meta.shape), metas))

    def _call(self, node: torch._C.Node) -> None:
        outputs = list(node.outputs())
        if node.kind() in _METADATA:
            self._define(node, [self._seen(output) for output in outputs])
            return
        operands = [self._operand(value) for value in node.inputs()]
        if _is_known(operands) and not any(_holds_tensor(output) for output in outputs):
            self._define(node, [self._seen(output) for output in outputs])
        elif len(outputs) == 1 and (number := self._number(node, operands)) is not None:
            self._define(node, [number])
        elif any(not _holds_tensor(output) and not isinstance(self._seen(output), float) for output in outputs):
            raise CompileError("it makes a number from data that is known only at run time")
        else:
            metas = [self._seen(output) for output in outputs]
            self._define(node, translate(self._emitter, _schema(node), operands, metas))

    def _number(self, node: torch._C.Node, operands: Sequence[Operand]) -> NumberTensor | None:
        """The result of ``prim::NumToTensor`` and of arithmetic on its results, if it is known."""
        seen = self._seen(node.output())
        from_number = node.kind() == "prim::NumToTensor" and not isinstance(operands[0], Value)
        from_numbers = _is_known(operands) and any(isinstance(leaf, NumberTensor) for leaf in leaves(operands))
        if not from_number and not (from_numbers and (not isinstance(seen, TensorMeta) or seen.shape == ())):
            return None
        if isinstance(seen, int | float):
            return NumberTensor(seen, TensorMeta.of(torch.tensor(seen, dtype=NUMBER_DTYPES[type(seen)])))
        if from_number:
            return NumberTensor(operands[0], seen)  # type: ignore[arg-type]
        return NumberTensor(_evaluate(node, operands), seen)  # type: ignore[arg-type]

    def _define(self, node: torch._C.Node, results: object) -> None:
        outputs = list(node.outputs())
        if not isinstance(results, list | tuple) or len(results) != len(outputs):
            raise CompileError(f"{len(outputs)} results expected")
        for output, result in zip(outputs, results, strict=True):
            self._values[output.debugName()] = result

    def _operand(self, value: torch._C.Value) -> Operand:
        name = value.debugName()
        if name in self._pending:
            self._values[name] = self._argument(self._pending.pop(name), self._record[name])
        return self._values[name]

    def _seen(self, value: torch._C.Value) -> object:
        if value.debugName() not in self._record:
            raise CompileError(f"the record lacks value %{value.debugName()}")
        return self._record[value.debugName()]

    def _meta(self, value: torch._C.Value) -> TensorMeta:
        seen = self._seen(value)
        if not isinstance(seen, TensorMeta):
            raise CompileError(f"the record of value %{value.debugName()} is not a tensor's")
        return seen

    # Outputs

    def _outputs(self, inputs: Sequence[str]) -> tuple[list[tuple[Result, Value]], tuple[OutputBinding, ...]]:
        results: list[tuple[Result, Value]] = []
        outputs: dict[str, OutputBinding] = {}
        names = [value.debugName() for value in self._graph.outputs()]
        for value in self._graph.outputs():
            name = value.debugName()
            if name in inputs:
                outputs[name] = OutputBinding("input", inputs.index(name))
            elif name not in outputs:
                outputs[name] = self._output(value, results)
        return results, tuple(outputs[name] for name in names)

    def _output(self, value: torch._C.Value, results: list[tuple[Result, Value]]) -> OutputBinding:
        operand = as_tensor(self._emitter, self._operand(value))
        if not isinstance(operand, Value):
            if any(isinstance(leaf, Value) for leaf in leaves(operand)):
                raise CompileError("an output that is a list of tensors is not supported")
            return OutputBinding("constant", value=operand)
        if operand.meta is None:
            raise CompileError("an output that is a float known only at run time is not supported")
        meta = self._meta(value)
        order = exact_memory_order(meta.shape, meta.strides)
        if order is None:
            raise CompileError(f"an output with strides {list(meta.strides)} is not supported")
        physical = self._permuted(replace(operand, meta=meta), order)
        assert physical.meta is not None
        results.append((Result(dtype_name(meta.dtype), physical.meta.shape), physical))
        return OutputBinding("result", len(results) - 1, invert(order))


def _signature_order(binding: Binding) -> tuple[bool, int, int]:
    return binding.source != "input", binding.index, binding.element or 0


def _is_known(operands: Sequence[Operand]) -> bool:
    return not any(isinstance(leaf, Value) for leaf in leaves(operands))


def _holds_tensor(value: torch._C.Value) -> bool:
    type_ = value.type()
    while type_.kind() in ("ListType", "OptionalType"):
        type_ = type_.getElementType()
    return type_.kind() == "TensorType"


def _evaluate(node: torch._C.Node, operands: Sequence[Operand]) -> int | float | bool:
    """Runs a node on known 0-d tensors."""

    def tensor(operand: Operand) -> object:
        if isinstance(operand, NumberTensor):
            return torch.tensor(operand.value, dtype=operand.meta.dtype)
        return operand

    namespace, _, name = node.kind().partition("::")
    schema = _schema(node)
    overload = getattr(getattr(getattr(torch.ops, namespace), name), schema.overload_name or "default")
    arguments = [tensor(operand) for operand in operands]
    keywords = {
        argument.name: value for argument, value in zip(schema.arguments, arguments, strict=True) if argument.kwarg_only
    }
    number: int | float | bool = overload(*arguments[: len(arguments) - len(keywords)], **keywords).item()
    return number


def _schema(node: torch._C.Node) -> torch._C.FunctionSchema:
    text = node.schema()
    if text == "(no schema)":
        raise CompileError("it has no schema")
    return _parsed(text)


@lru_cache(maxsize=2048)
def _parsed(text: str) -> torch._C.FunctionSchema:
    return torch._C.parse_schema(text)


def _name(node: torch._C.Node) -> str:
    """Schema name with overload where there is a schema, else the node's kind."""
    text = node.schema()
    return node.kind() if text == "(no schema)" else text.partition("(")[0]


def _blame(error: CompileError, node: torch._C.Node, source: str) -> CompileError:
    reason = error.reason if not error.op or error.op == _name(node) else f"{error.op}: {error.reason}"
    return CompileError(reason, op=_name(node), source=source, diagnostic=error.diagnostic)

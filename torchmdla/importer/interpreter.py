"""Interpreter of TorchScript's graphs, which runs them node by node from Python."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchmdla.errors import CompileError
from torchmdla.importer.builder import blame
from torchmdla.importer.schemas import call_in_order, find_schema, overload_of
from torchmdla.importer.trace import qualified_name
from torchmdla.importer.types import dtype_number, record_value
from torchmdla.script import numbers
from torchmdla.script.ir import Block, Graph, Node, Value
from torchmdla.script.operators import OPERATORS


class Run:
    """Run of a graph, node by node. Subclasses receive every op that has tensors among its results.

    ``seen`` has the result of every value that was computed.
    """

    def __init__(self) -> None:
        self.seen: dict[Value, Any] = {}

    def run(self, graph: Graph, inputs: Sequence[Any]) -> Any:
        self.define(graph.inputs, inputs)
        return self.block(graph)

    def block(self, block: Block) -> Any:
        """Run the nodes of a block. Return its result, or a tuple if it does not have exactly one result."""
        for node in block.nodes:
            try:
                self.node(node)
            except CompileError as error:
                if error.op:
                    raise
                blamed = blame(error, node.op, node.source)
                raise type(error)(blamed.reason, op=blamed.op, source=blamed.source) from None
            except Exception as error:
                raise CompileError(str(error).partition("\n")[0], op=node.op, source=node.source) from error
        outputs = self.values(block.outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def values(self, values: Iterable[Value]) -> list[Any]:
        """Return the results of values of the graph."""
        return [self.seen[value] for value in values]

    def by_name(self) -> dict[str, Any]:
        """Return the results of all values that were computed, by the names of the values."""
        return {value.name: result for value, result in self.seen.items()}

    def define(self, values: Iterable[Value], results: Sequence[Any]) -> None:
        """Set the results of values of the graph."""
        for value, result in zip(values, results, strict=True):
            self.seen[value] = result

    def attribute(self, owner: Any, name: str) -> Any:
        """Return the attribute that ``prim::GetAttr`` reads."""
        return getattr(owner, name)

    def constant(self, node: Node) -> Any:
        """Return the content of ``prim::Constant``."""
        return node.attributes["value"]

    def number(self, value: Any) -> Any:
        """Return the number where a traced program converts ``value``. It may stay a constant tensor."""
        return value

    def call(self, schema: Any, arguments: Sequence[Any]) -> Any:
        """Return the result of an op of PyTorch's registry. ``arguments`` are in the order of ``schema``."""
        return call_in_order(overload_of(qualified_name(schema)), schema, arguments)

    def op(self, node: Node, arguments: Sequence[Any], results: list[Any]) -> None:
        """Process an op of PyTorch's registry that has been run."""

    def node(self, node: Node) -> None:
        """Run one node."""
        if node.kind in _STRUCTURE:
            self.define(node.outputs, _STRUCTURE[node.kind](self, node))
            return
        arguments = self.values(node.inputs)
        function = _function_of(node, arguments)
        if function is None:
            results = self._results(node, arguments)
            self.op(node, arguments, results)
        else:
            results = [function(*arguments)]
        self.define(node.outputs, results if node.outputs else [])

    def _results(self, node: Node, arguments: Sequence[Any]) -> list[Any]:
        """Run one overload. Return a list with one result for each output of the node."""
        schema = find_schema(node.op)
        if schema is None:
            raise CompileError("it is not supported here")
        result = self.call(schema, arguments)
        if not schema.returns:
            return []
        return list(result) if len(schema.returns) > 1 else [result]


class _EagerRun(Run):
    def number(self, value: Any) -> Any:
        return value.item()


def run_and_record(graph: Graph, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, object]]:
    """Run a graph. Return its outputs, and the record of every value that was computed."""
    run = _EagerRun()
    run.run(graph, inputs)
    return run.values(graph.outputs), {name: record_value(value) for name, value in run.by_name().items()}


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists, tuples and dictionaries."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


# Operators of the language, and those that read only the type of a tensor


def _function_of(node: Node, arguments: Sequence[Any]) -> Callable[..., Any] | None:
    """Return the Python function of an op whose results are not tensors, or None if PyTorch runs the op."""
    if any(isinstance(argument, _Symbol) for argument in arguments):
        if node.op in _SAME_NUMBER:
            place = _SAME_NUMBER[node.op]
            if place is None or arguments[place] in (None, torch.int64, dtype_number(torch.int64)):
                return lambda number, *settings: number
        elif node.kind in _OF_SYMBOLS and _has_only_numbers(arguments):
            return partial(_apply_to_symbols, _OF_SYMBOLS[node.kind])
    elif node.op in numbers.OPERATORS and tensors_in(arguments):
        return None  # A trace may have a tensor in place of a number.
    return _FUNCTIONS.get(node.op)


_Symbol = torch.SymInt | torch.SymFloat | torch.SymBool

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    # Comparisons of tensors depend on their data.
    **{op: function for op, function in OPERATORS.items() if "Tensor" not in op},
    "aten::size": lambda tensor: list(tensor.shape),
    "aten::size.int": lambda tensor, dim: tensor.shape[dim],
    "aten::dim": lambda tensor: tensor.dim(),
    "aten::numel": lambda tensor: tensor.numel(),
    "aten::len.Tensor": len,
}


def _has_only_numbers(arguments: Sequence[Any]) -> bool:
    """Return whether an op computes a number from varying sizes and constants, which may be tensors in a trace."""
    return not any(isinstance(argument, torch.Tensor) and argument.dim() for argument in arguments[:2]) and all(
        factor == 1 for factor in arguments[2:]
    )


def _apply_to_symbols(function: Callable[..., Any], *arguments: Any) -> Any:
    """Apply a function. The third operand of an addition is a factor of one."""
    return function(*(item.item() if isinstance(item, torch.Tensor) else item for item in arguments[:2]))


# Conversions that may change nothing of the tensor that tracing makes from a size, with the position of the dtype.
_SAME_NUMBER: Mapping[str, int | None] = {
    **dict.fromkeys(("aten::to.dtype", "aten::to.dtype_layout"), 1),
    "aten::to.device": 2,
    **dict.fromkeys(("aten::clone", "aten::contiguous", "aten::detach", "aten::alias"), None),
}

# TorchScript's ops on numbers that vary.
_OF_SYMBOLS: Mapping[str, Callable[..., Any]] = {
    "aten::add": operator.add,
    "aten::sub": operator.sub,
    "aten::mul": operator.mul,
    "aten::floordiv": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::div": operator.truediv,
    "aten::neg": operator.neg,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::__not__": operator.not_,
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
    "aten::floor_divide": operator.floordiv,
    "prim::min": torch.sym_min,
    "prim::max": torch.sym_max,
    "aten::Int": lambda number: number if isinstance(number, torch.SymInt) else int(number),
    "aten::Float": lambda number: number if isinstance(number, torch.SymFloat) else float(number),
    "aten::Bool": lambda number: number if isinstance(number, torch.SymBool) else bool(number),
}


def _if(run: Run, node: Node) -> list[Any]:
    (condition,) = run.values(node.inputs)
    taken = node.blocks[0 if condition else 1]
    run.block(taken)
    return run.values(taken.outputs)


def _loop(run: Run, node: Node) -> list[Any]:
    most, condition, *carried = run.values(node.inputs)
    (body,) = node.blocks
    trip = 0
    while condition and trip < most:
        run.define(body.inputs, [trip, *carried])
        run.block(body)
        condition, *carried = run.values(body.outputs)
        trip += 1
    return carried


def _raise(run: Run, node: Node) -> list[Any]:
    raise CompileError(f"the program raises: {run.values(node.inputs)[0]}")


def _subgraph(run: Run, node: Node) -> list[Any]:
    """Run a part of an optimised graph."""
    graph: Any = node.attributes["Subgraph"]
    run.define(graph.inputs, _group_inputs(run, node))
    run.block(graph)
    return run.values(graph.outputs)


def _group_inputs(run: Run, node: Node) -> list[Any]:
    """Return a group's inputs: the node's inputs, or their attributes at its paths (``src/fusion/input_paths.h``)."""
    arguments = run.values(node.inputs)
    paths: Any = node.attributes.get("paths")
    if paths is None:
        return arguments
    inputs = []
    for path in paths:
        start, *names = path.split(".")
        inputs.append(reduce(run.attribute, names, arguments[int(start)]))
    return inputs


def _number_tensor(run: Run, node: Node) -> list[Any]:
    """Convert a traced size to a tensor. A varying size stays a number, as do numbers that are computed from it."""
    arguments = run.values(node.inputs)
    if isinstance(arguments[0], torch.SymInt):
        return arguments
    results = [torch.tensor(arguments[0])]
    run.op(node, arguments, results)
    return results


def _chunk(run: Run, node: Node) -> list[Any]:
    arguments = run.values(node.inputs)
    results = list(arguments[0].chunk(node.attributes["chunks"], node.attributes["dim"]))
    run.op(node, arguments, results)
    return results


# TorchScript's nodes of the language, and its ops whose results are parts of their inputs.
_STRUCTURE: Mapping[str, Callable[[Run, Node], Sequence[Any]]] = {
    "prim::Constant": lambda run, node: [run.constant(node)],
    "prim::GetAttr": lambda run, node: [run.attribute(run.seen[node.inputs[0]], str(node.attributes["name"]))],
    "prim::ListConstruct": lambda run, node: [run.values(node.inputs)],
    "prim::TupleConstruct": lambda run, node: [tuple(run.values(node.inputs))],
    "prim::DictConstruct": lambda run, node: [
        dict(zip(*[iter(run.values(node.inputs))] * 2, strict=True))  # type: ignore[call-overload]
    ],
    "prim::ListUnpack": lambda run, node: list(run.seen[node.inputs[0]]),
    "prim::TupleUnpack": lambda run, node: list(run.seen[node.inputs[0]]),
    "prim::dtype": lambda run, node: [dtype_number(run.seen[node.inputs[0]].dtype)],
    "prim::device": lambda run, node: [run.seen[node.inputs[0]].device],
    "prim::layout": lambda run, node: [0],
    "prim::Uninitialized": lambda run, node: [None],
    "prim::NumToTensor": _number_tensor,
    **{
        f"aten::{kind}Implicit": lambda run, node: [run.number(run.seen[node.inputs[0]])]
        for kind in ("Scalar", "Int", "Float")
    },
    "prim::ConstantChunk": _chunk,
    "prim::If": _if,
    "prim::Loop": _loop,
    "prim::RaiseException": _raise,
    "prim::DifferentiableGraph": _subgraph,
    "mdla::CompilationGroup": _subgraph,
}

"""Conversion of a record with writes and views to a functional graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import get_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx

from torchmdla.capture.fx.decompositions import apply_in_order, decompositions, memory_order
from torchmdla.errors import CaptureError
from torchmdla.importer.trace import without_modes

aten = torch.ops.aten


def functionalise(record: fx.Graph, layouts: Sequence[Tensor]) -> fx.GraphModule:
    """Return ``record`` without writes, except for ``copy_`` to placeholders at its end.

    Views of values that are not written to stay.

    Args:
        record: a flat graph of ATen calls that returns a tuple.
        layouts: dtype, sizes and strides of each placeholder, on any device.

    Raises:
        CaptureError: PyTorch cannot make it functional.
    """
    table = {**decompositions(), aten.bernoulli.p: _bernoulli}
    return _trace(record, layouts, partial(functionalize, remove="mutations"), table)


def decompose_graph(graph: fx.Graph, layouts: Sequence[Tensor], is_known: Callable[[Any], bool]) -> fx.Graph:
    """Return ``graph`` with PyTorch's decompositions of the operators that are not known.

    Operators without a decomposition stay.

    Args:
        graph: a functional graph.
        layouts: as for :func:`functionalise`.
        is_known: function that returns whether an ``OpOverload`` is known.
    """
    table: dict[Any, Callable[..., Any]] = {}
    while True:
        operators = {node.target for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)}
        unknown = {operator for operator in operators if not is_known(operator)} - table.keys()
        additions = get_decompositions(list(unknown))
        if not additions:
            return graph
        table |= additions
        graph = _trace(graph, layouts, lambda run: run, table).graph


def _bernoulli(like: Tensor, p: float = 0.5, *, generator: None = None) -> Any:
    """Return random values drawn in the order of memory, as ``bernoulli_`` does.

    The functional form draws in the order of dimensions.
    """
    order = memory_order(like)
    if order == sorted(order):
        return NotImplemented
    return apply_in_order(order, lambda permuted: aten.bernoulli.p(permuted, p), like)


def _trace(
    record: fx.Graph, layouts: Sequence[Tensor], transform: Callable[..., Any], table: dict[Any, Callable[..., Any]]
) -> fx.GraphModule:
    module = fx.GraphModule(torch.nn.Module(), record)

    def run(*inputs: Tensor) -> object:
        # An interpreter copies the source location of the node that it runs to each node that it makes.
        return fx.Interpreter(module).run(*inputs)

    with without_modes(), fx_traceback.preserve_node_meta():
        with FakeTensorMode():
            inputs = [
                torch.empty_strided(layout.shape, layout.stride(), dtype=layout.dtype, device="cpu")
                for layout in layouts
            ]
        try:
            traced = make_fx(transform(run), decomposition_table=table, tracing_mode="fake")(*inputs)
        except Exception as error:
            raise CaptureError(f"PyTorch cannot make the block functional: {type(error).__name__}: {error}") from error
    traced.graph.eliminate_dead_code()
    return traced


def final_values(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Return the final value of each placeholder that is written to, in the order of the placeholders."""
    copies = graph.find_nodes(op="call_function", target=aten.copy_.default)
    values = {copy.args[0]: copy.args[1] for copy in copies}
    return {node: values[node] for node in graph.find_nodes(op="placeholder") if node in values}


def remove_writes(graph: fx.Graph) -> fx.Graph:
    """Return a copy of ``graph`` that returns its results that are not None, then the final values of placeholders."""
    finals = final_values(graph)
    new_graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op != "output" and not (node.target is aten.copy_.default and node.args[0] in finals):
            copies[node] = new_graph.node_copy(node, copies.__getitem__)
    results = [result for result in graph.output_node().args[0] if result is not None]  # type: ignore[union-attr]
    new_graph.output(tuple(copies[node] for node in [*results, *finals.values()]))  # type: ignore[index]
    return new_graph

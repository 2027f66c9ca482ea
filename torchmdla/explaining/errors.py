"""Errors of the results of operators in groups, relative to eager's results."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from torchmdla import _C
from torchmdla.api import WARM_UP_CALLS, enabled
from torchmdla.capture.fx.group import FxSubgraph, make_group
from torchmdla.capture.options import Options
from torchmdla.importer.fx import name_of_call, source_of_node
from torchmdla.importer.script_graph import convert_graph
from torchmdla.report.explanation import OpError
from torchmdla.testing.compare import assert_matches, largest_error
from torchmdla.testing.coverage import function_of


def errors_of(call: Callable[[], Any], reports: Collection[_C.GroupReport]) -> Iterator[OpError]:
    """Yield the errors of the operators of the groups that ``call`` calls, then of the call's own result.

    Each group is compiled once more, with every operator's result as a separate result. It runs on the inputs of its
    latest call.
    """
    _C.keep_inputs(True)
    try:
        actual = call()
        called = _C.groups({report["number"] for report in reports if report["compiled_calls"]})
    finally:
        _C.keep_inputs(False)
    count = 0
    for report in called:
        for error in _group_errors(report, before=count):
            count += 1
            yield error
    with enabled(False):
        expected = call()
    yield _error("the result of the model", "", "", actual, expected, max(count, 1))


def _group_errors(report: _C.GroupReport, before: int) -> Iterator[OpError]:
    subgraph, inputs = report["subgraph"], report["inputs"]
    splitter = _script_ops if isinstance(subgraph, torch._C.Graph) else _fx_ops
    ops, run = splitter(subgraph, report["device"])
    for _ in range(WARM_UP_CALLS):
        actual = run(*_copies(inputs))
    with enabled(False):
        expected = run(*_copies(inputs))
    for number, ((op, source), value, other) in enumerate(zip(ops, actual, expected, strict=True)):
        yield _error(op, source, report["name"], value, other, before + number + 1)


# Operator and line of each result, and the function that computes the results.
_All = tuple[list[tuple[str, str]], Callable[..., Sequence[Any]]]


def _script_ops(graph: torch._C.Graph, device: str) -> _All:
    copy: Any = graph.copy()
    results = [
        (node, value)
        for node, original in zip(convert_graph(copy).nodes, copy.nodes(), strict=True)
        for value in original.outputs()
        if not node.op.startswith("prim::") and isinstance(value.type(), torch._C.TensorType)
    ]
    return [(node.op, node.source) for node, _ in results], function_of(copy, [value for _, value in results])


def _fx_ops(subgraph: FxSubgraph, device: str) -> _All:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(subgraph.module.graph, copies)
    nodes = [node for node in copies if node.op == "call_function" and isinstance(node.meta.get("val"), Tensor)]
    graph.output(tuple(copies[node] for node in nodes))
    group = make_group(FxSubgraph(subgraph.module, graph), "mdla_compared", Options(device=device), ())
    return [(name_of_call(node), source_of_node(node)) for node in nodes], group


def _copies(values: Sequence[Any]) -> list[Any]:
    """Return copies of tensors, because in-place operators write to the group's inputs."""
    return [value.clone() if isinstance(value, Tensor) else value for value in values]


def _error(op: str, source: str, group: str, actual: Any, expected: Any, layers: int) -> OpError:
    difference = ""
    error: float | None = None
    try:
        largest = largest_error(actual, expected)
        error = largest if math.isfinite(largest) else None
        assert_matches(actual, expected, layers=layers, strides=False)
    except AssertionError as problem:
        difference = str(problem)
    return OpError(op, source, group, error, difference)

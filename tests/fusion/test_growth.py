"""The cost of the passes that form groups: it is proportional to the program's size.

The tests count steps, and do not measure time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from counting import MOST, calls_of
from torch import fx

from torchmdla import _C, devices
from torchmdla.capture.fx.partition import partition

aten = torch.ops.aten


def scripted(lines: list[str], result: str = "x * 2 + 1") -> Callable[[torch.Tensor, bool], object]:
    """Return a function of these lines, which fails after the pass, before it runs any of them."""
    body = "".join(f"    {line}\n" for line in ["assert not fails", *lines, f"return {result}"])
    function = torch.jit.CompilationUnit(f"def f(x, fails: bool):\n{body}").f
    return function  # type: ignore[no-any-return]


def visits(lines: list[str], result: str) -> int:
    """Return how many values the pass visits in a function of these lines."""
    function = scripted(lines, result)
    before = _C.values_visited()
    with torch.no_grad(), pytest.raises(torch.jit.Error):
        function(torch.ones(8), True)
    return _C.values_visited() - before


# Functions of a count that return the lines, and the expression that the function returns.
SCRIPTS: dict[str, Callable[[int], tuple[list[str], str]]] = {
    "writes to an input": lambda n: ([f"x[{i % 8}] += x[{(i + 1) % 8}] * {i}.5" for i in range(n)], "x * 2 + 1"),
    "writes to new tensors": lambda n: (
        ["y = x * 2", *(f"y.mul_({i}.5)\n    z{i} = y + {i}" for i in range(n))],
        "y * 2 + 1",
    ),
    "writes to many tensors": lambda n: (
        [f"y{i} = x.clone()\n    v{i} = y{i}[0:2]\n    y{i}.add_(1)" for i in range(n)],
        " + ".join(f"v{i}" for i in range(n)),
    ),
    "random numbers": lambda n: (
        ["y = x", *(f"y = torch.relu(torch.bernoulli(y)) * {i}.5" for i in range(n))],
        "y * 2 + 1",
    ),
    "views of views": lambda n: (["y = x", *("y = y.unsqueeze(0).squeeze(0)" for _ in range(n))], "y * 2, y"),
    "views with many users": lambda n: (
        ["y = x", *(f"y = y.t()\n    z{i} = torch.special.i0e(y * {i} + 1)" for i in range(n))],
        "y * 2, y",
    ),
    "appends": lambda n: (["a = [x]", *(f"a.append(x * {i} + 1)" for i in range(n))], "torch.cat(a)"),
    "integers": lambda n: (["m = x.size(0)", "n = m", *("m, n = n, m + n" for _ in range(n))], "x * n + 1"),
}


@pytest.mark.parametrize("shape", SCRIPTS)
def test_the_pass_visits_values_in_proportion(shape: str) -> None:
    short, long = (visits(*SCRIPTS[shape](n)) for n in (100, 200))
    assert long <= MOST * short


# Programs with 2 to the power of n paths in n lines: a walk must not visit a value once per path.
PATHS = {
    "integers": ["m = x.size(0)", "n = m", *("m, n = n, m + n" for _ in range(200)), "x = (x * n + 1).relu()"],
    "numbers": ["m = float(x.size(0))", *("m = m * m" for _ in range(200)), "x = (x * m + 1).relu()"],
    "integers of a loop": [
        "for i in range(2):\n        m = i\n        n = i",
        *("    m, n = n, m + n" for _ in range(200)),
        "    x = (x * n + 1).relu()",
    ],
}


@pytest.mark.parametrize("lines", PATHS.values(), ids=PATHS)
def test_the_pass_takes_no_path_twice(lines: list[str]) -> None:
    with torch.no_grad(), pytest.raises(torch.jit.Error):
        scripted(lines)(torch.ones(8), True)


def test_attributes_are_followed_once() -> None:
    """The decisions that depend on attributes are also computed once per value."""
    lines = ["n = 2 if self.training else 3", *("n = n + n" for _ in range(200)), "x = x * 2 if n > 3 else x + 1"]
    module = type("Program", (torch.nn.Module,), {})()
    compiled = torch.jit.script(module)
    body = "".join(f"    {line}\n" for line in ["assert not fails", *lines, "return x * 2 + 1"])
    compiled.define(f"def forward(self, x: Tensor, fails: bool):\n{body}")
    with torch.no_grad(), pytest.raises(torch.jit.Error):
        compiled(torch.ones(8), True)


def graph_of(add: Callable[[fx.Graph, fx.Node, int], fx.Node], count: int) -> fx.Graph:
    """Return a graph in which ``add`` adds its nodes to an input, ``count`` times."""
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = torch.empty(4, 4)
    for i in range(count):
        node = add(graph, node, i)
    graph.output((node,))
    return graph


def call(graph: fx.Graph, target: object, *arguments: object, value: object = None) -> fx.Node:
    """Return a new call. Its value is a tensor by default."""
    node = graph.call_function(target, arguments)  # type: ignore[arg-type]
    node.meta["val"] = torch.empty(4, 4) if value is None else value
    return node


def add_draw(graph: fx.Graph, node: fx.Node, _: int) -> fx.Node:
    return call(graph, aten.mul.Scalar, call(graph, aten.bernoulli.p, call(graph, aten.relu.default, node), 0.5), 2.0)


def add_write(graph: fx.Graph, node: fx.Node, _: int) -> fx.Node:
    view = call(graph, aten.select.int, node, 0, 0, value=torch.empty(4))
    call(graph, aten.add_.Scalar, view, 1.5, value=torch.empty(4))
    return node


def add_view(graph: fx.Graph, node: fx.Node, _: int) -> fx.Node:
    view = call(graph, aten.t.default, node)
    call(graph, aten.special_i0e.default, call(graph, aten.mul.Scalar, view, 2.0))
    return view


def add_sum(graph: fx.Graph, node: fx.Node, i: int) -> fx.Node:
    """Add an integer that is the sum of the last two, and an operator that uses it."""
    x = next(iter(graph.nodes))
    last = node if i else call(graph, aten.sym_size.int, x, 0, value=4)
    total = call(graph, operator.add, last, last.args[0] if i else last, value=4)
    call(graph, aten.mul.Scalar, x, total)
    return total


GRAPHS = {"random numbers": add_draw, "writes": add_write, "views": add_view, "integers": add_sum}


@pytest.mark.parametrize("shape", GRAPHS)
def test_partitioning_calls_in_proportion(shape: str) -> None:
    device = devices.get("cpu")
    short, long = (graph_of(GRAPHS[shape], n) for n in (100, 200))
    partition(short, device)  # fill caches first
    counts = [calls_of(lambda graph=graph: partition(graph, device)) for graph in (short, long)]  # type: ignore[misc]
    assert counts[1] <= MOST * counts[0]

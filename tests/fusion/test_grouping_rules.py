"""Rules of grouping that both kinds of graphs share.

TorchScript graphs are grouped by ``src/fusion/fusion_pass.cpp``, and FX graphs by ``capture/fx/partition.py``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from graphs import groups as script_groups
from graphs import nodes, warmed_up
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import torchmdla
from torchmdla import _C
from torchmdla.capture.fx.graph import form_groups
from torchmdla.capture.fx.graph import groups as fx_groups
from torchmdla.capture.options import Options
from torchmdla.importer.fx import name_of_call
from torchmdla.testing.compare import assert_matches

Groups = list[list[str]]


@dataclass(frozen=True)
class Grouped:
    """A function with groups, and the names of the operators of each group and of those outside."""

    function: Callable[..., Any]
    inside: Groups
    outside: list[str]


def _names(qualified: Any) -> list[str]:
    """Return sorted names without namespaces and overloads, and without the unpacking of lists."""
    names = [name.removeprefix("aten::").partition(".")[0] for name in qualified if name.startswith("aten::")]
    return sorted(names)


def torchscript(function: Callable[..., Any], x: Tensor) -> Grouped:
    traced = warmed_up(torch.jit.trace(function, x.clone(), check_trace=False), x.clone())
    graph = torchmdla.graph_for(traced, x.clone())
    inside = [_names(node.kind() for node in nodes(group)) for group in script_groups(graph)]
    return Grouped(traced, inside, _names(node.kind() for node in nodes(graph)))


def fx(function: Callable[..., Any], x: Tensor) -> Grouped:
    module = form_groups(make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(x), (), Options())
    inside = [_names(map(name_of_call, group.subgraph.module.graph.nodes)) for group in fx_groups(module)]
    rest = [
        node
        for node in module.graph.nodes
        if not isinstance(node.target, _C.Group) and node.target is not operator.getitem
    ]
    return Grouped(module, inside, _names(map(name_of_call, rest)))


def chain(x: Tensor) -> Tensor:
    return torch.tanh(x + 1).mul(2).sigmoid()


def one_anchor(x: Tensor) -> Tensor:
    return torch.mm(x, x)


def untaken_in_the_middle(x: Tensor) -> Tensor:
    y = torch.tanh(x) * 2
    return torch.sigmoid(torch.special.i0e(y)) + y


def beside(x: Tensor) -> Any:
    """Return results of two chains in one group: the second does not depend on the unsupported operator."""
    y = torch.relu(x) + 1
    z = torch.bernoulli(x)
    return y, z, torch.exp(x) * 2


def around_an_untaken_one(x: Tensor) -> Tensor:
    a = torch.tanh(x) + 1
    b = torch.special.i0e(a)
    c = torch.sigmoid(x) * 2  # does not depend on b, so it is in a's group
    return torch.relu(b * c) + a


def view_that_leaves(x: Tensor) -> Any:
    y = torch.relu(x) + 1
    return y.t(), y.t().exp()


def view_of_an_earlier_level(x: Tensor) -> Tensor:
    y = torch.special.i0e(torch.tanh(x) * 2)
    return torch.relu(torch.mm(y, x.t())) + 1  # the transpose itself depends on no group


def random_between(x: Tensor) -> Tensor:
    y = torch.relu(x) + 1
    return torch.bernoulli(y.sigmoid()) * y.exp() + 2


def written_between(x: Tensor) -> Any:
    before = torch.relu(x) + 1
    x.copy_(before)
    return (torch.relu(x) + 1) * 2


def several_results(x: Tensor) -> Any:
    values, _ = torch.max(x, 1)
    normed, mean, _ = torch.native_layer_norm(x, [4], None, None, 1e-5)
    return values, normed, mean


def pieces(x: Tensor) -> Any:
    return [piece.exp() * 2 for piece in x.split(2)]


# Functions, the operators of each group, and the operators outside.
RULES: list[tuple[Callable[..., Any], Groups, list[str]]] = [
    (chain, [["add", "mul", "sigmoid", "tanh"]], []),
    (torch.relu, [], ["relu"]),
    (one_anchor, [["mm"]], []),
    (untaken_in_the_middle, [["mul", "tanh"], ["add", "sigmoid"]], ["special_i0e"]),
    (beside, [["add", "exp", "mul", "relu"]], ["bernoulli"]),
    (around_an_untaken_one, [["add", "mul", "sigmoid", "tanh"], ["add", "mul", "relu"]], ["special_i0e"]),
    (view_that_leaves, [["add", "exp", "relu", "t"]], ["t"]),
    (view_of_an_earlier_level, [["mul", "tanh"], ["add", "mm", "relu", "t"]], ["special_i0e"]),
    (random_between, [["add", "exp", "relu", "sigmoid"], ["add", "mul"]], ["bernoulli"]),
    (written_between, [["add", "relu"], ["add", "mul", "relu"]], ["copy_"]),
    (several_results, [["max", "native_layer_norm"]], []),
    (pieces, [["exp", "exp", "mul", "mul", "split"]], []),
]


@pytest.mark.parametrize("graph", [torchscript, fx])
@pytest.mark.parametrize(("function", "inside", "outside"), RULES, ids=[rule[0].__name__ for rule in RULES])
def test_rules(graph: Any, function: Any, inside: Groups, outside: list[str]) -> None:
    with torch.no_grad():
        result = graph(function, torch.rand(4, 4))
        assert (result.inside, result.outside) == (inside, outside)
        for seed in range(2):
            x = torch.rand(4, 4)
            first, other = x.clone(), x.clone()
            torch.manual_seed(seed)
            results = result.function(first)
            torch.manual_seed(seed)
            assert_matches(results, function(other))
            assert_matches(first, other)

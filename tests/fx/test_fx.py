"""Groups of FX graphs: their nodes, the cost of a call, and the source locations of errors.

The rules of all graphs are in ``tests/fusion/test_grouping_rules.py``.
"""

from __future__ import annotations

import gc
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

import torchmdla
from torchmdla import _C
from torchmdla.capture.fx.graph import form_groups, groups
from torchmdla.capture.fx.group import FxSubgraph
from torchmdla.capture.fx.normalise import merge_equal_calls
from torchmdla.capture.options import Options
from torchmdla.errors import CompileError
from torchmdla.importer.fx import import_fx, name_of_call
from torchmdla.testing.compare import assert_matches

X = torch.randn(4, 6)


def grouped(function: Callable[..., Any], *inputs: Any, symbolic: bool = False) -> fx.GraphModule:
    """Return the graph of ``function`` below autograd, with groups."""
    mode = "symbolic" if symbolic else "fake"
    with torch.no_grad():
        return form_groups(make_fx(function, tracing_mode=mode, _allow_non_fake_inputs=True)(*inputs), (), Options())


def ops(module: fx.GraphModule) -> list[str]:
    """Return the operators of a flat graph, without namespaces and overloads."""
    return [
        name_of_call(node).partition(".")[0].removeprefix("aten::")
        for node in module.graph.nodes
        if node.op not in ("placeholder", "output")
    ]


def inside(module: fx.GraphModule) -> list[list[str]]:
    """Return the operators of each group."""
    return [ops(group.subgraph.module) for group in groups(module)]


def outside(module: fx.GraphModule) -> list[str]:
    return [
        node.target.__name__
        for node in module.graph.nodes
        if node.op == "call_function" and not isinstance(node.target, _C.Group) and node.target is not operator.getitem
    ]


def written_between(x: Tensor) -> Tensor:
    before = x.sin()
    x.copy_(before)
    return before + x.sin()


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: x.sin() * x.sin(), 2),
        (lambda x: x.sin().cos() * x.sin().cos().neg(), 4),
        (lambda x: torch.cat([x, x]) + torch.cat([x, x]), 2),
        (lambda x: x.unbind()[0] + x.unbind()[0], 6),
        (lambda x: (x.sin(), x.sin()), 2),
        (lambda x: (x * 1) + (x * 1.0), 3),
        (lambda x: (x * 0.0) + (x * -0.0), 3),
        (lambda x: torch.rand_like(x) + torch.rand_like(x), 3),
        (written_between, 4),
    ],
)
def test_equal_calls_become_one(function: Callable[..., Any], count: int) -> None:
    module = make_fx(function, tracing_mode="fake")(X)
    merge_equal_calls(module.graph)
    module.graph.lint()
    module.recompile()
    assert sum(node.op == "call_function" for node in module.graph.nodes) == count
    results = []
    for run in (module, function):
        torch.manual_seed(0)
        results.append(run(X.clone()))
    assert_matches(*results)


def dtype_between(x: Tensor) -> Tensor:
    y = torch.relu(x) * 2
    return y.to(torch.complex64).abs().exp() * 2 + y


def norm_that_writes(x: Tensor) -> Any:
    """Return results that do not share memory with the statistics that the operator writes."""
    statistics = torch.zeros(6), torch.ones(6)
    normed = torch.ops.aten._native_batch_norm_legit(x, None, None, *statistics, True, 0.1, 1e-5)[0]
    return normed.t().exp() * 2


RULES: dict[str, tuple[Callable[..., Any], list[list[str]], list[str]]] = {
    "views alone do not pay": (lambda x: x.t().reshape(-1), [], ["t.default", "clone.default", "view.default"]),
    "a dtype that is not taken": (
        dtype_between,
        [["relu", "mul"], ["exp", "mul", "add"]],
        ["_to_copy.default", "abs.default"],
    ),
    "views of what a writing operator makes": (
        norm_that_writes,
        [["zeros", "ones"], ["t", "exp", "mul"]],
        ["_native_batch_norm_legit.default"],
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_rules(name: str) -> None:
    function, wanted, rest = RULES[name]
    module = grouped(function, X.clone().abs().clamp(0, 1))
    assert [sorted(ops) for ops in inside(module)] == [sorted(ops) for ops in wanted]
    assert outside(module) == rest
    x = torch.rand(4, 6)
    with torch.no_grad():
        assert_matches(module(x), function(x))


def test_sizes_are_computed_inside_and_outside() -> None:
    def function(x: Tensor) -> Any:
        rows = x.size(0)
        return (x.relu() + rows).view(rows * 2, -1).exp() / rows, rows * 2

    module = grouped(function, X, symbolic=True)
    assert len(groups(module)) == 1
    with torch.no_grad():
        for rows in (4, 5, 6, 7, 4):
            x = torch.randn(rows, 6)
            assert_matches(module(x), function(x))
    assert not torchmdla.stats().fallbacks


def test_constants_without_dimensions_are_known() -> None:
    constant = torch.tensor(0.5)
    module = grouped(lambda x: torch.relu(x * constant) + 1, X)
    (group,) = groups(module)
    assert len(group.subgraph.module.graph.find_nodes(op="placeholder")) == 1
    assert_matches(module(X), torch.relu(X * 0.5) + 1)


# --- the group itself --------------------------------------------------------------------------------------------


def subgraph_of(function: Callable[..., Sequence[Tensor]], *inputs: Any) -> FxSubgraph:
    traced = make_fx(function, tracing_mode="fake")(*inputs)
    traced.graph.output_node().args = (tuple(traced.graph.output_node().args[0]),)
    return FxSubgraph(traced, traced.graph)


def test_a_group_is_called_with_its_inputs() -> None:
    group = _C.Group(subgraph_of(lambda x, y: (x.relu() + y,), X, X), "a_name", "cpu", [1], 2)
    assert (group.__name__, group.parameters) == ("a_name", [1])
    for _ in range(3):
        (result,) = group(X, X)
        assert_matches(result, X.relu() + X)
    inputs = [X, X]
    (result,) = group(inputs=inputs)
    assert_matches(result, X.relu() + X)
    assert inputs == []
    with pytest.raises(TypeError, match="a_name takes 2 inputs by position or as a list, got 1"):
        group(X)
    with pytest.raises(TypeError, match="a_name takes 2 inputs by position or as a list, got 3"):
        group(inputs=[X, X, X])
    with pytest.raises(TypeError, match="dict"):
        group(X, {})
    assert torchmdla.stats().specialisations == 1


def test_a_group_falls_back_to_eager_for_unsupported_inputs() -> None:
    group = _C.Group(subgraph_of(lambda x: (x.relu() + 1,), X), "group", "cpu", [], 1)
    x = torch.randn(4, 6, requires_grad=True)
    (result,) = group(x)
    result.sum().backward()
    assert_matches(x.grad, (x > 0).float())
    with torch._subclasses.FakeTensorMode() as mode:
        (fake,) = group(mode.from_tensor(X))
        assert isinstance(fake, torch._subclasses.FakeTensor)
    assert sum(torchmdla.stats().fallbacks.values()) == 1  # of the fake tensor


def test_errors_keep_their_class() -> None:
    group = _C.Group(subgraph_of(lambda x, y: (x @ y + 1,), X, X.t()), "group", "cpu", [], 2)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        group(X, X)
    stopped = FxSubgraph(torch.nn.Module(), group.subgraph.module.graph)
    stopped.run_and_record = lambda *_: exec("raise KeyboardInterrupt")  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        _C.Group(stopped, "group", "cpu", [], 2)(X, X.t())


def test_a_program_lets_go_of_its_groups() -> None:
    module = grouped(lambda x: torch.relu(x) + 1, X)
    module(X)
    watched = weakref.ref(groups(module)[0].subgraph)
    del module
    gc.collect()
    assert watched() is None


# --- the importer ------------------------------------------------------------------------------------------------


def test_errors_say_where() -> None:
    def function(x: Tensor) -> Sequence[Tensor]:
        return (torch.bernoulli(x.relu()),)

    subgraph = subgraph_of(function, X)
    (node,) = [node for node in subgraph.module.graph.nodes if "bernoulli" in str(node.target)]
    node.meta["stack_trace"] = f'  File "{__file__}", line 7, in function\n    torch.bernoulli(x)'
    record = subgraph.run_and_record(X.abs().clamp(0, 1))[1]
    record = {**record, node.name: 0.5}
    with pytest.raises(CompileError, match="known only at run time") as caught:
        import_fx(subgraph.module.graph, record, ())
    assert caught.value.op == "aten::bernoulli"
    assert caught.value.source == f"{__file__}:7"


def test_a_value_without_record_is_named() -> None:
    subgraph = subgraph_of(lambda x: (x.relu() + 1,), X)
    record = dict(subgraph.run_and_record(X)[1])
    del record["add"]
    with pytest.raises(CompileError, match="lacks value %add"):
        import_fx(subgraph.module.graph, record, ())


def test_the_variance_of_nothing_is_eagers() -> None:
    empty = torch.empty(0, 5)
    group = _C.Group(subgraph_of(lambda x: torch.var_mean(x), empty), "group", "cpu", [], 1)
    for _ in range(2):
        assert_matches(group(empty), torch.var_mean(empty))

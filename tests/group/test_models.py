"""Whole models: their grouping, no fallbacks, and eager's results."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

import torchmdla
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.coverage import GROUP, blocks, count_ops, groups
from torchmdla.testing.models import MODELS, ModelSpec

# The profiling executor watches the first call and optimises at the second. The group records at its first call, and
# compiles.
WARM_UP_CALLS = 3


def capture(module: nn.Module, how: str, frozen: bool, inputs: tuple[torch.Tensor, ...]) -> Any:
    """Return ``module`` as TorchScript. A trace is not checked by running it, so the test's calls are the first."""
    scripted = torch.jit.script(module) if how == "script" else torch.jit.trace(module, inputs, check_trace=False)
    return torch.jit.freeze(scripted) if frozen else scripted


def check_calls(scripted: Any, module: nn.Module, spec: ModelSpec, batch: int, size: int, calls: int) -> None:
    for call in range(calls):
        inputs = spec.inputs(batch, size, seed=call)
        assert_matches(scripted(*inputs), module(*inputs), layers=spec.layers)


def dividers(block: Any) -> int:
    """Return how many nodes of ``block`` cannot be in a group: control flow, and ops with a training flag.

    The latter are the norms, dropouts and recurrent layers of a scripted module that is not frozen. An input of the
    graph decides whether they train.
    """
    count = 0
    for node in block.nodes():
        arguments = (
            [argument.name for argument in torch._C.parse_schema(node.schema()).arguments] if is_op(node) else []
        )
        flags = [value for value, name in zip(node.inputs(), arguments, strict=False) if name in ("train", "training")]
        varies = any(flag.node().kind() != "prim::Constant" for flag in flags)
        count += varies or node.kind() in ("prim::If", "prim::Loop")
    return count


def is_op(node: Any) -> bool:
    return bool(node.kind().startswith("aten::"))


def check_grouping(graph: Any) -> None:
    """Check for at most one group per stretch of a block between nodes that cannot be in a group.

    A graph without a group must have such a node.
    """
    assert groups(graph) or any(dividers(block) for block in blocks(graph)), f"no group in\n{graph}"
    for block in blocks(graph):
        count = sum(node.kind() == GROUP for node in block.nodes())
        assert count <= 1 + dividers(block), f"a split group in\n{graph}"


def check_one_group(graph: Any) -> None:
    assert len(groups(graph)) == 1, graph
    inside, all_ops = count_ops(graph)
    assert inside == all_ops, graph


# The two most different captures of each model. Some models are captured in all four: together they have most kinds of
# layers.
VARIANTS = [
    pytest.param(name, how, frozen, id=f"{name}-{how}-{'frozen' if frozen else 'unfrozen'}")
    for name in MODELS
    for how, frozen in itertools.product(("trace", "script"), (False, True))
    if frozen == (how == "trace") or name in ("resnet18", "bert", "lstm")
]


@pytest.mark.parametrize(("name", "how", "frozen"), VARIANTS)
@pytest.mark.sampled(0)
def test_model(name: str, how: str, frozen: bool) -> None:
    spec = MODELS[name].reduced()
    if how == "script" and not spec.scriptable:
        pytest.skip("cannot be scripted")
    module = spec.build()
    scripted = capture(module, how, frozen, spec.inputs())
    with torch.no_grad():
        check_calls(scripted, module, spec, spec.batch, spec.sizes[0], WARM_UP_CALLS)
        graph = torchmdla.graph_for(scripted, *spec.inputs())
        check_grouping(graph)
        if how == "trace" and frozen:
            check_one_group(graph)
        first = torchmdla.stats()
        # Every group was compiled, except those in branches that no call has taken.
        branches = any(True for node in graph.nodes() for _ in node.blocks())
        assert first.specialisations >= (1 if branches else first.groups)
        # The same group is specialised again for new sizes.
        check_calls(scripted, module, spec, spec.batch + 1, spec.sizes[0], 2)
        check_calls(scripted, module, spec, spec.batch, spec.sizes[-1], 2)
        second = torchmdla.stats()
        assert second.groups == first.groups
        assert second.specialisations >= 2 * first.specialisations
        assert not second.fallbacks


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
def test_full_size_model(name: str) -> None:
    spec = MODELS[name]
    module = spec.build()
    scripted = capture(module, "trace", True, spec.inputs())
    with torch.no_grad():
        check_calls(scripted, module, spec, spec.batch, spec.sizes[0], WARM_UP_CALLS)
    assert torchmdla.stats().groups >= 1
    assert not torchmdla.stats().fallbacks


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(2)
def test_models_are_fit_to_compare_with(name: str) -> None:
    """The same seed creates the same weights, and outputs are in a range in which errors are visible."""
    spec = MODELS[name].reduced()
    module, again = spec.build(), spec.build()
    for value, other in zip(module.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(value, other)
    with torch.no_grad():
        for size in spec.sizes:
            outputs = module(*spec.inputs(spec.batch, size, seed=1))
            for output in outputs if isinstance(outputs, tuple) else (outputs,):
                assert 0.01 < float(output.abs().max()) < 100
                assert float(output.std()) > 0.001

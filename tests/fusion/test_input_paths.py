"""Attributes of modules that are not frozen: groups read them in each call, if the graph never sets them."""

from __future__ import annotations

import copy
import functools
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import groups, warmed_up
from torch import Tensor, nn

import torchmdla
from torchmdla.testing import coverage
from torchmdla.testing.compare import assert_matches


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))])
        self.last = nn.Linear(4, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.last(x)


class SharedWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.inner(torch.relu(self.inner(x))))


class InLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(x.size(0))):
            x = torch.relu(self.inner(x)) + 1.0
        return x


class Setting(nn.Module):
    """A module that replaces its scale by another tensor between two uses."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.inner(x) * self.scale)
        self.scale = self.scale + 1.0
        return torch.relu(self.inner(y) * self.scale)


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.jit.Attribute([torch.randn(4, 4), torch.randn(4, 4)], typing.List[Tensor])  # noqa: UP006

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.weights[0]) @ self.weights[1]


def batch() -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def traced(module: nn.Module) -> Any:
    return torch.jit.trace(module, batch(), check_trace=False)


VARIANTS: dict[str, Callable[[nn.Module], Any]] = {"traced": traced, "scripted": torch.jit.script}


def group_of(program: Any) -> Any:
    (node,) = coverage.groups(torchmdla.graph_for(warmed_up(program, batch()), batch()))
    return node


@pytest.mark.parametrize("way", VARIANTS)
def test_a_group_is_given_the_module(way):
    module = Layers().eval()
    with torch.no_grad():
        node = group_of(VARIANTS[way](module))
    kinds = [str(value.type()) for value in node.inputs()]
    assert len([kind for kind in kinds if kind == "Tensor"]) == 1, kinds
    assert {"1.last.weight", "1.blocks.1.1.running_var"} <= set(node.ss("paths"))
    assert len(node.ss("paths")) == len(list(node.g("Subgraph").inputs()))


@pytest.mark.parametrize("way", VARIANTS)
@pytest.mark.parametrize("make", [Layers, SharedWeight, InLoop])
def test_attributes_are_read_in_each_call(way, make):
    if (way, make) == ("traced", InLoop):
        pytest.skip("tracing writes the loop out")
    module = make().eval()
    program = VARIANTS[way](copy.deepcopy(module))
    with torch.no_grad():
        warmed_up(program, batch())
        for number in range(3):
            for name, parameter in module.named_parameters():
                owner, _, last = name.rpartition(".")
                value = nn.Parameter(torch.full_like(parameter, 0.1 * (number + 1)))
                for each in (module, program):
                    setattr(functools.reduce(getattr, owner.split("."), each), last, value)
            assert_matches(program(batch()), module(batch()), layers=4)
    assert not torchmdla.stats().fallbacks


def test_attributes_that_the_graph_sets_are_read_by_the_graph():
    module = Setting()
    program = torch.jit.script(copy.deepcopy(module))
    with torch.no_grad():
        for _ in range(6):
            assert_matches(program(batch()), module(batch()), layers=4)
            assert_matches(program.scale, module.scale, layers=1)
        graph = torchmdla.graph_for(program, batch())
    assert groups(graph)
    for node in coverage.groups(graph):
        paths = node.ss("paths") if node.hasAttribute("paths") else []
        assert not [path for path in paths if path.endswith("scale")]


def test_lists_of_tensors():
    module = Lists()
    program = torch.jit.script(module)
    with torch.no_grad():
        node = group_of(program)
        assert "0.weights" in node.ss("paths")
        first, other = program.weights
        assert_matches(program(batch()), torch.relu(batch() @ first) @ other, layers=2)


def test_modes_are_read_where_they_decide():
    module = Layers()
    program = torch.jit.script(copy.deepcopy(module))
    with torch.no_grad():
        for training in (False, True, False, True, True, False):
            module.train(training)
            program.train(training)
            assert_matches(program(batch()), module(batch()), layers=4)
            for buffer, other in zip(module.buffers(), program.buffers(), strict=True):
                assert_matches(other, buffer, layers=4)


def test_gradients_reach_attributes():
    module = Layers().train()
    program = torch.jit.script(copy.deepcopy(module))
    with torch.no_grad():
        warmed_up(program, batch())
        warmed_up(module, batch())
    module.load_state_dict(program.state_dict())
    for each in (module, program):
        each(batch()).sum().backward()
    for parameter, other in zip(module.parameters(), program.parameters(), strict=True):
        assert_matches(other.grad, parameter.grad, layers=8)

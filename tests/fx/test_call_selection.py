"""Calls that a device refuses by their types and constants, before groups are formed where these are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fragile_device import PickyDevice
from torch import Tensor, nn

import torchmdla
from torchmdla import devices
from torchmdla.capture import refusals
from torchmdla.devices import TensorType
from torchmdla.errors import CompileError
from torchmdla.testing.compare import assert_matches

pytestmark = pytest.mark.usefixtures("without_gradients")

X = torch.randn(8, 6)


@pytest.fixture(autouse=True)
def picky() -> Iterator[None]:
    devices.register(PickyDevice())
    torchmdla.enable(device="picky")
    yield
    torchmdla.enable()


class Around(nn.Module):
    """An op between pairs of others."""

    def __init__(self, op: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.op = op

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.op(torch.sin(x) * 2)) + 1


# The op, an operand that the device takes, one that it refuses, and the reason.
CASES: dict[str, tuple[Callable[[Tensor], Tensor], Tensor, Tensor, str]] = {
    "shape": (torch.tanh, X, torch.randn(8, 5), "aten::tanh: device 'picky' does not take it: an odd width"),
    "strides": (torch.exp, X, X.t(), "aten::exp: device 'picky' does not take it: strides [1, 6]"),
    "constant": (
        lambda x: torch.nn.functional.leaky_relu(x, 0.5),
        X,
        X,
        "aten::leaky_relu: device 'picky' does not take it: a slope of 0.5",
    ),
    "fault": (torch.erf, X, X, "aten::erf: device 'picky' does not take it: its refusal() raised KeyError: 'no table'"),
}

FRONTENDS: dict[str, Callable[[nn.Module, Tensor], Callable[..., Any]]] = {
    "dynamo": lambda function, x: torch.compile(function, backend="torchmdla", dynamic=False),
    "export": lambda function, x: torchmdla.compile(function, x, frontend="export"),
}


@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize("name", CASES)
def test_no_group_is_formed_with_a_refused_call(name: str, frontend: str) -> None:
    op, _, x, reason = CASES[name]
    function = Around(op)
    compiled = FRONTENDS[frontend](function, x)
    assert_matches(compiled(x), function(x))
    stats = torchmdla.stats()
    assert (stats.groups, stats.specialisations, stats.left_out) == (2, 2, {})
    assert [row for row in stats.ungrouped if row.startswith(reason)], stats.ungrouped


@pytest.mark.parametrize("name", ["shape", "strides"])
def test_other_types_are_taken(name: str) -> None:
    op, x, _, _ = CASES[name]
    function = Around(op)
    assert_matches(FRONTENDS["dynamo"](function, x)(x), function(x))
    stats = torchmdla.stats()
    assert (stats.groups, stats.specialisations, stats.ungrouped) == (1, 1, {})


def test_sizes_that_vary_are_asked_in_the_first_call() -> None:
    function = Around(torch.tanh)
    compiled = torch.compile(function, backend="torchmdla", dynamic=True)
    x = torch.randn(8, 5)
    refusals.call_until_compiled(lambda: compiled(x))
    assert_matches(compiled(x), function(x))
    assert ["an odd width" in row for row in torchmdla.stats().left_out] == [True]


def test_scripted_programs_are_divided_after_the_first_run() -> None:
    function = Around(torch.tanh)
    x = torch.randn(8, 5)
    compiled = torchmdla.compile(function, x)
    assert_matches(compiled(x), function(x))
    assert ["an odd width" in row for row in torchmdla.stats().left_out] == [True]


def test_explain_has_the_reason() -> None:
    op, _, x, _ = CASES["shape"]
    report = torchmdla.explain(torch.export.export(Around(op), (x,)), x)
    assert any("an odd width" in reason.reason for reason in report.reasons if reason.op == "aten::tanh")


def test_strict_mode_raises_where_groups_are_formed() -> None:
    op, _, x, _ = CASES["shape"]
    torchmdla.enable(device="picky", strict=True)
    with pytest.raises(CompileError, match="an odd width") as raised:
        torchmdla.compile(Around(op), x, frontend="export")
    assert raised.value.op == "aten::tanh"


@pytest.mark.parametrize(
    ("shape", "strides", "is_contiguous"),
    [((2, 3), (3, 1), True), ((2, 3), (1, 2), False), ((1, 3), (7, 1), True), ((0, 3), (9, 9), True), ((), (), True)],
)
def test_contiguous_types(shape: tuple[int, ...], strides: tuple[int, ...], is_contiguous: bool) -> None:
    assert TensorType("float32", shape, strides).is_contiguous == is_contiguous
    assert TensorType("float32", shape).strides == torch.empty(shape).stride()

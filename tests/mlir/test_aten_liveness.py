"""Tests of the liveness report of the aten dialect."""

from __future__ import annotations

import json

import torch
from aten_modules import parsed, rendered, shared_context
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_mlir import ir

from torchmdla import aten


def held(point: aten.LivenessPoint) -> dict[str, int]:
    return {value.name: value.bytes for value in point.values}


def test_liveness_of_a_chain(context: ir.Context) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        a = x.relu()
        b = a.t()
        c = b.exp()
        return c.sum()

    module = aten.from_module(function, torch.randn(2, 4), context=context)
    report = aten.liveness_report(module)
    assert [held(point) for point in report.points] == [
        {"%arg0": 32, "L0-relu-0": 32},
        {"L0-relu-0": 32},  # the view does not have its own memory
        {"L0-relu-0": 32, "L2-exp-0": 32},  # the view keeps its base alive
        {"L2-exp-0": 32, "L3-sum-0": 4},
    ]
    assert report.peak is not None
    assert (report.peak.layer, report.peak.bytes) == ("L0-relu-0", 64)


def test_liveness_of_parameters_residuals_and_results(context: ir.Context) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.first(x)
            return self.second(y.relu()) + x, y

    module = aten.from_module(Residual(), torch.randn(2, 4), context=context)
    report = aten.liveness_report(module)
    parameters = 4 * (32 + 8 + 32 + 4)
    assert {point.bytes_of("parameter") for point in report.points} == {parameters}
    activations = [{value.name for value in point.values if value.role != "parameter"} for point in report.points]
    assert activations == [
        {"%arg0", "L0-linear-0"},
        {"%arg0", "L0-linear-0", "L1-relu-0"},
        {"%arg0", "L0-linear-0", "L1-relu-0", "L2-linear-1"},
        {"%arg0", "L0-linear-0", "L2-linear-1", "L3-add-0"},
    ]
    read = json.loads(report.to_json())
    assert read["peak"]["layer"] == "L2-linear-1"
    assert read["peak"]["bytes"] == parameters + 32 + 64 + 64 + 32
    assert "L2-linear-1" in rendered(report)


def test_liveness_of_in_place_ops_and_several_results(context: ir.Context) -> None:
    body = """
    %i = "aten.constant"() {value = 1 : i32} : () -> i32
    %f = "aten.constant"() {value = false} : () -> i1
    %0 = "aten.exp"(%a) : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %1 = "aten.relu_"(%0) : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %2:2 = "aten.max.dim"(%1, %i, %f) : (tensor<2x3xf32>, i32, i1) -> (tensor<2xf32>, tensor<2xi64>)
    """
    report = aten.liveness_report(parsed(body, context))
    assert held(report.points[1]) == {"L0-exp-0": 24}
    assert held(report.points[2]) == {"L0-exp-0": 24, "L2-max-0#0": 8, "L2-max-0#1": 16}


def test_liveness_of_nothing(context: ir.Context) -> None:
    report = aten.liveness_report(parsed("", context))
    assert report.peak is None
    assert json.loads(report.to_json())["peak"] is None


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=12))
@settings(max_examples=30)
def test_liveness_matches_reference_counts(edges: list[tuple[int, int]]) -> None:
    """Check on random graphs of additions that a value is live from its layer to the last layer that uses it."""
    names, lines = ["%a"], ['%one = "aten.constant"() {value = 1 : i32} : () -> i32']
    uses = []
    for number, (left, right) in enumerate(edges):
        pair = left % len(names), right % len(names)
        uses.append(pair)
        operands = f"{names[pair[0]]}, {names[pair[1]]}"
        lines.append(
            f'%v{number} = "aten.add"({operands}, %one) : (tensor<3xf32>, tensor<3xf32>, i32) -> tensor<3xf32>'
        )
        names.append(f"%v{number}")
    report = aten.liveness_report(parsed("\n".join(lines), shared_context(), "%a: tensor<3xf32>"))
    for number, point in enumerate(report.points):
        wanted = {index for pair in uses[number:] for index in pair if index <= number} | {number + 1}
        if number == 0:
            wanted.add(0)
        assert point.bytes == 12 * len(wanted)

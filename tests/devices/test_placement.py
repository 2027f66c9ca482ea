"""Placements of random programs, compared with the best of all placements."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchmdla.compiler.mlir import shared_context
from torchmdla.compiler.program import Argument, Program, Result, Target
from torchmdla.devices.heterogeneous.graph import ProgramGraph
from torchmdla.devices.heterogeneous.placement import Costs, Link, Placement
from torchmdla.errors import CompileError

TENSOR = "!torch.vtensor<[4],f32>"
SECONDS = st.floats(0.0, 10.0)


def program_of(edges: list[tuple[int, int]]) -> Program:
    """Return a program of products: number ``k`` multiplies two values among the argument and earlier products."""
    lines = [
        f'%{k + 1} = "torch.aten.mul.Tensor"(%{a}, %{b}) : ({TENSOR}, {TENSOR}) -> {TENSOR} '
        f'loc("aten::mul.Tensor"("graph":{k}:0))'
        for k, (a, b) in enumerate(edges)
    ]
    text = "\n".join(
        [f"func.func @forward(%0: {TENSOR}) -> {TENSOR} {{", *lines, f"return %{len(edges)} : {TENSOR}", "}"]
    )
    return Program(text, (Argument("input", "float32", (4,)),), (Result("float32", (4,)),), Target("several"))


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[int, int]]:
    count = draw(st.integers(1, 7))
    return [(draw(st.integers(0, k)), draw(st.integers(0, k))) for k in range(count)]


@settings(max_examples=25)
@given(edges=programs(), data=st.data())
def test_two_devices_are_divided_at_the_least_cost(edges: list[tuple[int, int]], data: st.DataObject) -> None:
    costs = {}
    for number in range(len(edges)):
        refused = data.draw(st.sampled_from([None, None, None, 0, 1]))
        costs[number] = tuple("refused" if device == refused else data.draw(SECONDS) for device in range(2))
    links = Link(0.0, data.draw(SECONDS), data.draw(st.floats(0.0, 1.0))), Link(0.0, 0.0, 0.0)
    with shared_context():
        placement = Placement(ProgramGraph(program_of(edges)), Costs(True, links, costs))
        device_of = {call.place: part.device for part in placement.parts() for call in part.calls}
        total = placement.total([device_of[place] for place in range(len(edges))])
        best = min(placement.total(list(places)) for places in itertools.product(range(2), repeat=len(edges)))
    assert math.isclose(total, best, rel_tol=1e-9, abs_tol=1e-9)


def test_sums_of_costs_that_are_rounded() -> None:
    """Check a program whose cut had an edge that was full but for rounding: a refused call was on its device."""
    costs: dict[int, tuple[float | str, ...]] = {0: (0.0, 1.3376568029529379), 1: (0.0, "refused"), 2: (0.0, 0.0)}
    links = Link(0.0, 1.707674069200225, 0.5), Link(0.0, 0.0, 0.0)
    with shared_context():
        graph = ProgramGraph(program_of([(0, 0), (0, 1), (0, 1)]))
        placement = Placement(graph, Costs(True, links, costs))
        parts = placement.parts()
    assert {call.place: part.device for part in parts for call in part.calls}[1] == 0


@settings(max_examples=25)
@given(edges=programs(), data=st.data())
def test_parts_are_in_the_order_of_their_values(edges: list[tuple[int, int]], data: st.DataObject) -> None:
    costs = {
        number: tuple(data.draw(st.sampled_from([0.0, 1.0, 5.0])) for _ in range(3)) for number in range(len(edges))
    }
    with shared_context():
        graph = ProgramGraph(program_of(edges))
        parts = Placement(graph, Costs(True, (Link(0.1, 0.2, 0.0),) * 3, costs)).parts()
        order = [call.place for part in parts for call in part.calls]
        part_of = {call.place: number for number, part in enumerate(parts) for call in part.calls}
        for call in graph.calls:
            producers = [producer.place for value in call.reads if (producer := graph.producer(value))]
            assert all(part_of[place] <= part_of[call.place] for place in producers)
    assert sorted(order) == list(range(len(graph.calls)))


def test_a_launch_must_be_worth_it() -> None:
    costs = dict.fromkeys(range(3), (0.0, 1.0))
    with shared_context():
        graph = ProgramGraph(program_of([(0, 0), (1, 1), (2, 2)]))
        for launch, device in ((2.5, 0), (3.5, 1)):
            links = Link(launch, 0.0, 0.0), Link(0.0, 0.0, 0.0)
            assert [part.device for part in Placement(graph, Costs(True, links, costs)).parts()] == [device]


def test_a_call_that_no_device_takes_is_an_error() -> None:
    links = (Link(0.0, 0.0, 0.0),) * 2
    with shared_context(), pytest.raises(CompileError, match="none of the devices"):
        Placement(ProgramGraph(program_of([(0, 0)])), Costs(False, links, {0: ("no", "nor here")}))

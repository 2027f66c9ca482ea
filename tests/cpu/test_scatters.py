"""Scatters: messages that a graph network adds to its nodes, in order, without storing them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from dynamic_programs import Dynamic, Function
from nest_running import MACHINE, host_target
from torch import Tensor, nn
from written_programs import TracedProgram, normal

from torchmdla.devices.cpu.ir.kernel_spec import KernelSpec
from torchmdla.devices.cpu.ir.loop_program import KernelStep, LoopProgram, OutlinedRegion, Scatter
from torchmdla.devices.cpu.passes.share_buffers import find_releases
from torchmdla.devices.cpu.schedule import Schedule, choose_schedule
from torchmdla.devices.cpu.schedule.blocking import Level
from torchmdla.devices.cpu.schedule.validity import find_faults
from torchmdla.testing.compare import assert_matches

NODES, EDGES, FEATURES = 20, 333, 45


def edges(count: int = EDGES, nodes: int = NODES) -> Tensor:
    return torch.randint(0, nodes, (count,), generator=torch.Generator().manual_seed(count))


def pass_messages(x: Tensor, senders: Tensor, receivers: Tensor, weights: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, receivers, x[senders] * weights)


def network() -> TracedProgram:
    return TracedProgram(pass_messages, normal(NODES, FEATURES), edges(), edges(EDGES), normal(EDGES, FEATURES))


def scatters(steps: LoopProgram) -> list[Scatter]:
    assert not any(isinstance(step, OutlinedRegion) for step in steps.steps)
    return [step for step in steps.steps if isinstance(step, Scatter)]


def kernel() -> KernelSpec:
    (scatter,) = scatters(network().steps())
    return scatter.nest.kernel  # type: ignore[return-value]


def test_messages_are_not_stored() -> None:
    program = network()
    (scatter,) = scatters(program.steps())
    assert all(buffer.count < EDGES * FEATURES for buffer in program.steps().buffers() if buffer.kind == "temporary")
    assert scatter.nest.tables
    program.check()


def test_inputs_are_released_after_their_last_kernel() -> None:
    """Check the numbers of kernels, of which scatters are some."""

    def function(x: Tensor, receivers: Tensor, updates: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.index_add(0, receivers, updates), y.exp().sum(0), z.exp().sum(1)

    large = normal(256, 256)
    steps = TracedProgram(function, normal(NODES, FEATURES), edges(), normal(EDGES, FEATURES), large, large + 1).steps()
    kernels = [step for step in steps.steps if isinstance(step, KernelStep)]
    releases = find_releases(steps)
    assert releases
    for position, first in releases:
        readers = [k for k, kernel in enumerate(kernels) if position in {buffer.position for buffer in kernel.reads}]
        assert max(readers) < first


def test_updates_that_others_read_are_stored() -> None:
    def function(x: Tensor, receivers: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        messages = weights.exp()
        return x.index_add(0, receivers, messages), messages.sum(1)

    program = TracedProgram(function, normal(NODES, FEATURES), edges(), normal(EDGES, FEATURES))
    (scatter,) = scatters(program.steps())
    assert any(buffer.count == EDGES * FEATURES for buffer in scatter.reads if buffer.kind == "temporary")
    program.check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32])
def test_the_order_of_additions_is_eager_modes(dtype: torch.dtype) -> None:
    values = (normal(EDGES, FEATURES) * 100).to(dtype)
    program = TracedProgram(lambda x, i, y: x.index_add(0, i, y * 3), values[:NODES], edges(), values)
    executable = program.check()
    _, (result,) = executable(program.values)
    assert torch.equal(result, values[:NODES].index_add(0, edges(), values * 3))


# The functions, and their inputs for numbers of edges and nodes.
FORMS: dict[str, tuple[Callable[..., Tensor], Callable[[int, int], list[Tensor]]]] = {
    "index_add": (
        lambda x, i, y: x.index_add(0, i, y) * 2,
        lambda e, n: [normal(n, 9), edges(e, n), normal(e, 9)],
    ),
    "of columns": (
        lambda x, i, y: x.index_add(1, i, y, alpha=2) * 2,
        lambda e, n: [normal(9, n), edges(e, n), normal(9, e)],
    ),
    "of one dimension": (
        lambda x, i, y: x.index_add(0, i, y) * 2,
        lambda e, n: [normal(n), edges(e, n), normal(e)],
    ),
    "of numbers": (
        lambda x, i: x.index_put((i,), torch.ones(()), accumulate=True) * 2,
        lambda e, n: [normal(n), edges(e, n)],
    ),
    "scatter_add": (
        lambda x, i, y: x.scatter_add(0, i, y) * 2,
        lambda e, n: [normal(n, 9), torch.stack([edges(e + k, n)[:e] for k in range(9)], 1), normal(e, 9)],
    ),
    "scatter_add, expanded": (
        lambda x, i, y: x.scatter_add(0, i.unsqueeze(1).expand_as(y), y) * 2,
        lambda e, n: [normal(n, 9), edges(e, n), normal(e, 9)],
    ),
    "index_put": (
        lambda x, i, y: x.index_put((i - 1,), y, accumulate=True) * 2,
        lambda e, n: [normal(n, 9), edges(e, n), normal(e, 9)],
    ),
    "index_put of its own elements": (
        lambda x, i: (y := x * 2).index_put((i,), y[i] * 0.5) * 2,
        lambda e, n: [normal(n, 9), edges(e, n)],
    ),
    "index_put at two indices": (
        lambda x, i, j, y: x.index_put((i, j), y, accumulate=True) * 2,
        lambda e, n: [normal(n, 7, 3), edges(e, n), edges(e, 7), normal(e, 3)],
    ),
    "index_put in place of others": (
        lambda x, i, y: x.index_put((i,), y) * 2,
        lambda e, n: [normal(e, 9), torch.randperm(e), normal(e, 9)],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_sizes_that_vary(name: str) -> None:
    function, draw = FORMS[name]
    program = Dynamic.of(Function(function), draw, (50, 20))
    for values in ((50, 20), (7, 3), (333, 64), (2, 2)):
        actual, expected = program(values, draw(*values))
        for result, wanted in zip(actual, expected, strict=True):
            assert torch.equal(result, wanted)  # type: ignore[arg-type]


def test_a_network_of_sizes_that_vary() -> None:
    def draw(count: int, nodes: int) -> list[Tensor]:
        return [normal(nodes, 33), edges(count, nodes), edges(count + 1, nodes)[:count], normal(count, 33)]

    program = Dynamic.of(Function(pass_messages), draw, (200, 30))
    for values in ((200, 30), (31, 2), (900, 77)):
        assert_matches(*program(values, draw(*values)), layers=2)


@pytest.mark.parametrize("wrong", [NODES, -1])
def test_an_index_out_of_bounds_fails(wrong: int) -> None:
    program = network()
    executable = program.check()
    x, senders, receivers, weights = program.values
    for values in ((x, senders.clone(), receivers, weights), (x, senders, receivers.clone(), weights)):
        changed = values[1] if values[1] is not senders else values[2]
        # A sender counts from the end if it is negative.
        changed[7] = wrong if changed is values[2] else NODES
        assert executable(list(values))[0]


# Schedules.


def test_iterations_that_meet_run_in_order() -> None:
    schedule = choose_schedule(kernel(), MACHINE)
    assert schedule.vector == 1
    assert [level for level in schedule.levels if level.loop == 0] == [Level(0, 1)]
    assert not list(find_faults(kernel(), schedule, MACHINE))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"vector": 0, "tiles": (16, 16), "levels": (Level(0, 16), Level(1, 16))}, "one by one"),
        ({"tiles": (2, 16), "levels": (Level(0, 2), Level(1, 16))}, "in order"),
        ({"ranged": 1, "levels": (Level(0, 1), Level(1, 16))}, "in order"),
        ({"levels": (Level(0, 4), Level(1, 16), Level(0, 1))}, "in order"),
    ],
)
def test_schedules_that_would_add_in_another_order(change: dict[str, Any], fault: str) -> None:
    schedule = Schedule((Level(0, 1), Level(1, 16)), (), (1, 16), (1, 1), 1, 16, 0, 1, 0)
    assert not list(find_faults(kernel(), schedule, MACHINE))
    assert any(fault in text for text in find_faults(kernel(), replace(schedule, **change), MACHINE))


def test_threads_share_features() -> None:
    inputs = normal(NODES, 1000), edges(), edges(EDGES), normal(EDGES, 1000)
    program = TracedProgram(pass_messages, *inputs)
    (scatter,) = scatters(program.steps(host_target()))
    schedule = choose_schedule(scatter.nest.kernel, MACHINE)
    assert schedule.ranged == 1
    assert schedule.levels[0].loop == 1
    assert schedule.grain
    program.check()


def test_a_place_at_a_loop_of_one_iteration() -> None:
    """Check a scatter whose serial loop is removed from its kernel."""
    TracedProgram(pass_messages, normal(NODES, 3), edges(1), edges(1), normal(1, 3)).check()


def test_an_embedding_trains_as_in_eager_mode() -> None:
    """Check gradients of embeddings: with padding, and divided by frequency, which eager operators compute."""
    torch._dynamo.reset()
    for options in ({}, {"padding_idx": 2}, {"scale_grad_by_freq": True}):
        layer = nn.Embedding(7, 12, **options)  # type: ignore[arg-type]
        places = edges(60, 7).view(6, 10)
        program = torch.compile(lambda p, layer=layer: layer(p).sin().sum(), backend="torchmdla")
        gradients = []
        for call in (lambda p, layer=layer: layer(p).sin().sum(), program, program, program):
            layer.zero_grad()
            call(places).backward()
            assert layer.weight.grad is not None
            gradients.append(layer.weight.grad.clone())
        for gradient in gradients[1:]:
            assert_matches(gradient, gradients[0], layers=2)

"""Schedules as data: they are printed, parsed, edited and checked. All valid schedules compute the same values."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from nest_running import host_target
from nest_samples import check, contractions, matmul, others
from written_programs import TracedProgram

from torchmdla.devices.cpu import lowering
from torchmdla.devices.cpu.ir.expressions import numbered_value, operation
from torchmdla.devices.cpu.ir.kernel_spec import KernelSpec, Operand
from torchmdla.devices.cpu.schedule import Level, Schedule, choose_schedule, count, ranges
from torchmdla.devices.cpu.schedule.blocking import Prefetch
from torchmdla.devices.cpu.schedule.plan import OPTION, Plan
from torchmdla.devices.cpu.schedule.validity import find_faults
from torchmdla.devices.cpu.target.machine import Machine
from torchmdla.errors import CompileError

MACHINE = Machine.of(host_target())


# Schedules of a program.


def decided(subject: TracedProgram, monkeypatch: pytest.MonkeyPatch, decisions: str = "") -> tuple[str, dict[str, Any]]:
    """Return the code that is generated with given decisions, and the decisions that it is generated from."""
    plans: list[tuple[Plan, Any]] = []
    with monkeypatch.context() as patch, lowering.new_context(), lowering.ir.Location.unknown():
        plan, steps = lowering.plan_schedules, lowering.loop_program
        tiles: list[Any] = []
        patch.setattr(lowering, "loop_program", lambda *a: tiles.append(steps(*a)) or tiles[-1])
        patch.setattr(lowering, "plan_schedules", lambda *a: plans.append((plan(*a), tiles[-1][1])) or plans[-1][0])
        program = subject.program(options=((OPTION, decisions),) if decisions else ())
        code = str(lowering.generated_module(program))
    (final_plan, chosen) = plans[-1]
    return code, json.loads(final_plan.to_json(chosen))


ATTENTION = TracedProgram(lambda x: (x @ x.transpose(-1, -2)).softmax(-1) @ x, torch.randn(4, 48, 16))


def test_written_schedules_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    code, decisions = decided(ATTENTION, monkeypatch)
    assert decisions["tiles"] and len(decisions["kernels"]) > 3
    assert decided(ATTENTION, monkeypatch, json.dumps(decisions)) == (code, decisions)


def test_tiles_and_schedules_that_are_edited(monkeypatch: pytest.MonkeyPatch) -> None:
    code, _ = decided(ATTENTION, monkeypatch)
    edited = json.dumps({"tiles": [[1, 7]]})
    other, _ = decided(ATTENTION, monkeypatch, edited)
    assert other != code
    ATTENTION.check(options=((OPTION, edited),))


def test_a_part_of_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that costs choose the unnamed parts of a schedule."""
    compiled = TracedProgram(torch.matmul, torch.randn(33, 20), torch.randn(20, 64))
    code, decisions = decided(compiled, monkeypatch)
    (name,) = (n for n, kernel in decisions["kernels"].items() if kernel["reduction"])
    chosen = decisions["kernels"][name]
    levels = [[loop, 4 if loop != chosen["vector"] else step] for loop, step in chosen["levels"]]
    tiles = [step if d == chosen["vector"] or d in chosen["reduction"] else 4 for d, step in enumerate(chosen["tiles"])]
    edited = json.dumps({"kernels": {name: {"levels": levels, "tiles": tiles}}})
    other, edited_decisions = decided(compiled, monkeypatch, edited)
    assert other != code and edited_decisions["kernels"][name]["tiles"] == tiles
    assert edited_decisions["kernels"][name]["unroll"] == chosen["unroll"]
    compiled.check(options=((OPTION, edited),))


@pytest.mark.parametrize(
    ("decisions", "message"),
    [
        ("{", "the option schedules is not a plan"),
        ("[1]", "the option schedules is not a plan"),
        ('{"kernels": {"0": {}}}', "kernels that the program does not have: 0"),
        ('{"tiles": [[3, 3, 3]]}', "the tiles that are given are not this program's"),
        ('{"tiles": []}', "the tiles that are given are not this program's"),
        ('{"kernels": {"NAME": {"lanes": 3}}}', "has 3 lanes"),
        ('{"kernels": {"NAME": {"tiles": [0]}}}', "tiles or unrolling of another number"),
        ('{"kernels": {"NAME": {"lanes": "many"}}}', "kernel NAME is malformed: ValueError"),
    ],
)
def test_decisions_that_do_not_fit(decisions: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, original = decided(ATTENTION, monkeypatch)
    name = next(n for n, kernel in original["kernels"].items() if kernel["reduction"] and kernel["lanes"] > 1)
    with pytest.raises(CompileError) as error:
        decided(ATTENTION, monkeypatch, decisions.replace("NAME", name))
    assert message.replace("NAME", name) in str(error.value)


# Schedules of a nest.

PRODUCT = matmul(30, 64, 20)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"tiles": (6, 32)}, "another number of loops"),
        ({"unroll": (1, 1, 0)}, "not positive"),
        ({"levels": (Level(3, 1),)}, "beyond the last"),
        ({"vector": -1}, "no loop across them"),
        ({"lanes": 12}, "not a power of two"),
        ({"lanes": 128}, "not a power of two"),
        ({"tiles": (6, 24, 1)}, "not a multiple of its lanes"),
        ({"reduction": ()}, "reduces over other loops"),
        ({"tiles": (6, 32, 2)}, "tiles of a loop that reduces"),
        ({"unroll": (2, 1, 1)}, "unrolls loop 0"),
        ({"levels": (Level(0, 6),)}, "no last level of loop 1"),
        ({"levels": (Level(0, 7), Level(0, 6), Level(1, 32))}, "do not divide one another"),
        ({"ranged": 3}, "more levels than there are"),
        ({"levels": (Level(2, 4), Level(0, 6), Level(1, 32)), "ranged": 1}, "a loop that reduces"),
        ({"levels": (Level(2, 8), Level(2, 4), Level(0, 6), Level(1, 32)), "ranged": 0}, "in blocks of it"),
        ({"prefetch": Prefetch(2, 0, 64, 1)}, "not there"),
        ({"prefetch": Prefetch(0, 0, 0, 1)}, "nothing"),
    ],
)
def test_schedules_that_are_none(change: dict[str, Any], fault: str) -> None:
    levels = (Level(0, 6), Level(1, 32))
    schedule = Schedule(levels, (2,), (6, 32, 1), (1, 1, 2), 1, 16, 2, 10, 0)
    machine = Machine(64, 32)
    assert not list(find_faults(PRODUCT, schedule, machine))
    assert any(fault in text for text in find_faults(PRODUCT, replace(schedule, **change), machine))


@pytest.mark.parametrize(
    ("rows", "columns", "last"),
    [
        (4096, 1024, 0),  # A column spans more pages than the processor's TLB holds.
        (4096, 8, 1),  # Each page holds several rows.
        (1024, 1024, 1),  # A column spans fewer pages.
        (4096, 4096, 1),  # A column does not span more pages than a row of the result.
    ],
)
def test_a_transpose_walks_few_pages(rows: int, columns: int, last: int) -> None:
    values = (operation("math.exp", [numbered_value("operand", "f32", 0)], "f32"),)
    turned, plain = (Operand("f32", strides) for strides in ((1, columns), (rows, 1)))
    nest = KernelSpec((columns, rows), (False, False), (turned,), (plain,), values)
    assert choose_schedule(nest, Machine(64, 32)).levels[-1].loop == last


@st.composite
def schedules(draw: st.DrawFn, nest: KernelSpec) -> Schedule:
    """Return a schedule that costs do not choose, valid or not."""
    chosen, loops = choose_schedule(nest, MACHINE), range(len(nest.sizes))
    parallel = [d for d in loops if not nest.reduction[d]]
    vector = draw(st.sampled_from([-1, *loops]))
    lanes = draw(st.sampled_from([2, 4, 8, 16])) if vector >= 0 else 1
    tiles = [draw(st.integers(1, 5)) if d in parallel else 1 for d in loops]
    if vector >= 0:
        tiles[vector] = lanes * draw(st.integers(1, 3))
    order = draw(st.permutations(parallel))
    levels = [Level(d, tiles[d] * draw(st.integers(1, 4))) for d in order if draw(st.booleans())]
    levels += [Level(d, tiles[d]) for d in draw(st.permutations(parallel))]
    blocks = [d for d in chosen.reduction if draw(st.booleans())]
    at = draw(st.integers(0, len(levels)))
    levels[at:at] = [Level(d, draw(st.integers(1, 9))) for d in blocks]
    schedule = replace(
        chosen,
        levels=tuple(levels),
        reduction=tuple(draw(st.permutations(chosen.reduction))),
        tiles=tuple(tiles),
        unroll=tuple(draw(st.integers(1, 4)) if nest.reduction[d] else 1 for d in loops),
        vector=vector,
        lanes=lanes,
        ranged=draw(st.integers(0, len(levels))),
        prefetch=None,
    )
    return replace(schedule, iterations=count(ranges(nest, schedule)))


@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.data())
@pytest.mark.sampled(0)
def test_whatever_is_valid_computes_the_same(data: st.DataObject) -> None:
    nest = data.draw(contractions() | others())
    assume(math.prod(nest.sizes) <= 20_000)
    schedule = data.draw(schedules(nest))
    assume(not list(find_faults(nest, schedule, MACHINE)))
    check(nest, host_target(), (3.0,) * len(nest.all_scalars), 2, schedule)

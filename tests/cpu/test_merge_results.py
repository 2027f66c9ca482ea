"""Nests that compute results from the same buffers: which are merged, and which results may overwrite their inputs."""

from __future__ import annotations

import pytest
from nest_running import host_target

from torchmdla.devices.cpu.ir.parser import parse_program
from torchmdla.devices.cpu.ir.verifier import verify
from torchmdla.devices.cpu.passes.merge_results import merge_results
from torchmdla.devices.cpu.passes.share_buffers import delay_steps, find_in_place_results, find_releases
from torchmdla.devices.cpu.target.machine import Machine

MOMENTUM = """
buffer input0 : f32[48, 48]
buffer input1 : f32[48, 48]
buffer input2 : f32[48, 48]
buffer result3 : f32[48, 48]
buffer result4 : f32[48, 48]
entry {
  nest d0:48 d1:48 {
    i0 = input0[d0, d1]
    i1 = input1[d0, d1]
    v0 : f32 = arith.addf i0, i1
    result3[d0, d1] = v0
  }
  nest d0:48 d1:48 {
    i0 = input2[d0, d1]
    i1 = result3[d0, d1]
    v0 : f32 = arith.subf i0, i1
    result4[d0, d1] = v0
  }
}
"""

SUM = """
  nest d0:48 d1:48+ {
    i0 = result3[d0, d1]
    o0 = from 0.0 : f32
    v0 : f32 = arith.addf i0, o0
    result5[d0] = v0
  }
"""

PART = """
  nest d0:24 d1:48 {
    i0 = input0[d0, d1]
    result3[d0, d1] = i0
  }
"""


def test_one_nest_updates_momentum_and_weight() -> None:
    steps = parse_program(MOMENTUM)
    merge_results(steps)
    verify(steps, "merge-results")
    (nest,) = steps.nests()
    assert [access.buffer.kind for access in nest.inputs] == ["input"] * 3
    assert [buffer.position for buffer in nest.writes] == [3, 4]
    assert find_in_place_results(steps) == ((3, 0), (3, 1), (3, 2), (4, 0), (4, 1), (4, 2))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("i1 = result3[d0, d1]", "i1 = input0[d1, d0]"),  # another order of the elements
        ("i1 = result3[d0, d1]", "i1 = input2[d0, d1]"),  # no common buffer
        ("    result4", "    o0 = from 0.0 : f32\n    result4"),  # an accumulator
        ("  }\n  nest", f"  }}{SUM}  nest"),  # the result is read between them
        ("  }\n  nest", f"  }}{PART}  nest"),  # a part of the result is written between them
    ],
)
def test_nests_that_are_not_merged(old: str, new: str) -> None:
    text = MOMENTUM.replace(old, new)
    assert text != MOMENTUM
    steps = parse_program(f"buffer result5 : f32[48]{text}")
    count = len(steps.steps)
    merge_results(steps)
    assert len(steps.steps) == count


@pytest.mark.parametrize(
    ("old", "new", "pairs"),
    [
        ("entry", "entry", {(3, 0), (3, 1), (4, 2)}),
        # A later nest reads the old value.
        ("i1 = result3[d0, d1]", "i1 = input0[d0, d1]", {(3, 1), (4, 0), (4, 2)}),
        # An iteration reads elements that other iterations overwrite.
        ("i0 = input2[d0, d1]", "i0 = input2[d1, d0]", {(3, 0), (3, 1)}),
        ("i1 = result3[d0, d1]", "i1 = input2[d1, d0]", {(3, 0), (3, 1)}),
        # The input has another size or element.
        ("input0 : f32[48, 48]", "input0 : f32[48, 96]", {(3, 1), (4, 2)}),
        # The result is written in parts.
        ("result3 : f32[48, 48]", "result3 : f32[48, 96]", {(4, 2)}),
    ],
)
def test_results_in_the_memory_of_inputs(old: str, new: str, pairs: set[tuple[int, int]]) -> None:
    assert set(find_in_place_results(parse_program(MOMENTUM.replace(old, new)))) == pairs


def test_inputs_are_released_after_their_last_kernel() -> None:
    text = MOMENTUM.replace("48", "512").replace("input1[d0, d1]", "input1[d1]")
    steps = parse_program(text.replace("input1 : f32[512, 512]", "input1 : f32[512]"))
    assert find_releases(steps) == ((0, 1),)  # input1 is small, and the last kernel reads input2
    first = steps.nests()[0]
    first.checks = first.values
    assert find_releases(steps) == ((0, 1),)
    last = steps.nests()[-1]
    last.checks = last.values
    assert not find_releases(steps)


WAITING = """
buffer input0 : f32[4096, 4096]
buffer temporary1 : f32[4096, 4096]
buffer temporary2 : f32[4096, 4096]
buffer temporary3 : f32[4096, 4096]
buffer result4 : f32[4096, 4096]
entry {
  nest d0:4096 d1:4096 {
    i0 = input0[d0, d1]
    v0 : f32 = math.sin i0
    temporary1[d0, d1] = v0
  }
  nest d0:4096 d1:4096 {
    i0 = input0[d0, d1]
    v0 : f32 = math.cos i0
    temporary2[d0, d1] = v0
  }
  nest d0:4096 d1:4096 {
    i0 = input0[d1, d0]
    i1 = temporary2[d0, d1]
    v0 : f32 = arith.addf i0, i1
    temporary3[d0, d1] = v0
  }
  nest d0:4096 d1:4096 {
    i0 = temporary1[d0, d1]
    i1 = temporary3[d1, d0]
    v0 : f32 = arith.addf i0, i1
    result4[d0, d1] = v0
  }
}
"""


@pytest.mark.parametrize(
    ("old", "new", "order"),
    [
        ("input0[d1, d0]", "input0[d1, d0]", (1, 0, 2, 3)),  # input0 lives as long as before
        ("input0[d1, d0]", "temporary2[d1, d0]", (0, 1, 2, 3)),  # input0 would live longer
        ("4096", "64", (0, 1, 2, 3)),  # the value waits in a cache
    ],
)
def test_a_value_is_computed_before_its_first_use(old: str, new: str, order: tuple[int, ...]) -> None:
    steps = parse_program(WAITING.replace(old, new))
    before = list(steps.steps)
    delay_steps(steps, Machine.of(host_target()))
    verify(steps, "delay-steps")
    assert tuple(map(before.index, steps.steps)) == order


def test_a_program_that_may_fail_overwrites_nothing() -> None:
    steps = parse_program(MOMENTUM)
    last = steps.nests()[-1]
    last.checks = last.values
    assert not find_in_place_results(steps)

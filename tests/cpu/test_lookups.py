"""Lookups at linear indices are operands: mirrored and shifted reads, and the copies that contain them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_running import Kernel, host_target
from nest_samples import operand
from test_tile_fusion import all_nests
from torch.nn import functional
from written_programs import TracedProgram, normal

import torchmdla
from torchmdla.devices.cpu.ir.accesses import Access
from torchmdla.devices.cpu.ir.expressions import constant, index, numbered_value, operation
from torchmdla.devices.cpu.ir.kernel_spec import KernelSpec, Operand
from torchmdla.devices.cpu.ir.loop_program import LoopNest, is_copy
from torchmdla.devices.cpu.linalg.bodies import LOOKUP, OPERAND
from torchmdla.devices.cpu.linalg.operands import replace_lookups
from torchmdla.testing.compare import assert_matches

# Programs.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize(
    ("sizes", "dims"),
    [((5, 64), [1]), ((5, 67), [1]), ((67, 5), [0]), ((3, 20, 31), [0, 2]), ((3, 20, 31), [1]), ((33,), [0])],
)
def test_flips(sizes: Sequence[int], dims: Sequence[int], dtype: torch.dtype) -> None:
    program = TracedProgram(lambda x: -x.flip(dims), (normal(*sizes) * 9).to(dtype))
    assert not any(nest.tables for nest in all_nests(program.steps()))
    program.check()


@pytest.mark.parametrize("sizes", [(3, 5), (7, 33), (64, 300)])
def test_a_reduction_of_a_reversed_operand(sizes: tuple[int, int]) -> None:
    """Check a reduction over operands with negative strides. The strides determine their size in a cache."""
    TracedProgram(lambda x: x.flip(0).expm1().flip(0).amax(0), normal(*sizes)).check()


def test_booleans_are_mirrored() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x > 0).flip(1) & (x < 1).roll(3, 1)

    x = normal(5, 77)
    compiled = torchmdla.compile(torch.jit.trace(function, (x,)), x)
    assert_matches(compiled(x), function(x))


def reads_of(nests: Sequence[LoopNest], access: Access) -> int:
    return sum(a.buffer is access.buffer for nest in nests for a in nest.inputs)


@pytest.mark.parametrize(("channels", "side"), [(64, 7), (32, 9), (17, 5)])
def test_mirrored_weights_are_copied_once(channels: int, side: int) -> None:
    """Check that one copy brings the weights into the layout that the kernel reads.

    The program is the input gradient of a convolution. Its weights are inputs, so that they are not packed.
    """
    inputs = normal(1, channels, side, side), normal(channels, channels, 3, 3) * 0.1
    program = TracedProgram(lambda x, w: functional.conv_transpose2d(x, w, padding=1), *inputs)
    direct = replace(host_target(), features=f"{host_target().features},algorithms=direct")
    nests = all_nests(program.steps(direct))
    (first,) = (a for nest in nests for a in nest.inputs if a.buffer.kind == "input" and a.buffer.sizes[-1] == 3)
    assert not any(nest.tables for nest in nests)
    copies = [nest for nest in nests if is_copy(nest) and reads_of([nest], first)]
    if channels % 16 == 0:
        (copy,) = copies
        assert all(reads_of(nests, output) == 1 for output in copy.outputs)
    program.check()


def test_a_copy_of_an_overwritten_buffer_stays() -> None:
    """Check that a value is copied before its memory is overwritten."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        copied = y.t().contiguous()
        y[1:] = y[:-1].flip(1) + 1
        return copied.flip(0).contiguous().t(), y

    x = normal(20, 20)
    compiled = torchmdla.compile(torch.jit.trace(function, (x,), check_trace=False), x)
    assert_matches(compiled(x), function(x))


@pytest.mark.parametrize("start", [1, 3, 7])
def test_part_of_a_value_written_over_another_part_of_it(start: int) -> None:
    """Check slices that overlap. Reading through the copy would return rows that were just written."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return torch.slice_scatter(y, y[:7], 0, start, start + 7)

    x = normal(64, 31)
    compiled = torchmdla.compile(torch.jit.trace(function, (x,), check_trace=False), x)
    assert_matches(compiled(x), function(x))


# Bodies.


# Element [i, 9 - j] of table 0.
PLACE = [index(0), operation("arith.subi", [constant(9, "i64"), index(1)], "i64")]
MIRRORED = numbered_value(LOOKUP, "f32", 0, PLACE)


def test_a_mirrored_lookup_is_an_operand() -> None:
    roots, operands = replace_lookups([MIRRORED], 2, [5, 10], [(5, 10)])
    assert operands == [(0, (({0: 1}, 0), ({1: -1}, 9)))]
    assert roots == (numbered_value(OPERAND, "f32", 2),)


@pytest.mark.parametrize("shape", [(4, 10), (5, 9)])
def test_a_lookup_that_may_miss_stays(shape: tuple[int, int]) -> None:
    assert replace_lookups([MIRRORED], 2, [5, 10], [shape]) == ((MIRRORED,), [])


def test_only_linear_lookups_are_operands() -> None:
    """Check nested lookups. The index of the second lookup is the value of the first."""
    found_there = operation("arith.fptosi", [MIRRORED], "i64")
    second = numbered_value(LOOKUP, "f32", 1, [index(0), found_there])
    (root,), operands = replace_lookups([second], 2, [5, 10], [(5, 10), (5, 10)])
    assert [table for table, _ in operands] == [0]
    assert root.op == LOOKUP
    assert root.operands[1].operands == (numbered_value(OPERAND, "f32", 2),)


# Kernels.


@settings(max_examples=20)
@given(st.integers(1, 70), st.sampled_from([1, -1]), st.sampled_from([1, -1]))
def test_falling_rows(length: int, read: int, written: int) -> None:
    sizes = (3, length)
    source_operand, stored = Operand("f32", (length, read)), Operand("f32", (length, written))
    nest = KernelSpec(sizes, (False, False), (source_operand,), (stored,), (operand(0),))
    source = np.arange(3 * length, dtype=np.float32)
    target = np.full(3 * length + 2, -1, np.float32)
    starts = [length - 1 if stride < 0 else 0 for stride in (read, written)]
    Kernel(nest, host_target())([source[starts[0] :], target[1 + starts[1] :]])
    expected = source.reshape(sizes)[:, :: read * written]
    assert (target[1:-1].reshape(sizes) == expected).all()
    assert target[0] == target[-1] == -1

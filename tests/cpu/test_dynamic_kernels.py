"""Kernels of dynamic nests: one kernel computes the same as the static nest, at all values of the symbols."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from nest_running import Kernel, host_target
from nest_samples import (
    AVX512,
    PAIRS,
    TARGETS,
    TYPICAL,
    ZERO,
    M,
    N,
    added,
    arrays_of,
    bias_relu_residual,
    check,
    contractions,
    matmul,
    operand,
    others,
    target_with,
)

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.ir.accesses import Table
from torchmdla.devices.cpu.ir.expressions import Expression, constant, index, numbered_value, operation, size
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest, KernelSpec, Operand, specialise
from torchmdla.devices.cpu.schedule import Level, Schedule, choose_schedule, ranges
from torchmdla.devices.cpu.target.machine import Machine

# Sizes around the edges of tiles and vectors.
EDGES = (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 70)


@pytest.fixture(params=TARGETS)
def target(request):
    return target_with(request.param)


def row_sums(
    rows: int | Size, columns: int | Size, strides: tuple[int | Size, ...] = (), initial: Expression = ZERO
) -> AnyNest:
    """Return a nest that sums each row."""
    matrix = Operand("f32", strides or (columns, 1))
    sums = Operand("f32", (1, 0))
    return KernelSpec((rows, columns), (False, True), (matrix,), (sums,), (added(operand(0)),), initial=initial)


def compare(nest: AnyNest, target, values: tuple[int, int], arrays: Sequence[np.ndarray], kernel: Kernel) -> None:
    """Check that the dynamic kernel's results equal those of the static kernel of ``values``, bit by bit."""
    wanted, results = [a.copy() for a in arrays], [a.copy() for a in arrays]
    Kernel(specialise(nest, values), target)(wanted)
    kernel(results, 1, values)
    for a, b in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=f"at {values}")


@pytest.mark.parametrize("ranged", [0, 2])
def test_rows_are_shared_evenly(target, ranged):
    """Check tile rows. Tiles have as many rows as the largest, or one fewer. Code exists for every number of rows."""
    nest = matmul(M, 32, 20)
    schedule = replace(choose_schedule(nest, Machine.of(target), TYPICAL), ranged=ranged)
    kernel = check(nest, target, tasks=2, schedule=schedule, points=[(m, 2) for m in range(1, 40)])
    rows, columns, _ = schedule.tiles
    assert rows > 1
    if 32 % columns == 0:
        assert kernel.text.count("llvm.store") == rows * (rows + 1) // 2 * columns // schedule.lanes


@pytest.mark.parametrize("size", [N - 2, N - 2 + M])
def test_no_iteration(target, size):
    """Check sizes of 0. An empty reduction returns its initial value, and an empty parallel loop writes nothing."""
    pairs = [(2, 2), (5, 2), (5, 9)]
    for nest in (matmul(M, 20, size), matmul(size, 20, M), matmul(M, size, 5), row_sums(M, size)):
        check(nest, target, points=pairs)


# Rounding.


@pytest.mark.parametrize("sizes", [(M, 96, 300), (M, N, 40), (20, N, 700)])
def test_sums_in_the_order_of_static_kernels(target, sizes):
    nest, generator = matmul(*sizes), np.random.default_rng(0)
    kernel = Kernel(nest, target, typical=TYPICAL)
    for values in ((7, 33), (70, 50)):
        arrays = [generator.standard_normal(a.shape).astype(np.float32) for a in arrays_of(specialise(nest, values), 0)]
        compare(nest, target, values, arrays, kernel)


@pytest.mark.parametrize("transposed", [False, True])
def test_long_sums_are_summed_in_parts(target, transposed):
    """Check long sums. The rounding error of a sum of equal numbers grows with the additions into one accumulator."""
    count = 100_000
    strides = (1, 7) if transposed else (N, 1)
    nest = row_sums(7, N, strides)
    tenths, sums = np.full(7 * count, 0.1, np.float32), np.zeros(7, np.float32)
    Kernel(nest, target, typical=TYPICAL)([tenths, sums], 1, (2, count))
    np.testing.assert_allclose(sums, count * np.float64(np.float32(0.1)), rtol=2e-5)


# Blocks of a reduction.


def blocked(nest: AnyNest, schedule: Schedule, steps: int, rows: int) -> Schedule:
    """Return ``schedule`` with blocks.

    A block has ``rows`` tiles of each parallel loop. Inside it are blocks of ``steps`` of the outermost reduction loop.
    """
    outer = tuple(Level(level.loop, level.step * rows) for level in schedule.levels)
    levels = (*outer, Level(schedule.reduction[0], steps), *schedule.levels)
    return replace(schedule, levels=levels, ranged=1)


@pytest.mark.parametrize(("steps", "rows"), [(16, 1), (7, 2), (100, 3)])
@pytest.mark.parametrize("sizes", [(M, 50, 100), (37, N, 40), (M, N, M + 1)])
@pytest.mark.sampled(3)
def test_blocks_of_a_reduction(target, steps, rows, sizes):
    for epilogue in (None, bias_relu_residual((sizes[1], 1, 0), (0, 1, 0))):
        nest = matmul(*sizes, epilogue=epilogue)
        schedule = blocked(nest, choose_schedule(nest, Machine.of(target), TYPICAL), steps, rows)
        check(nest, target, (3.0,) if epilogue else (), 2, schedule, PAIRS[:6])


@pytest.mark.parametrize("sizes", [(M, 1024, 1024), (48, 1024, 16 * N), (M, 1024, 16 * N)])
def test_large_products_are_blocked(sizes):
    """Check that scratch buffers are bounded for all sizes."""
    target = target_with("avx512")
    nest = matmul(*sizes)
    kernel = Kernel(nest, target, typical=(48, 64))
    assert any(level.loop == 2 for level in kernel.schedule.levels)
    for values in ((48, 64), (130, 3)):
        there = specialise(nest, values)
        arrays = arrays_of(there, 0)
        expected = arrays[0][: there.sizes[0] * there.sizes[2]].reshape(there.sizes[0], -1).astype(np.float64)
        expected = expected @ arrays[1][: there.sizes[2] * there.sizes[1]].reshape(there.sizes[2], -1)
        kernel(arrays, 2, values)
        np.testing.assert_array_equal(arrays[2][: expected.size].reshape(expected.shape), expected)


def test_a_reduction_that_may_be_empty_has_no_blocks():
    nest = matmul(48, 1024, 1000 * N - 2000)
    assert all(level.loop != 2 for level in choose_schedule(nest, Machine.of(host_target(*AVX512)), (2, 3)).levels)


# Types, constants, tables, checks.


@pytest.mark.parametrize(
    ("element", "dtype"), [("f32", np.float32), ("f64", np.float64), ("i64", np.int64), ("i32", np.int32)]
)
def test_values_of_sizes(target, element, dtype):
    add = "arith.addf" if element.startswith("f") else "arith.addi"
    value = operation(add, [operand(0, element), size(3 * M * N + 1, element)], element)
    rows = Operand(element, (1,))
    kernel = Kernel(KernelSpec((N,), (False,), (rows,), (rows,), (value,)), target, typical=TYPICAL)
    for m, n in ((5, 7), (2, 40)):
        arrays = [np.arange(n).astype(dtype), np.zeros(n, dtype)]
        kernel(arrays, 1, (m, n))
        np.testing.assert_array_equal(arrays[1], arrays[0] + (3 * m * n + 1))


def test_a_sum_starts_from_a_size(target):
    kernel = Kernel(row_sums(5, N, initial=size(M, "f32")), target, typical=TYPICAL)
    arrays = [np.ones(5 * 33, np.float32), np.zeros(5, np.float32)]
    kernel(arrays, 1, (100, 33))
    np.testing.assert_array_equal(arrays[1], np.full(5, 133, np.float32))


@pytest.mark.parametrize("sizes", [(M, N), (N,), (3, M + N)])
def test_masks_and_indices(target, sizes):
    """Check masks and indices. An ``i1`` is stored as a byte in memory. The index of a loop is a value."""
    strides = tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes)))
    numbers, flags = Operand("i64", strides), Operand("i1", strides)
    below = operation("arith.cmpi", [operand(0, "i64"), index(len(sizes) - 1)], "i1", "{predicate = 2 : i64}")
    value = operation("arith.ori", [operand(1, "i1"), below], "i1")
    nest = KernelSpec(sizes, (False,) * len(sizes), (numbers, flags), (flags,), (value,))
    kernel, generator = Kernel(nest, target, typical=TYPICAL), np.random.default_rng(0)
    for values in PAIRS:
        shape = specialise(nest, values).sizes
        numbers_array = generator.integers(0, 70, shape)
        arrays = [numbers_array, generator.integers(0, 2, shape).astype(np.int8), np.full(shape, 7, np.int8)]
        kernel(arrays, 1, values)
        np.testing.assert_array_equal(arrays[2], (numbers_array < np.arange(shape[-1])) | (arrays[1] != 0))


@pytest.mark.parametrize("scaled", [False, True])
def test_tables(target, scaled):
    """Check rows of a table of dynamic sizes, read by computed indices. An index out of bounds is reported."""
    table = Table("f32", (N, M), (M, 1))
    value = numbered_value("gather", "f32", 0, [operand(0, "i64"), index(1)])
    value = operation("arith.mulf", [value, size(M, "f32")], "f32") if scaled else value
    nest = KernelSpec(
        (20, M), (False, False), (Operand("i64", (1, 0)),), (Operand("f32", (M, 1)),), (value,), tables=(table,)
    )
    kernel, generator = Kernel(nest, target, typical=TYPICAL), np.random.default_rng(0)
    for m, n in PAIRS:
        rows = generator.integers(0, n, 20)
        values = generator.standard_normal((n, m)).astype(np.float32)
        result, status = np.zeros((20, m), np.float32), np.zeros(1, np.int32)
        kernel([rows, result, values, status], 1, (m, n))
        np.testing.assert_array_equal(result, values[rows] * np.float32(m if scaled else 1))
        assert status[0] == 0
        rows[13] = n
        kernel([rows, result, values, status], 1, (m, n))
        assert status[0] == 1


def test_conditions_hold_in_active_lanes_only(target):
    rows = Operand("f32", (1,))
    positive = operation("arith.cmpf", [operand(0), constant(0.0, "f32")], "i1", "{predicate = 2 : i64}")
    nest = KernelSpec((N,), (False,), (rows,), (rows,), (operand(0),), checks=(positive,))
    kernel = Kernel(nest, target, typical=TYPICAL)
    for n in EDGES:
        positive = np.zeros(n + 16, np.float32)
        positive[:n] = 1
        for wrong in (None, n - 1):
            if wrong is not None:
                positive[wrong] = 0
            status = np.zeros(1, np.int32)
            kernel([positive, np.zeros(n, np.float32), status], 1, (2, n))
            assert status[0] == (wrong is not None)


# Schedules.


def test_nests_that_may_grow_are_parallel():
    machine = Machine.of(host_target())
    for nest in (matmul(M, 64, 64), matmul(64, 64, N)):
        schedule = choose_schedule(nest, machine, (2, 1000))
        assert schedule.grain > 0
    assert choose_schedule(row_sums(4, N), machine, (2, 2)).grain == 0


def test_schedules_do_not_depend_on_divisors_of_a_dynamic_size():
    machine = Machine.of(host_target(*AVX512))
    for nest in (matmul(M, 96, 40), matmul(40, M, 96), matmul(M, M, 40)):
        chosen = {replace(choose_schedule(nest, machine, (m, 2)), iterations=0, grain=0) for m in (126, 127, 128)}
        assert len(chosen) == 1


def test_ranges_equal_those_of_static_schedules():
    nest = matmul(M, N, 40)
    schedule = choose_schedule(nest, Machine.of(host_target()), TYPICAL)
    assert schedule.iterations == math.prod(-(-size.at(TYPICAL) // step) for size, step in ranges(nest, schedule))


# Random nests.

values = st.tuples(st.sampled_from(EDGES), st.sampled_from(EDGES))
typicals = st.sampled_from([TYPICAL, (2, 2), (5, 40), (500, 3)])


def small(nest: AnyNest, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pairs that leave a nest small enough for the reference."""
    retained = [pair for pair in pairs if math.prod(max(size, 1) for size in specialise(nest, pair).sizes) <= 100_000]
    assume(retained)
    return retained


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    nest=contractions(symbols=True),
    pairs=st.lists(values, min_size=2, max_size=4),
    tasks=st.integers(1, 4),
    typical=typicals,
)
@pytest.mark.sampled(0)
def test_random_contractions(target, nest, pairs, tasks, typical):
    check(nest, target, (2.0,) if nest.epilogue else (), tasks, points=small(nest, pairs), typical=typical)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    nest=others(symbols=True), pairs=st.lists(values, min_size=2, max_size=4), tasks=st.integers(1, 4), typical=typicals
)
@pytest.mark.sampled(0)
def test_random_reductions_and_elementwise(target, nest, pairs, tasks, typical):
    check(nest, target, tasks=tasks, points=small(nest, pairs), typical=typical)

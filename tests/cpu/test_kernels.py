"""Kernels of single nests: with any schedule, they compute the nest's values and write nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nest_running import Kernel, host_target, mark_prefetches
from nest_samples import (
    AVX512,
    PRODUCT,
    SUM_OF_PRODUCTS,
    TARGETS,
    ZERO,
    M,
    N,
    added,
    bias_relu_residual,
    check,
    contractions,
    matmul,
    operand,
    others,
    target_with,
)

from torchmdla.devices.cpu.ir.expressions import numbered_value, operation, reduced
from torchmdla.devices.cpu.ir.kernel_spec import KernelEpilogue, KernelSpec, Operand
from torchmdla.devices.cpu.schedule import Fetch, Level, Schedule, choose_schedule
from torchmdla.devices.cpu.target.machine import Machine


@pytest.fixture(params=TARGETS)
def target(request):
    return target_with(request.param)


STATIC = [(1, 1, 1), (3, 5, 7), (8, 48, 16), (17, 33, 9), (14, 100, 40), (50, 64, 300), (1, 70, 600), (129, 65, 31)]
DYNAMIC = [(M, 96, 40), (40, N, 30), (M, N, 33), (M, 64, N), (33, 20, N), (M, M, M), (M, N, M + N), (2 * M, 7, N)]


@pytest.mark.parametrize("sizes", STATIC + DYNAMIC)
def test_matmul(target, sizes):
    check(matmul(*sizes), target)
    check(matmul(*sizes, initial=None), target, tasks=3)


@pytest.mark.parametrize(
    "sizes", [(3, 5, 7), (17, 33, 9), (1, 70, 600), (64, 64, 64), (M, 33, 20), (M, N, 30), (33, 20, N), (M, M, N)]
)
def test_transposed_factors(target, sizes):
    m, _, k = sizes
    check(matmul(*sizes, inputs=(Operand("f32", (1, 0, m)), Operand("f32", (0, k, 1)))), target, tasks=2)
    check(matmul(*sizes, inputs=(Operand("f32", (k, 0, 1)), Operand("f32", (0, k, 1)))), target)


@pytest.mark.parametrize(
    "sizes",
    [
        *[(1, 1, 1), (3, 5, 7), (17, 33, 9), (40, 49, 300), (1, 70, 600), (128, 96, 1100)],
        *[(M, 33, 20), (17, N, 30), (M, N, M)],
    ],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_epilogue(target, sizes, transposed):
    _, n, k = sizes
    second = Operand("f32", (0, k, 1) if transposed else (0, 1, n))
    epilogue = bias_relu_residual((n, 1, 0), (0, 1, 0))
    nest = matmul(*sizes, inputs=(Operand("f32", (k, 0, 1)), second), epilogue=epilogue)
    check(nest, target, scalars=(3.0,), tasks=3)


def test_epilogue_of_a_reduction_across_lanes(target):
    rows = Operand("f32", (1, 0))
    epilogue = KernelEpilogue((rows,), (rows,), (), (operation("arith.mulf", [reduced(0, "f32"), operand(1)], "f32"),))
    nest = KernelSpec((37, 203), (False, True), (Operand("f32", (203, 1)),), (rows,), (added(operand(0)),))
    kernel = check(replace(nest, initial=ZERO, epilogue=epilogue), target)
    assert kernel.schedule.vector in kernel.schedule.reduction


def test_epilogue_of_a_nest_whose_reduction_is_gone(target):
    """Check an epilogue after its loops are dropped. Loops of one iteration are dropped, also reduction loops."""
    rows = Operand("f32", (1,))
    scaled = KernelEpilogue((rows,), (rows,), (), (operation("arith.mulf", [reduced(0, "f32"), operand(2)], "f32"),))
    nest = KernelSpec((37,), (False,), (rows, rows), (rows,), (SUM_OF_PRODUCTS,), initial=ZERO)
    for epilogue in (scaled, None):
        check(replace(nest, epilogue=epilogue), target)


def test_a_reduction_checks_its_condition(target):
    m, n, k = 5, 19, 4
    limit = numbered_value("scalar", "f32", 0)
    check = operation("arith.cmpf", [operand(0), limit], "i1", "{predicate = 4 : i64}")
    kernel = Kernel(matmul(m, n, k, scalars=("f32",), checks=(check,)), target)
    ones = [np.ones((m, k), np.float32), np.ones((k, n), np.float32), np.zeros((m, n), np.float32)]
    for limit, failed in ((2.0, 0), (1.0, 1)):
        status = np.zeros(1, np.int32)
        kernel([*ones, np.array([limit], np.float32), status])
        assert status[0] == failed


# Blocks that are transposed in registers.


@pytest.mark.parametrize("element", ["f32", "f64", "i32"])
@pytest.mark.parametrize("sizes", [(16, 16), (112, 96), (50, 33), (7, 49), (3, 100), (100, 3), (1, 40), (129, 5)])
def test_transposes(target, sizes, element):
    """Check a matrix whose row stride is larger than a row."""
    rows, columns = sizes
    nest = KernelSpec(
        sizes=(columns, rows),
        reduction=(False, False),
        inputs=(Operand(element, (1, columns + 3)),),
        outputs=(Operand(element, (rows + 2, 1)),),
        values=(operand(0, element),),
    )
    check(nest, target, tasks=2)


@pytest.mark.parametrize("sizes", [(16, 32, 8), (37, 50, 7), (5, 100, 3), (64, 7, 40)])
@pytest.mark.parametrize("with_epilogue", [False, True])
def test_results_that_lie_across(target, sizes, with_epilogue):
    """Check a product whose result is transposed. The operands of the epilogue are not."""
    m, n, k = sizes
    across = Operand("f32", (1, m + 1, 0))
    if not with_epilogue:
        check(replace(matmul(m, n, k), outputs=(across,)), target, tasks=2)
        return
    epilogue = bias_relu_residual((n, 1, 0), (0, 1, 0))
    epilogue = replace(epilogue, outputs=(across, epilogue.outputs[1]))
    check(matmul(m, n, k, epilogue=epilogue), target, (3.0,), 2)


def test_a_transpose_reads_no_lane_on_its_own():
    nest = KernelSpec((96, 112), (False, False), (Operand("f32", (1, 96)),), (Operand("f32", (112, 1)),), (operand(0),))
    text = Kernel(nest, host_target(*AVX512)).text
    assert "vector.shuffle" in text
    assert "gather" not in text


@pytest.mark.parametrize("columns", [1, 7, 8, 9, 12, 16, 17, 28, 40])
def test_no_lane_of_every_second_element_is_read_on_its_own(target, columns):
    """Check windows of 5 in 3 rows with a stride of two, also where the last vector is partial."""
    width = 2 * columns + 3
    nest = KernelSpec(
        sizes=(3, columns, 5),
        reduction=(False, False, True),
        inputs=(Operand("f32", (width, 2, 1)), Operand("f32", (0, 0, 1))),
        outputs=(Operand("f32", (columns, 1, 0)),),
        values=(SUM_OF_PRODUCTS,),
        initial=ZERO,
    )
    kernel = check(nest, target)
    assert kernel.schedule.vector != 1 or "gather" not in kernel.text


# Prefetches and the iteration range.


def scaled_rows(rows: int, columns: int, distance: int) -> KernelSpec:
    """Return a nest that multiplies each row by a number. The rows are ``distance`` elements apart."""
    return KernelSpec(
        sizes=(rows, columns),
        reduction=(False, False),
        inputs=(Operand("f32", (distance, 1)), Operand("f32", (1, 0))),
        outputs=(Operand("f32", (columns, 1)),),
        values=(PRODUCT,),
    )


def row_sums(rows: int, columns: int, distance: int) -> KernelSpec:
    """Return a nest that sums the products of such rows with their numbers."""
    elementwise = scaled_rows(rows, columns, distance)
    outputs = (Operand("f32", (1, 0)),)
    return replace(elementwise, reduction=(False, True), outputs=outputs, values=(SUM_OF_PRODUCTS,), initial=ZERO)


@pytest.mark.parametrize("reduces", [False, True])
def test_each_line_further_on_is_fetched(reduces, monkeypatch):
    """Check that each line of the prefetched place is marked, and no other line. Stores replace the prefetches."""
    nest = row_sums(4, 200, 256) if reduces else scaled_rows(4, 200, 256)
    schedule = choose_schedule(nest, Machine.of(host_target()), ahead=(Fetch(0, 4 * 256 * 4),))
    mark_prefetches(monkeypatch)
    kernel = Kernel(nest, schedule=schedule)
    room = np.zeros(9 * 1024, np.uint8)
    source = room[-room.ctypes.data % 64 :][: 8 * 1024].view(np.float32)
    kernel([source, np.ones(4, np.float32), np.zeros(4 * 200, np.float32)])
    lines = source.view(np.uint8).reshape(8, 16, 64)
    assert not lines[:4].any()
    # 200 elements are 12.5 lines.
    assert lines[4:, :13].any(axis=2).all()
    assert not lines[4:, 13:].any()


@pytest.mark.parametrize("reduces", [False, True])
def test_the_same_lines_of_other_buffers_are_fetched(reduces, monkeypatch):
    """Check the same for two buffers that are prefetched with the strides of the first operand."""
    nest = row_sums(4, 200, 256) if reduces else scaled_rows(4, 200, 256)
    schedule = choose_schedule(nest, Machine.of(host_target()), ahead=(Fetch(0, beside=0), Fetch(0, beside=1)))
    mark_prefetches(monkeypatch)
    kernel = Kernel(nest, schedule=schedule)
    room = np.zeros(13 * 1024, np.uint8)
    blocks = room[-room.ctypes.data % 64 :][: 12 * 1024].view(np.float32).reshape(3, 1024)
    kernel([blocks[1], np.ones(4, np.float32), np.zeros(4 * 200, np.float32), blocks[2], blocks[0]])
    lines = blocks.view(np.uint8).reshape(3, 4, 16, 64)
    assert not lines[1].any()
    assert lines[::2, :, :13].any(axis=3).all()
    assert not lines[::2, :, 13:].any()


def test_an_undivided_nest_computes_row_constants_once():
    """Check that a value that is constant in a row is computed once for the row."""
    small, large = (choose_schedule(scaled_rows(n, n, n), Machine.of(host_target())) for n in (40, 4096))
    assert (small.ranged, small.iterations, small.grain) == (1, 40, 0)
    assert large.iterations > large.grain > 0


# Blocks of all sizes.


def blocked(schedule: Schedule, nest: KernelSpec, steps: int, tiles: int) -> Schedule:
    """Return ``schedule`` with blocks.

    All parallel loops but the first are inside blocks of ``steps`` of the outermost reduction loop. The last parallel
    loop is in blocks of ``tiles`` tiles.
    """
    first, *others = schedule.levels
    last = others[-1] if others else first
    levels = (
        first,
        *([] if last is first else [Level(last.loop, last.step * tiles)]),
        Level(schedule.reduction[0], steps),
        *others,
    )
    iterations = -(-nest.sizes[first.loop] // first.step)
    return replace(schedule, levels=levels, ranged=1, iterations=iterations)


@pytest.mark.parametrize(("steps", "tiles"), [(16, 1), (7, 2), (100, 3)])
@pytest.mark.parametrize("with_epilogue", [False, True])
def test_blocks_of_a_reduction(target, steps, tiles, with_epilogue):
    m, n, k = 37, 101, 100
    epilogue = bias_relu_residual((n, 1, 0), (0, 1, 0)) if with_epilogue else None
    for initial in (ZERO, None)[: 1 if with_epilogue else 2]:
        nest = matmul(m, n, k, epilogue=epilogue, initial=initial)
        schedule = blocked(choose_schedule(nest, Machine.of(target)), nest, steps, tiles)
        check(nest, target, (3.0,) if with_epilogue else (), 2, schedule)


def test_large_products_are_blocked():
    """Check a blocked reduction. Rows of 4 KiB map to few cache sets, so the chosen schedule has blocks."""
    kernel = check(matmul(48, 1024, 1024), target_with("avx512"))
    assert any(level.loop == 2 for level in kernel.schedule.levels)


# Random nests.


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(nest=contractions(), tasks=st.integers(1, 4), steps=st.integers(0, 9), tiles=st.integers(1, 3))
@pytest.mark.sampled(1)
def test_random_contractions(target, nest, tasks, steps, tiles):
    schedule = choose_schedule(nest, Machine.of(target))
    if steps and schedule.levels and schedule.vector not in schedule.reduction:
        schedule = blocked(schedule, nest, min(steps, nest.sizes[schedule.reduction[0]]), tiles)
    check(nest, target, (2.0,) if nest.epilogue else (), tasks, schedule)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(nest=others(), tasks=st.integers(1, 4))
@pytest.mark.sampled(1)
def test_random_reductions_and_elementwise(target, nest, tasks):
    check(nest, target, tasks=tasks)

"""Kernels of single nests: whatever the schedule, they compute what the nest says and write nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nest_running import DTYPES, Kernel, host_target, reference, span

from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.nests import Epilogue, Instruction, Nest, Operand
from torchmdla.devices.cpu.schedule import Level, Schedule, choose

AVX512 = ("+avx", "+avx2", "+fma", "+avx512f", "+avx512bw", "+avx512dq", "+avx512vl")
TARGETS = {"avx512": AVX512, "avx2": ("+avx", "+avx2", "+fma"), "none": ("",)}

ZERO = Instruction("arith.constant", (), "f32", "{value = 0.0 : f32}")
MULTIPLY_ADD = (Instruction("arith.mulf", (0, 1), "f32"), Instruction("arith.addf", (2, 3), "f32"))


@pytest.fixture(params=TARGETS)
def target(request):
    wanted = [f for f in TARGETS[request.param] if f]
    available = host_target().features.split(",")
    if any(feature not in available for feature in wanted):
        pytest.skip("this machine lacks the target's features")
    return host_target(*TARGETS[request.param])


def arrays_of(nest: Nest, seed: int, scalars: Sequence[float] = ()) -> list[np.ndarray]:
    """Operands that hold small integers, so that sums are exact in any order, and a guard past their end."""
    generator = np.random.default_rng(seed)
    made = [generator.integers(-4, 5, span(o, nest.sizes) + 16).astype(DTYPES[o.element]) for o in nest.operands]
    elements = nest.scalars + (nest.epilogue.scalars if nest.epilogue else ())
    return made + [np.array([v], DTYPES[e]) for v, e in zip(scalars, elements, strict=True)]


def check(
    nest: Nest, target, scalars: Sequence[float] = (), tasks: int = 1, schedule: Schedule | None = None
) -> Kernel:
    arrays = arrays_of(nest, 0, scalars)
    before = [a.copy() for a in arrays]
    expected = reference(nest, arrays)
    kernel = Kernel(nest, target, schedule)
    if any(nest.reduction):
        accumulators = math.prod(kernel.schedule.tiles) // kernel.schedule.lanes
        assert accumulators < Machine.of(target).registers
    kernel(arrays, min(tasks, kernel.schedule.iterations))
    first = len(nest.operands) - len(expected)
    for position, array in enumerate(arrays):
        wanted = expected[position - first] if first <= position < len(nest.operands) else before[position]
        np.testing.assert_array_equal(array, wanted)
    return kernel


def matmul(m: int, n: int, k: int, **changes: object) -> Nest:
    values = {
        "sizes": (m, n, k),
        "reduction": (False, False, True),
        "inputs": (Operand("f32", (k, 0, 1)), Operand("f32", (0, 1, n))),
        "outputs": (Operand("f32", (n, 1, 0)),),
        "scalars": (),
        "tables": (),
        "body": MULTIPLY_ADD,
        "yields": (4,),
        "initial": ZERO,
        **changes,
    }
    return Nest(**values)


def bias_relu_residual(strides: Sequence[int], bias: Sequence[int]) -> Epilogue:
    """``max(x + bias, 0) * scalar + residual``, and ``x`` itself in ``f32``."""
    same = Operand("f32", tuple(strides))
    return Epilogue(
        inputs=(Operand("f32", tuple(bias)), same),
        outputs=(same, same),
        scalars=("f32",),
        body=(
            Instruction("arith.addf", (0, 1), "f32"),
            Instruction("arith.constant", (), "f32", "{value = 0.0 : f32}"),
            Instruction("arith.maximumf", (4, 5), "f32"),
            Instruction("arith.mulf", (6, 3), "f32"),
            Instruction("arith.addf", (7, 2), "f32"),
        ),
        yields=(8, 0),
    )


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (3, 5, 7), (8, 48, 16), (17, 33, 9), (14, 100, 40), (50, 64, 300), (1, 70, 600), (129, 65, 31)]
)
def test_matmul(target, sizes):
    check(matmul(*sizes), target)
    check(matmul(*sizes, initial=None), target, tasks=2)


@pytest.mark.parametrize("sizes", [(3, 5, 7), (17, 33, 9), (1, 70, 600), (64, 64, 64)])
def test_transposed_factors(target, sizes):
    m, _, k = sizes
    check(matmul(*sizes, inputs=(Operand("f32", (1, 0, m)), Operand("f32", (0, k, 1)))), target, tasks=2)
    check(matmul(*sizes, inputs=(Operand("f32", (k, 0, 1)), Operand("f32", (0, k, 1)))), target)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 7), (17, 33, 9), (40, 49, 300), (1, 70, 600), (128, 96, 1100)])
@pytest.mark.parametrize("transposed", [False, True])
def test_epilogue(target, sizes, transposed):
    _, n, k = sizes
    second = Operand("f32", (0, k, 1) if transposed else (0, 1, n))
    epilogue = bias_relu_residual((n, 1, 0), (0, 1, 0))
    nest = matmul(*sizes, inputs=(Operand("f32", (k, 0, 1)), second), epilogue=epilogue)
    check(nest, target, scalars=(3.0,), tasks=3)


def test_epilogue_of_a_reduction_across_lanes(target):
    rows = Operand("f32", (1, 0))
    epilogue = Epilogue((rows,), (rows,), (), (Instruction("arith.mulf", (0, 1), "f32"),), (2,))
    body = (Instruction("arith.addf", (0, 1), "f32"),)
    kernel = check(
        Nest((37, 203), (False, True), (Operand("f32", (203, 1)),), (rows,), (), (), body, (2,), ZERO, epilogue), target
    )
    assert kernel.schedule.vector in kernel.schedule.reduction


def test_epilogue_of_a_nest_whose_reduction_is_gone(target):
    """Loops of one iteration are dropped, also those that reduce."""
    rows = Operand("f32", (1,))
    epilogue = Epilogue((rows,), (rows,), (), (Instruction("arith.mulf", (0, 1), "f32"),), (2,))
    for ending in (epilogue, None):
        check(Nest((37,), (False,), (rows, rows), (rows,), (), (), MULTIPLY_ADD, (4,), ZERO, ending), target)


def test_epilogue_checks_its_condition(target):
    m, n, k = 5, 19, 4
    epilogue = Epilogue(
        inputs=(),
        outputs=(Operand("f32", (n, 1, 0)),),
        scalars=("f32",),
        body=(
            Instruction("arith.cmpf", (0, 1), "i1", "{predicate = 4 : i64}"),
            Instruction("assert", (2,), "i1"),
        ),
        yields=(0,),
    )
    kernel = Kernel(matmul(m, n, k, epilogue=epilogue), target)
    ones = [np.ones((m, k), np.float32), np.ones((k, n), np.float32), np.zeros((m, n), np.float32)]
    for limit, failed in ((5.0, 0), (4.0, 1)):
        status = np.zeros(1, np.int32)
        kernel([*ones, np.array([limit], np.float32), status])
        assert status[0] == failed


# Blocks, whatever their sizes.


def blocked(schedule: Schedule, nest: Nest, steps: int, tiles: int) -> Schedule:
    """``schedule`` with all its parallel loops but the first inside blocks of ``steps`` of the outermost loop that
    reduces, and its last parallel loop in blocks of ``tiles`` tiles."""
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
        schedule = blocked(choose(nest, Machine.of(target)), nest, steps, tiles)
        check(nest, target, (3.0,) if with_epilogue else (), 2, schedule)


def test_large_products_are_blocked():
    """Rows of 4 KiB fall into few sets of the cache: the chosen schedule goes through the reduction in blocks."""
    kernel = check(matmul(48, 1024, 1024), host_target(*AVX512))
    assert any(level.loop == 2 for level in kernel.schedule.levels)


# Random nests.


def strides_of(draw: st.DrawFn, sizes: Sequence[int], loops: Sequence[int]) -> tuple[int, ...]:
    """A dense or padded layout over ``loops`` in random order; others do not move it."""
    strides = [0] * len(sizes)
    step = draw(st.sampled_from([1, 1, 1, 2, 3]))
    for loop in draw(st.permutations(loops)):
        strides[loop] = step
        step = step * sizes[loop] + draw(st.sampled_from([0, 0, 1, 5]))
    return tuple(strides)


@st.composite
def contractions(draw: st.DrawFn) -> Nest:
    """Rows, columns, batches and reductions of random number and sizes; perhaps sliding windows; perhaps an
    epilogue."""
    kinds = draw(st.lists(st.sampled_from("rcbk"), min_size=1, max_size=5))
    sizes = tuple(draw(st.sampled_from([1, 2, 3, 5, 7, 8, 14, 16, 17, 24, 33])) for _ in kinds)
    while math.prod(sizes) > 40_000:
        sizes = tuple(max(1, size // 2) for size in sizes)
    kinds = [*kinds, "k"]
    sizes = (*sizes, draw(st.integers(1, 20)))

    def over(letters: str) -> Operand:
        return Operand("f32", strides_of(draw, sizes, [d for d, kind in enumerate(kinds) if kind in letters]))

    first, second, output = over("rbk"), over("cbk"), over("rcb")
    if draw(st.booleans()) and "r" in kinds:
        strides = list(first.strides)
        strides[kinds.index("k")] = strides[kinds.index("r")]
        first = Operand("f32", tuple(strides))
    epilogue = None
    if draw(st.booleans()):
        epilogue = bias_relu_residual(output.strides, over(draw(st.sampled_from(["r", "c", "b", "rc"]))).strides)
    return Nest(
        sizes=sizes,
        reduction=tuple(kind == "k" for kind in kinds),
        inputs=(first, second),
        outputs=(output,),
        scalars=(),
        tables=(),
        body=MULTIPLY_ADD,
        yields=(4,),
        initial=ZERO if epilogue or draw(st.booleans()) else None,
        epilogue=epilogue,
    )


@st.composite
def others(draw: st.DrawFn) -> Nest:
    """Elementwise nests and reductions of one element type."""
    element, ops = draw(
        st.sampled_from([("f32", ("arith.addf", "arith.maximumf")), ("f64", ("arith.addf",)), ("i8", ("arith.addi",)),
                         ("i64", ("arith.addi", "arith.maxsi"))])
    )  # fmt: skip
    sizes = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 7, 9, 16, 31, 40]), min_size=1, max_size=4)))
    while math.prod(sizes) > 40_000:
        sizes = tuple(max(1, size // 2) for size in sizes)
    reduction = tuple(draw(st.booleans()) for _ in sizes)
    every, kept = range(len(sizes)), [d for d, flag in enumerate(reduction) if not flag]
    combine = draw(st.sampled_from(ops))
    body = (Instruction(combine, (0, 1), element), Instruction(combine, (2, 3), element))
    return Nest(
        sizes=sizes,
        reduction=reduction,
        inputs=tuple(Operand(element, strides_of(draw, sizes, list(every))) for _ in range(2)),
        outputs=(Operand(element, strides_of(draw, sizes, kept)),),
        scalars=(),
        tables=(),
        body=body if any(reduction) else (body[0], Instruction(combine, (3, 0), element)),
        yields=(4,),
    )


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(nest=contractions(), tasks=st.integers(1, 4), steps=st.integers(0, 9), tiles=st.integers(1, 3))
def test_random_contractions(target, nest, tasks, steps, tiles):
    schedule = choose(nest, Machine.of(target))
    if steps and schedule.levels and schedule.vector not in schedule.reduction:
        schedule = blocked(schedule, nest, min(steps, nest.sizes[schedule.reduction[0]]), tiles)
    check(nest, target, (2.0,) if nest.epilogue else (), tasks, schedule)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(nest=others(), tasks=st.integers(1, 4))
def test_random_reductions_and_elementwise(target, nest, tasks):
    check(nest, target, tasks=tasks)

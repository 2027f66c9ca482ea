"""Nests for tests of kernels: products of matrices, epilogues, and random nests with static or dynamic sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import strategies as st
from nest_running import DTYPES, Kernel, host_target, reference, span

from torchmdla.compiler.program import Target
from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.ir.expressions import Expression, accumulator, constant, numbered_value, operation, reduced
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest, KernelEpilogue, KernelSpec, Operand, specialise
from torchmdla.devices.cpu.schedule import Schedule
from torchmdla.devices.cpu.target.machine import Machine

AVX512 = ("+avx", "+avx2", "+fma", "+avx512f", "+avx512bw", "+avx512dq", "+avx512vl")
TARGETS = {"avx512": AVX512, "avx2": ("+avx", "+avx2", "+fma"), "none": ("",)}

# Two symbols, and the dynamic sizes of them.
M, N = Size.symbol(0), Size.symbol(1)
DYNAMIC = (M, N, M + 1, N - 2, 2 * M, 16 * N, M + N)

# Typical values of the symbols, and values around the edges of tiles and vectors.
TYPICAL = (64, 64)
PAIRS = [(2, 2), (3, 70), (7, 16), (8, 17), (9, 33), (16, 48), (17, 50), (70, 3), (64, 64), (33, 32)]

ZERO = constant(0.0, "f32")


def operand(number: int, element: str = "f32") -> Expression:
    """Return the element of one of a kernel's operands that an iteration reads."""
    return numbered_value("operand", element, number)


def added(value: Expression) -> Expression:
    """Return a sum of ``value`` over the reduction loops."""
    return operation("arith.addf", [value, accumulator(0, value.type)], value.type)


PRODUCT = operation("arith.mulf", [operand(0), operand(1)], "f32")
SUM_OF_PRODUCTS = added(PRODUCT)


def target_with(features: str) -> Target:
    """Return this machine with one of ``TARGETS``. Skip the test if the machine lacks the features."""
    return available_target(*TARGETS[features])


def available_target(*features: str) -> Target:
    """Return this machine with ``features``. Skip the test if the machine lacks one of them."""
    available = host_target().features.split(",")
    if any(feature and feature not in available for feature in features):
        pytest.skip("this machine lacks the target's features")
    return host_target(*features)


def arrays_of(nest: KernelSpec, seed: int, scalars: Sequence[float] = ()) -> list[np.ndarray]:
    """Return operands of small integers, so that sums are exact in any order, with a guard after their end."""
    generator = np.random.default_rng(seed)
    arrays = [generator.integers(-4, 5, span(o, nest.sizes) + 16).astype(DTYPES[o.element]) for o in nest.operands]
    elements = nest.scalars + (nest.epilogue.scalars if nest.epilogue else ())
    return arrays + [np.array([v], DTYPES[e]) for v, e in zip(scalars, elements, strict=True)]


def check(
    nest: AnyNest,
    target: Target,
    scalars: Sequence[float] = (),
    tasks: int = 1,
    schedule: Schedule | None = None,
    points: Sequence[tuple[int, ...]] = (),
    typical: tuple[int, ...] = TYPICAL,
) -> Kernel:
    """Run the kernel of a nest at all ``points``, which are values of its symbols. Only results may be written."""
    is_static = isinstance(math.prod(nest.sizes), int)
    kernel = Kernel(nest, target, schedule, () if is_static else typical)
    if is_static and schedule is None and any(nest.reduction):
        accumulators = math.prod(kernel.schedule.tiles) // kernel.schedule.lanes
        assert accumulators < Machine.of(target).registers
    for values in points or ([()] if is_static else PAIRS):
        there = specialise(nest, values)
        arrays = arrays_of(there, 0, scalars)
        before = [a.copy() for a in arrays]
        expected = reference(there, arrays)
        kernel(arrays, max(1, min(tasks, kernel.iterations(values))), values)
        first = len(nest.operands) - len(expected)
        for position, array in enumerate(arrays):
            wanted = expected[position - first] if first <= position < len(nest.operands) else before[position]
            np.testing.assert_array_equal(array, wanted, err_msg=f"operand {position} at {values}")
    return kernel


def matmul(m: int, n: int, k: int, **changes: object) -> KernelSpec:
    values = {
        "sizes": (m, n, k),
        "reduction": (False, False, True),
        "inputs": (Operand("f32", (k, 0, 1)), Operand("f32", (0, 1, n))),
        "outputs": (Operand("f32", (n, 1, 0)),),
        "values": (SUM_OF_PRODUCTS,),
        "initial": ZERO,
        **changes,
    }
    return KernelSpec(**values)


def bias_relu_residual(strides: Sequence[int], bias: Sequence[int]) -> KernelEpilogue:
    """Return ``max(x + bias, 0) * scalar + residual``, and ``x`` itself, in ``f32``, for a nest of two inputs."""
    same = Operand("f32", tuple(strides))
    result = reduced(0, "f32")
    biased = operation("arith.addf", [result, operand(2)], "f32")
    positive = operation("arith.maximumf", [biased, ZERO], "f32")
    scaled = operation("arith.mulf", [positive, numbered_value("scalar", "f32", 0)], "f32")
    return KernelEpilogue(
        inputs=(Operand("f32", tuple(bias)), same),
        outputs=(same, same),
        scalars=("f32",),
        values=(operation("arith.addf", [scaled, operand(3)], "f32"), result),
    )


def strides_of(draw: st.DrawFn, sizes: Sequence[int | Size], loops: Sequence[int]) -> tuple[int | Size, ...]:
    """Return a dense or padded layout over ``loops`` in random order. The strides of other loops are 0."""
    strides: list[int | Size] = [0] * len(sizes)
    step: int | Size = draw(st.sampled_from([1, 1, 1, 2, 3]))
    for loop in draw(st.permutations(loops)):
        strides[loop] = step
        step = sizes[loop] * step + draw(st.sampled_from([0, 0, 1, 5]))
    return tuple(strides)


def sizes_of(draw: st.DrawFn, count: int, common: Sequence[int], symbols: bool) -> tuple[int | Size, ...]:
    """Return ``count`` sizes. With ``symbols``, up to two of them are polynomials of two symbols."""
    sizes = tuple(draw(st.sampled_from(common)) for _ in range(count))
    while math.prod(sizes) > (200 if symbols else 40_000):
        sizes = tuple(max(1, size // 2) for size in sizes)
    if not symbols:
        return sizes
    chosen = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2, unique=True))
    return tuple(draw(st.sampled_from(DYNAMIC)) if d in chosen else size for d, size in enumerate(sizes))


@st.composite
def contractions(draw: st.DrawFn, symbols: bool = False) -> AnyNest:
    """Return rows, columns, batches and reductions of random number and sizes.

    There may be sliding windows and an epilogue.
    """
    kinds = draw(st.lists(st.sampled_from("rcbk"), min_size=1, max_size=3 if symbols else 5))
    sizes = sizes_of(draw, len(kinds), [1, 2, 3, 5, 7, 8, 14, 16, 17, 24, 33], symbols)
    kinds = [*kinds, "k"]
    sizes = (*sizes, draw(st.sampled_from([*DYNAMIC, 5]) if symbols else st.integers(1, 20)))

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
    return KernelSpec(
        sizes=sizes,
        reduction=tuple(kind == "k" for kind in kinds),
        inputs=(first, second),
        outputs=(output,),
        values=(SUM_OF_PRODUCTS,),
        initial=ZERO if epilogue or draw(st.booleans()) else None,
        epilogue=epilogue,
    )


@st.composite
def others(draw: st.DrawFn, symbols: bool = False) -> AnyNest:
    """Return elementwise nests and reductions of one element type."""
    element, ops = draw(
        st.sampled_from([("f32", ("arith.addf", "arith.maximumf")), ("f64", ("arith.addf",)), ("i8", ("arith.addi",)),
                         ("i64", ("arith.addi", "arith.maxsi"))])
    )  # fmt: skip
    sizes = sizes_of(draw, draw(st.integers(1, 4)), [1, 2, 3, 4, 7, 9, 16, 31, 40], symbols)
    reduction = tuple(draw(st.booleans()) for _ in sizes)
    every, retained = range(len(sizes)), [d for d, flag in enumerate(reduction) if not flag]
    combine = draw(st.sampled_from(ops))
    both = operation(combine, [operand(0, element), operand(1, element)], element)
    other = accumulator(0, element) if any(reduction) else operand(0, element)
    return KernelSpec(
        sizes=sizes,
        reduction=reduction,
        inputs=tuple(Operand(element, strides_of(draw, sizes, list(every))) for _ in range(2)),
        outputs=(Operand(element, strides_of(draw, sizes, retained)),),
        values=(operation(combine, [other, both] if any(reduction) else [both, other], element),),
    )

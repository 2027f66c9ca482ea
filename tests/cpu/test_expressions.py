"""Expressions: equal expressions are one object, rewriting keeps unchanged ones, and kernels number their operands."""

from __future__ import annotations

import functools
import math
import pickle

import numpy as np
import pytest
from nest_running import Kernel
from torch_mlir import ir

from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.element_types import constant_text
from torchmdla.devices.cpu.ir.expressions import (
    Expression,
    accumulator,
    constant,
    contents,
    index,
    load,
    map_loads,
    numbered_value,
    operation,
    rewrite,
    substitute,
)
from torchmdla.devices.cpu.ir.loop_program import LoopNest, number_leaves
from torchmdla.devices.cpu.ir.printer import nest_text
from torchmdla.devices.cpu.tuning.measuring import Bench

X, Y = Access.identity(Buffer("input", "f32", (4,), 0)), Access.identity(Buffer("input", "f32", (4,), 1))


def add(a: Expression, b: Expression) -> Expression:
    return operation("arith.addf", [a, b], "f32")


def test_equal_expressions_are_one() -> None:
    assert add(load(X), constant(1.0, "f32")) is add(load(X), constant(1, "f32"))
    assert add(load(X), load(Y)) is not add(load(Y), load(X))


def test_a_copy_by_pickle_is_interned() -> None:
    (total,) = pickle.loads(pickle.dumps([add(add(load(X), load(X)), constant(-0.0, "f32"))]))
    (left, zero) = total.operands
    assert total is add(left, zero)
    assert left.operands[0] is left.operands[1]
    assert zero is constant(-0.0, "f32")


@pytest.mark.parametrize(
    ("first", "other"),
    [((0.0, "f32"), (-0.0, "f32")), ((1, "i1"), (True, "i32")), ((1.0, "f32"), (1.0, "f64")), ((1, "i64"), (1, "i32"))],
)
def test_constants_that_compare_equal_and_are_not(first: tuple[float, str], other: tuple[float, str]) -> None:
    assert constant(*first) is not constant(*other)


def test_a_value_that_two_read_is_computed_once() -> None:
    total = add(load(X), load(Y))
    nest = LoopNest.elementwise((4,), X, add(total, total)).kernel
    assert [e.operands for e in nest.body] == [number_leaves((load(X), load(Y))), number_leaves((total, total))]


def test_many_operands_in_one_buffer_have_one_pointer() -> None:
    """Check that many operands in one buffer have one pointer, and that a few have one pointer each.

    Kernels of a few operands that differ only in the distance are then equal.
    """

    def sum_of_shifted(distances: list[int]) -> LoopNest:
        source = Buffer("input", "f32", (40,), 0)
        taps = [load(Access(source, (AffineExpr((1,), distance),))) for distance in distances]
        return LoopNest.elementwise((4,), Y, functools.reduce(add, taps))

    step = sum_of_shifted([3, 0, 7, 5])
    assert [(operand.base, operand.offset) for operand in step.kernel.operands] == [
        (None, 0),
        (0, -3),
        (0, 4),
        (0, 2),
        (None, 0),
    ]
    assert [step.places[number][1] for number in step.pointer_places] == [3, 0]
    assert "from operand0[-3]" in nest_text(step.kernel)
    assert sum_of_shifted([3, 0, 7]).kernel == sum_of_shifted([3, 5, 6]).kernel
    assert sum_of_shifted([3, 0, 7, 5]).kernel != sum_of_shifted([3, 0, 7, 6]).kernel

    source, result = np.arange(40, dtype=np.float32) ** 2, np.zeros(4, np.float32)
    kernel = Kernel(step.kernel)
    kernel([source[3:], result])
    np.testing.assert_array_equal(result, sum(source[distance : distance + 4] for distance in (3, 0, 7, 5)))
    # The memory of a bench begins before the element that the pointer addresses.
    assert [array.size for array in Bench(step.kernel, ()).results(kernel)] == [4]


def test_operands_come_first_however_deep() -> None:
    value = load(X)
    for _ in range(5000):
        value = add(value, load(Y))
    program = contents((value,))
    places = {expression: k for k, expression in enumerate(program.expressions)}
    assert all(places[operand] < places[e] for e in program.expressions for operand in e.operands)
    assert program.loads == (X, Y)


def test_rewriting_starts_with_operands() -> None:
    value = add(index(0), add(index(1), load(X)))
    assert rewrite([value], lambda e: index(e.payload + 1) if e.op == "index" else None) == (
        add(index(1), add(index(2), load(X))),
    )


def test_unreplaced_expressions_stay_the_same_object() -> None:
    unchanged, changed = add(load(X), load(X)), add(load(Y), load(X))
    assert substitute([unchanged, changed], {load(Y): load(X)}) == (unchanged, unchanged)
    shifted = Access(X.buffer, (AffineExpr((1,), 1),))
    assert map_loads([unchanged], lambda access: shifted) == (add(load(shifted), load(shifted)),)


def test_operands_of_a_kernel_are_numbered() -> None:
    """Check operand numbers. Nests that do the same to other buffers are then equal."""
    total = accumulator(0, "f32")
    assert number_leaves((add(total, load(X)),)) == number_leaves((add(total, load(Y)),))
    assert number_leaves((add(load(X), load(X)),)) != number_leaves((add(load(X), load(Y)),))
    assert number_leaves((add(load(X), total),), first_operand=2) == (add(numbered_value("operand", "f32", 2), total),)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("number", [0.0, -0.0, 1e-5, 0.1, 65504.0, -3e38, math.inf, -math.inf, math.nan, 5e-324])
def test_floats_as_text(number: float, kind: str) -> None:
    """Check that MLIR parses the printed text to the same number."""
    with ir.Context(), ir.Location.unknown():
        attribute = ir.FloatAttr.get(ir.Type.parse(kind), number)
        read = ir.Attribute.parse(f"{constant_text(attribute.value, kind)} : {kind}")
        assert str(read) == str(attribute)

"""Equal factors of products: they are computed once, unless their sources change."""

from __future__ import annotations

import pytest
from test_strassen import count, linear
from test_winograd import steps_of, target
from written_programs import Builder, Value, check, normal

from torchmdla.devices.cpu.ir.accesses import Access, Buffer, Kind
from torchmdla.devices.cpu.ir.expressions import accumulator, constant, load, operation
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram
from torchmdla.devices.cpu.passes.bilinear_maps import PRODUCTS
from torchmdla.devices.cpu.passes.share_buffers import merge_equal

SIZE = 8


def of_one_input(b: Builder) -> list[Value]:
    x = b.input(normal(64, 256))
    return [linear(b, x, 384) for _ in range(3)]


def of_two_inputs(b: Builder) -> list[Value]:
    x = b.input(normal(64, 256))
    hidden = linear(b, x, 384)
    return [linear(b, x, 384), linear(b, hidden, 256)]


@pytest.mark.parametrize(("layers", "sums"), [(of_one_input, 1), (of_two_inputs, 2)])
@pytest.mark.sampled(1)
def test_sums_of_layers(layers, sums) -> None:
    b = Builder()
    results = layers(b)
    assert count(b, results) == 3
    sums_nests = [nest for nest in steps_of(b, results, target("strassen")).nests() if len(nest.outputs) == PRODUCTS]
    assert len(sums_nests) == sums
    check(b, results, target("strassen"))


def matrix(kind: Kind = "temporary") -> Buffer:
    return Buffer(kind, "f32", (SIZE, SIZE))


def doubled(source: Buffer, target_buffer: Buffer) -> LoopNest:
    places = [Access.of_loops(buffer, (0, 1), 2) for buffer in (source, target_buffer)]
    value = operation("arith.mulf", [load(places[0]), constant(2.0, "f32")], "f32")
    return LoopNest.elementwise((SIZE, SIZE), places[1], value)


def product(left: Buffer, right: Buffer) -> LoopNest:
    result, a, b = (
        Access.of_loops(buffer, loops, 3)
        for buffer, loops in ((matrix("result"), (0, 1)), (left, (0, 2)), (right, (2, 1)))
    )
    value = operation("arith.mulf", [load(a), load(b)], "f32")
    total = operation("arith.addf", [accumulator(0, "f32"), value], "f32")
    return LoopNest((SIZE,) * 3, (False, False, True), (result,), (total,), constant(0.0, "f32"))


@pytest.mark.parametrize("between", ["nothing", "source", "made", "reader"])
def test_changed_values_are_recomputed(between: str) -> None:
    """Check equal steps with another step between them.

    It writes the source, writes the first result again, or reads the first result.
    """
    source, other, first, second = matrix("input"), matrix("parameter"), matrix(), matrix()
    steps = [doubled(source, first), product(first, other)]
    steps += {
        "nothing": [],
        "source": [doubled(other, source)],
        "made": [doubled(other, first), product(first, other)],
        "reader": [doubled(first, matrix("result"))],
    }[between]
    program = LoopProgram([*steps, doubled(source, second), product(second, other)], {})
    before = len(program.steps)
    merge_equal(program)
    merged = between == "nothing"
    assert len(program.steps) == before - merged
    assert (first if merged else second) in program.steps[-1].reads

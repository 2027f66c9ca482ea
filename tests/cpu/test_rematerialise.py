"""Rematerialisation of a chain's values at their readers: the values that are recomputed or stored, and the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nest_running import reference
from test_tile_fusion import COLUMNS, ROWS, attention, buffer, chains, layer_norm, row, softmax, whole
from test_tile_fusion import row_sum as summed
from written_programs import TracedProgram

from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer, Scalar
from torchmdla.devices.cpu.ir.expressions import Expression, accumulator, constant, load, operation, scalar
from torchmdla.devices.cpu.ir.loop_program import LoopNest
from torchmdla.devices.cpu.passes.rematerialise import rematerialise


def sub(a: Expression, b: Expression) -> Expression:
    return operation("arith.subf", [a, b], "f32")


def square(a: Expression) -> Expression:
    return operation("arith.mulf", [a, a], "f32")


def at(buffer_read: Buffer, *indices: tuple[int, ...] | AffineExpr) -> Access:
    return Access(buffer_read, tuple(i if isinstance(i, AffineExpr) else AffineExpr(i) for i in indices))


def step(
    inputs: Sequence[Access], output: Access, value: Callable[..., Expression], sizes: tuple[int, ...] = (ROWS, COLUMNS)
) -> LoopNest:
    """Return an elementwise nest of ``value`` of the elements that it reads."""
    return LoopNest.elementwise(sizes, output, value(*map(load, inputs)))


def squares(source: Buffer) -> LoopNest:
    return step([whole(source)], whole(buffer("result")), square)


def unchanged(members: list[LoopNest], local: Sequence[Buffer]) -> bool:
    return rematerialise(members, local) == members


# Effect on programs.


def test_a_normalisation_stores_no_differences() -> None:
    (chain,) = chains(layer_norm(300, 512).steps())
    assert {b.sizes[1:] for b in chain.locals} == {(1,)}
    assert len(chain.members) == 4


@pytest.mark.parametrize(("program", "members"), [(softmax(300, 512), 4), (attention(4, 160, 32), 5)])
def test_exponentials_are_computed_once(program: TracedProgram, members: int) -> None:
    (chain,) = chains(program.steps())
    assert len(chain.members) == members


# Values.


def run(members: Sequence[LoopNest | None], memory: dict[Buffer, np.ndarray]) -> None:
    """Run members on the buffers' flat contents."""
    for member in members:
        if member is not None:
            nest, places = member.kernel, member.places
            stored = reference(nest, [memory[b][offset:] for b, offset in places])  # type: ignore[arg-type]
            for (b, offset), result in zip(places[-len(stored) :], stored, strict=True):
                memory[b][offset:] = result


# By name of a producer: the sizes of x for it, and the indices of x in the order of the producer's loops. _SIZES are
# the sizes of the produced value.
_SIZES = (5, 6)
_MAKERS = {
    "whole": ((5, 6), [(1, 0), (0, 1)]),
    "turned": ((6, 5), [(0, 1), (1, 0)]),
    "shifted": ((7, 9), [AffineExpr((1, 0), 2), AffineExpr((0, 1), 3)]),
    "every second": ((5, 12), [(1, 0), AffineExpr((0, 2), 1)]),
    "flat": ((30,), [(6, 1)]),
    "in a plane": ((2, 6, 5), [AffineExpr((0, 0), 1), (0, 1), (1, 0)]),
}
# By name of a reader: its sizes, and its indices of the value.
_READERS = {
    "whole": ((5, 6), [(1, 0), (0, 1)]),
    "turned": ((6, 5), [(0, 1), (1, 0)]),
    "a part": ((3, 4), [AffineExpr((1, 0), 2), AffineExpr((0, 1), 1)]),
    "every second": ((5, 3), [(1, 0), AffineExpr((0, 2), 1)]),
    "split": ((5, 2, 3), [(1, 0, 0), (0, 3, 1)]),
    "one row": ((6,), [AffineExpr((0,), 4), (1,)]),
}


@given(
    maker=st.sampled_from(sorted(_MAKERS)),
    readers=st.lists(st.sampled_from(sorted(_READERS)), min_size=1, max_size=2),
    reduces=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_values(maker: str, readers: list[str], reduces: bool, seed: int) -> None:
    sizes, indices = _MAKERS[maker]
    x, mean = buffer("input", sizes), buffer("input", (5, 1))
    middle = buffer(sizes=_SIZES)
    first = step([at(x, *indices), row(mean)], whole(middle), sub, _SIZES)
    reading = []
    for name in readers:
        extents, places = _READERS[name]
        loops = len(extents)
        loop_indices = [tuple(int(k == d) for k in range(loops)) for d in range(loops)]
        other = buffer("input", extents)
        inputs = [at(other, *loop_indices), at(middle, *places)]
        made_of = step(inputs, at(buffer("result", extents), *loop_indices), lambda a, b: sub(square(b), a), extents)
        if reduces:
            total = buffer("result", (*extents[:-1], 1))
            made_of.outputs = (at(total, *loop_indices[:-1], (0,) * loops),)
            made_of.reduction = (*made_of.reduction[:-1], True)
            made_of.values = (operation("arith.addf", [accumulator(0, "f32"), *made_of.values], "f32"),)
            made_of.initial = constant(1.0, "f32")
        reading.append(made_of)
    members = [first, *reading]
    after = rematerialise(members, [middle])
    assert after[0] is None
    generator = np.random.default_rng(seed)
    memory = {b: generator.standard_normal(b.count).astype(np.float32) for m in members for b in [*m.reads, *m.writes]}
    again = {b: data.copy() for b, data in memory.items()}
    run(members, memory)
    run(after, again)
    for reader in reading:
        np.testing.assert_array_equal(memory[reader.writes[0]], again[reader.writes[0]])


def test_scalars_go_along() -> None:
    x, middle, early, late = buffer("input"), buffer(), Scalar("f32"), Scalar("f32")
    first = step([whole(x)], whole(middle), lambda a: sub(a, scalar(early)))
    second = step([whole(middle)], whole(buffer("result")), lambda a: sub(scalar(late), a))
    (_, reader) = rematerialise([first, second], [middle])
    assert reader is not None
    assert reader.scalars == (late, early)
    assert reader.values == (sub(scalar(late), sub(load(whole(x)), scalar(early))),)


def test_shared_operands_are_read_once() -> None:
    x, mean, middle = buffer("input"), buffer("input", (ROWS, 1)), buffer()
    first = step([whole(x), row(mean)], whole(middle), sub)
    second = step([whole(x), whole(middle)], whole(buffer("result")), sub)
    (_, reader) = rematerialise([first, second], [middle])
    assert reader is not None
    assert reader.inputs == (whole(x), row(mean))


def test_a_value_of_a_value_goes_all_the_way() -> None:
    x, mean, centred, squared = buffer("input"), buffer("input", (ROWS, 1)), buffer(), buffer()
    members = [
        step([whole(x), row(mean)], whole(centred), sub),
        step([whole(centred)], whole(squared), square),
        summed(squared, row(buffer("result", (ROWS, 1)))),
    ]
    first, two, total = rematerialise(members, [centred, squared])
    assert first is None and two is None and total is not None
    assert [e.op for e in total.body.expressions if e.operands] == ["arith.subf", "arith.mulf", "arith.addf"]


# Values that must stay stored.


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(lambda x, mean: operation("math.exp", [sub(x, mean)], "f32"), id="a function"),
        pytest.param(lambda x, mean: operation("arith.divf", [sub(x, mean), x], "f32"), id="a division"),
        pytest.param(lambda x, mean: reduce(lambda total, _: sub(total, x), range(9), sub(x, mean)), id="arithmetic"),
    ],
)
def test_expensive_values_are_stored(value: Callable[..., Expression]) -> None:
    x, mean, middle = buffer("input"), buffer("input", (ROWS, 1)), buffer()
    first = step([whole(x), row(mean)], whole(middle), value)
    assert unchanged([first, squares(middle), squares(middle)], [middle])


def test_values_of_two_buffers_with_many_readers_are_stored() -> None:
    first = step([whole(buffer("input")), whole(buffer("input"))], whole(middle := buffer()), sub)
    assert unchanged([first, squares(middle), squares(middle)], [middle])
    assert not unchanged([first, squares(middle)], [middle])


def test_values_with_other_readers_are_stored() -> None:
    first = step([whole(buffer("input"))], whole(middle := buffer()), square)
    assert unchanged([first, squares(middle)], [])


def test_values_that_are_read_repeatedly_are_stored() -> None:
    middle = buffer(sizes=(1, COLUMNS))
    first = step([at(buffer("input", (1, COLUMNS)), (1, 0), (0, 1))], whole(middle), square, (1, COLUMNS))
    reader = step([at(middle, (0, 0), (0, 1))], whole(buffer("result")), square)
    assert unchanged([first, reader], [middle])


@pytest.mark.parametrize("place", [1, 2])
def test_values_of_an_overwritten_buffer_are_stored(place: int) -> None:
    x, middle = buffer(), buffer()
    first, reader = step([whole(x)], whole(middle), square), squares(middle)
    overwriting = step([whole(buffer("input"))], whole(x), square)
    members = [first, reader]
    members.insert(place, overwriting)
    assert unchanged(members, [middle]) is (place == 1)


def test_a_reader_that_overwrites_its_source_reads_the_stored_value() -> None:
    x, middle = buffer(), buffer()
    first = step([at(x, (0, 1), (1, 0))], whole(middle), square, (64, 64))
    reader = step([whole(middle)], whole(x), square, (64, 64))
    x.sizes = middle.sizes = (64, 64)
    assert unchanged([first, reader], [middle])


def test_a_value_of_a_part_is_stored() -> None:
    """Check a value of a part of a buffer. Another step writes the rest of the buffer."""
    middle = buffer(sizes=(ROWS + 1, COLUMNS))
    fill = step([], whole(middle), lambda: constant(1.0, "f32"), middle.sizes)
    part = step([whole(buffer("input"))], whole(middle), square)
    reader = step([whole(middle)], whole(buffer("result", middle.sizes)), square, middle.sizes)
    assert unchanged([fill, part, reader], [middle])


def test_a_value_that_goes_on_is_stored() -> None:
    """Check a value that is written once more, by a step that reads it."""
    middle = buffer()
    first = step([whole(buffer("input"))], whole(middle), square)
    again = step([whole(middle)], whole(middle), square)
    assert unchanged([first, again, squares(middle)], [middle])

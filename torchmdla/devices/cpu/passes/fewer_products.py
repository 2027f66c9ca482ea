"""What algorithms with fewer products have in common: sums of either factor, products of these, sums of the products.

Each step is over loops of the contraction that it takes the place of; products have one more, over themselves, first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torchmdla.compiler.sizes import AnySize
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.expressions import Expression, accumulator, load, operation, reduced, substituted
from torchmdla.devices.cpu.loop_program import LoopNest, TileLoop, sums_from_zero
from torchmdla.devices.cpu.winograd import KIND, ZERO

# The part of the time to fetch weights that products take longer by: most is fetched while they are computed. Threads
# share the memory: two fetch so much of it in the time in which one would fetch its half.
_WAITING = 0.15
_SHARING = 1.7


# Requirements of these algorithms, of the step of a case.
CAN_TAKE_FEWER_PRODUCTS: Mapping[str, Callable[[Any], bool]] = {
    "the sum starts from zero": lambda case: sums_from_zero(case.step),
    "nothing is checked of the products": lambda case: not case.step.checks,
    "factors and sums are in single precision": lambda case: (
        {access.buffer.element for access in case.step.inputs} | {case.step.values[0].type} == {KIND}
    ),
    "nothing is computed of the numbers of iterations": lambda case: not case.step.indexed_loops,
}


def time_of_products(computing: float, fetching: float) -> float:
    """Of products that take ``computing``, and whose weights take ``fetching``."""
    return max(computing + _WAITING * fetching, _SHARING * fetching)


@dataclass(frozen=True)
class OverLoops:
    """A nest, and which loop of the contraction each of its loops is (-1: of none)."""

    nest: LoopNest
    loops: tuple[int, ...]


def buffer_of(kind: Literal["temporary", "local"], count: int, sizes: Iterable[AnySize]) -> Buffer:
    """For ``count`` products, or factors of them, each of ``sizes``."""
    return Buffer(kind, KIND, (count, *sizes))


def of_product(buffer: Buffer, number: int, starts: Sequence[int]) -> Access:
    """What a buffer has for product ``number``, by a nest with a loop for each other dimension, from ``starts`` on."""
    loops = len(starts)
    walked = (AffineExpr.of_loop(k, loops, start) for k, start in enumerate(starts))
    return Access(buffer, (AffineExpr((0,) * loops, number), *walked))


def products(
    step: LoopNest,
    factors: tuple[tuple[Buffer, Sequence[int]], tuple[Buffer, Sequence[int]]],
    result: tuple[Buffer, Sequence[int]],
    sizes: Mapping[int, AnySize],
    numbers: range,
) -> OverLoops:
    """The products ``numbers`` of two ``factors``: buffers, each with the loops of the contraction ``step`` that its
    dimensions behind the first are. ``sizes``: iterations of these loops."""
    reducing = [loop for loop in sizes if step.reduction[loop]]
    loops = (-1, *result[1], *reducing)
    first = AffineExpr.of_loop(0, len(loops), numbers.start)
    left, right, made = (
        Access(buffer, (first, *(AffineExpr.of_loop(loops.index(loop), len(loops)) for loop in order)))
        for buffer, order in (*factors, result)
    )
    product = operation("arith.mulf", [load(left), load(right)], KIND)
    nest = LoopNest(
        sizes=(len(numbers), *(sizes[loop] for loop in loops[1:])),
        reduction=tuple(loop in reducing for loop in loops),
        outputs=(made,),
        values=(operation("arith.addf", [accumulator(0, KIND), product], KIND),),
        initial=ZERO,
    )
    return OverLoops(nest, loops)


def stored(
    step: LoopNest, totals: Iterable[tuple[Expression, Callable[[Access], Access]]]
) -> tuple[tuple[Access, ...], tuple[Expression, ...]]:
    """Where a contraction stores what, with its epilogue, where ``totals`` are sums, each with what an access of the
    contraction is at its place."""
    outputs: list[Access] = []
    values: list[Expression] = []
    for total, placed in totals:
        if step.epilogue is None:
            outputs += map(placed, step.outputs)
            values.append(total)
            continue
        moved = {load(access): load(placed(access)) for access in step.epilogue.body.loads}
        outputs += map(placed, step.epilogue.outputs)
        values += substituted(step.epilogue.values, {reduced(0, KIND): total, **moved})
    return tuple(outputs), tuple(values)


def tile_loop(members: Sequence[OverLoops], axes: Mapping[int, tuple[AnySize, int]]) -> TileLoop:
    """Runs nests tile by tile. ``axes``: loops of the contraction that tiles are cut of, each with its iterations and
    those of a tile."""
    return TileLoop(
        members=tuple(own.nest for own in members),
        loops=tuple(tuple(own.loops.index(axis) for axis in axes) for own in members),
        extents=tuple(extent for extent, _ in axes.values()),
        tile=tuple(tile for _, tile in axes.values()),
        locals=tuple(dict.fromkeys(b for own in members for b in own.nest.writes if b.kind == "local")),
    )

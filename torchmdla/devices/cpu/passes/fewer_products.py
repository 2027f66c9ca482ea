"""Common parts of algorithms with fewer products: sums of each factor, products of these, sums of the products.

Each step has the loops of the contraction that it replaces. Products have one additional first loop, over the products
themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torchmdla.compiler.sizes import AnySize
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.expressions import Expression, accumulator, load, operation, reduced, substitute
from torchmdla.devices.cpu.loop_program import LoopNest, TileLoop, has_zero_initial
from torchmdla.devices.cpu.winograd import KIND, ZERO

# The first is the share of the time to fetch weights by which products take longer: most fetches overlap with products.
# The second is for shared memory: two threads fetch all weights in this multiple of the time that one needs for half.
_WAITING = 0.15
_SHARING = 1.7


# Requirements of these algorithms for the step of a case.
BILINEAR_REQUIREMENTS: Mapping[str, Callable[[Any], bool]] = {
    "the sum starts from zero": lambda case: has_zero_initial(case.step),
    "nothing is checked of the products": lambda case: not case.step.checks,
    "factors and sums are in single precision": lambda case: (
        {access.buffer.element for access in case.step.inputs} | {case.step.values[0].type} == {KIND}
    ),
    "nothing is computed of the numbers of iterations": lambda case: not case.step.indexed_loops,
}


def time_of_products(computing: float, fetching: float) -> float:
    """Return the time of products that take ``computing``, and whose weights take ``fetching``."""
    return max(computing + _WAITING * fetching, _SHARING * fetching)


@dataclass(frozen=True)
class NestOverLoops:
    """Nest, and the loop of the contraction for each of its loops (-1: not a loop of the contraction)."""

    nest: LoopNest
    loops: tuple[int, ...]


def buffer_of(kind: Literal["temporary", "local"], count: int, sizes: Iterable[AnySize]) -> Buffer:
    """Return a buffer for ``count`` products, or factors of them, each of ``sizes``."""
    return Buffer(kind, KIND, (count, *sizes))


def product_access(buffer: Buffer, number: int, starts: Sequence[int]) -> Access:
    """Return the access to the data of product ``number``, in a nest with one loop for each other dimension.

    The accessed block begins at ``starts``.
    """
    loops = len(starts)
    walked = (AffineExpr.of_loop(k, loops, start) for k, start in enumerate(starts))
    return Access(buffer, (AffineExpr((0,) * loops, number), *walked))


def multiply_factors(
    step: LoopNest,
    factors: tuple[tuple[Buffer, Sequence[int]], tuple[Buffer, Sequence[int]]],
    result: tuple[Buffer, Sequence[int]],
    sizes: Mapping[int, AnySize],
    numbers: range,
) -> NestOverLoops:
    """Return the nest that computes the products ``numbers`` of two ``factors``.

    Each factor, and the result, is a buffer with the loops of the contraction ``step`` that its dimensions after the
    first have. ``sizes`` maps these loops to their iterations.
    """
    reducing = [loop for loop in sizes if step.reduction[loop]]
    loops = (-1, *result[1], *reducing)
    first = AffineExpr.of_loop(0, len(loops), numbers.start)
    left, right, target = (
        Access(buffer, (first, *(AffineExpr.of_loop(loops.index(loop), len(loops)) for loop in order)))
        for buffer, order in (*factors, result)
    )
    product = operation("arith.mulf", [load(left), load(right)], KIND)
    nest = LoopNest(
        sizes=(len(numbers), *(sizes[loop] for loop in loops[1:])),
        reduction=tuple(loop in reducing for loop in loops),
        outputs=(target,),
        values=(operation("arith.addf", [accumulator(0, KIND), product], KIND),),
        initial=ZERO,
    )
    return NestOverLoops(nest, loops)


def apply_epilogue(
    step: LoopNest, totals: Iterable[tuple[Expression, Callable[[Access], Access]]]
) -> tuple[tuple[Access, ...], tuple[Expression, ...]]:
    """Return the outputs and values of a contraction with its epilogue, computed from ``totals``.

    Each total is a sum, with a function that maps an access of the contraction to the access at the sum's place.
    """
    outputs: list[Access] = []
    values: list[Expression] = []
    for total, placed in totals:
        if step.epilogue is None:
            outputs += map(placed, step.outputs)
            values.append(total)
            continue
        moved = {load(access): load(placed(access)) for access in step.epilogue.body.loads}
        outputs += map(placed, step.epilogue.outputs)
        values += substitute(step.epilogue.values, {reduced(0, KIND): total, **moved})
    return tuple(outputs), tuple(values)


def tile_loop(members: Sequence[NestOverLoops], axes: Mapping[int, tuple[AnySize, int]]) -> TileLoop:
    """Return a loop that runs nests tile by tile.

    ``axes`` maps the tiled loops of the contraction to their iterations and those of a tile.
    """
    return TileLoop(
        members=tuple(member.nest for member in members),
        loops=tuple(tuple(member.loops.index(axis) for axis in axes) for member in members),
        extents=tuple(extent for extent, _ in axes.values()),
        tile=tuple(tile for _, tile in axes.values()),
        locals=tuple(dict.fromkeys(b for member in members for b in member.nest.writes if b.kind == "local")),
    )

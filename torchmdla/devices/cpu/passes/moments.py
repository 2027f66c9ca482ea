"""Mean and variance of a row in one walk over it, where a norm needs two walks.

The variance is computed from differences to a value near the mean, here the mean of a part of the row (T. F. Chan, G.
H. Golub, R. J. LeVeque, Algorithms for Computing the Sample Variance, 1983, section 3: shifted data)::

    nest d0 d1+ { sum[d0] += x[d0, d1] }               nest d0 d1+ { part[d0] += x[d0, d1] }       # one in sixteen
    nest d0 d1  { c[d0, d1] = x[d0, d1] - sum[d0] / n }    nest d0 d1+ { y = x[d0, d1] - part[d0] / p
    nest d0 d1+ { squares[d0] += c[d0, d1]² }      →                     first[d0] += y, second[d0] += y² }
                                                       nest d0 { mean[d0] = part[d0] / p + first[d0] / n
                                                                 squares[d0] = second[d0] - first[d0]² / n }
                                                       nest d0 d1 { c[d0, d1] = x[d0, d1] - mean[d0] }

By Cauchy's inequality, the mean of one in m elements is at most √m standard deviations from the mean of all. Sums of
squared differences from it are thus at most 1 + m times those from the mean, for any row. Therefore at most four bits
cancel, and no bits cancel in rows whose parts are alike.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from torchmdla.compiler.sizes import estimate
from torchmdla.devices.cpu.ir.accesses import Access, Buffer
from torchmdla.devices.cpu.ir.expressions import (
    Expression,
    accumulator,
    constant,
    load,
    map_loads,
    operation,
    substitute,
)
from torchmdla.devices.cpu.ir.loop_program import (
    LoopNest,
    LoopProgram,
    Users,
    has_zero_initial,
    is_permutation,
    may_move,
    split_loop,
)
from torchmdla.devices.cpu.ir.patterns import Captured, Rule, op
from torchmdla.devices.cpu.passes.producers import INLINING_REQUIREMENTS, find_writer, find_writers, is_reduced_from
from torchmdla.devices.cpu.passes.rematerialise import operand_access

# One in this many elements of a row is summed ahead, which lengthens the walk by that fraction. They are the first
# elements of each of several blocks, so that an unusual beginning of a row does not determine the shift.
_PARTS = 16
_MOST_BLOCKS = 4

# Shorter rows take less time to walk twice than it takes to combine the sums. Shorter blocks have too few adjacent
# elements.
_SHORTEST = 256

_LARGEST = {"f32": (2.0 - 2.0**-23) * 2.0**127, "f64": sys.float_info.max}

_TERM = op("load", name="term")
_SUM = op("arith.addf", op("accumulator"), _TERM)
_SQUARES = op("arith.addf", op("accumulator"), op("arith.mulf", _TERM, _TERM))
_CENTRED = op("arith.subf", _TERM, op("arith.divf", op("load", name="sum"), op("constant", name="count"), name="mean"))


# A loop, the number of blocks to split it into, and the number of iterations of a block.
_Cut = tuple[int, tuple[int, int]]


@dataclass(frozen=True)
class _Row:
    """Row and its moments.

    Attributes:
        steps: The program.
        users: The users of its buffers.
        squares: The step that sums, over its loops, the squares of the elements that it reads as ``read``.
        read: The access to the differences of the row from a mean.
        producer: The nest that stores the differences.
        difference: The parts of a difference, over the producer's loops.
        summing: The nest that sums the row for the mean.
        row: The access to the row over the loops of ``squares``.
        total: The access to the sum over the loops of ``squares``.
        cut: The loop to split into blocks, with their number and size.
    """

    steps: LoopProgram
    users: Users
    squares: LoopNest
    read: Access
    producer: LoopNest
    difference: Captured
    summing: LoopNest
    row: Access
    total: Access
    cut: _Cut

    @property
    def retained(self) -> list[int]:
        return [loop for loop, reduced in enumerate(self.squares.reduction) if not reduced]


def _match_row(steps: LoopProgram, step: LoopNest, squared: Captured) -> _Row | None:
    users, read = Users(steps.steps), squared["term"].payload
    producer = find_writer(users, read)
    match = next(_CENTRED.matches(producer.values[0]), None) if producer else None
    if producer is None or match is None or step.values[0].type not in _LARGEST:
        return None
    summing = find_writer(users, match["sum"].payload)
    row, total = (operand_access(match[name].payload, producer, read) for name in ("term", "sum"))
    cut = _cut(step, row)
    if summing is None or cut is None:
        return None
    return _Row(steps, users, step, read, producer, match, summing, row, total, cut)


def _use_one_walk(case: _Row) -> None:
    steps = case.steps.steps
    place = steps.index(case.summing)
    steps.remove(case.squares)
    steps[place : place + 1] = _build_nests(case)
    mean = load(case.difference["sum"].payload)
    case.producer.map_body(lambda roots: substitute(roots, {case.difference["mean"]: mean}))


def _is_for_mean_alone(case: _Row) -> bool:
    """Return whether only the mean is computed from the sum, in whose place the mean is stored."""
    buffer = case.total.buffer
    return buffer.kind == "temporary" and case.users.of(buffer) == [case.summing, case.producer]


def _is_mean(case: _Row) -> bool:
    """Return whether the sum has each element of the row once, and is divided by their number."""
    is_sum = is_reduced_from(case.users, _SUM, 0.0, case.difference["sum"].payload, case.difference["term"].payload)
    return is_sum and all(map(case.summing.is_indexed_by_all_loops, case.summing.inputs))


def _squares_each_once(case: _Row) -> bool:
    """Return whether the step reads each element that it squares once."""
    return is_permutation(replace(case.squares, reduction=(False,) * len(case.squares.sizes)), case.read)


def _has_equal_lengths(case: _Row) -> bool:
    """Return whether a row has as many elements for the mean as for the variance."""
    count: float = case.difference["count"].payload
    return _length(case.squares) == _length(case.summing) == count


MOMENTS = Rule(
    _SQUARES,
    lambda steps, _: partial(_match_row, steps),
    _use_one_walk,
    {
        **INLINING_REQUIREMENTS,
        "nothing between overwrites the row": lambda case: may_move(case.steps, case.summing, case.squares),
        "the sum of squares starts from zero": lambda case: has_zero_initial(case.squares),
        "nothing is checked of the differences": lambda case: not case.squares.checks,
        "nothing else is made of the squares at once": lambda case: case.squares.epilogue is None,
        "nothing else writes the sums of squares": lambda case: (
            find_writers(case.users, case.squares.outputs[0].buffer) == [case.squares]
        ),
        "the sum is for the mean alone": _is_for_mean_alone,
        "the mean is that of the row": _is_mean,
        "each difference is squared once": _squares_each_once,
        "mean and variance are of as many elements": _has_equal_lengths,
        "a variance has one mean": lambda case: case.total.loops <= set(case.retained),
    },
)


def _length(step: LoopNest) -> int:
    """Return the number of elements that a step reduces to one; 0 if that varies."""
    length = math.prod(size for size, reduced in zip(step.sizes, step.reduction, strict=True) if reduced)
    return length if isinstance(length, int) else 0


def _cut(step: LoopNest, row: Access) -> _Cut | None:
    """Return the loop to split so that the first elements of its blocks come from all over the row.

    Returns:
        The loop, the number of blocks, and their iterations. None if the row is short, or its length varies.
    """
    run = 1
    distances = row.linearise(len(step.sizes)).factors
    loops = [loop for loop, reduced in enumerate(step.reduction) if reduced]
    for loop in sorted(loops, key=lambda loop: estimate(distances[loop])):
        size = step.sizes[loop]
        if not isinstance(size, int):
            return None
        if run * size >= _SHORTEST:
            most = max(1, min(_MOST_BLOCKS, run * size // _SHORTEST, size // _PARTS))
            blocks = next(count for count in range(most, 0, -1) if size % count == 0)
            return loop, (blocks, size // blocks)
        run *= size
    return None


def _partial_sum(row: _Row, output: Access) -> LoopNest:
    values = (_accumulate(0, load(row.row)),)
    step = replace(row.squares, outputs=(output,), values=values, nodes=row.summing.nodes)
    loop, (blocks, size) = row.cut
    split_loop(step, loop, (blocks, size))
    step.sizes = (*step.sizes[: loop + 1], -(-size // _PARTS), *step.sizes[loop + 2 :])
    return step


def _build_nests(row: _Row) -> list[LoopNest]:
    """Return the nests that sum a part of a row and all of it, and combine these to mean and squares."""
    step, term = row.squares, load(row.row)
    (squares,) = step.outputs
    sums = [replace(squares, buffer=Buffer("temporary", term.type, squares.buffer.sizes)) for _ in range(3)]
    part, first, second = map(load, sums)
    ahead = _partial_sum(row, sums[0])
    near = _divide(part, _length(ahead))
    difference = _binary("subf", term, near)
    values = _accumulate(0, difference), _accumulate(1, _binary("mulf", difference, difference))
    both = replace(step, outputs=tuple(sums[1:]), values=values, nodes=step.nodes | row.summing.nodes)
    offset, mean_square = (_divide(total, _length(step)) for total in (first, second))
    # The square stays finite, so an infinite mean of squares stays infinite in the difference.
    square = _binary("minimumf", _binary("mulf", offset, offset), constant(_LARGEST[term.type], term.type))
    # The rounded difference may be less than zero.
    variance = _binary("maximumf", _binary("subf", mean_square, square), constant(0.0, term.type))
    results = _binary("addf", near, offset), _binary("mulf", variance, constant(_length(step), term.type))
    return [ahead, both, _store_per_row(both, row.retained, (row.total, squares), results)]


def _store_per_row(
    step: LoopNest, loops: Sequence[int], outputs: Sequence[Access], values: tuple[Expression, ...]
) -> LoopNest:
    """Return the nest that stores ``values`` once for each row, over the given loops of ``step``."""
    sizes = tuple(step.sizes[loop] for loop in loops)
    values = map_loads(values, lambda access: access.restrict(loops))
    targets = tuple(access.restrict(loops) for access in outputs)
    return LoopNest(sizes, (False,) * len(sizes), targets, values, nodes=step.nodes)


def _binary(name: str, left: Expression, right: Expression) -> Expression:
    return operation(f"arith.{name}", [left, right], left.type)


def _divide(value: Expression, count: int) -> Expression:
    return _binary("divf", value, constant(count, value.type))


def _accumulate(output: int, value: Expression) -> Expression:
    return _binary("addf", value, accumulator(output, value.type))

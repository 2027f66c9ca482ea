"""Mean and variance of a row in one walk over it, where a norm takes two.

The variance is that of differences from a value near the mean, here from the mean of the row's first part (T. F. Chan,
G. H. Golub, R. J. LeVeque, Algorithms for Computing the Sample Variance, 1983, section 3: shifted data)::

    nest d0 d1+ { sum[d0] += x[d0, d1] }               nest d0 d1+ { part[d0] += x[d0, d1] }       # a sixteenth of d1
    nest d0 d1  { c[d0, d1] = x[d0, d1] - sum[d0] / n }    nest d0 d1+ { y = x[d0, d1] - part[d0] / p
    nest d0 d1+ { squares[d0] += c[d0, d1]² }      →                     first[d0] += y, second[d0] += y² }
                                                       nest d0 { mean[d0] = part[d0] / p + first[d0] / n
                                                                 squares[d0] = second[d0] - first[d0]² / n }
                                                       nest d0 d1 { c[d0, d1] = x[d0, d1] - mean[d0] }

By Cauchy's inequality the mean of one of m equal parts is at most √m standard deviations from the mean of all. So sums
of squares of differences from it are at most 1 + m times those from the mean, wherever the row lies: no more than a
few bits cancel, and in rows whose parts are alike none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from torchmdla.compiler.sizes import AnySize, estimate
from torchmdla.devices.cpu.accesses import Access, Buffer
from torchmdla.devices.cpu.expressions import Expression, accessing, accumulator, constant, load, operation, substituted
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, Users, is_found_by_index, may_move
from torchmdla.devices.cpu.passes.makers import elementwise_maker, maker_of, reduces
from torchmdla.devices.cpu.passes.rematerialise import through
from torchmdla.devices.cpu.patterns import Captured, Rule, op

# Parts of a row, of which the first is summed ahead: a walk over so much more.
_PARTS = 16

# Shorter rows are walked in less time than it takes to put the sums together.
_SHORTEST = 256

_TERM = op("load", name="term")
_SUM = op("arith.addf", op("accumulator"), _TERM)
_SQUARES = op("arith.addf", op("accumulator"), op("arith.mulf", _TERM, _TERM))
_CENTRED = op("arith.subf", _TERM, op("arith.divf", op("load", name="sum"), op("constant", name="count"), name="mean"))


@dataclass(frozen=True)
class _Row:
    """What is known of a row: ``squares`` sums, over its loops, those of ``centred``, which are ``found`` to be the
    differences of ``row`` from a mean, whose sum the nest ``summing`` makes. ``row`` and ``total``, the sum, are
    accessed over the loops of ``squares``."""

    squares: LoopNest
    summing: LoopNest
    centred: LoopNest
    found: Captured
    row: Access
    total: Access

    @property
    def kept(self) -> list[int]:
        return [loop for loop, reduced in enumerate(self.squares.reduction) if not reduced]


def _in_one_walk(steps: LoopProgram, step: LoopNest, found: Captured) -> bool:
    row = _row(Users(steps.steps), step, found["term"].payload)
    if row is None or not may_move(steps, row.summing, step):
        return False
    part = _first_part(step, row.row)
    if part is None:
        return False
    at = steps.steps.index(row.summing)
    steps.steps.remove(step)
    steps.steps[at : at + 1] = _walks(row, part)
    mean = load(row.found["sum"].payload)
    row.centred.map_body(lambda roots: substituted(roots, {row.found["mean"]: mean}))
    return True


MOMENTS = Rule(_SQUARES, lambda steps: partial(_in_one_walk, steps))


def _row(users: Users, step: LoopNest, term: Access) -> _Row | None:
    """The row whose variance a step sums, if only the step's centred values are made of its mean."""
    centred = elementwise_maker(users, term)
    found = next(_CENTRED.matches(centred.values[0]), None) if centred else None
    if centred is None or found is None or not _is_plain(step) or not _covers(step, term):
        return None
    total, summing = found["sum"].payload, maker_of(users, found["sum"].payload)
    row, over = (through(found[name].payload, centred, term) for name in ("term", "sum"))
    if summing is None or total.buffer.kind != "temporary" or users.of(total.buffer) != [summing, centred]:
        return None
    if not reduces(users, _SUM, 0.0, total, found["term"].payload) or not summing.walks(summing.inputs[0]):
        return None
    made = _Row(step, summing, centred, found, row, over)
    # As many elements of the row have one mean as are summed for it, and for one variance.
    is_same = _length(step) == _length(summing) == found["count"].payload and over.loops <= set(made.kept)
    return made if is_same and maker_of(users, step.outputs[0]) is step else None


def _is_plain(step: LoopNest) -> bool:
    return step.initial is not None and step.initial.payload == 0 and not step.epilogue and not step.checks


def _covers(step: LoopNest, access: Access) -> bool:
    """Whether a step that reduces reads each element of the access's buffer once."""
    return is_found_by_index(replace(step, reduction=(False,) * len(step.sizes)), access)


def _length(step: LoopNest) -> AnySize:
    return math.prod(size for size, reduced in zip(step.sizes, step.reduction, strict=True) if reduced)


def _first_part(step: LoopNest, row: Access) -> tuple[AnySize, ...] | None:
    """The iterations of each loop that walk the first part of a row, as it lies in memory; None if the row is short,
    or it varies how long it is."""
    reduced = {loop: size for loop, size in enumerate(step.sizes) if step.reduction[loop] and isinstance(size, int)}
    if len(reduced) < sum(step.reduction) or math.prod(reduced.values()) < _SHORTEST:
        return None
    distances = row.flat(len(step.sizes)).factors
    part, parts = list(step.sizes), _PARTS
    for loop in sorted(reduced, key=lambda loop: -estimate(distances[loop])):
        taken = -(-reduced[loop] // parts)
        part[loop], parts = taken, max(1, parts * taken // reduced[loop])
    return tuple(part)


def _walks(row: _Row, part: tuple[AnySize, ...]) -> list[LoopNest]:
    """The nests that sum the first ``part`` of a row and all of it, and put mean and squares together."""
    step, term = row.squares, load(row.row)
    (squares,) = step.outputs
    sums = [replace(squares, buffer=Buffer("temporary", term.type, squares.buffer.sizes)) for _ in range(3)]
    ahead = replace(step, sizes=part, outputs=(sums[0],), values=(_added(0, term),), nodes=row.summing.nodes)
    near = _over(load(sums[0]), _length(ahead))
    difference = _of("subf", term, near)
    values = _added(0, difference), _added(1, _of("mulf", difference, difference))
    both = replace(step, outputs=tuple(sums[1:]), values=values, nodes=step.nodes | row.summing.nodes)
    offset, length = _over(load(sums[1]), _length(step)), constant(_length(step), term.type)
    # Rounded, the difference may be less than zero. Divided first, no square overflows whose sum did not.
    variance = _of("subf", _over(load(sums[2]), _length(step)), _of("mulf", offset, offset))
    results = _of("addf", near, offset), _of("mulf", _of("maximumf", variance, constant(0.0, term.type)), length)
    return [ahead, both, _of_rows(both, row.kept, (row.total, squares), results)]


def _of_rows(
    step: LoopNest, kept: Sequence[int], outputs: Sequence[Access], values: tuple[Expression, ...]
) -> LoopNest:
    """The nest that stores values once for each row, over the loops of ``step`` that are ``kept``."""
    sizes = tuple(step.sizes[loop] for loop in kept)
    values = accessing(values, lambda access: access.over(kept))
    made = tuple(access.over(kept) for access in outputs)
    return LoopNest(sizes, (False,) * len(sizes), made, values, nodes=step.nodes)


def _of(name: str, left: Expression, right: Expression) -> Expression:
    return operation(f"arith.{name}", [left, right], left.type)


def _over(value: Expression, count: AnySize) -> Expression:
    return _of("divf", value, constant(count, value.type))


def _added(output: int, value: Expression) -> Expression:
    return _of("addf", value, accumulator(output, value.type))

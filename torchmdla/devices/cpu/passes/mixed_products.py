"""Sums of products of floats with integers of 8 bits that stand for floats, as weights of few bits are::

    sum(x[row, t] * (w[column, t] - zero[column, group]) * scale[column, group])

A group is one or more of the loops that reduce, those that zeros and scales vary with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchmdla.compiler.sizes import AnySize, estimate
from torchmdla.devices.cpu.accesses import Access
from torchmdla.devices.cpu.expressions import Expression, contents
from torchmdla.devices.cpu.loop_program import LoopNest, split_loop
from torchmdla.devices.cpu.passes.precompute import IsKnown
from torchmdla.devices.cpu.patterns import anything, op

SUM_OF_MIXED_PRODUCTS = op("arith.addf", op("accumulator"), op("arith.mulf", anything("floats"), anything("weights")))


@dataclass(frozen=True)
class Weights:
    """``(integer - zero) * scale``: what is read with a sign, and floats. None are 0 and 1."""

    integer: Access
    zero: Expression | None
    scale: Expression | None

    @property
    def loops(self) -> frozenset[int]:
        """Those that zeros and scales vary with."""
        numbers = contents(tuple(number for number in (self.zero, self.scale) if number is not None))
        return numbers.loops.union(*(access.loops for access in numbers.loads))


@dataclass
class MixedProduct:
    """What ``step`` sums the products of.

    Attributes:
        floats: read, and widened at most.
        weights: known, and read with a sign.
        rows: the loops that the floats alone vary with.
        groups: the loops over groups of terms of a sum: zeros and scales vary with them.
        terms: the loop over the terms of a group.
    """

    step: LoopNest
    floats: Expression
    weights: Weights
    rows: list[int]
    groups: list[int]
    terms: int

    def columns(self) -> list[int]:
        """The loops that the weights alone vary with, as they walk the result, the one by which it does in the smallest
        steps last."""
        loops = [
            d for d in sorted(self.weights.integer.loops) if not self.step.reduction[d] and self.step.sizes[d] != 1
        ]
        distances = self.step.written_accesses[0].flat(len(self.step.sizes)).factors
        return sorted(loops, key=lambda loop: -estimate(distances[loop]))

    def split(self, loop: int, sizes: Sequence[AnySize]) -> None:
        """Splits a loop of the step."""
        split_loop(self.step, loop, sizes)
        ((self.floats, self.weights),) = _factors(self.step)

        def moved(own: int) -> int:
            return own + (len(sizes) - 1) * (own > loop)

        self.rows, self.groups, self.terms = [*map(moved, self.rows)], [*map(moved, self.groups)], moved(self.terms)


def mixed_product(step: LoopNest, is_known: IsKnown) -> MixedProduct | None:
    """Return what a step sums the products of, if these are of floats that calls bring and integers that are known."""
    if step.tables or step.indexed_loops:
        return None
    factors = _factors(step)
    if len(factors) != 1:
        return None
    ((floats, weights),) = factors
    body = contents((floats,))
    are_plain = len(body.loads) == 1 and len(body.expressions) <= 2
    if not are_plain or not is_known(weights.integer) or is_known(body.loads[0]):
        return None
    return _by_groups(step, floats, weights)


def _factors(step: LoopNest) -> list[tuple[Expression, Weights]]:
    """The floats and the weights whose products a step sums."""
    matches = SUM_OF_MIXED_PRODUCTS.matches(step.values[0])
    pairs = [(match["floats"], _weights(match["weights"])) for match in matches]
    return [(floats, weights) for floats, weights in pairs if weights is not None]


def _weights(value: Expression) -> Weights | None:
    scale = zero = None
    if value.op == "arith.mulf":
        first, second = value.operands
        value, scale = (first, second) if first.op in ("arith.sitofp", "arith.subf") else (second, first)
    if value.op == "arith.subf":
        value, zero = value.operands
    if value.op != "arith.sitofp" or value.type != "f32":
        return None
    (integer,) = value.operands
    if integer.op == "arith.extsi":
        (integer,) = integer.operands
    return Weights(integer.payload, zero, scale) if integer.op == "load" and integer.type == "i8" else None


def _by_groups(step: LoopNest, floats: Expression, weights: Weights) -> MixedProduct | None:
    (read,) = contents((floats,)).loads
    loops = [d for d, size in enumerate(step.sizes) if size != 1]
    rows = [d for d in loops if d in read.loops and not step.reduction[d]]
    terms = [d for d in loops if step.reduction[d] and d not in weights.loops]
    if len(terms) != 1 or terms[0] not in read.loops & weights.integer.loops:
        return None
    if weights.loops.union(weights.integer.loops).intersection(rows):
        return None
    groups = [d for d in loops if step.reduction[d] and d not in terms]
    return MixedProduct(step, floats, weights, rows, groups, terms[0])

"""Matching of sums of products of floats with 8-bit integers that represent floats, such as weights of few bits.

::

    sum(x[row, t] * (w[column, t] - zero[column, group]) * scale[column, group])

A group is one or more of the reduced loops, those that zeros and scales vary with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchmdla.compiler.sizes import AnySize, estimate
from torchmdla.devices.cpu.accesses import Access
from torchmdla.devices.cpu.expressions import Expression, contents
from torchmdla.devices.cpu.loop_program import LoopNest, split_loop
from torchmdla.devices.cpu.passes.precompute import IsKnown
from torchmdla.devices.cpu.patterns import any_expression, op

SUM_OF_MIXED_PRODUCTS = op(
    "arith.addf", op("accumulator"), op("arith.mulf", any_expression("floats"), any_expression("weights"))
)


@dataclass(frozen=True)
class Weights:
    """Weights of the form ``(integer - zero) * scale``, where ``integer`` is signed and the others are floats.

    A ``zero`` of None is 0, and a ``scale`` of None is 1.
    """

    integer: Access
    zero: Expression | None
    scale: Expression | None

    @property
    def loops(self) -> frozenset[int]:
        """Return the loops that zeros and scales vary with."""
        numbers = contents(tuple(number for number in (self.zero, self.scale) if number is not None))
        return numbers.loops.union(*(access.loops for access in numbers.loads))


@dataclass
class MixedProduct:
    """Sum of products of floats and weights in ``step``.

    Attributes:
        floats: The factor that is read as floats, and at most widened.
        weights: The factor that is known ahead, of signed integers.
        rows: The loops that the floats alone vary with.
        groups: The loops over groups of terms of a sum; zeros and scales vary with them.
        terms: The loop over the terms of a group.
    """

    step: LoopNest
    floats: Expression
    weights: Weights
    rows: list[int]
    groups: list[int]
    terms: int

    def columns(self) -> list[int]:
        """Return the loops that the weights alone vary with, ordered by falling stride of the result."""
        loops = [
            d for d in sorted(self.weights.integer.loops) if not self.step.reduction[d] and self.step.sizes[d] != 1
        ]
        distances = self.step.written_accesses[0].linearise(len(self.step.sizes)).factors
        return sorted(loops, key=lambda loop: -estimate(distances[loop]))

    def split(self, loop: int, sizes: Sequence[AnySize]) -> None:
        """Split a loop of the step."""
        split_loop(self.step, loop, sizes)
        ((self.floats, self.weights),) = _factors(self.step)

        def map_loop(index: int) -> int:
            return index + (len(sizes) - 1) * (index > loop)

        self.rows, self.groups, self.terms = (
            [*map(map_loop, self.rows)],
            [*map(map_loop, self.groups)],
            map_loop(self.terms),
        )


def mixed_product(step: LoopNest, is_known: IsKnown) -> MixedProduct | None:
    """Return the sum of products of a step, if it multiplies floats of the call with integers that are known."""
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
    return _find_groups(step, floats, weights)


def _factors(step: LoopNest) -> list[tuple[Expression, Weights]]:
    """Return the floats and the weights whose products a step sums."""
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


def _find_groups(step: LoopNest, floats: Expression, weights: Weights) -> MixedProduct | None:
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

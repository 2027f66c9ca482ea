"""Strassen's product of matrices in Winograd's form: seven products of sums of quarters in place of eight of quarters.

Both factors and the result are cut into quarters, ``A B / C D``. Of all ways with seven products this one has the
fewest sums (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 23.1). The error of a result is
bounded by the largest rows and columns, not by its own: what is small beside others is less exact than a plain sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from torchmdla.devices.cpu.expressions import Expression
from torchmdla.devices.cpu.winograd import binary

PRODUCTS = 7

# Which half of a matrix's rows, and which of its columns.
Quarter = tuple[int, int]
QUARTERS: Sequence[Quarter] = (0, 0), (0, 1), (1, 0), (1, 1)
A, B, C, D = QUARTERS
Quarters = Mapping[Quarter, Expression]

_plus = partial(binary, "arith.addf")
_minus = partial(binary, "arith.subf")


def left_sums(of: Quarters) -> list[Expression]:
    """The left factor of each product."""
    lower = _plus(of[C], of[D])
    rest = _minus(lower, of[A])
    return [of[A], of[B], _minus(of[B], rest), of[D], lower, rest, _minus(of[A], of[C])]


def right_sums(of: Quarters) -> list[Expression]:
    """The right factor of each product."""
    upper = _minus(of[B], of[A])
    rest = _minus(of[D], upper)
    return [of[A], of[C], of[D], _minus(rest, of[C]), upper, rest, _minus(of[D], of[B])]


def results(products: Sequence[Expression]) -> Quarters:
    """The quarters of the result."""
    first, second, third, fourth, fifth, sixth, seventh = products
    common = _plus(first, sixth)
    lower, right = _plus(common, seventh), _plus(common, fifth)
    return {A: _plus(first, second), B: _plus(right, third), C: _minus(lower, fourth), D: _plus(lower, fifth)}

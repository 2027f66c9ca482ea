"""Strassen's matrix product in Winograd's form: seven products of sums of quarters instead of eight products.

Both factors and the result are divided into quarters, ``A B / C D``. Among all algorithms with seven products, this
form has the fewest sums (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 23.1). The error of an
element is bounded by the largest rows and columns, not by its own. Small elements beside large ones are less exact than
with a plain sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from torchmdla.devices.cpu.expressions import Expression
from torchmdla.devices.cpu.winograd import binary

PRODUCTS = 7

# The half of a matrix's rows, and the half of its columns.
Quarter = tuple[int, int]
QUARTERS: Sequence[Quarter] = (0, 0), (0, 1), (1, 0), (1, 1)
A, B, C, D = QUARTERS
Quarters = Mapping[Quarter, Expression]

_plus = partial(binary, "arith.addf")
_minus = partial(binary, "arith.subf")


def left_sums(of: Quarters) -> list[Expression]:
    """Return the left factor of each product."""
    lower = _plus(of[C], of[D])
    rest = _minus(lower, of[A])
    return [of[A], of[B], _minus(of[B], rest), of[D], lower, rest, _minus(of[A], of[C])]


def right_sums(of: Quarters) -> list[Expression]:
    """Return the right factor of each product."""
    upper = _minus(of[B], of[A])
    rest = _minus(of[D], upper)
    return [of[A], of[C], of[D], _minus(rest, of[C]), upper, rest, _minus(of[D], of[B])]


def results(products: Sequence[Expression]) -> Quarters:
    """Return the quarters of the result."""
    first, second, third, fourth, fifth, sixth, seventh = products
    common = _plus(first, sixth)
    lower, right = _plus(common, seventh), _plus(common, fifth)
    return {A: _plus(first, second), B: _plus(right, third), C: _minus(lower, fourth), D: _plus(lower, fifth)}

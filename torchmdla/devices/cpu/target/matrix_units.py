"""Matrix units: parts of processors that multiply tiles of matrices, which they keep in registers of their own.

A tile has rows of words of 32 bits. A word has consecutive elements of a sum: two floats of 16 bits, or four integers
of 8 bits. One instruction adds the product of two tiles to a tile of 32-bit sums::

    sums[row, column] += dot(left[row, word], right[word, column])    for all words
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

# The choices of a matrix unit: that of the processor if it has one, a software model of it, or none.
Choice = Literal["native", "software", "none"]

# The prefix of a target's feature that has the choice, if it is not ``native``.
MATRIX_UNIT = "matrix-unit="

WORD_BYTES = 4


@dataclass(frozen=True)
class MatrixUnit:
    """Matrix unit.

    Times are in cycles on a core that begins two vector operations in each.

    Attributes:
        name: the name of its instructions.
        feature: LLVM's name of the feature that processors with this unit have.
        rows: the most rows of a tile.
        row_bytes: the most bytes of a row.
        registers: the number of tile registers.
        elements: the types of elements that it multiplies, each with LLVM's name of the feature.
        row_cycles: the time of a product for each row of the sums.
        latency: the time until the sums of a product can be used.
        load_cycles: the time to load a row, or to store one.
        first_level, second_level: the sizes of the caches of processors with this unit, in bytes.
        fetched_bytes: the bytes per cycle that come from the second-level cache.
        set_up_cycles: the time to configure and to release the registers.
        is_modelled: whether a software model replaces the instructions.
    """

    name: str
    feature: str
    rows: int
    row_bytes: int
    registers: int
    elements: tuple[tuple[str, str], ...]
    row_cycles: float
    latency: float
    load_cycles: float
    first_level: int
    second_level: int
    fetched_bytes: float
    set_up_cycles: float
    is_modelled: bool = False

    @property
    def columns(self) -> int:
        """Return the most words of a row."""
        return self.row_bytes // WORD_BYTES

    def multiplies(self, element: str) -> bool:
        """Return whether it multiplies elements of a type."""
        return any(element == name for name, _ in self.elements)


# Known units. The times of AMX are from Intel's optimization manual, section "Intel AMX": a product of 16 rows begins
# every 16 cycles and takes 52. A load of 16 rows takes 8.
UNITS = (
    MatrixUnit(
        name="amx",
        feature="amx-tile",
        rows=16,
        row_bytes=64,
        registers=8,
        elements=(("bf16", "amx-bf16"), ("f16", "amx-fp16"), ("i8", "amx-int8")),
        row_cycles=1.0,
        latency=52.0,
        load_cycles=0.5,
        first_level=48 << 10,
        second_level=2 << 20,
        fetched_bytes=48.0,
        set_up_cycles=150.0,
    ),
)


# LLVM's names of the features that all units have.
UNIT_FEATURES = frozenset(name for unit in UNITS for name in (unit.feature, *(feature for _, feature in unit.elements)))


def matrix_unit(features: Collection[str]) -> MatrixUnit | None:
    """Return the matrix unit of a target with ``features``, or the model of the first unit if they choose it."""
    choice = next((name.removeprefix(MATRIX_UNIT) for name in features if name.startswith(MATRIX_UNIT)), "native")
    if choice == "software":
        return replace(UNITS[0], is_modelled=True)
    for unit in UNITS if choice == "native" else ():
        elements = tuple(pair for pair in unit.elements if f"+{pair[1]}" in features)
        if f"+{unit.feature}" in features and elements:
            return replace(unit, elements=elements)
    return None

"""Products of matrices with weights by Strassen's algorithm (:mod:`~torchmdla.devices.cpu.strassen`).

Rows, columns and terms of the sum are each split in halves. A product becomes four steps: sums of quarters of the
weights (of parameters alone, so packed once) and of the other factor, seven products, and the results with the
epilogue::

    nest d0:128 d1:96 d2:64+ {              nest d0:32 d1:48 { sums of quarters of the weights w[0..6, d0, d1] }
      i0 = input0[d0, d2]                   nest d0:64 d1:32 { sums x[0..6, d0, d1] of input0[d0 + 0|64, d1 + 0|32] }
      i1 = parameter1[d2, d1]          →    nest d0:7 d1:64 d2:48 d3:32+ { p[d0, d1, d2] = … x * w }
      o0 = from 0.0 : f32                   nest d0:64 d1:48 { result2[d0 + 0|64, d1 + 0|48] = … p[0..6, d0, d1] }
      o0 + i0 * i1 }

If the second-level cache can hold the sums of weights and a tile, all steps except the first run by tiles of rows.
Otherwise the weights are read from memory once, for all rows. If the number of rows is odd, the other half of the last
row is zero, and its result is omitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from torchmdla.compiler.sizes import static
from torchmdla.devices.cpu.accesses import Access
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.passes.algorithms import record_algorithm, select_algorithm
from torchmdla.devices.cpu.passes.fewer_products import BILINEAR_REQUIREMENTS, time_of_products
from torchmdla.devices.cpu.passes.layout import in_memory_order
from torchmdla.devices.cpu.passes.precompute import IsKnown, parameter_predicate
from torchmdla.devices.cpu.passes.strassen_nests import Product, RowTiles, strassen_steps
from torchmdla.devices.cpu.passes.tile_fusion import MOST_LOCAL_BYTES, choose_extent
from torchmdla.devices.cpu.patterns import SUM_OF_PRODUCTS, Captured, Rule
from torchmdla.devices.cpu.strassen import PRODUCTS

# The algorithm settings under which some products use Strassen's algorithm, and under which all possible ones do.
_COST_MODEL, _FORCED = "fast", "strassen"


@dataclass(frozen=True)
class _Candidate:
    steps: LoopProgram
    machine: Machine
    product: Product

    @property
    def step(self) -> LoopNest:
        return self.product.step


def _match_product(
    steps: LoopProgram, machine: Machine, is_known: IsKnown, step: LoopNest, match: Captured
) -> _Candidate | None:
    """Return the product with the outermost loop of each kind to split, or None.

    Return None if the factors are not values and weights, or if a kind does not have a loop to split. Rows of the first
    dimension, samples by convention, are not split if there are other rows.
    """
    left, right = match["left"].payload, match["right"].payload
    if not is_known(right) or is_known(left) or _slides(step, left):
        return None
    order = [loop for loop in in_memory_order(step, step.outputs[0]) if step.sizes[loop] != 1]
    rows = [loop for loop in order if loop in left.loops]
    columns = [loop for loop in order if loop in right.loops]
    terms = [loop for loop in in_memory_order(step, right) if loop in left.loops and step.sizes[loop] != 1]
    # Half of the loop across vector lanes might not be a whole number of vectors.
    if not (rows and columns and terms) or columns[0] == order[-1]:
        return None
    separate = [loop for loop in rows if len(left.indices) < 3 or loop not in left.indices[0].loops]
    product = Product(step, left, right, (separate or rows)[0], columns[0], terms[0], tuple(rows))
    if any(steps.is_varying(step.sizes[loop]) for loop in (product.row, product.column, product.term)):
        return None
    return _Candidate(steps, machine, product)


def _slides(step: LoopNest, access: Access) -> bool:
    """Return whether elements are read at several places of a window."""
    kinds = [{step.reduction[loop] for loop in index.loops if step.sizes[loop] != 1} for index in access.indices]
    return any(len(kind) > 1 for kind in kinds)


def _reduces_common_loops(product: Product) -> bool:
    step, both = product.step, product.left.loops & product.right.loops
    return all(step.reduction[loop] == (loop in both) for loop, size in enumerate(step.sizes) if size != 1)


def _has_halves(product: Product) -> bool:
    return all(static(product.step.sizes[loop]) % 2 == 0 for loop in (product.column, product.term))


def _use_strassen(case: _Candidate) -> None:
    """Use Strassen's algorithm if it is faster, or if the setting requires it for all possible products."""
    steps, step, tiles = case.steps, case.step, _tiles(case.product, case.machine)
    algorithm = select_algorithm(steps, step, case.machine)
    takes = algorithm == _FORCED or (algorithm == _COST_MODEL and _is_profitable(case.product, tiles, case.machine))
    record_algorithm(steps, step, _FORCED if takes else "direct")
    if takes:
        steps.replace_step(step, strassen_steps(case.product, tiles))


USE_STRASSEN = Rule(
    SUM_OF_PRODUCTS,
    lambda steps, machine: partial(_match_product, steps, machine, parameter_predicate(steps)),
    _use_strassen,
    {
        **BILINEAR_REQUIREMENTS,
        "loops of both factors are summed, and no others": lambda case: _reduces_common_loops(case.product),
        "columns and terms have two halves": lambda case: _has_halves(case.product),
    },
)


# Costs and tiles.

# Operations for each element of the left factor and of the result: loads, additions and stores. For the result, each
# product's accumulator is initialised, stored, loaded and added. An operation takes the time of a multiply-add of a
# product, and a store that of two.
_LEFT_COST = 1 + 1 + 2 * PRODUCTS / 4
_RESULT_COST = (1 + 2 + 1 + 1) * PRODUCTS / 4 + 2

# Products of fewer vectors are not replaced, as their steps take longer to compile. The gain must be at least this part
# of a plain sum's time.
_LEAST_VECTORS = 100_000
_LEAST_GAIN = 0.03

# Limits where all rows are one tile. The first is the part of the second-level cache that a product's left factor may
# fill, as every panel of weights reads it again. The second is the bytes of all products, which have to fit in the
# third-level cache beside other data.
_FILLED = 0.75
_MOST_BYTES = 8 << 20

_BYTES = 4


def _count(product: Product, loops: Iterable[int]) -> int:
    """Return the number of iterations of loops, where a varying size counts as one."""
    sizes = product.step.sizes
    return math.prod(size for loop in loops if isinstance(size := sizes[loop], int))


def _is_profitable(product: Product, tiles: RowTiles, machine: Machine) -> bool:
    """Return whether Strassen's algorithm takes less time than a plain sum."""

    def far(elements: float) -> float:
        return machine.memory_time(elements * _BYTES)

    lanes = machine.vector_bytes // _BYTES
    plain, weights = _count(product, range(len(product.step.sizes))) / lanes, _count(product, product.right.loops)
    left, result = _count(product, product.left.loops), _count(product, product.step.outputs[0].loops)
    halves = 2 * static(product.half(product.row)) / static(product.step.sizes[product.row])
    sums = (_LEFT_COST * left + _RESULT_COST * result) / lanes
    through_memory = far(weights * PRODUCTS / 4)
    if not tiles.axes:
        through_memory += 2 * far(left * PRODUCTS / 4) + 2 * far(result * PRODUCTS / 4)
    fewer = sums + time_of_products(plain * halves * PRODUCTS / 8, through_memory)
    fits = left / 4 * _BYTES <= _FILLED * machine.second_level and result * PRODUCTS / 4 * _BYTES <= _MOST_BYTES
    least = (1 - _LEAST_GAIN) * time_of_products(plain, far(weights))
    return plain >= _LEAST_VECTORS and fewer < least and (fits or bool(tiles.axes))


def _tiles(product: Product, machine: Machine) -> RowTiles:
    """Return tiles of rows whose sums and products fit in a cache beside the sums of weights.

    If the cache cannot hold the sums of weights, all rows are one tile.
    """
    whole = {loop: product.half(loop) for loop in range(len(product.step.sizes))}
    weights = _count(product, product.right.loops) * PRODUCTS // 4 * _BYTES
    if weights > machine.second_level // 2:
        return RowTiles(whole, ())
    columns = _count(product, product.step.outputs[0].loops) // _count(product, product.rows) // 2
    terms = _count(product, product.left.loops) // _count(product, product.rows) // 2
    room = min(MOST_LOCAL_BYTES, machine.second_level // 4) // (PRODUCTS * (columns + terms) * _BYTES)
    sizes = dict(whole)
    for loop in reversed(product.rows):
        size = whole[loop]
        sizes[loop] = choose_extent(size, max(1, min(size, room)), 1) if isinstance(size, int) else 1
        room //= static(sizes[loop])
    # The last of an odd number of rows does not have its other half in the same tile.
    is_odd = static(product.step.sizes[product.row]) % 2 == 1
    cuts_odd = is_odd and sizes[product.row] != whole[product.row]
    axes = tuple(loop for loop in product.rows if sizes[loop] != whole[loop])
    return RowTiles(whole, ()) if cuts_odd or not axes else RowTiles(sizes, axes)

"""Products of matrices with weights by fewer products, in Strassen's way (:mod:`~torchmdla.devices.cpu.strassen`).

Rows, columns and what is summed are each cut in halves. A product becomes four steps: sums of quarters of the weights
(of parameters alone, so packed once) and of the other factor, seven products, and the results with the epilogue::

    nest d0:128 d1:96 d2:64+ {              nest d0:32 d1:48 { sums of quarters of the weights w[0..6, d0, d1] }
      i0 = input0[d0, d2]                   nest d0:64 d1:32 { sums x[0..6, d0, d1] of input0[d0 + 0|64, d1 + 0|32] }
      i1 = parameter1[d2, d1]          →    nest d0:7 d1:64 d2:48 d3:32+ { p[d0, d1, d2] = … x * w }
      o0 = from 0.0 : f32                   nest d0:64 d1:48 { result2[d0 + 0|64, d1 + 0|48] = … p[0..6, d0, d1] }
      o0 + i0 * i1 }

All but the first run tile by tile of the rows where the second cache holds the sums of weights beside a tile; else the
weights come from memory, once, and all rows with them. Of an odd number of rows the last has no other half: it is taken
as zero, and its result is left out.
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
from torchmdla.devices.cpu.passes.algorithms import algorithm_for, note
from torchmdla.devices.cpu.passes.fewer_products import CAN_TAKE_FEWER_PRODUCTS, time_of_products
from torchmdla.devices.cpu.passes.layout import in_memory_order
from torchmdla.devices.cpu.passes.precompute import IsKnown, known_accesses
from torchmdla.devices.cpu.passes.strassen_nests import Product, Tiles, strassen_steps
from torchmdla.devices.cpu.passes.tile_fusion import MOST_LOCAL_BYTES, cut
from torchmdla.devices.cpu.patterns import SUM_OF_PRODUCTS, Captured, Rule
from torchmdla.devices.cpu.strassen import PRODUCTS

# By which algorithms some products are Strassen's, and by which all that can be.
_CHOOSING, _FORCED = "fast", "strassen"


@dataclass(frozen=True)
class _Candidate:
    steps: LoopProgram
    machine: Machine
    product: Product

    @property
    def step(self) -> LoopNest:
        return self.product.step


def _candidate(
    steps: LoopProgram, machine: Machine, is_known: IsKnown, step: LoopNest, match: Captured
) -> _Candidate | None:
    """Return the product with the outermost loop of each kind to cut; None if its factors are not values and weights,
    or if there is nothing to cut. Rows of the first dimension, samples by convention, are kept apart where there are
    others."""
    left, right = match["left"].payload, match["right"].payload
    if not is_known(right) or is_known(left) or _slides(step, left):
        return None
    order = [loop for loop in in_memory_order(step, step.outputs[0]) if step.sizes[loop] != 1]
    rows = [loop for loop in order if loop in left.loops]
    columns = [loop for loop in order if loop in right.loops]
    terms = [loop for loop in in_memory_order(step, right) if loop in left.loops and step.sizes[loop] != 1]
    # A half of what lies across vector lanes would be no whole number of them.
    if not (rows and columns and terms) or columns[0] == order[-1]:
        return None
    apart = [loop for loop in rows if len(left.indices) < 3 or loop not in left.indices[0].loops]
    found = Product(step, left, right, (apart or rows)[0], columns[0], terms[0], tuple(rows))
    if any(steps.varies(step.sizes[loop]) for loop in (found.row, found.column, found.term)):
        return None
    return _Candidate(steps, machine, found)


def _slides(step: LoopNest, access: Access) -> bool:
    """Whether elements are read at several places of a window."""
    kinds = [{step.reduction[loop] for loop in index.loops if step.sizes[loop] != 1} for index in access.indices]
    return any(len(own) > 1 for own in kinds)


def _sums_what_both_have(found: Product) -> bool:
    step, both = found.step, found.left.loops & found.right.loops
    return all(step.reduction[loop] == (loop in both) for loop, size in enumerate(step.sizes) if size != 1)


def _has_halves(found: Product) -> bool:
    return all(static(found.step.sizes[loop]) % 2 == 0 for loop in (found.column, found.term))


def _use(case: _Candidate) -> None:
    """Take Strassen's way where it is faster, or where all products that can do so are told to."""
    steps, step, tiles = case.steps, case.step, _tiles(case.product, case.machine)
    algorithm = algorithm_for(steps, step, case.machine)
    takes = algorithm == _FORCED or (algorithm == _CHOOSING and _pays(case.product, tiles, case.machine))
    note(steps, step, _FORCED if takes else "direct")
    if takes:
        steps.replace_step(step, strassen_steps(case.product, tiles))


USE_STRASSEN = Rule(
    SUM_OF_PRODUCTS,
    lambda steps, machine: partial(_candidate, steps, machine, known_accesses(steps)),
    _use,
    {
        **CAN_TAKE_FEWER_PRODUCTS,
        "loops of both factors are summed, and no others": lambda case: _sums_what_both_have(case.product),
        "columns and terms have two halves": lambda case: _has_halves(case.product),
    },
)


# Whether it pays, and how.

# What is loaded, added and stored for each element of the left factor, and for each of the result: there a product's
# sum is begun, stored, loaded and added. Each takes the time of a multiplication and addition of a product, a store
# that of two.
_LEFT_COST = 1 + 1 + 2 * PRODUCTS / 4
_RESULT_COST = (1 + 2 + 1 + 1) * PRODUCTS / 4 + 2

# Products of fewer vectors stay: what they would become takes longer to compile. What takes less than this part
# of a plain sum's time is worth it.
_LEAST_VECTORS = 100_000
_LEAST_GAIN = 0.03

# Where all rows are one tile: the part of the second cache that a product's left factor may fill, which is read again
# for every panel of weights, and the bytes of all products, which a third cache holds beside what others keep there.
_FILLED = 0.75
_MOST_BYTES = 8 << 20

_BYTES = 4


def _count(found: Product, loops: Iterable[int]) -> int:
    """The iterations of loops, where what varies has one."""
    sizes = found.step.sizes
    return math.prod(size for loop in loops if isinstance(size := sizes[loop], int))


def _pays(found: Product, tiles: Tiles, machine: Machine) -> bool:
    """Whether it takes less time than a plain sum."""

    def far(elements: float) -> float:
        return machine.far(elements * _BYTES)

    lanes = machine.vector_bytes // _BYTES
    plain, weights = _count(found, range(len(found.step.sizes))) / lanes, _count(found, found.right.loops)
    left, result = _count(found, found.left.loops), _count(found, found.step.outputs[0].loops)
    halves = 2 * static(found.half(found.row)) / static(found.step.sizes[found.row])
    sums = (_LEFT_COST * left + _RESULT_COST * result) / lanes
    through_memory = far(weights * PRODUCTS / 4)
    if not tiles.axes:
        through_memory += 2 * far(left * PRODUCTS / 4) + 2 * far(result * PRODUCTS / 4)
    fewer = sums + time_of_products(plain * halves * PRODUCTS / 8, through_memory)
    fits = left / 4 * _BYTES <= _FILLED * machine.second_level and result * PRODUCTS / 4 * _BYTES <= _MOST_BYTES
    least = (1 - _LEAST_GAIN) * time_of_products(plain, far(weights))
    return plain >= _LEAST_VECTORS and fewer < least and (fits or bool(tiles.axes))


def _tiles(found: Product, machine: Machine) -> Tiles:
    """Tiles of rows whose sums and products a cache holds beside the sums of weights; where it cannot hold these, all
    rows are one."""
    whole = {loop: found.half(loop) for loop in range(len(found.step.sizes))}
    weights = _count(found, found.right.loops) * PRODUCTS // 4 * _BYTES
    if weights > machine.second_level // 2:
        return Tiles(whole, ())
    columns = _count(found, found.step.outputs[0].loops) // _count(found, found.rows) // 2
    terms = _count(found, found.left.loops) // _count(found, found.rows) // 2
    room = min(MOST_LOCAL_BYTES, machine.second_level // 4) // (PRODUCTS * (columns + terms) * _BYTES)
    sizes = dict(whole)
    for loop in reversed(found.rows):
        size = whole[loop]
        sizes[loop] = cut(size, max(1, min(size, room)), 1) if isinstance(size, int) else 1
        room //= static(sizes[loop])
    # The last of an odd number of rows has no other half in its tile.
    is_odd = static(found.step.sizes[found.row]) % 2 == 1
    cuts_odd = is_odd and sizes[found.row] != whole[found.row]
    axes = tuple(loop for loop in found.rows if sizes[loop] != whole[loop])
    return Tiles(whole, ()) if cuts_odd or not axes else Tiles(sizes, axes)

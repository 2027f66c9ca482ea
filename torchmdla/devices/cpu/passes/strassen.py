"""Products of matrices with weights by Strassen's algorithm (:mod:`~torchmdla.devices.cpu.passes.bilinear_maps`).

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

from functools import partial

from torchmdla.compiler.sizes import static
from torchmdla.devices.cpu.ir.accesses import Access
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram
from torchmdla.devices.cpu.ir.patterns import SUM_OF_PRODUCTS, Captured, Rule
from torchmdla.devices.cpu.passes.bilinear_algorithms import BILINEAR_REQUIREMENTS, Product, strassen
from torchmdla.devices.cpu.passes.bilinear_costs import COST_MODEL, StrassenChoice
from torchmdla.devices.cpu.passes.layout import in_memory_order
from torchmdla.devices.cpu.passes.precompute import IsKnown, parameter_predicate
from torchmdla.devices.cpu.target.machine import Machine

# The algorithm setting under which all possible products use Strassen's algorithm.
_FORCED = "strassen"


def _match_product(
    steps: LoopProgram, machine: Machine, is_known: IsKnown, step: LoopNest, match: Captured
) -> StrassenChoice | None:
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
    return StrassenChoice(steps, product, machine)


def _slides(step: LoopNest, access: Access) -> bool:
    """Return whether elements are read at several places of a window."""
    kinds = [{step.reduction[loop] for loop in index.loops if step.sizes[loop] != 1} for index in access.indices]
    return any(len(kind) > 1 for kind in kinds)


def _reduces_common_loops(product: Product) -> bool:
    step, both = product.step, product.left.loops & product.right.loops
    return all(step.reduction[loop] == (loop in both) for loop, size in enumerate(step.sizes) if size != 1)


def _use_strassen(case: StrassenChoice) -> None:
    """Use Strassen's algorithm if it is faster, or if the setting requires it for all possible products."""
    algorithm = case.select()
    takes = algorithm == _FORCED or (algorithm == COST_MODEL and case.is_profitable())
    case.record(_FORCED if takes else "direct")
    if takes:
        case.steps.replace_step(case.step, strassen(case.product).nests(case.tiles()))


USE_STRASSEN = Rule(
    SUM_OF_PRODUCTS,
    lambda steps, machine: partial(_match_product, steps, machine, parameter_predicate(steps)),
    _use_strassen,
    {
        **BILINEAR_REQUIREMENTS,
        "loops of both factors are summed, and no others": lambda case: _reduces_common_loops(case.product),
        "columns and terms have two halves": lambda case: all(
            static(case.step.sizes[loop]) % 2 == 0 for loop in (case.product.column, case.product.term)
        ),
    },
)

"""Transposes of computed factors of products, as in attention, so that vectors are along the product's columns.

If both factors are dotted along their innermost dimension (queries with keys), a kernel would have to add up the lanes
of a vector for every element. It is far cheaper to transpose one factor first.
"""

from __future__ import annotations

import math

from torchmdla.compiler.sizes import estimate
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram
from torchmdla.devices.cpu.passes.layout import lay_out

# The number of rows from which repeated reads of a factor cost more than its transpose.
_FEWEST_ROWS = 8


def pack_activations(steps: LoopProgram) -> None:
    """Transpose the factor that a product's columns index, unless its layout is already by columns, in place."""
    for step in steps.nests():
        position = _crosswise_factor(step)
        if position is not None:
            column = _column(step)
            order = [d for d in range(len(step.sizes)) if not step.reduction[d] and d != column]
            order += [d for d in range(len(step.sizes)) if step.reduction[d]] + [column]
            steps.steps.insert(steps.steps.index(step), lay_out(step, step.inputs[position], order))


def _column(step: LoopNest) -> int:
    """Return the loop along which the result is contiguous in memory, -1 if there is not any."""
    flat = step.written_accesses[0].flat(len(step.sizes))
    loops = (d for d, factor in enumerate(flat.factors) if factor == 1 and step.sizes[d] != 1 and not step.reduction[d])
    return next(loops, -1)


def _crosswise_factor(step: LoopNest) -> int | None:
    """Return the position of the factor to transpose, or None.

    It is the only factor that varies with the column, its stride along the column is not 1, and it is read for each
    row. The transposed copy must not be larger than the factor. It would be for a convolution, with one copy of an
    element for each window.
    """
    if not step.written_accesses:
        return None
    column, loops = _column(step), range(len(step.sizes))
    reduced = [d for d in loops if step.reduction[d] and step.sizes[d] != 1]
    if column < 0 or len(step.inputs) != 2 or not reduced:
        return None
    flats = [access.flat(len(step.sizes)).factors for access in step.inputs]
    candidates = [k for k in (0, 1) if flats[k][column]]
    if (
        len(candidates) != 1
        or flats[candidates[0]][column] == 1
        or step.inputs[candidates[0]].buffer.kind in ("parameter", "packed")
    ):
        return None
    factor = step.inputs[candidates[0]].buffer
    if estimate(math.prod(step.sizes[d] for d in loops if flats[candidates[0]][d])) > estimate(factor.count):
        return None
    rows = max(
        (estimate(step.sizes[d]) for d in loops if not step.reduction[d] and not flats[candidates[0]][d]), default=1
    )
    dotted = all(factors[d] for factors in flats for d in reduced)
    return candidates[0] if dotted and rows >= _FEWEST_ROWS else None

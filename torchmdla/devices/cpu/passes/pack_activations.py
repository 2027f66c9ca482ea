"""Products of two matrices that are both computed, as in attention: vectors lie along the columns of the product.

Where both factors are dotted along their innermost dimension (queries with keys), a kernel would have to add up the
lanes of a vector for every element. Transposing one factor first costs far less.
"""

from __future__ import annotations

import math

from torchmdla.compiler.sizes import estimate
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram
from torchmdla.devices.cpu.passes.layout import lay_out

# Rows of the product from which reading a factor again for each of them costs more than transposing it once.
_FEWEST_ROWS = 8


def pack_activations(steps: LoopProgram) -> None:
    """Transposes the factor that the columns of a product vary with, where it is not laid out by columns, in place."""
    for step in steps.nests():
        position = _crosswise_factor(step)
        if position is not None:
            column = _column(step)
            order = [d for d in range(len(step.sizes)) if not step.reduction[d] and d != column]
            order += [d for d in range(len(step.sizes)) if step.reduction[d]] + [column]
            steps.steps.insert(steps.steps.index(step), lay_out(step, step.inputs[position], order))


def _column(step: LoopNest) -> int:
    """The loop along which the result lies in memory, -1 if there is none."""
    flat = step.written_accesses[0].flat(len(step.sizes))
    loops = (d for d, factor in enumerate(flat.factors) if factor == 1 and step.sizes[d] != 1 and not step.reduction[d])
    return next(loops, -1)


def _crosswise_factor(step: LoopNest) -> int | None:
    """The factor to transpose: the only one that varies with the column, against its memory, read for each row, and no
    larger when each element has one place for each window (of a convolution) that it is in."""
    if not step.written_accesses:
        return None
    column, loops = _column(step), range(len(step.sizes))
    reduced = [d for d in loops if step.reduction[d] and step.sizes[d] != 1]
    if column < 0 or len(step.inputs) != 2 or not reduced:
        return None
    flats = [access.flat(len(step.sizes)).factors for access in step.inputs]
    own = [k for k in (0, 1) if flats[k][column]]
    if len(own) != 1 or flats[own[0]][column] == 1 or step.inputs[own[0]].buffer.kind in ("parameter", "packed"):
        return None
    factor = step.inputs[own[0]].buffer
    if estimate(math.prod(step.sizes[d] for d in loops if flats[own[0]][d])) > estimate(factor.count):
        return None
    rows = max((estimate(step.sizes[d]) for d in loops if not step.reduction[d] and not flats[own[0]][d]), default=1)
    dotted = all(factors[d] for factors in flats for d in reduced)
    return own[0] if dotted and rows >= _FEWEST_ROWS else None

"""Panels: the weights of a matrix product, laid out so that its kernel reads them from front to back."""

from __future__ import annotations

import math

from torchmdla.compiler.sizes import AnySize, estimate, quotient, static
from torchmdla.devices.cpu.accesses import Access
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, split_loop
from torchmdla.devices.cpu.passes.layout import lay_out, slides
from torchmdla.devices.cpu.passes.precompute import known_accesses

# Rows of the other factor from which a kernel holds a tile of the product; with fewer it just streams the weights.
_FEWEST_ROWS = 3

# Vectors side by side in a register tile, best first.
_VECTORS = (3, 2, 4, 1)


def panel_width(columns: AnySize, lanes: int) -> int:
    """Columns of a panel: as many vectors as a register tile is wide; all columns if they are such a number. 0 where
    panels do not fit."""
    widths = [n * lanes for n in _VECTORS if quotient(columns, n * lanes) is not None]
    return static(columns) if columns in widths else next(iter(widths), 0)


def pack_weights(steps: LoopProgram, lanes: int) -> None:
    """Gives matrix products with parameters these as [columns/panel][rows][panel]."""
    is_known = known_accesses(steps)
    made: dict[object, Access] = {}
    for step in steps.nests():
        if not any(step.reduction) or slides(step):
            continue
        for position, access in enumerate(step.inputs):
            if is_known(access):
                _use_panels(steps, step, position, lanes, made)


def _use_panels(steps: LoopProgram, step: LoopNest, position: int, lanes: int, made: dict[object, Access]) -> None:
    column = _column_loop(step, position)
    width = panel_width(step.sizes[column], lanes) if column >= 0 else 0
    if not width:
        return
    split_loop(step, column, (step.sizes[column] // width, width))
    lane, loops = column + 1, len(step.sizes)
    others = [a.flat(loops) for k, a in enumerate(step.inputs) if k != position]
    order = [d for d in range(loops) if not step.reduction[d] and d != lane]
    order += sorted(
        (d for d in range(loops) if step.reduction[d]), key=lambda d: -max(estimate(o.factors[d]) for o in others)
    )
    order.append(lane)
    source = step.inputs[position]
    flat = source.flat(loops)
    key = source.buffer, flat.constant, tuple((step.sizes[d], flat.factors[d]) for d in order)
    maker = lay_out(step, source, order)
    if key in made:
        laid_out = step.inputs[position]
        step.read_instead(laid_out, Access(made[key].buffer, laid_out.indices))
    else:
        made[key] = step.inputs[position]
        steps.steps.insert(steps.steps.index(step), maker)


def _column_loop(step: LoopNest, position: int) -> int:
    """The largest loop of the product that only input ``position`` varies with; -1 if it is no product of enough rows
    with that input as a matrix."""
    loops = range(len(step.sizes))
    own = step.inputs[position].loops
    others = {d for k, a in enumerate(step.inputs) if k != position for d in a.loops}
    reduced = {d for d in loops if step.reduction[d] and step.sizes[d] != 1}
    rows = math.prod(step.sizes[d] for d in others - own if not step.reduction[d])
    columns = [d for d in own - others if not step.reduction[d]]
    if (
        len(step.inputs) < 2
        or estimate(rows) < _FEWEST_ROWS
        or not columns
        or not reduced
        or not reduced <= own & others
    ):
        return -1
    column = max(columns, key=lambda d: estimate(step.sizes[d]))
    return column if column not in step.indexed_loops else -1

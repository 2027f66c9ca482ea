"""Weights of matrix products, laid out so that kernels read them from front to back: in panels, or as they lie in a
parameter already."""

from __future__ import annotations

import math
from dataclasses import replace

from torchmdla.compiler.sizes import AnySize, estimate, quotient, static
from torchmdla.devices.cpu.accesses import Access, Buffer
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, contracts, split_loop
from torchmdla.devices.cpu.passes.layout import in_memory_order, lay_out, slides
from torchmdla.devices.cpu.passes.precompute import known_accesses, parameter_values

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
    """Gives matrix products with parameters these as [columns/panel][rows][panel]. Products of fewer rows read what is
    computed of a parameter in the order in which that lies: narrow elements are then read in place."""
    is_known = known_accesses(steps)
    made: dict[object, Access] = {}
    for step in steps.nests():
        if not any(step.reduction) or slides(step):
            continue
        for position, access in enumerate(step.inputs):
            if is_known(access):
                _use_panels(steps, step, position, lanes, made)
    for buffer, makers in parameter_values(steps).items():
        if len(makers) == 1:
            _lie_as_parameter(steps, buffer, makers[0])


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


def _lie_as_parameter(steps: LoopProgram, buffer: Buffer, maker: LoopNest) -> None:
    """Turns the dimensions of what products alone read to the order of the parameter that it is computed of."""
    readers = [step for step in steps.users(buffer) if step is not maker]
    nests = [step for step in readers if isinstance(step, LoopNest) and _streams(step, buffer)]
    if len(nests) < len(readers) or len(maker.inputs) != 1 or any(maker.reduction):
        return
    (made,) = maker.outputs
    loops = in_memory_order(maker, maker.inputs[0])
    order = [d for loop in loops for d, index in enumerate(made.indices) if index.is_loop() and loop in index.loops]
    if maker.inputs[0].buffer.kind != "parameter" or sorted(order) != list(range(len(buffer.sizes))):
        return
    turned = replace(buffer, sizes=tuple(buffer.sizes[d] for d in order))

    def turn(access: Access) -> Access:
        if access.buffer is not buffer:
            return access
        return replace(access, buffer=turned, indices=tuple(access.indices[d] for d in order))

    for step in (maker, *nests):
        step.map_accesses(turn)


def _streams(step: LoopNest, buffer: Buffer) -> bool:
    """Whether a step is a product that walks a buffer by its dimensions for few rows."""
    if step.tables or slides(step) or not contracts(step):
        return False
    accesses = [access for access in step.accesses if access.buffer is buffer]
    walked = {loop for access in accesses for loop in access.loops}
    rows = math.prod(n for d, n in enumerate(step.sizes) if d not in walked and not step.reduction[d])
    return estimate(rows) < _FEWEST_ROWS and all(len(a.indices) == len(buffer.sizes) for a in accesses)

"""Packing of weights of matrix products for sequential reads: in panels, or in the order of the parameter."""

from __future__ import annotations

import math
from dataclasses import replace

from torchmdla.compiler.sizes import AnySize, estimate, quotient, static
from torchmdla.devices.cpu.accesses import Access, Buffer
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, contracts, split_loop
from torchmdla.devices.cpu.passes.layout import in_memory_order, lay_out, slides
from torchmdla.devices.cpu.passes.precompute import known_accesses, parameter_values

# The number of rows of the other factor from which a kernel keeps a tile of the product in registers. With fewer rows,
# it just streams the weights.
_FEWEST_ROWS = 3

# Adjacent vectors in a register block, best first.
_VECTORS = (3, 2, 4, 1)


def panel_width(columns: AnySize, lanes: int) -> int:
    """Return the number of columns of a panel, which is the width of a register block; 0 if panels do not fit.

    A panel has all columns if their number is a possible width.
    """
    widths = [n * lanes for n in _VECTORS if quotient(columns, n * lanes) is not None]
    return static(columns) if columns in widths else next(iter(widths), 0)


def pack_weights(steps: LoopProgram, lanes: int) -> None:
    """Pack parameters of matrix products as [columns/panel][rows][panel], in place.

    Products of fewer rows read values computed from a parameter in the parameter's order, so narrow elements are read
    in place.
    """
    is_known = known_accesses(steps)
    panels: dict[object, Access] = {}
    for step in steps.nests():
        if not any(step.reduction) or slides(step):
            continue
        for position, access in enumerate(step.inputs):
            if is_known(access):
                _use_panels(steps, step, position, lanes, panels)
    for buffer, makers in parameter_values(steps).items():
        if len(makers) == 1:
            _lie_as_parameter(steps, buffer, makers[0])


def _use_panels(steps: LoopProgram, step: LoopNest, position: int, lanes: int, panels: dict[object, Access]) -> None:
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
    if key in panels:
        laid_out = step.inputs[position]
        step.read_instead(laid_out, Access(panels[key].buffer, laid_out.indices))
    else:
        panels[key] = step.inputs[position]
        steps.steps.insert(steps.steps.index(step), maker)


def _column_loop(step: LoopNest, position: int) -> int:
    """Return the largest loop of the product that only input ``position`` varies with.

    Return -1 if the step is not a product of enough rows with that input as a matrix.
    """
    loops = range(len(step.sizes))
    matrix_loops = step.inputs[position].loops
    others = {d for k, a in enumerate(step.inputs) if k != position for d in a.loops}
    reduced = {d for d in loops if step.reduction[d] and step.sizes[d] != 1}
    rows = math.prod(step.sizes[d] for d in others - matrix_loops if not step.reduction[d])
    columns = [d for d in matrix_loops - others if not step.reduction[d]]
    if (
        len(step.inputs) < 2
        or estimate(rows) < _FEWEST_ROWS
        or not columns
        or not reduced
        or not reduced <= matrix_loops & others
    ):
        return -1
    column = max(columns, key=lambda d: estimate(step.sizes[d]))
    return column if column not in step.indexed_loops else -1


def _lie_as_parameter(steps: LoopProgram, buffer: Buffer, maker: LoopNest) -> None:
    """Permute the dimensions of a buffer that only products read to the order of its source parameter."""
    readers = [step for step in steps.users(buffer) if step is not maker]
    nests = [step for step in readers if isinstance(step, LoopNest) and _streams(step, buffer)]
    if len(nests) < len(readers) or len(maker.inputs) != 1 or any(maker.reduction):
        return
    (target,) = maker.outputs
    loops = in_memory_order(maker, maker.inputs[0])
    order = [d for loop in loops for d, index in enumerate(target.indices) if index.is_loop() and loop in index.loops]
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
    """Return whether a step is a product for few rows that indexes a buffer by its dimensions."""
    if step.tables or slides(step) or not contracts(step):
        return False
    accesses = [access for access in step.accesses if access.buffer is buffer]
    walked = {loop for access in accesses for loop in access.loops}
    rows = math.prod(n for d, n in enumerate(step.sizes) if d not in walked and not step.reduction[d])
    return estimate(rows) < _FEWEST_ROWS and all(len(a.indices) == len(buffer.sizes) for a in accesses)

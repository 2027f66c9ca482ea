"""Layout of factors of matrix products for sequential reads.

Weights are packed in panels, or in the order of the parameter. Computed factors are transposed, as in attention, so
that vectors are along the product's columns, or copied to panels. If both factors are dotted along their innermost
dimension (queries with keys), a kernel would have to add up the lanes of a vector for every element. It is far cheaper
to transpose one factor first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchmdla.compiler.sizes import AnySize, estimate, quotient, static
from torchmdla.devices.cpu.ir.accesses import Access, Buffer
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, fill_value, is_contraction, is_copy, split_loop
from torchmdla.devices.cpu.passes.layout import has_sliding_window, in_memory_order, lay_out
from torchmdla.devices.cpu.passes.narrow.dot_products import matrix_products
from torchmdla.devices.cpu.passes.precompute import parameter_predicate, parameter_values
from torchmdla.devices.cpu.passes.tile_fusion import MOST_LOCAL_BYTES
from torchmdla.devices.cpu.schedule import choose_schedule, estimate_cycles
from torchmdla.devices.cpu.target.machine import Machine

# Weights.

# The number of rows of the other factor from which a kernel keeps a tile of the product in registers. With fewer rows,
# it just streams the weights.
_FEWEST_ROWS_IN_REGISTERS = 3

# Adjacent vectors in a register block, best first: of vectors, and of a matrix unit's tiles.
_VECTORS = (3, 2, 4, 1)
_TILES = (2, 3, 1)


# The rows of the other factor in a register block. Threads share the blocks of few rows by panels.
_ROWS_OF_BLOCK = 8


def panel_width(columns: AnySize, lanes: int, vectors: Sequence[int] = _VECTORS, fewest: int = 1) -> int:
    """Return the number of columns of a panel, which is the width of a register block; 0 if panels do not fit.

    There are at least ``fewest`` panels, if that is possible. Otherwise, a panel has all columns if their number is a
    possible width. ``vectors`` are the vectors of a register block.
    """
    widths = [n * lanes for n in vectors if quotient(columns, n * lanes) is not None]
    if fewest > 1 and (enough := [width for width in widths if estimate(columns) >= fewest * width]):
        return enough[0]
    return static(columns) if columns in widths else next(iter(widths), 0)


def pack_weights(steps: LoopProgram, machine: Machine) -> None:
    """Pack parameters of matrix products as [columns/panel][rows][panel], in place.

    Products of fewer rows read values computed from a parameter in the parameter's order, so narrow elements are read
    in place. Parameters that a matrix unit multiplies are in one panel if their columns are not whole vectors. Panels
    of a constant, such as the initial state of a recurrent network, are filled with it.
    """
    is_known, multiplied = parameter_predicate(steps), matrix_products(steps, machine)
    panels: dict[object, Access] = {}
    for step in steps.nests():
        if not any(step.reduction) or has_sliding_window(step):
            continue
        for position, access in enumerate(step.inputs):
            if is_known(access):
                _use_panels(steps, step, position, machine, step in multiplied, panels)
    values = parameter_values(steps)
    for buffer, producers in values.items():
        if len(producers) == 1:
            _store_constant(producers[0], values)
            _permute_to_parameter_order(steps, buffer, producers[0])


def _use_panels(
    steps: LoopProgram,
    step: LoopNest,
    position: int,
    machine: Machine,
    is_by_tiles: bool,
    panels: dict[object, Access],
) -> None:
    column = _column_loop(step, position)
    if column < 0:
        return
    columns, weights = step.sizes[column], step.inputs[position].loops
    rows = (size for d, size in enumerate(step.sizes) if not step.reduction[d] and d not in weights)
    blocks = -(-math.prod(map(estimate, rows)) // _ROWS_OF_BLOCK)
    vectors = _TILES if is_by_tiles else _VECTORS
    width = panel_width(columns, machine.vector_bytes // 4, vectors, -(-machine.threads // blocks))
    if not width and is_by_tiles and isinstance(columns, int):
        width = columns
    if not width:
        return
    producer = _to_panels(step, position, column, width)
    (source,) = producer.inputs
    flat = source.linearise(len(producer.sizes))
    key = source.buffer, flat.constant, flat.factors, producer.sizes
    if key in panels:
        laid_out = step.inputs[position]
        step.replace_load(laid_out, Access(panels[key].buffer, laid_out.indices))
    else:
        panels[key] = step.inputs[position]
        steps.steps.insert(steps.steps.index(step), producer)


def _to_panels(step: LoopNest, position: int, column: int, width: int) -> LoopNest:
    """Make a product read input ``position`` from panels of ``width`` columns; return the step that fills them."""
    split_loop(step, column, (step.sizes[column] // width, width))
    lane, loops = column + 1, len(step.sizes)
    others = [a.linearise(loops) for k, a in enumerate(step.inputs) if k != position]
    order = [d for d in range(loops) if not step.reduction[d] and d != lane]
    order += sorted(
        (d for d in range(loops) if step.reduction[d]), key=lambda d: -max(estimate(o.factors[d]) for o in others)
    )
    return lay_out(step, step.inputs[position], [*order, lane])


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
        or estimate(rows) < _FEWEST_ROWS_IN_REGISTERS
        or not columns
        or not reduced
        or not reduced <= matrix_loops & others
    ):
        return -1
    column = max(columns, key=lambda d: estimate(step.sizes[d]))
    return column if column not in step.indexed_loops else -1


def _store_constant(step: LoopNest, values: Mapping[Buffer, Sequence[LoopNest]]) -> None:
    """Let a copy of a filled buffer store the constant, so that layers with equal constants share one buffer."""
    sources = values.get(step.reads[0], ()) if is_copy(step) else ()
    constant = fill_value(sources[0]) if len(sources) == 1 else None
    if constant is not None:
        step.values = (constant,)


def _permute_to_parameter_order(steps: LoopProgram, buffer: Buffer, producer: LoopNest) -> None:
    """Permute the dimensions of a buffer that only products read to the order of its source parameter."""
    readers = [step for step in steps.users(buffer) if step is not producer]
    nests = [step for step in readers if isinstance(step, LoopNest) and _streams(step, buffer)]
    if len(nests) < len(readers) or len(producer.inputs) != 1 or any(producer.reduction):
        return
    (target,) = producer.outputs
    loops = in_memory_order(producer, producer.inputs[0])
    order = [d for loop in loops for d, index in enumerate(target.indices) if index.is_loop() and loop in index.loops]
    if producer.inputs[0].buffer.kind != "parameter" or sorted(order) != list(range(len(buffer.sizes))):
        return
    permuted = replace(buffer, sizes=tuple(buffer.sizes[d] for d in order))

    def permute(access: Access) -> Access:
        if access.buffer is not buffer:
            return access
        return replace(access, buffer=permuted, indices=tuple(access.indices[d] for d in order))

    for step in (producer, *nests):
        step.map_accesses(permute)


def _streams(step: LoopNest, buffer: Buffer) -> bool:
    """Return whether a step is a product for few rows that indexes a buffer by its dimensions."""
    if step.tables or has_sliding_window(step) or not is_contraction(step):
        return False
    accesses = [access for access in step.accesses if access.buffer is buffer]
    walked = {loop for access in accesses for loop in access.loops}
    rows = math.prod(n for d, n in enumerate(step.sizes) if d not in walked and not step.reduction[d])
    return estimate(rows) < _FEWEST_ROWS_IN_REGISTERS and all(len(a.indices) == len(buffer.sizes) for a in accesses)


# Computed factors.

# The number of rows from which repeated reads of a factor cost more than its transpose.
_FEWEST_ROWS_TO_TRANSPOSE = 8


def pack_activations(steps: LoopProgram, machine: Machine) -> None:
    """Lay out the factor that a product's columns index, in place.

    It is transposed, unless its layout is already by columns. It is copied to panels where that is faster by the cost
    model.
    """
    typical = tuple(steps.typical)
    for step in steps.nests():
        if machine.matrix and any(step.reduction) and choose_schedule(step.kernel, machine, typical).matrix:
            continue  # A matrix unit reads both factors as they are.
        by_columns, by_panels = _read_by_columns(step), _read_by_panels(step, machine)
        uses_panels = bool(by_panels) and _is_small(by_panels[0], machine)
        layouts = [by_columns, *([by_panels] if uses_panels else [])]
        layouts += [by_rows for nests in layouts if (by_rows := _read_by_rows(nests))]
        best = min(layouts, key=lambda nests: _cycles(nests, machine, typical)) if len(layouts) > 1 else by_columns
        if len(best) > 1:
            steps.replace_step(step, best)


def _is_small(copy: LoopNest, machine: Machine) -> bool:
    """Return whether a cache holds all panels, or a panel is small enough for a copy by tiles.

    The caller's memory is not filled with copies of a large layer's weights, such as the products with a vocabulary.
    """
    panels = copy.writes[0]
    panel = estimate(panels.bytes) // estimate(panels.sizes[0])
    return panel <= MOST_LOCAL_BYTES or not machine.comes_from_memory(estimate(panels.bytes))


def _cycles(nests: Sequence[LoopNest], machine: Machine, typical: tuple[int, ...]) -> float:
    return sum(estimate_cycles(nest.kernel, machine, typical) for nest in nests)


def _read_by_columns(step: LoopNest) -> list[LoopNest]:
    """Return a product that reads both factors by columns, behind the step that transposes one if necessary."""
    position, product = _crosswise_factor(step), replace(step)
    if position is None:
        return [product]
    column = _column(step)
    order = [d for d in range(len(step.sizes)) if not step.reduction[d] and d != column]
    order += [d for d in range(len(step.sizes)) if step.reduction[d]] + [column]
    return [lay_out(product, product.inputs[position], order), product]


def _read_by_panels(step: LoopNest, machine: Machine) -> list[LoopNest]:
    """Return a product that reads a factor from panels, behind the step that fills them; empty if that is not possible.

    Panels are not shared with other products, since the factor may be written in between.
    """
    position, product = _panel_factor(step, machine), replace(step)
    if position is None:
        return []
    column = _column(step)
    width = panel_width(step.sizes[column], machine.vector_bytes // 4)
    return [_to_panels(product, position, column, width), product]


def _read_by_rows(nests: Sequence[LoopNest]) -> list[LoopNest]:
    """Return a product that reads its broadcast factor along the reduction, behind the steps that lay out both factors.

    Return nothing if it reads the factor in this way already, or if the factor is not computed.
    """
    *others, step = nests
    column = _column(step) if step.written_accesses else -1
    reduced = [d for d, reduces in enumerate(step.reduction) if reduces and step.sizes[d] != 1]
    if column < 0 or len(step.inputs) != 2 or not reduced or has_sliding_window(step):
        return []
    position = next((k for k, access in enumerate(step.inputs) if column not in access.loops), None)
    if position is None or step.inputs[position].buffer.kind in ("parameter", "packed"):
        return []
    access = step.inputs[position]
    rows = [d for d in in_memory_order(step, access) if not step.reduction[d]]
    strides = access.linearise(len(step.sizes)).factors
    if any(strides[d] in (0, 1) for d in reduced):
        return []
    product = replace(step)
    return [*others, lay_out(product, access, [*rows, *reduced]), product]


def _panel_factor(step: LoopNest, machine: Machine) -> int | None:
    """Return the position of the computed factor that may be copied to panels, or None."""
    if not any(step.reduction) or not step.written_accesses or has_sliding_window(step) or len(step.inputs) != 2:
        return None
    column = _column(step)
    if column < 0 or not panel_width(step.sizes[column], machine.vector_bytes // 4):
        return None
    candidates = (k for k, a in enumerate(step.inputs) if a.buffer.kind not in ("parameter", "packed"))
    return next((k for k in candidates if _column_loop(step, k) == column), None)


def _column(step: LoopNest) -> int:
    """Return the loop along which the result, or its words, are contiguous in memory, -1 if there is not any."""
    result = step.written_accesses[0]
    factors = enumerate(result.linearise(len(step.sizes)).factors)
    loops = (d for d, factor in factors if factor == result.width and step.sizes[d] != 1 and not step.reduction[d])
    return next(loops, -1)


def _crosswise_factor(step: LoopNest) -> int | None:
    """Return the position of the factor to transpose, or None.

    It is the only factor that varies with the column, is not contiguous along it, and is read for each row. The
    transposed copy must not be larger than the factor. It would be for a convolution, with one copy of an element for
    each window.
    """
    if not step.written_accesses:
        return None
    column, loops = _column(step), range(len(step.sizes))
    reduced = [d for d in loops if step.reduction[d] and step.sizes[d] != 1]
    if column < 0 or len(step.inputs) < 2 or not reduced:
        return None
    flats = [access.linearise(len(step.sizes)).factors for access in step.inputs]
    candidates = [k for k, factors in enumerate(flats) if factors[column]]
    if (
        len(candidates) != 1
        or flats[candidates[0]][column] == step.inputs[candidates[0]].width
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
    return candidates[0] if dotted and rows >= _FEWEST_ROWS_TO_TRANSPOSE else None

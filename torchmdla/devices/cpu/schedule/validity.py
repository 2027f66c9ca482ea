"""Conditions that a schedule must satisfy for its kernel to be correct, however it was chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from torchmdla.compiler.sizes import Size, at
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest
from torchmdla.devices.cpu.schedule import Schedule, may_vectorise
from torchmdla.devices.cpu.schedule.blocking import has_static_layout
from torchmdla.devices.cpu.schedule.dataflow import serial_loops
from torchmdla.devices.cpu.schedule.matrix_tile import Registers, product_of_tile
from torchmdla.devices.cpu.target.machine import Machine


def find_faults(nest: AnyNest, schedule: Schedule, machine: Machine) -> Iterator[str]:
    """Yield the faults of a schedule of ``nest``, up to the first kind of fault.

    Each text continues a sentence that begins with the schedule's name.
    """
    for check in _CHECKS:
        violations = list(check(nest, schedule, machine))
        yield from violations
        if violations:
            return


def _numbers(nest: AnyNest, schedule: Schedule, machine: Machine) -> Iterator[str]:
    loops = len(nest.sizes)
    if len(schedule.tiles) != loops or len(schedule.unroll) != loops:
        yield f"has tiles or unrolling of another number of loops than {loops}"
    steps = [level.step for level in schedule.levels]
    if min([*schedule.tiles, *schedule.unroll, *steps, schedule.lanes], default=1) < 1 or schedule.grain < 0:
        yield "has a size that is not positive"
    if any(not 0 <= level.loop < loops for level in schedule.levels) or not -1 <= schedule.vector < loops:
        yield f"names a loop beyond the last one, {loops - 1}"


def _lanes(nest: AnyNest, schedule: Schedule, machine: Machine) -> Iterator[str]:
    vector, lanes = schedule.vector, schedule.lanes
    if vector < 0:
        if lanes != 1:
            yield "has lanes, but no loop across them"
        return
    if lanes & (lanes - 1) or not 1 < lanes <= machine.vector_bytes:
        yield f"has {lanes} lanes, which is not a power of two from 2 to {machine.vector_bytes}"
    elif schedule.tiles[vector] % lanes:
        yield f"has a tile of loop {vector} that is not a multiple of its lanes"
    if not may_vectorise(nest, vector):
        yield f"has loop {vector} across lanes, whose iterations must run one by one"


def _reduction(nest: AnyNest, schedule: Schedule, machine: Machine) -> Iterator[str]:
    loops = [d for d, reduces in enumerate(nest.reduction) if reduces]
    if sorted(schedule.reduction) != loops:
        yield f"reduces over other loops than {loops}"
    if any(schedule.tiles[d] > 1 for d in loops if d != schedule.vector):
        yield "has tiles of a loop that reduces, and does not lie across lanes"
    for d, times in enumerate(schedule.unroll):
        if times > 1 and (d not in loops or (d == schedule.vector and isinstance(nest.sizes[d], Size))):
            yield f"unrolls loop {d}, which does not reduce, or is a dynamic one across lanes"


def _levels(nest: AnyNest, schedule: Schedule, machine: Machine) -> Iterator[str]:
    steps = {d: [level.step for level in schedule.levels if level.loop == d] for d in range(len(nest.sizes))}
    for d, loop_steps in steps.items():
        if nest.reduction[d]:
            continue
        if loop_steps[-1:] != [schedule.tiles[d]]:
            yield f"has no last level of loop {d} that steps by its tile, {schedule.tiles[d]}"
        if any(outer % inner for outer, inner in pairwise(loop_steps)):
            yield f"has levels of loop {d} whose steps do not divide one another"
    ranged = [level.loop for level in schedule.levels[: schedule.ranged]]
    if not 0 <= schedule.ranged <= len(schedule.levels) or len(set(ranged)) < len(ranged):
        yield "has a range of one loop twice, or of more levels than there are"
    if any(nest.reduction[d] for d in ranged):
        yield "has a range with a loop that reduces"
    serial = serial_loops(nest)
    order = [level.loop for level in schedule.levels if level.loop in serial]
    if serial.intersection(ranged) or order != sorted(serial) or any(schedule.tiles[d] > 1 for d in serial):
        yield f"does not run {sorted(serial)} in order, which may update one element several times"


def _blocks(nest: AnyNest, schedule: Schedule, machine: Machine) -> Iterator[str]:
    """Yield the faults of blocks of a reduction, between which partial results are stored."""
    first = next((k for k, level in enumerate(schedule.levels) if nest.reduction[level.loop]), None)
    if first is None:
        return
    if all(nest.reduction):
        yield "has blocks of a reduction to a single number"
    blocked = [level.loop for level in schedule.levels if nest.reduction[level.loop]]
    if schedule.vector >= 0 and nest.reduction[schedule.vector]:
        yield "has blocks of a reduction across lanes"
    if len(set(blocked)) < len(blocked):
        yield "has blocks of a loop that reduces in blocks of it"
    for d in blocked:
        size = nest.sizes[d]
        if isinstance(size, Size) and any(factor < 0 for _, factor in size.terms):
            yield f"has blocks of loop {d}, which may have no iteration"
    outside = {level.loop for level in schedule.levels[:first]}
    inside = {level.loop for level in schedule.levels[first:] if not nest.reduction[level.loop]} - outside
    if any(isinstance(nest.sizes[d], Size) for d in inside):
        yield "keeps partial results of as many iterations as a dynamic loop has"


def _prefetch(nest: AnyNest, schedule: Schedule, machine: Machine) -> Iterator[str]:
    prefetch, loops = schedule.prefetch, [level.loop for level in schedule.levels]
    if prefetch is None:
        return
    if not any(nest.reduction) or any(nest.reduction[d] for d in loops) or len(set(loops)) < len(loops):
        yield "fetches ahead, but reduces nothing, or has blocks"
    elif not (0 <= prefetch.operand < len(nest.inputs) and 0 <= prefetch.depth < len(loops)):
        yield "fetches an input or at a level that is not there"
    elif min(prefetch.block, prefetch.parts) < 1:
        yield "fetches nothing ahead"
    elif not has_static_layout(nest, nest.inputs[prefetch.operand]):
        yield "prefetches data whose address differs between sizes"


def _matrix(nest: AnyNest, schedule: Schedule, machine: Machine) -> Iterator[str]:
    """Yield the faults of the loops of a matrix unit's tiles."""
    tile, unit = schedule.matrix, machine.matrix
    if tile is None:
        return
    loops = [schedule.vector, tile.depth, tile.stack, tile.rows]
    if unit is None or any(not 0 <= d < len(nest.sizes) for d in loops):
        yield "has tiles of a matrix unit or of loops that do not exist"
        return
    product = product_of_tile(nest, schedule.vector, tile)
    if product is None or not unit.multiplies(product.element):
        yield "has tiles of a matrix unit along other loops than those of factors that it multiplies"
    if any(isinstance(nest.sizes[d], Size) for d in (loops[:2] if tile.stack == tile.rows else loops)):
        yield "has tiles of a matrix unit along loops without known sizes"
    others = [n for d, n in enumerate(schedule.tiles) if d not in (tile.rows, tile.stack, schedule.vector)]
    if max([1, *others, *schedule.unroll]) > 1 or schedule.reduction[-1] != tile.depth or schedule.prefetch is not None:
        yield "has tiles of a matrix unit, and other tiles, unrolled loops or prefetches"


def _tiles(nest: AnyNest, schedule: Schedule, machine: Machine) -> Iterator[str]:
    """Yield the faults of the sizes of a matrix unit's tiles."""
    tile, unit = schedule.matrix, machine.matrix
    if tile is None or unit is None:
        return
    rows, (columns, depth) = nest.sizes[tile.rows], (at(nest.sizes[d], ()) for d in (schedule.vector, tile.depth))
    is_stacked = tile.stack != tile.rows
    sizes = (
        1 <= tile.height <= min(unit.rows, rows) if isinstance(rows, int) else tile.height == unit.rows,
        1 <= tile.words <= min(unit.columns, depth),
        schedule.lanes == unit.columns,
        schedule.tiles[tile.rows] == tile.height if is_stacked else schedule.tiles[tile.rows] % tile.height == 0,
    )
    if not all(sizes):
        yield "has tiles of a size that the matrix unit or the nest does not have"
        return
    down, across = tile.down(schedule.tiles), schedule.tiles[schedule.vector] // schedule.lanes
    if Registers.of(down, across, unit, depth % tile.words != 0) is None:
        yield "has more tiles than the matrix unit has registers"
    parts = [level for level in schedule.levels if nest.reduction[level.loop]]
    is_covered = isinstance(rows, int) and rows % tile.height == 0 and columns % unit.columns == 0
    if parts and (not is_covered or any(p.loop == tile.depth and p.step % tile.words for p in parts)):
        yield "has tiles of a matrix unit that blocks of a reduction divide, or that share partial sums"


# The order matters: each check relies on those before it.
_CHECKS: Sequence[Callable[[AnyNest, Schedule, Machine], Iterator[str]]] = (
    _numbers,
    _lanes,
    _reduction,
    _levels,
    _blocks,
    _prefetch,
    _matrix,
    _tiles,
)

"""How a nest is computed: loop order, register tile, vector loop, and the loops that threads share.

A schedule is data; it never changes what is computed. ``kernels.py`` turns a nest and its schedule into code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from torchmdla.devices.cpu import math_library
from torchmdla.devices.cpu.blocking import Level, choose_levels
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.nests import ELEMENT_BYTES, Instruction, Nest, Operand, stored
from torchmdla.devices.cpu.numbering import Numbering, numbering
from torchmdla.devices.cpu.register_tile import choose_tile

# Ops that combine a reduction's partial results in any order, with their neutral elements.
NEUTRAL = {
    "arith.addf": "-0.0",
    "arith.addi": "0",
    "arith.mulf": "1.0",
    "arith.muli": "1",
    "arith.maximumf": "-inf",
    "arith.minimumf": "inf",
    "arith.maxsi": "min",
    "arith.minsi": "max",
    "arith.andi": "-1",
    "arith.ori": "0",
    "arith.xori": "0",
}

# Integer division traps on what masked lanes hold.
_TRAPPING = frozenset(
    f"arith.{name}" for name in ("divsi", "divui", "remsi", "remui", "floordivsi", "ceildivsi", "ceildivui")
)

# Rough costs in cycles, for choosing between schedules and for the size of a task.
_CALL_COST = 20.0
_GATHER_LANE_COST = 0.8
_SCATTER_LANE_COST = 1.2
_BROADCAST_COST = 0.3
_TASK_COST = 40_000.0

# Instructions of a body whose dependences, not the memory, take the time.
_LONG_BODY = 16
_BYTE_COST = 1 / 16

# Points of the register tile times unrolled steps: of a loop unrolled whole, and of one unrolled in part.
_UNROLLED_WINDOW = 144
_UNROLLED_LOOP = 64


@dataclass(frozen=True)
class Schedule:
    """``levels``: the loops around the register tile, outermost first. A parallel loop's last level steps by its tile;
    levels of loops that reduce are blocks, between which partial results lie in a scratch buffer (none of them may lie
    across lanes then). ``reduction``: the
    loops that reduce inside the tile, outermost first, each unrolled ``unroll`` times. ``tiles``: how many iterations
    of each loop are computed at once in registers. ``vector``: the loop that lies across ``lanes`` vector lanes (-1:
    none); its tile is a multiple of ``lanes``, its last vector is masked. The first ``ranged`` levels, all parallel,
    are the kernel's range of ``iterations``; ``grain`` of them make a task, 0 if the nest is not worth sharing."""

    levels: tuple[Level, ...]
    reduction: tuple[int, ...]
    tiles: tuple[int, ...]
    unroll: tuple[int, ...]
    vector: int
    lanes: int
    ranged: int
    iterations: int
    grain: int


@lru_cache(maxsize=4096)
def choose(nest: Nest, machine: Machine) -> Schedule:
    """A schedule for ``nest``, by simple costs."""
    vector, lanes = _choose_vector(nest, machine)
    reduction = _reduction_order(nest, vector)
    order = _parallel_order(nest, vector)
    if reduction:
        tiles, cycles = choose_tile(nest, machine, vector, lanes)
        levels = choose_levels(nest, machine, order, reduction, tiles, cycles)
    else:
        tiles, cycles = _tile_elementwise(nest, vector, lanes), _elementwise_cycles(nest, machine, vector, lanes)
        levels = tuple(Level(loop, tiles[loop]) for loop in order)
    ranged, iterations = _choose_range(nest, levels)
    cycles = max(cycles, _bytes(nest) * _BYTE_COST)
    grain = 0 if cycles < 2 * _TASK_COST or iterations < 2 else max(1, math.ceil(_TASK_COST * iterations / cycles))
    unroll = _choose_unroll(nest, reduction, tiles, lanes)
    return Schedule(levels, reduction, tiles, unroll, vector, lanes, ranged, iterations, grain)


def scratch_extents(nest: Nest, schedule: Schedule) -> dict[int, int]:
    """Iterations of each parallel loop inside the blocks of the reduction; empty if there are no such blocks."""
    first = next((k for k, level in enumerate(schedule.levels) if nest.reduction[level.loop]), None)
    if first is None:
        return {}
    outside = {level.loop: level.step for level in schedule.levels[:first]}
    inside = dict.fromkeys(level.loop for level in schedule.levels[first:] if not nest.reduction[level.loop])
    extents = {loop: outside.get(loop, nest.sizes[loop]) for loop in inside}
    extents.update({d: tile for d, tile in enumerate(schedule.tiles) if d not in extents and not nest.reduction[d]})
    if schedule.vector >= 0:
        extents[schedule.vector] = -(-extents[schedule.vector] // schedule.lanes) * schedule.lanes
    return extents


def scratch_elements(nest: Nest, schedule: Schedule) -> int:
    """The size of a buffer of partial results."""
    return math.prod(scratch_extents(nest, schedule).values())


def combiners(nest: Nest) -> list[Instruction] | None:
    """For each output the instruction that combines it with a new value; None if some output has none, so that its
    iterations must run in order."""
    first = len(nest.inputs)
    base = first + len(nest.outputs) + len(nest.scalars)
    found = []
    for position in range(len(nest.outputs)):
        users = [i for i in nest.body if first + position in i.operands]
        number = nest.yields[position] - base
        if len(users) != 1 or number < 0 or nest.body[number] is not users[0]:
            return None
        if users[0].name not in NEUTRAL or users[0].operands.count(first + position) != 1:
            return None
        if any(nest.yields[position] in i.operands for i in nest.body):
            return None
        found.append(users[0])
    return found


def _choose_vector(nest: Nest, machine: Machine) -> tuple[int, int]:
    """The vector loop and its lanes with the least cost per element; ``(-1, 1)`` if scalars are cheapest."""
    values = numbering(nest)
    best = (_element_cost(nest, machine, -1, 1), -1, 1)
    for loop in range(len(nest.sizes)):
        lanes = _lanes(nest, machine, loop, values)
        if lanes > 1 and _may_vectorise(nest, loop, values):
            cost = _element_cost(nest, machine, loop, lanes)
            if cost < best[0] or (cost == best[0] and best[1] >= 0 and nest.sizes[loop] > nest.sizes[best[1]]):
                best = (cost, loop, lanes)
    return best[1], best[2]


def _lanes(nest: Nest, machine: Machine, loop: int, values: Numbering) -> int:
    """As many lanes as the widest type that varies with ``loop`` leaves, and no more than its iterations need."""
    types = [o.element for o in nest.operands if o.strides[loop] != 0]
    types += [o.element for o in nest.outputs if any(nest.reduction)]
    types += [i.result for number, i in values.instructions.items() if loop in values.varies[number]]
    widths = [ELEMENT_BYTES[stored(t)] for t in types]
    widest = machine.vector_bytes // max(widths, default=1)
    return min(widest, 1 << (nest.sizes[loop] - 1).bit_length())


def _may_vectorise(nest: Nest, loop: int, values: Numbering) -> bool:
    if any(i.name in _TRAPPING and loop in values.varies[number] for number, i in values.instructions.items()):
        return False
    return not nest.reduction[loop] or combiners(nest) is not None


def _element_cost(nest: Nest, machine: Machine, loop: int, lanes: int) -> float:
    """Cycles per innermost iteration when ``loop`` lies across ``lanes`` lanes (-1: scalars)."""
    repeats = math.prod(size for size, reduced in zip(nest.sizes, nest.reduction, strict=True) if reduced)
    cost = sum(_access_cost(o.strides[loop] if loop >= 0 else 1, lanes, _GATHER_LANE_COST) for o in nest.inputs)
    for output in nest.outputs:
        stride = output.strides[loop] if loop >= 0 else 1
        cost += _access_cost(stride, lanes, _SCATTER_LANE_COST) / repeats
    for instruction in nest.body:
        cost += _instruction_cost(instruction, machine, lanes)
    if loop < 0:
        return cost
    return cost * math.ceil(nest.sizes[loop] / lanes) / nest.sizes[loop]


def _access_cost(stride: int, lanes: int, lane_cost: float) -> float:
    if stride == 0:
        return _BROADCAST_COST
    if stride == 1:
        return 1.0
    return 2.5 if stride == 2 else lane_cost * lanes


def _instruction_cost(instruction: Instruction, machine: Machine, lanes: int) -> float:
    if instruction.name == "arith.constant":
        return 0.0
    if instruction.name == "load":
        return 1.0 + _GATHER_LANE_COST * lanes
    if math_library.is_call(instruction.name):
        known = math_library.vector_function(instruction.name, instruction.result, lanes, machine.vector_bytes)
        return _CALL_COST if known or lanes == 1 else _CALL_COST * lanes
    return 0.5


def _factor(size: int, limit: int) -> int:
    """A tile of at most ``limit`` that leaves no or a small rest."""
    for tile in range(limit, limit // 2, -1):
        if size % tile == 0:
            return tile
    return min(limit, size)


def _tile_elementwise(nest: Nest, vector: int, lanes: int) -> tuple[int, ...]:
    """A few vectors: one where functions are called, more where instructions depend on each other in long chains. Where
    another loop walks some operand's memory (a transpose), a block of it uses whole cache lines."""
    tiles = [1] * len(nest.sizes)
    if vector < 0:
        return tuple(tiles)
    calls = any(math_library.is_call(i.name) for i in nest.body)
    slots = 1 if calls else 2 if len(nest.body) < _LONG_BODY else 4
    tiles[vector] = lanes * min(slots, math.ceil(nest.sizes[vector] / lanes))
    for loop in range(len(nest.sizes)):
        if loop != vector and any(o.strides[loop] == 1 and o.strides[vector] > 1 for o in nest.operands):
            tiles[vector], tiles[loop] = lanes, _factor(nest.sizes[loop], 8)
            break
    return tuple(tiles)


def _choose_unroll(nest: Nest, reduction: Sequence[int], tiles: Sequence[int], lanes: int) -> tuple[int, ...]:
    """Unrolls from the innermost loop outwards, as far as the code stays short: a convolution's window whole, so that
    neighbouring points share what they read, a long loop a few times."""
    unroll = [1] * len(nest.sizes)
    points = math.prod(tiles) // lanes
    for loop in reversed(reduction):
        steps = nest.sizes[loop] // tiles[loop]
        if steps > 1 and steps * points <= _UNROLLED_WINDOW:
            unroll[loop] = steps
            points *= steps
            continue
        unroll[loop] = max((u for u in (1, 2, 4) if u * points <= _UNROLLED_LOOP and u <= steps), default=1)
        break
    return tuple(unroll)


def _parallel_order(nest: Nest, vector: int) -> tuple[int, ...]:
    """Large strides outside, the vector loop inside. A contraction first puts the loops that walk its largest operands
    outside, so that what is streamed again and again inside is small."""
    loops = [d for d, reduced in enumerate(nest.reduction) if not reduced]
    contracts = any(nest.reduction)

    def rank(loop: int) -> tuple[int, bool, int, int]:
        footprint = sum(_elements(nest, o) for o in nest.inputs if o.strides[loop] != 0) if contracts else 0
        stride = max((o.strides[loop] for o in nest.outputs), default=0)
        return -footprint, loop == vector, -stride, loop

    return tuple(sorted(loops, key=rank))


def _elements(nest: Nest, operand: Operand) -> int:
    return math.prod(size for size, stride in zip(nest.sizes, operand.strides, strict=True) if stride != 0)


def _reduction_order(nest: Nest, vector: int) -> tuple[int, ...]:
    loops = [d for d, reduced in enumerate(nest.reduction) if reduced]
    return tuple(sorted(loops, key=lambda d: (d == vector, -max((o.strides[d] for o in nest.inputs), default=0), d)))


def _choose_range(nest: Nest, levels: Sequence[Level]) -> tuple[int, int]:
    """How many leading levels threads share, and the blocks there are: enough of them to balance."""
    ranged, iterations, seen = 0, 1, set()
    for level in levels:
        if (ranged and iterations >= 64) or nest.reduction[level.loop] or level.loop in seen:
            break
        ranged += 1
        seen.add(level.loop)
        iterations *= math.ceil(nest.sizes[level.loop] / level.step)
    return ranged, iterations


def _elementwise_cycles(nest: Nest, machine: Machine, vector: int, lanes: int) -> float:
    return math.prod(nest.sizes) * _element_cost(nest, machine, vector, lanes)


def _bytes(nest: Nest) -> int:
    """Bytes of all operands."""
    return sum(_elements(nest, o) * ELEMENT_BYTES[stored(o.element)] for o in nest.operands)

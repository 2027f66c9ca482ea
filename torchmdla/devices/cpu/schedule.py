"""How a nest is computed: loop order, register tile, vector loop, and the loops that threads share.

A schedule is data; it never changes what is computed. ``kernels.py`` turns a nest and its schedule into code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchmdla.compiler.program import Target
from torchmdla.devices.cpu import math_library
from torchmdla.devices.cpu.nests import ELEMENT_BYTES, Instruction, Nest, Operand, stored

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


@dataclass(frozen=True)
class Machine:
    """What schedules depend on: the widest vector in bytes and how many vector registers there are."""

    vector_bytes: int
    registers: int

    @classmethod
    def of(cls, target: Target) -> Machine:
        features = set(target.features.split(","))
        if "+avx512f" in features:
            return cls(64, 32)
        if "+avx2" in features:
            return cls(32, 16)
        return cls(16, 32 if target.triple.startswith(("aarch64", "arm64")) else 16)


@dataclass(frozen=True)
class Schedule:
    """``parallel`` and ``reduction``: the loops, outermost first. ``tiles``: how many iterations of each loop are
    computed at once in registers. ``vector``: the loop that lies across ``lanes`` vector lanes (-1: none); its tile
    is a multiple of ``lanes``, its last vector is masked. The first ``ranged`` parallel loops are the kernel's range
    of ``iterations`` (tiles); ``grain`` of them make a task, 0 if the nest is not worth sharing."""

    parallel: tuple[int, ...]
    reduction: tuple[int, ...]
    tiles: tuple[int, ...]
    vector: int
    lanes: int
    ranged: int
    iterations: int
    grain: int


def choose(nest: Nest, machine: Machine) -> Schedule:
    """A schedule for ``nest``, by simple costs."""
    vector, lanes = _choose_vector(nest, machine)
    tiles = _choose_tiles(nest, machine, vector, lanes)
    parallel = _parallel_order(nest, vector)
    reduction = _reduction_order(nest, vector)
    ranged, iterations = _choose_range(nest, parallel, tiles)
    cost = _total_cost(nest, machine, vector, lanes)
    grain = 0 if cost < 2 * _TASK_COST or iterations < 2 else max(1, math.ceil(_TASK_COST * iterations / cost))
    return Schedule(parallel, reduction, tiles, vector, lanes, ranged, iterations, grain)


def dependencies(nest: Nest) -> list[frozenset[int]]:
    """The loops that each value of the body varies with, by value number."""
    every = frozenset(range(len(nest.sizes)))
    found = [frozenset(d for d, s in enumerate(o.strides) if s != 0) for o in nest.inputs]
    found += (
        [every for _ in nest.outputs]
        if any(nest.reduction)
        else [frozenset(d for d, s in enumerate(o.strides) if s != 0) for o in nest.outputs]
    )
    found += [frozenset() for _ in nest.scalars]
    for instruction in nest.body:
        own = frozenset([instruction.payload]) if instruction.name == "index" else frozenset()
        found.append(own.union(*(found[v] for v in instruction.operands)))
    return found


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
    varies = dependencies(nest)
    best = (_element_cost(nest, machine, -1, 1), -1, 1)
    for loop in range(len(nest.sizes)):
        lanes = _lanes(nest, machine, loop, varies)
        if lanes > 1 and _may_vectorise(nest, loop, varies):
            cost = _element_cost(nest, machine, loop, lanes)
            if cost < best[0] or (cost == best[0] and best[1] >= 0 and nest.sizes[loop] > nest.sizes[best[1]]):
                best = (cost, loop, lanes)
    return best[1], best[2]


def _lanes(nest: Nest, machine: Machine, loop: int, varies: Sequence[frozenset[int]]) -> int:
    """As many lanes as the widest type that varies with ``loop`` leaves, and no more than its iterations need."""
    types = [o.element for o in nest.operands] + list(nest.scalars) + [i.result for i in nest.body]
    widths = [ELEMENT_BYTES[stored(t)] for t, loops in zip(types, varies, strict=True) if loop in loops]
    widest = machine.vector_bytes // max(widths, default=1)
    return min(widest, 1 << (nest.sizes[loop] - 1).bit_length())


def _may_vectorise(nest: Nest, loop: int, varies: Sequence[frozenset[int]]) -> bool:
    base = len(nest.operands) + len(nest.scalars)
    if any(i.name in _TRAPPING and loop in varies[base + k] for k, i in enumerate(nest.body)):
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


def _choose_tiles(nest: Nest, machine: Machine, vector: int, lanes: int) -> tuple[int, ...]:
    tiles = [1] * len(nest.sizes)
    if vector >= 0:
        tiles[vector] = lanes
    if any(nest.reduction):
        _tile_contraction(nest, machine, vector, lanes, tiles)
    elif vector >= 0:
        _tile_elementwise(nest, vector, lanes, tiles)
    return tuple(tiles)


def _tile_contraction(nest: Nest, machine: Machine, vector: int, lanes: int, tiles: list[int]) -> None:
    """A register tile: several accumulators hide the latency of adding, and reuse what is loaded."""
    accumulators = machine.registers * 3 // 4
    reused = [d for d in range(len(nest.sizes)) if d != vector and not nest.reduction[d] and _is_reused(nest, d)]
    reused.sort(key=lambda d: -nest.sizes[d])
    if vector < 0:
        return
    if nest.reduction[vector]:
        side = math.isqrt(accumulators)
        for loop in reused[:2]:
            tiles[loop] = _factor(nest.sizes[loop], side if len(reused) > 1 else 8)
        slots = 4 if not reused else 1
    else:
        slots = 3 if reused else 4
    tiles[vector] = lanes * min(slots, math.ceil(nest.sizes[vector] / lanes))
    if not nest.reduction[vector] and reused:
        tiles[reused[0]] = _factor(nest.sizes[reused[0]], min(8, accumulators // (tiles[vector] // lanes)))


def _is_reused(nest: Nest, loop: int) -> bool:
    """Whether iterations of ``loop`` read the same values of some input."""
    return any(o.strides[loop] == 0 for o in nest.inputs) and any(o.strides[loop] != 0 for o in nest.outputs)


def _factor(size: int, limit: int) -> int:
    """A tile of at most ``limit`` that leaves no or a small rest."""
    for tile in range(limit, limit // 2, -1):
        if size % tile == 0:
            return tile
    return min(limit, size)


def _tile_elementwise(nest: Nest, vector: int, lanes: int, tiles: list[int]) -> None:
    """Where another loop walks some operand's memory (a transpose), a block of it uses whole cache lines."""
    for loop in range(len(nest.sizes)):
        if loop != vector and any(o.strides[loop] == 1 and o.strides[vector] > 1 for o in nest.operands):
            tiles[loop] = _factor(nest.sizes[loop], 8)
            return
    calls = any(math_library.is_call(i.name) for i in nest.body)
    tiles[vector] = lanes * min(1 if calls else 2, math.ceil(nest.sizes[vector] / lanes))


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


def _choose_range(nest: Nest, parallel: Sequence[int], tiles: Sequence[int]) -> tuple[int, int]:
    """How many leading loops threads share, and the tiles there are: enough of them to balance. Loops are only
    shared together when their tiles fit exactly."""
    ranged, iterations = 0, 1
    for loop in parallel:
        exact = nest.sizes[loop] % tiles[loop] == 0
        if ranged and (iterations >= 64 or not exact or nest.sizes[parallel[0]] % tiles[parallel[0]]):
            break
        ranged += 1
        iterations *= math.ceil(nest.sizes[loop] / tiles[loop])
    return ranged, iterations


def _total_cost(nest: Nest, machine: Machine, vector: int, lanes: int) -> float:
    return math.prod(nest.sizes) * _element_cost(nest, machine, vector, lanes)

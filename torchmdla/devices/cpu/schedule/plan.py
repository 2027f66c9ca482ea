"""Every decision that costs take for a loop program, before any code is written: a schedule for each kernel, and what
is decided for each tile loop. Tiles are in the loop program already.

Decisions are data: :meth:`Plan.to_json` writes them, and a program whose option ``schedules`` is such a text (all of
it, or a part, edited or not) is compiled by them. What it does not name is chosen by cost::

    {"tiles": [[2, 1, 64]],
     "kernels": {"9c2f04d1be35a7c8": {"levels": [[1, 48], [0, 6]], "tiles": [6, 48, 1], "vector": 1, "lanes": 16, …}}}

A kernel's name is a hash of what it computes. What was measured on a machine (the option ``records``) are such kernels
too, of all programs: those that are this program's are used, if they fit.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from torchmdla.compiler import records
from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.kernel_spec import AnyNest
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, Step, TileLoop, flattened
from torchmdla.devices.cpu.machine import Algorithms, Machine
from torchmdla.devices.cpu.printer import nest_text
from torchmdla.devices.cpu.schedule import Ahead, Schedule, Symbols, choose, count, ranges
from torchmdla.devices.cpu.schedule.blocking import Level, Prefetch
from torchmdla.devices.cpu.schedule.tile_loops import TileSchedule, schedule_tiles
from torchmdla.devices.cpu.schedule.validity import faults
from torchmdla.devices.cpu.vector_math import expand
from torchmdla.errors import CompileError

# The program's option that gives decisions back.
OPTION = "schedules"

# The decision of a record that is of a contraction, not of a kernel.
ALGORITHM = "algorithm"

# Points of a tile, times unrolled steps, of a schedule that may have been measured: larger ones are more code than any
# that is worth it.
MOST_POINTS = 4096


@dataclass(frozen=True)
class ScheduledKernel:
    """A nest whose functions are written out, and how it is computed."""

    nest: AnyNest
    schedule: Schedule


@dataclass(frozen=True)
class Given:
    """Decisions that are given: ``tiles`` of the loops that run nests tile by tile, in order, and ``kernels`` by name.
    None, and none, are chosen by what was ``measured``, or else by cost."""

    tiles: Sequence[Sequence[int]] | None = None
    kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program) -> Given:
        """Those of a program's options.

        Raises:
            CompileError: they are no JSON of that form.
        """
        options = dict(program.options)
        text, measured = options.get(OPTION, ""), _object(options.get(records.OPTION, ""))
        if not text:
            return cls(measured=measured)
        try:
            raw = json.loads(text)
            tiles = raw.get("tiles")
            kernels = {str(name): dict(kernel) for name, kernel in raw.get("kernels", {}).items()}
            return cls(tiles and [[int(size) for size in tile] for tile in tiles], kernels, measured)
        except (ValueError, TypeError, AttributeError) as error:
            raise CompileError(f"the option {OPTION} is no plan, as TORCHMDLA_DUMP writes one: {error}") from None

    @property
    def algorithms(self) -> Mapping[str, str]:
        """The algorithms that were measured to be the fastest, by contraction."""
        known = get_args(Algorithms)
        found = {name: raw for name, raw in self.measured.items() if isinstance(raw, dict)}
        return {name: str(raw[ALGORITHM]) for name, raw in found.items() if raw.get(ALGORITHM) in known}


@dataclass
class Plan:
    """``kernels``: by the nest that a step computes and what it fetches for others; ``tile_loops``: by the step;
    ``symbols``: those of the module. Of kernels that were measured, ``measured`` are as measured, and ``ignored`` are
    chosen by cost, because what is recorded of them is no schedule of theirs."""

    symbols: Symbols
    kernels: dict[tuple[AnyNest, Ahead], ScheduledKernel] = field(default_factory=dict)
    tile_loops: dict[TileLoop, TileSchedule] = field(default_factory=dict)
    measured: set[str] = field(default_factory=set)
    ignored: dict[str, str] = field(default_factory=dict)

    def kernel(self, step: LoopNest, ahead: Ahead = ()) -> ScheduledKernel:
        """The kernel of a nest that fetches ``ahead``."""
        return self.kernels[step.kernel, ahead]

    def to_json(self, tiles: Sequence[Sequence[int]]) -> str:
        """The decisions as text, with the ``tiles`` of loops: by the names of the kernels; what each computes is there
        for people to read."""
        kernels = {
            kernel_name(kernel.nest, ahead): _lines(
                {"nest": nest_text(kernel.nest).splitlines(), **to_raw(kernel.schedule)}, "    "
            )
            for (_, ahead), kernel in self.kernels.items()
        }
        inner = ",\n".join(f'  "{name}": {text}' for name, text in kernels.items())
        return f'{{\n"tiles": {json.dumps(tiles)},\n"kernels": {{\n{inner}\n}}\n}}\n'


def plan_schedules(steps: LoopProgram, machine: Machine, symbols: Symbols, given: Given) -> Plan:
    """Decides how the steps of a loop program are computed.

    Raises:
        CompileError: a schedule that is given does not fit its kernel, or is of no kernel; names it and says why.
    """
    planner = _Planner(machine, symbols, given)
    for packing in steps.packings:
        planner.add_all(packing.steps)
    planner.add_all(steps.steps)
    if unused := sorted(given.kernels.keys() - planner.names):
        names = ", ".join(unused)
        reason = f"schedules are given for kernels that the program does not have: {names}"
        raise CompileError(f"{reason}; other tiles make other kernels: leave out those of the old ones")
    return planner.plan


class _Planner:
    def __init__(self, machine: Machine, symbols: Symbols, given: Given) -> None:
        self.plan = Plan(symbols)
        self.names: set[str] = set()
        self._machine = machine
        self._given = given

    def add_all(self, steps: Iterable[Step]) -> None:
        for step in flattened(steps):
            if isinstance(step, LoopNest):
                self._add(step, ())
            elif isinstance(step, TileLoop):
                self._add_tile_loop(step)

    def _add_tile_loop(self, step: TileLoop) -> None:
        tiles = self.plan.tile_loops[step] = schedule_tiles(step, self._machine, self.plan.symbols)
        for extents in tiles.parts(step):
            for position, fetched in enumerate(tiles.fetched):
                self._add(step.part(position, extents), fetched.ahead)

    def _add(self, step: LoopNest, ahead: Ahead) -> None:
        key = step.kernel, ahead
        if key in self.plan.kernels:
            return
        nest = expand(key[0], self._machine)
        schedule = choose(nest, self._machine, self.plan.symbols.typical, ahead)
        if self._given.kernels or self._given.measured:
            schedule = self._replaced(nest, schedule)
        self.plan.kernels[key] = ScheduledKernel(nest, schedule)

    def _replaced(self, nest: AnyNest, chosen: Schedule) -> Schedule:
        """The schedule that is given for a nest, or was measured, if one is."""
        name = kernel_name(nest, chosen.ahead)
        self.names.add(name)
        typical = self.plan.symbols.typical
        if name in self._given.kernels:
            try:
                return given_schedule(nest, chosen, self._given.kernels[name], self._machine, typical)
            except ValueError as error:
                reason = f"the schedule given for kernel {name} {error}"
                raise CompileError(reason, diagnostic=nest_text(nest)) from None
        if name in self._given.measured:
            try:
                made = given_schedule(nest, chosen, self._given.measured[name], self._machine, typical)
                if points(made) > MOST_POINTS:
                    raise ValueError("has too large a tile")
                self.plan.measured.add(name)
                return made
            except ValueError as error:
                self.plan.ignored[name] = str(error)
        return chosen


def given_schedule(
    nest: AnyNest, chosen: Schedule, raw: Mapping[str, Any], machine: Machine, typical: Sequence[int] = ()
) -> Schedule:
    """The schedule ``chosen`` of a nest with what ``raw`` says otherwise.

    Raises:
        ValueError: that is none; says why, in words behind a kernel's name.
    """
    try:
        made = _from_raw(chosen, raw)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"is none: {error!r}") from None
    for fault in faults(nest, made, machine):
        raise ValueError(fault)
    return replace(made, iterations=count(ranges(nest, made), typical))


def points(schedule: Schedule) -> int:
    """How many vectors a tile's code computes, one by one."""
    return math.prod((*schedule.tiles, *schedule.unroll)) // schedule.lanes


def kernel_name(nest: AnyNest, ahead: Ahead) -> str:
    """A hash of what a kernel computes, and fetches for others."""
    return hashlib.sha256(f"{nest_text(nest)} {ahead}".encode()).hexdigest()[:16]


def _object(text: str) -> Mapping[str, Any]:
    """What a JSON text holds by name; nothing where it is damaged."""
    try:
        raw = json.loads(text) if text else {}
    except ValueError:
        return {}
    return raw if isinstance(raw, dict) else {}


# Fields of a schedule that are written as they are; what a kernel fetches for others is decided with the tile loop that
# it is in, and ``iterations`` follow from the others.
_PLAIN = ("reduction", "tiles", "unroll", "vector", "lanes", "ranged", "grain")


def to_raw(schedule: Schedule) -> dict[str, Any]:
    """A schedule as JSON has it, the inverse of :func:`given_schedule`."""
    prefetch = schedule.prefetch
    return {
        "levels": [[level.loop, level.step] for level in schedule.levels],
        **{name: getattr(schedule, name) for name in _PLAIN},
        "prefetch": prefetch
        and {name: getattr(prefetch, name) for name in ("operand", "depth", "block", "parts", "distance")},
    }


def _lines(fields: Mapping[str, Any], indent: str) -> str:
    """A JSON object with a line for each field, and for each item of a list of texts."""

    def text(value: Any) -> str:
        if not isinstance(value, list) or not value or not isinstance(value[0], str):
            return json.dumps(value)
        return "[\n" + ",\n".join(f"{indent}  {json.dumps(item)}" for item in value) + "]"

    return "{\n" + ",\n".join(f"{indent}{json.dumps(name)}: {text(value)}" for name, value in fields.items()) + "}"


def _from_raw(chosen: Schedule, raw: Mapping[str, Any]) -> Schedule:
    """``chosen`` with what ``raw`` says otherwise."""
    made: dict[str, Any] = {}
    for name in _PLAIN:
        if name in raw:
            value = raw[name]
            made[name] = tuple(map(int, value)) if isinstance(value, list) else int(value)
    if "levels" in raw:
        made["levels"] = tuple(Level(int(loop), int(step)) for loop, step in raw["levels"])
    if "prefetch" in raw:
        made["prefetch"] = raw["prefetch"] and Prefetch(**{name: int(own) for name, own in raw["prefetch"].items()})
    return replace(chosen, **made)

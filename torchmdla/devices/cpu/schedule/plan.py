"""Every decision that costs take for a loop program, before any code is written: a schedule for each kernel, and what
is decided for each tile loop. Tiles are in the loop program already.

Decisions are data: :meth:`Plan.to_json` writes them, and a program whose option ``schedules`` is such a text (all of
it, or a part, edited or not) is compiled by them. What it does not name is chosen by cost::

    {"tiles": [[2, 1, 64]],
     "kernels": {"9c2f04d1be35a7c8": {"levels": [[1, 48], [0, 6]], "tiles": [6, 48, 1], "vector": 1, "lanes": 16, …}}}

A kernel's name is a hash of what it computes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.kernel_spec import AnyNest
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, Step, TileLoop, final_nest, flattened
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.printer import nest_text
from torchmdla.devices.cpu.schedule import Ahead, Schedule, Symbols, choose, count, ranges
from torchmdla.devices.cpu.schedule.blocking import Level, Prefetch
from torchmdla.devices.cpu.schedule.tile_loops import TileSchedule, schedule_tiles
from torchmdla.devices.cpu.schedule.validity import faults
from torchmdla.devices.cpu.vector_math import expand
from torchmdla.errors import CompileError

# The program's option that gives decisions back.
OPTION = "schedules"


@dataclass(frozen=True)
class ScheduledKernel:
    """A nest whose functions are written out, and how it is computed."""

    nest: AnyNest
    schedule: Schedule


@dataclass(frozen=True)
class Given:
    """Decisions that are given: ``tiles`` of the loops that run nests tile by tile, in order, and ``kernels`` by name.
    None, and none, are chosen by cost."""

    tiles: Sequence[Sequence[int]] | None = None
    kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program) -> Given:
        """Those of a program's options.

        Raises:
            CompileError: they are no JSON of that form.
        """
        text = dict(program.options).get(OPTION, "")
        if not text:
            return cls()
        try:
            raw = json.loads(text)
            tiles = raw.get("tiles")
            kernels = {str(name): dict(kernel) for name, kernel in raw.get("kernels", {}).items()}
            return cls(tiles and [[int(size) for size in tile] for tile in tiles], kernels)
        except (ValueError, TypeError, AttributeError) as error:
            raise CompileError(f"the option {OPTION} is no plan, as TORCHMDLA_DUMP writes one: {error}") from None


@dataclass
class Plan:
    """``kernels``: by the nest that a step computes and what it fetches for others; ``tile_loops``: by the step;
    ``symbols``: those of the module."""

    symbols: Symbols
    kernels: dict[tuple[AnyNest, Ahead], ScheduledKernel] = field(default_factory=dict)
    tile_loops: dict[TileLoop, TileSchedule] = field(default_factory=dict)

    def kernel(self, step: LoopNest, ahead: Ahead = ()) -> ScheduledKernel:
        """The kernel of a nest that fetches ``ahead``."""
        return self.kernels[final_nest(step)[0], ahead]

    def to_json(self, tiles: Sequence[Sequence[int]]) -> str:
        """The decisions as text, with the ``tiles`` of loops: by the names of the kernels; what each computes is there
        for people to read."""
        kernels = {
            _name(kernel.nest, ahead): _lines(
                {"nest": nest_text(kernel.nest).splitlines(), **_to_raw(kernel.schedule)}, "    "
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
        key = final_nest(step)[0], ahead
        if key in self.plan.kernels:
            return
        nest = expand(key[0], self._machine)
        schedule = choose(nest, self._machine, self.plan.symbols.typical, ahead)
        if self._given.kernels:
            schedule = self._replaced(nest, schedule)
        self.plan.kernels[key] = ScheduledKernel(nest, schedule)

    def _replaced(self, nest: AnyNest, chosen: Schedule) -> Schedule:
        """The schedule that is given for a nest, if one is."""
        name = _name(nest, chosen.ahead)
        self.names.add(name)
        if name not in self._given.kernels:
            return chosen
        try:
            made = _from_raw(chosen, self._given.kernels[name])
        except (ValueError, TypeError, KeyError) as error:
            raise CompileError(f"the schedule given for kernel {name} is none: {error!r}") from None
        for fault in faults(nest, made, self._machine):
            raise CompileError(f"the schedule given for kernel {name} {fault}", diagnostic=nest_text(nest))
        return replace(made, iterations=count(ranges(nest, made), self.plan.symbols.typical))


def _name(nest: AnyNest, ahead: Ahead) -> str:
    return hashlib.sha256(f"{nest_text(nest)} {ahead}".encode()).hexdigest()[:16]


# Fields of a schedule that are written as they are; what a kernel fetches for others is decided with the tile loop that
# it is in, and ``iterations`` follow from the others.
_PLAIN = ("reduction", "tiles", "unroll", "vector", "lanes", "ranged", "grain")


def _to_raw(schedule: Schedule) -> dict[str, Any]:
    prefetch = schedule.prefetch
    return {
        "levels": [[level.loop, level.step] for level in schedule.levels],
        **{name: getattr(schedule, name) for name in _PLAIN},
        "prefetch": prefetch and {name: getattr(prefetch, name) for name in ("operand", "depth", "block", "parts")},
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
        made["prefetch"] = raw["prefetch"] and Prefetch(**raw["prefetch"])
    return replace(chosen, **made)

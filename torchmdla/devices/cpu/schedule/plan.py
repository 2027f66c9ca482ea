"""Plan of a loop program: a schedule for each kernel and each tile loop, chosen before any code is generated.

The tiles are in the loop program already. Decisions are data: :meth:`Plan.to_json` writes them. A program whose option
``schedules`` has such a text, complete or partial, edited or not, is compiled with these decisions. Decisions that are
missing are made by the cost model::

    {"tiles": [[2, 1, 64]],
     "kernels": {"9c2f04d1be35a7c8": {"levels": [[1, 48], [0, 6]], "tiles": [6, 48, 1], "vector": 1, "lanes": 16, …}}}

A kernel's name is a hash of its computation. Measured decisions (the option ``records``) have the same form, and
contain kernels of all programs. Those of this program's kernels are used if they are valid.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

from torchmdla.compiler import records
from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, Scatter, Step, TileLoop, flatten
from torchmdla.devices.cpu.ir.printer import nest_text
from torchmdla.devices.cpu.schedule import Ahead, Schedule, Symbols, choose_schedule, count, ranges
from torchmdla.devices.cpu.schedule.blocking import Level, Prefetch
from torchmdla.devices.cpu.schedule.matrix_tile import MatrixTile
from torchmdla.devices.cpu.schedule.tile_loops import TileSchedule, schedule_tiles
from torchmdla.devices.cpu.schedule.validity import find_faults
from torchmdla.devices.cpu.target.machine import Algorithms, Machine
from torchmdla.devices.cpu.target.vector_math import expand
from torchmdla.errors import CompileError

# The program's option that specifies decisions.
OPTION = "schedules"

# The decision in a record of a contraction, not of a kernel.
ALGORITHM = "algorithm"

# The limit on points of a tile times unrolled steps, for measured schedules. The code of larger ones does not pay.
MOST_POINTS = 4096


@dataclass(frozen=True)
class ScheduledKernel:
    """Nest whose functions are expanded, and its schedule."""

    nest: AnyNest
    schedule: Schedule


@dataclass(frozen=True)
class Decisions:
    """Decisions that are specified by the program's options.

    Decisions that are missing are taken from ``measured``, or else from the cost model.

    Attributes:
        tiles: the tiles of the tile loops, in order; None if they are not specified.
        kernels: the specified schedules, by the kernel's name.
        measured: the measured decisions, by name.
    """

    tiles: Sequence[Sequence[int]] | None = None
    kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program) -> Decisions:
        """Return the decisions in a program's options.

        Raises:
            CompileError: the option is not JSON of that form.
        """
        options = dict(program.options)
        text, measured = options.get(OPTION, ""), _parse_object(options.get(records.OPTION, ""))
        if not text:
            return cls(measured=measured)
        try:
            raw = json.loads(text)
            tiles = raw.get("tiles")
            kernels = {str(name): dict(kernel) for name, kernel in raw.get("kernels", {}).items()}
            return cls(tiles and [[int(size) for size in tile] for tile in tiles], kernels, measured)
        except (ValueError, TypeError, AttributeError) as error:
            raise CompileError(f"the option {OPTION} is not a plan as TORCHMDLA_DUMP writes it: {error}") from None

    @property
    def algorithms(self) -> Mapping[str, str]:
        """Return the algorithm that was measured to be the fastest, for each contraction."""
        known = get_args(Algorithms)
        entries = {name: raw for name, raw in self.measured.items() if isinstance(raw, dict)}
        return {name: str(raw[ALGORITHM]) for name, raw in entries.items() if raw.get(ALGORITHM) in known}


@dataclass
class Plan:
    """Schedules of a loop program.

    Attributes:
        symbols: the symbols of the module.
        kernels: the kernels, by nest and by the data that they prefetch for other kernels.
        tile_loops: the schedules of tile loops.
        measured: the names of the kernels that use a measured schedule.
        ignored: the kernels whose measured schedule is invalid, each with the reason. The cost model chose their
            schedule.
    """

    symbols: Symbols
    kernels: dict[tuple[AnyNest, Ahead], ScheduledKernel] = field(default_factory=dict)
    tile_loops: dict[TileLoop, TileSchedule] = field(default_factory=dict)
    measured: set[str] = field(default_factory=set)
    ignored: dict[str, str] = field(default_factory=dict)

    def kernel(self, step: LoopNest, ahead: Ahead = ()) -> ScheduledKernel:
        """Return the kernel of a nest that prefetches ``ahead``."""
        return self.kernels[step.kernel, ahead]

    def to_json(self, tiles: Sequence[Sequence[int]]) -> str:
        """Return the decisions as text, with the ``tiles`` of loops.

        Each kernel, by name, includes its nest for humans.
        """
        kernels = {
            kernel_name(kernel.nest, ahead): _lines(
                {"nest": nest_text(kernel.nest).splitlines(), **to_json_data(kernel.schedule)}, "    "
            )
            for (_, ahead), kernel in self.kernels.items()
        }
        inner = ",\n".join(f'  "{name}": {text}' for name, text in kernels.items())
        return f'{{\n"tiles": {json.dumps(tiles)},\n"kernels": {{\n{inner}\n}}\n}}\n'


def plan_schedules(steps: LoopProgram, machine: Machine, symbols: Symbols, decisions: Decisions) -> Plan:
    """Choose the schedules of a loop program.

    Raises:
        CompileError: a specified schedule does not fit its kernel, or its kernel does not exist; names it and the
            reason.
    """
    planner = _Planner(machine, symbols, decisions)
    for packing in steps.packings:
        planner.add_all(packing.steps)
    planner.add_all(steps.steps)
    if unused := sorted(decisions.kernels.keys() - planner.names):
        names = ", ".join(unused)
        reason = f"schedules are given for kernels that the program does not have: {names}"
        raise CompileError(f"{reason}; other tiles make other kernels: leave out those of the old ones")
    return planner.plan


class _Planner:
    def __init__(self, machine: Machine, symbols: Symbols, decisions: Decisions) -> None:
        self.plan = Plan(symbols)
        self.names: set[str] = set()
        self._machine = machine
        self._decisions = decisions

    def add_all(self, steps: Iterable[Step]) -> None:
        for step in flatten(steps):
            if isinstance(step, LoopNest | Scatter):
                self._add(step.nest if isinstance(step, Scatter) else step, (), self._machine)
            elif isinstance(step, TileLoop):
                self._add_tile_loop(step)

    def _add_tile_loop(self, step: TileLoop) -> None:
        tiles = self.plan.tile_loops[step] = schedule_tiles(step, self._machine, self.plan.symbols)
        for extents in tiles.parts(step):
            for position, fetched in enumerate(tiles.fetched):
                # One thread runs all kernels of a tile.
                self._add(step.part(position, extents), fetched.ahead, replace(self._machine, threads=1))

    def _add(self, step: LoopNest, ahead: Ahead, machine: Machine) -> None:
        key = step.kernel, ahead
        if key in self.plan.kernels:
            return
        nest = expand(key[0], machine)
        schedule = choose_schedule(nest, machine, self.plan.symbols.typical, ahead)
        if self._decisions.kernels or self._decisions.measured:
            schedule = self._override(nest, schedule)
        self.plan.kernels[key] = ScheduledKernel(nest, schedule)

    def _override(self, nest: AnyNest, chosen: Schedule) -> Schedule:
        """Return the specified or measured schedule of a nest if there is one, else ``chosen``."""
        name = kernel_name(nest, chosen.ahead)
        self.names.add(name)
        typical = self.plan.symbols.typical
        if name in self._decisions.kernels:
            try:
                return override_schedule(nest, chosen, self._decisions.kernels[name], self._machine, typical)
            except ValueError as error:
                reason = f"the schedule given for kernel {name} {error}"
                raise CompileError(reason, diagnostic=nest_text(nest)) from None
        if name in self._decisions.measured:
            try:
                schedule = override_schedule(nest, chosen, self._decisions.measured[name], self._machine, typical)
                if points(schedule) > MOST_POINTS:
                    raise ValueError("has too large a tile")
                self.plan.measured.add(name)
                return schedule
            except ValueError as error:
                self.plan.ignored[name] = str(error)
        return chosen


def override_schedule(
    nest: AnyNest, chosen: Schedule, raw: Mapping[str, Any], machine: Machine, typical: Sequence[int] = ()
) -> Schedule:
    """Return the schedule ``chosen`` of a nest, with the fields in ``raw`` replaced.

    Raises:
        ValueError: the schedule is invalid. The message continues a sentence that begins with the kernel's name.
    """
    try:
        schedule = _from_json_data(chosen, raw)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"is malformed: {error!r}") from None
    for fault in find_faults(nest, schedule, machine):
        raise ValueError(fault)
    return replace(schedule, iterations=count(ranges(nest, schedule), typical))


def points(schedule: Schedule) -> int:
    """Return the number of vectors that a tile's code computes, including unrolling."""
    return math.prod((*schedule.tiles, *schedule.unroll)) // schedule.lanes


def kernel_name(nest: AnyNest, ahead: Ahead) -> str:
    """Return a hash of a kernel's computation and of the data that it prefetches for other kernels."""
    return hashlib.sha256(f"{nest_text(nest)} {ahead}".encode()).hexdigest()[:16]


def _parse_object(text: str) -> Mapping[str, Any]:
    """Return the object in a JSON text; empty if the text is damaged."""
    try:
        raw = json.loads(text) if text else {}
    except ValueError:
        return {}
    return raw if isinstance(raw, dict) else {}


# The fields of a schedule that are written as they are. The tile loop of a kernel decides its ``ahead``, and
# ``iterations`` follow from the other fields.
_FIELDS = ("reduction", "tiles", "unroll", "vector", "lanes", "ranged", "grain")


def to_json_data(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as JSON data, the inverse of :func:`override_schedule`."""
    prefetch = schedule.prefetch
    return {
        "levels": [[level.loop, level.step] for level in schedule.levels],
        **{name: getattr(schedule, name) for name in _FIELDS},
        "prefetch": prefetch
        and {name: getattr(prefetch, name) for name in ("operand", "depth", "block", "parts", "distance")},
        **({"matrix": asdict(schedule.matrix)} if schedule.matrix else {}),
    }


def _lines(fields: Mapping[str, Any], indent: str) -> str:
    """Return a JSON object with a line for each field, and for each item of a list of texts."""

    def text(value: Any) -> str:
        if not isinstance(value, list) or not value or not isinstance(value[0], str):
            return json.dumps(value)
        return "[\n" + ",\n".join(f"{indent}  {json.dumps(item)}" for item in value) + "]"

    return "{\n" + ",\n".join(f"{indent}{json.dumps(name)}: {text(value)}" for name, value in fields.items()) + "}"


def _from_json_data(chosen: Schedule, raw: Mapping[str, Any]) -> Schedule:
    fields: dict[str, Any] = {}
    for name in _FIELDS:
        if name in raw:
            value = raw[name]
            fields[name] = tuple(map(int, value)) if isinstance(value, list) else int(value)
    if "levels" in raw:
        fields["levels"] = tuple(Level(int(loop), int(step)) for loop, step in raw["levels"])
    if "prefetch" in raw:
        fields["prefetch"] = raw["prefetch"] and Prefetch(
            **{name: int(number) for name, number in raw["prefetch"].items()}
        )
    if "tiles" in raw or "matrix" in raw:  # Other tiles are of vectors unless the unit is named.
        matrix = raw.get("matrix")
        fields["matrix"] = matrix and MatrixTile(**{name: int(number) for name, number in matrix.items()})
    return replace(chosen, **fields)

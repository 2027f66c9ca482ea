"""Calibration: constants of :class:`~torchmdla.devices.cpu.target.machine.Machine` that differ between machines.

The kernels are typical for programs, and run on one thread. One is a matrix product in the first-level cache, with full
vectors and with half vectors. The other is the product of one vector with weights that exceed the second-level cache. A
cycle, as in the cost model, is the time in which two operations begin on the vectors that the processor computes at
once. Clock frequencies are not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

from torchmdla.compiler.program import Program, Target
from torchmdla.compiler.records import Constant, Number
from torchmdla.devices.cpu.ir.expressions import accumulator, constant, numbered_value, operation
from torchmdla.devices.cpu.ir.kernel_spec import KernelSpec, Operand
from torchmdla.devices.cpu.schedule import Schedule, ScheduleContext, choose_schedule, complete_schedule, parallel_order
from torchmdla.devices.cpu.schedule.blocking import Level
from torchmdla.devices.cpu.schedule.register_tile import choose_tile
from torchmdla.devices.cpu.target.machine import Machine
from torchmdla.devices.cpu.target.processors import second_cache
from torchmdla.devices.cpu.tuning.measuring import Bench, Kernel

# The rounds in which alternatives are timed. The least time counts.
_ROUNDS = 20

# The threshold for the time of full vectors relative to half vectors. It is between 0.5 (full vectors are faster) and 1
# (equal).
_SPLITS = 0.75

# The rows, columns and terms of a product that takes about ten microseconds.
_ROWS, _COLUMNS, _TERMS = 768, 64, 64

# The weights of one vector's product: contiguous columns, blocks of these, and terms.
_PANEL, _PANELS, _PANEL_TERMS = 64, 16, 1024

_Numbers = tuple[int, ...]

_MEANINGS: Mapping[str, str] = {
    "splits": "the widest vectors are computed in two halves",
    "memory_bytes": "bytes that come in a cycle from memory that no second cache holds",
    "second_level": "bytes of the second cache",
    "ways": "ways of the second cache",
}


def measurements(target: Target) -> Mapping[str, Callable[[], Constant]]:
    """Return the function that measures each constant, by name."""
    machine = Machine.of(target)
    kernels = _Kernels(machine, Program("", (), (), target))
    measures: dict[str, Callable[[], Number]] = {"splits": kernels.splits, "memory_bytes": kernels.memory_bytes}
    if (cache := second_cache()) is not None:
        size, ways = cache
        measures |= {"second_level": lambda: size, "ways": lambda: ways}
    return {name: partial(_constant, name, machine, measure) for name, measure in measures.items()}


def _constant(name: str, machine: Machine, measure: Callable[[], Number]) -> Constant:
    return Constant(name, measure(), getattr(machine, name), _MEANINGS[name])


class _Kernels:
    """Measurements by kernels for ``program``'s target.

    ``machine`` is the model of that target before the measurements.
    """

    def __init__(self, machine: Machine, program: Program) -> None:
        self._machine, self._program = machine, program
        self._lanes = machine.vector_bytes // 4

    def splits(self) -> bool:
        whole, halves = self._products
        return whole > _SPLITS * halves

    def memory_bytes(self) -> float:
        """Return the bytes per cycle from memory.

        They are rounded, so that another measurement has the same result and programs stay the same.
        """
        nest = _product((_PANELS, _PANEL, _PANEL_TERMS), (0, 0, 1), (_PANEL * _PANEL_TERMS, 1, _PANEL), (_PANEL, 1, 0))
        (seconds,) = self._times(nest, [choose_schedule(nest, self._machine)], cold=[1])
        return float(max(1, round(4 * math.prod(nest.sizes) / seconds * self._cycle)))

    @property
    def _cycle(self) -> float:
        lanes = self._lanes // 2 if self.splits() else self._lanes
        return 2 * lanes * min(self._products) / (_ROWS * _COLUMNS * _TERMS)

    @cached_property
    def _products(self) -> Sequence[float]:
        """Return the seconds of a product with full vectors, and with half vectors."""
        nest = _product((_ROWS, _COLUMNS, _TERMS), (_TERMS, 0, 1), (0, 1, _COLUMNS), (_COLUMNS, 1, 0))
        return self._times(nest, [self._best_across(nest, lanes) for lanes in (self._lanes, self._lanes // 2)])

    def _best_across(self, nest: KernelSpec, lanes: int) -> Schedule:
        tiles, cycles = choose_tile(nest, self._machine, 1, lanes)
        levels = tuple(Level(loop, tiles[loop]) for loop in parallel_order(nest, 1, self._machine))
        return complete_schedule(ScheduleContext(nest, self._machine), 1, lanes, tiles, levels, cycles)

    def _times(self, nest: KernelSpec, schedules: Sequence[Schedule], cold: Sequence[int] = ()) -> list[float]:
        bench = Bench(nest, cold)
        kernels = [Kernel(nest, schedule, self._program) for schedule in schedules]
        calls = bench.calls_in(kernels[0])
        rounds = [[bench.seconds(kernel, calls) for kernel in kernels] for _ in range(_ROUNDS)]
        return [min(times) for times in zip(*rounds, strict=True)]


def _product(sizes: _Numbers, left: _Numbers, right: _Numbers, result: _Numbers) -> KernelSpec:
    """Return a nest that sums products over the last of three loops. Factors and result are given by their strides."""
    kind = "f32"
    factors = operation("arith.mulf", [numbered_value("operand", kind, k) for k in range(2)], kind)
    return KernelSpec(
        sizes=sizes,
        reduction=(False, False, True),
        inputs=(Operand(kind, left), Operand(kind, right)),
        outputs=(Operand(kind, result),),
        values=(operation("arith.addf", [factors, accumulator(0, kind)], kind),),
        initial=constant(0.0, kind),
    )

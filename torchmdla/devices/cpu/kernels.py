"""The code of a kernel: a nest computed as its schedule says, as MLIR text.

A kernel is ``void(void *const *operands, int64_t begin, int64_t end)`` over operands in the order of
:class:`~torchmdla.devices.cpu.nests.BoundNest`: buffers, tables, scalars, and, if the nest may fail, an ``i32`` that it
sets to 1 when an index is out of bounds or a condition fails.
"""

from __future__ import annotations

import itertools
import math
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torchmdla.devices.cpu import math_library
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.nests import ELEMENT_BYTES, Instruction, Nest, Operand, Table, stored
from torchmdla.devices.cpu.numbering import numbering
from torchmdla.devices.cpu.schedule import (
    NEUTRAL,
    Schedule,
    combiners,
    scratch_elements,
    scratch_extents,
)

_REDUCTION_KINDS = {
    "arith.addf": "add",
    "arith.addi": "add",
    "arith.mulf": "mul",
    "arith.muli": "mul",
    "arith.maximumf": "maximumf",
    "arith.minimumf": "minimumf",
    "arith.maxsi": "maxsi",
    "arith.minsi": "minsi",
    "arith.andi": "and",
    "arith.ori": "or",
    "arith.xori": "xor",
}

_INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}

# Integer powers that eager computes by products, too.
_SMALL_POWERS = (1, 2, 3)

# Additions that one accumulator of a sum may see.
_LONGEST_SUM = 256

# Within a register tile: the offset of each tiled loop.
Point = tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """An SSA value of element type ``element``, a vector if ``lanes`` is more than one."""

    name: str
    element: str
    lanes: int = 1

    @property
    def type(self) -> str:
        return vector_type(self.element, self.lanes)


def vector_type(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"vector<{lanes}x{element}>"


@dataclass(frozen=True)
class KernelCode:
    """MLIR text of one function and the external functions that it calls, with their types. ``{symbol}`` stands for
    the function's name, which is no part of what it does."""

    text: str
    externals: tuple[tuple[str, str], ...]


def write_kernel(nest: Nest, schedule: Schedule, machine: Machine, attributes: str) -> KernelCode:
    """The kernel of ``nest``; ``attributes`` are those of the function, as MLIR text."""
    writer = _KernelWriter(nest, schedule, machine)
    body = "\n".join(writer.write())
    head = "llvm.func internal @{symbol}(%operands: !llvm.ptr, %begin: i64, %end: i64)"
    text = f"{head} {attributes} {{\n{body}\n}}"
    return KernelCode(text, tuple(sorted(writer.externals.items())))


class _KernelWriter:
    """Writes one kernel. Values are memoised by scope, so that what does not vary with a loop is computed outside
    of it, once for all points of the register tile that share it."""

    def __init__(self, nest: Nest, schedule: Schedule, machine: Machine) -> None:
        self.nest = nest
        self.schedule = schedule
        self.machine = machine
        self.numbers = numbering(nest)
        self.combiners = combiners(nest)
        self.externals: dict[str, str] = {}
        self._lines: list[str] = []
        self._counter = itertools.count()
        self._values: ChainMap[tuple[int, Point], Value] = ChainMap()
        self._pointers: ChainMap[int, str] = ChainMap()
        self._induction: ChainMap[int, str] = ChainMap()
        self._constants: ChainMap[str, str] = ChainMap()
        # The iterations of each loop inside the blocks opened so far; those of the register tile for loops that reduce.
        self._extents = list(nest.sizes)
        self._tile = list(schedule.tiles)
        # Under blocks of the reduction: where partial results lie, and whether this is the first and the last block.
        self._scratch = _scratch(nest, schedule)
        self._is_first = self._is_last = ""
        self._first_output = self.numbers.first_output

    def write(self) -> list[str]:
        self._load_operands()
        self._range()
        self._line("llvm.return")
        return self._lines

    # Lines and scopes.

    def _line(self, text: str) -> None:
        self._lines.append(text)

    def _fresh(self) -> str:
        return f"%v{next(self._counter)}"

    def _define(self, text: str) -> str:
        name = self._fresh()
        self._line(f"{name} = {text}")
        return name

    def _constant(self, number: int) -> str:
        return self._literal(f"{number} : i64")

    def _literal(self, text: str) -> str:
        if text not in self._constants:
            self._constants[text] = self._define(f"arith.constant {text}")
        return self._constants[text]

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """Values written inside do not dominate what follows."""
        saved = self._values, self._pointers, self._induction, self._constants
        self._values, self._pointers = self._values.new_child(), self._pointers.new_child()
        self._induction, self._constants = self._induction.new_child(), self._constants.new_child()
        yield
        self._values, self._pointers, self._induction, self._constants = saved

    # Operands.

    def _load_operands(self) -> None:
        nest = self.nest
        for position in range(len(nest.operands)):
            self._pointers[position] = self._operand_pointer(position)
        start = len(nest.operands) + len(nest.tables)
        self._tables = [self._operand_pointer(position) for position in range(len(nest.operands), start)]
        for position, (number, element) in enumerate(self.numbers.scalars.items()):
            pointer = self._operand_pointer(start + position)
            self._values[number, ()] = self._load(pointer, element)
        if nest.may_fail:
            self._status = self._operand_pointer(start + len(self.numbers.scalars))
        for position, operand in self._scratch.items():
            count = self._constant(scratch_elements(nest, self.schedule))
            self._pointers[position] = self._define(
                f"llvm.alloca {count} x {stored(operand.element)} {{alignment = 64 : i64}} : (i64) -> !llvm.ptr"
            )

    def _operand_pointer(self, position: int) -> str:
        slot = self._define(f"llvm.getelementptr %operands[{position}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
        return self._define(f"llvm.load {slot} : !llvm.ptr -> !llvm.ptr")

    def _advance(self, loop: int, step: str, scratch: bool = False) -> None:
        """Moves every pointer by ``step`` iterations of ``loop``."""
        operands = list(enumerate(self.numbers.operands)) + (list(self._scratch.items()) if scratch else [])
        for position, operand in operands:
            stride = operand.strides[loop]
            if stride:
                distance = self._define(f"arith.muli {step}, {self._constant(stride)} : i64")
                self._pointers[position] = self._offset(self._pointers[position], distance, operand.element)

    def _offset(self, pointer: str, elements: str | int, element: str) -> str:
        if elements == 0:
            return pointer
        kind = "(!llvm.ptr) -> !llvm.ptr" if isinstance(elements, int) else "(!llvm.ptr, i64) -> !llvm.ptr"
        return self._define(f"llvm.getelementptr {pointer}[{elements}] : {kind}, {stored(element)}")

    # Loops.

    def _range(self) -> None:
        """The loop over ``[begin, end)``, the blocks of the ranged levels in row-major order."""
        with self._loop("%begin", "%end", self._constant(1)) as index:
            positions = []
            for depth in reversed(range(self.schedule.ranged)):
                level = self.schedule.levels[depth]
                count = self._constant(-(-self.nest.sizes[level.loop] // level.step))
                if depth:
                    positions.append(self._define(f"arith.remui {index}, {count} : i64"))
                    index = self._define(f"arith.divui {index}, {count} : i64")
            self._ranged(0, [index, *reversed(positions)])

    def _ranged(self, depth: int, positions: Sequence[str]) -> None:
        """The ranged levels from ``depth`` on, at one position of each, and what lies inside of them."""
        if depth == self.schedule.ranged:
            self._descend(depth)
            return
        self._hoist(depth)
        level = self.schedule.levels[depth]
        full, rest = divmod(self._extents[level.loop], level.step)
        index = self._define(f"arith.muli {positions[depth]}, {self._constant(level.step)} : i64")
        if not full or not rest:
            with self._enter(level.loop, index, level.step if full else rest):
                self._ranged(depth + 1, positions)
            return
        inside = self._define(f"arith.cmpi slt, {positions[depth]}, {self._constant(full)} : i64")
        self._line(f"scf.if {inside} {{")
        with self._enter(level.loop, index, level.step):
            self._ranged(depth + 1, positions)
        self._line("} else {")
        with self._enter(level.loop, index, rest):
            self._ranged(depth + 1, positions)
        self._line("}")

    def _descend(self, depth: int) -> None:
        """The levels from ``depth`` on, and what lies inside of them."""
        if depth == len(self.schedule.levels):
            self._innermost()
            return
        self._hoist(depth)
        level = self.schedule.levels[depth]
        extent = self._extents[level.loop]
        rest = extent % level.step
        if extent - rest > level.step:
            bounds = self._constant(0), self._constant(extent - rest), self._constant(level.step)
            with self._loop(*bounds) as index, self._enter(level.loop, index, level.step):
                self._descend(depth + 1)
        elif extent > rest:
            with self._enter(level.loop, self._constant(0), level.step):
                self._descend(depth + 1)
        if rest:
            with self._enter(level.loop, self._constant(extent - rest), rest):
                self._descend(depth + 1)

    @contextmanager
    def _enter(self, loop: int, index: str, extent: int) -> Iterator[None]:
        """A block of ``extent`` iterations of ``loop``, from ``index`` iterations after the block around it."""
        with self._scope():
            saved = self._extents[loop], self._is_first, self._is_last
            self._extents[loop] = extent
            outer = self._induction.get(loop)
            self._induction[loop] = index if outer is None else self._define(f"arith.addi {outer}, {index} : i64")
            blocked = self._is_first != ""
            if self.nest.reduction[loop]:
                self._mark_block(loop, extent)
            self._advance(loop, index, scratch=blocked)
            yield
            self._extents[loop], self._is_first, self._is_last = saved

    def _mark_block(self, loop: int, extent: int) -> None:
        """Finds whether this block of a reduction is the first and the last."""
        last = self._constant(self.nest.sizes[loop] - extent)
        first = self._define(f"arith.cmpi eq, {self._induction[loop]}, {self._constant(0)} : i64")
        last = self._define(f"arith.cmpi eq, {self._induction[loop]}, {last} : i64")
        if self._is_first:
            first = self._define(f"arith.andi {first}, {self._is_first} : i1")
            last = self._define(f"arith.andi {last}, {self._is_last} : i1")
        self._is_first, self._is_last = first, last

    @contextmanager
    def _loop(self, lower: str, upper: str, step: str) -> Iterator[str]:
        index = self._fresh()
        with self._scope(), self._block(f"scf.for {index} = {lower} to {upper} step {step} : i64 {{"):
            yield index

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self._line(head)
        yield
        self._line("}")

    def _hoist(self, depth: int) -> None:
        """Computes what the loops opened so far determine, before the next one opens. An epilogue's values are left
        to the end of the reduction: they would only hold registers during it."""
        pending = {level.loop for level in self.schedule.levels[depth:]}
        opened = frozenset(d for d, reduced in enumerate(self.nest.reduction) if not reduced and d not in pending)
        outputs = range(self._first_output, self._first_output + len(self.nest.outputs))
        for number in range(self.numbers.first_epilogue):
            loops = self.numbers.varies[number]
            if number not in outputs and loops <= opened and self.numbers.is_used(number):
                for point in self._points(loops):
                    self._value(number, point)

    def _check(self, points: Sequence[Point], first: int, end: int | None = None) -> None:
        """Evaluates the assertions among the values from ``first`` on, which nothing else uses."""
        for number, instruction in self.numbers.instructions.items():
            if instruction.name == "assert" and first <= number and (end is None or number < end):
                for point in points:
                    self._value(number, point)

    # The register tile.

    def _points(self, loops: frozenset[int] | None = None) -> list[Point]:
        """Offsets of the register tile's points; only ``loops`` vary, if given."""
        axes = []
        for loop in range(len(self.nest.sizes)):
            step = self.schedule.lanes if loop == self.schedule.vector else 1
            varying = loops is None or loop in loops
            axes.append(range(0, self._tile_extent(loop), step) if varying else range(1))
        return list(itertools.product(*axes))

    def _tile_extent(self, loop: int) -> int:
        return self._tile[loop] if self.nest.reduction[loop] else self._extents[loop]

    def _innermost(self) -> None:
        if self.nest.accumulates:
            self._hoist(len(self.schedule.levels))
            self._reduce()
            return
        points = self._points()
        self._check(points, 0)
        self._finish(points)

    def _finish(self, points: Sequence[Point]) -> None:
        """Stores the results at ``points``, all of which are computed before the first is stored, instruction by
        instruction at all points: chains of dependent instructions then overlap without the processor's help."""
        first = self.numbers.first_epilogue if self.nest.epilogue is not None else 0
        for number in (n for n in self.numbers.instructions if n >= first and self.numbers.is_used(n)):
            for point in points:
                self._value(number, point)
        results = [
            (operand, point, self._value(number, point)) for point in points for number, operand in self.numbers.results
        ]
        for operand, point, value in results:
            self._store(operand, point, value)

    def _restricted(self, point: Point, loops: frozenset[int]) -> Point:
        return tuple(offset if loop in loops else 0 for loop, offset in enumerate(point))

    def _value(self, number: int, point: Point) -> Value:
        """Value ``number`` of the body at a point of the register tile."""
        if number in self.numbers.scalars:
            return self._values[number, ()]
        key = number, self._restricted(point, self.numbers.varies[number])
        if key not in self._values:
            self._values[key] = self._compute(number, key[1])
        return self._values[key]

    def _compute(self, number: int, point: Point) -> Value:
        if number in self.numbers.sources:
            return self._load_at(self.numbers.sources[number], point)
        instruction = self.numbers.instructions[number]
        if instruction.name == "index":
            return self._index(instruction.payload, point)
        operands = [self._value(v, point) for v in instruction.operands]
        if instruction.name == "load":
            return self._load_table(instruction, operands, self._active(point))
        if instruction.name == "assert":
            self._report(operands[0], self._active(point))
            return operands[0]
        return self._apply(instruction, operands)

    # Reductions.

    def _reduce(self) -> None:
        """Runs the reduction loops with the outputs in registers, then stores these or what the epilogue makes of
        them."""
        across = self.schedule.vector in self.schedule.reduction
        keys = [(position, point) for point in self._ordered_points() for position in range(len(self.nest.outputs))]
        if across:
            values = [self._neutral(position) for position, _ in keys]
        else:
            values = self._continued(keys) if self._is_first else [self._start(*key) for key in keys]
        values = self._reduction(0, keys, values)
        if across:
            parallel = frozenset(d for d, reduced in enumerate(self.nest.reduction) if not reduced)
            keys, values = self._combine_lanes(keys, values, parallel)
        if not self._is_last:
            self._conclude(keys, values)
            return
        self._line(f"scf.if {self._is_last} {{")
        with self._scope():
            self._conclude(keys, values)
        self._line("} else {")
        with self._scope():
            for (position, point), value in zip(keys, values, strict=True):
                self._store(len(self.numbers.operands) + position, point, value)
        self._line("}")

    def _ordered_points(self) -> list[Point]:
        """The register tile's points, so that what is broadcast to all lanes is used up before the next is read."""
        vector = self.schedule.vector
        inputs = [o for o in self.nest.inputs if vector >= 0 and o.strides[vector] == 0]
        outer = [d for d in range(len(self.nest.sizes)) if any(o.strides[d] for o in inputs)]
        return sorted(self._points(), key=lambda point: [point[d] for d in outer])

    def _continued(self, keys: Sequence[tuple[int, Point]]) -> list[Value]:
        """What accumulators start from under blocks of the reduction: later blocks go on from the scratch."""
        columns = []
        results = self._fresh()
        mark = len(self._lines)
        for block in ("first", "later"):
            with self._scope():
                if block == "first":
                    column = [self._start(*key) for key in keys]
                else:
                    column = [self._load_at(len(self.numbers.operands) + position, point) for position, point in keys]
                types = ", ".join(v.type for v in column)
                self._line(f"scf.yield {', '.join(v.name for v in column)} : {types}")
            self._line("} else {" if block == "first" else "}")
            columns.append(column)
        self._lines.insert(mark, f"{results}:{len(keys)} = scf.if {self._is_first} -> ({types}) {{")
        return [Value(f"{results}#{k}", v.element, v.lanes) for k, v in enumerate(columns[0])]

    def _conclude(self, keys: Sequence[tuple[int, Point]], values: Sequence[Value]) -> None:
        """Stores the results of the reduction, or what the epilogue makes of them."""
        if self.nest.epilogue is None:
            for (position, point), value in zip(keys, values, strict=True):
                self._store(self._first_output + position, point, value)
            return
        for (position, point), value in zip(keys, values, strict=True):
            self._values[self._first_output + position, point] = value
        points = list(dict.fromkeys(point for _, point in keys))
        self._check(points, self.numbers.first_epilogue)
        self._finish(points)

    def _reduction(self, depth: int, keys: Sequence[tuple[int, Point]], values: list[Value]) -> list[Value]:
        if depth == len(self.schedule.reduction):
            return self._accumulate(keys, values)
        loop = self.schedule.reduction[depth]
        tile, extent = self._tile[loop], self._extents[loop]
        step = tile * self.schedule.unroll[loop]
        rest = extent % step
        if extent - rest > step:
            values = self._in_parts(loop, extent - rest, depth, keys, values)
        elif extent > rest:
            values = self._unrolled(loop, range(0, step, tile), depth, keys, values)
        if rest >= tile:
            values = self._unrolled(loop, range(extent - rest, extent - rest % tile, tile), depth, keys, values)
        if rest % tile:
            values = self._rest_of_tile(loop, rest % tile, depth, keys, values)
        return values

    def _rest_of_tile(
        self, loop: int, rest: int, depth: int, keys: Sequence[tuple[int, Point]], values: Sequence[Value]
    ) -> list[Value]:
        """The last iterations of a loop across lanes: some accumulators get nothing more."""
        kept = [key[1][loop] < rest for key in keys]
        saved, self._tile[loop] = self._tile[loop], rest
        inner = self._unrolled(
            loop,
            range(self._extents[loop] - rest, self._extents[loop], rest),
            depth,
            [key for key, keep in zip(keys, kept, strict=True) if keep],
            [value for value, keep in zip(values, kept, strict=True) if keep],
        )
        self._tile[loop] = saved
        supply = iter(inner)
        return [next(supply) if keep else value for value, keep in zip(values, kept, strict=True)]

    def _unrolled(
        self, loop: int, steps: range, depth: int, keys: Sequence[tuple[int, Point]], values: list[Value]
    ) -> list[Value]:
        """Iterations of a loop that reduces one after the other, without a loop."""
        for step in steps:
            with self._scope():
                self._step(loop, self._constant(step))
                values = self._reduction(depth + 1, keys, values)
        return values

    def _step(self, loop: int, index: str) -> None:
        outer = self._induction.get(loop)
        self._induction[loop] = index if outer is None else self._define(f"arith.addi {outer}, {index} : i64")
        self._advance(loop, index)

    def _in_parts(
        self, loop: int, upper: int, depth: int, keys: Sequence[tuple[int, Point]], values: Sequence[Value]
    ) -> list[Value]:
        """A loop that reduces. Long sums are summed in parts that start from zero, since the rounding error of a sum
        grows with the number of additions that one accumulator sees (Higham, Accuracy and Stability of Numerical
        Algorithms, 2nd edition, section 4.2)."""
        zero, upper_bound = self._constant(0), self._constant(upper)
        part = self._part_of_sum(loop, upper, depth)
        if part is None:
            return self._carried_loop(loop, zero, upper_bound, depth, keys, values)
        results, first = self._fresh(), self._fresh()
        sums = [Value(self._fresh(), v.element, v.lanes) for v in values]
        head = self._carrying(f"scf.for {first} = {zero} to {upper_bound} step {self._constant(part)}", sums, values)
        with self._scope(), self._block(f"{results}:{len(values)} = {head}"):
            last = self._define(
                f"arith.minsi {self._define(f'arith.addi {first}, {self._constant(part)} : i64')}, {upper_bound} : i64"
            )
            starts = [self._broadcast(Value(self._literal(f"-0.0 : {v.element}"), v.element), v.lanes) for v in values]
            parts = self._carried_loop(loop, first, last, depth, keys, starts)
            new = [
                self._emit(self._combiner(position), [total, part])
                for (position, _), total, part in zip(keys, sums, parts, strict=True)
            ]
            self._yield(new)
        return [Value(f"{results}#{k}", v.element, v.lanes) for k, v in enumerate(values)]

    def _part_of_sum(self, loop: int, upper: int, depth: int) -> int | None:
        """How many iterations of ``loop`` an accumulator may see; None if it may see them all."""
        names = {i.name for i in self.combiners} if self.combiners else set()
        if depth or names != {"arith.addf"} or self.nest.outputs[0].element == "f64":
            return None
        inner = math.prod(-(-self._extents[d] // self._tile[d]) for d in self.schedule.reduction[1:])
        step = self._tile[loop] * self.schedule.unroll[loop]
        part = max(1, _LONGEST_SUM * self._tile[loop] // (inner * step)) * step
        return part if upper >= 2 * part else None

    def _carrying(self, head: str, carried: Sequence[Value], initial: Sequence[Value]) -> str:
        """The head of a loop that carries values."""
        starts = ", ".join(f"{c.name} = {v.name}" for c, v in zip(carried, initial, strict=True))
        return f"{head} iter_args({starts}) -> ({', '.join(v.type for v in initial)}) : i64 {{"

    def _yield(self, values: Sequence[Value]) -> None:
        self._line(f"scf.yield {', '.join(v.name for v in values)} : {', '.join(v.type for v in values)}")

    def _carried_loop(
        self, loop: int, lower: str, upper: str, depth: int, keys: Sequence[tuple[int, Point]], values: Sequence[Value]
    ) -> list[Value]:
        results, index = self._fresh(), self._fresh()
        carried = [Value(self._fresh(), v.element, v.lanes) for v in values]
        tile = self._tile[loop]
        width = tile * self.schedule.unroll[loop]
        head = self._carrying(f"scf.for {index} = {lower} to {upper} step {self._constant(width)}", carried, values)
        with self._scope(), self._block(f"{results}:{len(values)} = {head}"):
            self._step(loop, index)
            self._yield(self._unrolled(loop, range(0, width, tile), depth, keys, carried))
        return [Value(f"{results}#{k}", v.element, v.lanes) for k, v in enumerate(values)]

    def _accumulate(self, keys: Sequence[tuple[int, Point]], values: Sequence[Value]) -> list[Value]:
        with self._scope():
            for (position, point), value in zip(keys, values, strict=True):
                self._values[self._first_output + position, point] = value
            self._check([point for _, point in keys], 0, self.numbers.first_epilogue)
            results = []
            for (position, point), old in zip(keys, values, strict=True):
                new = self._value(self.nest.yields[position], point)
                results.append(self._where_active(point, self._broadcast(new, old.lanes), old))
        return results

    def _where_active(self, point: Point, new: Value, old: Value) -> Value:
        """``new`` in the lanes inside the loop, ``old`` elsewhere; lanes across a parallel loop need no care."""
        active = self._active(point)
        if active == self.schedule.lanes or self.schedule.vector not in self.schedule.reduction:
            return new
        mask = self._mask(active)
        text = f"arith.select {mask}, {new.name}, {old.name} : vector<{old.lanes}xi1>, {old.type}"
        return Value(self._define(text), old.element, old.lanes)

    def _combine_lanes(
        self, keys: Sequence[tuple[int, Point]], values: Sequence[Value], loops: frozenset[int]
    ) -> tuple[list[tuple[int, Point]], list[Value]]:
        """Reduces the lanes of the accumulators, joins those of one element, and adds the old output."""
        groups: dict[tuple[int, Point], list[Value]] = {}
        for (position, point), value in zip(keys, values, strict=True):
            groups.setdefault((position, self._restricted(point, loops)), []).append(value)
        combined = []
        for (position, point), members in groups.items():
            instruction = self._combiner(position)
            total = members[0]
            for member in members[1:]:
                total = self._emit(instruction, [total, member])
            kind = _REDUCTION_KINDS[instruction.name]
            fast = " fastmath<reassoc>" if instruction.name in ("arith.addf", "arith.mulf") else ""
            text = f"vector.reduction <{kind}>, {total.name}{fast} : {total.type} into {total.element}"
            scalar = Value(self._define(text), total.element)
            old = self._start(position, point)
            combined.append(self._emit(instruction, [old, scalar]))
        return list(groups), combined

    def _start(self, position: int, point: Point) -> Value:
        """What an accumulator starts from."""
        if self.nest.initial is None:
            return self._load_at(self._first_output + position, point)
        start = self._emit(self.nest.initial, [])
        across = self.schedule.vector >= 0 and self.schedule.vector not in self.schedule.reduction
        return self._broadcast(start, self.schedule.lanes if across else 1)

    def _combiner(self, position: int) -> Instruction:
        assert self.combiners is not None, "a reduction across lanes needs an associative op"
        return self.combiners[position]

    def _neutral(self, position: int) -> Value:
        element = self.nest.outputs[position].element
        text = _neutral_literal(NEUTRAL[self._combiner(position).name], element)
        return self._broadcast(Value(self._literal(f"{text} : {element}"), element), self.schedule.lanes)

    # Memory.

    def _active(self, point: Point) -> int:
        """Lanes inside the vector loop at a point."""
        loop = self.schedule.vector
        if loop < 0:
            return 1
        return min(self.schedule.lanes, self._tile_extent(loop) - point[loop])

    def _mask(self, active: int) -> str:
        lanes = self.schedule.lanes
        flags = ", ".join("true" if k < active else "false" for k in range(lanes))
        return self._literal(f"dense<[{flags}]> : vector<{lanes}xi1>")

    def _operand(self, number: int) -> Operand:
        """Operand ``number`` of the kernel; after these come the scratch buffers."""
        return self._scratch[number] if number in self._scratch else self.numbers.operands[number]

    def _address(self, number: int, point: Point) -> tuple[str, int]:
        """The pointer of operand ``number`` at a point and its stride from lane to lane."""
        operand = self._operand(number)
        offset = sum(stride * step for stride, step in zip(operand.strides, point, strict=True))
        lane = operand.strides[self.schedule.vector] if self.schedule.vector >= 0 else 0
        return self._offset(self._pointers[number], offset, operand.element), lane

    def _load_at(self, number: int, point: Point) -> Value:
        pointer, stride = self._address(number, point)
        element = self._operand(number).element
        if stride == 0 or self.schedule.lanes == 1:
            return self._load(pointer, element)
        active = self._active(point)
        if stride == 1:
            return self._load(pointer, element, self.schedule.lanes, active)
        if stride == 2 and active == self.schedule.lanes:
            return self._load_every_second(pointer, element)
        indices = self._lane_offsets(stride)
        return self._gather(pointer, indices, element, active)

    def _load(self, pointer: str, element: str, lanes: int = 1, active: int | None = None) -> Value:
        memory = vector_type(stored(element), lanes)
        align = ELEMENT_BYTES[stored(element)]
        if active is None or active == lanes:
            name = self._define(f"llvm.load {pointer} {{alignment = {align} : i64}} : !llvm.ptr -> {memory}")
        else:
            mask, rest = self._mask(active), self._zero(stored(element), lanes)
            name = self._define(
                f"llvm.intr.masked.load {pointer}, {mask}, {rest} {{alignment = {align} : i32}} : "
                f"(!llvm.ptr, vector<{lanes}xi1>, {memory}) -> {memory}"
            )
        return self._from_memory(name, element, lanes)

    def _from_memory(self, name: str, element: str, lanes: int) -> Value:
        if stored(element) != element:
            memory = vector_type(stored(element), lanes)
            name = self._define(f"arith.trunci {name} : {memory} to {vector_type(element, lanes)}")
        return Value(name, element, lanes)

    def _to_memory(self, value: Value) -> str:
        if stored(value.element) == value.element:
            return value.name
        return self._define(f"arith.extui {value.name} : {value.type} to {vector_type('i8', value.lanes)}")

    def _zero(self, element: str, lanes: int) -> str:
        number = "0.0" if element in _INFINITY else "0"
        return self._literal(f"dense<{number}> : {vector_type(element, lanes)}")

    def _load_every_second(self, pointer: str, element: str) -> Value:
        """Elements 0, 2, 4, … by two loads that touch nothing past the last of them."""
        lanes = self.schedule.lanes
        memory = vector_type(stored(element), lanes)
        align = ELEMENT_BYTES[stored(element)]
        halves = []
        for start in (0, lanes - 1):
            half = self._offset(pointer, start, element)
            halves.append(self._define(f"llvm.load {half} {{alignment = {align} : i64}} : !llvm.ptr -> {memory}"))
        picks = [2 * k if 2 * k < lanes else lanes + 2 * k - (lanes - 1) for k in range(lanes)]
        name = self._define(f"vector.shuffle {halves[0]}, {halves[1]} {picks} : {memory}, {memory}")
        return self._from_memory(name, element, lanes)

    def _lane_offsets(self, stride: int) -> str:
        numbers = ", ".join(str(stride * k) for k in range(self.schedule.lanes))
        return self._literal(f"dense<[{numbers}]> : vector<{self.schedule.lanes}xi64>")

    def _lane_pointers(self, pointer: str, indices: str, element: str) -> str:
        lanes = self.schedule.lanes
        kind = f"(!llvm.ptr, vector<{lanes}xi64>) -> vector<{lanes}x!llvm.ptr>"
        return self._define(f"llvm.getelementptr {pointer}[{indices}] : {kind}, {stored(element)}")

    def _gather(self, pointer: str, indices: str, element: str, active: int) -> Value:
        lanes = self.schedule.lanes
        memory = vector_type(stored(element), lanes)
        pointers = self._lane_pointers(pointer, indices, element)
        mask, rest = self._mask(active), self._zero(stored(element), lanes)
        name = self._define(
            f"llvm.intr.masked.gather {pointers}, {mask}, {rest} {{alignment = {ELEMENT_BYTES[stored(element)]} : i32}}"
            f" : (vector<{lanes}x!llvm.ptr>, vector<{lanes}xi1>, {memory}) -> {memory}"
        )
        return self._from_memory(name, element, lanes)

    def _store(self, number: int, point: Point, value: Value) -> None:
        """Stores ``value`` to operand ``number`` at a point."""
        pointer, stride = self._address(number, point)
        element = self._operand(number).element
        align = ELEMENT_BYTES[stored(element)]
        across_reduction = self.schedule.vector in self.schedule.reduction
        if self.schedule.lanes == 1 or across_reduction:
            self._line(
                f"llvm.store {self._to_memory(value)}, {pointer} {{alignment = {align} : i64}} : "
                f"{stored(element)}, !llvm.ptr"
            )
            return
        value = self._broadcast(value, self.schedule.lanes)
        data, memory = self._to_memory(value), vector_type(stored(element), value.lanes)
        active, lanes = self._active(point), value.lanes
        if stride == 1 and active == lanes:
            self._line(f"llvm.store {data}, {pointer} {{alignment = {align} : i64}} : {memory}, !llvm.ptr")
        elif stride == 1:
            self._line(
                f"llvm.intr.masked.store {data}, {pointer}, {self._mask(active)} {{alignment = {align} : i32}} "
                f": {memory}, vector<{lanes}xi1> into !llvm.ptr"
            )
        else:
            pointers = self._lane_pointers(pointer, self._lane_offsets(stride), element)
            self._line(
                f"llvm.intr.masked.scatter {data}, {pointers}, {self._mask(active)} "
                f"{{alignment = {align} : i32}} : {memory}, vector<{lanes}xi1> into vector<{lanes}x!llvm.ptr>"
            )

    # Instructions.

    def _index(self, loop: int, point: Point) -> Value:
        base = self._induction[loop]
        if point[loop]:
            base = self._define(f"arith.addi {base}, {self._constant(point[loop])} : i64")
        scalar = Value(base, "i64")
        if loop != self.schedule.vector or self.schedule.lanes == 1:
            return scalar
        wide = self._broadcast(scalar, self.schedule.lanes)
        return Value(self._define(f"arith.addi {wide.name}, {self._lane_offsets(1)} : {wide.type}"), "i64", wide.lanes)

    def _load_table(self, instruction: Instruction, indices: Sequence[Value], active: int) -> Value:
        """Reads a table at computed indices. One out of bounds is replaced by 0 and reported in the status."""
        table = self.nest.tables[instruction.payload]
        pointer = self._tables[instruction.payload]
        numbers = instruction.operands
        ramp = indices[-1].lanes > 1 and self._loop_of(numbers[-1]) >= 0 and table.strides[-1] == 1
        if ramp and all(v.lanes == 1 for v in indices[:-1]) and self._is_safe(numbers[-1], table.sizes[-1]):
            first = Value(self._first_lane(indices[-1]), "i64")
            address = self._table_address(table, numbers, [*indices[:-1], first], 1)
            return self._load(self._offset(pointer, address, table.element), table.element, indices[-1].lanes, active)
        lanes = max((v.lanes for v in indices), default=1)
        address = self._table_address(table, numbers, indices, active)
        if lanes == 1:
            return self._load(self._offset(pointer, address, table.element), table.element)
        return self._gather(pointer, address, table.element, active)

    def _first_lane(self, ramp: Value) -> str:
        """The first lane of a vector of consecutive indices."""
        return self._define(f"vector.extract {ramp.name}[0] : i64 from {ramp.type}")

    def _table_address(self, table: Table, numbers: Sequence[int], indices: Sequence[Value], active: int) -> str:
        """Element offsets into a table."""
        lanes = max((v.lanes for v in indices), default=1)
        address = self._broadcast(Value(self._constant(0), "i64"), lanes)
        for number, index, size, stride in zip(numbers, indices, table.sizes, table.strides, strict=True):
            index = self._broadcast(index, lanes)
            if not self._is_safe(number, size):
                index = self._in_bounds(index, size, active)
            step = self._broadcast(Value(self._constant(stride), "i64"), lanes)
            scaled = self._define(f"arith.muli {index.name}, {step.name} : {index.type}")
            address = Value(self._define(f"arith.addi {address.name}, {scaled} : {index.type}"), "i64", lanes)
        return address.name

    def _loop_of(self, number: int) -> int:
        """The loop whose index the value is, -1 if it is not one."""
        instruction = self.numbers.instructions.get(number)
        return instruction.payload if instruction is not None and instruction.name == "index" else -1

    def _is_safe(self, number: int, size: int) -> bool:
        """Whether a value is a loop index that stays below ``size``."""
        loop = self._loop_of(number)
        return loop >= 0 and self.nest.sizes[loop] <= size

    def _in_bounds(self, index: Value, size: int, active: int) -> Value:
        limit = self._broadcast(Value(self._constant(size), "i64"), index.lanes)
        zero = self._broadcast(Value(self._constant(0), "i64"), index.lanes)
        inside = self._define(f"arith.cmpi ult, {index.name}, {limit.name} : {index.type}")
        self._report(Value(inside, "i1", index.lanes), active)
        chosen = self._define(f"arith.select {inside}, {index.name}, {zero.name} : {_selector(index)}")
        return Value(chosen, "i64", index.lanes)

    def _report(self, condition: Value, active: int) -> None:
        """Sets the status if the condition fails in an active lane."""
        holds = condition.name
        if condition.lanes > 1:
            if active < condition.lanes:
                idle = self._define(
                    f"arith.xori {self._mask(active)}, {self._mask(condition.lanes)} : {condition.type}"
                )
                holds = self._define(f"arith.ori {holds}, {idle} : {condition.type}")
            holds = self._define(f"vector.reduction <and>, {holds} : {condition.type} into i1")
        fails = self._define(f"arith.xori {holds}, {self._literal('true')} : i1")
        with self._scope(), self._block(f"scf.if {fails} {{"):
            self._line(f"llvm.store {self._literal('1 : i32')}, {self._status} : i32, !llvm.ptr")

    def _apply(self, instruction: Instruction, operands: Sequence[Value]) -> Value:
        if instruction.name in ("arith.index_cast", "arith.index_castui"):
            return self._cast_index(instruction, operands[0])
        if instruction.name == math_library.INTEGER_POWER:
            return self._integer_power(instruction, operands)
        return self._emit(instruction, operands)

    def _integer_power(self, instruction: Instruction, operands: Sequence[Value]) -> Value:
        base, exponent = operands
        power = self._constant_of(instruction.operands[1])
        if power in _SMALL_POWERS:
            product = base
            for _ in range(power - 1):
                product = self._emit(Instruction("arith.mulf", (), base.element), [product, base])
            return product
        wanted = vector_type(base.element, exponent.lanes)
        real = self._define(f"arith.sitofp {exponent.name} : {exponent.type} to {wanted}")
        call = Instruction("math.powf", instruction.operands, instruction.result)
        return self._emit(call, [base, Value(real, base.element, exponent.lanes)])

    def _constant_of(self, number: int) -> int | None:
        """The value of an integer constant of the body."""
        instruction = self.numbers.instructions.get(number)
        if instruction is None or instruction.name != "arith.constant":
            return None
        return int(instruction.attributes.removeprefix("{value = ").split(" ")[0])

    def _emit(self, instruction: Instruction, operands: Sequence[Value]) -> Value:
        lanes = max((v.lanes for v in operands), default=1)
        wide = [self._broadcast(v, lanes) for v in operands]
        if math_library.is_call(instruction.name):
            return self._call(instruction, wide, lanes)
        result = vector_type(instruction.result, lanes)
        names, types = ", ".join(v.name for v in wide), ", ".join(v.type for v in wide)
        text = f'"{instruction.name}"({names}) {instruction.attributes} : ({types}) -> {result}'
        return Value(self._define(text), instruction.result, lanes)

    def _cast_index(self, instruction: Instruction, operand: Value) -> Value:
        """An index is an ``i64`` here, so the cast is an extension, a truncation or nothing."""
        source, target = int(operand.element[1:]), int(instruction.result[1:])
        if source == target:
            return operand
        widen = "arith.extui" if instruction.name.endswith("ui") else "arith.extsi"
        op = widen if source < target else "arith.trunci"
        result = vector_type(instruction.result, operand.lanes)
        text = f"{op} {operand.name} : {operand.type} to {result}"
        return Value(self._define(text), instruction.result, operand.lanes)

    def _broadcast(self, value: Value, lanes: int) -> Value:
        if value.lanes == lanes:
            return value
        target = vector_type(value.element, lanes)
        key = f"broadcast {value.name} {lanes}"
        if key not in self._constants:
            self._constants[key] = self._define(f"vector.broadcast {value.name} : {value.element} to {target}")
        return Value(self._constants[key], value.element, lanes)

    # Library calls.

    def _call(self, instruction: Instruction, operands: Sequence[Value], lanes: int) -> Value:
        element = instruction.result
        if element not in ("f32", "f64"):
            wide = [self._resize(v, "f32", "arith.extf") for v in operands]
            single = Instruction(instruction.name, instruction.operands, "f32")
            return self._resize(self._call(single, wide, lanes), element, "arith.truncf")
        if lanes == 1:
            return self._call_symbol(math_library.scalar_function(instruction.name, element), operands)
        symbol = math_library.vector_function(instruction.name, element, lanes, self.machine.vector_bytes)
        if symbol is not None:
            return self._call_symbol(symbol, operands)
        scalar = math_library.scalar_function(instruction.name, element)
        return self._by_lane(operands, lambda lane: self._call_symbol(scalar, lane))

    def _call_symbol(self, symbol: str, operands: Sequence[Value]) -> Value:
        result = operands[0]
        types = ", ".join(v.type for v in operands)
        self.externals[symbol] = f"({types}) -> {result.type}"
        names = ", ".join(v.name for v in operands)
        name = self._define(f"llvm.call @{symbol}({names}) : ({types}) -> {result.type}")
        return Value(name, result.element, result.lanes)

    def _resize(self, value: Value, element: str, op: str) -> Value:
        target = vector_type(element, value.lanes)
        return Value(self._define(f"{op} {value.name} : {value.type} to {target}"), element, value.lanes)

    def _by_lane(self, operands: Sequence[Value], function: Callable[[list[Value]], Value]) -> Value:
        """Applies a function of scalars to each lane."""
        lanes, element = operands[0].lanes, operands[0].element
        total = self._zero(element, lanes)
        for lane in range(lanes):
            scalars = [
                Value(self._define(f"vector.extract {v.name}[{lane}] : {v.element} from {v.type}"), v.element)
                for v in operands
            ]
            value = function(scalars)
            total = self._define(
                f"vector.insert {value.name}, {total} [{lane}] : {element} into {vector_type(element, lanes)}"
            )
        return Value(total, element, lanes)


def _scratch(nest: Nest, schedule: Schedule) -> dict[int, Operand]:
    """The buffers of partial results that blocks of a reduction need, by number: dense over one block of the parallel
    loops, the vector loop innermost."""
    extents = scratch_extents(nest, schedule)
    if not extents:
        return {}
    strides, step = [0] * len(nest.sizes), 1
    for loop in sorted(extents, key=lambda d: d != schedule.vector):
        strides[loop] = step
        step *= extents[loop]
    first = len(nest.operands)
    return {first + k: Operand(output.element, tuple(strides)) for k, output in enumerate(nest.outputs)}


def _selector(value: Value) -> str:
    return value.type if value.lanes == 1 else f"vector<{value.lanes}xi1>, {value.type}"


def _neutral_literal(meaning: str, element: str) -> str:
    if element in _INFINITY:
        bits = 8 * ELEMENT_BYTES[element]
        infinities = {"inf": _INFINITY[element], "-inf": _INFINITY[element] | 1 << (bits - 1)}
        return hex(infinities[meaning]) if meaning in infinities else meaning
    bits = int(element[1:])
    limits: Mapping[str, int] = {"min": -(1 << (bits - 1)), "max": (1 << (bits - 1)) - 1}
    return str(limits.get(meaning, meaning))

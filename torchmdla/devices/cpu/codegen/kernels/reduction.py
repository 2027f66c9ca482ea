"""Loops inside the register tile: a reduction with its accumulators in registers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.codegen.kernels.code import Count, Point, Value
from torchmdla.devices.cpu.codegen.kernels.instructions import INFINITY
from torchmdla.devices.cpu.codegen.kernels.tile import FIRST_CACHE, TileWriter
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, storage_type
from torchmdla.devices.cpu.ir.expressions import Expression, accumulator, reduced
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest, AnyOperand
from torchmdla.devices.cpu.schedule import NEUTRAL, Schedule, is_reorderable
from torchmdla.devices.cpu.schedule.blocking import Level
from torchmdla.devices.cpu.target.machine import Machine

_KINDS = {
    "arith.addf": "add",
    "arith.addi": "add",
    "arith.mulf": "mul",
    "arith.muli": "mul",
    **{f"arith.{name}": name for name in ("maximumf", "maxnumf", "minimumf", "maxsi", "minsi")},
    "arith.andi": "and",
    "arith.ori": "or",
    "arith.xori": "xor",
}

# What LLVM may assume of the lanes of an accumulator.
_FLAGS: Mapping[str, str] = {"arith.addf": "reassoc", "arith.mulf": "reassoc", "arith.maxnumf": "nnan"}

# The largest number of additions to one accumulator of a sum.
_MAX_SUM_LENGTH = 256

# LLVM's hint for a prefetch to the second-level cache.
_SECOND_CACHE = 2

# The bytes after which a stream will need other entries of the page table. A line of the table has the entries of eight
# pages, and a prefetch of one byte fetches it.
_PAGES_AHEAD = 16 << 12

# The attribute of a loop that LLVM must not unroll: in code for a whole row, LLVM moves all prefetches to one place.
_DO_NOT_UNROLL = " {loop_annotation = #llvm.loop_annotation<unroll = <disable = true>>}"

# Divisions of numbers that are known when the code is written, by the name of the op.
_DIVISIONS: Mapping[str, Callable[[int, int], int]] = {"divui": operator.floordiv, "ceildivui": lambda a, b: -(-a // b)}

# An accumulator: an output of the nest at a point.
_Key = tuple[int, Point]


class ReductionWriter(TileWriter):
    """Writer of reduction loops, which are partly unrolled.

    The remainder of a static extent is written without a loop. The remainder of a dynamic extent is a loop, or a tile
    with masks.
    """

    def __init__(self, nest: AnyNest, schedule: Schedule, machine: Machine) -> None:
        super().__init__(nest, schedule, machine)
        self._is_associative = is_reorderable(nest)
        # If the reduction has blocks: the names of whether this is the first and the last block.
        self._is_first = self._is_last = ""
        # The address of the part that the current tile prefetches, if it does.
        self._next_part = ""

    def _reduce(self) -> None:
        """Write the reduction loops with the outputs in registers, then store these or the epilogue's results."""
        across = self.schedule.vector in self.schedule.reduction
        keys = [(position, point) for point in self._ordered_points() for position in range(len(self.nest.outputs))]
        if across:
            values = [self._neutral(position) for position, _ in keys]
        else:
            values = (
                self._initialise_accumulators(keys) if self._is_first else [self._initial_value(*key) for key in keys]
            )
        self._next_part = self._next_part_address()
        values = self._write_reduction(0, keys, values)
        if across:
            parallel = frozenset(d for d, reduced in enumerate(self.nest.reduction) if not reduced)
            keys, values = self._combine_lanes(keys, values, parallel)

        def store_partial() -> None:
            for (position, point), value in zip(keys, values, strict=True):
                self._store(len(self.nest.operands) + position, point, value)

        self._choose(self._is_last, lambda: self._finish_reduction(keys, values), store_partial)

    def _choose(self, condition: str, then: Callable[[], object], otherwise: Callable[[], object]) -> None:
        """Write code for a condition, and other code where it does not hold. Without a name, the condition holds."""
        if not condition:
            then()
            return
        self._line(f"scf.if {condition} {{")
        with self._scope():
            then()
        self._line("} else {")
        with self._scope():
            otherwise()
        self._line("}")

    def _ordered_points(self) -> list[Point]:
        """Return the register tile's points, ordered so that each broadcast value is used before the next is read."""
        vector = self.schedule.vector
        inputs = [o for o in self.nest.inputs if vector >= 0 and o.strides[vector] == 0]
        outer = [d for d in range(len(self.nest.sizes)) if any(o.strides[d] for o in inputs)]
        return sorted(self._points(), key=lambda point: [point[d] for d in outer])

    def _initialise_accumulators(self, keys: Sequence[_Key]) -> list[Value]:
        """Return the initial accumulators of a block of the reduction. Later blocks continue from the scratch."""
        columns = []
        results = self._fresh()
        mark = len(self._lines)
        for block in ("first", "later"):
            with self._scope():
                if block == "first":
                    column = [self._initial_value(*key) for key in keys]
                else:
                    column = [self._load_at(len(self.nest.operands) + position, point) for position, point in keys]
                self._yield(column)
            self._line("} else {" if block == "first" else "}")
            columns.append(column)
        types = ", ".join(v.type for v in columns[0])
        self._lines.insert(mark, f"{results}:{len(keys)} = scf.if {self._is_first} -> ({types}) {{")
        return [Value(f"{results}#{k}", v.element, v.lanes) for k, v in enumerate(columns[0])]

    def _finish_reduction(self, keys: Sequence[_Key], values: Sequence[Value]) -> None:
        if self.nest.epilogue is None:
            first = len(self.nest.inputs)
            results = [(first + position, point, value) for (position, point), value in zip(keys, values, strict=True)]
            self._store_all(sorted(results, key=lambda result: result[1]))
            return
        for (position, point), value in zip(keys, values, strict=True):
            self._values[reduced(position, value.element), point] = value
        self._store_results(list(dict.fromkeys(point for _, point in keys)))

    def _write_reduction(self, depth: int, keys: Sequence[_Key], values: list[Value]) -> list[Value]:
        if depth == len(self.schedule.reduction):
            return self._accumulate(keys, values)
        loop = self.schedule.reduction[depth]
        tile, extent = self._tile[loop], self._extents[loop]
        step = tile * self.schedule.unroll[loop]
        if isinstance(extent, str):
            return self._write_dynamic_reduction(depth, extent, keys, values)
        rest = extent % step
        if extent - rest > step:
            values = self._write_partial_sums(loop, extent - rest, depth, keys, values)
        elif extent > rest:
            mark = len(self._lines)
            values = self._write_unrolled(loop, range(0, step, tile), depth, keys, values)
            if not depth:
                self._prefetch_part(loop, step, mark)
        if rest >= tile:
            values = self._write_unrolled(loop, range(extent - rest, extent - rest % tile, tile), depth, keys, values)
        if rest % tile:
            values = self._write_tile_remainder(loop, rest % tile, depth, keys, values)
        return values

    def _write_dynamic_reduction(
        self, depth: int, extent: str, keys: Sequence[_Key], values: list[Value]
    ) -> list[Value]:
        """Write a loop of ``extent`` iterations: whole steps, then single iterations or a tile with masks."""
        loop = self.schedule.reduction[depth]
        step = self._tile[loop] * self.schedule.unroll[loop]
        main = self._round_down(extent, step)
        values = self._write_partial_sums(loop, main, depth, keys, values)
        if loop == self.schedule.vector:
            return self._write_masked_tile(loop, main, extent, depth, keys, values)
        if step > 1:
            return self._write_carried_loop(loop, main, extent, range(1), depth, keys, values)
        return values

    def _write_masked_tile(
        self, loop: int, lower: str, upper: str, depth: int, keys: Sequence[_Key], values: Sequence[Value]
    ) -> list[Value]:
        """Write the iterations of a dynamic loop across lanes that are left after whole tiles, if there are any."""
        assert self.schedule.unroll[loop] == 1, "a dynamic loop across lanes is not unrolled"
        left, results = self._subtract(upper, lower), self._fresh()
        wanted = self._define(f"arith.cmpi sgt, {left}, {self._constant(0)} : i64")
        types = ", ".join(v.type for v in values)
        saved, self._lanes_left = self._lanes_left, left
        with self._block(f"{results}:{len(values)} = scf.if {wanted} -> ({types}) {{"):
            with self._scope():
                self._advance(loop, lower)
                self._yield(self._write_reduction(depth + 1, keys, list(values)))
            self._line("} else {")
            self._yield(values)
        self._lanes_left = saved
        return [Value(f"{results}#{k}", v.element, v.lanes) for k, v in enumerate(values)]

    def _write_tile_remainder(
        self, loop: int, rest: int, depth: int, keys: Sequence[_Key], values: Sequence[Value]
    ) -> list[Value]:
        """Write the last iterations of a loop across lanes, which update only some accumulators."""
        extent = self._extents[loop]
        assert isinstance(extent, int)
        active = [key[1][loop] < rest for key in keys]
        saved, self._tile[loop] = self._tile[loop], rest
        inner = self._write_unrolled(
            loop,
            range(extent - rest, extent, rest),
            depth,
            [key for key, keep in zip(keys, active, strict=True) if keep],
            [value for value, keep in zip(values, active, strict=True) if keep],
        )
        self._tile[loop] = saved
        supply = iter(inner)
        return [next(supply) if keep else value for value, keep in zip(values, active, strict=True)]

    def _write_unrolled(
        self, loop: int, steps: range, depth: int, keys: Sequence[_Key], values: list[Value]
    ) -> list[Value]:
        """Write iterations of a reduction loop one after the other, without a loop."""
        for step in steps:
            with self._scope():
                self._advance(loop, step)
                values = self._write_reduction(depth + 1, keys, values)
        return values

    def _write_partial_sums(
        self, loop: int, upper: Count, depth: int, keys: Sequence[_Key], values: Sequence[Value]
    ) -> list[Value]:
        """Write a reduction loop from 0 to ``upper``. Long sums are computed in parts that start from zero.

        The rounding error of a sum grows with the number of additions to one accumulator (Higham, Accuracy and
        Stability of Numerical Algorithms, 2nd edition, section 4.2). Each sum of a dynamic loop may be long.
        """
        zero, upper_bound = self._constant(0), self._number(upper)
        part = self._part_of_sum(loop, upper, depth)
        tile = self._tile[loop]
        steps = range(0, tile * self.schedule.unroll[loop], tile)
        if part is None:
            return self._write_carried_loop(loop, zero, upper_bound, steps, depth, keys, values)
        results, first = self._fresh(), self._fresh()
        sums = [Value(self._fresh(), v.element, v.lanes) for v in values]
        head = self._loop_head(f"scf.for {first} = {zero} to {upper_bound} step {self._number(part)}", sums, values)
        with self._scope(), self._block(f"{results}:{len(values)} = {head}"):
            last = self._define(
                f"arith.minsi {self._define(f'arith.addi {first}, {self._number(part)} : i64')}, {upper_bound} : i64"
            )
            starts = [self._broadcast(Value(self._literal(f"-0.0 : {v.element}"), v.element), v.lanes) for v in values]
            parts = self._write_carried_loop(loop, first, last, steps, depth, keys, starts)
            new = [
                self._emit(self._combiner(position), [total, part])
                for (position, _), total, part in zip(keys, sums, parts, strict=True)
            ]
            self._yield(new)
        return [Value(f"{results}#{k}", v.element, v.lanes) for k, v in enumerate(values)]

    def _part_of_sum(self, loop: int, upper: Count, depth: int) -> Count | None:
        """Return the number of iterations of ``loop`` for one accumulator, or None for all iterations."""
        names = {e.op for e in self.nest.values}
        if depth or not self._is_associative or names != {"arith.addf"} or self.nest.outputs[0].element == "f64":
            return None
        unroll, others = self.schedule.unroll[loop], self.schedule.reduction[1:]
        step, most = self._tile[loop] * unroll, _MAX_SUM_LENGTH // unroll
        inner = math.prod(-(-e // self._tile[d]) for d in others if isinstance(e := self._extents[d], int))
        dynamic = [d for d in others if isinstance(self._extents[d], str)]
        if dynamic:
            return self._dynamic_part(step, max(1, most // inner), dynamic)
        part = max(1, most // inner) * step
        return part if isinstance(upper, str) or upper >= 2 * part else None

    def _dynamic_part(self, step: int, most: int, inner: Sequence[int]) -> str:
        """Return a multiple of ``step``.

        The factor is ``most`` divided by the additions of the loops ``inner``, and at least 1.
        """
        factor = self._constant(most)
        minimum = self._constant(1)
        for loop in inner:
            additions = self._define(
                f"arith.ceildivsi {self._number(self._extents[loop])}, {self._constant(self._tile[loop])} : i64"
            )
            least = self._define(f"arith.maxsi {additions}, {minimum} : i64")
            factor = self._define(f"arith.divsi {factor}, {least} : i64")
        factor = self._define(f"arith.maxsi {factor}, {minimum} : i64")
        return self._define(f"arith.muli {factor}, {self._constant(step)} : i64")

    def _loop_head(self, head: str, carried: Sequence[Value], initial: Sequence[Value]) -> str:
        starts = ", ".join(f"{c.name} = {v.name}" for c, v in zip(carried, initial, strict=True))
        return f"{head} iter_args({starts}) -> ({', '.join(v.type for v in initial)}) : i64 {{"

    def _yield(self, values: Sequence[Value]) -> None:
        self._line(f"scf.yield {', '.join(v.name for v in values)} : {', '.join(v.type for v in values)}")

    def _write_carried_loop(
        self,
        loop: int,
        lower: str,
        upper: str,
        steps: range,
        depth: int,
        keys: Sequence[_Key],
        values: Sequence[Value],
    ) -> list[Value]:
        results, index = self._fresh(), self._fresh()
        carried = [Value(self._fresh(), v.element, v.lanes) for v in values]
        head = self._loop_head(
            f"scf.for {index} = {lower} to {upper} step {self._constant(len(steps) * steps.step)}", carried, values
        )
        with self._scope(), self._block(f"{results}:{len(values)} = {head}"):
            self._advance(loop, index)
            mark = len(self._lines)
            new = self._write_unrolled(loop, steps, depth, keys, carried)
            self._prefetch_part(loop, len(steps) * steps.step, mark)
            self._yield(new)
        if self.schedule.ahead or (self.schedule.prefetch is not None and self.schedule.prefetch.distance):
            self._lines[-1] += _DO_NOT_UNROLL
        return [Value(f"{results}#{k}", v.element, v.lanes) for k, v in enumerate(values)]

    def _next_part_address(self) -> str:
        """Return the address of the current tile's part of the next block, or an empty name without a prefetch."""
        prefetch = self.schedule.prefetch
        if prefetch is None:
            return ""
        tile, levels = self._constant(0), self.schedule.levels[prefetch.depth + 1 :]
        for depth, level in enumerate(levels, 1):
            index = self._tile_number(level)
            index = self._define(
                f"arith.muli {index}, {self._number(self._count_register_tiles(levels[depth:]))} : i64"
            )
            tile = self._define(f"arith.addi {tile}, {index} : i64")
        size = self._number(self._share(prefetch.block, "divui"))
        part = self._define(f"arith.muli {tile}, {size} : i64")
        distance = self._define(f"arith.addi {part}, {self._constant(prefetch.distance or prefetch.block)} : i64")
        start = self._operand_at(prefetch.operand, 0)
        if prefetch.distance:
            self._prefetch(self._offset(start, _PAGES_AHEAD, "i8"), _SECOND_CACHE)
        return self._offset(start, distance, "i8")

    def _share(self, size: int, division: str) -> Count:
        """Return the number of bytes that each tile prefetches if the tiles share ``size`` bytes.

        It is 0 at run time if there are too few tiles.
        """
        prefetch = self.schedule.prefetch
        assert prefetch is not None
        tiles = self._count_register_tiles(self.schedule.levels[prefetch.depth + 1 :])
        if isinstance(tiles, int):
            return _DIVISIONS[division](size, prefetch.parts)
        fewest, none = self._preamble_constant(prefetch.parts), self._preamble_constant(0)
        divisor = self._define_in_preamble(f"arith.maxui {tiles}, {fewest} : i64")
        share = self._define_in_preamble(f"arith.{division} {self._preamble_constant(size)}, {divisor} : i64")
        suffices = self._define_in_preamble(f"arith.cmpi uge, {tiles}, {fewest} : i64")
        return self._define_in_preamble(f"arith.select {suffices}, {share}, {none} : i64")

    def _tile_number(self, level: Level) -> str:
        """Return the number of the current block of a level. Blocks of even rows may begin earlier than full blocks."""
        index = self._induction[level.loop]
        if isinstance(self.nest.sizes[level.loop], Size):
            index = self._define(f"arith.addi {index}, {self._constant(level.step - 1)} : i64")
        return self._define(f"arith.divui {index}, {self._constant(level.step)} : i64")

    def _count_register_tiles(self, levels: Sequence[Level]) -> Count:
        counts = [self._blocks(self.nest.sizes[level.loop], level.step) for level in levels]
        known, names = math.prod(c for c in counts if isinstance(c, int)), [c for c in counts if isinstance(c, str)]
        return self._product(known, names) if names else known

    def _prefetch_part(self, loop: int, iterations: int, mark: int) -> None:
        """Prefetch the share of a part that corresponds to the share of ``iterations`` of ``loop`` in the tile.

        Only innermost iterations prefetch: a loop must not begin after the line ``mark``.
        """
        prefetch = self.schedule.prefetch
        if prefetch is None or not self._next_part or any("scf.for" in line for line in self._lines[mark:]):
            return
        operand = self.nest.operands[prefetch.operand]
        walk = {d: (self._stride_in_bytes(operand, d), self.nest.sizes[d]) for d in self.schedule.reduction}
        walked = max((stride * size for stride, size in walk.values() if stride and isinstance(size, int)), default=1)
        # The block may consist of several adjacent regions, each of the size that the reduction walks.
        shared = {d: -(-stride * prefetch.block // walked) for d, (stride, _) in walk.items()}
        place = self._next_part
        for d in (d for d in self.schedule.reduction if d in self._induction and shared[d]):
            distance = self._number(self._share(shared[d], "ceildivui"))
            moved = self._define(f"arith.muli {self._induction[d]}, {distance} : i64")
            place = self._offset(place, moved, "i8")
        # The number of lines if the fewest tiles share a block.
        for line in range(0, iterations * -(-shared[loop] // prefetch.parts), self.machine.line):
            self._prefetch(self._offset(place, line, "i8"), FIRST_CACHE if prefetch.distance else _SECOND_CACHE)

    def _stride_in_bytes(self, operand: AnyOperand, loop: int) -> int:
        stride = operand.strides[loop]
        assert isinstance(stride, int), "prefetched data has one layout at all sizes"
        return stride * ELEMENT_BYTES[storage_type(operand.element)]

    def _accumulate(self, keys: Sequence[_Key], values: Sequence[Value]) -> list[Value]:
        with self._scope():
            for (position, point), value in zip(keys, values, strict=True):
                self._values[accumulator(position, value.element), point] = value
            points = [point for _, point in keys]
            self._prefetch_tile(points)
            self._check(points)
            results = []
            for (position, point), old in zip(keys, values, strict=True):
                new = self._value(self.nest.values[position], point)
                results.append(self._select_active(point, self._broadcast(new, old.lanes), old))
        return results

    def _select_active(self, point: Point, new: Value, old: Value) -> Value:
        """Return ``new`` in the lanes inside the loop, and ``old`` elsewhere.

        Lanes across a parallel loop do not need a mask.
        """
        active = self._active_lanes(point)
        if active == self.schedule.lanes or self.schedule.vector not in self.schedule.reduction:
            return new
        mask = self._mask(active, self.schedule.lanes)
        text = f"arith.select {mask}, {new.name}, {old.name} : vector<{old.lanes}xi1>, {old.type}"
        return Value(self._define(text), old.element, old.lanes)

    def _combine_lanes(
        self, keys: Sequence[_Key], values: Sequence[Value], loops: frozenset[int]
    ) -> tuple[list[_Key], list[Value]]:
        """Reduce the lanes of the accumulators, combine those of one element, and add the old output."""
        groups: dict[tuple[int, Point], list[Value]] = {}
        for (position, point), value in zip(keys, values, strict=True):
            groups.setdefault((position, self._restrict(point, loops)), []).append(value)
        combined = []
        for (position, point), members in groups.items():
            combiner = self._combiner(position)
            total = members[0]
            for member in members[1:]:
                total = self._apply(combiner, [total, member])
            kind, flag = _KINDS[combiner.op], _FLAGS.get(combiner.op, "")
            fast = f" fastmath<{flag}>" if flag else ""
            text = f"vector.reduction <{kind}>, {total.name}{fast} : {total.type} into {total.element}"
            scalar = Value(self._define(text), total.element)
            old = self._initial_value(position, point)
            combined.append(self._apply(combiner, [old, scalar]))
        return list(groups), combined

    def _initial_value(self, position: int, point: Point) -> Value:
        if self.nest.initial is None:
            return self._load_at(len(self.nest.inputs) + position, point)
        start = self._apply(self.nest.initial, [])
        across = self.schedule.vector >= 0 and self.schedule.vector not in self.schedule.reduction
        return self._broadcast(start, self.schedule.lanes if across else 1)

    def _combiner(self, position: int) -> Expression:
        assert self._is_associative, "a reduction across lanes needs an associative op"
        return self.nest.values[position]

    def _neutral(self, position: int) -> Value:
        element = self.nest.outputs[position].element
        text = _neutral_literal(NEUTRAL[self._combiner(position).op], element)
        return self._broadcast(Value(self._literal(f"{text} : {element}"), element), self.schedule.lanes)


def _neutral_literal(meaning: str, element: str) -> str:
    if element in INFINITY:
        bits = 8 * ELEMENT_BYTES[element]
        infinities = {"inf": INFINITY[element], "-inf": INFINITY[element] | 1 << (bits - 1)}
        return hex(infinities[meaning]) if meaning in infinities else meaning
    bits = int(element[1:])
    limits: Mapping[str, int] = {"min": -(1 << (bits - 1)), "max": (1 << (bits - 1)) - 1}
    return str(limits.get(meaning, meaning))

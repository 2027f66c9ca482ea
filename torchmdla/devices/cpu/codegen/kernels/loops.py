"""Loops around the register tile: a kernel's range, its blocks, and the remainders of dynamic extents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torchmdla.devices.cpu.codegen.kernels.code import Count
from torchmdla.devices.cpu.codegen.kernels.matrix import MatrixWriter
from torchmdla.devices.cpu.schedule.blocking import Level


class LoopWriter(MatrixWriter):
    """Writer of a whole kernel."""

    def write(self) -> list[str]:
        """Return the function's lines."""
        self._load_operands()
        self._extents = [self._count(size) for size in self.nest.sizes]
        self._write_range()
        self._release()
        self._line("llvm.return")
        ahead = [f"{name} = {text}" for text, name in self._preamble.items()]
        return self._lines[: self._loaded] + ahead + self._lines[self._loaded :]

    def _write_range(self) -> None:
        """Write the loop over ``[begin, end)``: the blocks of the ranged levels in row-major order."""
        with self._loop("%begin", "%end", self._constant(1)) as index:
            positions = []
            for depth in reversed(range(self.schedule.ranged)):
                level = self.schedule.levels[depth]
                count = self._number(self._blocks(self.nest.sizes[level.loop], level.step))
                if depth:
                    positions.append(self._define(f"arith.remui {index}, {count} : i64"))
                    index = self._define(f"arith.divui {index}, {count} : i64")
            self._write_range_levels(0, [index, *reversed(positions)])

    def _write_range_levels(self, depth: int, positions: Sequence[str]) -> None:
        """Write the ranged levels from ``depth`` on, at one position of each, and the code inside them."""
        if depth == self.schedule.ranged:
            self._write_levels(depth)
            return
        self._hoist(depth)
        level = self.schedule.levels[depth]
        extent = self._extents[level.loop]
        if isinstance(extent, str):
            self._write_dynamic_block(
                depth, positions[depth], extent, lambda: self._write_range_levels(depth + 1, positions)
            )
            return
        index = self._define(f"arith.muli {positions[depth]}, {self._constant(level.step)} : i64")
        full, rest = divmod(extent, level.step)
        if not full or not rest:
            with self._enter(level.loop, index, level.step if full else rest):
                self._write_range_levels(depth + 1, positions)
            return
        inside = self._define(f"arith.cmpi slt, {positions[depth]}, {self._constant(full)} : i64")
        self._line(f"scf.if {inside} {{")
        with self._enter(level.loop, index, level.step):
            self._write_range_levels(depth + 1, positions)
        self._line("} else {")
        with self._enter(level.loop, index, rest):
            self._write_range_levels(depth + 1, positions)
        self._line("}")

    def _write_levels(self, depth: int) -> None:
        if depth == len(self.schedule.levels):
            self._write_register_tile()
            return
        self._hoist(depth)
        level = self.schedule.levels[depth]
        extent = self._extents[level.loop]
        if isinstance(extent, str):
            self._write_dynamic_level(depth, extent)
            return
        rest = extent % level.step
        if extent - rest > level.step:
            bounds = self._constant(0), self._constant(extent - rest), self._constant(level.step)
            with self._loop(*bounds) as index, self._enter(level.loop, index, level.step):
                self._write_levels(depth + 1)
        elif extent > rest:
            with self._enter(level.loop, 0, level.step):
                self._write_levels(depth + 1)
        if rest:
            with self._enter(level.loop, extent - rest, rest):
                self._write_levels(depth + 1)

    def _write_register_tile(self) -> None:
        if self.nest.accumulates:
            self._hoist(len(self.schedule.levels))
            self._reduce()
            return
        points = self._points()
        self._check(points)
        self._store_results(points)

    # Levels of a dynamic extent. An outer block's extent is limited at run time to the iterations left. The register
    # tile has code for its full extent, and for each part of the remainder. A tile of few rows waits for its chains of
    # additions. The tiles of a reduction are therefore of nearly equal size, with code for every number of rows.

    def _write_dynamic_level(self, depth: int, extent: str) -> None:
        """Write the blocks of a level in a loop over ``extent`` iterations."""
        level, zero = self.schedule.levels[depth], self._constant(0)
        if not self._is_tile(depth):
            with self._loop(zero, extent, self._constant(level.step)) as index:
                block = self._minimum(level.step, self._subtract(extent, index))
                with self._enter(level.loop, index, block):
                    self._write_levels(depth + 1)
            return
        if self._has_even_rows(depth):
            with self._loop(zero, self._count_tiles(extent, level.step), self._constant(1)) as number:
                self._write_even_rows(level, number, extent, lambda: self._write_levels(depth + 1))
            return
        main = self._round_down(extent, level.step)
        with self._loop(zero, main, self._constant(level.step)) as index, self._enter(level.loop, index, level.step):
            self._write_levels(depth + 1)
        self._write_remainder(level, main, extent, lambda: self._write_levels(depth + 1))

    def _write_dynamic_block(self, depth: int, number: str, extent: str, inside: Callable[[], None]) -> None:
        """Write block ``number`` of a level in a loop over ``extent`` iterations."""
        level = self.schedule.levels[depth]
        if self._has_even_rows(depth):
            self._write_even_rows(level, number, extent, inside)
            return
        index = self._define(f"arith.muli {number}, {self._constant(level.step)} : i64")
        left = self._subtract(extent, index)
        if not self._is_tile(depth):
            with self._enter(level.loop, index, self._minimum(level.step, left)):
                inside()
            return
        if level.step == 1:
            with self._enter(level.loop, index, 1):
                inside()
            return
        whole = self._define(f"arith.cmpi sge, {left}, {self._constant(level.step)} : i64")
        with self._block(f"scf.if {whole} {{"):
            with self._enter(level.loop, index, level.step):
                inside()
            self._line("} else {")
            with self._scope():
                self._write_remainder(level, index, extent, inside)

    def _is_tile(self, depth: int) -> bool:
        """Return whether the level's blocks are those of the register tile."""
        loop = self.schedule.levels[depth].loop
        later = self.schedule.levels[depth + 1 :]
        return not self.nest.reduction[loop] and all(level.loop != loop for level in later)

    def _has_even_rows(self, depth: int) -> bool:
        """Return whether the level's blocks are those of the register tile and should have nearly equal sizes."""
        level = self.schedule.levels[depth]
        is_rows = level.step > 1 and level.loop != self.schedule.vector and self.schedule.matrix is None
        return is_rows and self.nest.accumulates and self._is_tile(depth)

    def _write_even_rows(self, level: Level, number: str, extent: str, inside: Callable[[], None]) -> None:
        """Write tile ``number`` of the fewest tiles that have at most ``step`` rows each.

        If the number of tiles does not divide ``extent``, the first tiles have one row more than the others.
        """
        tiles = self._count_tiles(extent, level.step)
        rows, more = (self._define(f"arith.{op} {extent}, {tiles} : i64") for op in ("divui", "remui"))
        before = self._define(f"arith.minsi {number}, {more} : i64")
        index = self._define(f"arith.addi {self._define(f'arith.muli {number}, {rows} : i64')}, {before} : i64")
        is_larger = self._define(f"arith.cmpi slt, {number}, {more} : i64")
        rows = self._define(f"arith.addi {rows}, {self._define(f'arith.extui {is_larger} : i1 to i64')} : i64")
        for size in range(1, level.step + 1):
            wanted = self._define(f"arith.cmpi eq, {rows}, {self._constant(size)} : i64")
            with self._block(f"scf.if {wanted} {{"), self._enter(level.loop, index, size):
                inside()

    def _count_tiles(self, extent: str, step: int) -> str:
        wide = self._define(f"arith.addi {extent}, {self._constant(step - 1)} : i64")
        return self._define(f"arith.divui {wide}, {self._constant(step)} : i64")

    def _write_remainder(self, level: Level, lower: str, upper: str, inside: Callable[[], None]) -> None:
        """Write the remainder after whole register tiles, from ``lower`` to ``upper``.

        In the vector loop, these are single vectors, then one with a mask. In the rows of a matrix unit's tiles, these
        are single tiles. In other loops, these are blocks whose sizes are powers of two.
        """
        loop, lanes, tile = level.loop, self.schedule.lanes, self.schedule.matrix
        if tile is not None and loop == tile.rows:
            with self._loop(lower, upper, self._constant(tile.height)) as index, self._enter(loop, index, tile.height):
                self._rows_left = str(self._subtract(upper, index))
                inside()
                self._rows_left = ""
            return
        if loop == self.schedule.vector:
            if level.step > lanes and not self.nest.accumulates:
                whole = self._define(
                    f"arith.addi {lower}, {self._round_down(str(self._subtract(upper, lower)), lanes)} : i64"
                )
                with self._loop(lower, whole, self._constant(lanes)) as index, self._enter(loop, index, lanes):
                    inside()
                lower = whole
            with self._loop(lower, upper, self._constant(lanes)) as index, self._enter(loop, index, lanes):
                self._lanes_left = self._subtract(upper, index)
                inside()
                self._lanes_left = ""
            return
        rest = self._subtract(upper, lower) if level.step > 1 else ""
        for size in (1 << k for k in reversed(range((level.step - 1).bit_length()))):
            taken = self._define(f"arith.andi {rest}, {self._constant(-2 * size)} : i64")
            index = self._define(f"arith.addi {lower}, {taken} : i64")
            bit = self._define(f"arith.andi {rest}, {self._constant(size)} : i64")
            wanted = self._define(f"arith.cmpi ne, {bit}, {self._constant(0)} : i64")
            with self._block(f"scf.if {wanted} {{"), self._enter(loop, index, size):
                inside()

    @contextmanager
    def _enter(self, loop: int, index: Count, extent: Count) -> Iterator[None]:
        """Enter a block of ``extent`` iterations of ``loop``, at iteration ``index`` of the enclosing block."""
        with self._scope():
            saved = self._extents[loop], self._is_first, self._is_last
            self._extents[loop] = extent
            self._advance(loop, index, scratch=self._is_first != "")
            if self.nest.reduction[loop]:
                self._mark_block(loop, extent)
            yield
            self._extents[loop], self._is_first, self._is_last = saved

    def _mark_block(self, loop: int, extent: Count) -> None:
        """Compute whether this block of a reduction is the first, and whether it is the last."""
        last = self._subtract(self.nest.sizes[loop], extent)
        first = self._define(f"arith.cmpi eq, {self._induction[loop]}, {self._constant(0)} : i64")
        last = self._define(f"arith.cmpi eq, {self._induction[loop]}, {last} : i64")
        if self._is_first:
            first = self._define(f"arith.andi {first}, {self._is_first} : i1")
            last = self._define(f"arith.andi {last}, {self._is_last} : i1")
        self._is_first, self._is_last = first, last

    def _hoist(self, depth: int) -> None:
        """Compute the values that depend only on the open loops, before the next loop opens.

        The values of an epilogue are computed at the end of the reduction: they would only occupy registers during it.
        """
        pending = {level.loop for level in self.schedule.levels[depth:]}
        opened = frozenset(d for d, reduced in enumerate(self.nest.reduction) if not reduced and d not in pending)
        for expression in (*self.nest.loads, *self.nest.body):
            loops = self.varying[expression]
            if loops <= opened and expression.op != "assert":
                for point in self._points(loops):
                    self._value(expression, point)

"""The loops around the register tile: a kernel's range, blocks, and what dynamic extents leave of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torchmdla.devices.cpu.code.kernels.code import Count
from torchmdla.devices.cpu.code.kernels.reduction import ReductionWriter
from torchmdla.devices.cpu.schedule.blocking import Level


class LoopWriter(ReductionWriter):
    """Writes a whole kernel."""

    def write(self) -> list[str]:
        """The function's lines."""
        self._load_operands()
        self._extents = [self._count(size) for size in self.nest.sizes]
        self._range()
        self._line("llvm.return")
        ahead = [f"{name} = {text}" for text, name in self._ahead.items()]
        return self._lines[: self._loaded] + ahead + self._lines[self._loaded :]

    def _range(self) -> None:
        """The loop over ``[begin, end)``, the blocks of the ranged levels in row-major order."""
        with self._loop("%begin", "%end", self._constant(1)) as index:
            positions = []
            for depth in reversed(range(self.schedule.ranged)):
                level = self.schedule.levels[depth]
                count = self._number(self._blocks(self.nest.sizes[level.loop], level.step))
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
        extent = self._extents[level.loop]
        if isinstance(extent, str):
            self._dynamic_block(depth, positions[depth], extent, lambda: self._ranged(depth + 1, positions))
            return
        index = self._define(f"arith.muli {positions[depth]}, {self._constant(level.step)} : i64")
        full, rest = divmod(extent, level.step)
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
        if isinstance(extent, str):
            self._dynamic_level(depth, extent)
            return
        rest = extent % level.step
        if extent - rest > level.step:
            bounds = self._constant(0), self._constant(extent - rest), self._constant(level.step)
            with self._loop(*bounds) as index, self._enter(level.loop, index, level.step):
                self._descend(depth + 1)
        elif extent > rest:
            with self._enter(level.loop, 0, level.step):
                self._descend(depth + 1)
        if rest:
            with self._enter(level.loop, extent - rest, rest):
                self._descend(depth + 1)

    def _innermost(self) -> None:
        if self.nest.accumulates:
            self._hoist(len(self.schedule.levels))
            self._reduce()
            return
        points = self._points()
        self._check(points)
        self._finish(points)

    # Levels of a dynamic extent. Blocks around others take what is left as it comes; the register tile has code for its
    # own extent, and for each part of what is left. A tile of few rows waits for its chains of additions, so the tiles
    # of a reduction are even: there is code for every number of rows.

    def _dynamic_level(self, depth: int, extent: str) -> None:
        """The blocks of a level in a loop over ``extent`` iterations."""
        level, zero = self.schedule.levels[depth], self._constant(0)
        if not self._is_tile(depth):
            with self._loop(zero, extent, self._constant(level.step)) as index:
                block = self._at_most(level.step, self._minus(extent, index))
                with self._enter(level.loop, index, block):
                    self._descend(depth + 1)
            return
        if self._has_even_rows(depth):
            with self._loop(zero, self._tiles_in(extent, level.step), self._constant(1)) as number:
                self._even_rows(level, number, extent, lambda: self._descend(depth + 1))
            return
        main = self._whole(extent, level.step)
        with self._loop(zero, main, self._constant(level.step)) as index, self._enter(level.loop, index, level.step):
            self._descend(depth + 1)
        self._rest_of_level(level, main, extent, lambda: self._descend(depth + 1))

    def _dynamic_block(self, depth: int, number: str, extent: str, inside: Callable[[], None]) -> None:
        """Block ``number`` of a level in a loop over ``extent``."""
        level = self.schedule.levels[depth]
        if self._has_even_rows(depth):
            self._even_rows(level, number, extent, inside)
            return
        index = self._define(f"arith.muli {number}, {self._constant(level.step)} : i64")
        left = self._minus(extent, index)
        if not self._is_tile(depth):
            with self._enter(level.loop, index, self._at_most(level.step, left)):
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
                self._rest_of_level(level, index, extent, inside)

    def _is_tile(self, depth: int) -> bool:
        """Whether the level's blocks are those of the register tile."""
        loop = self.schedule.levels[depth].loop
        later = self.schedule.levels[depth + 1 :]
        return not self.nest.reduction[loop] and all(level.loop != loop for level in later)

    def _has_even_rows(self, depth: int) -> bool:
        """Whether the level's blocks are those of the register tile, and are to be of nearly one size."""
        level = self.schedule.levels[depth]
        is_rows = level.step > 1 and level.loop != self.schedule.vector
        return is_rows and self.nest.accumulates and self._is_tile(depth)

    def _even_rows(self, level: Level, number: str, extent: str, inside: Callable[[], None]) -> None:
        """Tile ``number`` of as few as have at most ``step`` rows each. The first ones have one row more than the
        others where their number does not divide ``extent``."""
        tiles = self._tiles_in(extent, level.step)
        rows, more = (self._define(f"arith.{op} {extent}, {tiles} : i64") for op in ("divui", "remui"))
        before = self._define(f"arith.minsi {number}, {more} : i64")
        index = self._define(f"arith.addi {self._define(f'arith.muli {number}, {rows} : i64')}, {before} : i64")
        is_larger = self._define(f"arith.cmpi slt, {number}, {more} : i64")
        rows = self._define(f"arith.addi {rows}, {self._define(f'arith.extui {is_larger} : i1 to i64')} : i64")
        for size in range(1, level.step + 1):
            wanted = self._define(f"arith.cmpi eq, {rows}, {self._constant(size)} : i64")
            with self._block(f"scf.if {wanted} {{"), self._enter(level.loop, index, size):
                inside()

    def _tiles_in(self, extent: str, step: int) -> str:
        """How many tiles of at most ``step`` iterations there are in a block."""
        wide = self._define(f"arith.addi {extent}, {self._constant(step - 1)} : i64")
        return self._define(f"arith.divui {wide}, {self._constant(step)} : i64")

    def _rest_of_level(self, level: Level, lower: str, upper: str, inside: Callable[[], None]) -> None:
        """What whole register tiles leave, from ``lower`` to ``upper``: single vectors, then one with a mask, or blocks
        of a power of two."""
        loop, lanes = level.loop, self.schedule.lanes
        if loop == self.schedule.vector:
            if level.step > lanes and not self.nest.accumulates:
                whole = self._define(f"arith.addi {lower}, {self._whole(str(self._minus(upper, lower)), lanes)} : i64")
                with self._loop(lower, whole, self._constant(lanes)) as index, self._enter(loop, index, lanes):
                    inside()
                lower = whole
            with self._loop(lower, upper, self._constant(lanes)) as index, self._enter(loop, index, lanes):
                self._lanes_left = self._minus(upper, index)
                inside()
                self._lanes_left = ""
            return
        rest = self._minus(upper, lower) if level.step > 1 else ""
        for size in _powers_below(level.step):
            taken = self._define(f"arith.andi {rest}, {self._constant(-2 * size)} : i64")
            index = self._define(f"arith.addi {lower}, {taken} : i64")
            bit = self._define(f"arith.andi {rest}, {self._constant(size)} : i64")
            wanted = self._define(f"arith.cmpi ne, {bit}, {self._constant(0)} : i64")
            with self._block(f"scf.if {wanted} {{"), self._enter(loop, index, size):
                inside()

    @contextmanager
    def _enter(self, loop: int, index: Count, extent: Count) -> Iterator[None]:
        """A block of ``extent`` iterations of ``loop``, from ``index`` iterations after the block around it."""
        with self._scope():
            saved = self._extents[loop], self._is_first, self._is_last
            self._extents[loop] = extent
            self._advance(loop, index, scratch=self._is_first != "")
            if self.nest.reduction[loop]:
                self._mark_block(loop, extent)
            yield
            self._extents[loop], self._is_first, self._is_last = saved

    def _mark_block(self, loop: int, extent: Count) -> None:
        """Finds whether this block of a reduction is the first and the last."""
        last = self._minus(self.nest.sizes[loop], extent)
        first = self._define(f"arith.cmpi eq, {self._induction[loop]}, {self._constant(0)} : i64")
        last = self._define(f"arith.cmpi eq, {self._induction[loop]}, {last} : i64")
        if self._is_first:
            first = self._define(f"arith.andi {first}, {self._is_first} : i1")
            last = self._define(f"arith.andi {last}, {self._is_last} : i1")
        self._is_first, self._is_last = first, last

    def _hoist(self, depth: int) -> None:
        """Computes what the loops opened so far determine, before the next one opens. An epilogue's values are left
        to the end of the reduction: they would only hold registers during it."""
        pending = {level.loop for level in self.schedule.levels[depth:]}
        opened = frozenset(d for d, reduced in enumerate(self.nest.reduction) if not reduced and d not in pending)
        for expression in (*self.nest.loads, *self.nest.body):
            loops = self.varying[expression]
            if loops <= opened and expression.op != "assert":
                for point in self._points(loops):
                    self._value(expression, point)


def _powers_below(limit: int) -> list[int]:
    """Powers of two below ``limit``, largest first."""
    return [1 << k for k in reversed(range((limit - 1).bit_length()))]

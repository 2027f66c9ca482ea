"""Instructions on tile registers of a matrix unit, and a software model of them for processors without one.

The model does what Intel's manual specifies for AMX (Intel 64 and IA-32 Architectures Software Developer's Manual,
volume 2: ``TILELOADD``, ``TDPBF16PS``, ``TDPBUSD`` and others). Its registers are in the kernel's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from torchmdla.devices.cpu.codegen.kernels.code import Count, Value
from torchmdla.devices.cpu.codegen.kernels.reduction import ReductionWriter
from torchmdla.devices.cpu.ir.element_types import typed_constant
from torchmdla.devices.cpu.ir.expressions import operation
from torchmdla.devices.cpu.target.matrix_units import WORD_BYTES

# The bytes of AMX's configuration, and the places in it: the palette, then for each register the bytes per row (two
# bytes) and the rows.
_CONFIGURATION = 64
_PALETTE, _ROW_BYTES, _ROWS = 0, 16, 48

# The words of a row, and the bytes of a register.
_WORDS = 16
_TILE_BYTES = 1024

# LLVM's names of the products, by the type of elements and by whether the second factor is the unsigned one.
_PRODUCTS: Mapping[tuple[str, bool], str] = {
    ("bf16", False): "llvm.x86.tdpbf16ps",
    ("bf16", True): "llvm.x86.tdpbf16ps",
    ("f16", False): "llvm.x86.tdpfp16ps",
    ("f16", True): "llvm.x86.tdpfp16ps",
    ("i8", False): "llvm.x86.tdpbusd",
    ("i8", True): "llvm.x86.tdpbsud",
}

# The power of two by which the model scales sums to find those below the least normal number.
_SCALE = 2.0**64


@dataclass(frozen=True)
class Shape:
    """Shape of a tile register: its rows, which may be a number that depends on symbols, and the words of each."""

    rows: Count
    words: int


def configuration(shapes: Mapping[int, Shape]) -> list[int]:
    """Return the bytes that configure AMX's registers with the given shapes, without rows that depend on symbols."""
    data = [0] * _CONFIGURATION
    data[_PALETTE] = 1
    for register, shape in shapes.items():
        data[_ROW_BYTES + 2 * register] = shape.words * WORD_BYTES
        data[_ROWS + register] = shape.rows if isinstance(shape.rows, int) else 0
    return data


class TileInstructionWriter(ReductionWriter):
    """Writer of instructions on tile registers. Each is an instruction of AMX, or the loops of the model."""

    _shapes: Mapping[int, Shape]

    @property
    def _is_modelled(self) -> bool:
        return self.machine.matrix is not None and self.machine.matrix.is_modelled

    def _configure_tiles(self, shapes: Mapping[int, Shape]) -> None:
        """Configure the registers with the given shapes. This is before all loops of a kernel."""
        self._shapes = shapes
        if self._is_modelled:
            self._registers_in_memory = self._allocate((max(shapes) + 1) * _TILE_BYTES, "i8")
            return
        kind = f"vector<{_CONFIGURATION}xi8>"
        place, data = self._allocate(1, kind), self._literal(f"dense<{configuration(shapes)}> : {kind}")
        self._line(f"llvm.store {data}, {place} {{alignment = 64 : i64}} : {kind}, !llvm.ptr")
        for register, shape in shapes.items():
            if isinstance(shape.rows, str):
                rows = self._define(f"arith.trunci {shape.rows} : i64 to i8")
                self._store_memory(rows, self._offset(place, _ROWS + register, "i8"), "i8", 1)
        self._call_tile("llvm.x86.ldtilecfg", (place, "!llvm.ptr"))

    def _release_tiles(self) -> None:
        """Release the registers, so that the system does not save them when threads switch."""
        if not self._is_modelled:
            self._call_tile("llvm.x86.tilerelease")

    def _clear_tile(self, register: int) -> None:
        if not self._is_modelled:
            self._call_tile("llvm.x86.tilezero", self._register(register))
            return
        with self._rows_of(register) as row:
            zero = Value(self._zero("i32", _WORDS), "i32", _WORDS)
            self._store_words(zero, self._row_in_memory(register, row))

    def _load_tile(self, register: int, pointer: str, stride: int) -> None:
        """Load the rows of a register, which are ``stride`` bytes apart."""
        if not self._is_modelled:
            place = (pointer, "!llvm.ptr"), (self._constant(stride), "i64")
            self._call_tile("llvm.x86.tileloadd64", self._register(register), *place)
            return
        with self._rows_of(register) as row:
            value = self._load(self._row_at(pointer, row, stride), "i32", _WORDS, self._shapes[register].words)
            self._store_words(value, self._row_in_memory(register, row))

    def _store_tile(self, register: int, pointer: str, stride: int) -> None:
        """Store the rows of a register, ``stride`` bytes apart."""
        if not self._is_modelled:
            place = (pointer, "!llvm.ptr"), (self._constant(stride), "i64")
            self._call_tile("llvm.x86.tilestored64", self._register(register), *place)
            return
        with self._rows_of(register) as row:
            value, words = self._load_words(register, row), self._shapes[register].words
            self._store_words(value, self._row_at(pointer, row, stride), words)

    def _multiply_tiles(self, element: str, sums: int, left: int, right: int, *, is_swapped: bool) -> None:
        """Add the product of two registers to a third one. ``is_swapped``: the second factor is the unsigned one."""
        if not self._is_modelled:
            self._call_tile(_PRODUCTS[element, is_swapped], *map(self._register, (sums, left, right)))
            return
        total, first, second = (self._shapes[register] for register in (sums, left, right))
        is_defined = first.rows == total.rows and first.words == second.rows and second.words == total.words
        assert is_defined, "the processor refuses factors of other shapes"
        with self._rows_of(sums) as row:
            old = self._load_words(sums, row)
            if element == "i8":
                result = self._sum_fours(old, row, left, right, is_swapped)
            else:
                result = self._sum_pairs(old, row, left, right, element)
            self._store_words(result, self._row_in_memory(sums, row))

    # Instructions.

    def _allocate(self, count: int, kind: str) -> str:
        number = self._constant(count)
        return self._define(f"llvm.alloca {number} x {kind} {{alignment = 64 : i64}} : (i64) -> !llvm.ptr")

    def _register(self, number: int) -> tuple[str, str]:
        return self._literal(f"{number} : i8"), "i8"

    def _call_tile(self, name: str, *operands: tuple[str, str]) -> None:
        names, types = ", ".join(name for name, _ in operands), ", ".join(kind for _, kind in operands)
        self._line(f'llvm.call_intrinsic "{name}"({names}) : ({types}) -> ()')

    # Model.

    @contextmanager
    def _rows_of(self, register: int) -> Iterator[str]:
        with self._loop(self._constant(0), self._number(self._shapes[register].rows), self._constant(1)) as row:
            yield row

    def _row_at(self, pointer: str, row: str, stride: int) -> str:
        distance = self._define(f"arith.muli {row}, {self._constant(stride)} : i64")
        return self._offset(pointer, distance, "i8")

    def _row_in_memory(self, register: int, row: str) -> str:
        first = self._offset(self._registers_in_memory, register * _TILE_BYTES, "i8")
        return self._row_at(first, row, _WORDS * WORD_BYTES)

    def _load_words(self, register: int, row: str) -> Value:
        return self._load(self._row_in_memory(register, row), "i32", _WORDS)

    def _store_words(self, value: Value, place: str, words: int = _WORDS) -> None:
        self._store_memory(value.name, place, "i32", _WORDS, words)

    def _sum_pairs(self, sums: Value, row: str, left: int, right: int, element: str) -> Value:
        """Return the sums of a row plus products of floats of 16 bits.

        Products of even and of odd elements are summed apart, from zero on. Numbers below the least normal float32 are
        zeros, before and after each operation.
        """
        halves = (self._low_half, self._high_half)
        if element == "f16":
            halves = (partial(self._half, number=0), partial(self._half, number=1))

        def add(totals: Sequence[Value], word: Value, words: Value) -> list[Value]:
            pairs = [(self._flush(half(word)), self._flush(half(words))) for half in halves]
            return [self._add_product(total, *pair) for total, pair in zip(totals, pairs, strict=True)]

        zero = Value(self._zero("f32", _WORDS), "f32", _WORDS)
        even, odd = self._sum_words_of_row(row, left, right, [zero, zero], add)
        both = self._flush(self._emit(operation("arith.addf", (), "f32"), [even, odd]))
        old = self._flush(self._bit_cast(sums, "f32", _WORDS))
        new = self._flush(self._emit(operation("arith.addf", (), "f32"), [old, both]))
        return self._bit_cast(new, "i32", _WORDS)

    def _sum_fours(self, sums: Value, row: str, left: int, right: int, is_swapped: bool) -> Value:
        """Return the sums of a row plus products of integers."""

        def add(totals: Sequence[Value], word: Value, words: Value) -> list[Value]:
            factors = (words, word) if is_swapped else (word, words)
            return [self._dot_of_bytes(*factors, totals[0])]

        return self._sum_words_of_row(row, left, right, [sums], add)[0]

    def _sum_words_of_row(
        self,
        row: str,
        left: int,
        right: int,
        starts: Sequence[Value],
        add: Callable[[Sequence[Value], Value, Value], list[Value]],
    ) -> list[Value]:
        """Return totals after ``add`` for each word in a row of the left factor and the right factor's row for it."""
        results, index = self._fresh(), self._fresh()
        totals = [Value(self._fresh(), v.element, v.lanes) for v in starts]
        bounds = f"{self._constant(0)} to {self._number(self._shapes[right].rows)} step {self._constant(1)}"
        head = self._loop_head(f"scf.for {index} = {bounds}", totals, starts)
        with self._scope(), self._block(f"{results}:{len(totals)} = {head}"):
            place = self._offset(self._row_in_memory(left, row), index, "i32")
            word = self._broadcast(self._load(place, "i32"), _WORDS)
            self._yield(add(totals, word, self._load_words(right, index)))
        return [Value(f"{results}#{k}", v.element, v.lanes) for k, v in enumerate(starts)]

    def _add_product(self, total: Value, left: Value, right: Value) -> Value:
        """Return ``total + left * right``, rounded once; zero if it is below the least normal number.

        Whether it is below is known before rounding to the spacing of such numbers, by the scaled sum.
        """
        product = operation("math.fma", (), "f32")
        result = self._emit(product, [left, right, total])
        times, scale = operation("arith.mulf", (), "f32"), self._number_in_lanes(_SCALE)
        left, total = (self._emit(times, [value, scale]) for value in (left, total))
        scaled_result = self._emit(product, [left, right, total])
        return self._zero_below(2.0**-126 * _SCALE, scaled_result, result)

    def _flush(self, value: Value) -> Value:
        """Return a zero of the same sign for values below the least normal number."""
        return self._zero_below(2.0**-126, value, value)

    def _zero_below(self, limit: float, measured: Value, value: Value) -> Value:
        """Return ``value``, or a zero with the sign of ``measured`` where that is below ``limit``."""
        size = self._emit(operation("math.absf", (), "f32"), [measured])
        flags = self._define(f"arith.cmpf olt, {size.name}, {self._number_in_lanes(limit).name} : {size.type}")
        zero = self._emit(operation("math.copysign", (), "f32"), [self._number_in_lanes(0.0), measured])
        return self._emit(operation("arith.select", (), "f32"), [Value(flags, "i1", _WORDS), zero, value])

    def _number_in_lanes(self, number: float) -> Value:
        return self._broadcast(Value(self._literal(typed_constant(number, "f32")), "f32"), _WORDS)

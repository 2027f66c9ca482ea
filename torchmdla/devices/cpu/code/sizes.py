"""Sizes computed by generated code, and buffers laid out by sizes that are known at run time only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torchmdla.compiler.sizes import Size, at, static
from torchmdla.devices.cpu.accesses import Buffer
from torchmdla.devices.cpu.schedule import Blocks, count
from torchmdla.devices.cpu.workspace import ALIGNMENT, Lifetime


class SizeCode:
    """Writes ``i64`` values into a function in which ``symbols`` are the names of the symbols' values. ``define`` adds
    an op to the function and gives its result's name."""

    def __init__(self, define: Callable[[str], str], symbols: Sequence[str]) -> None:
        self._define = define
        self.symbols = list(symbols)

    @classmethod
    def loading(cls, define: Callable[[str], str], pointer: str, symbols: int) -> SizeCode:
        """In a function where ``pointer`` points to the values of ``symbols`` symbols."""
        names = []
        for k in range(symbols):
            place = define(f"llvm.getelementptr {pointer}[{k}] : (!llvm.ptr) -> !llvm.ptr, i64")
            names.append(define(f"llvm.load {place} : !llvm.ptr -> i64"))
        return cls(define, names)

    def value(self, number: int | Size) -> str:
        """The name of the value of ``number``."""
        if not isinstance(number, Size):
            return self._define(f"arith.constant {number} : i64")
        total = ""
        for exponents, factor in number.terms:
            product = "" if factor == 1 and any(exponents) else self.value(factor)
            for symbol, power in zip(self.symbols, exponents, strict=False):
                for _ in range(power):
                    product = self.op("muli", product, symbol) if product else symbol
            total = self.op("addi", total, product) if total else product
        return total

    def op(self, name: str, left: str, right: str) -> str:
        """The result of an op of ``arith`` on two values."""
        return self._define(f"arith.{name} {left}, {right} : i64")

    def count(self, blocks: Blocks) -> str:
        """How many blocks there are of all loops together."""
        total = ""
        for size, step in blocks:
            if isinstance(size, Size):
                number = self.value(size)
                if step > 1:
                    number = self.op("ceildivsi", number, self.value(step))
                total = self.op("muli", total, number) if total else number
        static = count([block for block in blocks if not isinstance(block[0], Size)])
        if not total:
            return self.value(static)
        return total if static == 1 else self.op("muli", total, self.value(static))

    def laid_out(self, lifetimes: Mapping[Buffer, Lifetime], typical: Sequence[int]) -> tuple[dict[Buffer, str], str]:
        """The offsets of buffers, in slots that are shared as they may be where the symbols have the values
        ``typical``, and where the last slot ends."""
        buffers = list(lifetimes)
        slots = share_slots([replace(own, size=at(own.size, typical)) for own in lifetimes.values()])
        offsets, end = self._in_a_row([[buffers[k].bytes for k in slot] for slot in slots])
        return {buffers[k]: offset for slot, offset in zip(slots, offsets, strict=True) for k in slot}, end

    def _in_a_row(self, slots: Sequence[Sequence[int | Size]]) -> tuple[list[str], str]:
        """The offsets of ``slots`` one after the other, each aligned and as large as the largest of its numbers, and
        where the last one ends."""
        offsets, end = [], self.value(0)
        for sizes in slots:
            offsets.append(end)
            largest = ""
            for size in _candidates(sizes):
                value = self.value(size)
                largest = self.op("maxsi", largest, value) if largest else value
            up = self.op("addi", largest, self.value(ALIGNMENT - 1))
            end = self.op("addi", end, self.op("andi", up, self.value(-ALIGNMENT)))
        return offsets, end


def _candidates(sizes: Sequence[int | Size]) -> list[int | Size]:
    """The numbers of which one is the largest, whatever the symbols."""
    distinct = list(dict.fromkeys(sizes))
    return [a for a in distinct if not any(a is not b and _is_never_larger(a, b) for b in distinct)]


def _is_never_larger(first: int | Size, second: int | Size) -> bool:
    """Whether the difference has no term that symbols, which are positive, could make larger."""
    difference = first - second
    return all(f < 0 for _, f in difference.terms) if isinstance(difference, Size) else difference < 0


def share_slots(lifetimes: Sequence[Lifetime]) -> list[list[int]]:
    """Which of the buffers may lie at one place: none are in a slot whose lifetimes meet. Those of about one size come
    together, by the sizes that are given."""
    slots: list[list[int]] = []
    for k in sorted(range(len(lifetimes)), key=lambda k: -static(lifetimes[k].size)):
        free = next((slot for slot in slots if not any(lifetimes[k].meets(lifetimes[j]) for j in slot)), None)
        if free is None:
            slots.append([k])
        else:
            free.append(k)
    return slots

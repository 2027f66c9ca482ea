"""Sizes computed by generated code, and layouts of buffers whose lifetimes do not overlap in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torchmdla.compiler.sizes import AnySize, Size, at, static
from torchmdla.devices.cpu.ir.accesses import Buffer
from torchmdla.devices.cpu.schedule import Blocks, count

ALIGNMENT = 64


class SizeCode:
    """Writer of ``i64`` values into a function.

    ``symbols`` are the names of the symbols' values. ``define`` adds an op to the function and returns the name of its
    result.
    """

    def __init__(self, define: Callable[[str], str], symbols: Sequence[str]) -> None:
        self._define = define
        self.symbols = list(symbols)

    @classmethod
    def from_pointer(cls, define: Callable[[str], str], pointer: str, symbols: int) -> SizeCode:
        """Return a writer for a function in which ``pointer`` points to the values of ``symbols`` symbols."""
        names = []
        for k in range(symbols):
            place = define(f"llvm.getelementptr {pointer}[{k}] : (!llvm.ptr) -> !llvm.ptr, i64")
            names.append(define(f"llvm.load {place} : !llvm.ptr -> i64"))
        return cls(define, names)

    def value(self, number: int | Size) -> str:
        """Return the name of the value of ``number``."""
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
        """Return the name of the result of an ``arith`` op on two values."""
        return self._define(f"arith.{name} {left}, {right} : i64")

    def count(self, blocks: Blocks) -> str:
        """Return the name of the number of blocks of all loops together."""
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

    def lay_out(self, lifetimes: Mapping[Buffer, Lifetime], typical: Sequence[int]) -> tuple[dict[Buffer, str], str]:
        """Return the names of the offsets of buffers and of the end of the last slot.

        Buffers share slots. The slots are chosen for symbols that have the values ``typical``.
        """
        buffers = list(lifetimes)
        slots = share_slots([replace(lifetime, size=at(lifetime.size, typical)) for lifetime in lifetimes.values()])
        offsets, end = self._lay_out_slots([[buffers[k].bytes for k in slot] for slot in slots])
        return {buffers[k]: offset for slot, offset in zip(slots, offsets, strict=True) for k in slot}, end

    def _lay_out_slots(self, slots: Sequence[Sequence[int | Size]]) -> tuple[list[str], str]:
        """Return the names of the offsets of consecutive ``slots`` and of the end of the last one.

        Each slot is aligned and as large as the largest of its sizes.
        """
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
    """Return the sizes that may be the largest, depending on the values of the symbols."""
    distinct = list(dict.fromkeys(sizes))
    return [a for a in distinct if not any(a is not b and _is_never_larger(a, b) for b in distinct)]


def _is_never_larger(first: int | Size, second: int | Size) -> bool:
    """Return whether ``first - second`` has only negative terms. Symbols are positive, so it is always negative."""
    difference = first - second
    return all(f < 0 for _, f in difference.terms) if isinstance(difference, Size) else difference < 0


def share_slots(lifetimes: Sequence[Lifetime]) -> list[list[int]]:
    """Return groups of buffers that may share memory: the lifetimes of a group's buffers do not meet.

    The largest buffers are placed first, so that buffers of similar size share a slot.
    """
    slots: list[list[int]] = []
    for k in sorted(range(len(lifetimes)), key=lambda k: -static(lifetimes[k].size)):
        free = next((slot for slot in slots if not any(lifetimes[k].overlaps(lifetimes[j]) for j in slot)), None)
        if free is None:
            slots.append([k])
        else:
            free.append(k)
    return slots


# Placement in a workspace that is planned at compile time.


@dataclass(frozen=True)
class Lifetime:
    """Lifetime of ``size`` bytes, from step ``first`` to step ``last``, both included."""

    size: AnySize
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """Return whether both are live at some step."""
        return self.first <= other.last and other.first <= self.last


def plan(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Return the offset of each buffer in one workspace, and the size of the workspace in bytes.

    The largest buffer is placed first, each at the lowest free offset. Buffers whose lifetimes overlap never share
    memory. Every offset is a multiple of 64 bytes.
    """
    offsets, sizes = [0] * len(lifetimes), [static(lifetime.size) for lifetime in lifetimes]
    placed: list[int] = []
    for k in sorted(range(len(lifetimes)), key=lambda k: -sizes[k]):
        current = lifetimes[k]
        busy = sorted((offsets[j], offsets[j] + sizes[j]) for j in placed if current.overlaps(lifetimes[j]))
        for start, end in busy:
            if start - offsets[k] >= sizes[k]:
                break
            offsets[k] = max(offsets[k], _align(end))
        placed.append(k)
    return offsets, _align(max((offsets[k] + sizes[k] for k in placed), default=0))


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT

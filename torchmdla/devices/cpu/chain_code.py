"""The code of a chain: a kernel whose range is a grid of tiles, and which calls its members' kernels on each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchmdla.devices.cpu.buffers import Lifetime, plan
from torchmdla.devices.cpu.nests import ELEMENT_BYTES, stored
from torchmdla.devices.cpu.steps import Buffer, ChainStep, NestStep, Scalar, final_nest


@dataclass(frozen=True)
class MemberKernel:
    """The kernel of a member: its symbol, how many iterations it runs, and whether it reports a status."""

    symbol: str
    iterations: int
    may_fail: bool


@dataclass(frozen=True)
class ChainCode:
    """MLIR text of one function (``{symbol}`` stands for its name). Its operands are pointers to the elements
    ``places`` (buffer, offset), then to ``scalars``, then, if a member may fail, to the status."""

    text: str
    places: tuple[tuple[Buffer, int], ...]
    scalars: tuple[Scalar, ...]
    may_fail: bool


def write_chain(step: ChainStep, kernel: Callable[[NestStep], MemberKernel], attributes: str) -> ChainCode:
    """The kernel of a chain. ``kernel`` gives the kernel of a member."""
    return _ChainWriter(step, [kernel(member) for member in step.members], attributes).write()


class _ChainWriter:
    def __init__(self, step: ChainStep, kernels: Sequence[MemberKernel], attributes: str) -> None:
        self._step = step
        self._kernels = kernels
        self._attributes = attributes
        self._lines: list[str] = []
        self._counter = itertools.count()
        self._local_offsets, self._local_bytes = _plan_locals(step)
        self._places: dict[tuple[Buffer, int], int] = {}
        self._scalars: dict[Scalar, int] = {}

    def write(self) -> ChainCode:
        self._number_operands()
        may_fail = any(k.may_fail for k in self._kernels)
        count = len(self._places) + len(self._scalars) + may_fail
        slots = [self._slot("%operands", k) for k in range(count)]
        self._pointers = [self._define(f"llvm.load {slot} : !llvm.ptr -> !llvm.ptr") for slot in slots]
        self._local = self._allocate(self._local_bytes, "i8", " {alignment = 64 : i64}")
        most = max(len(final_nest(m)[1]) + len(_scalars(m)) + 1 for m in self._step.members)
        self._array = self._allocate(most, "!llvm.ptr", "")
        tile = self._fresh()
        self._lines.append(f"scf.for {tile} = %begin to %end step {self._constant(1)} : i64 {{")
        indices = self._delinearised(tile)
        for position, kernel in enumerate(self._kernels):
            self._call(position, kernel, indices)
        self._lines += ["}", "llvm.return"]
        head = "llvm.func internal @{symbol}(%operands: !llvm.ptr, %begin: i64, %end: i64)"
        text = "\n".join([f"{head} {self._attributes} {{", *self._lines, "}"])
        return ChainCode(text, tuple(self._places), tuple(self._scalars), may_fail)

    def _number_operands(self) -> None:
        for member in self._step.members:
            for buffer, offset in final_nest(member)[1]:
                if buffer.kind != "local":
                    self._places.setdefault((buffer, offset), len(self._places))
        for scalar in (s for member in self._step.members for s in _scalars(member)):
            self._scalars.setdefault(scalar, len(self._places) + len(self._scalars))

    def _operands(self, member: NestStep) -> list[tuple[Buffer, int]]:
        return final_nest(member)[1]

    # Text.

    def _fresh(self) -> str:
        return f"%c{next(self._counter)}"

    def _define(self, text: str) -> str:
        name = self._fresh()
        self._lines.append(f"{name} = {text}")
        return name

    def _constant(self, number: int) -> str:
        return self._define(f"arith.constant {number} : i64")

    def _slot(self, array: str, position: int) -> str:
        return self._define(f"llvm.getelementptr {array}[{position}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")

    def _allocate(self, count: int, element: str, attributes: str) -> str:
        return self._define(f"llvm.alloca {self._constant(max(count, 1))} x {element}{attributes} : (i64) -> !llvm.ptr")

    def _delinearised(self, tile: str) -> list[str]:
        """The tile's place along each axis."""
        indices = []
        for extent in reversed(self._step.grid[1:]):
            size = self._constant(extent)
            indices.append(self._define(f"arith.remui {tile}, {size} : i64"))
            tile = self._define(f"arith.divui {tile}, {size} : i64")
        return [tile, *reversed(indices)]

    # Calls.

    def _call(self, position: int, kernel: MemberKernel, indices: Sequence[str]) -> None:
        """Calls the kernel of a member for the tile at ``indices``."""
        member = self._step.members[position]
        operands = [
            self._moved(self._base(buffer, offset), position, number, indices)
            for number, (buffer, offset) in enumerate(final_nest(member)[1])
        ]
        operands += [self._pointers[self._scalars[s]] for s in _scalars(member)]
        if kernel.may_fail:
            operands.append(self._pointers[-1])
        for k, pointer in enumerate(operands):
            self._lines.append(f"llvm.store {pointer}, {self._slot(self._array, k)} : !llvm.ptr, !llvm.ptr")
        begin, end = self._constant(0), self._constant(kernel.iterations)
        self._lines.append(f"llvm.call @{kernel.symbol}({self._array}, {begin}, {end}) : (!llvm.ptr, i64, i64) -> ()")

    def _base(self, buffer: Buffer, offset: int) -> str:
        """The address of a buffer's element ``offset``, for the first tile."""
        if buffer.kind != "local":
            return self._pointers[self._places[buffer, offset]]
        distance = self._local_offsets[buffer] + offset * ELEMENT_BYTES[stored(buffer.element)]
        return self._define(f"llvm.getelementptr {self._local}[{distance}] : (!llvm.ptr) -> !llvm.ptr, i8")

    def _moved(self, base: str, position: int, number: int, indices: Sequence[str]) -> str:
        """The address of operand ``number`` of a member at the current tile."""
        for index, stride in zip(indices, self._step.strides(position, number), strict=True):
            if stride:
                step = self._define(f"arith.muli {index}, {self._constant(stride)} : i64")
                base = self._define(f"llvm.getelementptr {base}[{step}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")
        return base


def _scalars(member: NestStep) -> tuple[Scalar, ...]:
    return member.scalars + (member.ending.scalars if member.ending else ())


def _plan_locals(step: ChainStep) -> tuple[dict[Buffer, int], int]:
    """Byte offsets of the locals in one block, and its bytes."""
    lifetimes = []
    for buffer in step.locals:
        used = [k for k, member in enumerate(step.members) if buffer in (*member.reads, *member.writes)]
        lifetimes.append(Lifetime(buffer.bytes, used[0], used[-1]))
    offsets, size = plan(lifetimes)
    return dict(zip(step.locals, offsets, strict=True)), size

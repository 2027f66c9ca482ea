"""What a kernel computes: a loop nest over flat buffers, free of MLIR objects.

Every access is linear in the loop indices, so an operand is a base pointer and one stride per loop; two steps that do
the same to different buffers give equal nests, and equal nests become one kernel.

A *dynamic* nest has sizes, strides and constants that are polynomials in symbols, whose values its kernel is given.
They may be whatever the polynomials are from 0 on. ``KernelSpec`` is a static one to the type checker, ``AnyNest``
either.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from typing_extensions import TypeVar

from torchmdla.compiler.sizes import Size, at

# How scalars lie in memory: bool is one byte, and an index is 64 bits wide on every target.
_STORED = {"i1": "i8", "index": "i64"}

# Bytes of every element type that kernels may touch.
ELEMENT_BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}


# What sizes and strides are.
Number = TypeVar("Number", bound="int | Size", covariant=True, default=int)


class NotANestError(Exception):
    """The op is no nest of linear accesses around a straight-line body; it is lowered by upstream's passes."""


def stored(element: str) -> str:
    """The element type in memory of a value of type ``element``.

    Raises:
        NotANestError: values of this type have no place in a kernel's memory.
    """
    kept = _STORED.get(element, element)
    if kept not in ELEMENT_BYTES:
        raise NotANestError(f"element type {element}")
    return kept


def computed(element: str) -> str:
    """The type in registers of a value of MLIR type ``element``."""
    return "i64" if element == "index" else element


@dataclass(frozen=True)
class Operand(Generic[Number]):
    """One buffer: the type of its elements in registers (``i1`` lies in memory as ``i8``), and an element stride
    for each loop."""

    element: str
    strides: tuple[Number, ...]


@dataclass(frozen=True)
class Table(Generic[Number]):
    """A buffer that the body reads at computed indices: its sizes and element strides."""

    element: str
    sizes: tuple[Number, ...]
    strides: tuple[Number, ...]


@dataclass(frozen=True)
class Instruction:
    """One op of the body, with one result. Values are numbered: inputs, outputs, scalars, then results in order.

    ``name`` is the MLIR op's, or ``"index"`` (``payload``: the loop), ``"load"`` (``payload``: the table; the
    operands are its indices), ``"lookup"`` (that of the 16 floats in ``attributes`` which its operand, an ``i32``,
    numbers by its lowest four bits), ``"scale"`` (its first operand times two to the power of its second, an integer,
    both ``f32``), ``"assert"`` (its operand must be true, or the call fails), or ``"size"`` (the
    value of ``size``, as a number of type ``result``: ``i32``, ``i64`` or a floating type; a dynamic nest's
    ``arith.constant``).
    """

    name: str
    operands: tuple[int, ...]
    result: str
    attributes: str = ""
    payload: int = -1
    size: int | Size | None = None


@dataclass(frozen=True)
class KernelEpilogue(Generic[Number]):
    """What a nest with a reduction does to its results while they are in registers, before anything is stored.

    Values are numbered: the nest's reduced outputs, ``inputs``, ``scalars``, then the results of ``body`` in order.
    ``outputs`` are stored instead of the nest's own outputs, of which none is. All strides are over the nest's loops,
    0 for loops that reduce.
    """

    inputs: tuple[Operand[Number], ...]
    outputs: tuple[Operand[Number], ...]
    scalars: tuple[str, ...]
    body: tuple[Instruction, ...]
    yields: tuple[int, ...]


@dataclass(frozen=True)
class KernelSpec(Generic[Number]):
    """``inputs`` and ``outputs`` enter the body as its first values, then ``scalars`` (types of values fixed over
    the nest). The body's ``yields`` are the outputs' new values. Loops marked in ``reduction`` carry the outputs, from
    the constant ``initial`` on if there is one, from what lies in memory otherwise. With an ``epilogue`` the outputs
    are not stored, and ``initial`` must be set.

    A kernel's operands are pointers: to ``operands``, to ``tables``, to ``scalars`` (the nest's, then the epilogue's),
    to a status if the nest may fail, to the values of all symbols (``int64_t``) if the nest is dynamic, and to what its
    schedule fetches beside operands."""

    sizes: tuple[Number, ...]
    reduction: tuple[bool, ...]
    inputs: tuple[Operand[Number], ...]
    outputs: tuple[Operand[Number], ...]
    scalars: tuple[str, ...]
    tables: tuple[Table[Number], ...]
    body: tuple[Instruction, ...]
    yields: tuple[int, ...]
    initial: Instruction | None = None
    epilogue: KernelEpilogue[Number] | None = None

    @property
    def accumulates(self) -> bool:
        """Whether outputs have values before they are stored: also where all loops that reduce had one iteration."""
        return any(self.reduction) or self.initial is not None or self.epilogue is not None

    @property
    def may_fail(self) -> bool:
        """Whether the kernel reports a status: it checks indices or conditions."""
        body = self.body + (self.epilogue.body if self.epilogue else ())
        return bool(self.tables) or any(i.name == "assert" for i in body)

    @property
    def is_dynamic(self) -> bool:
        """Whether some number of it is a polynomial, so that its kernel is given the values of the symbols."""
        return any(isinstance(number, Size) for number in _numbers(self))

    @property
    def operands(self) -> tuple[Operand[Number], ...]:
        """The buffers that the kernel touches at the loops' indices, in the order of its pointers."""
        if self.epilogue:
            return self.inputs + self.epilogue.inputs + self.epilogue.outputs
        return self.inputs + self.outputs


AnyNest = KernelSpec[int | Size]
AnyOperand = Operand[int | Size]
AnyTable = Table[int | Size]
AnyEpilogue = KernelEpilogue[int | Size]


def _numbers(nest: AnyNest) -> Iterator[int | Size | None]:
    """Every number of a nest that may vary with symbols."""
    operands = nest.inputs + nest.outputs + (nest.epilogue.inputs + nest.epilogue.outputs if nest.epilogue else ())
    body = nest.body + (nest.epilogue.body if nest.epilogue else ()) + ((nest.initial,) if nest.initial else ())
    return itertools.chain(
        nest.sizes,
        *(o.strides for o in operands),
        *(t.sizes + t.strides for t in nest.tables),
        (i.size for i in body),
    )


def static(nest: AnyNest, values: Sequence[int]) -> KernelSpec:
    """The static nest where the symbols have ``values``: every loop, operand and value keeps its place."""

    def numbers(sizes: tuple[int | Size, ...]) -> tuple[int, ...]:
        return tuple(at(size, values) for size in sizes)

    def operands(those: tuple[AnyOperand, ...]) -> tuple[Operand, ...]:
        return tuple(Operand(o.element, numbers(o.strides)) for o in those)

    def constants(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        return tuple(i if i.size is None else constant(at(i.size, values), i.result) for i in body)

    epilogue = None
    if nest.epilogue is not None:
        inputs, outputs, body = nest.epilogue.inputs, nest.epilogue.outputs, constants(nest.epilogue.body)
        epilogue = KernelEpilogue(
            operands(inputs), operands(outputs), nest.epilogue.scalars, body, nest.epilogue.yields
        )
    return KernelSpec(
        sizes=numbers(nest.sizes),
        reduction=nest.reduction,
        inputs=operands(nest.inputs),
        outputs=operands(nest.outputs),
        scalars=nest.scalars,
        tables=tuple(Table(t.element, numbers(t.sizes), numbers(t.strides)) for t in nest.tables),
        body=constants(nest.body),
        yields=nest.yields,
        initial=constants((nest.initial,))[0] if nest.initial else None,
        epilogue=epilogue,
    )


def constant(number: int | str, element: str) -> Instruction:
    """``arith.constant``: an integer, or text of a number in MLIR, as a number of the type ``element``."""
    point = ".0" if isinstance(number, int) and not element.startswith("i") else ""
    return Instruction("arith.constant", (), element, f"{{value = {number}{point} : {element}}}")


_DECIMAL = re.compile(r"\{?value = (-?\d[-+.e\d]*) : \w+\}?")


def constant_number(attributes: str) -> int | float | None:
    """The number in the attributes of an ``arith.constant``; None if they hold none that is written in decimal."""
    match = _DECIMAL.fullmatch(attributes)
    if match is None:
        return None
    return int(match[1]) if match[1].removeprefix("-").isdecimal() else float(match[1])


def simplified(nest: AnyNest) -> AnyNest:
    """The nest without loops of one iteration, and with those joined that walk memory as one."""
    drop = [d for d, size in enumerate(nest.sizes) if size == 1 and d not in _indexed(nest)]
    nest = _keep_loops(nest, [d for d in range(len(nest.sizes)) if d not in drop])
    while (pair := _joinable(nest)) is not None:
        nest = _join(nest, *pair)
    return nest


def _indexed(nest: AnyNest) -> set[int]:
    """Loops whose index the body uses as a value."""
    body = nest.body + (nest.epilogue.body if nest.epilogue else ())
    return {i.payload for i in body if i.name == "index"}


def _joinable(nest: AnyNest) -> tuple[int, int] | None:
    loops = [d for d in range(len(nest.sizes)) if d not in _indexed(nest)]
    for outer in loops:
        for inner in loops:
            if outer != inner and nest.reduction[outer] == nest.reduction[inner]:
                size = nest.sizes[inner]
                if all(o.strides[outer] == o.strides[inner] * size for o in nest.operands):
                    return outer, inner
    return None


def _join(nest: AnyNest, outer: int, inner: int) -> AnyNest:
    sizes = list(nest.sizes)
    sizes[inner] = sizes[outer] * sizes[inner]
    return _keep_loops(replace(nest, sizes=tuple(sizes)), [d for d in range(len(sizes)) if d != outer])


def _keep_loops(nest: AnyNest, kept: list[int]) -> AnyNest:
    renumber = {old: new for new, old in enumerate(kept)}

    def narrowed(operands: tuple[AnyOperand, ...]) -> tuple[AnyOperand, ...]:
        return tuple(replace(o, strides=tuple(o.strides[d] for d in kept)) for o in operands)

    def renumbered(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        return tuple(replace(i, payload=renumber[i.payload]) if i.name == "index" else i for i in body)

    epilogue = nest.epilogue
    if epilogue is not None:
        inputs, outputs = narrowed(epilogue.inputs), narrowed(epilogue.outputs)
        epilogue = replace(epilogue, inputs=inputs, outputs=outputs, body=renumbered(epilogue.body))
    return replace(
        nest,
        sizes=tuple(nest.sizes[d] for d in kept),
        reduction=tuple(nest.reduction[d] for d in kept),
        inputs=narrowed(nest.inputs),
        outputs=narrowed(nest.outputs),
        body=renumbered(nest.body),
        epilogue=epilogue,
    )

"""What a nest computes in an iteration: a graph of expressions, each built of others and of leaves.

Expressions are hash-consed: equal ones are one object, so that what several read is computed once, ``is`` compares,
and none has a number that another could change. ``max(a[i] * b[i] + 1.0, 0.0)`` is::

    operation("arith.maximumf", [
        operation("arith.addf", [
            operation("arith.mulf", [load(a), load(b)], "f32"), constant(1.0, "f32")], "f32"),
        constant(0.0, "f32")], "f32")
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.accesses import Access, Scalar, TableAccess
from torchmdla.devices.cpu.element_types import computed


class Expression:
    """A value of an iteration.

    Attributes:
        op: the name of an MLIR op; or of a leaf: ``load`` (``payload``: an :class:`Access`), ``scalar`` (a
            :class:`Scalar`), ``index`` (a loop), ``constant`` (a number), ``size`` (a
            :class:`~torchmdla.compiler.sizes.Size`), ``accumulator`` (what output of the nest, by number, has been
            reduced so far), ``reduced`` (what it has been reduced to, in an epilogue); or ``gather``: the element of
            a :class:`TableAccess` at its operands. In kernels also ``lookup``: that of the 16 floats in
            ``attributes`` which the operand, an ``i32``, numbers by its lowest four bits; and ``scale``: the first
            operand times two to the power of the second, an integer, both ``f32``. ``dot``: the sum of the products of
            what lies in one ``i32`` with what lies in another: in ``f32`` of two bfloat16, in ``i32`` of four
            integers of 8 bits, those of the first without a sign, those of the second with a sign.
        type: MLIR's element type, in registers.
        attributes: of an MLIR op, as text.
    """

    __slots__ = ("__weakref__", "attributes", "op", "operands", "payload", "type")

    op: str
    operands: tuple[Expression, ...]
    type: str
    attributes: str
    payload: Any

    def __repr__(self) -> str:
        of = [str(self.payload)] if self.payload is not None else []
        return f"{self.op}({', '.join([*of, *map(repr, self.operands)])})"

    def of(self, operands: tuple[Expression, ...], payload: Hashable) -> Expression:
        """The same of other operands, with another payload."""
        return _consed(self.op, operands, self.type, self.attributes, payload)

    def with_operands(self, operands: tuple[Expression, ...]) -> Expression:
        """The same of other operands."""
        return self if operands == self.operands else self.of(operands, self.payload)


class _Known(threading.local):
    """The expressions that there are, of each thread that compiles."""

    def __init__(self) -> None:
        self.expressions: WeakValueDictionary[Hashable, Expression] = WeakValueDictionary()


_known = _Known()


def _consed(
    op: str, operands: tuple[Expression, ...], type: str, attributes: str = "", payload: Hashable = None
) -> Expression:
    # 0.0 and -0.0, 1 and True are equal, but not alike.
    key = (op, operands, type, attributes, repr(payload) if op == "constant" else payload)
    found = _known.expressions.get(key)
    if found is None:
        found = Expression()
        found.op, found.operands, found.type, found.attributes, found.payload = op, operands, type, attributes, payload
        _known.expressions[key] = found
    return found


def numbered(op: str, type: str, number: int, operands: Iterable[Expression] = ()) -> Expression:
    """A value that is known by a number: an operand's element, say, before its access is known, or in a kernel."""
    return _consed(op, tuple(operands), type, payload=number)


def operation(op: str, operands: Iterable[Expression], type: str, attributes: str = "") -> Expression:
    """What an MLIR op makes of its operands."""
    return _consed(op, tuple(operands), type, attributes)


def load(access: Access) -> Expression:
    """The element that an iteration touches."""
    return _consed("load", (), computed(access.element), payload=access)


def gather(table: TableAccess, indices: Iterable[Expression]) -> Expression:
    """The element of a table at computed indices (``i64``)."""
    return _consed("gather", tuple(indices), table.table.element, payload=table)


def scalar(value: Scalar) -> Expression:
    """A value of the entry, the same in all iterations."""
    return _consed("scalar", (), value.type, payload=value)


def index(loop: int) -> Expression:
    """The index of a loop."""
    return _consed("index", (), "i64", payload=loop)


def constant(number: float | int, type: str) -> Expression:
    """A number: a float of a floating type, exactly; an integer of another."""
    return _consed("constant", (), type, payload=number if type.startswith("i") else float(number))


def size(value: Size, type: str) -> Expression:
    """A size that varies between calls, as a number of ``type``."""
    return _consed("size", (), type, payload=value)


def accumulator(output: int, type: str) -> Expression:
    """What an output of the nest has been reduced to so far."""
    return _consed("accumulator", (), type, payload=output)


def reduced(output: int, type: str) -> Expression:
    """What an output of the nest has been reduced to, for its epilogue."""
    return _consed("reduced", (), type, payload=output)


@dataclass(frozen=True)
class Contents:
    """What expressions are built of.

    Attributes:
        expressions: all, each behind those that it is built of.
        loads, scalars, tables: in the order in which they are come upon, each once.
        loops: whose index is used as a value.
    """

    expressions: tuple[Expression, ...]
    loads: tuple[Access, ...]
    scalars: tuple[Scalar, ...]
    tables: tuple[TableAccess, ...]
    loops: frozenset[int]

    def readers(self, expression: Expression) -> list[Expression]:
        """The expressions that ``expression`` is an operand of."""
        return [e for e in self.expressions if expression in e.operands]


@lru_cache(maxsize=8192)
def contents(roots: tuple[Expression, ...]) -> Contents:
    """What ``roots`` are built of."""
    ordered = tuple(_ordered(roots))

    def payloads(op: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(e.payload for e in ordered if e.op == op))

    return Contents(ordered, payloads("load"), payloads("scalar"), payloads("gather"), frozenset(payloads("index")))


def _ordered(roots: Iterable[Expression]) -> Iterator[Expression]:
    """Operands before what reads them; without recursion, since bodies may be long."""
    seen: set[Expression] = set()
    waiting = [(root, False) for root in reversed(list(roots))]
    while waiting:
        expression, is_ready = waiting.pop()
        if is_ready:
            yield expression
        elif expression not in seen:
            seen.add(expression)
            waiting.append((expression, True))
            waiting += [(operand, False) for operand in reversed(expression.operands) if operand not in seen]


def substituted(roots: Sequence[Expression], replacements: Mapping[Expression, Expression]) -> tuple[Expression, ...]:
    """``roots`` with other expressions in the place of some."""
    if not replacements:
        return tuple(roots)
    made: dict[Expression, Expression] = {}
    for expression in contents(tuple(roots)).expressions:
        same = replacements.get(expression)
        made[expression] = same or expression.with_operands(tuple(made[operand] for operand in expression.operands))
    return tuple(made[root] for root in roots)


def rewritten(
    roots: Sequence[Expression], function: Callable[[Expression], Expression | None]
) -> tuple[Expression, ...]:
    """``roots`` with ``function`` of each expression in its place where that is not None, operands first: a function
    sees what its operands have become."""
    made: dict[Expression, Expression] = {}
    for expression in contents(tuple(roots)).expressions:
        current = expression.with_operands(tuple(made[operand] for operand in expression.operands))
        made[expression] = function(current) or current
    return tuple(made[root] for root in roots)


def accessing(roots: Sequence[Expression], function: Callable[[Access], Access]) -> tuple[Expression, ...]:
    """``roots`` with other accesses in their loads."""
    moved = {access: function(access) for access in contents(tuple(roots)).loads}
    return substituted(roots, {load(old): load(new) for old, new in moved.items() if new is not old})


def gathering(roots: Sequence[Expression], function: Callable[[TableAccess], TableAccess]) -> tuple[Expression, ...]:
    """``roots`` with other tables."""
    if not contents(tuple(roots)).tables:
        return tuple(roots)
    return rewritten(roots, lambda e: gather(function(e.payload), e.operands) if e.op == "gather" else None)


def reindexed(roots: Sequence[Expression], function: Callable[[int], int]) -> tuple[Expression, ...]:
    """``roots`` with other loops where indices are values."""
    if not contents(tuple(roots)).loops:
        return tuple(roots)
    return rewritten(roots, lambda e: index(function(e.payload)) if e.op == "index" else None)

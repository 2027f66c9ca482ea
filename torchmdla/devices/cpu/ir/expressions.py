"""Expression graphs: the values that a nest computes in one iteration.

Each expression is built of other expressions and of leaves. Expressions are hash-consed: equal expressions are one
object. So a common subexpression is computed once, and ``is`` compares expressions. Expressions are not numbered, so
changing one does not renumber others. ``max(a[i] * b[i] + 1.0, 0.0)`` is::

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
from torchmdla.devices.cpu.ir.accesses import Access, Scalar, TableAccess
from torchmdla.devices.cpu.ir.element_types import register_type

# The attributes of a dot product of float16.
HALVES = "{f16}"

# The attributes of a dot product of integers of 16 bits.
SHORTS = "{i16}"


class Expression:
    """Value of one iteration.

    ``op`` is the name of an MLIR op, or one of these:

    - ``load``: ``payload`` is an :class:`Access`.
    - ``scalar``: ``payload`` is a :class:`Scalar`.
    - ``index``: ``payload`` is a loop.
    - ``constant``: ``payload`` is a number.
    - ``size``: ``payload`` is a :class:`~torchmdla.compiler.sizes.Size`.
    - ``accumulator``: the current accumulator of the nest's output number ``payload``.
    - ``reduced``: in an epilogue, the final accumulator of output number ``payload``.
    - ``gather``: the element of the :class:`TableAccess` ``payload`` at the operands.
    - ``lookup`` (kernels only): one of the 16 or 8 floats in ``attributes``, indexed by the lowest bits of the ``i32``
      operand.
    - ``scale`` (kernels only): the first operand times two to the power of the second, rounded down to an integer. Both
      are ``f32``.
    - ``dot`` (kernels only): the sum of products of the parts of two ``i32`` words. For type ``f32`` the parts are two
      bfloat16, or two float16 if ``attributes`` is :data:`HALVES`. For ``i32`` they are four integers of 8 bits,
      unsigned in the first word and signed in the second, or two signed ones of 16 bits if ``attributes`` is
      :data:`SHORTS`.

    Attributes:
        op: the operation or the kind of leaf.
        operands: the expressions that it is computed from.
        type: MLIR's element type, in registers.
        attributes: the attributes of an MLIR op, as text.
        payload: the leaf's data, or a number.
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

    def __reduce__(self) -> tuple[Any, ...]:
        return _intern, (self.op, self.operands, self.type, self.attributes, self.payload)

    def replace(self, operands: tuple[Expression, ...], payload: Hashable) -> Expression:
        """Return the expression with other operands and another payload."""
        return _intern(self.op, operands, self.type, self.attributes, payload)

    def with_operands(self, operands: tuple[Expression, ...]) -> Expression:
        """Return the expression with other operands."""
        return self if operands == self.operands else self.replace(operands, self.payload)


class _InternTable(threading.local):
    """All live expressions of one compiling thread."""

    def __init__(self) -> None:
        self.expressions: WeakValueDictionary[Hashable, Expression] = WeakValueDictionary()


_table = _InternTable()


def _intern(
    op: str, operands: tuple[Expression, ...], type: str, attributes: str = "", payload: Hashable = None
) -> Expression:
    # 0.0 == -0.0 and 1 == True, but these must be different constants.
    key = (op, operands, type, attributes, repr(payload) if op == "constant" else payload)
    expression = _table.expressions.get(key)
    if expression is None:
        expression = Expression()
        expression.op, expression.operands, expression.type = op, operands, type
        expression.attributes, expression.payload = attributes, payload
        _table.expressions[key] = expression
    return expression


def numbered_value(op: str, type: str, number: int, operands: Iterable[Expression] = ()) -> Expression:
    """Return a value that is identified by a number: an operand in a kernel, or one whose access is not yet known."""
    return _intern(op, tuple(operands), type, payload=number)


def operation(op: str, operands: Iterable[Expression], type: str, attributes: str = "") -> Expression:
    """Return the result of an MLIR op on operands."""
    return _intern(op, tuple(operands), type, attributes)


def load(access: Access) -> Expression:
    """Return the element that an iteration loads."""
    return _intern("load", (), register_type(access.element), payload=access)


def gather(table: TableAccess, indices: Iterable[Expression]) -> Expression:
    """Return the element of a table at computed indices (``i64``)."""
    return _intern("gather", tuple(indices), table.table.element, payload=table)


def scalar(value: Scalar) -> Expression:
    """Return a scalar of the entry. It has the same value in all iterations."""
    return _intern("scalar", (), value.type, payload=value)


def index(loop: int) -> Expression:
    """Return the index of a loop."""
    return _intern("index", (), "i64", payload=loop)


def constant(number: float | int, type: str) -> Expression:
    """Return a constant: an integer for types that begin with ``i``, an exact float otherwise."""
    return _intern("constant", (), type, payload=number if type.startswith("i") else float(number))


def size(value: Size, type: str) -> Expression:
    """Return a size that varies between calls, as a number of ``type``."""
    return _intern("size", (), type, payload=value)


def accumulator(output: int, type: str) -> Expression:
    """Return the current accumulator of the nest's output number ``output``."""
    return _intern("accumulator", (), type, payload=output)


def reduced(output: int, type: str) -> Expression:
    """Return the final accumulator of the nest's output number ``output``, for its epilogue."""
    return _intern("reduced", (), type, payload=output)


@dataclass(frozen=True)
class Contents:
    """Subexpressions of a set of root expressions.

    Attributes:
        expressions: all subexpressions. Operands precede their users.
        loads: the accesses of loads, each once, in order of appearance.
        scalars: the scalars, each once, in order of appearance.
        tables: the tables of gathers, each once, in order of appearance.
        loops: the loops whose index is used as a value.
    """

    expressions: tuple[Expression, ...]
    loads: tuple[Access, ...]
    scalars: tuple[Scalar, ...]
    tables: tuple[TableAccess, ...]
    loops: frozenset[int]

    def users(self, expression: Expression) -> list[Expression]:
        """Return the users of ``expression``."""
        return [e for e in self.expressions if expression in e.operands]


@lru_cache(maxsize=8192)
def contents(roots: tuple[Expression, ...]) -> Contents:
    """Return the subexpressions of ``roots``."""
    ordered = tuple(_iterate_post_order(roots))

    def payloads(op: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(e.payload for e in ordered if e.op == op))

    return Contents(ordered, payloads("load"), payloads("scalar"), payloads("gather"), frozenset(payloads("index")))


def _iterate_post_order(roots: Iterable[Expression]) -> Iterator[Expression]:
    """Yield all subexpressions, operands before their users.

    This is iterative, since long bodies would exceed the recursion limit.
    """
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


def substitute(roots: Sequence[Expression], replacements: Mapping[Expression, Expression]) -> tuple[Expression, ...]:
    """Return ``roots`` with subexpressions replaced."""
    if not replacements:
        return tuple(roots)
    results: dict[Expression, Expression] = {}
    for expression in contents(tuple(roots)).expressions:
        same = replacements.get(expression)
        results[expression] = same or expression.with_operands(
            tuple(results[operand] for operand in expression.operands)
        )
    return tuple(results[root] for root in roots)


def rewrite(roots: Sequence[Expression], function: Callable[[Expression], Expression | None]) -> tuple[Expression, ...]:
    """Return ``roots`` with each expression ``e`` replaced by ``function(e)`` where that is not None.

    Operands are rewritten first, so ``function`` sees the new operands.
    """
    results: dict[Expression, Expression] = {}
    for expression in contents(tuple(roots)).expressions:
        current = expression.with_operands(tuple(results[operand] for operand in expression.operands))
        results[expression] = function(current) or current
    return tuple(results[root] for root in roots)


def map_loads(roots: Sequence[Expression], function: Callable[[Access], Access]) -> tuple[Expression, ...]:
    """Return ``roots`` with ``function`` applied to the access of each load."""
    moved = {access: function(access) for access in contents(tuple(roots)).loads}
    return substitute(roots, {load(old): load(new) for old, new in moved.items() if new is not old})


def map_gathers(roots: Sequence[Expression], function: Callable[[TableAccess], TableAccess]) -> tuple[Expression, ...]:
    """Return ``roots`` with ``function`` applied to the table of each gather."""
    if not contents(tuple(roots)).tables:
        return tuple(roots)
    return rewrite(roots, lambda e: gather(function(e.payload), e.operands) if e.op == "gather" else None)


def reindex(roots: Sequence[Expression], function: Callable[[int], int]) -> tuple[Expression, ...]:
    """Return ``roots`` with ``function`` applied to each loop whose index is used as a value."""
    if not contents(tuple(roots)).loops:
        return tuple(roots)
    return rewrite(roots, lambda e: index(function(e.payload)) if e.op == "index" else None)

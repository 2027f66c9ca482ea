"""Kernel specifications: the computation of a kernel, as a loop nest over flat buffers without MLIR objects.

Every access is linear in the loop indices, so an operand is a base pointer and one stride per loop. The values that a
nest stores are expressions of numbered operands. Two steps that do the same on different buffers have equal nests, and
equal nests become one kernel::

    nest d0:4 d1:6+ { … input0[d0, d1] … } and nest d0:4 d1:6+ { … temporary3[d0, d1] … }
                                                             →   nest d0:4 d1:6+ { … operand0 strides [6, 1] … }

A *dynamic* nest has sizes, strides and constants that are polynomials in symbols. Its kernel receives the values of the
symbols. A polynomial may have any value from 0 on. For the type checker, ``KernelSpec`` is a static nest, and
``AnyNest`` is a static or a dynamic one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic

from torchmdla.compiler.sizes import Size, at
from torchmdla.devices.cpu.ir.accesses import Number, Table
from torchmdla.devices.cpu.ir.expressions import Expression, constant, contents, operation, reindex, rewrite


@dataclass(frozen=True)
class Operand(Generic[Number]):
    """Buffer operand of a kernel.

    Attributes:
        element: the type of the elements in registers (``i1`` is stored as ``i8``).
        strides: the element stride of each loop.
        base: the number of the operand that provides the pointer; None if this operand has its own pointer. Both have
            the same strides.
        offset: the distance from the ``base`` operand, in elements.
    """

    element: str
    strides: tuple[Number, ...]
    base: int | None = None
    offset: int = 0


@dataclass(frozen=True)
class KernelEpilogue(Generic[Number]):
    """Computation on the results of a reduction while they are in registers.

    ``values``, which use the reduced results, are stored to ``outputs`` instead of the nest's own outputs. All strides
    are over the nest's loops, and 0 for loops that reduce.
    """

    inputs: tuple[Operand[Number], ...]
    outputs: tuple[Operand[Number], ...]
    scalars: tuple[str, ...]
    values: tuple[Expression, ...]

    @cached_property
    def body(self) -> tuple[Expression, ...]:
        """Return the computed expressions, operands before their users."""
        return _find_computed(self.values)


@dataclass(frozen=True)
class KernelSpec(Generic[Number]):
    """Computation of a kernel: each iteration stores ``values`` to ``outputs``.

    Loops marked in ``reduction`` carry the outputs: ``values[i]`` is the new accumulator of output i. Accumulators
    start at the constant ``initial``, or at the output's current value if ``initial`` is not set. With an ``epilogue``
    the nest's own outputs are not stored, and ``initial`` must be set. The call fails unless all ``checks`` hold.
    Outputs are ``place`` elements after those at the loops' indices. The loops that it varies with run in order.
    ``scalars`` are the types of values that are constant over the nest.

    Expressions are those of :class:`~torchmdla.devices.cpu.ir.expressions.Expression`, except that leaves are numbered.
    ``payload`` is the position in ``operands`` for ``operand``, in ``all_scalars`` for ``scalar``, and in ``tables``
    for ``gather``. In a nest without a reduction, an ``accumulator`` is the output's old value.

    A kernel's arguments are pointers, in this order:

    - to the ``operands`` that have no base;
    - to the ``tables``;
    - to the scalars of the nest, then of the epilogue;
    - to a status, if the nest may fail;
    - to the values of all symbols (``int64_t``), if the nest is dynamic;
    - to the buffers beside the operands that its schedule prefetches.
    """

    sizes: tuple[Number, ...]
    reduction: tuple[bool, ...]
    inputs: tuple[Operand[Number], ...]
    outputs: tuple[Operand[Number], ...]
    values: tuple[Expression, ...]
    scalars: tuple[str, ...] = ()
    tables: tuple[Table[Number], ...] = ()
    checks: tuple[Expression, ...] = ()
    place: Expression | None = None
    initial: Expression | None = None
    epilogue: KernelEpilogue[Number] | None = None

    @property
    def roots(self) -> tuple[Expression, ...]:
        """Return the expressions that an iteration computes: the place comes first, then values and checks."""
        return (*((self.place,) if self.place else ()), *self.values, *self.checks)

    @cached_property
    def body(self) -> tuple[Expression, ...]:
        """Return the expressions of an iteration, operands before their users, then an ``assert`` for each check."""
        return (*_find_computed(self.roots), *self.asserts)

    @property
    def all_computed(self) -> tuple[Expression, ...]:
        """Return the expressions of the nest, then those of its epilogue."""
        return self.body + (self.epilogue.body if self.epilogue else ())

    @cached_property
    def loads(self) -> tuple[Expression, ...]:
        """Return the input elements that each iteration reads."""
        expressions = contents(self.roots).expressions
        return tuple(sorted((e for e in expressions if e.op == "operand"), key=lambda e: e.payload))

    @cached_property
    def asserts(self) -> tuple[Expression, ...]:
        """Return the checks as ops that report a failed check."""
        return tuple(operation("assert", [check], "i1") for check in self.checks)

    @property
    def accumulates(self) -> bool:
        """Return whether outputs have an accumulator.

        This includes nests whose reduction loops were removed because they had one iteration.
        """
        return any(self.reduction) or self.initial is not None or self.epilogue is not None

    @property
    def may_fail(self) -> bool:
        """Return whether the kernel reports a status because it checks indices or conditions."""
        return bool(self.tables or self.checks)

    @property
    def is_dynamic(self) -> bool:
        """Return whether a size, stride or constant is a polynomial.

        The kernel of such a nest receives the values of the symbols.
        """
        return any(isinstance(number, Size) for number in _symbolic_numbers(self))

    @property
    def operands(self) -> tuple[Operand[Number], ...]:
        """Return the buffers that the kernel accesses at the loops' indices, in the order of its pointers."""
        if self.epilogue:
            return self.inputs + self.epilogue.inputs + self.epilogue.outputs
        return self.inputs + self.outputs

    @cached_property
    def pointer_operands(self) -> tuple[int, ...]:
        """Return the numbers of the operands that have a pointer, in the order of the pointers."""
        return tuple(k for k, operand in enumerate(self.operands) if operand.base is None)

    @property
    def all_scalars(self) -> tuple[str, ...]:
        """Return the types of the nest's scalars, then of the epilogue's."""
        return self.scalars + (self.epilogue.scalars if self.epilogue else ())


AnyNest = KernelSpec[int | Size]
AnyOperand = Operand[int | Size]
AnyTable = Table[int | Size]

# Leaves: they cost no computation.
_LEAVES = frozenset(("operand", "scalar", "accumulator", "reduced"))


def _find_computed(roots: tuple[Expression, ...]) -> tuple[Expression, ...]:
    return tuple(e for e in contents(roots).expressions if e.op not in _LEAVES)


def _symbolic_numbers(nest: AnyNest) -> Iterator[object]:
    operands = nest.inputs + nest.outputs + (nest.epilogue.inputs + nest.epilogue.outputs if nest.epilogue else ())
    body = nest.all_computed + ((nest.initial,) if nest.initial else ())
    return itertools.chain(
        nest.sizes,
        *(o.strides for o in operands),
        *(t.sizes + t.strides for t in nest.tables),
        (e.payload for e in body if e.op == "size"),
    )


def specialise(nest: AnyNest, values: Sequence[int]) -> KernelSpec:
    """Return the static nest for the given values of the symbols.

    Every loop and operand keeps its position.
    """

    def numbers(sizes: tuple[int | Size, ...]) -> tuple[int, ...]:
        return tuple(at(size, values) for size in sizes)

    def operands(those: tuple[AnyOperand, ...]) -> tuple[Operand, ...]:
        return tuple(Operand(o.element, numbers(o.strides), o.base, o.offset) for o in those)

    def constants(roots: tuple[Expression, ...]) -> tuple[Expression, ...]:
        return rewrite(roots, lambda e: constant(at(e.payload, values), e.type) if e.op == "size" else None)

    epilogue: KernelEpilogue | None = None
    if nest.epilogue is not None:
        inputs, outputs = operands(nest.epilogue.inputs), operands(nest.epilogue.outputs)
        epilogue = KernelEpilogue(inputs, outputs, nest.epilogue.scalars, constants(nest.epilogue.values))
    return KernelSpec(
        sizes=numbers(nest.sizes),
        reduction=nest.reduction,
        inputs=operands(nest.inputs),
        outputs=operands(nest.outputs),
        values=constants(nest.values),
        scalars=nest.scalars,
        tables=tuple(Table(t.element, numbers(t.sizes), numbers(t.strides)) for t in nest.tables),
        checks=constants(nest.checks),
        place=constants((nest.place,))[0] if nest.place else None,
        initial=constants((nest.initial,))[0] if nest.initial else None,
        epilogue=epilogue,
    )


def simplify(nest: AnyNest) -> AnyNest:
    """Return the nest without loops of one iteration, and with loops merged that are contiguous in all operands."""
    drop = [d for d, size in enumerate(nest.sizes) if size == 1 and d not in _find_indexed_loops(nest)]
    nest = _keep_loops(nest, [d for d in range(len(nest.sizes)) if d not in drop])
    while (pair := _find_mergeable_loops(nest)) is not None:
        nest = _merge_loops(nest, *pair)
    return nest


def _find_indexed_loops(nest: AnyNest) -> frozenset[int]:
    """Return the loops whose index the nest uses as a value."""
    return contents((*nest.roots, *(nest.epilogue.values if nest.epilogue else ()))).loops


def _find_mergeable_loops(nest: AnyNest) -> tuple[int, int] | None:
    loops = [d for d in range(len(nest.sizes)) if d not in _find_indexed_loops(nest)]
    for outer in loops:
        for inner in loops:
            if outer != inner and nest.reduction[outer] == nest.reduction[inner]:
                size = nest.sizes[inner]
                if all(o.strides[outer] == o.strides[inner] * size for o in nest.operands):
                    return outer, inner
    return None


def _merge_loops(nest: AnyNest, outer: int, inner: int) -> AnyNest:
    sizes = list(nest.sizes)
    sizes[inner] = sizes[outer] * sizes[inner]
    return _keep_loops(replace(nest, sizes=tuple(sizes)), [d for d in range(len(sizes)) if d != outer])


def _keep_loops(nest: AnyNest, loops: list[int]) -> AnyNest:
    def narrow(operands: tuple[AnyOperand, ...]) -> tuple[AnyOperand, ...]:
        return tuple(replace(o, strides=tuple(o.strides[d] for d in loops)) for o in operands)

    epilogue = nest.epilogue
    if epilogue is not None:
        values = reindex(epilogue.values, loops.index)
        epilogue = replace(epilogue, inputs=narrow(epilogue.inputs), outputs=narrow(epilogue.outputs), values=values)
    return replace(
        nest,
        sizes=tuple(nest.sizes[d] for d in loops),
        reduction=tuple(nest.reduction[d] for d in loops),
        inputs=narrow(nest.inputs),
        outputs=narrow(nest.outputs),
        values=reindex(nest.values, loops.index),
        checks=reindex(nest.checks, loops.index),
        place=reindex((nest.place,), loops.index)[0] if nest.place else None,
        epilogue=epilogue,
    )

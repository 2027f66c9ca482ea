"""What an executable does, as plain data: a list of steps on base buffers, read from linalg on tensors.

Passes change the list; ``plan.py`` decides how it is computed, and ``code/entry`` writes it. A buffer is contiguous,
its last dimension innermost, so a change of layout is another buffer and other accesses. Accesses are as the program
has them: loops are dropped and joined only when the final :class:`~torchmdla.devices.cpu.kernel_spec.KernelSpec` is
made, by :attr:`LoopNest.kernel`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, reduce
from typing import Any

from torchmdla.compiler.sizes import AnySize, Size, estimate, quotient
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer, Scalar, TableAccess
from torchmdla.devices.cpu.element_types import ELEMENT_BYTES, computed, stored
from torchmdla.devices.cpu.expressions import (
    Contents,
    Expression,
    accessing,
    constant,
    contents,
    index,
    numbered,
    operation,
    reindexed,
    rewritten,
    substituted,
)
from torchmdla.devices.cpu.expressions import size as size_of
from torchmdla.devices.cpu.kernel_spec import AnyNest, AnyOperand, KernelEpilogue, KernelSpec, Operand, simplified

# A nest's body has no more operations: a pass copies a body with each that joins it, and LLVM's passes take time that
# grows faster than a body.
LONGEST_BODY = 200


@dataclass(frozen=True)
class Epilogue:
    """What is stored instead of a nest's results: ``values`` of what is ``reduced``, to ``outputs``; all over the
    nest's loops."""

    outputs: tuple[Access, ...]
    values: tuple[Expression, ...]

    @property
    def body(self) -> Contents:
        return contents(self.values)


@dataclass(eq=False)
class LoopNest:
    """Loops of ``sizes`` that store an expression to each output in each iteration.

    Loops marked in ``reduction`` carry the outputs: there ``values`` are what the outputs' accumulators become, from
    the constant ``initial`` on if there is one, from what lies in memory otherwise. With an epilogue the outputs have
    no memory, and ``initial`` is set. The call fails unless all ``checks`` hold in every iteration. ``nodes`` are the
    numbers of the group's nodes that it computes, for people."""

    sizes: tuple[AnySize, ...]
    reduction: tuple[bool, ...]
    outputs: tuple[Access, ...]
    values: tuple[Expression, ...]
    initial: Expression | None = None
    epilogue: Epilogue | None = None
    checks: tuple[Expression, ...] = ()
    nodes: frozenset[int] = frozenset()

    def __setattr__(self, name: str, value: object) -> None:
        # Passes ask for these many times between changes, and what they follow from cannot change itself.
        for derived in _DERIVED.intersection(self.__dict__):
            del self.__dict__[derived]
        super().__setattr__(name, value)

    @classmethod
    def elementwise(cls, sizes: tuple[AnySize, ...], output: Access, value: Expression) -> LoopNest:
        """A nest that stores ``value`` to ``output``."""
        return cls(sizes, (False,) * len(sizes), (output,), (value,))

    @cached_property
    def body(self) -> Contents:
        """What it computes, but for its epilogue."""
        return contents((*self.values, *self.checks))

    @cached_property
    def inputs(self) -> tuple[Access, ...]:
        return self.body.loads

    @cached_property
    def scalars(self) -> tuple[Scalar, ...]:
        return self.body.scalars

    @cached_property
    def tables(self) -> tuple[TableAccess, ...]:
        return self.body.tables

    @cached_property
    def read_accesses(self) -> tuple[Access, ...]:
        """What it reads, with the outputs' old values where they matter."""
        return self.inputs + self.carried + (self.epilogue.body.loads if self.epilogue else ())

    @cached_property
    def carried(self) -> tuple[Access, ...]:
        """The outputs that are reduced from what lies in memory on."""
        reduced = {e.payload for e in self.body.expressions if e.op == "accumulator"}
        return tuple(a for k, a in enumerate(self.outputs) if k in reduced) if self.initial is None else ()

    @cached_property
    def written_accesses(self) -> tuple[Access, ...]:
        return self.epilogue.outputs if self.epilogue else self.outputs

    @cached_property
    def reads(self) -> list[Buffer]:
        return [a.buffer for a in self.read_accesses] + [t.buffer for t in self.tables]

    @cached_property
    def writes(self) -> list[Buffer]:
        return [a.buffer for a in self.written_accesses]

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """What the kernel touches at the loops' indices, in the order of its operands."""
        return self.inputs + (self.epilogue.body.loads + self.epilogue.outputs if self.epilogue else self.outputs)

    @cached_property
    def all_scalars(self) -> tuple[Scalar, ...]:
        """The scalars of the body, then those of the epilogue."""
        return self.scalars + (self.epilogue.body.scalars if self.epilogue else ())

    @cached_property
    def kernel(self) -> AnyNest:
        """Return what the step's kernel computes."""
        return simplified(_kernel(self))

    @cached_property
    def places(self) -> list[tuple[Buffer, AnySize]]:
        """Return the buffers and element offsets of the kernel's operands, then of its tables."""
        loops = len(self.sizes)
        return [(a.buffer, a.flat(loops).constant) for a in self.accesses] + [(t.buffer, t.offset) for t in self.tables]

    @cached_property
    def pointed(self) -> list[int]:
        """Return the numbers of the places that the kernel has pointers to, in the order of the pointers."""
        return [*self.kernel.pointed, *range(len(self.accesses), len(self.places))]

    @cached_property
    def indexed_loops(self) -> frozenset[int]:
        """Loops whose index it uses as a value."""
        return self.body.loops | (self.epilogue.body.loops if self.epilogue else frozenset())

    def walks(self, access: Access) -> bool:
        """Whether the access varies with every loop: what is computed once for each of its elements is computed once
        for each iteration."""
        return all(size == 1 or loop in access.loops for loop, size in enumerate(self.sizes))

    def map_accesses(self, function: Callable[[Access], Access]) -> None:
        """Replaces every access (tables stay)."""
        self.outputs = tuple(map(function, self.outputs))
        self.map_expressions(lambda roots: accessing(roots, function))
        if self.epilogue:
            self.epilogue = replace(self.epilogue, outputs=tuple(map(function, self.epilogue.outputs)))

    def map_expressions(self, function: Callable[[tuple[Expression, ...]], tuple[Expression, ...]]) -> None:
        """Replaces the body's roots, and those of the epilogue, by what ``function`` makes of them."""
        self.map_body(function)
        if self.epilogue:
            self.epilogue = replace(self.epilogue, values=function(self.epilogue.values))

    def map_body(self, function: Callable[[tuple[Expression, ...]], tuple[Expression, ...]]) -> None:
        """Replaces the body's roots alone."""
        roots = function((*self.values, *self.checks))
        self.values, self.checks = roots[: len(self.values)], roots[len(self.values) :]

    def read_instead(self, old: Access, new: Access) -> None:
        """Lets the body read another place than ``old``."""
        self.map_body(lambda roots: accessing(roots, lambda access: new if access == old else access))


# Operands in one buffer from which on they have one pointer.
_SHARING_A_POINTER = 4

_DERIVED = frozenset(name for name, member in vars(LoopNest).items() if isinstance(member, cached_property))


@dataclass(eq=False)
class OutlinedRegion:
    """A call of the function ``@symbol`` (``text``): pointers to inputs, outputs and temporaries, then scalars; see
    ``outlined_regions.py``."""

    symbol: str
    text: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    temporaries: tuple[Buffer, ...]
    scalars: tuple[Scalar, ...]
    results: tuple[Scalar, ...]
    nodes: frozenset[int] = frozenset()

    @property
    def reads(self) -> list[Buffer]:
        return list(self.inputs)

    @property
    def writes(self) -> list[Buffer]:
        return [*self.outputs, *self.temporaries]


@dataclass(eq=False)
class ElementStep:
    """Moves ``scalar`` from or to the element of ``buffer`` at ``offset`` plus the sum of ``indices`` times
    ``strides``."""

    scalar: Scalar
    buffer: Buffer
    offset: AnySize
    indices: tuple[Scalar, ...]
    strides: tuple[AnySize, ...]


@dataclass(eq=False)
class LoadStep(ElementStep):
    """The scalar becomes the element."""

    @property
    def reads(self) -> list[Buffer]:
        return [self.buffer]

    @property
    def writes(self) -> list[Buffer]:
        return []


@dataclass(eq=False)
class StoreStep(ElementStep):
    """The element becomes the scalar."""

    @property
    def reads(self) -> list[Buffer]:
        return []

    @property
    def writes(self) -> list[Buffer]:
        return [self.buffer]


@dataclass(eq=False)
class ScalarStep:
    """A scalar op of MLIR, ``attributes`` as text; or ``constant``: ``value`` as a number of the result's type."""

    name: str
    operands: tuple[Scalar, ...]
    attributes: str
    result: Scalar
    value: int | float | Size | None = None

    reads: list[Buffer] = field(default_factory=list, init=False)
    writes: list[Buffer] = field(default_factory=list, init=False)


@dataclass(eq=False)
class AssertStep:
    """The call fails unless the condition holds."""

    condition: Scalar

    reads: list[Buffer] = field(default_factory=list, init=False)
    writes: list[Buffer] = field(default_factory=list, init=False)


@dataclass(eq=False)
class TileLoop:
    """Nests that run tile by tile: for each tile of the axes, loops that all share, all members in order.

    ``members`` are over one full tile. ``loops``: for each member the loop of each axis. ``extents``: the iterations of
    each axis; ``tile``: those of a full tile, the last one along an axis may be shorter. ``locals``: buffers (of kind
    ``local``) for what passes between members within a tile; each has room for a full one.
    """

    members: tuple[LoopNest, ...]
    loops: tuple[tuple[int, ...], ...]
    extents: tuple[AnySize, ...]
    tile: tuple[int, ...]
    locals: tuple[Buffer, ...]

    @property
    def reads(self) -> list[Buffer]:
        return [b for member in self.members for b in member.reads if b.kind != "local"]

    @property
    def writes(self) -> list[Buffer]:
        return [b for member in self.members for b in member.writes if b.kind != "local"]

    def map_accesses(self, function: Callable[[Access], Access]) -> None:
        for member in self.members:
            member.map_accesses(function)

    def part(self, member: int, extents: Sequence[AnySize]) -> LoopNest:
        """A member over a tile of other ``extents``."""
        sizes = list(self.members[member].sizes)
        for loop, extent in zip(self.loops[member], extents, strict=True):
            sizes[loop] = extent
        return replace(self.members[member], sizes=tuple(sizes))

    def strides(self, member: int, number: int) -> tuple[AnySize, ...]:
        """Bytes from tile to tile along each axis for operand ``number`` of a member."""
        access = self.members[member].accesses[number]
        if access.buffer.kind == "local":
            return (0,) * len(self.tile)
        flat = access.flat(len(self.members[member].sizes))
        size = ELEMENT_BYTES[stored(access.buffer.element)]
        pairs = zip(self.loops[member], self.tile, strict=True)
        return tuple(flat.factors[loop] * extent * size for loop, extent in pairs)


@dataclass(eq=False)
class View:
    """``buffer``, of kind ``view``, is the memory of ``base`` from element ``offset`` on, ``distance`` elements further
    in each iteration."""

    buffer: Buffer
    base: Buffer
    offset: AnySize
    distance: AnySize


@dataclass(eq=False)
class RepeatLoop:
    """Runs ``steps`` ``count`` times, one after the other. What differs between iterations is where their ``views``
    lie; buffers are as they are for all other steps."""

    count: AnySize
    steps: tuple[LoopNest | TileLoop, ...]
    views: tuple[View, ...]

    @property
    def reads(self) -> list[Buffer]:
        return self._seen([b for step in self.steps for b in step.reads])

    @property
    def writes(self) -> list[Buffer]:
        return self._seen([b for step in self.steps for b in step.writes])

    @property
    def nests(self) -> list[LoopNest]:
        """Everything that an iteration computes, in order."""
        return [n for step in self.steps for n in (step.members if isinstance(step, TileLoop) else (step,))]

    def _seen(self, buffers: list[Buffer]) -> list[Buffer]:
        bases = {view.buffer: view.base for view in self.views}
        return [bases.get(b, b) for b in buffers]

    def rename(self, function: Callable[[Buffer], Buffer]) -> None:
        """Replaces every buffer (views stay)."""
        for step in self.steps:
            step.map_accesses(lambda access: replace(access, buffer=function(access.buffer)))
        self.views = tuple(replace(view, base=function(view.base)) for view in self.views)


Step = LoopNest | TileLoop | RepeatLoop | OutlinedRegion | LoadStep | StoreStep | ScalarStep | AssertStep


def flattened(steps: Iterable[Step]) -> Iterator[Step]:
    """LoopProgram, and those that they repeat."""
    for step in steps:
        yield step
        if isinstance(step, RepeatLoop):
            yield from step.steps


@dataclass
class Packing:
    """The steps that make the packed buffer ``buffer`` from parameters."""

    buffer: Buffer
    steps: list[Step]

    @property
    def arguments(self) -> tuple[int, ...]:
        """Places of the parameters that it reads."""
        found = {b.position for s in self.steps for b in s.reads if b.kind == "parameter"}
        return tuple(sorted(found))


@dataclass(frozen=True)
class Contraction:
    """A sum of products that more than one algorithm computes, ``count`` times in a program. ``loops``: the sizes of
    the nest that does so plainly, for people; ``nodes``: those of the group that it computes; ``algorithm``: which one
    is taken; ``is_exact``: whether its errors allow that it is taken for its speed, not only where it is asked for."""

    loops: str
    nodes: frozenset[int]
    algorithm: str
    count: int = 1
    is_exact: bool = True


@dataclass
class LoopProgram:
    """The whole of an executable: ``steps`` in order, the text of every global that they use, by symbol, and what is
    packed ahead, in the order of the packed buffers' ``position``.

    The steps of a dynamic program have sizes (:class:`~torchmdla.compiler.sizes.Size`) where those of a static one have
    integers; ``typical`` are values of the symbols, to choose schedules for. ``not_negative`` are the numbers that each
    call has to find not to be negative. ``varying``: of a sample of a dynamic program, the sizes that other samples
    have others in the place of. ``measured``: the algorithms that were measured to be the fastest, by the names of
    contractions; ``contractions``: those for which one was chosen."""

    steps: list[Step]
    globals: dict[str, str]
    packings: list[Packing] = field(default_factory=list)
    typical: tuple[int, ...] = ()
    not_negative: list[Size] = field(default_factory=list)
    varying: frozenset[int] = frozenset()
    measured: Mapping[str, str] = field(default_factory=dict, init=False)
    contractions: dict[str, Contraction] = field(default_factory=dict, init=False)

    def varies(self, size: AnySize) -> bool:
        """Whether a size differs between calls."""
        return isinstance(size, Size) or size in self.varying

    def users(self, buffer: Buffer) -> list[Step]:
        """The steps that read or write a buffer, in order."""
        return [s for s in self.steps if buffer in s.reads or buffer in s.writes]

    def replace_step(self, step: Step, others: Sequence[Step]) -> None:
        """Put others in the place of a step."""
        place = self.steps.index(step)
        self.steps[place : place + 1] = others

    def nests(self) -> list[LoopNest]:
        return [s for s in self.steps if isinstance(s, LoopNest)]

    def buffers(self) -> list[Buffer]:
        """Every buffer in use, in order of appearance."""
        return list(dict.fromkeys(b for s in self.steps for b in [*s.reads, *s.writes]))


def first_and_last_uses(steps: Iterable[Step]) -> tuple[dict[Buffer, int], dict[Buffer, int]]:
    """The positions of the first and of the last step that use each buffer, in order of appearance."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for position, step in enumerate(steps):
        for buffer in [*step.reads, *step.writes]:
            first.setdefault(buffer, position)
            last[buffer] = position
    return first, last


class Users:
    """The steps that use each buffer, in order: an index for passes that ask for many, which they keep up."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._found: dict[Buffer, list[Step]] = {}
        for step in steps:
            for buffer in dict.fromkeys([*step.reads, *step.writes]):
                self._found.setdefault(buffer, []).append(step)

    def of(self, buffer: Buffer) -> list[Step]:
        """The steps that read or write a buffer."""
        return self._found.get(buffer, [])

    def take_over(self, old: Step, new: Step) -> None:
        """Lets ``new`` be the user of what ``old`` used, in its place."""
        for buffer in dict.fromkeys([*old.reads, *old.writes]):
            self._found[buffer] = [new if s is old else s for s in self._found[buffer] if s is not new]

    def set(self, buffer: Buffer, steps: list[Step]) -> None:
        self._found[buffer] = steps


def covers(step: LoopNest, access: Access) -> bool:
    """Whether the loops that do not reduce write each element of the access's buffer exactly once."""
    flat = access.flat(len(step.sizes))
    expected: AnySize = 1
    loops = [(f, s) for f, s, r in zip(flat.factors, step.sizes, step.reduction, strict=True) if not r and s != 1]
    for factor, size in sorted(loops, key=lambda loop: estimate(loop[0])):
        if factor != expected:
            return False
        expected *= size
    return not flat.constant and expected == access.buffer.count


def is_found_by_index(step: LoopNest, access: Access) -> bool:
    """Whether a step writes all of the access's buffer, each element by the indices of loops, one for each
    dimension."""
    return all(index.is_loop() or not index.loops for index in access.indices) and covers(step, access)


def filled_with(step: Step) -> Expression | None:
    """The constant that a step writes to all of its only output, if that is all it does."""
    if not isinstance(step, LoopNest) or step.epilogue or step.checks or any(step.reduction) or len(step.outputs) != 1:
        return None
    return step.values[0] if step.values[0].op == "constant" and covers(step, step.outputs[0]) else None


def is_copy(step: Step) -> bool:
    """Whether a step only moves elements, each to one place."""
    return isinstance(step, LoopNest) and is_elementwise(step) and [e.op for e in step.values] == ["load"]


def is_elementwise(step: Step) -> bool:
    """Whether a step is no more than a computation of each element of its outputs on its own."""
    return (
        isinstance(step, LoopNest)
        and not any(step.reduction)
        and not step.tables
        and not step.indexed_loops
        and step.initial is None
        and step.epilogue is None
        and not step.checks
    )


def sums_from_zero(step: LoopNest) -> bool:
    """Return whether what a step reduces starts from zero."""
    return step.initial is not None and step.initial.payload == 0


def starts_from_zero(step: LoopNest) -> bool:
    """Whether what a step with one output reduces starts from zero, and nothing is checked meanwhile."""
    return not step.checks and sums_from_zero(step)


def may_move(steps: LoopProgram, step: Step, later: Step) -> bool:
    """Whether nothing between a step and a later one writes what the first one reads."""
    between = steps.steps[steps.steps.index(step) + 1 : steps.steps.index(later)]
    written = {buffer for other in between for buffer in other.writes}
    return not written & set(step.reads)


def _kernel(step: LoopNest) -> AnyNest:
    """Return what the kernel of a step computes, with all loops of the step."""
    loops, roots = len(step.sizes), by_number((*step.values, *step.checks))
    return KernelSpec(
        sizes=step.sizes,
        reduction=step.reduction,
        inputs=_operands(step.inputs, loops),
        outputs=_operands(step.outputs, loops, len(step.inputs)),
        values=roots[: len(step.values)],
        scalars=tuple(s.type for s in step.scalars),
        tables=tuple(t.table for t in step.tables),
        checks=roots[len(step.values) :],
        initial=step.initial,
        epilogue=_epilogue(step, step.epilogue) if step.epilogue else None,
    )


def _operands(accesses: Sequence[Access], loops: int, first: int = 0) -> tuple[AnyOperand, ...]:
    """Return the operands of ``accesses``, whose numbers begin with ``first``. Many that are a constant distance apart
    in one buffer have one pointer. A few have one each, so that kernels that differ in the distance alone are equal."""
    flats = [access.flat(loops) for access in accesses]
    operands = [Operand(computed(a.element), _in_words(a, f.factors)) for a, f in zip(accesses, flats, strict=True)]
    alike: dict[tuple[Buffer, int, tuple[AnySize, ...]], list[int]] = {}
    for number, (access, flat) in enumerate(zip(accesses, flats, strict=True)):
        alike.setdefault((access.buffer, access.width, flat.factors), []).append(number)
    for base, *others in alike.values():
        if len(others) + 1 < _SHARING_A_POINTER:
            continue
        for number in others:
            (distance,) = _in_words(accesses[base], (flats[number].constant - flats[base].constant,))
            if isinstance(distance, int):
                operands[number] = replace(operands[number], base=first + base, offset=distance)
    return tuple(operands)


def _in_words(access: Access, factors: tuple[AnySize, ...]) -> tuple[AnySize, ...]:
    """Distances in elements of a buffer as distances in what an access touches at once."""
    if access.width == 1:
        return factors
    distances = [quotient(factor, access.width) for factor in factors]
    assert None not in distances, "a word lies at a multiple of its width"
    return tuple(distance for distance in distances if distance is not None)


def _epilogue(step: LoopNest, epilogue: Epilogue) -> KernelEpilogue[AnySize]:
    loops, scalars = len(step.sizes), tuple(s.type for s in epilogue.body.scalars)
    inputs = _operands(epilogue.body.loads, loops, len(step.inputs))
    outputs = _operands(epilogue.outputs, loops, len(step.inputs) + len(inputs))
    return KernelEpilogue(inputs, outputs, scalars, by_number(epilogue.values, len(step.inputs), len(step.scalars)))


@lru_cache(maxsize=8192)
def by_number(roots: tuple[Expression, ...], first_operand: int = 0, first_scalar: int = 0) -> tuple[Expression, ...]:
    """``roots`` with the numbers, among a kernel's, of what they read."""
    found = contents(roots)
    numbers: dict[tuple[str, Any], tuple[str, int]] = {
        **{("load", access): ("operand", first_operand + k) for k, access in enumerate(found.loads)},
        **{("scalar", value): ("scalar", first_scalar + k) for k, value in enumerate(found.scalars)},
        **{("gather", table): ("gather", k) for k, table in enumerate(found.tables)},
    }

    def leaf(expression: Expression) -> Expression | None:
        known = numbers.get((expression.op, expression.payload))
        return known and numbered(known[0], expression.type, known[1], expression.operands)

    return rewritten(roots, leaf)


def split_loop(step: LoopNest, loop: int, sizes: Sequence[AnySize]) -> None:
    """Replaces ``loop`` by loops of ``sizes``, outermost first, at its place."""
    steps = [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]

    def split(index: AffineExpr) -> AffineExpr:
        own = tuple(index.factors[loop] * s for s in steps)
        return replace(index, factors=index.factors[:loop] + own + index.factors[loop + 1 :])

    step.map_accesses(lambda access: replace(access, indices=tuple(map(split, access.indices))))
    step.sizes = step.sizes[:loop] + tuple(sizes) + step.sizes[loop + 1 :]
    step.reduction = step.reduction[:loop] + (step.reduction[loop],) * len(sizes) + step.reduction[loop + 1 :]
    shift = len(sizes) - 1
    step.map_expressions(lambda roots: reindexed(roots, lambda own: own + shift if own >= loop else own))
    innermost = index(loop + shift)
    if loop + shift in step.indexed_loops:
        whole = reduce(_plus, (_times(index(loop + k), s) for k, s in enumerate(steps[:-1])), innermost)
        step.map_expressions(lambda roots: substituted(roots, {innermost: whole}))


def _times(value: Expression, number: AnySize) -> Expression:
    factor = size_of(number, value.type) if isinstance(number, Size) else constant(number, value.type)
    return operation("arith.muli", [value, factor], value.type)


def _plus(left: Expression, right: Expression) -> Expression:
    return operation("arith.addi", [left, right], left.type)


def contracts(step: LoopNest) -> bool:
    """Whether loops that reduce run over several inputs: a product of matrices, a convolution."""
    reduced = {loop for loop, flag in enumerate(step.reduction) if flag}
    if not reduced:
        return False
    moving = [a for a in step.inputs if reduced & {loop for i in a.indices for loop in i.loops}]
    return len({a.indices for a in moving}) > 1

"""Loop program: an executable as plain data, a list of steps on base buffers, read from linalg on tensors.

Passes change the list. ``plan.py`` chooses its schedules, and ``code/entry`` generates its code. A buffer is
contiguous, with its last dimension innermost, so a change of layout is another buffer with other accesses. Accesses
have the loops of the program. Loops are dropped and merged only by :attr:`LoopNest.kernel`, which makes the final
:class:`~torchmdla.devices.cpu.ir.kernel_spec.KernelSpec`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, reduce
from typing import Any

from torchmdla.compiler.sizes import AnySize, Size, estimate, quotient
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer, Scalar, TableAccess
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, register_type, storage_type
from torchmdla.devices.cpu.ir.expressions import (
    Contents,
    Expression,
    constant,
    contents,
    index,
    map_loads,
    numbered_value,
    operation,
    reindex,
    rewrite,
    substitute,
)
from torchmdla.devices.cpu.ir.expressions import size as size_of
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest, AnyOperand, KernelEpilogue, KernelSpec, Operand, simplify

# The limit on operations in a nest's body. Passes duplicate a body for each nest that it is fused with, and the time of
# LLVM's passes grows faster than linearly.
MAX_BODY_OPERATIONS = 200


@dataclass(frozen=True)
class Epilogue:
    """Computation on a nest's reduced results.

    ``values``, which use the reduced results, are stored to ``outputs`` instead of those results. Both are over the
    nest's loops.
    """

    outputs: tuple[Access, ...]
    values: tuple[Expression, ...]

    @property
    def body(self) -> Contents:
        return contents(self.values)


@dataclass(eq=False)
class LoopNest:
    """Loops of ``sizes`` that store an expression to each output in each iteration.

    Loops marked in ``reduction`` carry the outputs: ``values[i]`` is the new accumulator of output i. Accumulators
    start at the constant ``initial``, or at the output's current value if ``initial`` is not set. With an epilogue the
    outputs are not in memory, and ``initial`` is set. The call fails unless all ``checks`` hold in every iteration.
    ``place`` is set in a :class:`Scatter` only. ``nodes`` are the numbers of the group's nodes that the nest computes,
    for debugging.
    """

    sizes: tuple[AnySize, ...]
    reduction: tuple[bool, ...]
    outputs: tuple[Access, ...]
    values: tuple[Expression, ...]
    initial: Expression | None = None
    epilogue: Epilogue | None = None
    checks: tuple[Expression, ...] = ()
    place: Expression | None = None
    nodes: frozenset[int] = frozenset()

    def __setattr__(self, name: str, value: object) -> None:
        # Passes read the derived properties many times between changes. The values that they derive from are immutable.
        for derived in _DERIVED.intersection(self.__dict__):
            del self.__dict__[derived]
        super().__setattr__(name, value)

    @classmethod
    def elementwise(cls, sizes: tuple[AnySize, ...], output: Access, value: Expression) -> LoopNest:
        """Return a nest that stores ``value`` to ``output``."""
        return cls(sizes, (False,) * len(sizes), (output,), (value,))

    @cached_property
    def body(self) -> Contents:
        """Return the expressions that the nest computes, without its epilogue."""
        return contents(self.roots)

    @property
    def roots(self) -> tuple[Expression, ...]:
        """Return the roots of the body: values, checks, and the place if there is one."""
        return (*self.values, *self.checks, *((self.place,) if self.place else ()))

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
        """Return the accesses that the nest reads, including outputs whose old values it uses."""
        return self.inputs + self.carried + (self.epilogue.body.loads if self.epilogue else ())

    @cached_property
    def carried(self) -> tuple[Access, ...]:
        """Return the outputs whose accumulators start from the values in memory."""
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
        """Return the accesses of the kernel at the loops' indices, in the order of its operands."""
        return self.inputs + (self.epilogue.body.loads + self.epilogue.outputs if self.epilogue else self.outputs)

    @cached_property
    def all_scalars(self) -> tuple[Scalar, ...]:
        """Return the scalars of the body, then those of the epilogue."""
        return self.scalars + (self.epilogue.body.scalars if self.epilogue else ())

    @cached_property
    def kernel(self) -> AnyNest:
        """Return the specification of the step's kernel."""
        return simplify(_kernel(self))

    @cached_property
    def places(self) -> list[tuple[Buffer, AnySize]]:
        """Return the buffers and element offsets of the kernel's operands, then of its tables."""
        loops = len(self.sizes)
        return [(a.buffer, a.linearise(loops).constant) for a in self.accesses] + [
            (t.buffer, t.offset) for t in self.tables
        ]

    @cached_property
    def pointer_places(self) -> list[int]:
        """Return the numbers of the places that the kernel has pointers to, in pointer order."""
        return [*self.kernel.pointer_operands, *range(len(self.accesses), len(self.places))]

    @cached_property
    def indexed_loops(self) -> frozenset[int]:
        """Return the loops whose index is used as a value."""
        return self.body.loops | (self.epilogue.body.loops if self.epilogue else frozenset())

    def is_indexed_by_all_loops(self, access: Access) -> bool:
        """Return whether the access varies with every loop.

        Then a value that is computed once for each accessed element is computed once for each iteration.
        """
        return all(size == 1 or loop in access.loops for loop, size in enumerate(self.sizes))

    def is_needed(self, read: Collection[Buffer]) -> bool:
        """Return whether the nest has an effect if the buffers ``read`` are read."""
        return bool(self.tables or self.checks) or any(b.kind != "temporary" or b in read for b in self.writes)

    def map_accesses(self, function: Callable[[Access], Access]) -> None:
        """Apply ``function`` to every access, except to tables."""
        self.outputs = tuple(map(function, self.outputs))
        self.map_expressions(lambda roots: map_loads(roots, function))
        if self.epilogue:
            self.epilogue = replace(self.epilogue, outputs=tuple(map(function, self.epilogue.outputs)))

    def map_expressions(self, function: Callable[[tuple[Expression, ...]], tuple[Expression, ...]]) -> None:
        """Apply ``function`` to the roots of the body and to those of the epilogue."""
        self.map_body(function)
        if self.epilogue:
            self.epilogue = replace(self.epilogue, values=function(self.epilogue.values))

    def map_body(self, function: Callable[[tuple[Expression, ...]], tuple[Expression, ...]]) -> None:
        """Apply ``function`` to the roots of the body, not of the epilogue."""
        roots = function(self.roots)
        if self.place:
            roots, self.place = roots[:-1], roots[-1]
        self.values, self.checks = roots[: len(self.values)], roots[len(self.values) :]

    def replace_load(self, old: Access, new: Access) -> None:
        """Replace the access ``old`` by ``new`` in the loads of the body."""
        self.map_body(lambda roots: map_loads(roots, lambda access: new if access == old else access))


# The least number of operands in one buffer that share one pointer.
_MIN_SHARED_OPERANDS = 4

_DERIVED = frozenset(name for name, member in vars(LoopNest).items() if isinstance(member, cached_property))


@dataclass(eq=False)
class Scatter:
    """Nest without loops that reduce, whose outputs are at places that it computes.

    An iteration updates the elements that are ``nest.place`` elements after those at its indices. An ``accumulator`` is
    an element's value before the iteration. Several iterations may update one element: the loops that the place varies
    with run in order. Other loops reach other elements.
    """

    nest: LoopNest

    @property
    def nodes(self) -> frozenset[int]:
        return self.nest.nodes

    @property
    def reads(self) -> list[Buffer]:
        return self.nest.reads

    @property
    def writes(self) -> list[Buffer]:
        return self.nest.writes

    def map_accesses(self, function: Callable[[Access], Access]) -> None:
        self.nest.map_accesses(function)


@dataclass(eq=False)
class OutlinedRegion:
    """Call of the function ``@symbol``, whose MLIR is ``text``.

    Its arguments are pointers to inputs, outputs and temporaries, then scalars; see ``outlined_regions.py``.
    """

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
    """Copy between ``scalar`` and one element of ``buffer``.

    The element's index is ``offset`` plus the sum of ``indices`` times ``strides``.
    """

    scalar: Scalar
    buffer: Buffer
    offset: AnySize
    indices: tuple[Scalar, ...]
    strides: tuple[AnySize, ...]


@dataclass(eq=False)
class LoadStep(ElementStep):
    """Load of the element into the scalar."""

    writes: list[Buffer] = field(default_factory=list, init=False)

    @property
    def reads(self) -> list[Buffer]:
        return [self.buffer]


@dataclass(eq=False)
class StoreStep(ElementStep):
    """Store of the scalar to the element."""

    reads: list[Buffer] = field(default_factory=list, init=False)

    @property
    def writes(self) -> list[Buffer]:
        return [self.buffer]


@dataclass(eq=False)
class ScalarStep:
    """Scalar op of MLIR, with ``attributes`` as text.

    For the op ``constant``, ``value`` is a number of the result's type.
    """

    name: str
    operands: tuple[Scalar, ...]
    attributes: str
    result: Scalar
    value: int | float | Size | None = None

    reads: list[Buffer] = field(default_factory=list, init=False)
    writes: list[Buffer] = field(default_factory=list, init=False)


@dataclass(eq=False)
class AssertStep:
    """Check that makes the call fail unless the condition holds."""

    condition: Scalar

    reads: list[Buffer] = field(default_factory=list, init=False)
    writes: list[Buffer] = field(default_factory=list, init=False)


@dataclass(eq=False)
class TileLoop:
    """Nests that run tile by tile.

    For each tile of the axes, which all members share, all members run in order.

    Attributes:
        members: the nests, over one full tile.
        loops: for each member, its loop for each axis.
        extents: the number of iterations of each axis.
        tile: the iterations of a full tile. The last tile along an axis may be shorter.
        locals: buffers of kind ``local`` for values that pass between members within a tile, large enough for a full
            tile.
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
        """Return a member over a tile of other ``extents``."""
        sizes = list(self.members[member].sizes)
        for loop, extent in zip(self.loops[member], extents, strict=True):
            sizes[loop] = extent
        return replace(self.members[member], sizes=tuple(sizes))

    def strides(self, member: int, number: int) -> tuple[AnySize, ...]:
        """Return the distance in bytes from tile to tile along each axis, for operand ``number`` of a member."""
        access = self.members[member].accesses[number]
        if access.buffer.kind == "local":
            return (0,) * len(self.tile)
        flat = access.linearise(len(self.members[member].sizes))
        size = ELEMENT_BYTES[storage_type(access.buffer.element)]
        pairs = zip(self.loops[member], self.tile, strict=True)
        return tuple(flat.factors[loop] * extent * size for loop, extent in pairs)


@dataclass(eq=False)
class View:
    """View into ``base``: ``buffer``, of kind ``view``, begins at element ``offset``.

    Each iteration moves it by ``distance`` elements.
    """

    buffer: Buffer
    base: Buffer
    offset: AnySize
    distance: AnySize


@dataclass(eq=False)
class RepeatLoop:
    """Loop that runs ``steps`` ``count`` times, sequentially.

    Iterations differ only in the positions of their ``views``. All other buffers are the same in each iteration.
    """

    count: AnySize
    steps: tuple[LoopNest | TileLoop, ...]
    views: tuple[View, ...]

    @property
    def reads(self) -> list[Buffer]:
        return self._resolve_views([b for step in self.steps for b in step.reads])

    @property
    def writes(self) -> list[Buffer]:
        return self._resolve_views([b for step in self.steps for b in step.writes])

    @property
    def nests(self) -> list[LoopNest]:
        """Return all nests of one iteration, in order."""
        return [n for step in self.steps for n in (step.members if isinstance(step, TileLoop) else (step,))]

    def _resolve_views(self, buffers: list[Buffer]) -> list[Buffer]:
        bases = {view.buffer: view.base for view in self.views}
        return [bases.get(b, b) for b in buffers]

    def rename(self, function: Callable[[Buffer], Buffer]) -> None:
        """Apply ``function`` to every buffer, except to views."""
        for step in self.steps:
            step.map_accesses(lambda access: replace(access, buffer=function(access.buffer)))
        self.views = tuple(replace(view, base=function(view.base)) for view in self.views)


# Steps that the entry calls as kernels. It numbers them in order.
KernelStep = LoopNest | TileLoop | Scatter | OutlinedRegion

Step = LoopNest | TileLoop | RepeatLoop | Scatter | OutlinedRegion | LoadStep | StoreStep | ScalarStep | AssertStep


def flatten(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield all steps, each repeat loop before the steps inside it."""
    for step in steps:
        yield step
        if isinstance(step, RepeatLoop):
            yield from step.steps


@dataclass
class Packing:
    """Steps that compute the packed buffer ``buffer`` from parameters."""

    buffer: Buffer
    steps: list[Step]

    @property
    def arguments(self) -> tuple[int, ...]:
        """Return the positions of the parameters that it reads."""
        positions = {b.position for s in self.steps for b in s.reads if b.kind == "parameter"}
        return tuple(sorted(positions))


@dataclass(frozen=True)
class Contraction:
    """Sum of products for which there are several algorithms.

    Attributes:
        loops: the sizes of the nest that computes it directly, for debugging.
        nodes: the group's nodes that it computes.
        algorithm: the chosen algorithm.
        count: the number of its occurrences in the program.
        is_exact: whether the algorithm's error is small enough to choose it for speed. Otherwise it is used only on
            request.
    """

    loops: str
    nodes: frozenset[int]
    algorithm: str
    count: int = 1
    is_exact: bool = True


@dataclass
class LoopProgram:
    """Loop program of a whole executable.

    In a dynamic program, sizes are :class:`~torchmdla.compiler.sizes.Size` instead of integers.

    Attributes:
        steps: the steps, in order.
        globals: the text of every global that the steps use, by symbol.
        packings: the computations of packed buffers ahead of calls, in the order of the buffers' ``position``.
        typical: values of the symbols for which schedules are chosen.
        not_negative: the numbers that each call must check to be non-negative.
        in_place: the positions of each result and input in whose memory the result may be computed.
        releases: the position of each large input that is not read to the end, and the kernel from which it is not.
        varying: in a sample of a dynamic program, the sizes that other samples replace by other sizes.
        measured: the algorithm that was measured to be the fastest, by the contraction's name.
        contractions: the contractions for which an algorithm was chosen, by name.
    """

    steps: list[Step]
    globals: dict[str, str]
    packings: list[Packing] = field(default_factory=list)
    typical: tuple[int, ...] = ()
    not_negative: list[Size] = field(default_factory=list)
    in_place: tuple[tuple[int, int], ...] = ()
    releases: tuple[tuple[int, int], ...] = ()
    varying: frozenset[int] = frozenset()
    measured: Mapping[str, str] = field(default_factory=dict, init=False)
    contractions: dict[str, Contraction] = field(default_factory=dict, init=False)

    def is_varying(self, size: AnySize) -> bool:
        """Return whether a size differs between calls."""
        return isinstance(size, Size) or size in self.varying

    def users(self, buffer: Buffer) -> list[Step]:
        """Return the steps that read or write a buffer, in order."""
        return [s for s in self.steps if buffer in s.reads or buffer in s.writes]

    def replace_step(self, step: Step, others: Sequence[Step]) -> None:
        """Replace a step by ``others``."""
        place = self.steps.index(step)
        self.steps[place : place + 1] = others

    def nests(self) -> list[LoopNest]:
        return [s for s in self.steps if isinstance(s, LoopNest)]

    def buffers(self) -> list[Buffer]:
        """Return every buffer in use, in order of appearance."""
        return list(dict.fromkeys(b for s in self.steps for b in [*s.reads, *s.writes]))

    def remove_unread(self) -> None:
        """Remove nests that only write unread temporaries, until no such nest is left."""
        count = -1
        while count != len(self.steps):
            count, read = len(self.steps), {b for s in self.steps for b in s.reads}
            self.steps = [s for s in self.steps if not isinstance(s, LoopNest) or s.is_needed(read)]


def first_and_last_uses(steps: Iterable[Step]) -> tuple[dict[Buffer, int], dict[Buffer, int]]:
    """Return the positions of each buffer's first and last user, in order of appearance."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for position, step in enumerate(steps):
        for buffer in [*step.reads, *step.writes]:
            first.setdefault(buffer, position)
            last[buffer] = position
    return first, last


class Users:
    """Index from each buffer to its users, in order.

    It is for passes with many queries, which must keep it up to date.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        self._users: dict[Buffer, list[Step]] = {}
        for step in steps:
            for buffer in dict.fromkeys([*step.reads, *step.writes]):
                self._users.setdefault(buffer, []).append(step)

    def of(self, buffer: Buffer) -> list[Step]:
        """Return the steps that read or write a buffer."""
        return self._users.get(buffer, [])

    def replace_step(self, old: Step, new: Step) -> None:
        """Replace ``old`` by ``new`` among the users of the buffers that ``old`` uses."""
        for buffer in dict.fromkeys([*old.reads, *old.writes]):
            self._users[buffer] = [new if s is old else s for s in self._users[buffer] if s is not new]

    def set(self, buffer: Buffer, steps: list[Step]) -> None:
        self._users[buffer] = steps


def is_bijective(step: LoopNest, access: Access) -> bool:
    """Return whether the loops that do not reduce write each element of the access's buffer exactly once."""
    flat = access.linearise(len(step.sizes))
    expected: AnySize = 1
    loops = [(f, s) for f, s, r in zip(flat.factors, step.sizes, step.reduction, strict=True) if not r and s != 1]
    for factor, size in sorted(loops, key=lambda loop: estimate(loop[0])):
        if factor != expected:
            return False
        expected *= size
    return not flat.constant and expected == access.buffer.count


def is_permutation(step: LoopNest, access: Access) -> bool:
    """Return whether a step writes the access's whole buffer at one loop index per dimension."""
    return all(index.is_loop() or not index.loops for index in access.indices) and is_bijective(step, access)


def fill_value(step: Step) -> Expression | None:
    """Return the constant that a step fills its only output with, or None if the step does anything else."""
    if not isinstance(step, LoopNest) or step.epilogue or step.checks or any(step.reduction) or len(step.outputs) != 1:
        return None
    return step.values[0] if step.values[0].op == "constant" and is_bijective(step, step.outputs[0]) else None


def is_copy(step: Step) -> bool:
    """Return whether a step only copies elements, each to one place."""
    return isinstance(step, LoopNest) and is_elementwise(step) and [e.op for e in step.values] == ["load"]


def is_elementwise(step: Step) -> bool:
    """Return whether a step only computes each element of its outputs independently."""
    return (
        isinstance(step, LoopNest)
        and not any(step.reduction)
        and not step.tables
        and not step.indexed_loops
        and step.initial is None
        and step.epilogue is None
        and not step.checks
    )


def has_zero_initial(step: LoopNest) -> bool:
    """Return whether a step's accumulators start from zero."""
    return step.initial is not None and step.initial.payload == 0


def starts_from_zero(step: LoopNest) -> bool:
    """Return whether a step without checks has one accumulator that starts from zero."""
    return not step.checks and has_zero_initial(step)


def may_move(steps: LoopProgram, step: Step, later: Step) -> bool:
    """Return whether no step between ``step`` and ``later`` writes a buffer that ``step`` reads."""
    between = steps.steps[steps.steps.index(step) + 1 : steps.steps.index(later)]
    written = {buffer for other in between for buffer in other.writes}
    return not written & set(step.reads)


def _kernel(step: LoopNest) -> AnyNest:
    loops, roots = len(step.sizes), number_leaves(step.roots)
    checks = len(step.values) + len(step.checks)
    return KernelSpec(
        sizes=step.sizes,
        reduction=step.reduction,
        inputs=_operands(step.inputs, loops),
        outputs=_operands(step.outputs, loops, len(step.inputs)),
        values=roots[: len(step.values)],
        scalars=tuple(s.type for s in step.scalars),
        tables=tuple(t.table for t in step.tables),
        checks=roots[len(step.values) : checks],
        place=roots[checks] if step.place else None,
        initial=step.initial,
        epilogue=_epilogue(step, step.epilogue) if step.epilogue else None,
    )


def _operands(accesses: Sequence[Access], loops: int, first: int = 0) -> tuple[AnyOperand, ...]:
    """Return the operands of ``accesses``, whose numbers begin with ``first``.

    Many operands at constant distances in one buffer share one pointer. A few operands have a pointer each, so that
    kernels that differ only in the distance are equal.
    """
    flats = [access.linearise(loops) for access in accesses]
    operands = [
        Operand(register_type(a.element), _to_words(a, f.factors)) for a, f in zip(accesses, flats, strict=True)
    ]
    alike: dict[tuple[Buffer, int, tuple[AnySize, ...]], list[int]] = {}
    for number, (access, flat) in enumerate(zip(accesses, flats, strict=True)):
        alike.setdefault((access.buffer, access.width, flat.factors), []).append(number)
    for base, *others in alike.values():
        if len(others) + 1 < _MIN_SHARED_OPERANDS:
            continue
        for number in others:
            (distance,) = _to_words(accesses[base], (flats[number].constant - flats[base].constant,))
            if isinstance(distance, int):
                operands[number] = replace(operands[number], base=first + base, offset=distance)
    return tuple(operands)


def _to_words(access: Access, factors: tuple[AnySize, ...]) -> tuple[AnySize, ...]:
    """Return distances in elements of the access's buffer as distances in words of the access."""
    if access.width == 1:
        return factors
    distances = [quotient(factor, access.width) for factor in factors]
    assert None not in distances, "a word is at a multiple of its width"
    return tuple(distance for distance in distances if distance is not None)


def _epilogue(step: LoopNest, epilogue: Epilogue) -> KernelEpilogue[AnySize]:
    loops, scalars = len(step.sizes), tuple(s.type for s in epilogue.body.scalars)
    inputs = _operands(epilogue.body.loads, loops, len(step.inputs))
    outputs = _operands(epilogue.outputs, loops, len(step.inputs) + len(inputs))
    return KernelEpilogue(inputs, outputs, scalars, number_leaves(epilogue.values, len(step.inputs), len(step.scalars)))


@lru_cache(maxsize=8192)
def number_leaves(
    roots: tuple[Expression, ...], first_operand: int = 0, first_scalar: int = 0
) -> tuple[Expression, ...]:
    """Return ``roots`` with leaves replaced by their numbers in the kernel."""
    body = contents(roots)
    numbers: dict[tuple[str, Any], tuple[str, int]] = {
        **{("load", access): ("operand", first_operand + k) for k, access in enumerate(body.loads)},
        **{("scalar", value): ("scalar", first_scalar + k) for k, value in enumerate(body.scalars)},
        **{("gather", table): ("gather", k) for k, table in enumerate(body.tables)},
    }

    def leaf(expression: Expression) -> Expression | None:
        known = numbers.get((expression.op, expression.payload))
        return known and numbered_value(known[0], expression.type, known[1], expression.operands)

    return rewrite(roots, leaf)


def split_loop(step: LoopNest, loop: int, sizes: Sequence[AnySize]) -> None:
    """Replace ``loop`` by loops of ``sizes``, outermost first, at the same position."""
    steps = [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]

    def split(index: AffineExpr) -> AffineExpr:
        current = tuple(index.factors[loop] * s for s in steps)
        return replace(index, factors=index.factors[:loop] + current + index.factors[loop + 1 :])

    step.map_accesses(lambda access: replace(access, indices=tuple(map(split, access.indices))))
    step.sizes = step.sizes[:loop] + tuple(sizes) + step.sizes[loop + 1 :]
    step.reduction = step.reduction[:loop] + (step.reduction[loop],) * len(sizes) + step.reduction[loop + 1 :]
    shift = len(sizes) - 1
    step.map_expressions(lambda roots: reindex(roots, lambda current: current + shift if current >= loop else current))
    innermost = index(loop + shift)
    if loop + shift in step.indexed_loops:
        whole = reduce(_add, (_multiply(index(loop + k), s) for k, s in enumerate(steps[:-1])), innermost)
        step.map_expressions(lambda roots: substitute(roots, {innermost: whole}))


def _multiply(value: Expression, number: AnySize) -> Expression:
    factor = size_of(number, value.type) if isinstance(number, Size) else constant(number, value.type)
    return operation("arith.muli", [value, factor], value.type)


def _add(left: Expression, right: Expression) -> Expression:
    return operation("arith.addi", [left, right], left.type)


def is_contraction(step: LoopNest) -> bool:
    """Return whether the loops that reduce index several inputs, as in a matrix product or a convolution."""
    reduced = {loop for loop, flag in enumerate(step.reduction) if flag}
    if not reduced:
        return False
    moving = [a for a in step.inputs if reduced & {loop for i in a.indices for loop in i.loops}]
    return len({a.indices for a in moving}) > 1

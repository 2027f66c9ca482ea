"""Rerolling of unrolled loops, such as the steps of a recurrent network over time, into one repeated step.

Consecutive steps that repeat with a period, equal except for the places of their operands, become a
:class:`~torchmdla.devices.cpu.ir.loop_program.RepeatLoop`. From one iteration to the next, an operand may

- advance: it is in the same buffer, a fixed distance further;
- be passed on: it is a temporary that an earlier iteration wrote. The iterations' results become rows of one buffer, so
  the operand advances by a row;
- be new: it is a temporary that other iterations do not need. All iterations use that of the first.

All of these only rename memory, so the steps compute the same values. Iterations at either end that differ stay as they
are, such as one with a constant initial state, or one that writes a result of the caller. Only recurrences become
loops, as independent iterations run better in parallel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from torchmdla.compiler.sizes import AnySize, estimate, static
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.expressions import map_loads
from torchmdla.devices.cpu.ir.loop_program import (
    Epilogue,
    LoopNest,
    LoopProgram,
    RepeatLoop,
    Step,
    TileLoop,
    Users,
    View,
    number_leaves,
)

# The least number of iterations of a loop, and the largest number of steps of an iteration.
_LEAST_COUNT = 3
_LONGEST_PERIOD = 32

# The number of iterations at either end that may be peeled although their steps have the loop's form.
_MOST_PEELED = 2


def reroll_loops(steps: LoopProgram) -> None:
    """Replace unrolled recurrences by loops, in place."""
    numbers: dict[object, int] = {}
    forms = [numbers.setdefault(_form(step), len(numbers)) for step in steps.steps]
    repeats = _Repeats(steps.steps, forms)
    start = 0
    while start < len(steps.steps):
        match = _longest_loop(steps.steps, repeats, start)
        if match is not None:
            loop, start, end = match
            _rename([*steps.steps[:start], *steps.steps[end:]], loop.rows_by_buffer())
            step = loop.build()
            steps.steps[start:end], forms[start:end] = [step], [numbers.setdefault(step, len(numbers))]
            repeats = _Repeats(steps.steps, forms)
        start += 1


def _longest_loop(steps: Sequence[Step], repeats: _Repeats, start: int) -> tuple[_Loop, int, int] | None:
    """Return the loop with the shortest period from ``start`` on, and the range of steps that it replaces."""
    tried: list[int] = []
    for period in range(1, min(_LONGEST_PERIOD, (len(steps) - start) // _LEAST_COUNT) + 1):
        end = repeats.end(period, start)
        if any(period % shorter == 0 for shorter in tried):
            continue
        for first, last in _spans((end - start) // period + 1):
            begin, behind = start + first * period, start + last * period
            tried.append(period)
            try:
                loop = repeats.loop(period, begin, behind)
                loop.lay_out([*steps[:begin], *steps[behind:]])
            except _NoLoop:
                continue
            return loop, begin, behind
    return None


class _Repeats:
    """Search for repetitions of steps, for each place in turn while the steps do not change."""

    def __init__(self, steps: Sequence[Step], forms: Sequence[int]) -> None:
        self._steps = steps
        self._forms = forms
        self._operands = _Operands()
        self._ends: dict[int, int] = {}
        self._reach: dict[tuple[int, int], int] = {}

    def end(self, period: int, start: int) -> int:
        """Return the first place from ``start`` on whose form differs from that of the place one period later."""
        end = max(start, self._ends.get(period, 0))
        while end + period < len(self._forms) and self._forms[end] == self._forms[end + period]:
            end += 1
        self._ends[period] = end
        return end

    def loop(self, period: int, begin: int, behind: int) -> _Loop:
        """Return the loop of the iterations between two places.

        Short loops within the range are checked first, as they show early that there is not a loop.

        Raises:
            _NoLoop: The iterations are not a loop.
        """
        last = behind - _LEAST_COUNT * period
        for place in (last, begin):
            self._build(period, place, place + _LEAST_COUNT * period)
        if self._first_without_loop(period, begin, last) <= last:
            raise _NoLoop
        return self._build(period, begin, behind)

    def _first_without_loop(self, period: int, begin: int, last: int) -> int:
        """Return the first place from ``begin`` to ``last``, in periods, where a loop of few iterations does not begin.

        If there is not any, return the place one period after the last.
        """
        place, tried = begin, []
        while place <= last and (period, place) not in self._reach and self._is_loop(period, place):
            tried.append(place)
            place += period
        reached = self._reach.get((period, place), place)
        if reached <= last:
            self._reach.update(((period, known), reached) for known in (*tried, place))
        return reached

    def _is_loop(self, period: int, place: int) -> bool:
        try:
            self._build(period, place, place + _LEAST_COUNT * period)
        except _NoLoop:
            return False
        return True

    def _build(self, period: int, begin: int, behind: int) -> _Loop:
        return _Loop([self._steps[k : k + period] for k in range(begin, behind, period)], self._operands)


def _spans(count: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of iterations that remain after peeling at either end, the longest first."""
    peeled = [(first, last) for first in range(_MOST_PEELED + 1) for last in range(_MOST_PEELED + 1)]
    for first, last in sorted(peeled, key=sum):
        if count - last - first >= _LEAST_COUNT:
            yield first, count - last


def _form(step: Step) -> object:
    """Return a key that is equal for steps that differ in their operands' places only.

    It is the step itself if a loop cannot contain it.
    """
    if isinstance(step, LoopNest) and not step.tables:
        return _nest_form(step, ())
    if isinstance(step, TileLoop):
        members = tuple(_nest_form(member, step.locals) for member in step.members)
        local = tuple((buffer.element, buffer.sizes) for buffer in step.locals)
        return members, step.loops, step.extents, step.tile, local
    return step


def _nest_form(step: LoopNest, local: Sequence[Buffer]) -> object:
    loops = len(step.sizes)
    operands = []
    for access in step.accesses:
        flat = access.linearise(loops)
        place = (local.index(access.buffer), flat.constant) if access.buffer in local else None
        operands.append((access.buffer.element, flat.factors, place))
    epilogue = step.epilogue
    end = (epilogue.body.scalars, number_leaves(epilogue.values)) if epilogue else None
    body = number_leaves((*step.values, *step.checks))
    header = (step.sizes, step.reduction, len(step.outputs), step.scalars, body, step.initial)
    return header, tuple(operands), end


@dataclass(frozen=True)
class _Operand:
    """Operand of a nest, with the element that the nest's first iteration touches as its place."""

    buffer: Buffer
    place: AnySize
    is_written: bool


def _nests(steps: Sequence[Step]) -> list[LoopNest]:
    return [n for s in steps for n in (s.members if isinstance(s, TileLoop) else [s]) if isinstance(n, LoopNest)]


class _Operands:
    """Cache of the operands of steps, valid while the steps do not change."""

    def __init__(self) -> None:
        self._of_step: dict[int, list[_Operand]] = {}

    def find(self, steps: Sequence[Step]) -> list[_Operand]:
        """Return the operands of all nests in the order of their accesses, except for those in local buffers."""
        return [operand for step in steps for operand in self._find_of_step(step)]

    def _find_of_step(self, step: Step) -> list[_Operand]:
        operands = self._of_step.get(id(step))
        if operands is None:
            operands = self._of_step[id(step)] = [operand for nest in _nests([step]) for operand in _operands(nest)]
        return operands


def _operands(nest: LoopNest) -> Iterator[_Operand]:
    first_written = len(nest.accesses) - len(nest.written_accesses)
    for k, access in enumerate(nest.accesses):
        if access.buffer.kind != "local":
            yield _Operand(access.buffer, access.linearise(len(nest.sizes)).constant, k >= first_written)


@dataclass
class _Values:
    """Temporaries that the iterations write, one for each iteration.

    ``written`` has these temporaries, by iteration. ``initial`` has those that exist before the loop, by iteration,
    where the first iteration of the loop is 0. If values outlive their iteration, they become rows of ``rows``.
    """

    written: list[Buffer]
    initial: dict[int, Buffer] = field(default_factory=dict)
    rows: Buffer | None = None

    def all(self) -> dict[int, Buffer]:
        return {**self.initial, **dict(enumerate(self.written))}

    def row(self, iteration: int) -> AnySize:
        """Return the element at which the row of an iteration's value starts."""
        return (iteration - min(self.initial, default=0)) * self.written[0].count

    def lay_out(self) -> None:
        count = len(self.written) - min(self.initial, default=0)
        self.rows = Buffer("temporary", self.written[0].element, (count * self.written[0].count,), fixed=True)

    def accepts(self, buffer: Buffer) -> bool:
        """Return whether a buffer can become a row."""
        first = self.written[0]
        return buffer.is_free and (buffer.element, buffer.count) == (first.element, first.count)


# The replacement of an operand. It is a buffer, with the distance by which it advances, or a value, with the number of
# iterations since it was written.
_Source = tuple[Buffer | _Values, AnySize]


class _Loop:
    """Loop that consists of ``iterations``.

    Raises:
        _NoLoop: The iterations are not a loop.
    """

    def __init__(self, iterations: Sequence[Sequence[Step]], operands: _Operands) -> None:
        self._iterations = iterations
        _check_neighbours(*map(operands.find, iterations[:2]))
        columns = list(zip(*map(operands.find, iterations), strict=True))
        self._values: list[_Values] = []
        self._values_by_buffer: dict[Buffer, tuple[_Values, int]] = {}
        for column in columns:
            self._find_values(column)
        self._sources = [self._source(column) for column in columns]
        self._check_recurrence(columns)

    def _find_values(self, column: Sequence[_Operand]) -> None:
        buffers = [operand.buffer for operand in column]
        if not column[0].is_written or len(set(buffers)) == 1 or buffers[0] in self._values_by_buffer:
            return
        values = _Values(buffers)
        if len(set(buffers)) < len(buffers) or not all(
            b not in self._values_by_buffer and values.accepts(b) for b in buffers
        ):
            raise _NoLoop
        self._values.append(values)
        self._values_by_buffer.update((buffer, (values, k)) for k, buffer in enumerate(buffers))

    def _source(self, column: Sequence[_Operand]) -> _Source:
        first, last = column[0], column[-1]
        distances = {b.place - a.place for a, b in pairwise(column)}
        if len(distances) > 1:
            raise _NoLoop
        (distance,) = distances
        if all(operand.buffer is first.buffer for operand in column):
            return first.buffer, distance
        if distance or last.buffer not in self._values_by_buffer:
            raise _NoLoop
        values, iteration = self._values_by_buffer[last.buffer]
        back = len(column) - 1 - iteration
        for k, operand in enumerate(column, -back):
            known = values.written[k] if k >= 0 else values.initial.setdefault(k, operand.buffer)
            if known is not operand.buffer or not values.accepts(known):
                raise _NoLoop
        return values, back

    def _check_recurrence(self, columns: Sequence[Sequence[_Operand]]) -> None:
        read = {c[0].buffer for c in columns if not c[0].is_written}
        written = {c[0].buffer for c in columns if c[0].is_written}
        stay = {buffer for buffer, _ in self._sources if isinstance(buffer, Buffer)}
        if not any(values.initial for values in self._values) and not read & written & stay:
            raise _NoLoop

    def lay_out(self, others: Sequence[Step]) -> None:
        """Assign rows to values that outlive their iterations; ``others`` are all steps outside the loop.

        Raises:
            _NoLoop: Such a step relies on the place of a value, or the rows need too much memory.
        """
        users = Users(others)
        seen: set[Buffer] = {buffer for buffer, _ in self._sources if isinstance(buffer, Buffer)}
        for values in self._values:
            everything = values.all().values()
            if seen & set(everything):
                raise _NoLoop
            seen.update(everything)
            uses = [(b, step) for b in everything for step in users.of(b)]
            if any(_has_fixed_place(buffer, step) for buffer, step in uses):
                raise _NoLoop
            if values.initial or uses:
                values.lay_out()
        # Rows exist until the loop ends. They may need as much memory as the loop walks anyway.
        walked = {b: abs(estimate(number)) for b, number in self._sources if number and isinstance(b, Buffer)}
        if sum(estimate(v.written[0].count) for v in self._values if v.rows is not None) > sum(walked.values()):
            raise _NoLoop

    def rows_by_buffer(self) -> dict[Buffer, tuple[Buffer, AnySize]]:
        """Return the row of each buffer that became one, as the buffer of rows and the first element."""
        laid_out = [(v, v.rows) for v in self._values if v.rows is not None]
        return {buffer: (rows, v.row(k)) for v, rows in laid_out for k, buffer in v.all().items()}

    def build(self) -> RepeatLoop:
        views: dict[object, View] = {}
        sources = iter(self._sources)

        def map_access(access: Access) -> Access:
            if access.buffer.kind == "local":
                return access
            source, number = next(sources)
            old = access.buffer
            moved = Buffer("view", old.element, old.sizes)
            if isinstance(source, Buffer):
                if not number:
                    return access
                view = View(moved, old, 0, number)
            elif source.rows is not None:
                view = View(moved, source.rows, source.row(-static(number)), source.written[0].count)
            else:
                return replace(access, buffer=source.written[0])
            key = (view.base, view.offset, view.distance, old.sizes)
            return replace(access, buffer=views.setdefault(key, view).buffer)

        first = self._iterations[0]
        for nest in _nests(first):
            _replace_accesses(nest, [map_access(access) for access in nest.accesses])
        steps = tuple(step for step in first if isinstance(step, LoopNest | TileLoop))
        return RepeatLoop(len(self._iterations), steps, tuple(views.values()))


def _check_neighbours(first: Sequence[_Operand], second: Sequence[_Operand]) -> None:
    """Check two iterations at little cost: their operands may differ in temporaries only."""
    for operand, other in zip(first, second, strict=True):
        if operand.buffer is not other.buffer and not (operand.buffer.is_free and other.buffer.is_free):
            raise _NoLoop


class _NoLoop(Exception):
    """The steps are not a loop."""


def _has_fixed_place(buffer: Buffer, step: Step) -> bool:
    """Return whether a step relies on the place of a buffer."""
    tables = [t.buffer for nest in _nests([step]) for t in nest.tables]
    return not isinstance(step, LoopNest | TileLoop) or buffer in tables


def _replace_accesses(nest: LoopNest, accesses: Sequence[Access]) -> None:
    """Replace the accesses of a nest, in their order."""
    inputs = dict(zip(nest.inputs, accesses, strict=False))
    rest = tuple(accesses[len(inputs) :])
    nest.map_body(lambda roots: map_loads(roots, inputs.__getitem__))
    if nest.epilogue is None:
        nest.outputs = rest
        return
    read = dict(zip(nest.epilogue.body.loads, rest, strict=False))
    nest.epilogue = Epilogue(rest[len(read) :], map_loads(nest.epilogue.values, read.__getitem__))


def _rename(steps: Sequence[Step], rows_by_buffer: dict[Buffer, tuple[Buffer, AnySize]]) -> None:
    for nest in _nests(steps):

        def map_access(access: Access, loops: int = len(nest.sizes)) -> Access:
            if access.buffer not in rows_by_buffer:
                return access
            rows, offset = rows_by_buffer[access.buffer]
            flat = access.linearise(loops)
            return Access(rows, (AffineExpr(flat.factors, flat.constant + offset),))

        nest.map_accesses(map_access)

"""Loops that a program has written out, as the steps of a recurrent network over time: one step that repeats.

Steps that follow each other with a period, equal but for where their operands lie, become a
:class:`~torchmdla.devices.cpu.loop_program.RepeatLoop`. From one iteration to the next an operand may

- advance: the same buffer, a fixed distance further;
- be passed on: a temporary that an earlier iteration wrote. What the iterations write one after the other becomes rows
  of one buffer, so the operand advances by a row;
- be anew: a temporary that no other iteration needs. All iterations use that of the first.

All of these only rename memory, so the steps compute what they did. Iterations at either end that differ (a state that
starts as a constant, a result that is the caller's) are left as they are. Only recurrences become loops: iterations
that need nothing of each other are better run side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from torchmdla.compiler.sizes import AnySize, estimate, static
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.expressions import accessing
from torchmdla.devices.cpu.loop_program import (
    Epilogue,
    LoopNest,
    LoopProgram,
    RepeatLoop,
    Step,
    TileLoop,
    Users,
    View,
    by_number,
)

# A loop has at least so many iterations, of at most so many steps.
_LEAST_COUNT = 3
_LONGEST_PERIOD = 32

# So many iterations at either end may be no part of the loop although their steps have its form.
_MOST_PEELED = 2


def reroll_loops(steps: LoopProgram) -> None:
    """Replaces recurrences that are written out by loops, in place."""
    numbers: dict[object, int] = {}
    forms = [numbers.setdefault(_form(step), len(numbers)) for step in steps.steps]
    repeats = _Repeats(steps.steps, forms)
    start = 0
    while start < len(steps.steps):
        found = _longest(steps.steps, repeats, start)
        if found is not None:
            loop, start, end = found
            _rename([*steps.steps[:start], *steps.steps[end:]], loop.renamed())
            step = loop.repeated()
            steps.steps[start:end], forms[start:end] = [step], [numbers.setdefault(step, len(numbers))]
            repeats = _Repeats(steps.steps, forms)
        start += 1


def _longest(steps: Sequence[Step], repeats: _Repeats, start: int) -> tuple[_Loop, int, int] | None:
    """The loop with the shortest period from ``start`` on, and from where to where the steps are that it replaces."""
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
    """How steps repeat, asked for each place in turn while they stay as they are."""

    def __init__(self, steps: Sequence[Step], forms: Sequence[int]) -> None:
        self._steps = steps
        self._forms = forms
        self._operands = _Operands()
        self._ends: dict[int, int] = {}
        self._reach: dict[tuple[int, int], int] = {}

    def end(self, period: int, start: int) -> int:
        """The first place from ``start`` on whose form is another one than that of the place a period further."""
        end = max(start, self._ends.get(period, 0))
        while end + period < len(self._forms) and self._forms[end] == self._forms[end + period]:
            end += 1
        self._ends[period] = end
        return end

    def loop(self, period: int, begin: int, behind: int) -> _Loop:
        """The loop of the iterations between two places.

        Raises:
            _NoLoop: they are none. Few iterations that are none, anywhere between, show that.
        """
        last = behind - _LEAST_COUNT * period
        for place in (last, begin):
            self._made(period, place, place + _LEAST_COUNT * period)
        if self._reached(period, begin, last) <= last:
            raise _NoLoop
        return self._made(period, begin, behind)

    def _reached(self, period: int, begin: int, last: int) -> int:
        """The first place from ``begin`` to ``last``, period by period, at which no loop of few iterations begins, or
        the one behind."""
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
            self._made(period, place, place + _LEAST_COUNT * period)
        except _NoLoop:
            return False
        return True

    def _made(self, period: int, begin: int, behind: int) -> _Loop:
        return _Loop([self._steps[k : k + period] for k in range(begin, behind, period)], self._operands)


def _spans(count: int) -> Iterator[tuple[int, int]]:
    """What may be left of ``count`` iterations without some at either end, most first."""
    peeled = [(first, last) for first in range(_MOST_PEELED + 1) for last in range(_MOST_PEELED + 1)]
    for first, last in sorted(peeled, key=sum):
        if count - last - first >= _LEAST_COUNT:
            yield first, count - last


def _form(step: Step) -> object:
    """What is equal in steps that differ in their operands' places only; the step itself if it is in no loop."""
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
        flat = access.flat(loops)
        place = (local.index(access.buffer), flat.constant) if access.buffer in local else None
        operands.append((access.buffer.element, flat.factors, place))
    epilogue = step.epilogue
    end = (epilogue.body.scalars, by_number(epilogue.values)) if epilogue else None
    body = by_number((*step.values, *step.checks))
    own = (step.sizes, step.reduction, len(step.outputs), step.scalars, body, step.initial)
    return own, tuple(operands), end


@dataclass(frozen=True)
class _Operand:
    """Where an operand of a nest lies, by the element that the nest's first iteration touches."""

    buffer: Buffer
    place: AnySize
    is_written: bool


def _nests(steps: Sequence[Step]) -> list[LoopNest]:
    return [n for s in steps for n in (s.members if isinstance(s, TileLoop) else [s]) if isinstance(n, LoopNest)]


class _Operands:
    """The operands of steps, which are asked for again and again while the steps stay as they are."""

    def __init__(self) -> None:
        self._of_step: dict[int, list[_Operand]] = {}

    def of(self, steps: Sequence[Step]) -> list[_Operand]:
        """Of all nests in the order of their accesses, but for what chains have within."""
        return [operand for step in steps for operand in self._of(step)]

    def _of(self, step: Step) -> list[_Operand]:
        found = self._of_step.get(id(step))
        if found is None:
            found = self._of_step[id(step)] = [operand for nest in _nests([step]) for operand in _operands(nest)]
        return found


def _operands(nest: LoopNest) -> Iterator[_Operand]:
    first_written = len(nest.accesses) - len(nest.written_accesses)
    for k, access in enumerate(nest.accesses):
        if access.buffer.kind != "local":
            yield _Operand(access.buffer, access.flat(len(nest.sizes)).constant, k >= first_written)


@dataclass
class _Values:
    """Temporaries that the iterations write, each one of its own: ``made``. ``given``: those that are there before, by
    iteration, the first of the loop being 0. Where values outlive their iteration, they are the rows of ``rows``."""

    made: list[Buffer]
    given: dict[int, Buffer] = field(default_factory=dict)
    rows: Buffer | None = None

    def all(self) -> dict[int, Buffer]:
        return {**self.given, **dict(enumerate(self.made))}

    def row(self, iteration: int) -> AnySize:
        """The element at which the row of an iteration's value starts."""
        return (iteration - min(self.given, default=0)) * self.made[0].count

    def lay_out(self) -> None:
        count = len(self.made) - min(self.given, default=0)
        self.rows = Buffer("temporary", self.made[0].element, (count * self.made[0].count,), fixed=True)

    def accepts(self, buffer: Buffer) -> bool:
        """Whether a buffer may be a row."""
        first = self.made[0]
        return _is_free(buffer) and (buffer.element, buffer.count) == (first.element, first.count)


def _is_free(buffer: Buffer) -> bool:
    return buffer.kind == "temporary" and not buffer.fixed


# What an operand becomes: the buffer that it is in all iterations, with the distance by which it advances, or the value
# of the iteration so many before.
_Source = tuple[Buffer | _Values, AnySize]


class _Loop:
    """The loop that ``iterations`` are.

    Raises:
        _NoLoop: they are none.
    """

    def __init__(self, iterations: Sequence[Sequence[Step]], operands: _Operands) -> None:
        self._iterations = iterations
        _check_neighbours(*map(operands.of, iterations[:2]))
        columns = list(zip(*map(operands.of, iterations), strict=True))
        self._values: list[_Values] = []
        self._made: dict[Buffer, tuple[_Values, int]] = {}
        for column in columns:
            self._find_values(column)
        self._sources = [self._source(column) for column in columns]
        self._check_recurrence(columns)

    def _find_values(self, column: Sequence[_Operand]) -> None:
        buffers = [operand.buffer for operand in column]
        if not column[0].is_written or len(set(buffers)) == 1 or buffers[0] in self._made:
            return
        values = _Values(buffers)
        if len(set(buffers)) < len(buffers) or not all(b not in self._made and values.accepts(b) for b in buffers):
            raise _NoLoop
        self._values.append(values)
        self._made.update((buffer, (values, k)) for k, buffer in enumerate(buffers))

    def _source(self, column: Sequence[_Operand]) -> _Source:
        first, last = column[0], column[-1]
        distances = {b.place - a.place for a, b in pairwise(column)}
        if len(distances) > 1:
            raise _NoLoop
        (distance,) = distances
        if all(operand.buffer is first.buffer for operand in column):
            return first.buffer, distance
        if distance or last.buffer not in self._made:
            raise _NoLoop
        values, iteration = self._made[last.buffer]
        back = len(column) - 1 - iteration
        for k, operand in enumerate(column, -back):
            known = values.made[k] if k >= 0 else values.given.setdefault(k, operand.buffer)
            if known is not operand.buffer or not values.accepts(known):
                raise _NoLoop
        return values, back

    def _check_recurrence(self, columns: Sequence[Sequence[_Operand]]) -> None:
        read = {c[0].buffer for c in columns if not c[0].is_written}
        written = {c[0].buffer for c in columns if c[0].is_written}
        stay = {buffer for buffer, _ in self._sources if isinstance(buffer, Buffer)}
        if not any(values.given for values in self._values) and not read & written & stay:
            raise _NoLoop

    def lay_out(self, others: Sequence[Step]) -> None:
        """Gives values that outlive their iterations rows; ``others`` are all steps outside of the loop.

        Raises:
            _NoLoop: one of these needs a value where it is, or the rows take too much memory.
        """
        users = Users(others)
        taken: set[Buffer] = {buffer for buffer, _ in self._sources if isinstance(buffer, Buffer)}
        for values in self._values:
            everything = values.all().values()
            if taken & set(everything):
                raise _NoLoop
            taken.update(everything)
            around = [(b, step) for b in everything for step in users.of(b)]
            if any(_is_needed_as_it_is(buffer, step) for buffer, step in around):
                raise _NoLoop
            if values.given or around:
                values.lay_out()
        # Rows are kept until the loop ends: they may take as much memory as the loop walks through anyway.
        walked = {b: abs(estimate(number)) for b, number in self._sources if number and isinstance(b, Buffer)}
        if sum(estimate(v.made[0].count) for v in self._values if v.rows is not None) > sum(walked.values()):
            raise _NoLoop

    def renamed(self) -> dict[Buffer, tuple[Buffer, AnySize]]:
        """The rows that buffers have become: of which buffer, and at which element of it."""
        laid_out = [(v, v.rows) for v in self._values if v.rows is not None]
        return {buffer: (rows, v.row(k)) for v, rows in laid_out for k, buffer in v.all().items()}

    def repeated(self) -> RepeatLoop:
        views: dict[object, View] = {}
        sources = iter(self._sources)

        def moved(access: Access) -> Access:
            if access.buffer.kind == "local":
                return access
            source, number = next(sources)
            old = access.buffer
            if isinstance(source, Buffer):
                view = View(_view_of(old), old, 0, number) if number else None
            elif source.rows is not None:
                view = View(_view_of(old), source.rows, source.row(-static(number)), source.made[0].count)
            else:
                return replace(access, buffer=source.made[0])
            if view is None:
                return access
            key = (view.base, view.offset, view.distance, old.sizes)
            return replace(access, buffer=views.setdefault(key, view).buffer)

        first = self._iterations[0]
        for nest in _nests(first):
            _replace_accesses(nest, [moved(access) for access in nest.accesses])
        steps = tuple(step for step in first if isinstance(step, LoopNest | TileLoop))
        return RepeatLoop(len(self._iterations), steps, tuple(views.values()))


def _check_neighbours(first: Sequence[_Operand], second: Sequence[_Operand]) -> None:
    """What of a loop shows in two iterations, at little cost: only temporaries may be others."""
    for one, other in zip(first, second, strict=True):
        if one.buffer is not other.buffer and not (_is_free(one.buffer) and _is_free(other.buffer)):
            raise _NoLoop


class _NoLoop(Exception):
    """Steps are no loop."""


def _is_needed_as_it_is(buffer: Buffer, step: Step) -> bool:
    """Whether a step relies on the place of a buffer."""
    tables = [t.buffer for nest in _nests([step]) for t in nest.tables]
    return not isinstance(step, LoopNest | TileLoop) or buffer in tables


def _view_of(buffer: Buffer) -> Buffer:
    return Buffer("view", buffer.element, buffer.sizes)


def _replace_accesses(nest: LoopNest, accesses: Sequence[Access]) -> None:
    """Gives a nest other accesses, in the order of its own."""
    own = dict(zip(nest.inputs, accesses, strict=False))
    rest = tuple(accesses[len(own) :])
    nest.map_body(lambda roots: accessing(roots, own.__getitem__))
    if nest.epilogue is None:
        nest.outputs = rest
        return
    read = dict(zip(nest.epilogue.body.loads, rest, strict=False))
    nest.epilogue = Epilogue(rest[len(read) :], accessing(nest.epilogue.values, read.__getitem__))


def _rename(steps: Sequence[Step], renamed: dict[Buffer, tuple[Buffer, AnySize]]) -> None:
    """Lets nests use the rows that buffers have become."""
    for nest in _nests(steps):

        def moved(access: Access, loops: int = len(nest.sizes)) -> Access:
            if access.buffer not in renamed:
                return access
            rows, offset = renamed[access.buffer]
            flat = access.flat(loops)
            return Access(rows, (AffineExpr(flat.factors, flat.constant + offset),))

        nest.map_accesses(moved)

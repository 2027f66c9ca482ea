"""From a group's subgraph to one program for all sizes.

The subgraph runs once with symbols for sizes, and is imported once with them (:mod:`torchmdla.capture.symbolic`). That
gives every size as an expression and the guards under which the group's structure is the same. Then it is written out
at several values of the symbols where the guards hold: the device learns from these how its own numbers depend on them.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sympy
import torch
from torch.utils._sympy import functions

from torchmdla import devices
from torchmdla.capture.outputs import output_of
from torchmdla.capture.places import Places, Values
from torchmdla.capture.size_program import LARGEST, SizeNodes, SizeProgram
from torchmdla.capture.subgraph import Subgraph
from torchmdla.capture.symbolic import RECURRENT, SymbolicRun, clear_shape_caches
from torchmdla.compile_service import records
from torchmdla.compile_service.versions import producers
from torchmdla.compiler.program import Argument, Program, Result, Sample
from torchmdla.compiler.sizes import Size
from torchmdla.errors import CompileError
from torchmdla.importer import NOTHING, ImportedGraph, Record, TensorMeta, Wanted
from torchmdla.importer.size_int import SizeInt, SizeValue

# The least size that is no specialisation: 0 and 1 change broadcasting and strides.
_LEAST = 2

# At how many points a program is written out: where all sizes are sums and products of one or two symbols, of more, and
# where they are not.
_POINTS, _POINTS_OF_MANY_SYMBOLS, _POINTS_WITH_PARTS = 5, 6, 8

# Between which sizes the points lie, where the guards allow it.
_LEAST_POINT, _MOST_POINT = 11, 61
_ATTEMPTS = 300

# Of more numbers between two sizes, so many are looked at: integers that are used as values may be large.
_MOST_CANDIDATES = 5000

# The most further symbols: numbers are looked for among the products of all.
_MOST_PARTS = 24


@dataclass(frozen=True)
class DynamicProgram:
    """A program for all sizes at which the guards hold.

    Attributes:
        imported: the group at the first sample.
        program: its symbols are the sizes that vary, then those that are computed from them.
        outputs: as ``_C.Executable`` takes them, with terms for numbers that vary.
        sizes: what a call evaluates.
    """

    imported: ImportedGraph
    program: Program
    outputs: list[tuple[str, Any]]
    sizes: SizeNodes


@clear_shape_caches()
def dynamic_program(
    subgraph: Subgraph,
    record: Record,
    parameters: Collection[int],
    device: devices.Device,
    places: Places,
    values: Values,
    written_out: bool,
    wanted: Wanted = NOTHING,
) -> DynamicProgram:
    """The program of a group for all sizes like those of a call.

    Args:
        subgraph, record, parameters: as for :func:`torchmdla.capture.specialise.compile_group`.
        places: which symbol each number of the inputs is.
        values: the symbols' values in the call.
        written_out: programs grow with the symbols, so that they are written out at small values only.
        wanted: what the device wants of programs.

    Raises:
        CompileError: something but numbers depends on the sizes, or a number is fixed by what is done with it.
    """
    fixed = set(_sizes(list(record.values())))
    hints = tuple(itertools.islice(_primes(_LEAST_POINT, fixed), len(values))) if written_out else values
    run = SymbolicRun(places, hints)
    with run:
        seen = run.record(subgraph.run_symbolic(run, record), record, subgraph.outputs)
    known = _KnownSizes(run, seen)
    everywhere = subgraph.import_program(
        known.marked(seen), parameters, replace(wanted, composite_ops=wanted.composite_ops | RECURRENT)
    )
    known.collect_conditions()
    if not known.hold(values):
        raise CompileError("what holds at small sizes does not at the call's")
    _check_agreement(known.at(seen, values), record, subgraph.outputs)
    points = _points(known, values, fixed, written_out)
    samples = [subgraph.import_program(known.at(seen, point), parameters, wanted) for point in points]
    if any(_form(sample) != _form(everywhere) for sample in samples):
        raise CompileError("bindings, roles, dtypes or layouts depend on the sizes")
    program = Program(
        "",
        known.at(everywhere.arguments, values),
        known.at(everywhere.results, values),
        device.target(),
        records.options_for(device),
        versions=producers(device),
        symbols=known.symbols(values),
        quotients=known.quotients(),
        samples=tuple(
            Sample(known.symbols(point), sample.mlir, sample.arguments, sample.results)
            for point, sample in zip(points, samples, strict=True)
        ),
    )
    outputs = [_with_terms(output_of(output, everywhere), known) for output in everywhere.outputs]
    return DynamicProgram(samples[0], program, outputs, known.program())


class _KnownSizes:
    """What the sizes of a symbolic run are at any values of its symbols, and the conditions under which they are that.

    Sizes are polynomials of the symbols, and of parts of their expressions that are none (quotients, remainders), which
    are further symbols.
    """

    def __init__(self, run: SymbolicRun, record: Record) -> None:
        self._run = run
        self._nodes = SizeProgram(run.symbols)
        self._hints = dict(zip(run.symbols, map(sympy.Integer, run.values), strict=True))
        self._conditions: list[sympy.Basic] = []
        self._resolved: dict[sympy.Expr, sympy.Expr] = {}
        parts: dict[sympy.Expr, None] = {}
        for seen in record.values():
            # An integer of the group's own may be a value alone; what a tensor's size is must be known as one.
            for size in _numbers(seen):
                if not isinstance(seen, int) or self._run.expression(size) not in run.values_of_sizes:
                    parts.update(dict.fromkeys(self._parts(self._expression(size))))
        if len(parts) > _MOST_PARTS:
            raise CompileError(f"{len(parts)} sizes are no sums and products of others")
        self._parts_of_sizes = list(parts)
        self._computed = [self._nodes.add(part) for part in parts]
        # Symbols that only the caller reads, behind those of the program.
        values_of_sizes = [self._resolve(expression) for expression in run.values_of_sizes]
        self._values_of_sizes = {value: self._nodes.add(value) for value in values_of_sizes}
        # What devices may rely on.
        self._conditions.extend(sympy.Ge(part, _LEAST) for part in parts)
        for size in _sizes(list(record.values())):
            if isinstance(size, SizeInt):
                self._conditions.append(sympy.Ge(self._expression(size), _LEAST))

    def collect_conditions(self) -> None:
        """Takes over what was decided on sizes up to now.

        Raises:
            CompileError: a size is fixed by it.
        """
        run = self._run
        conditions = [c for c in dict.fromkeys([*run.guards, *self._conditions]) if c != sympy.true]
        self._guards = [self._nodes.add(condition) for condition in conditions]
        replaced = [symbol for symbol in run.symbols if run.env.replace(symbol) != symbol]
        if replaced:
            raise CompileError("a size is used as a value, or two sizes must be equal", elsewhere=True)

    @property
    def has_parts(self) -> bool:
        """Whether there are sizes that are no polynomials of the run's symbols."""
        return bool(self._computed)

    def marked(self, record: Record) -> Record:
        """``record`` with the symbols of integers that are used as values."""

        def mark(seen: Any) -> Any:
            if isinstance(seen, list):
                return [mark(item) for item in seen]
            if not isinstance(seen, SizeInt) or (symbol := self._value_symbol(self._expression(seen))) is None:
                return seen
            made = SizeInt(seen.symbolic)
            made.symbol = symbol
            return made

        return {name: mark(seen) for name, seen in record.items()}

    def _value_symbol(self, expression: sympy.Expr) -> int | None:
        if expression not in self._values_of_sizes:
            return None
        return len(self._run.symbols) + len(self._computed) + list(self._values_of_sizes).index(expression)

    def program(self) -> SizeNodes:
        """What a call evaluates."""
        return self._nodes.nodes, [*self._computed, *self._values_of_sizes.values()], self._guards

    def hold(self, values: Values) -> bool:
        """Whether all conditions hold."""
        computed = self._nodes.run(values)
        return all(math.isfinite(computed[k]) for k in self._computed) and all(computed[k] == 1 for k in self._guards)

    def symbols(self, values: Values) -> Values:
        """The values of all symbols, further ones included."""
        computed = self._nodes.run(values)
        return (*values, *(int(computed[k]) for k in self._computed))

    def at(self, thing: Any, values: Values) -> Any:
        """A record, or anything made of sizes, where the symbols have ``values``."""
        computed: list[float] = []

        def number(size: int) -> int:
            if not isinstance(size, SizeInt):
                return size
            node = self._nodes.add(self._expression(size))
            if node >= len(computed):
                computed[:] = self._nodes.run(values)
            return int(computed[node])

        def concrete(item: Any) -> Any:
            if isinstance(item, SizeInt):
                symbol = self._value_symbol(self._expression(item))
                return number(item) if symbol is None else SizeValue(number(item), symbol)
            if isinstance(item, list | tuple):
                return type(item)(map(concrete, item))
            if isinstance(item, Mapping):
                return {key: concrete(value) for key, value in item.items()}
            if isinstance(item, TensorMeta):
                return replace(item, shape=tuple(map(number, item.shape)), strides=tuple(map(number, item.strides)))
            if isinstance(item, Argument | Result):
                return replace(item, shape=tuple(map(number, item.shape)))
            return item

        return concrete(thing)

    def quotients(self) -> tuple[tuple[int | Size, int | Size], ...]:
        """Those of sizes that are used as values."""
        return tuple(
            (self._polynomial(self._resolve(numerator)), self._polynomial(self._resolve(denominator)))
            for numerator, denominator in self._run.env.quotients
        )

    def polynomial(self, size: int) -> int | Size:
        """A size in all symbols."""
        return self._polynomial(self._expression(size))

    def _polynomial(self, resolved: sympy.Expr) -> int | Size:
        names = {name: Size.symbol(k) for k, name in enumerate([*self._run.symbols, *self._parts_of_sizes])}

        def of(expression: Any) -> int | Size:
            if expression in names:
                return names[expression]
            if expression.is_Integer:
                return int(expression)
            if expression.is_Pow:
                base, exponent = expression.args
                return math.prod([of(base)] * int(exponent))  # type: ignore[list-item]
            if not expression.is_Add and not expression.is_Mul:
                raise CompileError(f"{expression} is no sum or product of sizes")
            terms = [of(operand) for operand in expression.args]
            return sum(terms) if expression.is_Add else math.prod(terms)  # type: ignore[arg-type]

        return of(resolved)

    def _expression(self, size: int) -> sympy.Expr:
        return self._resolve(self._run.expression(size))

    def _resolve(self, expression: sympy.Expr) -> sympy.Expr:
        if expression not in self._resolved:
            self._resolved[expression] = self._without_extrema(expression)
        return self._resolved[expression]

    def _without_extrema(self, expression: sympy.Expr) -> sympy.Expr:
        """``expression`` with the largest or least operand, in this run, of every maximum or minimum: that it is so
        becomes a condition."""
        while extrema := expression.atoms(functions.Max, functions.Min, sympy.Max, sympy.Min):
            extremum = next(iter(extrema))
            sign = 1 if isinstance(extremum, functions.Max | sympy.Max) else -1
            chosen = max(extremum.args, key=lambda operand: sign * operand.xreplace(self._hints))
            self._conditions.extend(sympy.Ge(sign * chosen, sign * other) for other in extremum.args)
            expression = expression.xreplace({extremum: chosen})
        return expression

    def _parts(self, expression: Any) -> Iterator[sympy.Expr]:
        """The largest parts that are no sums or products."""
        if expression.is_Integer or expression.is_Symbol:
            return
        whole_power = expression.is_Pow and expression.args[1].is_Integer and expression.args[1] > 0
        whole_factors = expression.is_Mul and all(f.is_Integer or not f.is_number for f in expression.args)
        if expression.is_Add or whole_factors:
            for operand in expression.args:
                yield from self._parts(operand)
        elif whole_power:
            yield from self._parts(expression.args[0])
        else:
            yield expression


def _numbers(thing: Any) -> Iterator[int]:
    """The integers in a record's values."""
    if isinstance(thing, TensorMeta):
        yield from (*thing.shape, *thing.strides)
    elif isinstance(thing, list | tuple):
        for item in thing:
            yield from _numbers(item)
    elif isinstance(thing, int) and not isinstance(thing, bool):
        yield thing


def _sizes(thing: Any) -> Iterator[int]:
    """The sizes of tensors in a record's values."""
    if isinstance(thing, TensorMeta):
        yield from thing.shape
    elif isinstance(thing, list | tuple):
        for item in thing:
            yield from _sizes(item)


def _check_agreement(expected: Record, record: Record, outputs: Sequence[str]) -> None:
    """That PyTorch's shape functions say of a call what was recorded in it.

    Raises:
        CompileError: they do not.
    """
    for name, seen in expected.items():
        with_strides = name in outputs
        if isinstance(seen, int) and isinstance(record[name], TensorMeta):
            continue  # The tensor that tracing makes of a size.
        if _described(seen, with_strides) != _described(record[name], with_strides):
            raise CompileError(f"value %{name} is not what its shape function tells")


def _described(seen: object, with_strides: bool) -> object:
    if isinstance(seen, TensorMeta):
        return seen.dtype, seen.shape, seen.strides if with_strides else ()
    if isinstance(seen, list | tuple):
        return [_described(item, with_strides) for item in seen]
    if isinstance(seen, float):
        return float
    return str(seen) if isinstance(seen, torch.device) else seen


def _points(known: _KnownSizes, values: Values, fixed: Collection[int], written_out: bool) -> list[Values]:
    """Values of the symbols where all conditions hold, and nothing is equal or divides by chance.

    Primes where all sizes are polynomials of the symbols. Where quotients of sizes are sizes, too, numbers of all
    kinds, so large that quotients are told from each other.

    Raises:
        CompileError: there are not enough.
    """
    count = _POINTS if len(values) <= 2 else _POINTS_OF_MANY_SYMBOLS
    if known.has_parts:
        count = _POINTS_WITH_PARTS
    draw = random.Random(0)
    for low, high in _ranges(values, written_out, known.has_parts):
        any_number = known.has_parts or high <= max(values) + 20
        numbers: Sequence[int] = range(low, min(high, LARGEST))
        if len(numbers) > _MOST_CANDIDATES:
            numbers = draw.sample(numbers, _MOST_CANDIDATES)
        pool = [n for n in numbers if n not in fixed and (any_number or sympy.isprime(n))]
        points: list[Values] = []
        for _ in range(_ATTEMPTS if len(pool) >= count * len(values) else 0):
            point = tuple(draw.sample(pool, len(values)))
            taken = set(itertools.chain(*points))
            if taken.isdisjoint(point) and known.hold(point) and _is_generic(known.symbols(point), fixed):
                points.append(point)
            if len(points) == count and _are_independent([known.symbols(point) for point in points]):
                return points
            del points[count - 1 :]
    raise CompileError("the conditions on sizes leave too few of them", elsewhere=True)


def _ranges(values: Values, written_out: bool, has_parts: bool) -> Iterator[tuple[int, int]]:
    """Between which numbers to look for points, the best first: near the call's sizes, but not large; large enough for
    quotients of quotients to differ; wherever the call's conditions may hold."""
    least, most = min(values), max(values)
    if written_out:
        yield _LEAST_POINT, _MOST_POINT
        return
    if has_parts:
        yield from ((350, 800), (1500, 3000))
    else:
        start = min(max(least, _LEAST_POINT), _MOST_POINT)
        yield start, start + 90
    yield least, 2 * most + 100
    yield max(least // 2, _LEAST), 4 * most + 400
    yield _LEAST, most
    yield _LEAST, most + 20


def _is_generic(symbols: Values, fixed: Collection[int]) -> bool:
    """Whether nothing is equal by chance; small remainders may be."""
    large = [value for value in symbols if value >= _LEAST_POINT]
    return len(set(large)) == len(large) and set(large).isdisjoint(fixed)


def _are_independent(points: Sequence[Values]) -> bool:
    """Whether no symbol is a linear function of another at all of ``points``."""
    columns = np.array(points, dtype=np.float64).T
    ones = np.ones(len(points))
    return all(
        np.linalg.matrix_rank(np.stack([ones, one, other])) == 3 for one, other in itertools.combinations(columns, 2)
    )


def _primes(least: int, but: Collection[int]) -> Iterator[int]:
    return (n for n in itertools.count(least) if sympy.isprime(n) and n not in but)


def _form(imported: ImportedGraph) -> object:
    """All of an imported graph that sizes must not change."""
    return (
        imported.bindings,
        [(argument.role, argument.dtype, len(argument.shape), argument.kind) for argument in imported.arguments],
        [(result.dtype, len(result.shape)) for result in imported.results],
        [(output.source, output.index, output.permutation) for output in imported.outputs],
    )


def _with_terms(output: tuple[str, Any], known: _KnownSizes) -> tuple[str, Any]:
    """An output with terms in place of numbers that vary; a constant that does is a ``"number"``.

    Raises:
        CompileError: a size is part of a constant of another kind.
    """

    def terms(size: int) -> Any:
        found = known.polynomial(size)
        return found.terms if isinstance(found, Size) else found

    kind, described = output
    if kind == "tensor":
        result, dtype, sizes, strides, quantisation = described
        if quantisation is not None:
            raise CompileError("a quantised result has sizes that vary")
        return kind, (result, dtype, list(map(terms, sizes)), list(map(terms, strides)), None)
    if kind == "numbers":
        return kind, list(map(terms, described))
    if isinstance(described, SizeInt):
        found = terms(described)
        return (kind, found) if isinstance(found, int) else ("number", found)
    if any(isinstance(number, SizeInt) for number in _numbers(described)):
        raise CompileError("an output that holds sizes is neither an integer nor a list of integers")
    return output

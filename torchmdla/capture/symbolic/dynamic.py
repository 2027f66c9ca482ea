"""Construction of one program for all sizes from a group's subgraph.

The subgraph runs once and is imported once with symbols for sizes (:mod:`torchmdla.capture.symbolic.run`). The result
is an expression of every size, and the guards under which the group's structure is the same. Then the subgraph is
imported at several values of the symbols at which the guards hold. The device fits its own numbers to these samples as
polynomials of the symbols.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import sympy
import torch
from torch.utils._sympy import functions

from torchmdla import devices
from torchmdla.capture.outputs import output_of
from torchmdla.capture.subgraph import Subgraph, calls_of
from torchmdla.capture.symbolic.run import RECURRENT, SymbolicRun, clear_shape_caches
from torchmdla.capture.symbolic.size_program import LARGEST, Places, SizeNodes, SizeProgram, Values
from torchmdla.compile_service import records
from torchmdla.compile_service.versions import producers
from torchmdla.compiler.program import Argument, Program, Result, Sample
from torchmdla.compiler.sizes import Size, at
from torchmdla.errors import CompileError
from torchmdla.importer import DEFAULT_OPTIONS, ImportedGraph, ImportOptions, Record, TensorMeta
from torchmdla.importer.size_int import SizeInt, SizeValue
from torchmdla.importer.trace import leaves

# The smallest size that is not a specialisation: 0 and 1 change broadcasting and strides.
_LEAST = 2

# Numbers of sample points: for sizes that are polynomials of one, two or more symbols, and with parts that are not
# polynomials.
_POINTS, _POINTS_OF_MANY_SYMBOLS, _POINTS_WITH_PARTS = {1: 4, 2: 5}, 6, 8

# Range of the sample points, where the guards allow it.
_LEAST_POINT, _MOST_POINT = 11, 61
_ATTEMPTS = 300

# Most candidates between two bounds. Integers that are used as values may be large.
_MOST_CANDIDATES = 5000

# Most further symbols. Polynomials are searched among the products of all symbols.
_MOST_PARTS = 24


@dataclass(frozen=True)
class DynamicProgram:
    """Program for all sizes at which the guards hold.

    Attributes:
        imported: the group at the first sample.
        program: the program. Its symbols are the sizes that vary, then those that are computed from them.
        outputs: outputs in the form of ``_C.Executable``, with terms for numbers that vary.
        sizes: nodes that a call evaluates.
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
    options: ImportOptions = DEFAULT_OPTIONS,
) -> DynamicProgram:
    """Return the program of a group for all sizes like those of a call.

    Args:
        subgraph: computation of the group.
        record: type or value of every value in the recorded run, by name.
        parameters: indices of the group inputs that are weights.
        device: device of the group.
        places: symbol of each number of the inputs.
        values: the symbols' values in the call.
        written_out: whether programs grow with the symbols, so that samples use small values only.
        options: import options of the device.

    Raises:
        CompileError: something other than numbers depends on the sizes, or the program fixes a number.
    """
    fixed = set(_sizes(list(record.values())))
    hints = tuple(itertools.islice(_primes(_LEAST_POINT, fixed), len(values))) if written_out else values
    run = SymbolicRun(places, hints)
    with run:
        seen = run.record(subgraph.run_symbolic(run, record), record, subgraph.outputs)
    known = _SizeExpressions(run, seen)
    everywhere = subgraph.import_program(
        known.mark_symbols(seen), parameters, replace(options, composite_ops=options.composite_ops | RECURRENT)
    )
    known.collect_conditions()
    if not known.conditions_hold(values):
        raise CompileError("what holds at small sizes does not at the call's")
    _check_agreement(known.at(seen, values), record, subgraph.outputs)
    points = sorted(_sample_points(known, values, fixed, written_out), reverse=True)

    def import_at(point: Values) -> ImportedGraph:
        sample = subgraph.import_program(known.at(seen, point), parameters, options)
        if _size_independent_parts(sample) != _size_independent_parts(everywhere):
            raise CompileError("bindings, roles, dtypes or layouts depend on the sizes")
        return sample

    samples = _samples(import_at, everywhere, known, points)
    program = Program(
        "",
        known.at(everywhere.arguments, values),
        known.at(everywhere.results, values),
        device.target(),
        records.options_for(device, calls_of(subgraph, record)),
        versions=producers(device),
        symbols=known.symbols(values),
        quotients=known.quotients(),
        samples=tuple(
            Sample(known.symbols(point), sample.mlir, sample.arguments, sample.results)
            for point, sample in zip(points, samples, strict=True)
        ),
    )
    outputs = [_replace_sizes_by_terms(output_of(output, everywhere), known) for output in everywhere.outputs]
    return DynamicProgram(samples[0], program, outputs, known.program())


def _samples(
    import_at: Callable[[Values], ImportedGraph],
    everywhere: ImportedGraph,
    known: _SizeExpressions,
    points: Sequence[Values],
) -> list[ImportedGraph]:
    """Return the imported graph at each of ``points``.

    An import takes long, so the graph for all sizes serves as a template. If the first sample, the largest, equals the
    filled-in template, each number that depends on sizes is written as its expression: a generic point equals no other
    number by chance.
    """
    first = import_at(points[0])
    try:
        is_template = _program_of(known.fill_in(everywhere, points[0])) == _program_of(first)
    except CompileError:  # A size is not a polynomial.
        is_template = False
    return [first, *(known.fill_in(everywhere, point) if is_template else import_at(point) for point in points[1:])]


def _program_of(imported: ImportedGraph) -> object:
    return imported.mlir, imported.arguments, imported.results


class _SizeExpressions:
    """Sizes of a symbolic run at any values of its symbols, with the conditions under which they hold.

    Sizes are polynomials of the symbols. Parts of their expressions that are not polynomials (quotients, remainders)
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
            # An integer of the group itself may be used only as a value. A tensor's size must be known as a size.
            for size in _numbers(seen):
                if not isinstance(seen, int) or self._run.expression(size) not in run.values_of_sizes:
                    parts.update(dict.fromkeys(self._parts(self._expression(size))))
        if len(parts) > _MOST_PARTS:
            raise CompileError(f"{len(parts)} sizes are not sums and products of others")
        self._parts_of_sizes = list(parts)
        self._computed = [self._nodes.add(part) for part in parts]
        # Symbols that only the caller reads, after those of the program.
        values_of_sizes = [self._resolve(expression) for expression in run.values_of_sizes]
        self._values_of_sizes = {value: self._nodes.add(value) for value in values_of_sizes}
        # Conditions that devices may rely on.
        self._conditions.extend(sympy.Ge(part, _LEAST) for part in parts)
        for size in _sizes(list(record.values())):
            if isinstance(size, SizeInt):
                self._conditions.append(sympy.Ge(self._expression(size), _LEAST))

    def collect_conditions(self) -> None:
        """Collect the conditions that were decided on sizes so far.

        Raises:
            CompileError: a condition fixes a size.
        """
        run = self._run
        conditions = [c for c in dict.fromkeys([*run.guards, *self._conditions]) if c != sympy.true]
        self._guards = [self._nodes.add(condition) for condition in conditions]
        replaced = [symbol for symbol in run.symbols if run.env.replace(symbol) != symbol]
        if replaced:
            raise CompileError("a size is used as a value, or two sizes must be equal", elsewhere=True)

    @property
    def has_parts(self) -> bool:
        """Return whether there are sizes that are not polynomials of the run's symbols."""
        return bool(self._computed)

    def mark_symbols(self, record: Record) -> Record:
        """Return ``record`` with the symbols of integers that are used as values."""

        def mark(seen: Any) -> Any:
            if isinstance(seen, list):
                return [mark(item) for item in seen]
            if not isinstance(seen, SizeInt) or (symbol := self._value_symbol(self._expression(seen))) is None:
                return seen
            size = SizeInt(seen.symbolic)
            size.symbol = symbol
            return size

        return {name: mark(seen) for name, seen in record.items()}

    def _value_symbol(self, expression: sympy.Expr) -> int | None:
        if expression not in self._values_of_sizes:
            return None
        return len(self._run.symbols) + len(self._computed) + list(self._values_of_sizes).index(expression)

    def program(self) -> SizeNodes:
        """Return the nodes that a call evaluates, the computed symbols and the guards."""
        return self._nodes.nodes, [*self._computed, *self._values_of_sizes.values()], self._guards

    def conditions_hold(self, values: Values) -> bool:
        """Return whether all conditions hold."""
        computed = self._nodes.run(values)
        return all(math.isfinite(computed[k]) for k in self._computed) and all(computed[k] == 1 for k in self._guards)

    def symbols(self, values: Values) -> Values:
        """Return the values of all symbols, further ones included."""
        computed = self._nodes.run(values)
        return (*values, *(int(computed[k]) for k in self._computed))

    def at(self, thing: Any, values: Values) -> Any:
        """Return a record, or any structure of sizes, where the symbols have ``values``."""
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

    def fill_in(self, imported: ImportedGraph, values: Values) -> ImportedGraph:
        """Return a graph that was imported for all sizes, where the symbols have ``values``; its bindings stay.

        Raises:
            CompileError: a size is not a polynomial of the symbols.
        """
        symbols = self.symbols(values)

        @cache
        def number(text: str) -> str:
            return str(at(self.polynomial(self._run.env.written[text]), symbols))

        return replace(
            imported,
            mlir=re.sub("⟦[^⟧]*⟧", lambda match: number(match[0]), imported.mlir),
            arguments=self.at(imported.arguments, values),
            results=self.at(imported.results, values),
        )

    def quotients(self) -> tuple[tuple[int | Size, int | Size], ...]:
        """Return the quotients of sizes that are used as values."""
        return tuple(
            (self._polynomial(self._resolve(numerator)), self._polynomial(self._resolve(denominator)))
            for numerator, denominator in self._run.env.quotients
        )

    def polynomial(self, size: int) -> int | Size:
        """Return a size as a polynomial of all symbols."""
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
                raise CompileError(f"{expression} is not a sum or product of sizes")
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
        """Return ``expression`` with every maximum or minimum replaced by the operand that it has in this run.

        That this operand is the largest or smallest becomes a condition.
        """
        while extrema := expression.atoms(functions.Max, functions.Min, sympy.Max, sympy.Min):
            extremum = next(iter(extrema))
            sign = 1 if isinstance(extremum, functions.Max | sympy.Max) else -1
            chosen = max(extremum.args, key=lambda operand: sign * operand.xreplace(self._hints))
            self._conditions.extend(sympy.Ge(sign * chosen, sign * other) for other in extremum.args)
            expression = expression.xreplace({extremum: chosen})
        return expression

    def _parts(self, expression: Any) -> Iterator[sympy.Expr]:
        """Yield the largest parts that are not sums or products."""
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
    """Yield the integers in a record's values."""
    for leaf in leaves(thing):
        if isinstance(leaf, TensorMeta):
            yield from (*leaf.shape, *leaf.strides)
        elif isinstance(leaf, int) and not isinstance(leaf, bool):
            yield leaf


def _sizes(thing: Any) -> Iterator[int]:
    """Return the sizes of tensors in a record's values."""
    return (size for leaf in leaves(thing) if isinstance(leaf, TensorMeta) for size in leaf.shape)


def _check_agreement(expected: Record, record: Record, outputs: Sequence[str]) -> None:
    """Check that PyTorch's shape functions agree with the types that were recorded in a call.

    Raises:
        CompileError: they disagree.
    """
    for name, seen in expected.items():
        with_strides = name in outputs
        if isinstance(seen, int) and isinstance(record[name], TensorMeta):
            continue  # Tracing makes a tensor of a size.
        if _comparison_key(seen, with_strides) != _comparison_key(record[name], with_strides):
            raise CompileError(f"value %{name} differs from the result of its shape function")


def _comparison_key(seen: object, with_strides: bool) -> object:
    if isinstance(seen, TensorMeta):
        return seen.dtype, seen.shape, seen.strides if with_strides else ()
    if isinstance(seen, list | tuple):
        return [_comparison_key(item, with_strides) for item in seen]
    if isinstance(seen, float):
        return float
    return str(seen) if isinstance(seen, torch.device) else seen


def _sample_points(known: _SizeExpressions, values: Values, fixed: Collection[int], written_out: bool) -> list[Values]:
    """Return sample values of the symbols where all conditions hold, and numbers are not equal or multiples by chance.

    The values are primes if all sizes are polynomials of the symbols. If quotients of sizes are sizes, the values are
    any numbers, large enough that quotients differ.

    Raises:
        CompileError: there are too few such values.
    """
    count = _POINTS_WITH_PARTS if known.has_parts else _POINTS.get(len(values), _POINTS_OF_MANY_SYMBOLS)
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
            if taken.isdisjoint(point) and known.conditions_hold(point) and _is_generic(known.symbols(point), fixed):
                points.append(point)
            if len(points) == count and _are_independent([known.symbols(point) for point in points]):
                return points
            del points[count - 1 :]
    raise CompileError("the conditions on sizes leave too few of them", elsewhere=True)


def _ranges(values: Values, written_out: bool, has_parts: bool) -> Iterator[tuple[int, int]]:
    """Yield ranges to search for sample values, the best first.

    The first are near the call's sizes, but not large. Then they are large enough for quotients of quotients to differ.
    The last are wherever the call's conditions may hold.
    """
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
    """Return whether no values are equal by chance; small remainders may be."""
    large = [value for value in symbols if value >= _LEAST_POINT]
    return len(set(large)) == len(large) and set(large).isdisjoint(fixed)


def _are_independent(points: Sequence[Values]) -> bool:
    """Return whether no symbol is a linear function of another at all of ``points``."""
    columns = np.array(points, dtype=np.float64).T
    ones = np.ones(len(points))
    return all(
        np.linalg.matrix_rank(np.stack([ones, column, other])) == 3
        for column, other in itertools.combinations(columns, 2)
    )


def _primes(least: int, but: Collection[int]) -> Iterator[int]:
    return (n for n in itertools.count(least) if sympy.isprime(n) and n not in but)


def _size_independent_parts(imported: ImportedGraph) -> object:
    """Return all parts of an imported graph that must not depend on sizes."""
    return (
        imported.bindings,
        [(argument.role, argument.dtype, len(argument.shape), argument.kind) for argument in imported.arguments],
        [(result.dtype, len(result.shape)) for result in imported.results],
        [(output.source, output.index, output.permutation) for output in imported.outputs],
    )


def _replace_sizes_by_terms(output: tuple[str, Any], known: _SizeExpressions) -> tuple[str, Any]:
    """Return an output with terms in place of numbers that vary; a constant that varies becomes a ``"number"``.

    Raises:
        CompileError: a size is part of a constant of another kind.
    """

    def terms(size: int) -> Any:
        value = known.polynomial(size)
        return value.terms if isinstance(value, Size) else value

    kind, described = output
    if kind == "tensor":
        result, dtype, sizes, strides, quantisation = described
        if quantisation is not None:
            raise CompileError("a quantised result has sizes that vary")
        return kind, (result, dtype, list(map(terms, sizes)), list(map(terms, strides)), None)
    if kind == "numbers":
        return kind, list(map(terms, described))
    if isinstance(described, SizeInt):
        value = terms(described)
        return (kind, value) if isinstance(value, int) else ("number", value)
    if any(isinstance(number, SizeInt) for number in _numbers(described)):
        raise CompileError("an output that holds sizes is neither an integer nor a list of integers")
    return output

"""Printer of loop programs, nests and schedules as text for humans. It also prints invalid ones.

The text of a loop program is complete: ``parser.py`` reads it back.

A matrix product with a bias, after epilogue fusion::

    nest d0:4 d1:8 d2:64+ {                       // + marks loops that reduce
      i0 = input0[d0, d2]
      i1 = packed0[d2, d1]
      o0 = from 0.0
      v0 : f32 = arith.mulf i0, i1
      v1 : f32 = arith.addf o0, v0
      yield v1 as temporary0[d0, d1]            // the stored value without the epilogue
    } then {
      i0 = parameter2[d1]
      v0 : f32 = arith.addf o0, i0
      result0[d0, d1] = v0
    }
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import singledispatchmethod

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer, Scalar
from torchmdla.devices.cpu.ir.element_types import constant_text, register_type
from torchmdla.devices.cpu.ir.expressions import Contents, Expression, contents
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest, AnyOperand
from torchmdla.devices.cpu.ir.loop_program import (
    AssertStep,
    ElementStep,
    LoadStep,
    LoopNest,
    LoopProgram,
    OutlinedRegion,
    RepeatLoop,
    ScalarStep,
    Scatter,
    Step,
    StoreStep,
    TileLoop,
    flatten,
)
from torchmdla.devices.cpu.schedule import Schedule

_INDENT = "  "

# The kinds of buffers that are numbered in order of appearance. Other buffers are numbered by position.
NUMBERED = ("temporary", "local", "view")

# The name prefixes of the caller's scalars. The position among the arguments follows.
ARGUMENT_KINDS = {"f64": "argument", "i64": "integer"}


def program_text(steps: LoopProgram) -> str:
    """Return the text of a program: buffers, packings, the entry's steps, then the texts of globals and regions."""
    return "\n".join(StepsPrinter(steps).lines()) + "\n"


class StepsPrinter:
    """Printer of one executable's steps, which also names their buffers and scalars."""

    def __init__(self, steps: LoopProgram) -> None:
        self._steps = steps
        self._names: dict[Buffer | Scalar, str] = {}
        self._buffers = _all_buffers(steps)
        self._scalars = itertools.count()
        counts: dict[str, Iterator[int]] = {}
        for buffer in self._buffers:
            number = buffer.symbol or buffer.position
            if buffer.kind in NUMBERED:
                number = next(counts.setdefault(buffer.kind, itertools.count()))
            self._names[buffer] = f"@{number}" if buffer.symbol else f"{buffer.kind}{number}"

    def lines(self) -> Iterator[str]:
        headers: dict[str, Sequence[int | Size]] = {
            "typical": self._steps.typical,
            "varying": sorted(self._steps.varying),
            "not_negative": self._steps.not_negative,
        }
        yield from (f"{name} {_list(numbers)}" for name, numbers in headers.items() if numbers)
        for buffer in self._buffers:
            mark = " fixed" * buffer.fixed
            mark += "".join(f" {name}{n}" for name, n in (("bits", buffer.bits), ("padding", buffer.padding)) if n)
            yield f"buffer {self._names[buffer]} : {buffer.element}{_list(buffer.sizes)}{mark}"
        for packing in self._steps.packings:
            yield f"pack {self._name(packing.buffer)} {{"
            yield from self._indent_steps(packing.steps)
            yield "}"
        yield "entry {"
        yield from self._indent_steps(self._steps.steps)
        yield "}"
        for symbol, text in self._steps.globals.items():
            yield f'global @{symbol} """{text}"""'
        regions = {s.symbol: s.text for s in self._steps.steps if isinstance(s, OutlinedRegion)}
        for symbol, text in regions.items():
            yield f'region @{symbol} """\n{text}"""'

    def step(self, step: Step) -> str:
        """Return the text of one step."""
        return "\n".join(self._lines_of(step))

    def _indent_steps(self, steps: Iterable[Step]) -> Iterator[str]:
        for step in steps:
            for line in self._lines_of(step):
                yield _INDENT + line

    def _name(self, thing: Buffer | Scalar) -> str:
        if thing not in self._names:
            assert isinstance(thing, Scalar)
            is_given = thing.argument >= 0
            name = f"{ARGUMENT_KINDS[thing.type]}{thing.argument}" if is_given else f"scalar{next(self._scalars)}"
            self._names[thing] = name
        return self._names[thing]

    # Steps.

    @singledispatchmethod
    def _lines_of(self, step: Step) -> Iterator[str]:
        raise TypeError(f"no text for {type(step).__name__}")

    @_lines_of.register
    def _(self, step: Scatter) -> Iterator[str]:
        head, *lines = self._lines_of(step.nest)
        yield f"scatter {head.removeprefix('nest ')}"
        yield from lines

    @_lines_of.register
    def _(self, step: LoopNest) -> Iterator[str]:
        yield f"nest {_loops(step.sizes, step.reduction)} {{"
        names = _Names(step.body)
        yield from self._argument_lines(step.body)
        for k, access in enumerate(step.outputs):
            if step.initial:
                yield f"{_INDENT}o{k} = from {names.of(step.initial)}"
            elif access in step.carried:
                yield f"{_INDENT}o{k} = {self._access(access)}"
        yield from names.lines()
        yield from (f"{_INDENT}check {names.of(check, 'i1')}" for check in step.checks)
        if step.place is not None:
            yield f"{_INDENT}place {names.of(step.place, 'i64')}"
        if step.epilogue is None:
            yield from self._stores(step.outputs, step.values, names)
        else:
            for access, value in zip(step.outputs, step.values, strict=False):
                yield f"{_INDENT}yield {names.of(value)} as {self._access(access)}"
            yield "} then {"
            names = _Names(step.epilogue.body)
            yield from self._argument_lines(step.epilogue.body)
            yield from names.lines()
            yield from self._stores(step.epilogue.outputs, step.epilogue.values, names)
        yield "}"

    def _argument_lines(self, body: Contents) -> Iterator[str]:
        for k, access in enumerate(body.loads):
            yield f"{_INDENT}i{k} = {self._access(access)}"
        for k, scalar in enumerate(body.scalars):
            yield f"{_INDENT}c{k} = {self._name(scalar)}"
        for k, table in enumerate(body.tables):
            at = f"{_list(table.table.sizes)} strides {_list(table.table.strides)} offset {table.offset}"
            yield f"{_INDENT}t{k} = table {self._name(table.buffer)} {at}"

    def _stores(self, outputs: Sequence[Access], values: Sequence[Expression], names: _Names) -> Iterator[str]:
        for access, value in zip(outputs, values, strict=False):
            yield f"{_INDENT}{self._access(access)} = {names.of(value, register_type(access.buffer.element))}"

    @_lines_of.register
    def _(self, step: TileLoop) -> Iterator[str]:
        pairs = zip(step.extents, step.tile, strict=False)
        axes = ", ".join(f"{_number(extent)} by {_number(tile)}" for extent, tile in pairs)
        local = f" in {', '.join(map(self._name, step.locals))}" if step.locals else ""
        yield f"tiles {axes}{local} {{"
        for member, loops in zip(step.members, step.loops, strict=False):
            yield f"{_INDENT}along {' '.join(f'd{loop}' for loop in loops)}"
            for line in self._lines_of(member):
                yield _INDENT + line
        yield "}"

    @_lines_of.register
    def _(self, step: RepeatLoop) -> Iterator[str]:
        yield f"repeat {_number(step.count)} {{"
        for view in step.views:
            place = f"{self._name(view.base)} at {_number(view.offset)} + iteration * {_number(view.distance)}"
            yield f"{_INDENT}{self._name(view.buffer)} = {place}"
        yield from self._indent_steps(step.steps)
        yield "}"

    @_lines_of.register
    def _(self, step: OutlinedRegion) -> Iterator[str]:
        results = f"{', '.join(map(self._definition, step.results))} = " if step.results else ""
        lists: dict[str, Sequence[Buffer | Scalar]]
        lists = {"to": step.outputs, "using": step.temporaries, "of": step.scalars}
        rest = "".join(f" {word} ({', '.join(map(self._name, those))})" for word, those in lists.items() if those)
        yield f"{results}call @{step.symbol}({', '.join(map(self._name, step.inputs))}){rest}"

    @_lines_of.register
    def _(self, step: LoadStep) -> Iterator[str]:
        yield f"{self._definition(step.scalar)} = load {self._element(step)}"

    @_lines_of.register
    def _(self, step: StoreStep) -> Iterator[str]:
        yield f"store {self._name(step.scalar)}, {self._element(step)}"

    @_lines_of.register
    def _(self, step: ScalarStep) -> Iterator[str]:
        operands = ", ".join(map(self._name, step.operands))
        rest = f"{{{step.attributes}}}" if step.attributes else ""
        if step.value is not None:
            rest = constant_text(step.value, step.result.type) if isinstance(step.value, float) else f"({step.value})"
        yield " ".join(filter(None, (self._definition(step.result), "=", step.name, operands, rest)))

    @_lines_of.register
    def _(self, step: AssertStep) -> Iterator[str]:
        yield f"assert {self._name(step.condition)}"

    def _definition(self, scalar: Scalar) -> str:
        return f"{self._name(scalar)} : {scalar.type}"

    def _element(self, step: ElementStep) -> str:
        pairs = zip(step.indices, step.strides, strict=False)
        terms = [_number(step.offset), *(f"{self._name(index)} * {_number(stride)}" for index, stride in pairs)]
        return f"{self._name(step.buffer)} at {' + '.join(terms)}"

    def _access(self, access: Access) -> str:
        word = f" as {access.word}" if access.word else ""
        return f"{self._name(access.buffer)}[{', '.join(map(_index, access.indices))}]{word}"


class _Names:
    """Names of the expressions of a body.

    The prefix is ``i`` for inputs, ``c`` for scalars, ``o`` for accumulators, ``d`` for loop indices and ``v`` for
    computed values. Constants are printed as numbers.
    """

    def __init__(self, body: Contents) -> None:
        self._body = body
        self._computed = [e for e in body.expressions if e.op not in _LEAVES]
        self._numbers = {expression: k for k, expression in enumerate(self._computed)}

    def of(self, expression: Expression, type: str = "") -> str:
        """Return the name of an expression. A constant or size is followed by its type unless that is ``type``."""
        write = _LEAVES.get(expression.op)
        if write is not None:
            is_typed = expression.op in ("constant", "size") and expression.type != type
            return write(self._body, expression) + (f" : {expression.type}" if is_typed else "")
        return f"v{self._numbers[expression]}" if expression in self._numbers else f"?{expression.op}"

    def lines(self) -> Iterator[str]:
        for expression in self._computed:
            operands = [self.of(operand, expression.type) for operand in expression.operands]
            if expression.op == "gather":
                operands.insert(0, f"t{_place(self._body.tables, expression.payload)}")
            text = f"{expression.op} {', '.join(operands)} {expression.attributes}".rstrip()
            yield f"{_INDENT}{self.of(expression)} : {expression.type} = {text}"


_LEAVES: Mapping[str, Callable[[Contents, Expression], str]] = {
    "load": lambda body, e: f"i{_place(body.loads, e.payload)}",
    "operand": lambda body, e: f"i{e.payload}",
    "scalar": lambda body, e: f"c{_place(body.scalars, e.payload)}",
    "accumulator": lambda body, e: f"o{e.payload}",
    "reduced": lambda body, e: f"o{e.payload}",
    "index": lambda body, e: f"d{e.payload}",
    "constant": lambda body, e: constant_text(e.payload, e.type),
    "size": lambda body, e: f"({e.payload})",
}


def _place(those: Sequence[object], payload: object) -> int:
    """Return the number of a leaf's payload. In kernels, the payload is that number."""
    return payload if isinstance(payload, int) else those.index(payload)


# --- kernels ------------------------------------------------------------------------------------------------------


def nest_text(nest: AnyNest) -> str:
    """Return the text of a kernel's nest. Operands have the numbers of the kernel's pointers."""
    lines = [f"nest {_loops(nest.sizes, nest.reduction)} {{"]
    names = _Names(contents(nest.roots))
    operands = [_operand(number, operand) for number, operand in enumerate(nest.operands)]
    stored = nest.epilogue.outputs if nest.epilogue else nest.outputs
    read = operands[: len(operands) - len(stored)]
    lines += [f"{_INDENT}i{k} = {text}" for k, text in enumerate(read[: len(nest.inputs)])]
    initial = f"from {names.of(nest.initial)}" if nest.initial else "old"
    lines += [f"{_INDENT}o{k} = {initial}" for k in range(len(nest.outputs))]
    lines += [f"{_INDENT}c{k} : {kind} = scalar" for k, kind in enumerate(nest.scalars)]
    lines += [
        f"{_INDENT}t{k} = table {t.element}{_list(t.sizes)} strides {_list(t.strides)}"
        for k, t in enumerate(nest.tables)
    ]
    lines += names.lines()
    lines += [f"{_INDENT}check {names.of(check)}" for check in nest.checks]
    lines += [f"{_INDENT}place {names.of(nest.place)}"] if nest.place else []
    values = nest.values
    if nest.epilogue:
        lines += [f"{_INDENT}yield {', '.join(map(names.of, values))}", "} then {"]
        names, values = _Names(contents(nest.epilogue.values)), nest.epilogue.values
        lines += [f"{_INDENT}i{k} = {text}" for k, text in enumerate(read) if k >= len(nest.inputs)]
        first = len(nest.scalars)
        lines += [f"{_INDENT}c{first + k} : {kind} = scalar" for k, kind in enumerate(nest.epilogue.scalars)]
        lines += names.lines()
    lines += [f"{_INDENT}{text} = {names.of(v)}" for text, v in zip(operands[len(read) :], values, strict=False)]
    return "\n".join([*lines, "}"])


def _operand(number: int, operand: AnyOperand) -> str:
    begin = "" if operand.base is None else f" from operand{operand.base}[{operand.offset}]"
    return f"operand{number} : {operand.element} strides {_list(operand.strides)}{begin}"


def schedule_text(schedule: Schedule) -> str:
    """Return the text of a schedule, one decision per line."""
    names = ("levels", "reduction", "tiles", "unroll", "vector", "lanes", "ranged", "iterations", "grain", "prefetch")
    return "\n".join(f"{name}: {getattr(schedule, name)}" for name in (*names, "ahead"))


def kernel_text(nest: AnyNest, schedule: Schedule) -> str:
    """Return the nest and the schedule of a kernel as comments for its code."""
    text = f"{nest_text(nest)}\n\n{schedule_text(schedule)}"
    return "".join(f"// {line}".rstrip() + "\n" for line in text.splitlines()) + "\n"


# --- shared by nests and steps --------------------------------------------------------------------------------------


def _loops(sizes: Sequence[int | Size], reduction: Sequence[bool]) -> str:
    pairs = zip(sizes, reduction, strict=False)
    return " ".join(f"d{d}:{_number(size)}{'+' if reduces else ''}" for d, (size, reduces) in enumerate(pairs))


def _number(number: int | Size) -> str:
    """Return the text of a number, in parentheses if it is a sum."""
    return f"({number})" if isinstance(number, Size) and len(number.terms) > 1 else str(number)


def _index(index: AffineExpr) -> str:
    factors = [(loop, index.factors[loop]) for loop in index.loops]
    terms = [f"d{loop}" if factor == 1 else f"d{loop} * {_number(factor)}" for loop, factor in factors]
    if index.constant or not terms:
        terms.append(_number(index.constant))
    return " + ".join(terms)


def _list(numbers: Iterable[int | Size]) -> str:
    return f"[{', '.join(map(str, numbers))}]"


def _all_buffers(steps: LoopProgram) -> list[Buffer]:
    packed = [step for packing in steps.packings for step in packing.steps]
    seen = (b for step in flatten([*packed, *steps.steps]) for b in _buffers(step))
    return list(dict.fromkeys([*(packing.buffer for packing in steps.packings), *seen]))


def _buffers(step: Step) -> Iterator[Buffer]:
    if isinstance(step, TileLoop | Scatter):
        for member in step.members if isinstance(step, TileLoop) else (step.nest,):
            yield from _buffers(member)
    elif isinstance(step, LoopNest):
        yield from (a.buffer for a in (*step.accesses, *step.outputs))
        yield from (t.buffer for t in step.tables)
    elif isinstance(step, RepeatLoop):
        yield from (buffer for view in step.views for buffer in (view.base, view.buffer))
    else:
        yield from [*step.reads, *step.writes]

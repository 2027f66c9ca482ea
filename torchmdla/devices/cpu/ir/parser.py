"""Parser of loop programs, in the text form that ``printer.py`` writes.

Properties that the text omits are derived. The type of a constant or size follows from its user, and the inputs of a
nest follow from its expressions.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import lark
from lark.visitors import Interpreter

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer, Scalar, Table, TableAccess
from torchmdla.devices.cpu.ir.element_types import NOT_FINITE, register_type
from torchmdla.devices.cpu.ir.expressions import (
    Expression,
    accumulator,
    constant,
    gather,
    index,
    load,
    operation,
    reduced,
    scalar,
    size,
)
from torchmdla.devices.cpu.ir.loop_program import (
    AssertStep,
    Epilogue,
    LoadStep,
    LoopNest,
    LoopProgram,
    OutlinedRegion,
    Packing,
    RepeatLoop,
    ScalarStep,
    Scatter,
    Step,
    StoreStep,
    TileLoop,
    View,
)
from torchmdla.devices.cpu.ir.printer import ARGUMENT_KINDS, NUMBERED
from torchmdla.errors import CompileError

GRAMMAR = r"""
start: header* buffer* packing* "entry" block text*

header: NAME list
buffer: "buffer" NAME ":" NAME list NAME*
packing: "pack" NAME block
text: (GLOBAL | REGION) NAME STRING
block: "{" step* "}"
?step: nest | scatter | tiles | repeat | defining | store | assertion

nest: "nest" loop* "{" line* end "}" epilogue?
scatter: "scatter" loop* "{" line* end "}"
epilogue: "then" "{" line* store_to* "}"
loop: DIM ":" number PLUS?
end: store_to* | yielded+
?line: given | table | initial | scalar_value | operation | check | place
given: NAME "=" access
scalar_value: NAME "=" NAME
table: NAME "=" "table" NAME list "strides" list "offset" number
initial: NAME "=" "from" operand
operation: NAME ":" NAME "=" NAME [operand ("," operand)*] ATTRIBUTES?
check: "check" operand
place: "place" operand
yielded: "yield" operand "as" access
store_to: access "=" operand
access: NAME "[" [index ("," index)*] "]" [word]
word: "as" NAME
index: term ("+" term)*
term: DIM ["*" number] | number -> offset
operand: NAME -> value | DIM -> loop_index | constant [":" NAME]
constant: LITERAL | "(" sum ")"

tiles: "tiles" axis ("," axis)* ["in" names] "{" member* "}"
axis: number "by" number
member: "along" DIM* nest
repeat: "repeat" number "{" view* step* "}"
view: NAME "=" NAME "at" number "+" "iteration" "*" number

defining: definition ("," definition)* "=" (call | load | scalar_op)
        | call
definition: NAME ":" NAME
call: "call" NAME "(" names ")" ["to" "(" names ")"] ["using" "(" names ")"] ["of" "(" names ")"]
load: "load" element
scalar_op: NAME names [constant] ATTRIBUTES?
store: "store" NAME "," element
assertion: "assert" NAME
element: NAME "at" number ("+" NAME "*" number)*
names: [NAME ("," NAME)*]

list: "[" [sum ("," sum)*] "]"
number: product | "(" sum ")"
sum: product ("+" product)*
product: factor ("*" factor)*
?factor: INTEGER | SYMBOL

GLOBAL: "global"
REGION: "region"
PLUS: "+"
DIM.2: /d\d+/
SYMBOL.2: /s\d+/
NAME: /@?[A-Za-z_][\w.]*/
INTEGER: /-?\d+/
LITERAL: /-?0x[0-9A-F]+|-?\d+(\.\d+)?(e[+-]?\d+)?|true|false/
ATTRIBUTES: /\{[^\n]*\}/
STRING: /\"{3}.*?\"{3}/s
%import common.WS
%ignore WS
%ignore /\/\/[^\n]*/
"""

_parser = lark.Lark(GRAMMAR, parser="lalr", maybe_placeholders=True)


def parse_program(text: str) -> LoopProgram:
    """Return the loop program with the text ``text``.

    Raises:
        CompileError: the text is not a loop program; names the line.
    """
    try:
        return _Builder().start(_parser.parse(text))
    except lark.UnexpectedInput as error:
        context = error.get_context(text).rstrip()
        raise CompileError(f"not a loop program: line {error.line} is not understood", diagnostic=context) from None


# Each grammar rule has its own type of tree and of result.
_Tree = Any

_Named = TypeVar("_Named")


class _Builder(Interpreter[lark.Token, Any]):
    """Builder of a loop program, with a method for each grammar rule.

    It visits trees from the root, since names are defined before their uses.
    """

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[str, dict[str, str]] = {"global": {}, "region": {}}
        self._buffers: dict[str, Buffer] = {}
        self._scalars: dict[str, Scalar] = {}
        # The nest that is being read: its number of loops, and its values by name.
        self._loops = 0
        self._values: dict[str, Any] = {}

    def start(self, tree: _Tree) -> LoopProgram:
        parts = defaultdict(list)
        for part in tree.children:
            parts[part.data].append(part)
        headers = {str(header.children[0]): header.children[1] for header in parts["header"]}
        for kind, name, text in (part.children for part in parts["text"]):
            self._texts[kind][name[1:]] = text[3:-3].removeprefix("\n")
        for buffer in parts["buffer"]:
            self.visit(buffer)
        packings = [self.visit(packing) for packing in parts["packing"]]
        program = LoopProgram(self.visit(*parts["block"]), self._texts["global"], packings)
        for name, numbers in headers.items():
            setattr(program, name, type(getattr(program, name))(self.visit(numbers)))
        return program

    def buffer(self, tree: _Tree) -> None:
        name, element, sizes, *marks = tree.children
        arguments: dict[str, Any] = {
            "fixed": "fixed" in marks,
            **{
                name: int(mark.removeprefix(name))
                for name in ("bits", "padding")
                for mark in marks
                if mark.startswith(name)
            },
        }
        kind: Any = "global"
        if name.startswith("@"):
            arguments["symbol"] = name[1:]
        else:
            kind, number = _parts(name)
            arguments |= {"position": number} if kind not in NUMBERED else {}
        self._buffers[name] = Buffer(kind, str(element), self.visit(sizes), **arguments)

    def packing(self, tree: _Tree) -> Packing:
        name, block = tree.children
        return Packing(self._buffer(name), self.visit(block))

    def block(self, tree: _Tree) -> list[Step]:
        return [self.visit(step) for step in tree.children]

    # Nests.

    def nest(self, tree: _Tree) -> LoopNest:
        loops = [child for child in tree.children if child.data == "loop"]
        self._loops, self._values = len(loops), {}
        checks: list[Expression] = []
        initial, epilogue, place = None, None, None
        for line in tree.children[len(loops) :]:
            if line.data == "check":
                checks.append(self._operand(line.children[0], "i1"))
            elif line.data == "place":
                place = self._operand(line.children[0], "i64")
            elif line.data == "initial":
                initial = self.visit(line)
            elif line.data == "end":
                stored = [self.visit(each) for each in line.children]
                outputs, values = zip(*stored, strict=True) if stored else ((), ())
            elif line.data == "epilogue":
                epilogue = self._epilogue(line, values)
            else:
                self.visit(line)
        return LoopNest(
            sizes=tuple(self.visit(loop.children[1]) for loop in loops),
            reduction=tuple(len(loop.children) > 2 for loop in loops),
            outputs=outputs,
            values=values,
            initial=initial,
            epilogue=epilogue,
            checks=tuple(checks),
            place=place,
        )

    def scatter(self, tree: _Tree) -> Scatter:
        return Scatter(self.nest(tree))

    def _epilogue(self, tree: _Tree, values: Sequence[Expression]) -> Epilogue:
        self._values = {f"o{k}": reduced(k, value.type) for k, value in enumerate(values)}
        lines = [self.visit(line) for line in tree.children]
        outputs, stored = zip(*filter(None, lines), strict=True)
        return Epilogue(outputs, stored)

    def given(self, tree: _Tree) -> None:
        name, access = tree.children
        read = load(self.visit(access))
        self._values[name] = accumulator(int(name[1:]), read.type) if name.startswith("o") else read

    def scalar_value(self, tree: _Tree) -> None:
        name, value = tree.children
        self._values[name] = scalar(self._scalar(value))

    def table(self, tree: _Tree) -> None:
        name, buffer, sizes, strides, offset = tree.children
        memory = self._buffer(buffer)
        table = Table(register_type(memory.element), self.visit(sizes), self.visit(strides))
        self._values[name] = TableAccess(memory, table, self.visit(offset))

    def initial(self, tree: _Tree) -> Expression:
        name, operand = tree.children
        value: Expression = self._operand(operand, "")
        self._values[name] = accumulator(int(name[1:]), value.type)
        return value

    def operation(self, tree: _Tree) -> None:
        name, kind, op, *operands = tree.children
        attributes = str(operands.pop()) if isinstance(operands[-1], lark.Token) else ""
        if op == "gather":
            table, *indices = (self._operand(operand, "i64") for operand in operands)
            self._values[name] = gather(table, indices)
        else:
            values = [self._operand(operand, str(kind)) for operand in operands if operand is not None]
            self._values[name] = operation(str(op), values, str(kind), attributes)

    def store_to(self, tree: _Tree) -> tuple[Access, Expression]:
        access = self.visit(tree.children[0])
        return access, self._operand(tree.children[1], register_type(access.element))

    def yielded(self, tree: _Tree) -> tuple[Access, Expression]:
        value, access = tree.children
        return self.visit(access), self._operand(value, "")

    def access(self, tree: _Tree) -> Access:
        name, *indices, word = tree.children
        places = tuple(self.visit(each) for each in indices if each is not None)
        return Access(self._buffer(name), places, str(word.children[0]) if word else "")

    def index(self, tree: _Tree) -> AffineExpr:
        factors: list[Any] = [0] * self._loops
        constants: Any = 0
        for term in tree.children:
            if term.data == "offset":
                constants += self.visit(term.children[0])
            else:
                loop, factor = term.children
                factors[int(loop[1:])] += 1 if factor is None else self.visit(factor)
        return AffineExpr(tuple(factors), constants)

    def _operand(self, tree: _Tree, kind: str) -> Any:
        """Return the value of an operand, of type ``kind`` if the text does not specify a type."""
        if tree.data == "value":
            return self._look_up(self._values, tree.children[0])
        if tree.data == "loop_index":
            return index(int(tree.children[0][1:]))
        type = str(tree.children[1] or kind)
        number = self._constant(tree.children[0], type)
        return size(number, type) if isinstance(number, Size) else constant(number, type)

    def _constant(self, tree: _Tree, type: str) -> int | float | Size:
        (number,) = tree.children
        result: int | float | Size
        result = _literal(number, type) if isinstance(number, lark.Token) else self.visit(number)
        return result

    # Other steps.

    def tiles(self, tree: _Tree) -> TileLoop:
        axes = [list(map(self.visit, child.children)) for child in tree.children if child and child.data == "axis"]
        names = next((child for child in tree.children if child and child.data == "names"), None)
        members = [child for child in tree.children if child and child.data == "member"]
        return TileLoop(
            members=tuple(self.visit(member.children[-1]) for member in members),
            loops=tuple(tuple(int(loop[1:]) for loop in member.children[:-1]) for member in members),
            extents=tuple(extent for extent, _ in axes),
            tile=tuple(tile for _, tile in axes),
            locals=tuple(map(self._buffer, self.visit(names))) if names else (),
        )

    def repeat(self, tree: _Tree) -> RepeatLoop:
        count, *parts = tree.children
        views = tuple(self.visit(part) for part in parts if part.data == "view")
        return RepeatLoop(self.visit(count), tuple(self.visit(p) for p in parts if p.data != "view"), views)

    def view(self, tree: _Tree) -> View:
        name, base, offset, distance = tree.children
        return View(self._buffer(name), self._buffer(base), self.visit(offset), self.visit(distance))

    def defining(self, tree: _Tree) -> Step:
        *definitions, step = tree.children
        scalars = [Scalar(str(definition.children[1])) for definition in definitions]
        result: Step = _MAKERS[step.data](self, step, scalars)
        self._scalars.update((str(d.children[0]), each) for d, each in zip(definitions, scalars, strict=True))
        return result

    def _call(self, tree: _Tree, results: list[Scalar]) -> OutlinedRegion:
        symbol, *lists = tree.children
        inputs, outputs, temporaries, taken = ([] if names is None else self.visit(names) for names in lists)
        return OutlinedRegion(
            symbol=symbol[1:],
            text=self._look_up(self._texts["region"], symbol[1:]),
            inputs=tuple(map(self._buffer, inputs)),
            outputs=tuple(map(self._buffer, outputs)),
            temporaries=tuple(map(self._buffer, temporaries)),
            scalars=tuple(map(self._scalar, taken)),
            results=tuple(results),
        )

    def _load(self, tree: _Tree, results: list[Scalar]) -> LoadStep:
        (result,) = results
        return LoadStep(result, *self.visit(tree.children[0]))

    def _scalar_op(self, tree: _Tree, results: list[Scalar]) -> ScalarStep:
        (result,) = results
        op, names, value, *rest = tree.children
        operands = tuple(map(self._scalar, self.visit(names)))
        attributes = str(rest[0])[1:-1] if rest else ""
        return ScalarStep(str(op), operands, attributes, result, value and self._constant(value, result.type))

    def store(self, tree: _Tree) -> StoreStep:
        name, element = tree.children
        return StoreStep(self._scalar(name), *self.visit(element))

    def assertion(self, tree: _Tree) -> AssertStep:
        return AssertStep(self._scalar(tree.children[0]))

    def element(self, tree: _Tree) -> tuple[Buffer, Any, tuple[Scalar, ...], tuple[Any, ...]]:
        name, offset, *pairs = tree.children
        places, strides = map(self._scalar, pairs[::2]), map(self.visit, pairs[1::2])
        return self._buffer(name), self.visit(offset), tuple(places), tuple(strides)

    # Names and numbers.

    def names(self, tree: _Tree) -> list[str]:
        return [str(name) for name in tree.children if name is not None]

    def list(self, tree: _Tree) -> tuple[Any, ...]:
        return tuple(self.visit(each) for each in tree.children if each is not None)

    def number(self, tree: _Tree) -> Any:
        return self.visit(tree.children[0])

    def sum(self, tree: _Tree) -> Any:
        return sum(map(self.visit, tree.children))

    def product(self, tree: _Tree) -> Any:
        return math.prod(
            Size.symbol(int(factor[1:])) if factor.type == "SYMBOL" else int(factor) for factor in tree.children
        )

    def _buffer(self, name: str) -> Buffer:
        return self._look_up(self._buffers, name)

    def _scalar(self, name: str) -> Scalar:
        for type_, kind in ARGUMENT_KINDS.items():
            if name.startswith(kind):
                self._scalars.setdefault(name, Scalar(type_, _parts(name)[1]))
        return self._look_up(self._scalars, name)

    def _look_up(self, names: Mapping[str, _Named], name: str) -> _Named:
        if name not in names:
            line = f"line {name.line}: " if isinstance(name, lark.Token) else ""
            raise CompileError(f"not a loop program: {line}nothing above is called {name}")
        return names[name]


_MAKERS: Mapping[str, Callable[[_Builder, _Tree, Any], Step]] = {
    "call": _Builder._call,
    "load": _Builder._load,
    "scalar_op": _Builder._scalar_op,
}


def _parts(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"([a-z]+)(\d+)", name)
    if match is None:
        raise CompileError(f"not a loop program: {name} is not a name")
    return match[1], int(match[2])


def _literal(text: str, type: str) -> float | int:
    if text in ("true", "false"):
        return int(text == "true")
    if type.startswith("i"):
        return int(text)
    names = {bits: name for name, bits in NOT_FINITE.get(type, {}).items()}
    return float(names.get(text, text))

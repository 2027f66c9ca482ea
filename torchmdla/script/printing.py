"""Printer of graphs and classes as the code that PyTorch reads from archives.

It follows ``python_print.cpp`` in the language, and prints each node as a statement of its own.
"""

from __future__ import annotations

import json
import keyword
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from torchmdla.errors import ReadError
from torchmdla.script.ir import Block, Class, Constant, EnumValue, Graph, Node, Type, Value
from torchmdla.script.schemas import table
from torchmdla.script.types import DEVICE

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# Names that variables may not have: words of the language, and names with a meaning of their own.
_RESERVED = frozenset(
    [
        *keyword.kwlist,
        *("torch", "ops", "CONSTANTS", "fork", "annotate", "unchecked_cast", "uninitialized", "print", "getattr"),
        *("int", "float", "bool", "str", "isinstance", "range", "inf", "nan", "tuple", "list", "dict", "len"),
    ]
)


class Constants:
    """Table of constants that the code refers to by number: tensors, objects, and strings that are not ASCII."""

    def __init__(self) -> None:
        self.values: list[tuple[Constant, Type]] = []
        self._numbers: dict[object, int] = {}

    def name_of(self, value: Constant, type_: Type) -> str:
        """Return the expression of a constant, which is added to the table."""
        key = value if isinstance(value, str) else id(value)
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append((value, type_))
        return f"CONSTANTS.c{self._numbers[key]}"


def text_of_type(type_: Type) -> str:
    """Return the annotation of a type."""
    if type_.name:
        return type_.name
    if type_.kind in ("AnyList", "AnyTuple"):
        return type_.kind.removeprefix("Any").lower()
    if not type_.arguments:
        return "Tuple[()]" if type_.kind == "Tuple" else type_.kind
    return f"{type_.kind}[{', '.join(map(text_of_type, type_.arguments))}]"


def text_of_constant(value: Constant, type_: Type, constants: Constants) -> str:
    """Return the expression of a constant."""
    if value is None:
        return "None" if type_.kind == "NoneType" else f"annotate({text_of_type(type_)}, None)"
    if type_.kind == "Function":
        return str(value)
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, complex):
        return f"torch.Complex({value.real!r}, {value.imag!r})"
    if isinstance(value, str):
        text = json.dumps(value) if value.isascii() else constants.name_of(value, type_)
        return f"torch.device({text})" if type_ == DEVICE else text
    if isinstance(value, EnumValue):
        return f"{value.class_name}.{value.name}"
    inner = type_.arguments[0] if type_.kind == "Optional" else type_
    if isinstance(value, tuple) and inner.kind in ("Tuple", "NamedTuple"):
        parts = [text_of_constant(*pair, constants) for pair in zip(value, inner.arguments, strict=True)]
        return f"{inner.name}({', '.join(parts)}{',' if len(parts) == 1 and not inner.name else ''})"
    if isinstance(value, list) and inner.kind == "List":
        parts = [text_of_constant(item, inner.arguments[0], constants) for item in value]
        return f"annotate({text_of_type(inner)}, [{', '.join(parts)}])"
    return constants.name_of(value, type_)


class _Printer:
    """Printer of one function."""

    def __init__(self, graph: Graph, constants: Constants) -> None:
        self._graph = graph
        self._constants = constants
        self._texts: dict[Value, str] = {}
        self._used: set[str] = set(_RESERVED)
        self._lines: list[str] = []
        self._depth = 0

    def function(self, depth: int, first_type: str | None = None) -> list[str]:
        """Return the lines of the function."""
        graph = self._graph
        parameters = []
        for name, value in zip(graph.parameters, graph.inputs, strict=True):
            self._texts[value] = self._name(name)
            text = f"{self._texts[value]}: {text_of_type(value.type)}"
            if name in graph.defaults:
                text += f"={text_of_constant(graph.defaults[name], value.type, self._constants)}"
            parameters.append(text)
        self._depth = depth
        separator = f",\n{'  ' * (depth + 1)}"
        name = graph.name.rpartition(".")[2]
        self._line(f"def {name}({separator.join(parameters)}) -> {text_of_type(graph.returns)}:")
        self._body(graph, graph)
        return self._lines

    def _body(self, block: Block, graph: Block) -> None:
        self._depth += 1
        for node in graph.walk():
            if node.op == "prim::Constant":
                self._texts[node.outputs[0]] = self._constant(node)
        self._block(block)
        self._line(f"return {self._texts[block.outputs[0]]}")
        self._depth -= 1

    def _constant(self, node: Node) -> str:
        return text_of_constant(node.attributes["value"], node.outputs[0].type, self._constants)

    def _line(self, text: str) -> None:
        self._lines.append(f"{'  ' * self._depth}{text}")

    def _name(self, wanted: str) -> str:
        base = re.sub(r"\W", "_", wanted.partition(".")[0], flags=re.ASCII)
        if not _IDENTIFIER.fullmatch(base):
            base = f"_{base}"
        name, number = base, 0
        while name in self._used:
            name, number = f"{base}{number}", number + 1
        self._used.add(name)
        return name

    def _define(self, values: Sequence[Value]) -> str:
        for value in values:
            self._texts[value] = self._name("_" if value.name.isdecimal() else value.name)
        return ", ".join(self._texts[value] for value in values)

    def _list(self, values: Sequence[Value]) -> str:
        return ", ".join(self._texts[value] for value in values)

    def _block(self, block: Block) -> None:
        count = len(self._lines)
        for node in block.nodes:
            if node.op != "prim::Constant":
                _STATEMENTS.get(node.op, _Printer._expression)(self, node)
        if len(self._lines) == count:
            self._line("pass")

    def _expression(self, node: Node) -> None:
        text = _EXPRESSIONS.get(node.op, _Printer._operator)(self, node)
        self._line(f"{self._define(node.outputs)} = {text}" if node.outputs else text)

    # Statements

    def _unpack(self, node: Node) -> None:
        source = self._list(node.inputs)
        if node.outputs:
            self._line(f"{self._define(node.outputs)}, = {source}")

    def _set_attribute(self, node: Node) -> None:
        owner, value = (self._texts[value] for value in node.inputs)
        self._line(f"{owner}.{node.attributes['name']} = {value}")

    def _if(self, node: Node) -> None:
        names = self._define(node.outputs)
        for head, block in zip((f"if {self._list(node.inputs)}:", "else:"), node.blocks, strict=True):
            self._line(head)
            self._depth += 1
            self._block(block)
            if names:
                self._line(f"{names} = {self._list(block.outputs)}")
            self._depth -= 1

    def _loop(self, node: Node) -> None:
        (body,) = node.blocks
        self._define(node.outputs)
        for output, initial, carried in zip(node.outputs, node.inputs[2:], body.inputs[1:], strict=True):
            annotation = "" if output.type == initial.type else f": {text_of_type(output.type)}"
            self._line(f"{self._texts[output]}{annotation} = {self._texts[initial]}")
            self._texts[carried] = self._texts[output]
        is_for = self._is_true(node.inputs[1]) and self._is_true(body.outputs[0])
        counter = self._define(body.inputs[:1])
        if is_for:
            self._line(f"for {counter} in range({self._texts[node.inputs[0]]}):")
        else:
            self._line(f"{counter} = {self._texts[node.inputs[1]]}")
            self._line(f"while {counter}:")
        self._depth += 1
        self._block(body)
        targets = ", ".join(self._texts[value] for value in body.inputs[is_for:])
        if targets:
            self._line(f"{targets} = {self._list(body.outputs[is_for:])}")
        self._depth -= 1

    def _is_true(self, value: Value) -> bool:
        return self._texts.get(value) == "True"

    def _enter(self, node: Node) -> None:
        self._line(f"with {self._list(node.inputs)} as {self._define(node.outputs)}:")
        self._depth += 1
        self._line("pass")

    def _exit(self, _: Node) -> None:
        self._depth -= 1

    def _fork(self, node: Node) -> None:
        graph = node.attributes["Subgraph"]
        if not isinstance(graph, Graph):
            raise TypeError("a fork does not have a graph")
        name = self._name("__forked_function")
        for inner, outer in zip(graph.inputs, node.inputs, strict=True):
            self._texts[inner] = self._texts[outer]
        self._line(f"def {name}():")
        self._body(graph, graph)
        self._line(f"{self._define(node.outputs)} = fork({name})")

    # Expressions

    def _get_attribute(self, node: Node) -> str:
        owner, name = self._list(node.inputs), str(node.attributes["name"])
        return f"{owner}.{name}" if _IDENTIFIER.fullmatch(name) else f"getattr({owner}, {json.dumps(name)})"

    def _call_method(self, node: Node) -> str:
        owner, *arguments = (self._texts[value] for value in node.inputs)
        return f"({owner}).{node.attributes['name']}({''.join(f'{argument}, ' for argument in arguments)})"

    def _call_function(self, node: Node) -> str:
        function, *arguments = (self._texts[value] for value in node.inputs)
        return f"{function}({''.join(f'{argument}, ' for argument in arguments)})"

    def _create(self, node: Node) -> str:
        name = node.outputs[0].type.name
        return f"{name}.__new__({name})"

    def _tuple(self, node: Node) -> str:
        name, count = node.outputs[0].type.name, len(node.inputs)
        return f"{name}({self._list(node.inputs)}{',' if count == 1 and not name else ''})"

    def _list_literal(self, node: Node) -> str:
        return f"annotate({text_of_type(node.outputs[0].type)}, [{self._list(node.inputs)}])"

    def _dict_literal(self, node: Node) -> str:
        pairs = zip(node.inputs[::2], node.inputs[1::2], strict=True)
        items = ", ".join(f"{self._texts[key]}: {self._texts[value]}" for key, value in pairs)
        return f"annotate({text_of_type(node.outputs[0].type)}, {{{items}}})"

    def _tuple_index(self, node: Node) -> str:
        owner, index = (self._texts[value] for value in node.inputs)
        return f"({owner})[{index}]"

    def _uninitialized(self, node: Node) -> str:
        return f"uninitialized({text_of_type(node.outputs[0].type)})"

    def _cast(self, node: Node) -> str:
        return f"unchecked_cast({text_of_type(node.outputs[0].type)}, {self._list(node.inputs)})"

    def _isinstance(self, node: Node) -> str:
        types = node.attributes["types"]
        texts = [text_of_type(type_) for type_ in types] if isinstance(types, list) else []
        return f"isinstance({self._list(node.inputs)}, {texts[0] if len(texts) == 1 else '(' + ', '.join(texts) + ')'})"

    def _to_list(self, node: Node) -> str:
        return f"annotate({text_of_type(node.outputs[0].type)}, ({self._texts[node.inputs[0]]}).tolist())"

    def _member(self, node: Node) -> str:
        return f"({self._list(node.inputs)}).{'name' if 'Name' in node.op else 'value'}"

    def _print(self, node: Node) -> str:
        return f"print({self._list(node.inputs)})"

    def _unwrap(self, node: Node) -> str:
        (value,) = node.inputs
        text = self._texts[value]
        if value.type.kind == "NoneType":
            text = f"annotate(Optional[{text_of_type(node.outputs[0].type)}], None)"
        return f"torch._unwrap_optional({text})"

    def _implicit(self, node: Node) -> str:
        return f"annotate({text_of_type(node.outputs[0].type)}, {self._list(node.inputs)})"

    def _operator(self, node: Node) -> str:
        namespace, _, name = node.kind.partition("::")
        schema = next((schema for schema in table().lookup(node.kind) if schema.name == node.op), None)
        if schema is None:
            raise ReadError("the operator is not known. Import the library that registers it", construct=node.op)
        arguments = [self._texts[value] for value in node.inputs]
        for number, formal in enumerate(schema.arguments[: len(arguments)]):
            if formal.is_keyword:
                arguments[number] = f"{formal.name}={arguments[number]}"
        owner = "torch" if namespace == "aten" else f"ops.{namespace}"
        return f"{owner}.{name}({', '.join(arguments)})"


_STATEMENTS: Mapping[str, Callable[[_Printer, Node], None]] = {
    "prim::TupleUnpack": _Printer._unpack,
    "prim::ListUnpack": _Printer._unpack,
    "prim::SetAttr": _Printer._set_attribute,
    "prim::If": _Printer._if,
    "prim::Loop": _Printer._loop,
    "prim::Enter": _Printer._enter,
    "prim::Exit": _Printer._exit,
    "prim::fork": _Printer._fork,
}
_EXPRESSIONS: Mapping[str, Callable[[_Printer, Node], str]] = {
    "prim::GetAttr": _Printer._get_attribute,
    "prim::CallMethod": _Printer._call_method,
    "prim::CallFunction": _Printer._call_function,
    "prim::CreateObject": _Printer._create,
    "prim::TupleConstruct": _Printer._tuple,
    "prim::ListConstruct": _Printer._list_literal,
    "prim::DictConstruct": _Printer._dict_literal,
    "prim::TupleIndex": _Printer._tuple_index,
    "prim::Uninitialized": _Printer._uninitialized,
    "prim::unchecked_cast": _Printer._cast,
    "prim::unchecked_unwrap_optional": _Printer._cast,
    "prim::isinstance": _Printer._isinstance,
    "prim::tolist": _Printer._to_list,
    "prim::EnumValue.int": _Printer._member,
    "prim::EnumName": _Printer._member,
    "prim::Print": _Printer._print,
    "aten::_unwrap_optional": _Printer._unwrap,
    **dict.fromkeys(
        ("aten::IntImplicit", "aten::FloatImplicit", "aten::ScalarImplicit", "aten::ComplexImplicit"),
        _Printer._implicit,
    ),
}


def print_function(graph: Graph, constants: Constants, depth: int = 0) -> str:
    """Return the code of a function or method."""
    return "\n".join(_Printer(graph, constants).function(depth)) + "\n"


def print_class(class_: Class, constants: Constants) -> str:
    """Return the code of a class."""
    kind, name = class_.type.kind, class_.type.name.rpartition(".")[2]
    base = "Module" if class_.is_module and kind == "Class" else "" if kind == "Class" else kind
    if kind == "Interface" and class_.is_module:
        base = "ModuleInterface"
    lines = list(_PARTS[kind](class_, constants))
    return f"class {name}{f'({base})' if base else ''}:\n" + ("".join(lines) or "  pass\n")


def _enum(class_: Class, constants: Constants) -> Iterator[str]:
    for name, member in class_.constants.items():
        value = member.value if isinstance(member, EnumValue) else member
        yield f"  {name} = {json.dumps(value) if isinstance(value, str) else value}\n"


def _fields(class_: Class, constants: Constants) -> Iterator[str]:
    for name, type_ in class_.attributes.items():
        yield f"  {name} : {text_of_type(type_)}\n"


def _interface(class_: Class, constants: Constants) -> Iterator[str]:
    for name, graph in class_.methods.items():
        parameters = zip(graph.parameters[1:], graph.inputs[1:], strict=True)
        text = "".join(f", {parameter}: {text_of_type(value.type)}" for parameter, value in parameters)
        yield f"  def {name}(self{text}) -> {text_of_type(graph.returns)}:\n    pass\n"


def _object(class_: Class, constants: Constants) -> Iterator[str]:
    if class_.is_module:
        before, after = class_.hooks
        yield f"  __parameters__ = {_names([name for name in class_.attributes if name in class_.parameters])}\n"
        yield f"  __buffers__ = {_names([name for name in class_.attributes if name in class_.buffers])}\n"
        yield from (f"  __forward_pre_hooks__ = {_names(before)}\n" for _ in before[:1])
        yield from (f"  __forward_hooks__ = {_names(after)}\n" for _ in after[:1])
    if class_.attributes and not all(map(_IDENTIFIER.fullmatch, class_.attributes)):
        yield "  __annotations__ = []\n"
    for name, type_ in class_.attributes.items():
        if _IDENTIFIER.fullmatch(name):
            yield f"  {name} : {text_of_type(type_)}\n"
        else:
            yield f"  __annotations__[{json.dumps(name)}] = {text_of_type(type_)}\n"
    for name, value in class_.constants.items():
        type_ = class_.constant_types.get(name, Type("Any"))
        yield f"  {name} : Final[{text_of_type(type_)}] = {text_of_constant(value, type_, constants)}\n"
    for graph in class_.methods.values():
        yield print_function(graph, constants, 1)


def _names(names: Sequence[str]) -> str:
    return f"[{''.join(f'{json.dumps(name)}, ' for name in names)}]"


_PARTS: Mapping[str, Callable[[Class, Constants], Iterator[str]]] = {
    "Class": _object,
    "NamedTuple": _fields,
    "Enum": _enum,
    "Interface": _interface,
}

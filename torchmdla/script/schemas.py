"""Schemas of PyTorch's operators, without PyTorch: a table that is made when the extension is built.

The table (``operators.txt`` in the extension's folder) has the schemas of each operator in the order in which PyTorch
tries them, and the upgraders of operators that changed. Operators that other libraries register are looked up in
PyTorch, if the process has it.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchmdla.script.ir import Constant, Type
from torchmdla.script.types import BOOL, FLOAT, INT, NAMED_TYPES, STR
from torchmdla.version import TORCH_VERSIONS, extension_folder

TABLE = "operators.txt"
_UPGRADERS = "\n# upgraders\n"


@dataclass(frozen=True, slots=True)
class Argument:
    """Argument of an operator or of a function.

    Attributes:
        type: the type, in which type variables have the kind ``Variable``.
        length: the length of a list that one number can stand for (``int[2]``).
        has_default: whether ``default`` is its default value.
        is_keyword: whether it is passed by name only.
        is_written: whether the operator writes to it.
    """

    name: str
    type: Type
    length: int | None = None
    has_default: bool = False
    default: Constant = None
    is_keyword: bool = False
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class Schema:
    """Arguments and results of an operator or of a function.

    Attributes:
        is_variadic: whether it takes any number of further arguments.
        return_names: the names of the results, if all have one.
        has_effects: whether it does more than compute results.
        upgrader: the code that replaces the operator, for a schema of an old version.
    """

    name: str
    arguments: Sequence[Argument]
    returns: Sequence[Type]
    is_variadic: bool = False
    return_names: Sequence[str] = ()
    has_effects: bool = False
    upgrader: str = ""


@dataclass(frozen=True, slots=True)
class Upgrader:
    """Function that replaces an operator of an old version.

    Attributes:
        operator: the operator, with its overload.
        version: the first version of files in which the operator has its new meaning.
        schema: its old schema.
        code: the function, as PyTorch prints it.
    """

    operator: str
    version: int
    schema: str
    code: str


@dataclass
class Table:
    """Schemas of one version of PyTorch, as text. They are parsed when they are looked up."""

    lines: dict[str, list[str]] = field(default_factory=dict)
    upgraders: dict[str, list[Upgrader]] = field(default_factory=dict)
    parsed: dict[str, Sequence[Schema]] = field(default_factory=dict)

    def lookup(self, name: str) -> Sequence[Schema]:
        """Return the schemas of an operator (``"aten::add"``), in the order in which they are tried."""
        schemas = self.parsed.get(name)
        if schemas is None:
            lines = self.lines.get(name) or _registered(name)
            schemas = self.parsed[name] = [parse_schema(line) for line in lines]
        return schemas

    def lookup_at(self, name: str, version: int) -> Sequence[Schema]:
        """Return the schemas of an operator for a file of a version. An old schema names its upgrader."""
        schemas = self.lookup(name)
        if version >= self.newest_upgrade or not any(schema.name in self.upgraders for schema in schemas):
            return schemas
        current, old = [], []
        for schema in schemas:
            upgraders = [entry for entry in self.upgraders.get(schema.name, ()) if version < entry.version]
            if not upgraders:
                current.append(schema)
                continue
            upgrader = min(upgraders, key=lambda entry: entry.version)
            parsed = parse_schema(upgrader.schema)
            old.append(dataclasses.replace(parsed, upgrader=upgrader.code))
        return [*current, *old]

    @functools.cached_property
    def newest_upgrade(self) -> int:
        """Return the version of files from which on no operator needs an upgrader."""
        return max((entry.version for entries in self.upgraders.values() for entry in entries), default=0)


def _registered(name: str) -> list[str]:
    """Return the schemas that the process's PyTorch has for an operator of another library."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "_C"):
        return []
    return [str(schema) for schema in torch._C._jit_get_schemas_for_operator(name)]


@functools.cache
def table() -> Table:
    """Return the table of the PyTorch in this process, or else of the newest version that is built.

    Raises:
        ImportError: no extension is built.
    """
    package = Path(__file__).parents[1]
    torch = sys.modules.get("torch")
    folders = [extension_folder(version) for version in reversed(TORCH_VERSIONS)]
    if torch is not None and hasattr(torch, "__version__"):
        folders.insert(0, extension_folder(str(torch.__version__)))
    for folder in folders:
        file = package / folder / TABLE
        if file.exists():
            return parse_table(file.read_text())
    raise ImportError(f"this copy of torchmdla ({package}) has no table of operators. Build it: make build")


def parse_table(text: str) -> Table:
    """Return the table of a file that ``release/operator_table.py`` wrote."""
    schemas, _, upgraders = text.partition(_UPGRADERS)
    result = Table()
    for line in schemas.splitlines():
        namespace, _, rest = line.lstrip("!").partition("::")  # the namespace of a method is its class
        name = f"{namespace}::{rest[: rest.index('(')].partition('.')[0]}"
        result.lines.setdefault(name, []).append(line)
    for entry in filter(None, upgraders.split("\n\n")):
        head, schema, code = entry.strip("\n").split("\n", 2)
        operator, version = head.split()
        result.upgraders.setdefault(operator, []).append(Upgrader(operator, int(version), schema, code + "\n"))
    return result


# Parsing of one schema

_TOKEN = re.compile(r'\s*(->|\.\.\.|"(?:[^"\\]|\\.)*"|[\w:.$+-]+|.)')
_VARIABLE = re.compile(r"t\d*|tVal")
_TYPES: Mapping[str, Type] = {
    **NAMED_TYPES,
    **dict.fromkeys(("SymInt", "DispatchKey"), INT),
    "Dimname": STR,
    "Storage": Type("Storage"),
    "AnyEnumType": Type("AnyEnum"),
    "AnyClassType": Type("AnyClass"),
    "Any": Type("Any"),
    "SymBool": BOOL,
}
_GENERIC = {"Dict": 2, "Future": 1, "Await": 1, "RRef": 1}
_WORDS: Mapping[str, Constant] = {
    "None": None,
    "True": True,
    "False": False,
    "Mean": 1,
    "contiguous_format": 0,
    "long": 4,
    "strided": 0,
}


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._next = 0

    def peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def take(self, token: str = "") -> str:
        taken = self.peek()
        if token and taken != token:
            raise ValueError(f"expected {token!r} and not {taken!r} in {''.join(self._tokens)}")
        self._next += 1
        return taken

    def accept(self, token: str) -> bool:
        if self.peek() != token:
            return False
        self._next += 1
        return True

    def schema(self) -> Schema:
        has_effects = self.accept("!")
        name = self.take()
        arguments, is_variadic, is_keyword = [], False, False
        self.take("(")
        while not self.accept(")"):
            if self.accept("*"):
                is_keyword = True
            elif self.accept("..."):
                is_variadic = True
            else:
                arguments.append(self._argument(is_keyword))
            self.accept(",")
        self.take("->")
        returns, names = self._returns()
        has_effects |= any(argument.is_written for argument in arguments)
        return Schema(name, arguments, returns, is_variadic, names, has_effects)

    def _argument(self, is_keyword: bool) -> Argument:
        type_, length, is_written = self.type()
        name = self.take() if self.peek() not in (",", ")", "=") else ""
        if not self.accept("="):
            return Argument(name, type_, length, False, None, is_keyword, is_written)
        default = self._value(type_)
        if length and not isinstance(default, list) and default is not None:
            default = [default] * length
        return Argument(name, type_, length, True, default, is_keyword, is_written)

    def type(self) -> tuple[Type, int | None, bool]:
        """Return a type, the length of a list, and whether the argument is written to."""
        word = self.take()
        if word == "(":
            elements = []
            while not self.accept(")"):
                elements.append(self.type()[0])
                self.accept(",")
            type_ = Type("Tuple", tuple(elements))
        elif word in _GENERIC:
            self.take("(")
            arguments = [self.type()[0]]
            while self.accept(","):
                arguments.append(self.type()[0])
            self.take(")")
            type_ = Type(word, tuple(arguments))
        elif _VARIABLE.fullmatch(word):
            type_ = Type("Variable", name=word)
        else:
            type_ = _TYPES[word] if word in _TYPES else Type("Class", name=word)
        return self._suffixes(type_)

    def _suffixes(self, type_: Type) -> tuple[Type, int | None, bool]:
        length, is_written = None, False
        while True:
            if self.accept("["):
                length = None if self.peek() == "]" else int(self.take())
                self.take("]")
                type_ = Type("List", (type_,))
            elif self.accept("?"):
                type_ = Type("Optional", (type_,))
            elif self.accept("("):  # the alias: (a!), (a -> *), (a|b)
                while not self.accept(")"):
                    is_written |= self.take() == "!"
            else:
                return type_, length, is_written

    def _returns(self) -> tuple[list[Type], list[str]]:
        if self.accept("..."):
            return [Type("Any")], []
        if not self.accept("("):
            type_ = self.type()[0]
            return [type_], [self.take()] if self.peek() else []
        types, names = [], []
        while not self.accept(")"):
            if self.accept("..."):
                continue
            types.append(self.type()[0])
            if self.peek() not in (",", ")"):
                names.append(self.take())
            self.accept(",")
        return types, names if len(names) == len(types) else []

    def _value(self, type_: Type) -> Constant:
        if self.accept("["):
            element = type_.arguments[0] if type_.kind == "List" else type_.arguments[0].arguments[0]
            values = []
            while not self.accept("]"):
                values.append(self._value(element))
                self.accept(",")
            return values
        word = self.take()
        if word.startswith('"'):
            return ast.literal_eval(word)  # type: ignore[no-any-return]
        if word in _WORDS:
            return _WORDS[word]
        while type_.kind in ("Optional", "List"):
            type_ = type_.arguments[0]
        if type_ == FLOAT:
            return float(word)
        if type_ == STR:
            return word
        return int(word) if re.fullmatch(r"-?\d+", word) else float(word)


@functools.cache
def parse_schema(text: str) -> Schema:
    """Return the schema of an operator's text, as PyTorch prints it.

    Raises:
        ValueError: the text is not a schema.
    """
    return _Parser(text).schema()

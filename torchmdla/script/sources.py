"""Code of an archive: classes and functions, which are found by name and parsed when they are needed.

A file of code is divided into definitions by its indentation, without a parser. Therefore a program of many classes is
opened in little time.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchmdla.errors import ReadError
from torchmdla.script.archive import Archive

_DEFINITION = re.compile(r"^(class|def) +(\w+)", re.MULTILINE)
_METHOD = re.compile(r"^  def +(\w+)", re.MULTILINE)
_END_OF_SIGNATURE = re.compile(r":[ \t]*\n")
_BASE = re.compile(r"class +\w+(?:\((\w*)\))? *:")
_PARAMETERS = re.compile(r"^  __parameters__ *= *\[(.*)\]", re.MULTILINE)
# Names that Python reserves, and TorchScript does not: attributes may have them.
_RESERVED = re.compile(r"\.(async|await|del|except|finally|from|global|nonlocal|try|yield)\b")
_RESERVED_SUFFIX = "__name"
# Python's parser has a recursion of its own, which deep nesting of brackets or signs would exhaust.
_DEEP = re.compile(r"[-+~(\[{]{90}|(?:not ){90}|(?:\.\w+){200}")

_KINDS: Mapping[str | None, str] = {
    None: "Class",
    "": "Class",
    "Module": "Class",
    "NamedTuple": "NamedTuple",
    "Enum": "Enum",
    "Interface": "Interface",
    "ModuleInterface": "Interface",
}


@dataclass(frozen=True, slots=True)
class Source:
    """Text of a class or of a function.

    Attributes:
        name: the qualified name.
        record: the file in the archive.
        line: the number of the line before the first.
        text: the text, indented as in the file.
    """

    name: str
    record: str
    line: int
    text: str

    @property
    def kind(self) -> str:
        """Return the kind of a class, such as ``"NamedTuple"``; empty for a function or an unknown base."""
        match = _BASE.match(self.text)
        return _KINDS.get(match[1], "") if match else ""

    @property
    def is_module(self) -> bool:
        """Return whether it is a class or an interface of modules."""
        match = _BASE.match(self.text)
        return match is not None and match[1] in ("Module", "ModuleInterface")

    def methods(self) -> tuple[Source, dict[str, Source]]:
        """Return the part of a class before its methods, and the methods by name."""
        places = list(_METHOD.finditer(self.text))
        ends = [*(match.start() for match in places), len(self.text)]
        parts = zip(places, ends[1:], strict=True)
        head = Source(self.name, self.record, self.line, self.text[: ends[0]])
        return head, {match[1]: self._part(f"{self.name}.{match[1]}", match.start(), end) for match, end in parts}

    def _part(self, name: str, start: int, end: int) -> Source:
        return Source(name, self.record, self.line + self.text.count("\n", 0, start), self.text[start:end])


class Sources:
    """All code of an archive."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self._files: dict[str, dict[str, Source]] = {}

    def error(self, source: Source, reason: str, node: ast.AST | None = None, construct: str = "") -> ReadError:
        """Return an error at a place of the code."""
        line = source.line + getattr(node, "lineno", 1)
        return self.archive.error(reason, source.record, line, construct)

    def find(self, name: str) -> Source | None:
        """Return the class or function of a qualified name, or None."""
        module, _, last = name.rpartition(".")
        return self._file(module).get(last) if module else None

    def names(self) -> list[str]:
        """Return the qualified names of all classes and functions."""
        modules = [
            record.removeprefix("code/").removesuffix(".py").replace("/", ".")
            for record in self.archive
            if record.startswith("code/") and record.endswith(".py")
        ]
        return [source.name for module in modules for source in self._file(module).values()]

    def parse(self, source: Source) -> Any:
        """Return the syntax tree of a class, a function, or a method, whose indentation is accepted.

        Raises:
            ReadError: the text is not code that TorchScript prints.
        """
        text = _RESERVED.sub(rf".\1{_RESERVED_SUFFIX}", source.text) if _RESERVED.search(source.text) else source.text
        is_indented = text.startswith(" ")
        if is_indented:
            text = f"if 1:\n{text}"
        if _DEEP.search(text):
            raise self.error(source, "the code is nested too deeply")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                body = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None) or 1
            place = ast.Pass(lineno=line - is_indented)
            reason = error.msg if isinstance(error, SyntaxError) else str(error) or "the code is nested too deeply"
            raise self.error(source, f"the code is not what TorchScript prints: {reason}", place) from error
        if is_indented and len(body) == 1 and isinstance(body[0], ast.If):
            body = body[0].body
        if len(body) != 1:
            raise self.error(source, "the code is not one definition", body[-1] if body else None)
        return ast.increment_lineno(body[0], -1) if is_indented else body[0]

    def parse_signature(self, source: Source) -> Any:
        """Return the syntax tree of a function without its body."""
        match = _END_OF_SIGNATURE.search(source.text)
        if match is None:
            raise self.error(source, "the function does not have a body")
        return self.parse(Source(source.name, source.record, source.line, f"{source.text[: match.start()]}: pass\n"))

    def parameters_of(self, source: Source) -> frozenset[str]:
        """Return the names of a module's parameters."""
        match = _PARAMETERS.search(source.text)
        return frozenset(re.findall(r'"([^"]*)"', match[1])) if match else frozenset()

    def _file(self, module: str) -> dict[str, Source]:
        sources = self._files.get(module)
        if sources is None:
            record = f"code/{module.replace('.', '/')}.py"
            sources = self._files[module] = self._divide(module, record) if record in self.archive else {}
        return sources

    def _divide(self, module: str, record: str) -> dict[str, Source]:
        try:
            text = self.archive.read(record).decode()
        except UnicodeDecodeError as error:
            raise self.archive.error("the code is not UTF-8", record) from error
        sources: dict[str, Source] = {}
        matches = list(_DEFINITION.finditer(text))
        ends = [*(match.start() for match in matches), len(text)]
        line, counted = 0, 0
        for match, end in zip(matches, ends[1:], strict=True):
            line += text.count("\n", counted, match.start())
            counted = match.start()
            if match[2] in sources:
                raise self.archive.error("the code defines a name twice", record, line + 1, match[2])
            sources[match[2]] = Source(f"{module}.{match[2]}", record, line, text[match.start() : end])
        return sources


def attribute_name(name: str) -> str:
    """Return the name of an attribute as it is in the file."""
    return name.removesuffix(_RESERVED_SUFFIX)

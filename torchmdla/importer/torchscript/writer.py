"""Writer of Torch dialect text with regions, which TorchScript's programs need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torchmdla.errors import CompileError
from torchmdla.importer.emitter import Value, float_literal, quote
from torchmdla.importer.literals import Literals, literal_type
from torchmdla.script.ir import StoredTensor

TensorOf = Callable[[StoredTensor], Tensor]


class ScriptWriter:
    """Collector of lines. The line that defines a value makes it.

    Args:
        tensor_of: returns the tensor of a file.

    Attributes:
        location: the location of every op until it is set again.
        literals: the tensors of the text.
    """

    def __init__(self, tensor_of: TensorOf | None = None) -> None:
        self._tensor_of = tensor_of
        self.location = "loc(unknown)"
        self.literals = Literals()
        self._lines: list[str] = []
        self._depth = 1
        self._count = 0

    def fresh(self, type_: str) -> Value:
        """Return a new value that the caller defines by its own line, such as an argument."""
        self._count += 1
        return Value(f"%v{self._count}", type_)

    def line(self, text: str) -> None:
        """Add a line unchanged."""
        self._lines.append("  " * self._depth + text)

    def op(self, name: str, operands: Sequence[Value], types: Sequence[str], attributes: str = "") -> list[Value]:
        """Write an op in the generic form and return its results. ``attributes`` has no braces."""
        results, head = self._head(name, operands, types, attributes)
        self.line(f"{head} {_signature(operands, types)} {self.location}")
        return results

    @contextmanager
    def region_op(self, name: str, operands: Sequence[Value], types: Sequence[str]) -> Iterator[list[Value]]:
        """Write an op whose regions are written inside the ``with``, each in a :meth:`region`. Yield its results."""
        results, head = self._head(name, operands, types, "")
        location = self.location
        self.line(f"{head} (")
        yield results
        self.line(f") {_signature(operands, types)} {location}")

    @contextmanager
    def region(self, arguments: Sequence[Value], is_last: bool) -> Iterator[None]:
        """Write a region of one block."""
        listed = ", ".join(f"{argument.name}: {argument.type}" for argument in arguments)
        self.line("{" + (f" ^bb0({listed}):" if arguments else ""))
        with self.indented():
            yield
        self.line("}" if is_last else "},")

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Indent the lines inside the ``with``."""
        self._depth += 1
        yield
        self._depth -= 1

    def _head(
        self, name: str, operands: Sequence[Value], types: Sequence[str], attributes: str
    ) -> tuple[list[Value], str]:
        results = [self.fresh(type_) for type_ in types]
        left = f"{', '.join(result.name for result in results)} = " if results else ""
        properties = f" <{{{attributes}}}>" if attributes else ""
        return results, f'{left}"{name}"({", ".join(operand.name for operand in operands)}){properties}'

    # Constants

    def loaded(self, value: object) -> object:
        """Return a value, or PyTorch's tensor for a tensor of a file."""
        return self._tensor_of(value) if self._tensor_of and isinstance(value, StoredTensor) else value

    def constant(self, value: object, type_: object) -> Value:
        """Write None, a number, a string, a device or a tensor. The type of a tensor includes its sizes and dtype.

        Raises:
            CompileError: If the dialect does not have values of ``type_``, or the dtype.
        """
        value = self.loaded(value)
        if isinstance(value, Tensor):
            attributes = f"value = {self.literals.attribute(value)}"
            return self.op("torch.tensor.literal", [], [literal_type(value)], attributes)[0]
        for kind, (name, dialect_type, written) in _CONSTANTS.items():
            if isinstance(value, kind):
                return self.op(f"torch.constant.{name}", [], [f"!torch.{dialect_type}"], written(value))[0]
        raise CompileError(f"a value of type {type_} has no form in the Torch dialect")

    def text(self) -> str:
        """Return all lines so far, as a module."""
        return "module {\n" + "\n".join(self._lines) + "\n}\n"


def _signature(operands: Sequence[Value], types: Sequence[str]) -> str:
    return f": ({', '.join(operand.type for operand in operands)}) -> ({', '.join(types)})"


# Name, type and attributes of a constant's op, by the type of the constant in Python.
_CONSTANTS: Mapping[type, tuple[str, str, Callable[[Any], str]]] = {
    type(None): ("none", "none", lambda value: ""),
    bool: ("bool", "bool", lambda value: f"value = {str(value).lower()}"),
    int: ("int", "int", lambda value: f"value = {value} : i64"),
    float: ("float", "float", lambda value: f"value = {float_literal(value)} : f64"),
    torch.device: ("device", "Device", lambda value: f"value = {quote(str(value))}"),
    str: ("str", "str", lambda value: f"value = {quote(value)}"),
}

"""Writer of one function's text in the Torch dialect.

It writes text, and does not use the MLIR bindings: the user's process never loads MLIR.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from torchmdla.importer.types import DEFAULT_OPTIONS, ImportOptions, TensorMeta, element_type, tensor_type


@dataclass(frozen=True)
class Value:
    """SSA value: its name (``%3``), its type, and the tensor's metadata. Other values have no ``meta``."""

    name: str
    type: str
    meta: TensorMeta | None = None


def quote(text: str) -> str:
    """Return a string literal of MLIR, which escapes bytes by two hexadecimal digits."""
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:02X}" for byte in text.encode())
    return f'"{"".join(plain)}"'


def symbol(name: str) -> str:
    """Return the text of a symbol after the ``@``."""
    return name if _IDENTIFIER.fullmatch(name) else quote(name)


_IDENTIFIER = re.compile(r"[A-Za-z_][\w$.]*", re.ASCII)


def location(source: str) -> str:
    """Return MLIR's location of ``file:line``."""
    file, _, line = source.rpartition(":")
    return f"loc({quote(file)}:{line}:0)" if file and line.isdigit() else "loc(unknown)"


def float_literal(value: float) -> str:
    """Return a 64-bit float literal of MLIR that reads back exactly."""
    if math.isfinite(value):
        return f"{value:.17e}"
    return "0x" + struct.pack(">d", value).hex().upper()


class Emitter:
    """Collector of ops. Constants are written once, at their first use.

    ``location`` applies to every op until it is set again. ``is_program`` marks the function as a device's program. A
    program stores uint8 as int8 with the same bits, because upstream's passes end the process on unsigned types.
    """

    def __init__(self, options: ImportOptions = DEFAULT_OPTIONS, is_program: bool = False) -> None:
        self.options = options
        self._is_program = is_program
        self.location = "loc(unknown)"
        self._lines: list[str] = []
        self._constants: dict[str, Value] = {}
        self._count = 0

    def op(self, name: str, operands: Sequence[Value], types: Sequence[str], attributes: str = "") -> list[str]:
        """Write ``name`` (``torch.aten.relu``) in MLIR's generic form and return the names of its results."""
        result = self._fresh()
        left = f"{result}:{len(types)} = " if types else ""
        arguments = ", ".join(operand.name for operand in operands)
        argument_types = ", ".join(operand.type for operand in operands)
        self._lines.append(
            f'{left}"{name}"({arguments}) {attributes}: ({argument_types}) -> ({", ".join(types)}) {self.location}'
        )
        return [f"{result}#{index}" for index in range(len(types))]

    def tensor_op(self, name: str, operands: Sequence[Value], meta: TensorMeta) -> Value:
        """Write an op with one result, a tensor, as :meth:`op` does."""
        return Value(self.op(name, operands, [self.tensor_type(meta)])[0], self.tensor_type(meta), meta)

    def tensor_type(self, meta: TensorMeta) -> str:
        """Return the type of a tensor in this function."""
        return tensor_type(self._stored(meta))

    def _stored(self, meta: TensorMeta) -> TensorMeta:
        return replace(meta, dtype=torch.int8) if self._is_program and meta.dtype == torch.uint8 else meta

    def check(self, flag: Value, message: str) -> None:
        """End the call with an error unless ``flag``, a 0-d tensor of bool, is true."""
        condition = self._fresh()
        self._lines.append(
            f'{condition} = "torch.aten.Bool.Tensor"({flag.name}) : ({flag.type}) -> !torch.bool {self.location}'
        )
        self._lines.append(f"torch.runtime.assert {condition}, {quote(message)} {self.location}")

    def none(self) -> Value:
        return self._constant("torch.constant.none", "!torch.none")

    def boolean(self, value: bool) -> Value:
        return self._constant(f"torch.constant.bool {str(value).lower()}", "!torch.bool")

    def integer(self, value: int) -> Value:
        return self._constant(f"torch.constant.int {value}", "!torch.int")

    def floating(self, value: float) -> Value:
        return self._constant(f"torch.constant.float {float_literal(value)}", "!torch.float")

    def string(self, value: str) -> Value:
        return self._constant(f"torch.constant.str {quote(value)}", "!torch.str")

    def device(self, value: str) -> Value:
        return self._constant(f"torch.constant.device {quote(value)}", "!torch.Device")

    def number_tensor(self, value: int | float | bool, meta: TensorMeta) -> Value:
        """Return a 0-d tensor with a known value, as a literal."""
        stored = self._stored(meta)
        number = torch.tensor(value, dtype=meta.dtype)
        literal = dense_element(number.view(stored.dtype) if stored is not meta else number)
        type_ = tensor_type(stored)
        text = f"torch.vtensor.literal(dense<{literal}> : tensor<{element_type(stored.dtype)}>) : {type_}"
        return Value(self._constant(text, type_).name, type_, meta)

    def empty_tensor(self, meta: TensorMeta) -> Value:
        """Return a tensor without elements, as a literal."""
        stored = self._stored(meta)
        type_ = tensor_type(stored)
        sizes = "x".join(map(str, meta.shape))
        text = f"torch.vtensor.literal(dense<> : tensor<{sizes}x{element_type(stored.dtype)}>) : {type_}"
        return Value(self._constant(text, type_).name, type_, meta)

    def int_list(self, values: Sequence[int]) -> Value:
        return self.list([self.integer(value) for value in values], "int")

    def list(self, elements: Sequence[Value], element: str) -> Value:
        """Return a list value. ``element`` is the element type without ``!torch.``."""
        operands = ", ".join(value.name for value in elements)
        types = ", ".join(value.type for value in elements)
        type_ = f"!torch.list<{element}>"
        return self._constant(f"torch.prim.ListConstruct {operands} : ({types}) -> {type_}", type_)

    def text(self, arguments: Sequence[Value], results: Sequence[Value], name: str = "forward") -> str:
        """Return the module, whose function ``name`` consists of all ops so far."""
        signature = ", ".join(f"{argument.name}: {argument.type}" for argument in arguments)
        types = ", ".join(result.type for result in results)
        returned = ", ".join(result.name for result in results)
        body = "".join(f"    {line}\n" for line in self._lines)
        tail = f" {returned} : {types}" if results else ""
        head = f"func.func @{symbol(name)}({signature}) -> ({types})"
        return f"module {{\n  {head} {{\n{body}    return{tail}\n  }}\n}}\n"

    def _constant(self, text: str, type_: str) -> Value:
        if text not in self._constants:
            name = self._fresh()
            self._lines.append(f"{name} = {text} {self.location}")
            self._constants[text] = Value(name, type_)
        return self._constants[text]

    def _fresh(self) -> str:
        self._count += 1
        return f"%{self._count}"


def dense_element(number: torch.Tensor) -> str:
    """Return a 0-d tensor as an element of MLIR's ``dense<…>``. Floats are written as bits, to read back exactly."""
    if number.dtype == torch.bool:
        return str(bool(number)).lower()
    if not number.dtype.is_floating_point:
        return str(int(number))
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[number.element_size()]
    width = 8 * number.element_size()
    return f"0x{int(number.view(bits)) % (1 << width):0{width // 4}X}"

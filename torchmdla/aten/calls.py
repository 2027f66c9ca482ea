"""Names of a function's layers, and the reader that turns it into a list of calls.

The calls are plain data, so that rules see no MLIR objects.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch_mlir import ir

from torchmdla.aten import constants, types
from torchmdla.aten.dialect import CAST, CONSTANT, PARAMETER, AtenError, body_of, functions_with_body
from torchmdla.aten.schemas import OpSchema, by_op

_LAYER_NAME = "layer_name"


@dataclass(frozen=True)
class Tensor:
    """Tensor operand or result: its sizes, element type (``f32``), and value name (``%arg0``, ``%3#1``)."""

    shape: tuple[int, ...]
    element: str
    name: str = ""

    @property
    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Return whether the elements are floating-point or complex."""
        return "f" in self.element

    @property
    def bytes(self) -> int:
        """Return the size of the elements in bytes in PyTorch, where an ``i1`` has one byte."""
        bits = int(re.findall(r"\d+", self.element)[0]) * (2 if self.element.startswith("complex") else 1)
        return self.numel * max(1, bits // 8)


@dataclass(frozen=True)
class Call:
    """One op of the dialect with the known values of its operands.

    ``arguments`` maps the schema's argument names to values. A value is a :class:`Tensor`, a Python literal, a list of
    them, None, or :data:`UNKNOWN` for a computed number. ``results`` has the same kinds of values; a list of tensors is
    a list.
    """

    schema: OpSchema
    arguments: Mapping[str, Any]
    results: tuple[Any, ...]
    layer: str

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def out(self) -> Tensor:
        """Return the first result."""
        first = self.results[0]
        tensor: Tensor = first[0] if isinstance(first, list) else first
        return tensor

    @property
    def inputs(self) -> list[Tensor]:
        """Return the tensors among the arguments, including those in lists."""
        return list(tensors(self.arguments.values()))

    @property
    def outputs(self) -> list[Tensor]:
        """Return the tensors among the results, including those in lists."""
        return list(tensors(self.results))


UNKNOWN = object()


def tensors(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists."""
    for item in tree:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from tensors(item)


@dataclass(frozen=True)
class Function:
    """One function: its name, its tensor arguments, the names of the parameters, and its calls in order.

    ``returned`` has the names of the returned tensors. ``literals`` has the tensors of constants.
    """

    name: str
    arguments: tuple[Tensor, ...]
    parameters: frozenset[str]
    literals: tuple[Tensor, ...]
    calls: tuple[Call, ...]
    returned: tuple[str, ...]


def layer_names(module: ir.Module) -> list[str]:
    """Name every layer of every function, in place, and return the names in order.

    A layer is an op of the dialect other than ``aten.constant``. ``L3-relu-1`` is the fourth layer of its function and
    the second relu. Existing names are replaced.

    Raises:
        AtenError: a function has control flow.
    """
    names = []
    for function in functions_with_body(module):
        for op, name in _layers(body_of(function)):
            with module.context:
                op.attributes[_LAYER_NAME] = ir.StringAttr.get(name)
            names.append(name)
    return names


def _layers(block: Any) -> Iterator[tuple[Any, str]]:
    """Yield the layers of a function's block with their default names."""
    counts: Counter[str] = Counter()
    layers = (op.operation for op in block.operations if op.operation.name in by_op())
    for number, op in enumerate(layers):
        base = by_op()[op.name].base
        yield op, f"L{number}-{base}-{counts[base]}"
        counts[base] += 1


_TENSOR = re.compile(r"tensor<((?:[\d?]+x)*)([^,>]+(?:<[^>]*>)?)>")
# Ops of other dialects that do not count as work.
_UNCOUNTED_OPS = frozenset(
    (CAST, "func.return", "cf.assert", "memref.copy", "bufferization.materialize_in_destination")
)


class _Reader:
    """Reader of one function, which maps each MLIR value to its description."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.name = str(ir.StringAttr(function.attributes["sym_name"]).value)
        # The state numbers all values once, not once per name.
        self._state = ir.AsmState(function)
        self._known: dict[ir.Value, Any] = {}
        self._literals: list[Tensor] = []

    def read(self) -> Function:
        block = body_of(self._function)
        attributes = self._function.attributes
        marks = attributes["arg_attrs"] if "arg_attrs" in attributes else [{}] * len(block.arguments)
        for argument in block.arguments:
            self._known[argument] = self._describe(argument)
        arguments = [self._known[argument] for argument in block.arguments]
        marked = [argument for argument, mark in zip(arguments, marks, strict=True) if PARAMETER in mark]
        names = (name for _, name in _layers(block))
        calls: list[Call] = []
        returned: list[str] = []
        for op in (view.operation for view in block.operations):
            if op.name == "func.return":
                returned = [tensor.name for tensor in tensors([self._known[value] for value in op.operands])]
            elif op.name == CONSTANT:
                self._constant(op)
            elif op.name == CAST:
                self._cast(op)
            elif op.name in by_op():
                calls.append(self._call(op, next(names)))
            elif op.name not in _UNCOUNTED_OPS:
                raise AtenError(f"{op.name} is not an op of the aten dialect ({op.location})")
        parameters = frozenset(tensor.name for tensor in tensors(marked))
        literals, inputs = tuple(self._literals), tuple(tensors(arguments))
        return Function(self.name, inputs, parameters, literals, tuple(calls), tuple(returned))

    def _constant(self, op: Any) -> None:
        value = op.results[0]
        described = self._describe(value)
        if isinstance(described, Tensor):
            self._literals.append(described)
        self._known[value] = described if isinstance(described, Tensor) else constants.read(op)

    def _cast(self, op: Any) -> None:
        if len(op.results) == 1 and isinstance(op.results[0].type, ir.TupleType):
            self._known[op.results[0]] = [self._known[value] for value in op.operands]
        elif len(op.operands) == 1 and isinstance(op.operands[0].type, ir.TupleType):
            self._known.update(zip(op.results, self._known[op.operands[0]], strict=True))
        else:
            raise AtenError(f"{op.name} neither makes nor takes apart a tuple ({op.location})")

    def _call(self, op: Any, name: str) -> Call:
        schema = by_op()[op.name]
        arguments = dict(zip(schema.arguments, (self._known[value] for value in op.operands), strict=True))
        self._known.update((value, self._describe(value)) for value in op.results)
        label = op.attributes[_LAYER_NAME].value if _LAYER_NAME in op.attributes else ""
        return Call(schema, arguments, tuple(self._known[value] for value in op.results), label or name)

    def _describe(self, value: ir.Value) -> Any:
        name = value.get_name(self._state)
        if isinstance(value.type, ir.TupleType):
            elements = types.elements_of(value.type)
            return [self._describe_type(element, f"{name}[{index}]") for index, element in enumerate(elements)]
        return self._describe_type(value.type, name)

    def _describe_type(self, type_: ir.Type, name: str) -> Any:
        if types.is_none(type_):
            return None
        if not types.is_tensor(type_):
            return UNKNOWN
        match = _TENSOR.fullmatch(str(type_))
        if match is None or "?" in match[1]:
            raise AtenError(f"@{self.name}: the sizes of {name}, a {type_}, must be known for a report")
        return Tensor(tuple(int(size) for size in match[1].split("x") if size), match[2], name)


def function_of(module: ir.Module, name: str | None = None) -> Function:
    """Return the function called ``name``, or the module's only function.

    Raises:
        AtenError: the function does not exist, or ``name`` is ``None`` and there are several. An op does not belong to
            the aten dialect, or a size is not known.
    """
    readers = [_Reader(function) for function in functions_with_body(module)]
    chosen = [reader for reader in readers if name in (None, reader.name)]
    if len(chosen) != 1:
        wanted = "one function" if name is None else f"function @{name}"
        names = ", ".join(f"@{reader.name}" for reader in readers) or "none"
        raise AtenError(f"{wanted} expected, the module has {names}")
    return chosen[0].read()

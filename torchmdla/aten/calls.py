"""Reader that turns a function in the aten dialect into a list of calls.

The calls are plain data, so that rules see no MLIR objects.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_mlir import ir

from torchmdla.aten import constants, types
from torchmdla.aten.builder import PARAMETER
from torchmdla.aten.dialect import CAST, CONSTANT, AtenError
from torchmdla.aten.schemas import OpSchema, by_op

LAYER_NAME = "layer_name"


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
        """Return the size of the elements in bytes."""
        return self.numel * element_bytes(self.element)


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


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


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


def functions(module: ir.Module) -> list[Function]:
    """Return every function of a module that has a body.

    Raises:
        AtenError: an op does not belong to the aten dialect, or a size is not known.
    """
    operations = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
    return [_Reader(op).read() for op in operations if len(op.regions[0].blocks)]


def body(function: Any) -> Any:
    """Return the only block of a function.

    Raises:
        AtenError: the function has several blocks.
    """
    blocks = function.regions[0].blocks
    if len(blocks) != 1:
        raise AtenError(f"function {function.attributes['sym_name']} has control flow")
    return blocks[0]


def layers(function: Any) -> list[Any]:
    """Return the layers of a function: its ops of the aten dialect, without constants."""
    operations = [op.operation for op in body(function).operations]
    return [op for op in operations if op.name.startswith("aten.") and op.name != CONSTANT]


def layer_name(number: int, base: str, count: int) -> str:
    """Return the name of a layer.

    ``number`` counts over the graph, and ``count`` counts over the ops of its kind. Both start at 0.
    """
    return f"L{number}-{base}-{count}"


_TENSOR = re.compile(r"tensor<((?:[\d?]+x)*)([^,>]+(?:<[^>]*>)?)>")
# Ops of other dialects that do not count as work.
_UNCOUNTED_OPS = frozenset(
    (CAST, "func.return", "cf.assert", "memref.copy", "bufferization.materialize_in_destination")
)


class _Reader:
    """Reader of one function, which maps each MLIR value to its description."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._name = str(ir.StringAttr(function.attributes["sym_name"]).value)
        # The state numbers all values once, not once per name.
        self._state = ir.AsmState(function)
        self._known: dict[ir.Value, Any] = {}
        self._literals: list[Tensor] = []

    def read(self) -> Function:
        block = body(self._function)
        for argument in block.arguments:
            self._known[argument] = self._describe(argument)
        marked = [argument for argument in block.arguments if PARAMETER in self._attributes(argument)]
        calls: list[Call] = []
        returned: list[str] = []
        counts: dict[str, int] = {}
        for op in (view.operation for view in block.operations):
            if op.name == "func.return":
                returned = [tensor.name for tensor in tensors([self._known[value] for value in op.operands])]
            elif op.name == CONSTANT:
                self._constant(op)
            elif op.name == CAST:
                self._cast(op)
            elif op.name.startswith("aten."):
                calls.append(self._call(op, len(calls), counts))
            elif op.name not in _UNCOUNTED_OPS:
                raise AtenError(f"{op.name} is not an op of the aten dialect ({op.location})")
        literals = tuple(self._literals)
        parameters = frozenset(tensor.name for tensor in tensors([self._known[argument] for argument in marked]))
        arguments = tuple(tensors([self._known[argument] for argument in block.arguments]))
        return Function(self._name, arguments, parameters, literals, tuple(calls), tuple(returned))

    def _attributes(self, argument: Any) -> Any:
        if "arg_attrs" not in self._function.attributes:
            return {}
        return self._function.attributes["arg_attrs"][argument.arg_number]

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

    def _call(self, op: Any, number: int, counts: dict[str, int]) -> Call:
        schema = by_op()[op.name]
        arguments = dict(zip(schema.arguments, (self._known[value] for value in op.operands), strict=True))
        results = []
        for value in op.results:
            self._known[value] = self._describe(value)
            results.append(self._known[value])
        count = counts.get(schema.base, 0)
        counts[schema.base] = count + 1
        label = op.attributes[LAYER_NAME].value if LAYER_NAME in op.attributes else ""
        return Call(schema, arguments, tuple(results), label or layer_name(number, schema.base, count))

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
            raise AtenError(f"@{self._name}: the sizes of {name}, a {type_}, must be known for a report")
        return Tensor(tuple(int(size) for size in match[1].split("x") if size), match[2], name)


_BITS = re.compile(r"\d+")


def element_bytes(element: str) -> int:
    """Return the bytes of one element in PyTorch; an ``i1`` has one byte."""
    bits = int(_BITS.findall(element)[0]) * (2 if element.startswith("complex") else 1)
    return max(1, bits // 8)


def as_list(value: Any, length: int) -> Sequence[int]:
    """Return an ``int[N]`` argument as a list; a single number is repeated ``length`` times."""
    values = [value] if isinstance(value, int) else list(value)
    return values * length if len(values) == 1 else values


def function_of(module: ir.Module, name: str | None = None) -> Function:
    """Return the function called ``name``, or the module's only function.

    Raises:
        AtenError: the function does not exist, or ``name`` is ``None`` and there are several; also as
            :func:`functions`.
    """
    candidates = functions(module)
    names = ", ".join(f"@{function.name}" for function in candidates) or "none"
    chosen = [function for function in candidates if name in (None, function.name)]
    if len(chosen) != 1:
        wanted = "one function" if name is None else f"function @{name}"
        raise AtenError(f"{wanted} expected, the module has {names}")
    return chosen[0]

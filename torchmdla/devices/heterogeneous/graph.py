"""Program of the Torch dialect as a graph of calls and values, from which parts are cut.

The calls are those of the user's program: each contains the operations that the importer made of one node. Constants,
lists and numbers are not calls. Each part gets a copy of those that it uses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_mlir import ir

from torchmdla.compiler.mlir import forward_of, located_text, nodes_of
from torchmdla.compiler.program import Argument, Program, Result
from torchmdla.errors import CompileError

_TENSOR = re.compile(r"!torch\.vtensor<\[([\d,]*)\],\s*(\w+)>")

# torch's name of a dtype, and its bytes, by the element type in the Torch dialect.
_ELEMENTS = {
    "i1": ("bool", 1),
    "ui8": ("uint8", 1),
    "si8": ("int8", 1),
    "si16": ("int16", 2),
    "si32": ("int32", 4),
    "si64": ("int64", 8),
    "f16": ("float16", 2),
    "bf16": ("bfloat16", 2),
    "f32": ("float32", 4),
    "f64": ("float64", 8),
}


@dataclass
class Call:
    """Operations of one node of the group, in order.

    Attributes:
        place: place in the program, from 0.
        node: number of the node; None for an operation without one.
        operations: the operations.
        reads: values that it reads and does not compute, in order.
    """

    place: int
    node: int | None
    operations: list[Any] = field(default_factory=list)
    reads: list[Any] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        """Return the operators of its operations, as ``"aten::add.Tensor"``."""
        return {operation.name.removeprefix("torch.").replace(".", "::", 1) for operation in self.operations}


class ProgramGraph:
    """Graph of one static program, in the current context.

    Attributes:
        calls: the calls in an order in which each follows those that it depends on.
        arguments: the arguments of ``@forward``.
        results: the values that it returns.
    """

    def __init__(self, program: Program) -> None:
        self._module = ir.Module.parse(program.mlir)  # keeps the operations alive
        block = forward_of(self._module).regions[0].blocks[0]
        *operations, end = block.operations
        self._program = program
        self.arguments = list(block.arguments)
        self.results = list(end.operands)
        self._numbers = {value: number for number, value in enumerate(self.arguments)}
        self._copied: dict[Any, Any] = {}  # by result: an operation that each part copies
        self._producers: dict[Any, Call] = {}
        self._value_numbers: dict[Any, int] = {}
        self.calls: list[Call] = []
        by_node: dict[int, Call] = {}
        for operation in operations:
            if _is_copied(operation):
                self._copied.update(dict.fromkeys(operation.results, operation))
            else:
                self._add(operation, by_node)

    def _add(self, operation: Any, by_node: dict[int, Call]) -> None:
        node = min(nodes_of(operation), default=None)
        call = Call(len(self.calls), node) if node is None else by_node.setdefault(node, Call(len(self.calls), node))
        if not call.operations:
            self.calls.append(call)
        call.operations.append(operation)
        for value in self._values_read([operation]):
            if self._producers.get(value) is not call and value not in call.reads:
                call.reads.append(value)
        for value in operation.results:
            self._producers[value] = call
            self._value_numbers[value] = len(self._value_numbers)

    def _values_read(self, operations: Sequence[Any]) -> Iterator[Any]:
        """Yield the values that ``operations`` read, also through copied operations."""
        waiting = [value for operation in reversed(operations) for value in reversed(list(operation.operands))]
        while waiting:
            value = waiting.pop()
            if value in self._copied:
                waiting += reversed(list(self._copied[value].operands))
            else:
                yield value

    def producer(self, value: Any) -> Call | None:
        """Return the call that computes ``value``; None for an argument."""
        return self._producers.get(value)

    def argument(self, value: Any) -> int | None:
        """Return the number of ``value`` among the program's arguments, or None."""
        return self._numbers.get(value)

    def number(self, value: Any) -> int:
        """Return the number of a value that a call computes, which is the same in all samples of a program."""
        return self._value_numbers[value]

    def is_weight(self, value: Any) -> bool:
        """Return whether ``value`` is a parameter of the program."""
        number = self.argument(value)
        return number is not None and self._program.arguments[number].role == "parameter"

    def bytes_of(self, value: Any) -> int:
        """Return the bytes of a tensor or scalar."""
        dtype, shape = _type_of(value)
        return math.prod(shape) * next(size for name, size in _ELEMENTS.values() if name == dtype)

    def cut(self, calls: Sequence[Call], results: Sequence[Any]) -> tuple[str, list[Any], list[Argument], list[Result]]:
        """Return a program of ``calls`` that returns ``results``.

        Returns:
            Its text, and the values that are its arguments, with their descriptions and those of the results.

        Raises:
            CompileError: a value that enters or leaves is not a tensor with a dtype that arguments may have.
        """
        operations = [operation for call in calls for operation in call.operations]
        computed = {value for operation in operations for value in operation.results}
        reads = [*self._values_read(operations), *(value for value in results if value not in computed)]
        values = [value for value in dict.fromkeys(reads) if value not in computed]
        arguments = [self._argument_of(value) for value in values]
        returned = [Result(*_type_of(value)) for value in results]
        return self._text(operations, values, results), values, arguments, returned

    def _argument_of(self, value: Any) -> Argument:
        number = self.argument(value)
        return Argument("input", *_type_of(value)) if number is None else self._program.arguments[number]

    def _text(self, operations: Sequence[Any], values: Sequence[Any], results: Sequence[Any]) -> str:
        """Return a module with copies of ``operations`` in ``@forward``, whose arguments are ``values``."""
        with ir.Location.unknown():
            module = ir.Module.create()
            kind = ir.FunctionType.get([value.type for value in values], [value.type for value in results])
            attributes = {"sym_name": ir.StringAttr.get("forward"), "function_type": ir.TypeAttr.get(kind)}
            with ir.InsertionPoint(module.body):
                function = ir.Operation.create("func.func", attributes=attributes, regions=1)
            block = ir.Block.create_at_start(function.regions[0], list(kind.inputs))
            copies: dict[Any, Any] = dict(zip(values, block.arguments, strict=True))
            with ir.InsertionPoint(block):
                for operation in operations:
                    self._copy(operation, copies)
                ir.Operation.create("func.return", operands=[copies[value] for value in results])
        module.operation.verify()
        return located_text(module)

    def _copy(self, operation: Any, copies: dict[Any, Any]) -> None:
        for value in operation.operands:
            if value not in copies:
                self._copy(self._copied[value], copies)
        copy = operation.operation.clone()
        for place, value in enumerate(operation.operands):
            copy.operands[place] = copies[value]
        copies.update(zip(operation.results, copy.results, strict=True))


def _is_copied(operation: Any) -> bool:
    """Return whether each part gets a copy: a literal, or an operation that returns numbers and lists only."""
    results = list(operation.results)
    if operation.name == "torch.vtensor.literal":
        return True
    return bool(results) and not any("tensor" in str(value.type).partition("<")[0] for value in results)


def _type_of(value: Any) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and the sizes of a value that enters or leaves a part.

    Raises:
        CompileError: it is not a tensor with known sizes and a dtype that arguments may have.
    """
    text = str(value.type)
    match = _TENSOR.fullmatch(text)
    if match is None or match[2] not in _ELEMENTS:
        scalars = {"!torch.float": "float64", "!torch.int": "int64", "!torch.bool": "bool"}
        if text in scalars:
            return scalars[text], ()
        raise CompileError(f"a value of type {text} cannot move between devices")
    return _ELEMENTS[match[2]][0], tuple(map(int, filter(None, match[1].split(","))))

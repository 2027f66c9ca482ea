"""Separation of computations with parameters alone from a program, as functions that run once per version of them."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch_mlir import ir

from torchmdla.compiler.artifact import Pack
from torchmdla.compiler.mlir import forward_of
from torchmdla.compiler.program import Program

# Ops that only give memory another type. A pack of them alone would copy a parameter without a change.
_RETYPES = re.compile(r"tosa\.reshape|tensor\.(expand_shape|collapse_shape|cast)|stablehlo\.reshape")

# Most bytes of a packed buffer, as a multiple of the bytes of its parameters. A broadcast parameter stays in the entry.
_MOST_GROWTH = 8

_WIDTH = re.compile(r"\d+$")


def separate_packs(module: ir.Module, program: Program) -> tuple[Pack, ...]:
    """Move computations of ``@forward`` with parameters alone to functions ``@pack_0``, …, in place.

    Each function takes the parameters that it reads and returns one tensor, which becomes an argument of ``@forward``.

    Args:
        module: a module of functions of tensors, whose ops have no side effects.
        program: the program with the roles of the arguments.
    """
    return _Separation(module, program).run()


class _Separation:
    def __init__(self, module: ir.Module, program: Program) -> None:
        self._module = module
        self._program = program
        self._function = forward_of(module)
        self._block = self._function.regions[0].blocks[0]
        # Ops of constants and of parameters alone, each with the numbers of the parameters that it depends on.
        self._known: dict[Any, frozenset[int]] = {}

    def run(self) -> tuple[Pack, ...]:
        roots = list(self._roots())
        packs = [pack for number, value in enumerate(roots) if (pack := self._write(number, value)) is not None]
        self._erase_unused()
        arguments = [argument.type for argument in self._block.arguments]
        kind = ir.FunctionType.get(arguments, list(self._function.type.results))
        self._function.attributes["function_type"] = ir.TypeAttr.get(kind)
        return tuple(packs)

    def _roots(self) -> Iterator[Any]:
        """Yield the values that a pack computes: tensors of parameters alone that another computation reads."""
        parameters = {
            value: frozenset({number})
            for number, (argument, value) in enumerate(zip(self._program.arguments, self._block.arguments, strict=True))
            if argument.role == "parameter"
        }
        *operations, _ = list(self._block.operations)
        for operation in operations:
            read = [self._sources(value, parameters) for value in _operands(operation.operation)]
            if all(source is not None for source in read) and len(operation.operation.results) == 1:
                self._known[operation.operation] = frozenset[int]().union(*read)  # type: ignore[arg-type]
        for op, sources in reversed(list(self._known.items())):
            if self._is_read(op) and sources and not self._is_worth(op.results[0], sources):
                del self._known[op]  # It stays in the entry, which then reads its operands.
        yield from (op.results[0] for op, sources in self._known.items() if sources and self._is_read(op))

    def _is_read(self, op: Any) -> bool:
        """Return whether the entry reads the result of an op of parameters alone."""
        return any(_outer(use.owner, self._function) not in self._known for use in op.results[0].uses)

    def _sources(self, value: Any, parameters: dict[Any, frozenset[int]]) -> frozenset[int] | None:
        if isinstance(value, ir.BlockArgument):
            return parameters.get(value)
        return self._known.get(value.owner.operation)

    def _is_worth(self, value: Any, parameters: frozenset[int]) -> bool:
        if not isinstance(value.type, ir.RankedTensorType):
            return False
        arguments = list(self._block.arguments)
        most = _MOST_GROWTH * sum(_bytes(arguments[number].type) for number in parameters)
        changes = any(not _RETYPES.fullmatch(op.name) for op in self._slice(value) if self._known[op])
        return changes and 0 < _bytes(value.type) <= most

    def _slice(self, value: Any) -> list[Any]:
        """Return the ops that compute a value, in order."""
        needed: set[Any] = set()
        waiting = [value]
        while waiting:
            current = waiting.pop()
            if not isinstance(current, ir.BlockArgument) and (op := current.owner.operation) not in needed:
                needed.add(op)
                waiting += _operands(op)
        return [op for op in self._known if op in needed]

    def _write(self, number: int, value: Any) -> Pack | None:
        """Write ``@pack_N``, and replace the value by an argument of ``@forward``."""
        parameters = sorted(self._known[value.owner.operation])
        old = [self._block.arguments[index] for index in parameters]
        kind = ir.FunctionType.get([argument.type for argument in old], [value.type])
        name = f"pack_{number}"
        with ir.InsertionPoint(self._module.body), ir.Location.unknown():
            function = ir.Operation.create(
                "func.func",
                attributes={"sym_name": ir.StringAttr.get(name), "function_type": ir.TypeAttr.get(kind)},
                regions=1,
            )
        block = function.regions[0].blocks.append(*(argument.type for argument in old))
        copies = dict(zip(old, block.arguments, strict=True))
        with ir.InsertionPoint(block), ir.Location.unknown():
            for op in self._slice(value):
                copy = op.clone()
                _replace_operands(copy.operation, copies)
                copies[op.results[0]] = copy.operation.results[0]
            ir.Operation.create("func.return", operands=[copies[value]])
        text = f"{self._program.target}\n{function.get_asm(enable_debug_info=False).replace(f'@{name}', '@pack')}"
        value.replace_all_uses_with(self._block.add_argument(value.type, value.owner.location))
        return Pack(name, hashlib.sha256(text.encode()).hexdigest(), tuple(parameters), _bytes(kind.results[0]))

    def _erase_unused(self) -> None:
        for op in reversed(self._known):
            if not any(True for _ in op.results[0].uses):
                op.erase()


def _operands(op: Any) -> list[Any]:
    """Return the operands of an op, and the values from outside that its regions use."""
    operands = list(op.operands)
    for region in op.regions:
        for block in region.blocks:
            inside = set(block.arguments)
            for inner in block.operations:
                operands += [value for value in _operands(inner.operation) if value not in inside]
                inside.update(inner.operation.results)
    return operands


def _replace_operands(op: Any, copies: dict[Any, Any]) -> None:
    for place, value in enumerate(op.operands):
        if value in copies:
            op.operands[place] = copies[value]
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                _replace_operands(inner.operation, copies)


def _outer(op: Any, function: Any) -> Any:
    """Return the op of the function's own block that is or contains ``op``."""
    while op.operation.parent.operation != function.operation:
        op = op.operation.parent
    return op.operation


def _bytes(kind: Any) -> int:
    """Return the bytes of a tensor with known sizes."""
    tensor = ir.RankedTensorType(kind)
    width = _WIDTH.search(str(tensor.element_type))
    elements: int = math.prod(tensor.shape)
    return elements * max(int(width[0]) // 8 if width else 8, 1)


def parameters_read(module: ir.Module, program: Program) -> tuple[int, ...]:
    """Return the numbers of the parameters that ``@forward`` reads itself."""
    arguments: Sequence[Any] = forward_of(module).regions[0].blocks[0].arguments
    return tuple(
        number
        for number, argument in enumerate(program.arguments)
        if argument.role == "parameter" and any(True for _ in arguments[number].uses)
    )

"""Interpreter of regions' functions: loops over single elements, which upstream generates for scans and scatters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from torch_mlir import ir

from torchmdla.compiler.mlir import new_context
from torchmdla.compiler.mlir import run as run_passes
from torchmdla.devices.cpu.ir.element_types import register_type
from torchmdla.devices.cpu.linalg.bodies import attributes_text, constant_of
from torchmdla.devices.cpu.reference.operations import Array, UnsupportedOperation, apply, round_to_type

# Passes that lower the remaining operations to loops.
_TO_LOOPS = ("func.func(tm-tensor-to-loops,convert-linalg-to-loops)", "lower-affine")

# The limit on the operations of an interpreted region.
_MOST_OPERATIONS = 100_000


class OutOfBounds(Exception):
    """Index outside of a buffer."""


@dataclass(frozen=True)
class Region:
    """Function of a region.

    Attributes:
        buffers: the type and the shape of each used buffer, by the number of its pointer argument.
        run: a function of the buffers and scalars, in the order of the arguments, that returns the results.
    """

    buffers: Mapping[int, tuple[str, tuple[int, ...]]]
    run: Callable[[Sequence[Array]], list[Array]]


# The values of the running function, by number, and the effect of an operation on them.
_Values = dict[int, Any]
_Operation = Callable[[_Values], None]


@lru_cache(maxsize=64)
def parse_region(text: str) -> Region:
    """Return the region with the text ``text``.

    Raises:
        UnsupportedOperation: an operation is not supported.
    """
    with new_context(), ir.Location.unknown():
        # This pass loads the dialect of scans and scatters.
        run_passes(ir.Module.create(), "func.func(tm-tensor-bufferize)")
        module = ir.Module.parse(text)
        run_passes(module, *_TO_LOOPS)
        return _Reader().read(module.body.operations[0].operation)


class _Reader:
    """Reader of a function. It reads the function once, so that running it does not use MLIR."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._pointers: dict[Any, int] = {}
        self._buffers: dict[int, tuple[str, tuple[int, ...]]] = {}
        self._left = _MOST_OPERATIONS

    def read(self, function: Any) -> Region:
        block = function.regions[0].blocks[0]
        arguments = [self._number(argument) for argument in block.arguments]
        self._pointers = {argument: k for k, argument in enumerate(block.arguments) if "ptr" in str(argument.type)}
        body = self._block(block)

        def run(operands: Sequence[Array]) -> list[Array]:
            self._left = _MOST_OPERATIONS
            return body(dict(zip(arguments, operands, strict=True)))

        return Region(self._buffers, run)

    def _number(self, value: Any) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def _block(self, block: Any) -> Callable[[_Values], list[Any]]:
        *ops, last = (op.operation for op in block.operations)
        operations = [built for op in ops if (built := self._operation(op)) is not None]
        yielded = [self._number(value) for value in last.operands]

        def run(values: _Values) -> list[Any]:
            self._left -= len(operations) + 1
            if self._left < 0:
                raise UnsupportedOperation("a region of many operations")
            for operation in operations:
                operation(values)
            return [values[number] for number in yielded]

        return run

    def _operation(self, op: Any) -> _Operation | None:
        read = _READERS.get(op.name)
        if read is not None:
            return read(self, op)
        if op.name.startswith(("arith.", "math.")) and len(op.results) == 1:
            return self._compute(op)
        raise UnsupportedOperation(f"{op.name} in a region")

    def _compute(self, op: Any) -> _Operation:
        result, operands = self._number(op.results[0]), [self._number(value) for value in op.operands]
        kind, source = (register_type(str(value.type)) for value in (op.results[0], op.operands[0]))
        text, name = attributes_text(op), op.name

        def run(values: _Values) -> None:
            values[result] = apply(name, [values[number] for number in operands], kind, text, source)

        return run

    def _constant(self, op: Any) -> _Operation:
        result, literal = self._number(op.results[0]), constant_of(op.results[0])
        assert literal is not None
        number = round_to_type(np.asarray(literal.payload), literal.type)
        return lambda values: values.update({result: number})

    # Buffers.

    def _descriptor(self, op: Any) -> None:
        """Map a part of a buffer's descriptor to the pointer in it."""
        for operand in op.operands:
            if operand in self._pointers:
                self._pointers[op.results[0]] = self._pointers[operand]

    def _buffer(self, op: Any) -> None:
        number = self._pointers[op.operands[0]]
        kind = ir.MemRefType(op.results[0].type)
        self._buffers[number] = register_type(str(kind.element_type)), tuple(kind.shape)
        self._numbers[op.results[0]] = number

    def _load(self, op: Any) -> _Operation:
        result = self._number(op.results[0])
        buffer, *indices = (self._number(value) for value in op.operands)

        def run(values: _Values) -> None:
            values[result] = values[buffer][_place(values, buffer, indices)]

        return run

    def _store(self, op: Any) -> _Operation:
        value, buffer, *indices = (self._number(value) for value in op.operands)

        def run(values: _Values) -> None:
            values[buffer][_place(values, buffer, indices)] = values[value]

        return run

    def _copy(self, op: Any) -> _Operation:
        source, target = (self._number(value) for value in op.operands)

        def run(values: _Values) -> None:
            values[target][...] = values[source]

        return run

    # Control flow.

    def _for(self, op: Any) -> _Operation:
        begin, end, step, *carried = (self._number(value) for value in op.operands)
        block = op.regions[0].blocks[0]
        index, *inner = (self._number(argument) for argument in block.arguments)
        results, body = [self._number(result) for result in op.results], self._block(block)

        def run(values: _Values) -> None:
            state = [values[number] for number in carried]
            for iteration in range(int(values[begin]), int(values[end]), int(values[step])):
                values[index] = np.int64(iteration)
                values.update(zip(inner, state, strict=True))
                state = body(values)
            values.update(zip(results, state, strict=True))

        return run

    def _if(self, op: Any) -> _Operation:
        condition, results = self._number(op.operands[0]), [self._number(result) for result in op.results]
        sides = [[self._block(block) for block in region.blocks] for region in op.regions]

        def run(values: _Values) -> None:
            for side in sides[0 if values[condition] else 1]:
                values.update(zip(results, side(values), strict=True))

        return run

    def _while(self, op: Any) -> _Operation:
        carried = [self._number(value) for value in op.operands]
        results = [self._number(result) for result in op.results]
        blocks = [region.blocks[0] for region in op.regions]
        inner = [[self._number(argument) for argument in block.arguments] for block in blocks]
        before, after = map(self._block, blocks)

        def run(values: _Values) -> None:
            state = [values[number] for number in carried]
            while True:
                values.update(zip(inner[0], state, strict=True))
                condition, *state = before(values)
                if not condition:
                    break
                values.update(zip(inner[1], state, strict=True))
                state = after(values)
            values.update(zip(results, state, strict=True))

        return run


def _place(values: _Values, buffer: int, indices: Sequence[int]) -> tuple[int, ...]:
    place = tuple(int(values[index]) for index in indices)
    if not all(0 <= index < size for index, size in zip(place, values[buffer].shape, strict=True)):
        raise OutOfBounds
    return place


_READERS: dict[str, Callable[[_Reader, Any], _Operation | None]] = {
    "arith.constant": _Reader._constant,
    "builtin.unrealized_conversion_cast": _Reader._buffer,
    "llvm.insertvalue": _Reader._descriptor,
    "llvm.mlir.constant": lambda reader, op: None,
    "llvm.mlir.poison": lambda reader, op: None,
    "memref.copy": _Reader._copy,
    "memref.load": _Reader._load,
    "memref.store": _Reader._store,
    "scf.for": _Reader._for,
    "scf.if": _Reader._if,
    "scf.while": _Reader._while,
}

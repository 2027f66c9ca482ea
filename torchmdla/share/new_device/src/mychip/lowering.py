"""Compilation of a program: the operations of the Torch dialect become steps, and these become an artifact."""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Iterator
from typing import Any

from torchmdla.compiler.artifact import Artifact, Manifest, Pack
from torchmdla.compiler.mlir import forward_of, new_context
from torchmdla.compiler.program import Program
from torchmdla.errors import CompileError

from .code import Code, Encoded, Storage, Tensor, encode, steps_for, strides_of
from .operations import OPERATIONS

BEFORE_ARGUMENTS, BEFORE_PARAMETERS, DESTINATION = 3, 2, 1  # buffers of an entry and of a pack (docs: the ABI)

_TYPE = re.compile(r"!torch\.vtensor<\[([\d,]*)\],(f32|i1)>")


def lower(program: Program) -> Artifact:
    """Return the artifact: a block of instructions for the entry, then one for each pack.

    Raises:
        CompileError: an operation is not supported. The group is then compiled without it.
    """
    from torch_mlir import ir

    if program.symbols:
        raise CompileError("sizes that vary are not supported")
    arguments = [_argument(program, number) for number in range(len(program.arguments))]
    code = Code()
    with new_context():
        block = forward_of(ir.Module.parse(program.mlir)).regions[0].blocks[0]
        values: dict[Any, Any] = dict(zip(block.arguments, arguments, strict=True))
        *operations, end = block.operations
        for operation in _used(operations, end):
            values.update(zip(operation.results, _computed(code, operation, values), strict=True))
        try:
            _store_results(code, [values[operand] for operand in end.operands], BEFORE_ARGUMENTS + len(arguments))
        except NotImplementedError as error:
            raise CompileError(f"a result: {error}") from None
    return _artifact(program, code, [argument.storage for argument in arguments])


def _argument(program: Program, number: int) -> Tensor:
    argument = program.arguments[number]
    if argument.dtype != "float32":
        raise CompileError(f"an argument of dtype {argument.dtype} is not supported")
    storage = Storage(0, BEFORE_ARGUMENTS + number, varies=argument.role == "input")
    return Tensor(storage, argument.shape, strides_of(argument.shape))


def _used(operations: list[Any], end: Any) -> list[Any]:
    """Return the operations that the results depend on."""
    needed, used = set(end.operands), []
    for operation in reversed(operations):
        if needed.intersection(operation.results):
            used.append(operation)
            needed.update(operation.operands)
    return used[::-1]


def _computed(code: Code, operation: Any, values: dict[Any, Any]) -> list[Any]:
    """Return the results of an operation: tensors, numbers, lists."""
    name = operation.name.removeprefix("torch.")
    if name.startswith("constant."):
        return [None if name.endswith("none") else operation.attributes["value"].value]
    operands = [values[operand] for operand in operation.operands]
    if name == "prim.ListConstruct":
        return [operands]
    types = [str(result.type) for result in operation.results]
    if name == "vtensor.literal" and (constant := _constant(code, operation, types[0])):
        return [constant]
    supported = OPERATIONS.get(name.removeprefix("aten."))
    if supported is None or len(types) > 1 or not _TYPE.fullmatch(types[0]):
        raise CompileError(f"{name} to {', '.join(types)} is not supported", diagnostic=str(operation.location))
    try:
        return [supported(code, *operands)]
    except NotImplementedError as error:
        raise CompileError(f"{name}: {error}", diagnostic=str(operation.location)) from None


def _constant(code: Code, operation: Any, kind: str) -> Tensor | None:
    """Return a constant tensor of equal elements, or without elements; None for other constants."""
    from torch_mlir import ir

    if not (match := _TYPE.fullmatch(kind)):
        return None
    result = code.empty(tuple(map(int, filter(None, match[1].split(",")))))
    value = operation.attributes["value"]
    if not result.storage.elements:
        return result
    if not (isinstance(value, ir.DenseElementsAttr) and value.is_splat):
        return None
    return code.map("copy", value.get_splat_value().value, into=result)


def _store_results(code: Code, results: list[Tensor], first: int) -> None:
    """Give the results their places: a temporary gets the place itself, all others are copied."""
    for place, result in enumerate(results, first):
        storage = result.storage
        is_whole = result.is_dense and math.prod(result.shape) == storage.elements
        if storage.place is None and storage.varies and is_whole:
            storage.place = place
        else:
            into = code.empty(result.shape)
            into.storage.place = place
            code.map("copy", result, into=into)


def _artifact(program: Program, code: Code, arguments: list[Storage]) -> Artifact:
    """Return the code of the entry, and a pack for each tensor that is computed from parameters alone.

    The first pack is the code of the entry itself, which is how :c:func:`mychip_entry` gets it.
    """
    entry = [step for step in code.steps if step.result.storage.varies or step.result.storage.place is not None]
    read = dict.fromkeys(storage for step in entry for storage in step.reads())
    packed = [storage for storage in read if storage.place is None and not storage.varies]
    places = {storage: storage.place for step in entry for storage in (*step.reads(), step.result.storage)}
    fixed = {storage: place for storage, place in places.items() if place is not None}
    blocks = [encode(entry, {**fixed, **{storage: -2 - k for k, storage in enumerate(packed)}})]
    packs = [Pack("program", f"mychip {program.key}", (), 8 + len(blocks[0].code))]
    for storage in packed:
        encoded, parameters = _pack(code, storage, arguments)
        recipe = hashlib.sha256(encoded.code).hexdigest()
        packs.append(Pack("pack", f"mychip {recipe}", parameters, 4 * storage.elements))
        blocks.append(encoded)
    manifest = Manifest(
        program.key,
        "mychip_entry",
        program.arguments,
        program.results,
        workspace_bytes=max(block.workspace for block in blocks),
        packs=tuple(packs),
        parameters=tuple(k for k, storage in enumerate(arguments) if storage in read and not storage.varies),
    )
    return Artifact(b"".join(struct.pack("=q", len(block.code)) + block.code for block in blocks), manifest)


def _pack(code: Code, storage: Storage, arguments: list[Storage]) -> tuple[Encoded, tuple[int, ...]]:
    """Return the instructions that compute a storage from parameters, and the numbers of these."""
    steps = steps_for(code.steps, {storage})
    read = {other for step in steps for other in step.reads()}
    parameters = tuple(number for number, argument in enumerate(arguments) if argument in read)
    places = {arguments[number]: BEFORE_PARAMETERS + k for k, number in enumerate(parameters)}
    return encode(steps, {**places, storage: DESTINATION}), parameters


def blocks_of(data: bytes) -> Iterator[bytes]:
    """Yield the blocks of an artifact, each with its number of bytes in front."""
    while data:
        size = 8 + struct.unpack_from("=q", data)[0]
        yield data[:size]
        data = data[size:]

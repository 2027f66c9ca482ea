"""Compilation of linalg on tensors to OpenCL C."""

from __future__ import annotations

import hashlib
import math

from torch_mlir import ir

from opencl_device.kernels import Generator
from opencl_device.program import Buffer, DeviceProgram
from torchmdla.compiler.artifact import Artifact, Manifest, Pack
from torchmdla.compiler.program import Argument, Program
from torchmdla.devices.levels.fusion import fuse
from torchmdla.errors import CompileError

_SIZES = {"float32": 4, "float64": 8, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "bool": 1}

# Size in bytes of the buffer that a pack fills for the entry: the address of a buffer of the device.
_HANDLE_BYTES = 64


def lower(program: Program, module: ir.Module, device: int) -> Artifact:
    """Return an artifact with OpenCL C, whose weights are packs: they stay in the memory of the device.

    ``module`` is the program as linalg on tensors, in the current context.

    Raises:
        CompileError: the program cannot be compiled.
    """
    arguments: list[Buffer] = []
    packs: list[Pack] = []
    for position, argument in enumerate(program.arguments):
        is_pack = argument.role == "parameter" and argument.kind == "tensor" and 0 not in argument.shape
        buffer = Buffer("pack" if is_pack else "argument", _bytes(argument), len(packs) if is_pack else position)
        arguments.append(buffer)
        if is_pack:
            packs.append(_pack(device, position, buffer.bytes))
    generator = Generator(fuse(module), arguments)
    results = generator.generate()
    for number, buffer in enumerate(results):
        buffer.kind, buffer.number = "result", number
    weights = [buffer.bytes for buffer in arguments if buffer.kind == "pack"]
    content = DeviceProgram.of(device, generator.source, generator.steps, weights, generator.literals)
    manifest = Manifest(
        program.key,
        "opencl_entry",
        program.arguments,
        program.results,
        workspace_bytes=0,
        packs=tuple(packs),
        statistics={"kernels": len(generator.steps)},
    )
    return Artifact(content.to_bytes(), manifest)


def _bytes(argument: Argument) -> int:
    if argument.dtype not in _SIZES:
        raise CompileError(f"the opencl device does not compute with {argument.dtype}")
    return math.prod(argument.shape) * (8 if argument.kind == "scalar" else _SIZES[argument.dtype])


def _pack(device: int, position: int, size: int) -> Pack:
    """Return the pack that copies a weight to the device. Programs share the copies of equal sizes."""
    recipe = hashlib.sha256(f"opencl {device} {size}".encode()).hexdigest()
    return Pack("opencl_upload", recipe, (position,), _HANDLE_BYTES)

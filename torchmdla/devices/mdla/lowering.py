"""Compilation of a program to an artifact for the mdla device, without a call of the device's library."""

from __future__ import annotations

import time

from torchmdla.compiler.artifact import Artifact, Manifest, Pack
from torchmdla.compiler.program import Program
from torchmdla.devices.mdla.device_program import DeviceProgram
from torchmdla.errors import CompileError

NEEDS_ONNX = "the mdla device needs the package onnx: pip install 'torchmdla[mdla]'"

# Size in bytes of the buffer that the pack fills for the entry: it contains the address of the context.
CONTEXT_BYTES = 64


def lower(program: Program) -> Artifact:
    """Convert the program to an ONNX model, and a pack that loads it on the device with the weights.

    Raises:
        CompileError: the device cannot compute the program, or the package ``onnx`` is not installed.
    """
    if program.symbols:
        raise CompileError("the mdla device takes no sizes that vary")
    start = time.perf_counter()
    # Not at the top: the loader imports this module, in processes that do not compile.
    from torch_mlir import ir

    from torchmdla.compiler.mlir import new_context

    try:
        from torchmdla.devices.levels.onnx.model import onnx_program
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "onnx":
            raise
        raise CompileError(NEEDS_ONNX) from None
    with new_context(), ir.Location.unknown():
        converted = onnx_program(program)
    content = DeviceProgram(
        converted.model.SerializeToString(deterministic=True),
        {name: weight.recipe for name, weight in converted.weights.items()},
        converted.inputs,
        converted.outputs,
        program.target.features,
    )
    pack = Pack("mdla_context", content.key, content.parameters(), CONTEXT_BYTES)
    manifest = Manifest(
        program.key,
        "mdla_entry",
        program.arguments,
        program.results,
        workspace_bytes=0,
        packs=(pack,),
        statistics={"onnx": time.perf_counter() - start, "nodes": len(converted.model.graph.node)},
    )
    return Artifact(content.to_bytes(), manifest)

"""From a program to an artifact for the CPU: the order of the stages, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch_mlir import ir

from torchmdla.compiler.artifact import Artifact, Manifest
from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.buffers import bufferize
from torchmdla.devices.cpu.emit import to_llvm, to_object
from torchmdla.devices.cpu.entry import ENTRY, Code, write_module
from torchmdla.devices.cpu.frontend import explained, new_context, to_linalg
from torchmdla.devices.cpu.fusion import fuse
from torchmdla.devices.cpu.object_file import is_elf, undefined_symbols
from torchmdla.devices.cpu.reading import read_steps
from torchmdla.devices.cpu.transforms import transform

# What LLVM may call in code of other formats, where the symbols are not read.
_LIKELY_SYMBOLS = ("memcpy", "memmove", "memset")


def lower(program: Program) -> Artifact:
    """Compiles a program for the CPU that its target names.

    Raises:
        torchmdla.CompileError: the program cannot be compiled; names the op and the diagnostic.
    """
    seconds: dict[str, float] = {}
    with new_context(), ir.Location.unknown():
        with _timed(seconds, "linalg"):
            module = to_linalg(program)
        with _timed(seconds, "fusion"):
            fuse(module)
        with _timed(seconds, "buffers"):
            function = bufferize(module)
        with _timed(seconds, "steps"):
            steps = read_steps(function, program)
            transform(steps, program)
        with _timed(seconds, "kernels"):
            code = write_module(steps, program)
        with _timed(seconds, "llvm"):
            with explained("the generated code is not valid"):
                generated = ir.Module.parse(code.text)
            to_llvm(generated, code.has_regions)
        with _timed(seconds, "object"):
            object_code = to_object(generated, ENTRY, code.externals)
    return Artifact(object_code, _manifest(program, code, object_code, seconds))


def _manifest(program: Program, code: Code, object_code: bytes, seconds: dict[str, float]) -> Manifest:
    counts = {"kernels": float(code.kernels), "distinct_kernels": float(code.distinct_kernels)}
    return Manifest(
        program=program.key,
        entry=ENTRY,
        arguments=program.arguments,
        results=program.results,
        workspace_bytes=code.workspace_bytes,
        packs=code.packs,
        device_calls=_device_calls(object_code, code),
        statistics={**{f"seconds_{stage}": spent for stage, spent in seconds.items()}, **counts},
    )


def _device_calls(object_code: bytes, code: Code) -> tuple[str, ...]:
    """Every symbol to resolve, also what LLVM makes of loops (``memset``) and of intrinsics."""
    if is_elf(object_code):
        return tuple(undefined_symbols(object_code))
    return (*code.externals, *_LIKELY_SYMBOLS)


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - start

"""Program to artifact in the calling process: asks the program's device, and turns any failure into CompileError."""

from __future__ import annotations

import traceback
from pathlib import Path

from torchmdla import devices
from torchmdla.compiler import dump
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program
from torchmdla.errors import CompileError
from torchmdla.support import trace


def lower(program: Program, folder: Path | None = None) -> Artifact:
    """The artifact of ``program``, made by ``devices.get(program.target.device).lower(program)``.

    Args:
        folder: has what each stage makes written there (:mod:`torchmdla.compiler.dump`).

    Raises:
        CompileError: the device's own; or one that carries the traceback of whatever else it raised.
    """
    try:
        with dump.dumping(program, folder), trace.span("lower", "lower"):
            artifact = devices.get(program.target.device).lower(program)
    except Exception as error:
        raise as_compile_error(error) from error
    if artifact.manifest.program != program.key:
        raise CompileError(f"device {program.target.device!r} returned the artifact of another program")
    return artifact


def as_compile_error(error: Exception) -> CompileError:
    """``error`` itself if it is a CompileError, else one that tells of it."""
    if isinstance(error, CompileError):
        return error
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return CompileError(f"the compiler failed: {type(error).__name__}: {error}", diagnostic=trace)

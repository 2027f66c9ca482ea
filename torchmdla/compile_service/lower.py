"""Compilation of a program in the calling process by its device, with all failures converted to CompileError."""

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
    """Return the artifact of ``program``, made by ``devices.get(program.target.device).lower(program)``.

    Args:
        program: the program to compile.
        folder: the folder for the output of each stage (:mod:`torchmdla.compiler.dump`).

    Raises:
        CompileError: the device's own error, or an error that contains the traceback of any other exception.
    """
    try:
        with dump.dump_stages(program, folder), trace.span("lower", "lower"):
            artifact = devices.get(program.target.device).lower(program)
    except Exception as error:
        raise as_compile_error(error) from error
    if artifact.manifest.program != program.key:
        raise CompileError(f"device {program.target.device!r} returned the artifact of another program")
    return artifact


def as_compile_error(error: Exception) -> CompileError:
    """Return ``error`` itself if it is a CompileError, else a CompileError with its traceback."""
    if isinstance(error, CompileError):
        return error
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return CompileError(f"the compiler failed: {type(error).__name__}: {error}", diagnostic=trace)

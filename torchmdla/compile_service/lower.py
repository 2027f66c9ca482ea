"""Compilation of a program in the calling process by its device, which another process may have created first.

All failures are converted to CompileError.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from torchmdla import devices
from torchmdla.compile_service.versions import producers
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


@dataclass(frozen=True)
class Origin:
    """Module and qualified name of the class of a device, and the versions that its artifacts depend on.

    A compiler process creates the device of the user's process from it. ``path`` is ``sys.path`` of the user's process,
    which may have changed since the compiler process began.
    """

    name: str
    module: str
    qualname: str
    versions: tuple[tuple[str, str], ...]
    path: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def all_of(cls, program: Program) -> list[Origin]:
        """Return the origin of the device of ``program``, or of each of its parts; empty if it is not known here."""
        try:
            parts = devices.parts_of(devices.get(program.target.device))
        except ValueError:
            return []
        versions = [producers(part) for part in parts] if len(parts) > 1 else [program.versions]
        return [
            cls(part.name, type(part).__module__, type(part).__qualname__, version, tuple(sys.path))
            for part, version in zip(parts, versions, strict=True)
        ]

    @property
    def is_importable(self) -> bool:
        """Return whether another process may be able to import the class."""
        return self.module != "__main__" and "<locals>" not in self.qualname

    def register(self) -> None:
        """Create the device and register it, unless the last one created under its name has the same origin.

        Raises:
            CompileError: the device cannot be created in this process.
        """
        known = _registered.get(self.name)
        if known == self:
            return
        if known is not None and known.versions != self.versions:
            _forget(self.module)
        sys.path += [folder for folder in self.path if folder not in sys.path]
        try:
            factory = importlib.import_module(self.module)
            for part in self.qualname.split("."):
                factory = getattr(factory, part)
            devices.register(factory())  # type: ignore[operator]
        except Exception as error:
            raise CompileError(
                f"the compiler process cannot make device {self.name!r} from {self.module}.{self.qualname}: "
                f"{type(error).__name__}: {error}; let its module import torch in functions only, and its class be "
                "called without arguments, or set TORCHMDLA_COMPILE_IN_PROCESS=1"
            ) from error
        _registered[self.name] = self


_registered: dict[str, Origin] = {}


def _forget(module: str) -> None:
    """Remove the package of ``module``, whose sources have changed, from ``sys.modules``.

    The next import then loads the new sources. The package torchmdla itself is retained.
    """
    package = module.partition(".")[0]
    importlib.invalidate_caches()
    for name in list(sys.modules):
        if name.partition(".")[0] == package and package != "torchmdla":
            del sys.modules[name]

"""Module and class of a device, from which a compiler process creates the device of the user's process."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass

from torchmdla import devices
from torchmdla.compiler.program import Program
from torchmdla.errors import CompileError


@dataclass(frozen=True)
class Origin:
    """Module and qualified name of the class of a device, and the versions that its artifacts depend on."""

    name: str
    module: str
    qualname: str
    versions: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, program: Program) -> Origin | None:
        """Return the origin of the device of ``program``; None if this process does not know the device."""
        name = program.target.device
        try:
            device_class = type(devices.get(name))
        except ValueError:
            return None
        return cls(name, device_class.__module__, device_class.__qualname__, program.versions)

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

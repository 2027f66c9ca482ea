"""How a compiler process comes by a device that the user's process has: from the module that defines its class."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass

from torchmdla import devices
from torchmdla.compiler.program import Program
from torchmdla.errors import CompileError


@dataclass(frozen=True)
class Origin:
    """Module and qualified name of the class of a device, and what its artifacts depend on."""

    name: str
    module: str
    qualname: str
    versions: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, program: Program) -> Origin | None:
        """Of the device that ``program`` is for; None where this process knows no such device."""
        name = program.target.device
        try:
            made_of = type(devices.get(name))
        except ValueError:
            return None
        return cls(name, made_of.__module__, made_of.__qualname__, program.versions)

    @property
    def is_importable(self) -> bool:
        """Whether another process may have the class, too."""
        return self.module != "__main__" and "<locals>" not in self.qualname

    def register(self) -> None:
        """Makes the device and registers it, unless it is the one that was made last under its name.

        Raises:
            CompileError: it cannot be made here.
        """
        known = _made.get(self.name)
        if known == self:
            return
        if known is not None and known.versions != self.versions:
            _forget(self.module)
        try:
            made = importlib.import_module(self.module)
            for part in self.qualname.split("."):
                made = getattr(made, part)
            devices.register(made())  # type: ignore[operator]
        except Exception as error:
            raise CompileError(
                f"the compiler process cannot make device {self.name!r} from {self.module}.{self.qualname}: "
                f"{type(error).__name__}: {error}; let its module import torch in functions only, and its class be "
                "called without arguments, or set TORCHMDLA_COMPILE_IN_PROCESS=1"
            ) from error
        _made[self.name] = self


_made: dict[str, Origin] = {}


def _forget(module: str) -> None:
    """Lets the package of ``module``, whose sources have changed, be imported anew."""
    package = module.partition(".")[0]
    importlib.invalidate_caches()
    for name in list(sys.modules):
        if name.partition(".")[0] == package and package != "torchmdla":
            del sys.modules[name]

"""The device mychip for torchmdla."""

from __future__ import annotations

from collections.abc import Mapping

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.devices import Device, LoadedCode, OpSupport

from .operations import OPS

__version__ = "0.1.0"


class MyChip(Device):
    """Device whose instructions are elementwise functions, reductions and products of strided tensors."""

    name = "mychip"
    ops: Mapping[str, OpSupport] = OPS
    dtypes = frozenset({"float32"})

    def target(self) -> Target:
        return Target(self.name)

    def lower(self, program: Program) -> Artifact:
        from .lowering import lower

        return lower(program)

    def load(self, artifact: Artifact) -> LoadedCode:
        from .loading import load

        return load(artifact)

"""Device for tests: the cpu device, except for an operator that it computes wrongly.

Compiler processes import this module, so it does not import torch.
"""

from __future__ import annotations

import dataclasses

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.devices.cpu import CpuDevice


class WrongDevice(CpuDevice):
    """Device that computes ``sin`` for ``tanh``."""

    name = "wrong"

    def target(self) -> Target:
        return dataclasses.replace(super().target(), device=self.name)

    def lower(self, program: Program) -> Artifact:
        artifact = super().lower(dataclasses.replace(program, mlir=program.mlir.replace("aten.tanh", "aten.sin")))
        return dataclasses.replace(artifact, manifest=dataclasses.replace(artifact.manifest, program=program.key))

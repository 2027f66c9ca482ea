"""A device for tests: the cpu device, but for an operator that it computes wrongly.

Compiler processes import this module, so it does without torch.
"""

from __future__ import annotations

import dataclasses

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.devices.cpu import CpuDevice


class WrongDevice(CpuDevice):
    """Computes ``sin`` where ``tanh`` is asked for."""

    name = "wrong"

    def target(self) -> Target:
        return dataclasses.replace(super().target(), device=self.name)

    def lower(self, program: Program) -> Artifact:
        made = super().lower(dataclasses.replace(program, mlir=program.mlir.replace("aten.tanh", "aten.sin")))
        return dataclasses.replace(made, manifest=dataclasses.replace(made.manifest, program=program.key))

"""A device for tests: the cpu device, but for what it does not compile.

Compiler processes import this module, so it does without torch.
"""

from __future__ import annotations

import ctypes
import dataclasses

from torchmdla import devices
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.devices.cpu import CpuDevice
from torchmdla.errors import CompileError


class FragileDevice(CpuDevice):
    """``erf`` ends the process that compiles it, ``atan`` is an error, and ``exp`` of matrices it does not ask for."""

    name = "fragile"

    def target(self) -> Target:
        return dataclasses.replace(super().target(), device=self.name)

    def supports(self, node: devices.Node, types: devices.NodeTypes) -> bool:
        return node.op != "aten::exp" or all(tensor.rank != 2 for tensor in types.tensors())

    def lower(self, program: Program) -> Artifact:
        if "torch.aten.erf" in program.mlir:
            ctypes.string_at(0)
        if "torch.aten.atan" in program.mlir:
            raise CompileError("no arcs", op="aten::atan")
        return super().lower(program)

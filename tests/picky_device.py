"""Devices for tests of several devices in one program.

Compiler processes import this module, so it does not import torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from fragile_device import FragileDevice

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.devices import Node, NodeTypes, OpSupport
from torchmdla.errors import CompileError

_OPS = ("linear", "mm", "addmm", "mul.Tensor", "add.Tensor", "relu", "tanh", "erf", "atan", "exp", "sinh", "embedding")


class PickyDevice(FragileDevice):
    """Fragile device with a few operators, which take no time. ``sinh`` is an error that does not name it."""

    name = "picky"

    @property
    def ops(self) -> Mapping[str, OpSupport]:
        return {f"aten::{name}": super(PickyDevice, self).ops[f"aten::{name}"] for name in _OPS}

    def target(self) -> Target:
        return dataclasses.replace(super().target(), device=self.name)

    def call_seconds(self, node: Node, types: NodeTypes) -> float:
        return 0.0

    def lower(self, program: Program) -> Artifact:
        if "torch.aten.sinh" in program.mlir:
            raise CompileError("a hyperbola")
        return super().lower(program)

"""Devices for tests: the cpu device, except for operators that they do not compile, or compute wrongly.

Compiler processes import this module, so it does not import torch.
"""

from __future__ import annotations

import ctypes
import dataclasses

from torchmdla import devices
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.devices.cpu import CpuDevice
from torchmdla.errors import CompileError


class FragileDevice(CpuDevice, devices.CallSelection):
    """Device on which ``erf`` ends the compiling process and ``atan`` is an error.

    It does not support ``exp`` of matrices.
    """

    name = "fragile"

    def target(self) -> Target:
        return dataclasses.replace(super().target(), device=self.name)

    def refusal(self, node: devices.Node, types: devices.NodeTypes) -> str:
        is_matrix = any(tensor.rank == 2 for tensor in types.tensors())
        return "exp of a matrix" if node.op == "aten::exp" and is_matrix else ""

    def lower(self, program: Program) -> Artifact:
        if "torch.aten.erf" in program.mlir:
            ctypes.string_at(0)
        if "torch.aten.atan" in program.mlir:
            raise CompileError("no arcs", op="aten::atan")
        return super().lower(program)


class PickyDevice(CpuDevice, devices.CallSelection):
    """Device that refuses odd widths, transposed operands of ``exp``, a constant, and fails on ``erf``."""

    name = "picky"

    def target(self) -> Target:
        return dataclasses.replace(super().target(), device=self.name)

    def refusal(self, node: devices.Node, types: devices.NodeTypes) -> str:
        if node.op == "aten::erf":
            raise KeyError("no table")
        if node.op == "aten::tanh" and any(tensor.shape[-1] % 2 for tensor in types.tensors()):
            return "an odd width"
        operand = types.arguments.get("self")
        if node.op == "aten::exp" and isinstance(operand, devices.TensorType) and not operand.is_contiguous:
            return f"strides {list(operand.strides)}"
        if node.op == "aten::leaky_relu" and node.values["negative_slope"] == 0.5:
            return "a slope of 0.5"
        return ""


class WrongDevice(CpuDevice):
    """Device that computes ``sin`` for ``tanh``."""

    name = "wrong"

    def target(self) -> Target:
        return dataclasses.replace(super().target(), device=self.name)

    def lower(self, program: Program) -> Artifact:
        artifact = super().lower(dataclasses.replace(program, mlir=program.mlir.replace("aten.tanh", "aten.sin")))
        return dataclasses.replace(artifact, manifest=dataclasses.replace(artifact.manifest, program=program.key))

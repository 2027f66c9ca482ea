"""The cpu device: generated kernels for the processor that PyTorch itself runs on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.devices.device import Device, LoadedCode, OpSupport


class CpuDevice(Device):
    """x86-64 and AArch64 through LLVM. Its option ``processor`` is what :func:`processors.target_of` takes."""

    name = "cpu"

    def __init__(self) -> None:
        self._processor = "native"

    def configure(self, **options: Any) -> None:
        from torchmdla.devices.cpu.processors import NATIVE, target_of

        processor = options.pop("processor", NATIVE)
        super().configure(**options)
        target_of(processor)
        self._processor = processor

    @property
    def ops(self) -> Mapping[str, OpSupport]:
        from torchmdla.devices.cpu.ops import OPS

        return OPS

    @property
    def dtypes(self) -> frozenset[str]:
        # 8-bit integers crash upstream's lowering; 16-bit floats would round where eager PyTorch does not.
        return frozenset({"float32", "float64", "int64", "int32", "bool"})

    def target(self) -> Target:
        from torchmdla.devices.cpu.machine import CHECK_BOUNDS
        from torchmdla.devices.cpu.processors import target_of

        target = target_of(self._processor)
        if os.environ.get("TORCHMDLA_CHECK_BOUNDS", "0") in ("", "0"):
            return target
        # A feature, so that programs of both kinds are different programs to every cache.
        return replace(target, features=f"{target.features},{CHECK_BOUNDS}")

    def lower(self, program: Program) -> Artifact:
        from torchmdla.devices.cpu.lowering import lower

        return lower(program)

    def load(self, artifact: Artifact) -> LoadedCode:
        from torchmdla.devices.cpu.loader import load

        return load(artifact)

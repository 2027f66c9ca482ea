"""The cpu device: generated kernels for the processor that PyTorch itself runs on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.devices.device import Device, LoadedCode, OpSupport


class CpuDevice(Device):
    """x86-64 and AArch64 through LLVM. Its option ``processor`` is what :func:`processors.target_of` takes,
    ``algorithms`` one of :data:`machine.Algorithms`."""

    name = "cpu"

    def __init__(self) -> None:
        self._processor = "native"
        self._algorithms = "fast"

    def configure(self, **options: Any) -> None:
        from torchmdla.devices.cpu.machine import Algorithms
        from torchmdla.devices.cpu.processors import NATIVE, target_of

        processor, algorithms = options.pop("processor", NATIVE), options.pop("algorithms", "fast")
        super().configure(**options)
        target_of(processor)
        if algorithms not in get_args(Algorithms):
            raise ValueError(f"no algorithms {algorithms!r}; there are {', '.join(get_args(Algorithms))}")
        self._processor, self._algorithms = processor, algorithms

    @property
    def ops(self) -> Mapping[str, OpSupport]:
        from torchmdla.devices.cpu.ops import OPS

        return OPS

    @property
    def dtypes(self) -> frozenset[str]:
        # 8-bit integers crash upstream's lowering; 16-bit floats would round where eager PyTorch does not.
        return frozenset({"float32", "float64", "int64", "int32", "bool"})

    def target(self) -> Target:
        from torchmdla.devices.cpu.machine import ALGORITHMS, CHECK_BOUNDS
        from torchmdla.devices.cpu.processors import target_of

        target = target_of(self._processor)
        # Features, so that programs of other kinds are other programs to every cache.
        features = [target.features]
        if self._algorithms != "fast":
            features.append(f"{ALGORITHMS}{self._algorithms}")
        if os.environ.get("TORCHMDLA_CHECK_BOUNDS", "0") not in ("", "0"):
            features.append(CHECK_BOUNDS)
        return replace(target, features=",".join(features))

    def lower(self, program: Program) -> Artifact:
        from torchmdla.devices.cpu.lowering import lower

        return lower(program)

    def load(self, artifact: Artifact) -> LoadedCode:
        from torchmdla.devices.cpu.loader import load

        return load(artifact)

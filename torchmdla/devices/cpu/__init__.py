"""The cpu device: generated kernels for the processor that PyTorch itself runs on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.devices.device import Device, LoadedCode, OpSupport


class CpuDevice(Device):
    """x86-64 and AArch64 through LLVM."""

    name = "cpu"

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

        if os.environ.get("TORCHMDLA_CHECK_BOUNDS", "0") in ("", "0"):
            return _host()
        # A feature, so that programs of both kinds are different programs to every cache.
        return replace(_host(), features=f"{_host().features},{CHECK_BOUNDS}")

    def lower(self, program: Program) -> Artifact:
        from torchmdla.devices.cpu.lowering import lower

        return lower(program)

    def load(self, artifact: Artifact) -> LoadedCode:
        from torchmdla.devices.cpu.loader import load

        return load(artifact)


@lru_cache(maxsize=1)
def _host() -> Target:
    from llvmlite import binding

    features = binding.get_host_cpu_features().flatten()
    return Target("cpu", binding.get_process_triple(), binding.get_host_cpu_name(), features)

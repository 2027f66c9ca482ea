"""Device for OpenCL: groups become kernels in OpenCL C, which a driver compiles and runs (README.md)."""

from __future__ import annotations

from collections.abc import Mapping

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.devices import Asynchronous, Device, Legalisation, LoadedCode, OpSupport


class OpenclDevice(Device, Asynchronous, Legalisation):
    """Device of an OpenCL driver: a graphics card, or the processor by PoCL."""

    name = "opencl"
    dtypes = frozenset({"float32", "int64", "int32", "bool"})
    level = "linalg"

    def __init__(self) -> None:
        self.configure()

    @property
    def ops(self) -> Mapping[str, OpSupport]:
        from opencl_device.ops import OPS

        return OPS

    @property
    def leaves_results_pending(self) -> bool:
        return self._asynchronous

    def configure(self, index: int = 0, streams: int = 2, asynchronous: bool = True) -> None:
        """Set the number of the device among those of all drivers, and how it runs.

        Threads share the ``streams``. A device that is in use keeps their number. If ``asynchronous`` is false, each
        call waits for its results.

        Raises:
            ValueError: a number is out of range.
        """
        if not 0 <= index < 64:
            raise ValueError(f"index {index} is not in 0 … 63")
        if not 1 <= streams <= 16:
            raise ValueError(f"streams {streams} is not in 1 … 16")
        self._index, self._streams, self._asynchronous = index, streams, asynchronous

    def target(self) -> Target:
        return Target(self.name, features=f"index={self._index}")

    def warm_up(self) -> None:
        import opencl_device.lowering  # noqa: F401

    def lower(self, program: Program) -> Artifact:
        from torch_mlir import ir

        from opencl_device.lowering import lower
        from torchmdla.compiler.mlir import new_context

        with new_context(), ir.Location.unknown():
            module = self.legalise(program).module
            return lower(program, module, int(program.target.features.removeprefix("index=")))

    def load(self, artifact: Artifact) -> LoadedCode:
        from opencl_device.runtime import load

        return load(artifact, self._streams)

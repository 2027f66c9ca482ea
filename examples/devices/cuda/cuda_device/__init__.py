"""Device for NVIDIA cards: groups become kernels in PTX, which the driver compiles and runs (README.md)."""

from __future__ import annotations

from collections.abc import Mapping

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.devices import Asynchronous, Device, Legalisation, LoadedCode, OpSupport


class CudaDevice(Device, Asynchronous, Legalisation):
    """Device of a card, or of its emulation on the processor."""

    name = "cuda"
    dtypes = frozenset({"float32", "float16", "bfloat16", "int64", "int32", "bool"})
    level = "linalg"

    def __init__(self) -> None:
        self.configure()

    @property
    def ops(self) -> Mapping[str, OpSupport]:
        from cuda_device.ops import OPS

        return OPS

    @property
    def leaves_results_pending(self) -> bool:
        return self._asynchronous

    def configure(self, index: int = 0, streams: int = 2, asynchronous: bool = True, emulate: bool = False) -> None:
        """Set the number of the card, and how it runs.

        Threads share the ``streams``. A card that is in use keeps their number. If ``asynchronous`` is false, each call
        waits for its results. If ``emulate`` is true, the processor runs the kernels, slowly.

        Raises:
            ValueError: a number is out of range.
        """
        if not 0 <= index < 64:
            raise ValueError(f"index {index} is not in 0 … 63")
        if not 1 <= streams <= 16:
            raise ValueError(f"streams {streams} is not in 1 … 16")
        self._index, self._streams, self._asynchronous, self._emulate = index, streams, asynchronous, emulate

    def target(self) -> Target:
        return Target(self.name, cpu="emulated" if self._emulate else "", features=f"index={self._index}")

    def warm_up(self) -> None:
        import cuda_device.lowering  # noqa: F401

    def lower(self, program: Program) -> Artifact:
        from torch_mlir import ir

        from cuda_device.lowering import lower
        from torchmdla.compiler.mlir import new_context

        index = int(program.target.features.removeprefix("index="))
        with new_context(), ir.Location.unknown():
            return lower(program, self.legalise(program).module, index, program.target.cpu == "emulated")

    def load(self, artifact: Artifact) -> LoadedCode:
        from cuda_device.runtime import load

        return load(artifact, self._streams, self._emulate)

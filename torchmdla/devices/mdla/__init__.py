"""The mdla device: groups become calls of the C API of Micron's deep-learning accelerator (docs/mdla.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.devices.capabilities import Arithmetic, Legalisation
from torchmdla.devices.device import Device, LoadedCode, OpSupport
from torchmdla.devices.levels import Level
from torchmdla.devices.mdla.options import Options
from torchmdla.devices.quantisation import Quantisation, QuantisedPattern


class MdlaDevice(Device, Arithmetic, Legalisation, Quantisation):
    """Device of the accelerator, or of any library with its C API; the default is the emulator in this folder."""

    name = "mdla"

    def __init__(self) -> None:
        self._options = Options()

    @property
    def ops(self) -> Mapping[str, OpSupport]:
        from torchmdla.devices.mdla.ops import OPS

        return OPS

    @property
    def level(self) -> Level:
        return "onnx"

    @property
    def dtypes(self) -> frozenset[str]:
        return frozenset({"float32"})

    @property
    def precision(self) -> str:
        return self._options.precision or "fixed16"

    @property
    def quantised_patterns(self) -> Sequence[QuantisedPattern]:
        """Return the formats of the precision. Programs run in float; quantised ones predict the device's errors."""
        from torchmdla.devices.mdla.ops import quantised_patterns

        return quantised_patterns(self.precision, self._options.headroom)

    def configure(self, **options: object) -> None:
        """Set ``library``, ``precision``, ``clusters``, ``fpgas``, ``debug``, ``options`` and the other options.

        See :class:`torchmdla.devices.mdla.options.Options`. Omitted options get their defaults.
        """
        self._options = Options.of(options)

    def target(self) -> Target:
        # The options are part of the target, hence of every key under which the code is stored.
        return Target(self.name, features=self._options.with_library().to_text())

    def lower(self, program: Program) -> Artifact:
        from torchmdla.devices.mdla.lowering import lower

        return lower(program)

    def load(self, artifact: Artifact) -> LoadedCode:
        from torchmdla.devices.mdla.loader import load

        return load(artifact)

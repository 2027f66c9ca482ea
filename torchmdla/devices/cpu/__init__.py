"""CPU device: generated kernels for the processor that PyTorch itself runs on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, get_args

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.compiler.records import Constant, Record, TunedKernel
from torchmdla.devices.capabilities import Arithmetic, CostModel, CrossCompilation, HostProcessor, Progress, Tuning
from torchmdla.devices.device import Device, LoadedCode, Node, NodeTypes, OpSupport
from torchmdla.devices.quantisation import Quantisation, QuantisedPattern
from torchmdla.devices.roofline import host_seconds
from torchmdla.errors import unknown_name


class CpuDevice(Device, Arithmetic, CostModel, CrossCompilation, HostProcessor, Quantisation, Tuning):
    """CPU device: x86-64 and AArch64 through LLVM.

    Options of :meth:`configure`:

    - ``processor``: a name that :func:`processors.target_of` accepts.
    - ``algorithms``: one of :data:`machine.Algorithms`.
    - ``matrix_unit``: ``"native"``, ``"none"``, or ``"software"`` for a model of one, which is slow.
    - ``tuned``: whether results that were measured on this machine are used.
    """

    name = "cpu"

    def __init__(self) -> None:
        self._processor = "native"
        self._algorithms = "fast"
        self._matrix_unit = "native"
        self._tuned = True

    def configure(self, **options: Any) -> None:
        from torchmdla.devices.cpu.target.machine import Algorithms
        from torchmdla.devices.cpu.target.matrix_units import Choice
        from torchmdla.devices.cpu.target.processors import NATIVE

        default = os.environ.get("TORCHMDLA_PROCESSOR") or NATIVE
        processor, algorithms = options.pop("processor", default), options.pop("algorithms", "fast")
        matrix_unit, tuned = options.pop("matrix_unit", "native"), options.pop("tuned", True)
        super().configure(**options)
        for name, value, kind in (("algorithms", algorithms, Algorithms), ("matrix_unit", matrix_unit, Choice)):
            if value not in get_args(kind):
                raise ValueError(unknown_name(name, value, get_args(kind)))
        if tuned not in (True, False):  # 0 and 1 are valid too: a command line passes them.
            raise ValueError(f"tuned is True or False, not {tuned!r}")
        from torchmdla import _C

        _C.set_processor(processor)
        self._processor, self._algorithms, self._tuned = processor, algorithms, bool(tuned)
        self._matrix_unit = matrix_unit

    @property
    def ops(self) -> Mapping[str, OpSupport]:
        from torchmdla.devices.cpu.target.ops import OPS

        return OPS

    @property
    def quantised_patterns(self) -> Sequence[QuantisedPattern]:
        from torchmdla.devices.cpu.target.ops import QUANTISED_PATTERNS

        return QUANTISED_PATTERNS

    @property
    def dtypes(self) -> frozenset[str]:
        # Every start reads this property, so it must not load LLVM.
        from torchmdla import _C
        from torchmdla.devices.cpu.target.ops import DTYPES

        return DTYPES | {"float16"} if _C.converts_f16(self._processor) else DTYPES

    def target(self) -> Target:
        from torchmdla import _C
        from torchmdla.devices.cpu.target.machine import share_between
        from torchmdla.devices.cpu.target.processors import NATIVE, target_of

        whole = self._with_options(target_of(self._processor), self._processor == NATIVE)
        return share_between(whole, _C.kernel_threads())

    def target_for(self, processor: str) -> Target:
        from torchmdla.devices.cpu.target.machine import share_between
        from torchmdla.devices.cpu.target.processors import NATIVE, level_of, separate_threads

        name, threads = separate_threads(processor)
        return share_between(self._with_options(level_of(name), name == NATIVE), threads)

    def freestanding(self, target: Target) -> Target:
        from torchmdla.devices.cpu.target.machine import SCALAR_FUNCTIONS

        return replace(target, features=f"{target.features},{SCALAR_FUNCTIONS}")

    def packing(self, target: Target) -> Target:
        from torchmdla.devices.cpu.target.machine import PACKS_ON

        native = self.target_for("native")
        needed = {feature for feature in self.features(target) if "=" not in feature}
        if target.architecture == native.architecture and needed <= set(self.features(native)):
            return target
        return replace(target, features=f"{target.features},{PACKS_ON}{native.triple}")

    def features(self, target: Target) -> tuple[str, ...]:
        from torchmdla.devices.cpu.target.processors import used_features

        return used_features(target)

    def _with_options(self, target: Target, is_native: bool) -> Target:
        from torchmdla import _C
        from torchmdla.devices.cpu.target.machine import ALGORITHMS, CHECK_BOUNDS
        from torchmdla.devices.cpu.target.matrix_units import MATRIX_UNIT, UNIT_FEATURES

        # These are stored as features, so that every cache distinguishes programs that were compiled with other
        # options.
        features = [target.features]
        if self._algorithms != "fast":
            features.append(f"{ALGORITHMS}{self._algorithms}")
        matrix_unit, offered = self._matrix_unit, {name for name in UNIT_FEATURES if f"+{name}" in target.features}
        if is_native and matrix_unit == "native" and not offered <= _C.host_features():
            matrix_unit = "none"  # The system does not let this process use the unit's registers.
        if matrix_unit != "native":
            features.append(f"{MATRIX_UNIT}{matrix_unit}")
        if os.environ.get("TORCHMDLA_CHECK_BOUNDS", "0") not in ("", "0"):
            features.append(CHECK_BOUNDS)
        return replace(target, features=",".join(features))

    @property
    def multiplies_bf16(self) -> bool:
        from torchmdla.devices.cpu.target.machine import Machine

        return Machine.of(self.target()).sums_words("bf16")

    def call_seconds(self, node: Node, types: NodeTypes) -> float:
        from torchmdla import _C

        return host_seconds(node, types, _C.kernel_threads())

    @property
    def host_identity(self) -> str:
        from torchmdla import _C

        return _C.processor_identity()

    @property
    def host(self) -> str:
        from torchmdla.devices.cpu.target.processors import host

        return json.dumps(asdict(host()))

    def set_host(self, host: str) -> None:
        from torchmdla.devices.cpu.target.processors import set_host

        try:
            set_host(Target(**json.loads(host)))
        except TypeError as error:
            raise ValueError(f"no target: {error}") from None

    @property
    def machine(self) -> str:
        from torchmdla.devices.cpu.target.processors import describe_machine

        return describe_machine(self.target()) if self._tuned else ""

    def calibration(self) -> Mapping[str, Callable[[], Constant]]:
        from torchmdla.devices.cpu.target.processors import target_of
        from torchmdla.devices.cpu.tuning.calibration import measurements

        return measurements(target_of(self._processor))

    def tune(
        self,
        program: Program,
        places: Sequence[float],
        seconds: float,
        known: Mapping[str, Record],
        skip: Sequence[str] = (),
        progress: Progress = lambda kernel, tried, gain: None,
    ) -> Iterator[TunedKernel]:
        from torchmdla import _C
        from torchmdla.devices.cpu.tuning import tune

        _C.host_features()  # Asks the system for the use of tile registers: this process runs kernels.
        return tune(program, places, seconds, known, skip, progress)

    def warm_up(self) -> None:
        from torchmdla.devices.cpu import lowering  # noqa: F401

    def lower(self, program: Program) -> Artifact:
        from torchmdla.devices.cpu.lowering import lower

        return lower(program)

    def load(self, artifact: Artifact) -> LoadedCode:
        from torchmdla.devices.cpu.codegen.loader import load

        return load(artifact)

"""Several devices that share each program: ``torchmdla.enable(device="npu,cpu")``.

Groups contain what at least one of the devices supports. ``lower`` places each call on a device
(:mod:`~torchmdla.devices.heterogeneous.placement`), cuts the program into parts of one device each, and has the devices
compile these. One entry runs the parts in order, without PyTorch between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torchmdla import devices
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.devices.capabilities import (
    Arithmetic,
    CallSelection,
    Composition,
    CostModel,
    HostProcessor,
    Legalisation,
)
from torchmdla.devices.device import Device, LoadedCode, Node, NodeTypes, OpSupport

# Without cost models the first device that takes a call is preferred, by these weights. A part must outweigh its
# launch: one operator that is worth a group, or two that are not alone.
_WEIGHTS = {"compute": 2.0, "cheap": 1.0}
_LAUNCH = 1.5

# Cost of a transfer that is free. It keeps calls without a weight, such as views, with their neighbours.
_LEAST_TRANSFER = 1e-9


class HeterogeneousDevice(Device, Arithmetic, CallSelection, Composition, Legalisation):
    """Devices in order of preference, by name. The last one should support the most, as the cpu device does."""

    def __init__(self, names: Sequence[str]) -> None:
        if len(set(names)) < max(len(names), 2):
            raise ValueError(f"no device {','.join(names)!r}: name two or more devices, each of them once")
        self._names = tuple(names)
        self.name = ",".join(names)

    @property
    def components(self) -> tuple[Device, ...]:
        return tuple(map(devices.get, self._names))

    @property
    def ops(self) -> Mapping[str, OpSupport]:
        ops: dict[str, OpSupport] = {}
        for device in self.components:
            for name, support in device.ops.items():
                # An operator is formed into groups under the fewest conditions; `refusal` checks those of each device.
                if name not in ops or len(support.where) <= len(ops[name].where):
                    ops[name] = support
        return ops

    @property
    def dtypes(self) -> frozenset[str]:
        return frozenset().union(*(device.dtypes for device in self.components))

    @property
    def precision(self) -> str | None:
        return next(filter(None, map(devices.precision_of, self.components)), None)

    @property
    def multiplies_bf16(self) -> bool:
        return all(isinstance(device, Arithmetic) and device.multiplies_bf16 for device in self.components)

    @property
    def composite_ops(self) -> frozenset[str]:
        whole = (device.composite_ops for device in self.components if isinstance(device, Legalisation))
        return frozenset().union(*whole)

    @property
    def version(self) -> str:
        return " ".join(f"{device.name} {device.version}" for device in self.components if device.version)

    def configure(self, **options: Any) -> None:
        """Configure each device with the options in the argument of its name: ``cpu={"tuned": False}``.

        Raises:
            TypeError: an argument is not a dict of options of one of the devices.
            ValueError: the value of an option is not valid.
        """
        for name, values in options.items():
            if name not in self._names or not isinstance(values, Mapping):
                raise TypeError(
                    f"device {self.name!r}: unknown option {name!r}; give each device its own options in a dict: "
                    f"{self._names[-1]}={{…}}"
                )
        for device in self.components:
            device.configure(**options.get(device.name, {}))

    def target(self) -> Target:
        return Target(self.name, features=json.dumps([asdict(device.target()) for device in self.components]))

    def refusal(self, node: Node, types: NodeTypes) -> str:
        if not any(node.op in device.ops for device in self.components):
            return ""
        reasons = [_refusal(device, node, types) for device in self.components]
        return "; ".join(reasons) if all(reasons) else ""

    def program_options(
        self, calls: Iterable[tuple[int, Node, NodeTypes]], measured: Sequence[tuple[tuple[str, str], ...]]
    ) -> tuple[tuple[str, str], ...]:
        from torchmdla.devices.heterogeneous.placement import OPTION, Costs, Link

        models = [device for device in self.components if isinstance(device, CostModel)]
        is_modelled = len(models) == len(self._names)
        links = [
            Link(model.launch_seconds, model.transfer_seconds + _LEAST_TRANSFER, 1 / model.transfer_bandwidth)
            for model in models
        ]
        if not is_modelled:
            links = [Link(_LAUNCH, _LEAST_TRANSFER, 0.0)] * (len(self._names) - 1) + [Link(0.0, 0.0, 0.0)]
        ops = self.ops

        def seconds(place: int, device: Device, node: Node, types: NodeTypes) -> float:
            if is_modelled:
                return devices.require(device, CostModel).call_seconds(node, types)
            return place * _WEIGHTS.get(ops[node.op].kind, 0.0)

        costs = {
            number: tuple(
                _refusal(device, node, types) or seconds(place, device, node, types)
                for place, device in enumerate(self.components)
            )
            for number, node, types in calls
            if node.op in ops
        }
        option = (OPTION, Costs(is_modelled, tuple(links), costs).to_text())
        return (option, (MEASURED, json.dumps(measured))) if any(measured) else (option,)

    def warm_up(self) -> None:
        for device in self.components:
            device.warm_up()

    def lower(self, program: Program) -> Artifact:
        from torchmdla.devices.heterogeneous.lowering import lower

        return lower(program, self.components)

    def load(self, artifact: Artifact) -> LoadedCode:
        from torchmdla.devices.heterogeneous.loader import load

        return load(artifact)


# Program option with the options of each device's parts.
MEASURED = "measured"


def has_own_memory(device: Device) -> bool:
    """Return whether tensors are transferred to and from a device. The host's processors have the host's memory."""
    return not isinstance(device, HostProcessor)


def _refusal(device: Device, node: Node, types: NodeTypes) -> str:
    """Return why a device does not take a call, in the words of other reports; empty if it does."""
    support = device.ops.get(node.op)
    if support is None:
        return f"device {device.name!r} has no such operator"
    if any(tensor.dtype not in device.dtypes for tensor in types.tensors()):
        return f"device {device.name!r} does not take the dtype of its inputs or results"
    values = {**types.arguments, **node.values}
    if any((type(values.get(name)), values.get(name)) != (type(v), v) for name, v in support.where.items()):
        return f"device {device.name!r} does not take it with these arguments"
    if isinstance(device, CallSelection) and (reason := device.refusal(node, types)):
        return f"device {device.name!r} does not take it: {reason}"
    return ""

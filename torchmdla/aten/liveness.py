"""The liveness report: which tensors are held at every layer, and how many bytes they are.

A tensor that is a view lives in the memory of the tensor it is a view of, so both count once, for as long as either is
used. Arguments are held from the start to their last use, parameters and what is returned to the end. The results of an
op are there while it runs, beside its operands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rich.table import Table
from torch_mlir import ir

from torchmdla.aten.calls import Call, Function, Tensor, function_of, tensors
from torchmdla.aten.op_counts.table import is_view
from torchmdla.aten.operations import parameter_names

Role = Literal["activation", "input", "parameter"]


@dataclass(frozen=True)
class HeldValue:
    """A piece of memory: the value that owns it (``%arg0``, ``L1-relu-0``, ``L3-max-0#1``), its bytes and its role."""

    name: str
    bytes: int
    role: Role


@dataclass(frozen=True)
class LivenessPoint:
    """What is held while one layer runs; ``values`` are sorted by bytes, the largest first."""

    layer: str
    values: tuple[HeldValue, ...]

    @property
    def bytes(self) -> int:
        """All that is held."""
        return sum(value.bytes for value in self.values)

    def bytes_of(self, role: Role) -> int:
        """What values of one role hold."""
        return sum(value.bytes for value in self.values if value.role == role)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "bytes": self.bytes,
            **{f"{role}_bytes": self.bytes_of(role) for role in _ROLES},
            "values": [{"name": value.name, "bytes": value.bytes, "role": value.role} for value in self.values],
        }


_ROLES: tuple[Role, ...] = ("activation", "input", "parameter")


@dataclass(frozen=True)
class LivenessReport:
    """The layers of one function, in order. Prints as a table through ``rich``."""

    function: str
    points: tuple[LivenessPoint, ...]

    @property
    def peak(self) -> LivenessPoint | None:
        """The first layer at which most is held; None in a function without layers."""
        return max(self.points, key=lambda point: point.bytes, default=None)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: layers by name, and the name of the layer at the peak."""
        return {
            "function": self.function,
            "peak": None if self.peak is None else {"layer": self.peak.layer, **self.peak.as_dict()},
            "layers": {point.layer: point.as_dict() for point in self.points},
        }

    def to_json(self) -> str:
        """JSON text."""
        return json.dumps(self.as_dict(), indent=2)

    def __rich__(self) -> Table:
        table = Table(title=f"@{self.function}: bytes held at each layer")
        table.add_column("layer", no_wrap=True)
        for heading in ("bytes", *_ROLES):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("largest activations and inputs")
        for point in self.points:
            others = [value for value in point.values if value.role != "parameter"]
            largest = ", ".join(f"{value.name} {value.bytes:,}" for value in others[:2])
            numbers = [point.bytes, *(point.bytes_of(role) for role in _ROLES)]
            style = "bold" if point is self.peak else None
            table.add_row(point.layer, *(f"{number:,}" for number in numbers), largest, style=style)
        return table


def liveness_report(module: ir.Module, function: str | None = None) -> LivenessReport:
    """Reports what is held at every layer of a function.

    Args:
        module: in the aten dialect.
        function: its name; needed where the module has several.

    Raises:
        AtenError: there is no such function, it has control flow, or a size is not known.
    """
    return _Liveness(function_of(module, function)).report()


@dataclass
class _Storage:
    """Memory of one or more tensors: when it is made and last used, as numbers of layers."""

    value: HeldValue
    first: int
    last: int


class _Liveness:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._storages: list[_Storage] = []
        # By the name of a tensor.
        self._of: dict[str, _Storage] = {}

    def report(self) -> LivenessReport:
        function, end = self._function, len(self._function.calls)
        parameters = parameter_names(function)
        for tensor in (*function.arguments, *function.literals):
            role: Role = "parameter" if tensor.name in parameters else "input"
            self._hold(tensor, tensor.name, role, first=0, last=end if role == "parameter" else 0)
        for number, call in enumerate(function.calls):
            for operand in call.inputs:
                self._use(operand, number)
            self._define(call, number)
        for name in function.returned:
            self._of[name].last = end
        return LivenessReport(function.name, tuple(self._point(number) for number in range(end)))

    def _point(self, number: int) -> LivenessPoint:
        held = [storage.value for storage in self._storages if storage.first <= number <= storage.last]
        values = sorted(held, key=lambda value: -value.bytes)
        return LivenessPoint(self._function.calls[number].layer, tuple(values))

    def _use(self, tensor: Tensor, number: int) -> None:
        storage = self._of[tensor.name]
        storage.last = max(storage.last, number)

    def _define(self, call: Call, number: int) -> None:
        aliased = _aliased(call)
        several = len(call.outputs) > 1
        for index, tensor in enumerate(call.outputs):
            base = aliased.get(tensor.name)
            if base is not None:
                self._of[tensor.name] = self._of[base]
                continue
            name = f"{call.layer}#{index}" if several else call.layer
            self._hold(tensor, name, "activation", first=number, last=number)

    def _hold(self, tensor: Tensor, name: str, role: Role, *, first: int, last: int) -> None:
        if tensor.name in self._of:
            return
        storage = _Storage(HeldValue(name, tensor.bytes, role), first, last)
        self._storages.append(storage)
        self._of[tensor.name] = storage


def _aliased(call: Call) -> Mapping[str, str]:
    """For each result that lives in an argument's memory, the argument: views, and in-place ops."""
    if not is_view(call) and not call.schema.written:
        return {}
    found = {}
    for result, index in zip(call.results, call.schema.aliased, strict=True):
        base = None if index is None else next(tensors([call[call.schema.arguments[index]]]), None)
        if base is not None:
            found.update({tensor.name: base.name for tensor in tensors([result])})
    return found

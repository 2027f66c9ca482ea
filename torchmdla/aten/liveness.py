"""Liveness report: the tensors that are held at every layer, and their bytes.

A view shares the memory of its base. Both count once and are live as long as either is used. Arguments are live from
the start to their last use. Parameters and returned tensors are live to the end. While an op runs, both its operands
and its results are live.
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
    """Memory with the value that owns it (``%arg0``, ``L1-relu-0``, ``L3-max-0#1``), its bytes and its role."""

    name: str
    bytes: int
    role: Role


@dataclass(frozen=True)
class LivenessPoint:
    """Values that are held while one layer runs, sorted by bytes with the largest first."""

    layer: str
    values: tuple[HeldValue, ...]

    @property
    def bytes(self) -> int:
        """Return the bytes of all held values."""
        return sum(value.bytes for value in self.values)

    def bytes_of(self, role: Role) -> int:
        """Return the bytes of the held values of one role."""
        return sum(value.bytes for value in self.values if value.role == role)

    def as_dict(self) -> dict[str, Any]:
        """Return the contents of a JSON object."""
        return {
            "bytes": self.bytes,
            **{f"{role}_bytes": self.bytes_of(role) for role in _ROLES},
            "values": [{"name": value.name, "bytes": value.bytes, "role": value.role} for value in self.values],
        }


_ROLES: tuple[Role, ...] = ("activation", "input", "parameter")


@dataclass(frozen=True)
class LivenessReport:
    """Liveness of the layers of one function, in order; ``rich`` prints it as a table."""

    function: str
    points: tuple[LivenessPoint, ...]

    @property
    def peak(self) -> LivenessPoint | None:
        """Return the first layer at which most bytes are held, or None for a function without layers."""
        return max(self.points, key=lambda point: point.bytes, default=None)

    def as_dict(self) -> dict[str, Any]:
        """Return the contents of a JSON object: the layers by name, and the layer at the peak."""
        return {
            "function": self.function,
            "peak": None if self.peak is None else {"layer": self.peak.layer, **self.peak.as_dict()},
            "layers": {point.layer: point.as_dict() for point in self.points},
        }

    def to_json(self) -> str:
        """Return the report as JSON text."""
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
    """Report the values that are held at every layer of a function.

    Args:
        module: module in the aten dialect.
        function: name of the function; required if the module has several.

    Raises:
        AtenError: the function does not exist, it has control flow, or a size is not known.
    """
    return _Liveness(function_of(module, function)).report()


@dataclass
class _Storage:
    """Memory that one or more tensors share, with the layer numbers of its first and last use."""

    value: HeldValue
    first: int
    last: int


class _Liveness:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._storages: list[_Storage] = []
        # Storages by tensor name.
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
        aliased = _aliases_of(call)
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


def _aliases_of(call: Call) -> Mapping[str, str]:
    """Return the argument name for each result that shares the argument's memory (views, in-place ops)."""
    if not is_view(call) and not call.schema.written:
        return {}
    bases = {}
    for result, index in zip(call.results, call.schema.aliased, strict=True):
        base = None if index is None else next(tensors([call[call.schema.arguments[index]]]), None)
        if base is not None:
            bases.update({tensor.name: base.name for tensor in tensors([result])})
    return bases

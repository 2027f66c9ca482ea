"""Reports of a function's layers: their elements and operations, and the memory that is held at each.

In the liveness report a view shares the memory of its base. Both count once and are live as long as either is used.
Arguments are live from the start to their last use. Parameters and returned tensors are live to the end. While an op
runs, both its operands and its results are live.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.table import Table
from torch_mlir import ir

from torchmdla.aten.calls import Call, Function, function_of, tensors
from torchmdla.aten.op_counts import KINDS, counts_of, elements_read, is_view


@dataclass(frozen=True)
class LayerReport:
    """Work of one layer, in elements and operations.

    ``reads`` is ``activations_in`` plus ``parameters_in``, and ``writes`` is ``activations_out``. Views read and write
    nothing. ``counts`` is ``None`` for an op without a rule.
    """

    name: str
    op: str
    activations_in: int
    activations_out: int
    parameters_in: int
    reads: int
    writes: int
    counts: dict[str, int] | None

    def as_dict(self) -> dict[str, Any]:
        """Return the contents of a JSON object."""
        return {name: value for name, value in asdict(self).items() if name != "name"}


@dataclass(frozen=True)
class OpReport:
    """Work of the layers of one function, in order; ``rich`` prints it as a table."""

    function: str
    layers: tuple[LayerReport, ...]

    @property
    def total(self) -> LayerReport:
        """Return the sum of all layers; layers without a rule count nothing."""
        numbers = {name: sum(getattr(layer, name) for layer in self.layers) for name in _COLUMNS.values()}
        counts: Counter[str] = sum((Counter(layer.counts) for layer in self.layers), Counter())
        return LayerReport("total", "", **numbers, counts=dict(counts))

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Return the ops without a rule."""
        return tuple(sorted({layer.op for layer in self.layers if layer.counts is None}))

    def as_dict(self) -> dict[str, Any]:
        """Return the contents of a JSON object: the layers by name, and their total."""
        whole = self.total.as_dict()
        del whole["op"]
        return {
            "function": self.function,
            "layers": {layer.name: layer.as_dict() for layer in self.layers},
            "total": whole,
            "uncounted": list(self.uncounted),
        }

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(self.as_dict(), indent=2)

    def __rich__(self) -> Table:
        whole = self.total
        table = Table(title=f"@{self.function}: elements and operations", show_footer=True)
        table.add_column("layer", "total", no_wrap=True)
        for heading, name in _COLUMNS.items():
            table.add_column(heading, f"{getattr(whole, name):,}", justify="right", no_wrap=True)
        table.add_column("operations", _counts_text(whole.counts))
        for layer in self.layers:
            numbers = [f"{getattr(layer, name):,}" for name in _COLUMNS.values()]
            table.add_row(layer.name, *numbers, _counts_text(layer.counts))
        return table


_COLUMNS = {
    "activations in": "activations_in",
    "out": "activations_out",
    "parameters in": "parameters_in",
    "reads": "reads",
    "writes": "writes",
}


def _counts_text(counts: Mapping[str, int] | None) -> str:
    if counts is None:
        return "not known"
    return ", ".join(f"{kind} {counts[kind]:,}" for kind in KINDS if kind in counts)


def op_report(module: ir.Module, function: str | None = None) -> OpReport:
    """Report the work of every layer of a function.

    Parameters are the arguments marked ``aten.parameter``, tensor literals, and views of these. In a function without
    marks, the arguments used as weight, bias or running statistics by some op's schema are parameters instead.

    Args:
        module: module in the aten dialect.
        function: name of the function; required if the module has several.

    Raises:
        AtenError: the function does not exist, it has control flow, or a size is not known.
    """
    target = function_of(module, function)
    parameters = _parameter_names(target)
    return OpReport(target.name, tuple(_layer(call, parameters) for call in target.calls))


def _layer(call: Call, parameters: frozenset[str]) -> LayerReport:
    viewed = is_view(call)
    read = {} if viewed else elements_read(call)
    reads = sum(read.values())
    of_parameters = sum(elements for name, elements in read.items() if name in parameters)
    writes = 0 if viewed else sum(tensor.numel for tensor in call.outputs)
    return LayerReport(
        name=call.layer,
        op=call.schema.qualified,
        activations_in=reads - of_parameters,
        activations_out=writes,
        parameters_in=of_parameters,
        reads=reads,
        writes=writes,
        counts=counts_of(call),
    )


# Argument names of weights and buffers in schemas.
_NAMES = re.compile(
    r"((qkv_|proj_)?(weight|bias)|(norm|ffn)_(weight|bias)_[12]|running_mean|running_var|params|[wb]_[ih]h)"
)


def _parameter_names(function: Function) -> frozenset[str]:
    """Return the names of the values of a function that are parameters."""
    names = {tensor.name for tensor in function.literals} | function.parameters
    if not function.parameters:
        weights = (value for call in function.calls for name, value in call.arguments.items() if _NAMES.fullmatch(name))
        names |= {tensor.name for tensor in tensors(weights)} & {tensor.name for tensor in function.arguments}
    for call in function.calls:
        if is_view(call) and call.inputs and call.inputs[0].name in names:
            names.update(tensor.name for tensor in call.outputs)
    return frozenset(names)


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
            "values": [asdict(value) for value in self.values],
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
    target = function_of(module, function)
    storages = _storages_of(target)
    points = []
    for number, call in enumerate(target.calls):
        held = [storage.value for storage in storages if storage.first <= number <= storage.last]
        points.append(LivenessPoint(call.layer, tuple(sorted(held, key=lambda value: -value.bytes))))
    return LivenessReport(target.name, tuple(points))


@dataclass(eq=False)
class _Storage:
    """Memory that one or more tensors share, with the layer numbers of its first and last use."""

    value: HeldValue
    first: int
    last: int


def _storages_of(function: Function) -> list[_Storage]:
    """Return the memory of a function's values, in the order of their definition."""
    end = len(function.calls)
    parameters = _parameter_names(function)
    storages: dict[str, _Storage] = {}
    for tensor in (*function.arguments, *function.literals):
        role: Role = "parameter" if tensor.name in parameters else "input"
        value = HeldValue(tensor.name, tensor.bytes, role)
        storages[tensor.name] = _Storage(value, first=0, last=end if role == "parameter" else 0)
    for number, call in enumerate(function.calls):
        for operand in call.inputs:
            storages[operand.name].last = max(storages[operand.name].last, number)
        bases = _aliases_of(call)
        for index, tensor in enumerate(call.outputs):
            name = f"{call.layer}#{index}" if len(call.outputs) > 1 else call.layer
            new = _Storage(HeldValue(name, tensor.bytes, "activation"), first=number, last=number)
            storages[tensor.name] = storages[bases[tensor.name]] if tensor.name in bases else new
    for name in function.returned:
        storages[name].last = end
    return list(dict.fromkeys(storages.values()))


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

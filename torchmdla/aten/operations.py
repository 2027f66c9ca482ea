"""The op report: what every layer reads, computes and writes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from torch_mlir import ir

from torchmdla.aten.calls import Call, Function, Tensor, function_of, tensors
from torchmdla.aten.op_counts import KINDS, Counts, work_of
from torchmdla.aten.op_counts.kinds import total, words
from torchmdla.aten.op_counts.table import is_view


@dataclass(frozen=True)
class LayerReport:
    """One layer, in elements and operations.

    ``reads`` is ``activations_in`` plus ``parameters_in``, ``writes`` is ``activations_out``. Views read and write
    nothing. ``counts`` is None where no rule is known for the op.
    """

    name: str
    op: str
    activations_in: int
    activations_out: int
    parameters_in: int
    reads: int
    writes: int
    counts: Counts | None

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "op": self.op,
            "activations_in": self.activations_in,
            "activations_out": self.activations_out,
            "parameters_in": self.parameters_in,
            "reads": self.reads,
            "writes": self.writes,
            "counts": self.counts,
        }


@dataclass(frozen=True)
class OpReport:
    """The layers of one function, in order. Prints as a table through ``rich``."""

    function: str
    layers: tuple[LayerReport, ...]

    @property
    def total(self) -> LayerReport:
        """All layers together; those without a rule count nothing."""

        def add(name: str) -> int:
            return sum(getattr(layer, name) for layer in self.layers)

        return LayerReport(
            name="total",
            op="",
            activations_in=add("activations_in"),
            activations_out=add("activations_out"),
            parameters_in=add("parameters_in"),
            reads=add("reads"),
            writes=add("writes"),
            counts=total(*(layer.counts or {} for layer in self.layers)),
        )

    @property
    def uncounted(self) -> tuple[str, ...]:
        """The ops that no rule is known for."""
        return tuple(sorted({layer.op for layer in self.layers if layer.counts is None}))

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: layers by name, and their total."""
        whole = self.total.as_dict()
        del whole["op"]
        return {
            "function": self.function,
            "layers": {layer.name: layer.as_dict() for layer in self.layers},
            "total": whole,
            "uncounted": list(self.uncounted),
        }

    def to_json(self) -> str:
        """JSON text."""
        return json.dumps(self.as_dict(), indent=2)

    def __rich__(self) -> Table:
        whole = self.total
        table = Table(title=f"@{self.function}: elements and operations", show_footer=True)
        table.add_column("layer", "total", no_wrap=True)
        for heading, name in _COLUMNS.items():
            table.add_column(heading, f"{getattr(whole, name):,}", justify="right", no_wrap=True)
        table.add_column("operations", _in_words(whole.counts))
        for layer in self.layers:
            numbers = [f"{getattr(layer, name):,}" for name in _COLUMNS.values()]
            table.add_row(layer.name, *numbers, _in_words(layer.counts))
        return table


_COLUMNS = {
    "activations in": "activations_in",
    "out": "activations_out",
    "parameters in": "parameters_in",
    "reads": "reads",
    "writes": "writes",
}


def _in_words(counts: Counts | None) -> str:
    if counts is None:
        return "not known"
    return ", ".join(f"{kind} {counts[kind]:,}" for kind in KINDS if kind in counts)


def op_report(module: ir.Module, function: str | None = None) -> OpReport:
    """Reports on every layer of a function.

    Parameters are the arguments marked ``aten.parameter``, tensor literals, and views of these; in a function without
    marks, what an op's schema calls weight, bias, or running statistics.

    Args:
        module: in the aten dialect.
        function: its name; needed where the module has several.

    Raises:
        AtenError: there is no such function, it has control flow, or a size is not known.
    """
    found = function_of(module, function)
    parameters = parameter_names(found)
    return OpReport(found.name, tuple(_layer(call, parameters) for call in found.calls))


def _layer(call: Call, parameters: frozenset[str]) -> LayerReport:
    work = work_of(call)
    of_parameters = sum(elements for name, elements in work.read.items() if name in parameters)
    activations = sum(work.read.values()) - of_parameters
    return LayerReport(
        name=call.layer,
        op=call.schema.qualified,
        activations_in=activations,
        activations_out=work.written,
        parameters_in=of_parameters,
        reads=activations + of_parameters,
        writes=work.written,
        counts=work.counts,
    )


# What schemas call weights and buffers.
_NAMES = frozenset(
    words("""weight bias running_mean running_var params w_ih w_hh b_ih b_hh qkv_weight qkv_bias proj_weight proj_bias
    norm_weight_1 norm_bias_1 norm_weight_2 norm_bias_2 ffn_weight_1 ffn_bias_1 ffn_weight_2 ffn_bias_2""")
)


def parameter_names(function: Function) -> frozenset[str]:
    """The values of a function that are parameters, by name."""
    names = {tensor.name for tensor in function.literals} | function.parameters
    if not function.parameters:
        owned = _tensors_called(function.calls)
        names |= {tensor.name for tensor in function.arguments if tensor.name in owned}
    for call in function.calls:
        if is_view(call) and call.inputs and call.inputs[0].name in names:
            names.update(tensor.name for tensor in call.outputs)
    return frozenset(names)


def _tensors_called(calls: Iterable[Call]) -> frozenset[str]:
    """The tensors that some op has as a parameter, by the names of its schema."""
    found: list[Tensor] = []
    for call in calls:
        found.extend(tensors(value for name, value in call.arguments.items() if name in _NAMES))
    return frozenset(tensor.name for tensor in found)

"""Op report: the elements that every layer reads and writes, and the operations that it computes."""

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
    counts: Counts | None

    def as_dict(self) -> dict[str, Any]:
        """Return the contents of a JSON object."""
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
    """Work of the layers of one function, in order; ``rich`` prints it as a table."""

    function: str
    layers: tuple[LayerReport, ...]

    @property
    def total(self) -> LayerReport:
        """Return the sum of all layers; layers without a rule count nothing."""

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


def _counts_text(counts: Counts | None) -> str:
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
    parameters = parameter_names(target)
    return OpReport(target.name, tuple(_layer(call, parameters) for call in target.calls))


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


# Argument names of weights and buffers in schemas.
_NAMES = frozenset(
    words("""weight bias running_mean running_var params w_ih w_hh b_ih b_hh qkv_weight qkv_bias proj_weight proj_bias
    norm_weight_1 norm_bias_1 norm_weight_2 norm_bias_2 ffn_weight_1 ffn_bias_1 ffn_weight_2 ffn_bias_2""")
)


def parameter_names(function: Function) -> frozenset[str]:
    """Return the names of the values of a function that are parameters."""
    names = {tensor.name for tensor in function.literals} | function.parameters
    if not function.parameters:
        owned = _tensors_called(function.calls)
        names |= {tensor.name for tensor in function.arguments if tensor.name in owned}
    for call in function.calls:
        if is_view(call) and call.inputs and call.inputs[0].name in names:
            names.update(tensor.name for tensor in call.outputs)
    return frozenset(names)


def _tensors_called(calls: Iterable[Call]) -> frozenset[str]:
    """Return the names of the tensors that some op uses as a parameter, by its schema's argument names."""
    parameters: list[Tensor] = []
    for call in calls:
        parameters.extend(tensors(value for name, value in call.arguments.items() if name in _NAMES))
    return frozenset(tensor.name for tensor in parameters)

"""Pending tensors of the acap device, and what they are computed from, as functions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch_mlir import ir

from torchmdla import _C, aten
from torchmdla.errors import CompileError
from torchmdla.mlir.kinds import register_kind
from torchmdla.mlir.lazy import kind_of_device, results_in


def graph_of(x: Tensor | Sequence[Tensor], canonical: bool) -> ir.Module:
    """What ``x`` is computed from: ``@graph`` in the aten dialect.

    Args:
        x: a tensor on the device, or several, which are its results; they stay pending.
        canonical: one argument for each tensor and one constant for each number, and a name for each op, instead of
            one for each use.

    Raises:
        CompileError: something in it has no form in the dialect.
    """
    graph = _C.acap.pending_graph(results_in(x), argument_per_use=not canonical)
    try:
        module = aten.from_typed_graph(graph, name="graph", share_literals=canonical)
    except aten.AtenError as error:
        raise CompileError(f"it cannot be expressed in the aten dialect: {error}") from error
    if canonical:
        aten.layer_names(module)
    return module


KIND = kind_of_device("acap", lambda tensors: _C.acap.pending_graph(tensors, argument_per_use=False))

register_kind(KIND)

"""Conversion of pending tensors of the acap device to functions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch_mlir import ir

from torchmdla import _C, aten
from torchmdla.errors import CompileError
from torchmdla.mlir.kinds import register_kind
from torchmdla.mlir.lazy import kind_of_device, results_in


def graph_of(x: Tensor | Sequence[Tensor], canonical: bool) -> ir.Module:
    """Return the computation of ``x`` as ``@graph`` in the aten dialect.

    Args:
        x: a tensor on the device, or several, which are the results; they stay pending.
        canonical: whether each tensor has one argument, each number one constant, and each op a name. Otherwise every
            use has its own argument or constant.

    Raises:
        CompileError: the dialect cannot express part of the computation.
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

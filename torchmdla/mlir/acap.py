"""Pending tensors of the acap device, and what they are computed from, as functions."""

from __future__ import annotations

from torch import Tensor
from torch_mlir import ir

from torchmdla import _C, aten
from torchmdla.errors import CompileError
from torchmdla.mlir.kinds import register_kind
from torchmdla.mlir.lazy import kind_of_device


def graph_of(tensor: Tensor, canonical: bool) -> ir.Module:
    """What ``tensor`` is computed from: ``@graph`` in the aten dialect.

    Args:
        tensor: on the device; it stays pending.
        canonical: one argument for each tensor and one constant for each number, and a name for each op, instead of
            one for each use.

    Raises:
        CompileError: something in it has no form in the dialect.
    """
    graph = _C.acap.pending_graph(tensor, argument_per_use=not canonical)
    try:
        module = aten.from_typed_graph(graph, name="graph", share_literals=canonical)
    except aten.AtenError as error:
        raise CompileError(f"it cannot be expressed in the aten dialect: {error}") from error
    if canonical:
        aten.layer_names(module)
    return module


KIND = kind_of_device("acap", lambda x: _C.acap.pending_graph(x, argument_per_use=False))

register_kind(KIND)

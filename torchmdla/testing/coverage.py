"""Share of a program that runs inside groups, counted in ops and in floating-point work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import torchmdla

GROUP = "mdla::CompilationGroup"


def blocks(graph: Any) -> Iterator[Any]:
    """Yield ``graph`` and every block below it, except those inside groups.

    Blocks are branches, loop bodies and differentiable graphs.
    """
    yield graph
    for node in graph.nodes():
        for block in node.blocks():
            yield from blocks(block)
        if node.kind() == "prim::DifferentiableGraph":
            yield from blocks(node.g("Subgraph"))


def groups(graph: Any) -> list[Any]:
    """Return every group node of a ``torch._C.Graph``; ``node.g("Subgraph")`` is the graph inside."""
    return [node for block in blocks(graph) for node in block.nodes() if node.kind() == GROUP]


def count_ops(graph: Any) -> tuple[int, int]:
    """Return the number of ``aten`` ops inside groups, and the number of all ``aten`` ops."""
    inside = sum(_ops(block) for group in groups(graph) for block in blocks(group.g("Subgraph")))
    return inside, inside + sum(_ops(block) for block in blocks(graph))


def _ops(block: Any) -> int:
    return sum(node.kind().startswith("aten::") for node in block.nodes())


def work_inside(graph: Any, *inputs: Any) -> int:
    """Return the floating-point work of the groups of ``graph`` in one run.

    Eager ops run each group's subgraph under :class:`WorkCounter`, on the values that the group receives when the graph
    runs on ``inputs`` (for a module's graph the module first). So this function and :func:`work_of` a whole call count
    the same.

    Raises:
        ValueError: a group is in a branch or a loop, so its number of runs is not known.
    """
    nodes = [node for node in graph.nodes() if node.kind() == GROUP]
    if len(nodes) != len(groups(graph)):
        raise ValueError("a group is in a branch or a loop")
    total = 0
    for index, node in enumerate(nodes):
        # A copy of the graph that computes the inputs of this group.
        before = graph.copy()
        feed = function_of(before, list(groups(before)[index].inputs()))
        subgraph = node.g("Subgraph").copy()
        with torch.no_grad(), torchmdla.enabled(False):
            values = feed(*inputs)
        total += work_of(function_of(subgraph, list(subgraph.outputs())), *values)
    return total


def function_of(graph: Any, results: list[Any]) -> Any:
    """Return ``graph`` as a function that returns a tuple of ``results`` instead of its outputs.

    ``results`` are values of the graph.
    """
    for _ in list(graph.outputs()):
        graph.eraseOutput(0)
    together = graph.appendNode(graph.create("prim::TupleConstruct", results, 1)).output()
    together.setType(torch._C.TupleType([value.type() for value in results]))
    graph.registerOutput(together)
    return torch._C._create_function_from_graph("function", graph)


def work_of(function: Callable[..., Any], *inputs: Any) -> int:
    """Return the floating-point work of ``function(*inputs)``, run by eager ops with torchmdla switched off."""
    with torch.no_grad(), torchmdla.enabled(False):
        # The first calls of a scripted function optimise it, which runs ops to compare its constants.
        for _ in range(2):
            function(*inputs)
        with WorkCounter() as counter:
            function(*inputs)
    work: int = counter.work
    return work


class WorkCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that adds up the floating-point work of the ops that PyTorch dispatches while it is active.

    An op that sums products (convolution, product of matrices, attention, recurrent layer) counts by the formula of
    ``torch.utils.flop_counter``, a multiplication and an addition for each product, or by a formula below. Views and
    ops that only move or create data count 0. Any other op counts 1 for each element of the largest floating-point
    tensor that it reads or writes, whatever it computes: an ``exp`` counts as much as an ``add``.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.work += _op_work(func, args, kwargs or {}, result)
        return result


class LayerCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that counts the ops that sum products and that PyTorch dispatches while it is active.

    The count is the ``layers`` of :func:`torchmdla.testing.compare.assert_matches`, for a program that chains these
    ops.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layers: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.layers += func.overloadpacket in _FORMULAS
        return func(*args, **(kwargs or {}))


def _op_work(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    packet = func.overloadpacket
    if packet in _FORMULAS:
        return int(_FORMULAS[packet](*args, **kwargs, out_val=result))
    if func.is_view or packet in _MOVING_OPS:
        return 0
    leaves = torch.utils._pytree.tree_leaves((args, kwargs, result))
    return max((leaf.numel() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()), default=0)


def _rnn_layer_work(x: Tensor, input_weight: Tensor, hidden_weight: Tensor, *_: Any, **__: Any) -> int:
    steps = x.size(0) * x.size(1)
    return 2 * steps * (input_weight.numel() + hidden_weight.numel())


def _encoder_layer_work(x: Tensor, *args: Any, **_: Any) -> int:
    """Return the work of four products with weights, and of attention over ``[batch, time]``.

    The weights are the only matrices among the arguments.
    """
    weights = sum(arg.numel() for arg in args if isinstance(arg, Tensor) and arg.dim() == 2)
    batch, time, width = x.shape
    return 2 * batch * time * weights + 4 * batch * time * time * width


_aten = torch.ops.aten

# Formulas of flop_counter, and of fused ops that PyTorch selects on a CPU and that flop_counter lacks.
_FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    _aten.mkldnn_rnn_layer: _rnn_layer_work,
    _aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[_aten._scaled_dot_product_flash_attention],
    _aten._transformer_encoder_layer_fwd: _encoder_layer_work,
}

_MOVING = """
_to_copy _unsafe_view _reshape_copy arange cat clone copy_ embedding empty empty_like fill_ full index index_select
new_zeros ones ones_like stack zeros zeros_like
"""
_MOVING_OPS = frozenset(getattr(_aten, name) for name in _MOVING.split())

"""Weights of a module's graph, read together: the lookup of a submodule's attribute costs a microsecond."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from torch import fx, nn


class Weights:
    """Callable that returns parameters and buffers with their values at the time of the call.

    Args:
        slots: for each, the dictionary of a module that holds it and its name there.
    """

    def __init__(self, slots: list[tuple[Mapping[str, Any], str]]) -> None:
        # FX uses these names of a function in the code that it writes.
        self.__name__ = self.__qualname__ = "mdla_weights"
        self.__module__ = "torchmdla"
        self._slots = slots

    def __call__(self) -> list[Any]:
        return [holder[name] for holder, name in self._slots]


def gather_weights(module: fx.GraphModule) -> None:
    """Replace the attribute reads of parameters and buffers, in place, by one call of :class:`Weights`."""
    graph = module.graph
    reads = [node for node in graph.find_nodes(op="get_attr") if _slot(module, str(node.target)) is not None]
    if not reads:
        return
    slots: list[Any] = [_slot(module, str(node.target)) for node in reads]
    with graph.inserting_before(reads[0]):
        weights = graph.call_function(Weights(slots))
        for index, node in enumerate(reads):
            value = graph.call_function(operator.getitem, (weights, index))
            value.meta = dict(node.meta)
            node.replace_all_uses_with(value)
    for node in reads:
        graph.erase_node(node)
    module.recompile()


def _slot(module: nn.Module, path: str) -> tuple[Mapping[str, Any], str] | None:
    """Return the dictionary and name of the parameter or buffer ``path`` of ``module``; None if it is neither."""
    owner, _, name = path.rpartition(".")
    holder = module.get_submodule(owner)
    return next(((held, name) for held in (holder._parameters, holder._buffers) if name in held), None)

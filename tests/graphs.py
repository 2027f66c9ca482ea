"""Helpers that inspect optimised graphs."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import torchmdla
from torchmdla.importer.script_graph import convert_graph
from torchmdla.script.ir import Graph
from torchmdla.testing import coverage


def warmed_up(function: Any, *inputs: Any) -> Any:
    """Return ``function`` after the calls that the profiling executor needs. It is traced unless it is scripted."""
    scripted = function
    if not isinstance(function, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        scripted = torch.jit.trace(function, inputs, check_trace=False)
    for _ in range(4):
        scripted(*inputs)
    return scripted


def anew(function: Any) -> Any:
    """Return ``function`` as a new TorchScript function without groups. PyTorch scripts each function only once."""
    return torch.jit.script(types.FunctionType(function.__code__, function.__globals__, function.__name__))


def nodes(graph: Any) -> Iterator[torch._C.Node]:
    """Yield all nodes, also those of inner blocks, but not those of groups."""
    for block in coverage.blocks(graph):
        yield from block.nodes()


def groups(graph: Any) -> list[torch._C.Graph]:
    """Return the subgraphs of the groups of ``graph``."""
    return [node.g("Subgraph") for node in coverage.groups(graph)]


def kinds(graph: Any) -> list[str]:
    """Return the kinds of the nodes of ``graph`` that compute something."""
    return [node.kind() for node in nodes(graph) if node.kind() != "prim::Constant"]


def groups_of(function: Any, *inputs: Any) -> list[torch._C.Graph]:
    """Return the groups of ``function`` for ``inputs``."""
    return groups(torchmdla.graph_for(warmed_up(function, *inputs), *inputs))


def unfrozen_graph(module: nn.Module, *inputs: Tensor) -> tuple[Graph, list[object]]:
    """Return the graph of a traced module with its weights as inputs."""
    with torch.no_grad():
        traced = torch.jit.trace(module.eval(), inputs)
        torch._C._jit_pass_inline(traced.graph)
        graph, weights = torch._C._jit_pass_lower_graph(traced.graph, traced._c)
    torch._C._jit_pass_lower_all_tuples(graph)
    return convert_graph(graph), [*inputs, *weights]

"""The subgraph of a TorchScript group."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch

from torchmdla.capture.subgraph import Step
from torchmdla.importer import ImportedGraph, Record, import_graph


class ScriptSubgraph:
    """A ``torch::jit::Graph`` as a :class:`~torchmdla.capture.subgraph.Subgraph`."""

    def __init__(self, graph: torch._C.Graph) -> None:
        self._graph = graph

    @property
    def outputs(self) -> Sequence[str]:
        return [value.debugName() for value in self._graph.outputs()]

    def steps(self) -> Iterator[Step]:
        for node in self._graph.nodes():
            inputs, outputs = ([value.debugName() for value in values] for values in (node.inputs(), node.outputs()))
            yield Step(node.kind(), inputs, outputs, is_constant=node.kind() == "prim::Constant")

    def import_program(self, record: Record, parameters: Collection[int], whole: Collection[str] = ()) -> ImportedGraph:
        return import_graph(self._graph, record, parameters, whole)

    def constant(self, index: int) -> object:
        return list(self._graph.nodes())[index].output().toIValue()

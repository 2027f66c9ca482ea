"""Subgraph of a TorchScript group."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from torchmdla.capture.subgraph import Call, Subgraph
from torchmdla.importer import DEFAULT_OPTIONS, ImportedGraph, ImportOptions, Record, import_graph
from torchmdla.importer.graph import argument_names, name_of
from torchmdla.importer.interpreter import Run
from torchmdla.importer.packed_weights import unpack_weights
from torchmdla.importer.sources import source_of

if TYPE_CHECKING:
    from torchmdla.capture.symbolic.run import SymbolicRun

# Nodes that are copied to each use of their results.
_NO_CALLS = frozenset({"prim::Constant", "prim::ListConstruct"})


class ScriptSubgraph:
    """Adapter of a ``torch::jit::Graph`` to :class:`~torchmdla.capture.subgraph.Subgraph`."""

    def __init__(self, graph: torch._C.Graph) -> None:
        self._graph = graph

    @cached_property
    def _nodes(self) -> Sequence[torch._C.Node]:
        """Return the graph's nodes by number. The list is made once, because a program has hundreds of constants."""
        return list(self._graph.nodes())

    @property
    def written(self) -> Mapping[int, int]:
        return {}

    @property
    def outputs(self) -> Sequence[str]:
        return [value.debugName() for value in self._graph.outputs()]

    def run_symbolic(self, run: SymbolicRun, record: Record) -> Mapping[str, Any]:
        interpreter = _SymbolicInterpreter(run)
        interpreter.run(self._graph, [run.input(record[value.debugName()]) for value in self._graph.inputs()])
        return interpreter.seen

    def calls(self, record: Record) -> Iterator[Call]:
        for number, node in enumerate(self._nodes):
            if node.kind() in _NO_CALLS:
                continue
            inputs = [record[value.debugName()] for value in node.inputs()]
            results = [record[value.debugName()] for value in node.outputs()]
            yield Call.of(number, name_of(node), dict(zip(argument_names(node), inputs, strict=False)), results)

    def source(self, number: int) -> str:
        return source_of(self._nodes[number])

    def extract_call(self, number: int, record: Record) -> tuple[Subgraph, Record]:
        graph: Any = torch._C.Graph()
        copies: dict[str, torch._C.Value] = {}

        def copy(value: torch._C.Value) -> torch._C.Value:
            name, producer = value.debugName(), value.node()
            if name not in copies:
                is_copied = producer.kind() in _NO_CALLS
                clone = graph.appendNode(graph.createClone(producer, copy)).output() if is_copied else graph.addInput()
                clone.setType(value.type())
                copies[name] = clone
            return copies[name]

        node = self._nodes[number]
        for value, clone in zip(node.outputs(), graph.appendNode(graph.createClone(node, copy)).outputs(), strict=True):
            copies[value.debugName()] = clone
            graph.registerOutput(clone)
        return ScriptSubgraph(graph), {clone.debugName(): record[name] for name, clone in copies.items()}

    def import_program(
        self, record: Record, parameters: Collection[int], options: ImportOptions = DEFAULT_OPTIONS
    ) -> ImportedGraph:
        return import_graph(self._graph, record, parameters, options)

    def constant(self, index: int) -> object:
        value = self._nodes[index].output().toIValue()
        packed = unpack_weights(value)
        return value if packed is None else packed.tensors


class _SymbolicInterpreter(Run):
    def __init__(self, run: SymbolicRun) -> None:
        super().__init__()
        self._run = run

    def call(self, schema: Any, arguments: Sequence[Any]) -> Any:
        return self._run.call(schema, arguments)

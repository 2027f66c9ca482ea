"""Subgraph of a TorchScript group."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchmdla.capture.subgraph import Call, Subgraph
from torchmdla.importer import DEFAULT_OPTIONS, ImportedGraph, ImportOptions, Record, import_graph
from torchmdla.importer.interpreter import Run
from torchmdla.importer.packed_weights import unpack_weights
from torchmdla.importer.schemas import find_schema
from torchmdla.script.ir import Graph

if TYPE_CHECKING:
    from torchmdla.capture.symbolic.run import SymbolicRun

# Nodes that are copied to each use of their results.
_NO_CALLS = frozenset({"prim::Constant", "prim::ListConstruct"})


class ScriptSubgraph:
    """Adapter of a TorchScript graph to :class:`~torchmdla.capture.subgraph.Subgraph`."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @property
    def written(self) -> Mapping[int, int]:
        return {}

    @property
    def outputs(self) -> Sequence[str]:
        return [value.name for value in self._graph.outputs]

    def run_symbolic(self, run: SymbolicRun, record: Record) -> Mapping[str, Any]:
        interpreter = _SymbolicInterpreter(run)
        interpreter.run(self._graph, [run.input(record[value.name]) for value in self._graph.inputs])
        return interpreter.by_name()

    def calls(self, record: Record) -> Iterator[Call]:
        for number, node in enumerate(self._graph.nodes):
            if node.op in _NO_CALLS:
                continue
            inputs = [record[value.name] for value in node.inputs]
            results = [record[value.name] for value in node.outputs]
            schema = find_schema(node.op)
            names = map(str, range(len(inputs))) if schema is None else (item.name for item in schema.arguments)
            yield Call.of(number, node.op, dict(zip(names, inputs, strict=False)), results)

    def source(self, number: int) -> str:
        return self._graph.nodes[number].source

    def extract_call(self, number: int, record: Record) -> tuple[Subgraph, Record]:
        node = self._graph.nodes[number]
        nodes, needed = [node], dict.fromkeys(node.inputs)
        for before in reversed(self._graph.nodes[:number]):
            if before.op in _NO_CALLS and before.outputs[0] in needed:
                nodes.insert(0, before)
                del needed[before.outputs[0]]
                needed |= dict.fromkeys(before.inputs)
        graph = Graph(list(needed), nodes, node.outputs)
        values = [*graph.inputs, *(value for part in nodes for value in part.outputs)]
        return ScriptSubgraph(graph), {value.name: record[value.name] for value in values}

    def import_program(
        self, record: Record, parameters: Collection[int], options: ImportOptions = DEFAULT_OPTIONS
    ) -> ImportedGraph:
        return import_graph(self._graph, record, parameters, options)

    def constant(self, index: int) -> object:
        value = self._graph.nodes[index].attributes["value"]
        packed = unpack_weights(value)
        return value if packed is None else packed.tensors


class _SymbolicInterpreter(Run):
    def __init__(self, run: SymbolicRun) -> None:
        super().__init__()
        self._run = run

    def call(self, schema: Any, arguments: Sequence[Any]) -> Any:
        return self._run.call(schema, arguments)

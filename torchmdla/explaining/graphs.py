"""Graph of a model: its operators outside of groups, its groups, and the operators of each group."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from torchmdla import _C
from torchmdla.explaining.profile import base_of
from torchmdla.importer.fx import name_of_call, source_of_node
from torchmdla.importer.script_graph import convert_graph
from torchmdla.report.explanation import Graph, Operator
from torchmdla.script import ir

# The results of operators that form a value without further computation.
Values = tuple[tuple[int, int], ...]

_GROUP = "mdla::CompilationGroup"


def graph_of_group(subgraph: Any, weights: Collection[int]) -> tuple[Graph, Mapping[int, int]]:
    """Return the operators of a group, and the numbers of its nodes → those of their operators.

    ``weights`` are the numbers of the inputs that are left out.
    """
    reader: _ScriptReader | _FxReader
    if isinstance(subgraph, torch._C.Graph):
        reader = _ScriptReader()
        results = reader.read(convert_graph(subgraph))
    else:
        reader = _FxReader({})
        results = reader.read(subgraph.module.graph)
    left = (
        replace(item, inputs=tuple(value for value in item.inputs if value[0] >= 0 or value[1] not in weights))
        for item in reader.operators
    )
    return Graph(tuple(left), results), reader.numbers


def graph_of_script(graph: torch._C.Graph, groups: Sequence[_C.GroupReport]) -> Graph:
    """Return the graph of an optimised TorchScript graph.

    ``groups`` are the groups that it calls, in order.
    """
    reader = _ScriptReader()
    results = reader.read(convert_graph(graph))
    names = _names_of_groups([subgraph for _, subgraph in reader.groups], groups)
    for (number, _), name in zip(reader.groups, names, strict=True):
        reader.operators[number] = replace(reader.operators[number], op=name or "a group", group=name)
    return Graph(tuple(reader.operators), results)


def graph_of_fx(groups: Sequence[_C.GroupReport]) -> Graph | None:
    """Return the FX graph that contains ``groups``, or None if they are not in one graph.

    A model with Python code between its graphs does not have one graph.
    """
    subgraphs = [report["subgraph"] for report in groups]
    references = {getattr(subgraph, "outer", None) for subgraph in subgraphs}
    graphs = [outer for reference in references if reference and (outer := reference())]
    if len(references) != 1 or not graphs:
        return None
    reader = _FxReader({id(report["subgraph"]): report["name"] for report in groups})
    results = reader.read(graphs[0])
    return Graph(tuple(reader.operators), results)


def graph_of_calls(events: Sequence[tuple[str, float]], groups: Collection[str]) -> Graph:
    """Return the sequence of operators that a call was observed to run, from their names and seconds."""
    operators = [
        Operator(name, "", ((number - 1, 0),), seconds, name if name in groups else "")
        for number, (name, seconds) in enumerate(events)
    ]
    return Graph(tuple(operators), ((len(operators) - 1, 0),), is_sequence=True)


def with_times(graph: Graph, events: Sequence[tuple[str, float]], group_seconds: Mapping[str, float]) -> Graph:
    """Return the graph with the times of groups and operators.

    An operator has its times in ``events`` one by one if it ran as often as it occurs in the graph, else their mean.
    """
    seen: dict[str, list[float]] = {}
    for name, seconds in events:
        seen.setdefault(name, []).append(seconds)
    placed = Counter(base_of(item.op) for item in graph.operators if not item.group)
    next_of: dict[str, Iterator[float]] = {}
    for name, spent in seen.items():
        exact = len(spent) == placed[name]
        next_of[name] = iter(spent if exact else [sum(spent) / len(spent)] * placed[name])

    def seconds_of(item: Operator) -> float:
        return group_seconds.get(item.group, 0.0) if item.group else next(next_of.get(base_of(item.op), iter(())), 0.0)

    return replace(graph, operators=tuple(replace(item, seconds=seconds_of(item)) for item in graph.operators))


class _Reader:
    """Collector of operators.

    ``numbers`` maps the positions of nodes in their graph to the numbers of their operators.
    """

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.numbers: dict[int, int] = {}

    def add(self, op: str, source: str, inputs: Sequence[Values], group: str = "") -> int:
        """Add an operator and return its number."""
        flat = tuple(dict.fromkeys(value for values in inputs for value in values))
        self.operators.append(Operator(op, source, flat, group=group))
        return len(self.operators) - 1


# Nodes that only pack or unpack values.
_FORWARDING_NODES = frozenset(("prim::ListConstruct", "prim::TupleConstruct", "prim::ListUnpack", "prim::TupleUnpack"))


class _ScriptReader(_Reader):
    """Reader of the operators with tensors as operands or results.

    A branch or loop is an operator, and the operators in it depend on it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[tuple[int, ir.Graph]] = []
        self._values: dict[ir.Value, Values] = {}

    def read(self, graph: ir.Graph) -> Values:
        inputs = (value for value in graph.inputs if value.type.kind != "Class")
        for place, value in enumerate(inputs):
            self._define([value], ((-1, place),))
        return self._read(graph, ())

    def _read(self, block: ir.Block, within: Values) -> Values:
        for place, node in enumerate(block.nodes):
            number = self._node(node, within)
            if number is not None and not within:
                self.numbers[place] = number
        return tuple(item for value in block.outputs for item in self._values.get(value, ()))

    def _node(self, node: ir.Node, within: Values) -> int | None:
        inputs = [self._values.get(value, ()) for value in node.inputs]
        if node.op in _FORWARDING_NODES:
            self._define(node.outputs, tuple(value for values in inputs for value in values))
            return None
        if not _has_tensors(node):
            return None
        number = self.add(node.op, node.source, [*inputs, within])
        if isinstance(graph := node.attributes.get("Subgraph"), ir.Graph) and node.op == _GROUP:
            self.groups.append((number, graph))
        for place, output in enumerate(node.outputs):
            self._values[output] = ((number, place),) if _is_of_tensors(output.type) else ()
        for inner in node.blocks:
            self._define(inner.inputs, ((number, 0),))
            self._read(inner, ((number, 0),))
            # The first result of a loop's body is the condition.
            returned = inner.outputs[-len(node.outputs) :] if node.outputs else []
            for output, value in zip(node.outputs, returned, strict=True):
                self._values[output] = tuple(dict.fromkeys((*self._values[output], *self._values.get(value, ()))))
        return number

    def _define(self, values: Sequence[ir.Value], made_of: Values) -> None:
        for value in values:
            self._values[value] = made_of if _is_of_tensors(value.type) else ()


def _has_tensors(node: ir.Node) -> bool:
    if node.op in ("prim::Constant", "prim::GetAttr"):
        return False
    if any(_is_of_tensors(value.type) for value in node.outputs):
        return True
    return any(_has_tensors(inner) for block in node.blocks for inner in block.nodes)


def _is_of_tensors(kind: ir.Type) -> bool:
    return kind.kind == "Tensor" or (kind.kind in _CONTAINERS and any(map(_is_of_tensors, kind.arguments)))


_CONTAINERS = frozenset(("List", "Optional", "Tuple", "NamedTuple"))


class _FxReader(_Reader):
    """Reader of FX graphs.

    ``groups`` maps the ids of subgraphs to the names of their groups.
    """

    def __init__(self, groups: Mapping[int, str]) -> None:
        super().__init__()
        self._groups = groups

    def read(self, graph: fx.Graph) -> Values:
        values: dict[fx.Node, Values] = {}

        def of(argument: Any) -> list[Values]:
            sources: list[Values] = []
            fx.map_arg(argument, lambda node: sources.append(values.get(node, ())))
            return sources

        inputs = 0
        results: Values = ()
        for place, node in enumerate(graph.nodes):
            if node.op == "placeholder":
                values[node] = ((-1, inputs),)
                inputs += 1
            elif node.op == "output":
                results = tuple(value for sources in of(node.args) for value in sources)
            elif node.op == "call_function" and node.target is operator.getitem:
                values[node] = _element(values.get(node.args[0], ()), node.args[1])  # type: ignore[arg-type]
            elif node.op == "call_function" and isinstance(node.target, _C.Group | torch._ops.OpOverload):
                name = self._groups.get(id(getattr(node.target, "subgraph", None)), "")
                weights = node.target.parameters if isinstance(node.target, _C.Group) else []
                taken = [argument for index, argument in enumerate(node.args) if index not in weights]
                number = self.add(name or name_of_call(node), source_of_node(node), of((taken, node.kwargs)), name)
                values[node] = ((number, 0),)
                self.numbers[place] = number
            else:
                values[node] = tuple(value for sources in of((node.args, node.kwargs)) for value in sources)
        return results


def _element(values: Values, place: Any) -> Values:
    return ((values[0][0], place),) if len(values) == 1 and isinstance(place, int) and values[0][0] >= 0 else values


def _names_of_groups(graphs: Sequence[ir.Graph], groups: Sequence[_C.GroupReport]) -> list[str]:
    """Return the name of the group in ``groups`` that each graph belongs to.

    A group has a copy of its graph. Each graph in order gets the remaining group with the most operators in common.
    """
    left = {
        report["name"]: _kinds(convert_graph(report["subgraph"]))
        for report in groups
        if not hasattr(report["subgraph"], "outer")
    }
    names = []
    for graph in graphs:
        counts = _kinds(graph)
        common = {name: (counts & kinds).total() for name, kinds in left.items()}
        names.append(max(common, key=common.__getitem__, default=""))
        left.pop(names[-1], None)
    return names


def _kinds(graph: ir.Graph) -> Counter[str]:
    return Counter(node.kind for node in graph.walk() if node.op != "prim::Constant")

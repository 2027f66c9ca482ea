"""The graph of a model: its operators outside of groups, its groups, and the operators of these."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from torchmdla import _C
from torchmdla.importer.fx import name_of_call, source_of_node
from torchmdla.importer.graph import name_of
from torchmdla.importer.sources import source_of
from torchmdla.report.explanation import Graph, Operator

# The results of operators that a value is, or is made of without computing.
Values = tuple[tuple[int, int], ...]

_GROUP = "mdla::CompilationGroup"


def graph_of_group(subgraph: Any, weights: Collection[int]) -> tuple[Graph, Mapping[int, int]]:
    """The operators of a group, and the numbers of its nodes → those of their operators. ``weights``: the numbers of
    inputs that are left out."""
    reader: _ScriptReader | _FxReader
    if isinstance(subgraph, torch._C.Graph):
        reader = _ScriptReader()
        results = reader.read(subgraph)
    else:
        reader = _FxReader({})
        results = reader.read(subgraph.module.graph)
    left = (
        replace(one, inputs=tuple(value for value in one.inputs if value[0] >= 0 or value[1] not in weights))
        for one in reader.operators
    )
    return Graph(tuple(left), results), reader.numbers


def graph_of_script(graph: torch._C.Graph, groups: Sequence[_C.GroupReport]) -> Graph:
    """Of an optimised graph of TorchScript. ``groups`` are those that it calls, in order."""
    reader = _ScriptReader()
    results = reader.read(graph)
    names = _names_of_groups([found for _, found in reader.groups], groups)
    for (number, _), name in zip(reader.groups, names, strict=True):
        reader.operators[number] = replace(reader.operators[number], op=name or "a group", group=name)
    return Graph(tuple(reader.operators), results)


def graph_of_fx(groups: Sequence[_C.GroupReport]) -> Graph | None:
    """Of the FX graph that ``groups`` stand in; None where they are not in one: with Python between its graphs a model
    has no graph of its own."""
    subgraphs = [report["subgraph"] for report in groups]
    references = {getattr(subgraph, "outer", None) for subgraph in subgraphs}
    graphs = [outer for reference in references if reference and (outer := reference())]
    if len(references) != 1 or not graphs:
        return None
    reader = _FxReader({id(report["subgraph"]): report["name"] for report in groups})
    results = reader.read(graphs[0])
    return Graph(tuple(reader.operators), results)


def graph_of_calls(events: Sequence[tuple[str, float]], groups: Collection[str]) -> Graph:
    """Of what a call was seen to run: names and seconds."""
    operators = [
        Operator(name, "", ((number - 1, 0),), seconds, name if name in groups else "")
        for number, (name, seconds) in enumerate(events)
    ]
    return Graph(tuple(operators), ((len(operators) - 1, 0),), is_sequence=True)


def timed(graph: Graph, events: Sequence[tuple[str, float]], group_seconds: Mapping[str, float]) -> Graph:
    """The graph with times: those of groups, and of operators what they took in ``events``, one by one where they ran
    as often as they stand there, else their mean."""
    seen: dict[str, list[float]] = {}
    for name, seconds in events:
        seen.setdefault(name, []).append(seconds)
    placed = Counter(_base(one.op) for one in graph.operators if not one.group)
    next_of: dict[str, Iterator[float]] = {}
    for name, spent in seen.items():
        exact = len(spent) == placed[name]
        next_of[name] = iter(spent if exact else [sum(spent) / len(spent)] * placed[name])

    def seconds_of(one: Operator) -> float:
        return group_seconds.get(one.group, 0.0) if one.group else next(next_of.get(_base(one.op), iter(())), 0.0)

    return replace(graph, operators=tuple(replace(one, seconds=seconds_of(one)) for one in graph.operators))


def _base(op: str) -> str:
    return op.partition(".")[0]


class _Reader:
    """Collects operators. ``numbers``: the places of nodes in their graph → the numbers of their operators."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.numbers: dict[int, int] = {}

    def add(self, op: str, source: str, inputs: Sequence[Values], group: str = "") -> int:
        """The number of a new operator."""
        flat = tuple(dict.fromkeys(value for values in inputs for value in values))
        self.operators.append(Operator(op, source, flat, group=group))
        return len(self.operators) - 1


# What makes values of others without computing with them.
_PASSED_ON = frozenset(("prim::ListConstruct", "prim::TupleConstruct", "prim::ListUnpack", "prim::TupleUnpack"))


class _ScriptReader(_Reader):
    """Operators that make or take tensors; a branch or loop is an operator, and what is in it follows from it."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[tuple[int, torch._C.Graph]] = []
        self._values: dict[str, Values] = {}

    def read(self, graph: Any) -> Values:
        given = (value for value in graph.inputs() if not isinstance(value.type(), torch._C.ClassType))
        for place, value in enumerate(given):
            self._define([value], ((-1, place),))
        return self._read(graph, ())

    def _read(self, block: Any, within: Values) -> Values:
        for place, node in enumerate(block.nodes()):
            number = self._node(node, within)
            if number is not None and not within:
                self.numbers[place] = number
        return tuple(one for value in block.outputs() for one in self._values.get(value.debugName(), ()))

    def _node(self, node: Any, within: Values) -> int | None:
        outputs = list(node.outputs())
        inputs = [self._values.get(value.debugName(), ()) for value in node.inputs()]
        if node.kind() in _PASSED_ON:
            self._define(outputs, tuple(value for values in inputs for value in values))
            return None
        if not _has_tensors(node):
            return None
        is_group = node.kind() == _GROUP
        number = self.add(name_of(node), source_of(node), [*inputs, within])
        if is_group:
            self.groups.append((number, node.g("Subgraph")))
        for place, output in enumerate(outputs):
            self._values[output.debugName()] = ((number, place),) if _is_of_tensors(output.type()) else ()
        blocks = [] if is_group else list(node.blocks())
        for inner in blocks:
            self._define(inner.inputs(), ((number, 0),))
            self._read(inner, ((number, 0),))
            # A loop's body returns first whether to go on.
            returned = list(inner.outputs())[-len(outputs) :] if outputs else []
            for output, value in zip(outputs, returned, strict=True):
                found = self._values.get(value.debugName(), ())
                known = self._values[output.debugName()]
                self._values[output.debugName()] = tuple(dict.fromkeys((*known, *found)))
        return number

    def _define(self, values: Any, made_of: Values) -> None:
        for value in values:
            self._values[value.debugName()] = made_of if _is_of_tensors(value.type()) else ()


def _has_tensors(node: Any) -> bool:
    if node.kind() in ("prim::Constant", "prim::GetAttr"):
        return False
    if any(_is_of_tensors(value.type()) for value in node.outputs()):
        return True
    return any(_has_tensors(inner) for block in node.blocks() for inner in block.nodes())


def _is_of_tensors(kind: Any) -> bool:
    if isinstance(kind, torch._C.TensorType):
        return True
    if isinstance(kind, torch._C.TupleType):
        return any(map(_is_of_tensors, kind.elements()))
    return isinstance(kind, torch._C.ListType | torch._C.OptionalType) and _is_of_tensors(kind.getElementType())


class _FxReader(_Reader):
    """``groups``: the names of groups by their subgraphs' identities."""

    def __init__(self, groups: Mapping[int, str]) -> None:
        super().__init__()
        self._groups = groups

    def read(self, graph: fx.Graph) -> Values:
        values: dict[fx.Node, Values] = {}

        def of(argument: Any) -> list[Values]:
            found: list[Values] = []
            fx.map_arg(argument, lambda node: found.append(values.get(node, ())))
            return found

        inputs = 0
        results: Values = ()
        for place, node in enumerate(graph.nodes):
            if node.op == "placeholder":
                values[node] = ((-1, inputs),)
                inputs += 1
            elif node.op == "output":
                results = tuple(value for found in of(node.args) for value in found)
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
                values[node] = tuple(value for found in of((node.args, node.kwargs)) for value in found)
        return results


def _element(values: Values, place: Any) -> Values:
    return ((values[0][0], place),) if len(values) == 1 and isinstance(place, int) and values[0][0] >= 0 else values


def _names_of_groups(found: Sequence[torch._C.Graph], groups: Sequence[_C.GroupReport]) -> list[str]:
    """Which of ``groups`` each graph is of, whose copy a group has: in order, those that have most operators in
    common."""
    left = {report["name"]: _kinds(report["subgraph"]) for report in groups if not hasattr(report["subgraph"], "outer")}
    names = []
    for graph in found:
        own = _kinds(graph)
        common = {name: (own & kinds).total() for name, kinds in left.items()}
        names.append(max(common, key=common.__getitem__, default=""))
        left.pop(names[-1], None)
    return names


def _kinds(block: Any) -> Counter[str]:
    found = Counter(node.kind() for node in block.nodes() if node.kind() != "prim::Constant")
    for node in block.nodes():
        for inner in node.blocks():
            found += _kinds(inner)
    return found

"""Groups of an FX graph, and their subgraphs: how they run by eager operators, and what such a run teaches."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from torchmdla import _C
from torchmdla.capture.options import Options
from torchmdla.capture.subgraph import Step
from torchmdla.importer import ImportedGraph, Record
from torchmdla.importer.fx import attribute, import_fx, name_of_call
from torchmdla.importer.types import recorded


def make_group(subgraph: FxSubgraph, name: str, options: Options, parameters: Collection[int]) -> _C.Group:
    """A group that computes ``subgraph``; ``parameters`` are the indices of inputs that are weights."""
    return _C.Group(
        subgraph,
        name,
        options.device_name(),
        list(parameters),
        len(subgraph.module.graph.find_nodes(op="placeholder")),
        strict=options.strict,
        background=options.background,
        max_specialisations=options.max_specialisations,
    )


class FxSubgraph:
    """The computation of one group: a flat graph of ATen calls that returns a tuple.

    A :class:`~torchmdla.capture.subgraph.Subgraph`, and what ``_C.Group`` runs where there is no compiled code.

    Args:
        root: holds the constants.
        graph: its placeholders are the group's inputs, its ``get_attr`` nodes 0-d constants of ``root``.
    """

    def __init__(self, root: torch.nn.Module, graph: fx.Graph) -> None:
        self.module = fx.GraphModule(root, graph)

    def run(self, *inputs: Any) -> Sequence[Any]:
        """The results by eager operators."""
        results: Sequence[Any] = self.module.forward(*inputs)
        return results

    def run_and_record(self, *inputs: Any) -> tuple[Sequence[Any], Record]:
        """The results by eager operators, run node by node, and type or value of every value on the way."""
        recorder = _Recorder(self.module)
        return recorder.run(*inputs), recorder.record

    @property
    def outputs(self) -> Sequence[str]:
        results: Any = self.module.graph.output_node().args[0]
        return [result.name for result in results]

    def steps(self) -> Iterator[Step]:
        for node in self.module.graph.nodes:
            if node.op not in ("placeholder", "output"):
                op = _ON_NUMBERS.get(node.target) or name_of_call(node).partition(".")[0]
                inputs = [argument.name for argument in node.all_input_nodes]
                yield Step(op, inputs, [node.name], is_constant=node.op == "get_attr")

    def import_program(self, record: Record, parameters: Collection[int], whole: Collection[str] = ()) -> ImportedGraph:
        return import_fx(self.module.graph, record, parameters, whole)

    def constant(self, index: int) -> object:
        return attribute(list(self.module.graph.nodes)[index])


# Arithmetic of Python by the names of TorchScript.
_ON_NUMBERS: Mapping[Any, str] = {
    operator.mod: "aten::remainder",
    operator.eq: "aten::eq",
    operator.ne: "aten::ne",
}


class _Recorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=True)
        self.record: dict[str, object] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op != "output":
            self.record[n.name] = recorded(value)
        return value

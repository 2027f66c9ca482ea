"""Groups of an FX graph: a subgraph that runs by eager operators, and what the compiler learns from such a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx

from torchmdla.importer import ImportedGraph, Record, TensorMeta
from torchmdla.importer.fx import attribute, import_fx


class FxSubgraph:
    """The computation of one group: a flat graph of ATen calls that returns a tuple.

    Args:
        graph: its placeholders are the group's inputs, its ``get_attr`` nodes 0-d constants of ``root``.
        root: holds the constants.
    """

    def __init__(self, root: torch.nn.Module, graph: fx.Graph) -> None:
        self.module = fx.GraphModule(root, graph)

    def run(self, *inputs: Any) -> Sequence[Any]:
        """The results by eager operators."""
        results: Sequence[Any] = self.module(*inputs)
        return results

    def run_and_record(self, *inputs: Any) -> tuple[Sequence[Any], Record]:
        """The results by eager operators, run node by node, and type or value of every value on the way."""
        recorder = _Recorder(self.module)
        return recorder.run(*inputs), recorder.record

    def import_program(self, record: Record, parameters: Collection[int]) -> ImportedGraph:
        """The program of this subgraph for inputs like those recorded.

        Raises:
            CompileError: it cannot be a program.
        """
        return import_fx(self.module.graph, record, parameters)

    def constant(self, index: int) -> object:
        """What node number ``index``, a constant, holds."""
        return attribute(list(self.module.graph.nodes)[index])


class _Recorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=True)
        self.record: dict[str, object] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op != "output":
            self.record[n.name] = _described(value)
        return value


def _described(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return TensorMeta.of(value)
    if isinstance(value, list | tuple):
        return [_described(item) for item in value]
    return value

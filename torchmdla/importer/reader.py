"""Interface between readers of graphs and the builders that they call.

A reader (``graph.py`` for TorchScript, ``fx.py`` for FX) walks a flat graph once and passes each node to a
:class:`GraphBuilder`. The reader handles everything except operators: constants, lists, elements, and the order of
arguments. It also determines places in the user's program, and attributes errors to nodes. A builder makes a program
(``builder.py``), a function of the Torch dialect for humans (``function.py``), or a function of the aten dialect
(``torchmdla/aten/builder.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch

from torchmdla.errors import CompileError
from torchmdla.importer.operands import Operand
from torchmdla.importer.types import Record

ResultT = TypeVar("ResultT", covariant=True)


class GraphBuilder(Protocol[ResultT]):
    """Consumer of a graph's nodes. The values have the names of a record."""

    def enter(self, op: str, source: str) -> object:
        """Begin the next node, ``op`` at ``source`` (``file:line``) in the user's program."""

    def input(self, name: str) -> None:
        """Add the graph's next input."""

    def constant(self, index: int, name: str, value: object) -> None:
        """Add a constant, which node ``index`` holds."""

    def operand(self, name: str) -> Operand:
        """Return the operand of the value ``name``."""

    def define(self, name: str, value: Operand) -> None:
        """Define the value ``name`` as ``value``."""

    def recorded(self, name: str) -> object:
        """Return the record of the value ``name``.

        Raises:
            CompileError: If the record lacks the value.
        """

    def is_recorded(self, op: str) -> bool:
        """Return whether the results of ``op`` come from the record, so that its operands need not be defined."""

    def node(
        self, op: str, schema: torch._C.FunctionSchema | None, operands: Sequence[Operand], metas: Sequence[object]
    ) -> Sequence[Operand]:
        """Return the results of a node that computes something.

        Args:
            op: the operator, ``"aten::add.Tensor"``, or the name of a Python function.
            schema: the schema of an operator of PyTorch's registry, or None.
            operands: in the order of ``schema``.
            metas: the recorded type or value of each result.

        Raises:
            CompileError: If the node cannot be expressed.
        """

    def finish(self, outputs: Sequence[str]) -> ResultT:
        """Return the finished object, which returns the values ``outputs``."""


class Values:
    """Common state of simple builders: the record, and the operand of each value."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._values: dict[str, Operand] = {}

    def operand(self, name: str) -> Operand:
        return self._values[name]

    def define(self, name: str, value: Operand) -> None:
        self._values[name] = value

    def recorded(self, name: str) -> object:
        if name not in self._record:
            raise CompileError(f"the record lacks value %{name}")
        return self._record[name]

    def is_recorded(self, op: str) -> bool:
        return False

"""What a reader of graphs tells, and who listens.

A reader (``graph.py`` of TorchScript, ``fx.py`` of FX) walks a flat graph once and tells a :class:`GraphBuilder` of
each node. It handles what is no operator: constants, lists that are put together and taken apart, elements, the order
of arguments, places in the user's program, and whom to blame. A builder makes a program (``program.py``), a function
of the Torch dialect for people (``function.py``), or one of the aten dialect (``torchmdla/aten/graphs.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch

from torchmdla.errors import CompileError
from torchmdla.importer.operands import Operand
from torchmdla.importer.types import Record

Made = TypeVar("Made", covariant=True)


class GraphBuilder(Protocol[Made]):
    """Makes something of a graph whose values have the names that a record has."""

    def enter(self, op: str, source: str) -> object:
        """Begins the next node, ``op`` at ``source`` (``file:line``) in the user's program."""

    def input(self, name: str) -> None:
        """The graph's next input."""

    def constant(self, index: int, name: str, value: object) -> None:
        """A constant, which node ``index`` holds."""

    def operand(self, name: str) -> Operand:
        """What the value ``name`` has become."""

    def define(self, name: str, value: Operand) -> None:
        """The value ``name`` is ``value``."""

    def seen(self, name: str) -> object:
        """What the record has of the value ``name``.

        Raises:
            CompileError: nothing.
        """

    def is_seen(self, op: str) -> bool:
        """Whether the results of ``op`` are those of the record, so that its operands need not be there."""

    def node(
        self, op: str, schema: torch._C.FunctionSchema | None, operands: Sequence[Operand], metas: Sequence[object]
    ) -> Sequence[Operand]:
        """The results of a node that computes something.

        Args:
            op: the operator, ``"aten::add.Tensor"``, or the name of a function of Python.
            schema: of an operator of PyTorch's registry.
            operands: in the order of ``schema``.
            metas: what was seen of each result.

        Raises:
            CompileError: it cannot be expressed.
        """

    def finish(self, outputs: Sequence[str]) -> Made:
        """What returns the values ``outputs``."""


class Values:
    """What builders without a state of their own know: the record, and what every value has become."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._values: dict[str, Operand] = {}

    def operand(self, name: str) -> Operand:
        return self._values[name]

    def define(self, name: str, value: Operand) -> None:
        self._values[name] = value

    def seen(self, name: str) -> object:
        if name not in self._record:
            raise CompileError(f"the record lacks value %{name}")
        return self._record[name]

    def is_seen(self, op: str) -> bool:
        return False

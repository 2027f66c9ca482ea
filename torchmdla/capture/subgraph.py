"""What specialising a group asks of its subgraph, whatever kind of graph that is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torchmdla.importer import ImportedGraph, Record


@dataclass(frozen=True)
class Step:
    """One node: the op's name without overload (``"aten::add"``), and the names of the values it takes and makes."""

    op: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    is_constant: bool = False


class Subgraph(Protocol):
    """A flat functional graph."""

    @property
    def outputs(self) -> Sequence[str]:
        """The names of the values that it returns."""

    def steps(self) -> Iterator[Step]:
        """Its nodes in order."""

    def import_program(self, record: Record, parameters: Collection[int], whole: Collection[str] = ()) -> ImportedGraph:
        """The program for inputs like those recorded; ``parameters`` are the indices of inputs that are weights,
        ``whole`` the operators that it holds as themselves (:attr:`torchmdla.devices.Device.whole`).

        Raises:
            CompileError: it cannot be a program.
        """

    def constant(self, index: int) -> object:
        """What node number ``index``, a constant, holds."""

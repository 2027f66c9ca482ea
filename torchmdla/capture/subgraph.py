"""What specialising a group asks of its subgraph, whatever kind of graph that is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torchmdla.devices.device import Node, NodeTypes, TensorType
from torchmdla.importer import NOTHING, ImportedGraph, Record, TensorMeta, Wanted, dtype_name

if TYPE_CHECKING:
    from torchmdla.capture.symbolic import SymbolicRun


@dataclass(frozen=True)
class Call:
    """Node number ``number``, which calls an operator or what stands for one, as a run saw it."""

    number: int
    node: Node
    types: NodeTypes

    @classmethod
    def of(cls, number: int, op: str, arguments: Mapping[str, object], results: Sequence[object]) -> Call:
        """Arguments, by name, and results as a record has them."""
        types = {name: _type_of(value) for name, value in arguments.items()}
        tensors = {name: type_ for name, type_ in types.items() if type_ is not None}
        values = {name: value for name, value in arguments.items() if name not in tensors}
        return cls(number, Node(op, values), NodeTypes(tensors, tuple(map(_type_of, results))))


def _type_of(value: object) -> TensorType | tuple[TensorType | None, ...] | None:
    """The type of a recorded tensor, those of a list of tensors; None for everything else."""
    if isinstance(value, TensorMeta):
        return TensorType(dtype_name(value.dtype), tuple(value.shape))
    if isinstance(value, list | tuple) and any(isinstance(item, TensorMeta) for item in value):
        types = map(_type_of, value)
        return tuple(type_ if isinstance(type_, TensorType) else None for type_ in types)
    return None


class Subgraph(Protocol):
    """A flat functional graph."""

    @property
    def outputs(self) -> Sequence[str]:
        """The names of the values that it returns."""

    def run_symbolic(self, run: SymbolicRun, record: Record) -> Mapping[str, Any]:
        """Every value, by the names that ``record`` has, of a run on inputs like those recorded, but with the sizes of
        ``run``, which is entered."""

    def calls(self, record: Record) -> Iterator[Call]:
        """Its nodes that compute something, in order, with what ``record`` saw of them."""

    def source(self, number: int) -> str:
        """Where node number ``number`` stands in the user's program (``file:line``); empty when unknown."""

    def alone(self, number: int, record: Record) -> tuple[Subgraph, Record]:
        """Node number ``number`` as a subgraph, whose results are the node's, and what ``record`` saw of it."""

    def import_program(self, record: Record, parameters: Collection[int], wanted: Wanted = NOTHING) -> ImportedGraph:
        """The program for inputs like those recorded; ``parameters`` are the indices of inputs that are weights,
        ``wanted`` is what the device wants of it.

        Raises:
            CompileError: it cannot be a program.
        """

    def constant(self, index: int) -> object:
        """What node number ``index``, a constant, holds."""

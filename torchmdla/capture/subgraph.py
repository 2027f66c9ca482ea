"""Interface that specialisation of a group requires of its subgraph, for any kind of graph."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torchmdla.devices.device import Node, NodeTypes, TensorType
from torchmdla.importer import DEFAULT_OPTIONS, ImportedGraph, ImportOptions, Record, TensorMeta, dtype_name

if TYPE_CHECKING:
    from torchmdla.capture.symbolic.run import SymbolicRun


@dataclass(frozen=True)
class Call:
    """Node number ``number``, which calls an operator or an equivalent, with the types that a run recorded."""

    number: int
    node: Node
    types: NodeTypes

    @classmethod
    def of(cls, number: int, op: str, arguments: Mapping[str, object], results: Sequence[object]) -> Call:
        """Return the call with recorded ``arguments``, by name, and ``results``."""
        types = {name: _type_of(value) for name, value in arguments.items()}
        tensors = {name: type_ for name, type_ in types.items() if type_ is not None}
        values = {name: value for name, value in arguments.items() if name not in tensors}
        return cls(number, Node(op, values), NodeTypes(tensors, tuple(map(_type_of, results))))


def _type_of(value: object) -> TensorType | tuple[TensorType | None, ...] | None:
    """Return the type of a recorded tensor, or the types of a list of tensors; None for everything else."""
    if isinstance(value, TensorMeta):
        return TensorType(dtype_name(value.dtype), tuple(value.shape), tuple(value.strides))
    if isinstance(value, list | tuple) and any(isinstance(item, TensorMeta) for item in value):
        types = map(_type_of, value)
        return tuple(type_ if isinstance(type_, TensorType) else None for type_ in types)
    return None


class Subgraph(Protocol):
    """Flat functional graph."""

    @property
    def outputs(self) -> Sequence[str]:
        """Return the names of the graph's results."""

    @property
    def written(self) -> Mapping[int, int]:
        """Return the inputs that the group writes to, by the numbers of the outputs with their new values."""

    def run_symbolic(self, run: SymbolicRun, record: Record) -> Mapping[str, Any]:
        """Run the graph on inputs like those recorded, with the sizes of ``run``, and return every value.

        The values have the names of ``record``. ``run`` must be entered.
        """

    def calls(self, record: Record) -> Iterator[Call]:
        """Yield the nodes that compute something, in order, with their types in ``record``."""

    def source(self, number: int) -> str:
        """Return the location of node ``number`` in the user's program (``file:line``); empty if unknown."""

    def extract_call(self, number: int, record: Record) -> tuple[Subgraph, Record]:
        """Return node ``number`` as a subgraph whose results are the node's, with its part of ``record``."""

    def import_program(
        self, record: Record, parameters: Collection[int], options: ImportOptions = DEFAULT_OPTIONS
    ) -> ImportedGraph:
        """Return the program for inputs like those recorded.

        Args:
            record: type or value of every value, by name.
            parameters: indices of inputs that are weights.
            options: import options of the device.

        Raises:
            CompileError: the subgraph cannot be expressed as a program.
        """

    def constant(self, index: int) -> object:
        """Return the value of node ``index``, which is a constant."""


def calls_of(subgraph: Subgraph, record: Record) -> Iterator[tuple[int, Node, NodeTypes]]:
    """Yield the calls of a subgraph in the form that a :class:`torchmdla.devices.Composition` gets."""
    return ((call.number, call.node, call.types) for call in subgraph.calls(record))

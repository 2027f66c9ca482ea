"""Programs of the parts of a program, and the memory of the values that move between them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from torchmdla.compiler.program import Argument, Program, Result, Sample, Target
from torchmdla.compiler.sizes import NoPolynomial, Size, at, fit
from torchmdla.devices.heterogeneous import MEASURED
from torchmdla.devices.heterogeneous.graph import ProgramGraph
from torchmdla.devices.heterogeneous.placement import OPTION, Part
from torchmdla.errors import CompileError

# An argument or result of the program, by its number, or an intermediate value, by its number in the graph.
Source = tuple[Literal["argument", "result", "value"], int]


@dataclass(frozen=True)
class Piece:
    """Part with its program.

    Attributes:
        part: the part.
        program: its program.
        reads: sources of the program's arguments.
        writes: sources of its results.
        sizes: bytes of the arguments, then of the results.
    """

    part: Part
    program: Program
    reads: tuple[Source, ...]
    writes: tuple[Source, ...]
    sizes: tuple[int | Size, ...]

    @cached_property
    def argument_numbers(self) -> dict[int, int]:
        """Return the numbers of its arguments that are arguments of the whole program, with their numbers there."""
        return {place: number for place, (kind, number) in enumerate(self.reads) if kind == "argument"}

    @property
    def writes_results(self) -> bool:
        return any(kind == "result" for kind, _ in self.writes)

    @property
    def transferred(self) -> list[int | Size]:
        """Return the bytes of each tensor that moves to or from its device. Weights stay on the device."""
        arguments = self.program.arguments
        moves = [argument.role == "input" and argument.kind == "tensor" for argument in arguments]
        return [
            size for size, is_moved in zip(self.sizes, [*moves, *[True] * len(self.writes)], strict=True) if is_moved
        ]


class Cutter:
    """Cutter of a program, whose ``graphs`` are those of its samples, or its own."""

    def __init__(self, program: Program, graphs: Sequence[ProgramGraph]) -> None:
        self._program = program
        self._graphs = graphs
        self._targets = [Target(**fields) for fields in json.loads(program.target.features)]
        measured = json.loads(dict(program.options).get(MEASURED, "[]")) or [[]] * len(self._targets)
        common = tuple(pair for pair in program.options if pair[0] not in (OPTION, MEASURED))
        self._options = [(*common, *((name, value) for name, value in options)) for options in measured]
        if len({len(graph.calls) for graph in graphs}) > 1:
            raise CompileError("the calls of the program depend on the sizes")

    def pieces(self, parts: Sequence[Part]) -> list[Piece]:
        """Return the pieces of all parts, which are in the order in which they run.

        Raises:
            CompileError: a value that moves is not a tensor, or its sizes are not polynomials of the symbols.
        """
        last = len(parts) - 1
        return [self.piece(part, is_whole=last == 0, is_last=number == last) for number, part in enumerate(parts)]

    def piece(self, part: Part, is_whole: bool = False, is_last: bool = False) -> Piece:
        """Return the piece of one part.

        Args:
            part: the part.
            is_whole: whether it is the whole program.
            is_last: whether it runs last, and also returns the arguments that the program returns.

        Raises:
            CompileError: as for :meth:`pieces`.
        """
        program = replace(self._program, target=self._targets[part.device], options=self._options[part.device])
        if is_whole:
            reads: list[Source] = [("argument", number) for number in range(len(program.arguments))]
            writes: list[Source] = [("result", number) for number in range(len(program.results))]
            return Piece(part, program, tuple(reads), tuple(writes), self._sizes_of_program())
        places = [call.place for call in part.calls]
        cuts = [_Cut(graph, places, is_last) for graph in self._graphs]
        first = cuts[0]
        sizes = tuple(self._fit([cut.sizes[k] for cut in cuts]) for k in range(len(first.sizes)))
        if not program.symbols:
            program = replace(program, mlir=first.text, arguments=first.arguments, results=first.results)
        else:
            program = replace(
                program,
                arguments=tuple(
                    self._typical(arguments) for arguments in zip(*(c.arguments for c in cuts), strict=True)
                ),
                results=tuple(self._typical(results) for results in zip(*(c.results for c in cuts), strict=True)),
                samples=tuple(
                    Sample(sample.values, cut.text, cut.arguments, cut.results)
                    for sample, cut in zip(program.samples, cuts, strict=True)
                ),
            )
        return Piece(part, program, first.reads, first.writes, sizes)

    def _sizes_of_program(self) -> tuple[int | Size, ...]:
        values = [[*graph.arguments, *graph.results] for graph in self._graphs]
        sizes = [[graph.bytes_of(value) for value in row] for graph, row in zip(self._graphs, values, strict=True)]
        return tuple(map(self._fit, map(list, zip(*sizes, strict=True))))

    def _typical(self, at_samples: Sequence[Any]) -> Any:
        """Return an argument or result at the typical sizes, from those at the samples."""
        shapes = zip(*(item.shape for item in at_samples), strict=True)
        return replace(at_samples[0], shape=tuple(at(self._fit(sizes), self._program.symbols) for sizes in shapes))

    def _fit(self, numbers: Sequence[int]) -> int | Size:
        try:
            return fit([sample.values for sample in self._program.samples], numbers)
        except NoPolynomial as error:
            raise CompileError(f"sizes between devices are not sums and products of others: {error}") from None


class _Cut:
    """Part of one sample: its text, arguments and results, with sources and bytes."""

    def __init__(self, graph: ProgramGraph, places: Sequence[int], is_last: bool) -> None:
        calls = [graph.calls[place] for place in places]
        inside = {value for call in calls for operation in call.operations for value in operation.results}
        used = dict.fromkeys(value for call in graph.calls if call.place not in places for value in call.reads)
        self._results: dict[Any, int] = {}
        written: list[tuple[Source, Any]] = []
        for number, value in enumerate(graph.results):
            self._results.setdefault(value, number)
            if value in inside or (is_last and graph.producer(value) is None):
                written.append((("result", number), value))
        written += [(self._source(graph, value), value) for value in used if value in inside - set(graph.results)]
        self.text, values, arguments, results = graph.cut(calls, [value for _, value in written])
        self.arguments: tuple[Argument, ...] = tuple(arguments)
        self.results: tuple[Result, ...] = tuple(results)
        self.reads = tuple(self._source(graph, value) for value in values)
        self.writes = tuple(source for source, _ in written)
        self.sizes = [graph.bytes_of(value) for value in [*values, *(value for _, value in written)]]

    def _source(self, graph: ProgramGraph, value: Any) -> Source:
        if (number := graph.argument(value)) is not None:
            return "argument", number
        return ("result", self._results[value]) if value in self._results else ("value", graph.number(value))


def assign_slots(pieces: Sequence[Piece], num_arguments: int) -> tuple[list[int | Size], list[list[tuple[bool, int]]]]:
    """Return the bytes of the slots for intermediate values, and the buffers of each piece.

    A slot has values of the same size, one after the other. A buffer is a slot, after True, or the number of an
    argument or result of the whole program, which has ``num_arguments`` arguments.
    """
    last_use = {source: k for k, piece in enumerate(pieces) for source in piece.reads}
    slots: list[int | Size] = []
    free: list[int] = []
    slot_of: dict[Source, int] = {}
    for k, piece in enumerate(pieces):
        sizes = dict(zip(piece.writes, piece.sizes[len(piece.reads) :], strict=True))
        for source in piece.writes:
            if source[0] != "value":
                continue
            known = next((slot for slot in free if slots[slot] == sizes[source]), None)
            if known is None:
                slots.append(sizes[source])
                known = len(slots) - 1
            else:
                free.remove(known)
            slot_of[source] = known
        free += [slot_of[source] for source in slot_of if last_use[source] == k]

    def buffer(source: Source) -> tuple[bool, int]:
        kind, number = source
        return (True, slot_of[source]) if kind == "value" else (False, number + num_arguments * (kind == "result"))

    return slots, [list(map(buffer, (*piece.reads, *piece.writes))) for piece in pieces]

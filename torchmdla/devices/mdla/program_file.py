"""A compiled program with its weights as a file: versioned, checksummed, and refused before anything of it runs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from torchmdla.compiler.checksummed import Format
from torchmdla.devices.mdla.options import Options
from torchmdla.structures import structure_from


class DamagedProgram(ValueError):
    """A file holds no program, another version's, or one that was altered or cut short."""


_FORMAT = Format(
    magic=b"torchmdla-mdla\n",
    version=2,
    kind="a program of the mdla device",
    remedy="copy it anew, or write it with torchmdla.mdla.save of this version of torchmdla",
    error=DamagedProgram,
)


@dataclass(frozen=True)
class ProgramFile:
    """
    Attributes:
        binary: what the library's compiler wrote, the weights in it.
        inputs: shapes of the program's inputs.
        used: for each of the device's inputs the program's.
        outputs: shapes of the device's outputs.
        results: for each leaf of the results the device's output.
        structure: of the results, as ``torch.utils._pytree`` writes it.
        options: flags of the context by the name of their option; no library.
    """

    binary: bytes
    inputs: tuple[tuple[int, ...], ...]
    used: tuple[int, ...]
    outputs: tuple[tuple[int, ...], ...]
    results: tuple[int, ...]
    structure: str
    options: dict[str, str | int]

    def to_bytes(self) -> bytes:
        description = asdict(self)
        del description["binary"]
        return _FORMAT.seal(description, self.binary)

    @classmethod
    def from_bytes(cls, data: bytes) -> ProgramFile:
        """The inverse of :meth:`to_bytes`.

        Raises:
            DamagedProgram: see there.
        """
        return _FORMAT.open(data, cls._of)

    @classmethod
    def _of(cls, description: dict[str, Any], binary: bytes) -> ProgramFile:
        made = cls(
            binary,
            inputs=_shapes(description["inputs"]),
            used=tuple(description["used"]),
            outputs=_shapes(description["outputs"]),
            results=tuple(description["results"]),
            structure=description["structure"],
            options=description["options"],
        )
        _check_places(made.used, len(made.inputs))
        _check_places(made.results, len(made.outputs))
        leaves = structure_from(made.structure).num_leaves
        if leaves != len(made.results):
            raise ValueError(f"a structure of {leaves} results, of which there are {len(made.results)}")
        if Options.of(made.options).library:
            raise ValueError("a library, which is the user's to choose")
        return made


_MOST_ELEMENTS = 1 << 40


def _shapes(raw: Any) -> tuple[tuple[int, ...], ...]:
    shapes = tuple(map(tuple, raw))
    if any(type(size) is not int or size < 1 for shape in shapes for size in shape):
        raise ValueError("sizes that are no positive integers")
    if any(math.prod(shape) > _MOST_ELEMENTS for shape in shapes):
        raise ValueError("a tensor that is larger than any device")
    return shapes


def _check_places(places: tuple[int, ...], count: int) -> None:
    if any(type(place) is not int or not 0 <= place < count for place in places):
        raise ValueError(f"places that are none of {count}")

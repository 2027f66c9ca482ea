"""File of a compiled program with its weights: versioned, checksummed, and validated before use."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from torchmdla.compiler.checksummed import Format
from torchmdla.devices.mdla.options import Options
from torchmdla.structures import parse_structure


class DamagedProgram(ValueError):
    """Error for a file that is not a program, has another version, or was altered or truncated."""


_FORMAT = Format(
    magic=b"torchmdla-mdla\n",
    version=2,
    kind="a program of the mdla device",
    remedy="copy it anew, or write it with torchmdla.mdla.save of this version of torchmdla",
    error=DamagedProgram,
)


@dataclass(frozen=True)
class ProgramFile:
    """Content of a program file.

    Attributes:
        binary: the output of the library's compiler, including the weights.
        inputs: shapes of the program's inputs.
        used: for each input of the device, the index of the program's input.
        outputs: shapes of the device's outputs.
        results: for each leaf of the results, the index of the device's output.
        structure: structure of the results, as ``torch.utils._pytree`` writes it.
        options: flags of the context by option name, without the library.
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
        """Return the content of a file that :meth:`to_bytes` wrote.

        Raises:
            DamagedProgram: the data is not valid.
        """
        return _FORMAT.open(data, cls._of)

    @classmethod
    def _of(cls, description: dict[str, Any], binary: bytes) -> ProgramFile:
        result = cls(
            binary,
            inputs=_shapes(description["inputs"]),
            used=tuple(description["used"]),
            outputs=_shapes(description["outputs"]),
            results=tuple(description["results"]),
            structure=description["structure"],
            options=description["options"],
        )
        _check_places(result.used, len(result.inputs))
        _check_places(result.results, len(result.outputs))
        leaves = parse_structure(result.structure).num_leaves
        if leaves != len(result.results):
            raise ValueError(f"a structure of {leaves} results, of which there are {len(result.results)}")
        if Options.of(result.options).library:
            raise ValueError("a library, which is the user's to choose")
        return result


_MOST_ELEMENTS = 1 << 40


def _shapes(raw: Any) -> tuple[tuple[int, ...], ...]:
    shapes = tuple(map(tuple, raw))
    if any(type(size) is not int or size < 1 for shape in shapes for size in shape):
        raise ValueError("sizes that are not positive integers")
    if any(math.prod(shape) > _MOST_ELEMENTS for shape in shapes):
        raise ValueError("a tensor that is larger than any device")
    return shapes


def _check_places(places: tuple[int, ...], count: int) -> None:
    if any(type(place) is not int or not 0 <= place < count for place in places):
        raise ValueError(f"a place that is not below {count}")

"""A compiled program with its weights as a file: versioned, checksummed, and refused before anything of it runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torchmdla.compiler.sealed import Format


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
        return cls(
            binary,
            inputs=tuple(map(tuple, description["inputs"])),
            used=tuple(description["used"]),
            outputs=tuple(map(tuple, description["outputs"])),
            results=tuple(description["results"]),
            structure=description["structure"],
            options=description["options"],
        )

"""File format of a model that runs without libtorch (``src/native/model_file.cpp`` reads it).

The file begins with a sealed block (:mod:`torchmdla.compiler.checksummed`). It contains a description for humans, in
JSON, and everything but the weights for programs. The weights begin at the next multiple of 4096 bytes. Each weight is
aligned to 4096 bytes, or to 64 if it is shorter, so that it can be used where it is mapped. The block contains a
checksum for each weight.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.checksummed import Format
from torchmdla.importer import dtype_name
from torchmdla.packages.fields import SCALAR_TYPES, FieldWriter, write_size_program, write_varying_lists
from torchmdla.packages.weights import PAGE, WeightInfo, Weights, align_up

if TYPE_CHECKING:
    from torchmdla.capture.symbolic.size_program import SizeNodes


class DamagedModel(ValueError):
    """Error for a model's file that is truncated, altered, or of another version."""


# The same values as in src/native/model_file.cpp.
_FORMAT = Format(b"torchmdla-model", 2, "a model's file", "export the model anew", DamagedModel)

# The order of ``Argument::Source`` in src/native/content.h.
_SOURCES = ("input", "weight", "size", "unused")

# A size that differs among a model's codes, or the symbol of a size that is not symbolic.
VARIES = -1


@dataclass(frozen=True)
class Port:
    """Input or output of a model. A size with several values is :data:`VARIES`."""

    name: str
    dtype: torch.dtype
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class InputLayout:
    """Layout of an input that the code expects.

    ``symbols`` are the numbers of the symbols of its sizes, or :data:`VARIES`. The data is contiguous after its
    dimensions are permuted.
    """

    sizes: tuple[int, ...]
    symbols: tuple[int, ...]
    permutation: tuple[int, ...]


@dataclass(frozen=True)
class OutputLayout:
    """Layout of an output that the code produces.

    It has the number of the program's result, and sizes and strides, which are integers or polynomials in the symbols.
    """

    result: int
    sizes: Sequence[Any]
    strides: Sequence[Any]


@dataclass(frozen=True)
class Code:
    """Code for some sizes of the inputs, or for any sizes.

    Attributes:
        artifact: the code.
        inputs, outputs: layouts of the model's inputs and outputs.
        symbols: the number of symbols.
        sizes: the size program that a call evaluates, for code for any sizes.
        arguments: for each argument of the program its source (``"input"``, ``"weight"``, ``"size"``, ``"unused"``),
            and the index in that source.
        packs: for each pack of the program the number of the weight that it produced.
    """

    artifact: Artifact
    inputs: Sequence[InputLayout]
    outputs: Sequence[OutputLayout]
    symbols: int
    sizes: SizeNodes | None
    arguments: Sequence[tuple[str, int]]
    packs: Sequence[int]


@dataclass(frozen=True)
class ModelInfo:
    """Description of a model's file, for humans.

    Attributes:
        cpu: the processor that instructions are scheduled for.
        features: processor features that the code needs, by LLVM's names.
        inputs, outputs: a line for each.
        codes: a line for each code, with its input sizes.
        weights: buffers that are mapped from the file.
        versions: versions of the producers, by name.
    """

    cpu: str
    features: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    codes: tuple[str, ...]
    weights: tuple[WeightInfo, ...]
    versions: Mapping[str, str]

    @property
    def weight_bytes(self) -> int:
        return sum(weight.size for weight in self.weights)


@dataclass(frozen=True)
class Model:
    """Content of a model's file. ``cpu`` and ``versions`` are for humans."""

    cpu: str
    features: Sequence[str]
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    codes: Sequence[Code]
    weights: Weights
    versions: Mapping[str, str]

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            self.cpu,
            tuple(self.features),
            tuple(map(_port_line, self.inputs)),
            tuple(map(_port_line, self.outputs)),
            tuple(map(_code_line, self.codes)),
            self.weights.infos,
            dict(self.versions),
        )

    def write(self, file: IO[bytes]) -> None:
        block = _FORMAT.seal(asdict(self.info), self._content())
        file.write(block)
        file.write(bytes(align_up(PAGE, len(block)) - len(block)))
        self.weights.write(file)

    def _content(self) -> bytes:
        writer = FieldWriter()
        writer.list(self.features, writer.text)
        for ports in (self.inputs, self.outputs):
            writer.integer(len(ports))
            for port in ports:
                writer.text(port.name)
                writer.byte(SCALAR_TYPES[port.dtype])
                writer.integers(port.sizes)
        writer.integer(len(self.weights.infos))
        for weight in self.weights.infos:
            writer.integer(weight.offset)
            writer.integer(weight.size)
            writer.raw(bytes.fromhex(weight.digest))
        images = {code.artifact.object_code: 0 for code in self.codes}
        numbers = {image: number for number, image in enumerate(images)}
        writer.list(images, writer.block)
        writer.list(self.codes, lambda code: _write_code(writer, code, numbers[code.artifact.object_code]))
        return writer.getvalue()


def has_model_header(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins like a model's file.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        return _FORMAT.size_of(file.read(PAGE)) is not None


def info_of(path: str | os.PathLike[str], *, verify: bool = True) -> ModelInfo:
    """Check a file and return the description of its model.

    Args:
        path: the path of the file.
        verify: also compare the weights with their checksums.

    Raises:
        DamagedModel: the file is not a model's file, is damaged, or has another version.
        OSError: the file cannot be read.
    """
    data = memoryview(Path(path).read_bytes())
    size = _FORMAT.size_of(data) or len(data)
    info = _FORMAT.open(bytes(data[:size]), lambda description, content: _info(description))
    weights = data[align_up(PAGE, size) :]
    for number, weight in enumerate(info.weights if verify else ()):
        if hashlib.sha256(weights[weight.offset : weight.offset + weight.size]).hexdigest() != weight.digest:
            raise DamagedModel(f"weight {number} does not match its checksum; export the model anew")
    return info


def _info(description: dict[str, Any]) -> ModelInfo:
    lists = {name: tuple(value) for name, value in description.items() if isinstance(value, list)}
    weights = tuple(WeightInfo(**weight) for weight in description["weights"])
    return ModelInfo(**{**description, **lists, "weights": weights})


def _port_line(port: Port) -> str:
    sizes = "x".join("?" if size == VARIES else str(size) for size in port.sizes) or "scalar"
    return f"{port.name}: {dtype_name(port.dtype)} {sizes}"


def _code_line(code: Code) -> str:
    def sizes(layout: InputLayout) -> str:
        numbers = zip(layout.sizes, layout.symbols, strict=True)
        return "x".join(str(size) if symbol == VARIES else f"s{symbol}" for size, symbol in numbers) or "scalar"

    return f"{', '.join(map(sizes, code.inputs))}: {len(code.artifact.manifest.kernels)} kernels"


def _write_code(writer: FieldWriter, code: Code, image: int) -> None:
    manifest = code.artifact.manifest
    writer.integer(image)
    writer.text(manifest.entry)
    writer.text(manifest.workspace)
    writer.integer(manifest.workspace_bytes)
    writer.integer(code.symbols)
    writer.integer(len(code.inputs))
    for layout in code.inputs:
        for numbers in (layout.sizes, layout.symbols, layout.permutation):
            writer.integers(numbers)
    writer.byte(code.sizes is not None)
    if code.sizes is not None:
        write_size_program(writer, code.sizes)
    writer.integer(len(code.arguments))
    for source, index in code.arguments:
        writer.byte(_SOURCES.index(source))
        writer.integer(index)
    writer.integers(code.packs)
    writer.integer(len(code.outputs))
    for output in code.outputs:
        writer.integer(output.result)
        write_varying_lists(writer, output.sizes, output.strides)

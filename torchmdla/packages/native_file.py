"""File format of a model that runs without libtorch (``src/native/model_file.cpp`` reads it).

The file begins with a sealed block (:mod:`torchmdla.compiler.checksummed`). It contains a description for humans, in
JSON, and everything but the weights for programs. The weights begin at the next multiple of 4096 bytes. Each weight is
aligned to 4096 bytes, or to 64 if it is shorter, so that it can be used where it is mapped. The block contains a
checksum for each weight.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from torchmdla.compile_service.stored_code import stored_code
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.checksummed import Format
from torchmdla.importer import dtype_name
from torchmdla.packages.fields import (
    SCALAR_TYPES,
    FieldWriter,
    write_polynomial,
    write_size_program,
    write_varying_lists,
)
from torchmdla.packages.native_program import Program
from torchmdla.packages.weights import PAGE, WeightInfo, Weights, align_up

if TYPE_CHECKING:
    from torchmdla.capture.symbolic.size_program import SizeNodes


class DamagedModel(ValueError):
    """Error for a model's file that is truncated, altered, or of another version."""


# The same values as in src/native/model_file.cpp.
_FORMAT = Format(b"torchmdla-model", 3, "a model's file", "export the model anew", DamagedModel)

# The order of ``Argument::Source`` in src/native/group.h.
_SOURCES = ("input", "scalar", "size", "weight", "unused")

# The order of the kinds of outputs in src/native/content.cpp.
_OUTPUTS = ("tensor", "numbers", "number", "constant")

# A size that differs among a model's codes, or the symbol of a size that is not symbolic.
VARIES = -1

# The element of an argument that is not an element of a list.
_WHOLE = -1


@dataclass(frozen=True)
class Port:
    """Input or output of a model that is one group. A size with several values is :data:`VARIES`."""

    name: str
    dtype: torch.dtype
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Direct:
    """Model that is one group: it runs without a session.

    Attributes:
        inputs, outputs: the model's inputs and outputs.
        input_numbers: for each input of the group, the index of the model's input.
        output_numbers: for each output of the model, the index of the group's output.
    """

    inputs: Sequence[Port]
    outputs: Sequence[Port]
    input_numbers: Sequence[int]
    output_numbers: Sequence[int]


@dataclass(frozen=True)
class Argument:
    """Argument of the code, with its index in its source.

    Sources are ``"input"``, ``"scalar"``, ``"size"``, ``"weight"`` and ``"unused"``.
    A tensor is contiguous after its dimensions are permuted. ``element`` is its place in an input that is a list.
    """

    source: str
    index: int
    element: int | None = None
    permutation: tuple[int, ...] = ()


@dataclass(frozen=True)
class Code:
    """Code of a group for inputs of one signature, or for any sizes.

    Attributes:
        artifact: the code.
        signature: the signature of the inputs (``src/group/signature.h``), without the modes.
        symbols: for code for any sizes the number of symbols, and the symbol of each entry of the signature.
        sizes: the size program that a call evaluates, for code for any sizes.
        arguments: the arguments of the code.
        packs: for each pack of the program the number of the weight that it produced.
        outputs: kind and value of each output (``torchmdla/capture/outputs.py``). Constants are numbers.
    """

    artifact: Artifact
    signature: Sequence[int]
    symbols: tuple[int, Sequence[int]] | None
    sizes: SizeNodes | None
    arguments: Sequence[Argument]
    packs: Sequence[int]
    outputs: Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class GroupCodes:
    """Group of a program: its place in the user's program, its arity, and its codes."""

    source: str
    inputs: int
    outputs: int
    codes: Sequence[Code]


@dataclass(frozen=True)
class Target:
    """Code of all groups for machines with some features (:mod:`torchmdla.compile_service.stored_code`)."""

    name: str
    cpu: str
    features: Sequence[str]
    device: str
    groups: Sequence[GroupCodes]


@dataclass(frozen=True)
class ModelInfo:
    """Description of a model's file, for humans.

    Attributes:
        targets: a line for each set of processors that the file has code for.
        methods: the schemas of the methods.
        attributes: the attributes that methods read or write.
        inputs, outputs: a line for each, of a model that is one group.
        codes: a line for each code, with its input sizes.
        weights: buffers that are mapped from the file.
        versions: versions of the producers, by name.
    """

    targets: tuple[str, ...]
    methods: tuple[str, ...]
    attributes: tuple[str, ...]
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
    """Content of a model's file. ``versions`` are for humans."""

    targets: Sequence[Target]
    program: Program
    direct: Direct | None
    weights: Weights
    versions: Mapping[str, str]

    @property
    def info(self) -> ModelInfo:
        direct = self.direct or Direct((), (), (), ())
        return ModelInfo(
            tuple(f"{target.name}: {target.cpu}, {' '.join(target.features)}" for target in self.targets),
            tuple(method.schema for method in self.program.methods),
            tuple(self.program.attributes),
            tuple(map(_port_line, direct.inputs)),
            tuple(map(_port_line, direct.outputs)),
            tuple(_code_line(code) for group in self.targets[0].groups for code in group.codes),
            self.weights.infos,
            dict(self.versions),
        )

    def write(self, file: IO[bytes]) -> None:
        content = self._content()
        block = _FORMAT.seal(asdict(self.info), content)
        file.write(block)
        file.write(bytes(align_up(PAGE, len(block)) - len(block)))
        self.weights.write(file)

    def _content(self) -> bytes:
        writer = FieldWriter()
        self.program.constants.add_weights()
        writer.integer(len(self.weights.infos))
        for weight in self.weights.infos:
            writer.integer(weight.offset)
            writer.integer(weight.size)
            writer.raw(bytes.fromhex(weight.digest))
        self.program.constants.write(writer)
        writer.list(self.targets, lambda target: _write_target(writer, target))
        self.program.write(writer)
        writer.byte(self.direct is not None)
        if self.direct is not None:
            for ports in (self.direct.inputs, self.direct.outputs):
                writer.list(ports, lambda port: _write_port(writer, port))
            writer.integers(self.direct.input_numbers)
            writer.integers(self.direct.output_numbers)
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
    tensors = []
    places = code.symbols[1] if code.symbols else (VARIES,) * len(code.signature)
    for begin, rank in tensor_places(code.signature):
        pairs = zip(code.signature[begin : begin + rank], places[begin : begin + rank], strict=True)
        tensors.append("x".join(str(size) if symbol == VARIES else f"s{symbol}" for size, symbol in pairs) or "scalar")
    return f"{', '.join(tensors)}: {len(code.artifact.manifest.kernels)} kernels"


# Layout of a tensor's part of a signature (src/group/signature.cpp): its kind, the bit position of its rank, and the
# number of entries before the sizes. The lengths of the other kinds.
_TENSOR, _RANK_BIT, _BEFORE_SIZES = 1, 16, 2
_NONE, _INTEGER, _BOOLEAN, _FLOAT = 0, 2, 3, 4
_LENGTHS = {_NONE: 1, _INTEGER: 2, _BOOLEAN: 2, _FLOAT: 1}


def tensor_places(signature: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the place of the first size, and the rank, of the tensors in a signature. Stop at a list or string."""
    at = 0
    while at < len(signature):
        kind = signature[at] & 0xFF
        if kind == _TENSOR:
            rank = signature[at] >> _RANK_BIT
            yield at + _BEFORE_SIZES, rank
            at += _BEFORE_SIZES + rank
        elif kind in _LENGTHS:
            at += _LENGTHS[kind]
        else:
            return


def _write_port(writer: FieldWriter, port: Port) -> None:
    writer.text(port.name)
    writer.byte(SCALAR_TYPES[port.dtype])
    writer.integers(port.sizes)


def _write_target(writer: FieldWriter, target: Target) -> None:
    stored = {id(code): stored_code(code.artifact, target.device) for group in target.groups for code in group.codes}
    numbers = {image: number for number, image in enumerate(dict.fromkeys(stored.values()))}
    writer.text(target.name)
    writer.list(target.features, writer.text)
    writer.list(numbers, writer.block)
    writer.integer(len(target.groups))
    for group in target.groups:
        writer.text(group.source)
        writer.integer(group.inputs)
        writer.integer(group.outputs)
        writer.list(group.codes, lambda code: _write_code(writer, code, numbers[stored[id(code)]]))


def _write_code(writer: FieldWriter, code: Code, image: int) -> None:
    manifest = code.artifact.manifest
    writer.integer(image)
    writer.text(manifest.entry)
    writer.text(manifest.workspace)
    writer.integer(manifest.workspace_bytes)
    writer.integers(code.signature)
    writer.integers(code.symbols[1] if code.symbols else ())
    writer.integer(code.symbols[0] if code.symbols else 0)
    writer.byte(code.sizes is not None)
    if code.sizes is not None:
        write_size_program(writer, code.sizes)
    writer.list(code.arguments, lambda argument: _write_argument(writer, argument))
    writer.integers(code.packs)
    writer.list(code.outputs, lambda output: _write_output(writer, *output))


def _write_argument(writer: FieldWriter, argument: Argument) -> None:
    writer.byte(_SOURCES.index(argument.source))
    writer.integer(argument.index)
    writer.integer(_WHOLE if argument.element is None else argument.element)
    writer.integers(argument.permutation)


def _write_output(writer: FieldWriter, kind: str, value: Any) -> None:
    writer.byte(_OUTPUTS.index(kind))
    if kind == "tensor":
        result, dtype, sizes, strides, _ = value
        writer.integer(result)
        writer.byte(SCALAR_TYPES[dtype])
        write_varying_lists(writer, sizes, strides)
    elif kind == "numbers":
        write_varying_lists(writer, value)
    elif kind == "number":
        write_polynomial(writer, value)
    else:
        writer.integer(value)

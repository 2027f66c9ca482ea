"""A group's specialisation as a package has it (``src/package/packaged_code.cpp`` reads it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program
from torchmdla.packages.fields import FieldWriter

if TYPE_CHECKING:
    from torchmdla import _C
    from torchmdla.capture.specialise import Compiled
    from torchmdla.importer import Binding

# The order of ``InputBinding::Source`` in src/runtime/executable.h.
_SOURCES = ("dense", "contiguous", "scalar", "size", "constant")

# That of kinds of outputs, and of values among them, in packaged_code.cpp.
_OUTPUTS = ("tensor", "numbers", "number", "constant")
_NONE, _BOOLEAN, _INTEGER, _REAL, _TEXT, _DEVICE, _INTEGERS, _BOOLEANS, _REALS = range(9)


@dataclass(frozen=True)
class Specialisation:
    """What a package keeps of a group for some types of its inputs.

    Attributes:
        structure: of the group's subgraph, 32 bytes (``src/group/structure.h``).
        signature: of the inputs (``src/group/signature.h``).
        symbols: of one for any sizes: how many symbols there are, and which of them each entry of the signature is.
        left_out: of one that runs in groups around these nodes of the subgraph, which has no code.
        compiled: what its code was made of.
    """

    structure: bytes
    signature: tuple[int, ...]
    symbols: tuple[int, Sequence[int]] | None
    left_out: tuple[int, ...] | None
    compiled: Compiled | None

    @classmethod
    def of(cls, structure: bytes, report: _C.SpecialisationReport) -> Specialisation | None:
        """None of one that runs in PyTorch's interpreter."""
        executable, left_out = report["executable"], report["left_out"]
        compiled = None if executable is None else executable.owner
        if compiled is None and left_out is None:
            return None
        return cls(
            structure,
            tuple(report["signature"]),
            report["symbols"],
            None if left_out is None else tuple(left_out),
            compiled,
        )

    @property
    def program(self) -> Program | None:
        """What is compiled for each target."""
        return None if self.compiled is None else Program.from_bytes(self.compiled.program)

    def write(self, writer: FieldWriter, code: tuple[int, Artifact] | None) -> None:
        """``code``: the number of the image in the target's block, and the artifact that it is of."""
        writer.byte(code is None)
        self._write_head(writer)
        if code is None:
            writer.integers(self.left_out or ())
        else:
            assert self.compiled is not None
            _write_code(writer, self.compiled, *code)

    def _write_head(self, writer: FieldWriter) -> None:
        writer.raw(self.structure)
        writer.integers(self.signature)
        bits = [] if self.compiled is None else _bits(self.compiled)
        writer.list(bits, writer.integer_pair)
        writer.byte(self.symbols is not None)
        if self.symbols is None:
            return
        assert self.compiled is not None and self.compiled.sizes is not None
        count, places = self.symbols
        writer.integer(count)
        writer.integers(places)
        nodes, computed, conditions = self.compiled.sizes

        def write_node(node: tuple[str, float, int, int]) -> None:
            name, number, left, right = node
            writer.text(name)
            writer.real(number)
            writer.integer(left)
            writer.integer(right)

        writer.list(nodes, write_node)
        writer.integers(computed)
        writer.integers(conditions)


def _bits(compiled: Compiled) -> list[tuple[int, int]]:
    """The inputs that must need so few bits."""
    pairs = zip(compiled.arguments, compiled.bindings, strict=True)
    return [(binding.index, argument.bits) for argument, binding in pairs if argument.bits and _is_input(binding)]


def _is_input(binding: Binding) -> bool:
    return binding.source == "input" and binding.element is None


def _write_code(writer: FieldWriter, compiled: Compiled, image: int, artifact: Artifact) -> None:
    manifest = artifact.manifest
    writer.integer(image)
    writer.text(manifest.entry)
    writer.text(manifest.workspace)
    writer.text(manifest.fault)
    writer.integer(manifest.workspace_bytes)
    writer.integer(len(manifest.packs))
    for pack in manifest.packs:
        writer.text(pack.symbol)
        writer.text(pack.recipe)
        writer.integers(pack.arguments)
        writer.integer(pack.size)
    writer.integer(len(compiled.bindings))
    for binding, argument in zip(compiled.bindings, compiled.arguments, strict=True):
        _write_input(writer, binding, argument.kind == "scalar")
    writer.list(compiled.outputs, lambda output: _write_output(writer, *output))
    writer.list(compiled.kernel_names(manifest), writer.text)


def _write_input(writer: FieldWriter, binding: Binding, is_scalar: bool) -> None:
    source: str = binding.source
    if source == "input":
        source = "scalar" if is_scalar else "contiguous" if binding.copy else "dense"
    writer.byte(_SOURCES.index(source))
    writer.integer(binding.index)
    writer.integer(-1 if binding.element is None else binding.element)
    writer.integers(binding.permutation)
    writer.byte(binding.unversioned)


def _write_output(writer: FieldWriter, kind: str, output: Any) -> None:
    writer.byte(_OUTPUTS.index(kind))
    if kind == "tensor":
        result, dtype, sizes, strides, quantisation = output
        writer.integer(result)
        writer.byte(_SCALAR_TYPES[dtype])
        for numbers in (sizes, strides):
            writer.integers(_fixed(numbers))
        for numbers in (sizes, strides):
            _write_varying(writer, numbers)
        writer.byte(quantisation is not None)
        if quantisation is not None:
            writer.real(quantisation[0])
            writer.integer(quantisation[1])
    elif kind == "numbers":
        writer.integers(_fixed(output))
        _write_varying(writer, output)
    elif kind == "number":
        _write_polynomial(writer, output)
    else:
        _write_value(writer, output)


def _fixed(numbers: Sequence[Any]) -> list[int]:
    return [0 if isinstance(number, tuple) else int(number) for number in numbers]


def _write_varying(writer: FieldWriter, numbers: Sequence[Any]) -> None:
    varying = [(place, number) for place, number in enumerate(numbers) if isinstance(number, tuple)]
    writer.integer(len(varying))
    for place, polynomial in varying:
        writer.integer(place)
        _write_polynomial(writer, polynomial)


def _write_polynomial(writer: FieldWriter, terms: Sequence[tuple[Sequence[int], int]]) -> None:
    writer.integer(len(terms))
    for exponents, factor in terms:
        writer.integers(exponents)
        writer.integer(factor)


def _write_value(writer: FieldWriter, value: Any) -> None:
    if value is None:
        writer.byte(_NONE)
    elif isinstance(value, bool):
        writer.byte(_BOOLEAN)
        writer.byte(value)
    elif isinstance(value, int):
        writer.byte(_INTEGER)
        writer.integer(value)
    elif isinstance(value, float):
        writer.byte(_REAL)
        writer.real(value)
    elif isinstance(value, str | torch.device):
        writer.byte(_DEVICE if isinstance(value, torch.device) else _TEXT)
        writer.text(str(value))
    else:
        _write_values(writer, value)


def _write_values(writer: FieldWriter, values: Sequence[Any]) -> None:
    if values and all(isinstance(value, bool) for value in values):
        writer.byte(_BOOLEANS)
        writer.list(values, writer.byte)
    elif values and all(isinstance(value, float) for value in values):
        writer.byte(_REALS)
        writer.list(values, writer.real)
    else:
        writer.byte(_INTEGERS)
        writer.integers(values)


# c10's numbers of dtypes (c10/core/ScalarType.h), which files of TorchScript hold, too.
_SCALAR_TYPES: Mapping[torch.dtype, int] = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip

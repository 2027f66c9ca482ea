"""Specialisation of a group in a package (``src/package/packaged_code.cpp`` reads it)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from torchmdla.capture.specialise import constant_of
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program
from torchmdla.packages.fields import (
    SCALAR_TYPES,
    FieldWriter,
    write_polynomial,
    write_size_program,
    write_varying_lists,
)

if TYPE_CHECKING:
    from torchmdla import _C
    from torchmdla.capture.specialise import Compiled
    from torchmdla.importer import Binding

# The order of ``InputBinding::Source`` in src/runtime/executable.h.
_SOURCES = ("dense", "contiguous", "scalar", "size", "constant")

# The order of the kinds of outputs, and of values among them, in packaged_code.cpp.
_OUTPUTS = ("tensor", "numbers", "number", "constant")
_NONE, _BOOLEAN, _INTEGER, _REAL, _TEXT, _DEVICE, _INTEGERS, _BOOLEANS, _REALS = range(9)


@dataclass(frozen=True)
class PackedWeight:
    """Output of a pack, among the weights of a target.

    It has its offset, and hashes of its content and of the parameters that it was made of (``_C.content_hash``).
    """

    offset: int
    content_hash: int
    parameters: tuple[int, ...]


@dataclass(frozen=True)
class TargetCode:
    """Code of a specialisation for a target: its device, its artifact, and for each pack its output, or None."""

    device: str
    artifact: Artifact
    packed: Sequence[PackedWeight | None]


@dataclass(frozen=True)
class Specialisation:
    """Specialisation of a group for some types of its inputs.

    Attributes:
        structure: structure of the group's subgraph, 32 bytes (``src/group/structure.h``).
        signature: signature of the inputs (``src/group/signature.h``).
        symbols: for code for any sizes: the number of symbols, and the symbol of each entry of the signature.
        left_out: nodes of the subgraph around which the group is divided; such a specialisation does not have code.
        compiled: the compiled program.
        constant: returns the value of a constant node of the subgraph, by its number.
    """

    structure: bytes
    signature: tuple[int, ...]
    symbols: tuple[int, Sequence[int]] | None
    left_out: tuple[int, ...] | None
    compiled: Compiled | None
    constant: Callable[[int], object]

    @classmethod
    def of(
        cls, structure: bytes, report: _C.SpecialisationReport, constant: Callable[[int], object]
    ) -> Specialisation | None:
        """Return the specialisation of a report; None if it runs in PyTorch's interpreter.

        ``constant`` returns the value of a constant node of the subgraph, by its number.
        """
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
            constant,
        )

    @property
    def constants(self) -> dict[int, torch.Tensor]:
        """Return the program's arguments that are constants of the subgraph, by position."""
        if self.compiled is None:
            return {}
        known = cache(self.constant)
        pairs = enumerate(self.compiled.bindings)
        return {place: constant_of(binding, known) for place, binding in pairs if binding.source == "constant"}

    @property
    def program(self) -> Program | None:
        """Return the program that is compiled for each target."""
        return None if self.compiled is None else Program.from_bytes(self.compiled.program)

    def write(self, writer: FieldWriter, code: TargetCode | None, image: int = 0) -> None:
        """Write the specialisation. ``image`` is the number of the code's image in the target's block."""
        writer.byte(code is None)
        self._write_head(writer)
        if code is None:
            writer.integers(self.left_out or ())
        else:
            assert self.compiled is not None
            _write_code(writer, self.compiled, image, code)

    def _write_head(self, writer: FieldWriter) -> None:
        writer.raw(self.structure)
        writer.integers(self.signature)
        # The inputs whose values must fit a limited number of bits, as pairs of input and bits.
        pairs = zip(self.compiled.arguments, self.compiled.bindings, strict=True) if self.compiled else ()
        bits = [
            (binding.index, argument.bits)
            for argument, binding in pairs
            if argument.bits and binding.source == "input" and binding.element is None
        ]
        writer.list(bits, writer.integer_pair)
        writer.byte(self.symbols is not None)
        if self.symbols is not None:
            assert self.compiled is not None and self.compiled.sizes is not None
            count, places = self.symbols
            writer.integer(count)
            writer.integers(places)
            write_size_program(writer, self.compiled.sizes)


def _write_code(writer: FieldWriter, compiled: Compiled, image: int, code: TargetCode) -> None:
    manifest = code.artifact.manifest
    writer.integer(image)
    writer.text(manifest.entry)
    writer.text(manifest.workspace)
    writer.text(manifest.fault)
    writer.integer(manifest.workspace_bytes)
    writer.integer(len(manifest.packs))
    for pack, packed in zip(manifest.packs, code.packed, strict=True):
        writer.text(pack.symbol)
        writer.text(pack.recipe)
        writer.integers(pack.arguments)
        writer.integer(pack.size)
        writer.byte(packed is not None)
        if packed is not None:
            writer.integer(packed.offset)
            writer.integer(packed.content_hash)
            writer.integers(packed.parameters)
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
        writer.byte(SCALAR_TYPES[dtype])
        write_varying_lists(writer, sizes, strides)
        writer.byte(quantisation is not None)
        if quantisation is not None:
            writer.real(quantisation[0])
            writer.integer(quantisation[1])
    elif kind == "numbers":
        write_varying_lists(writer, output)
    elif kind == "number":
        write_polynomial(writer, output)
    else:
        _write_value(writer, output)


# A bool is also an int. A list of booleans or floats has a kind of its own.
_SCALARS: tuple[tuple[type, int, Callable[[FieldWriter, Any], None]], ...] = (
    (bool, _BOOLEAN, FieldWriter.byte),
    (int, _INTEGER, FieldWriter.integer),
    (float, _REAL, FieldWriter.real),
    (str, _TEXT, FieldWriter.text),
)
_LISTS = ((bool, _BOOLEANS, FieldWriter.byte), (float, _REALS, FieldWriter.real))


def _write_value(writer: FieldWriter, value: Any) -> None:
    if value is None:
        writer.byte(_NONE)
    elif isinstance(value, torch.device):
        writer.byte(_DEVICE)
        writer.text(str(value))
    elif isinstance(value, bool | int | float | str):
        number, write = next((number, write) for kind, number, write in _SCALARS if isinstance(value, kind))
        writer.byte(number)
        write(writer, value)
    else:
        kinds = (entry for entry in _LISTS if value and all(isinstance(element, entry[0]) for element in value))
        _, number, write = next(kinds, (int, _INTEGERS, FieldWriter.integer))
        writer.byte(number)
        writer.list(value, partial(write, writer))

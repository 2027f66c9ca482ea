"""Self-checking blocks: artifacts, and programs in files, are refused where one bit of them is not right."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmdla.compiler.artifact import Artifact, DamagedArtifact, Manifest, Pack
from torchmdla.compiler.program import Argument, Result
from torchmdla.compiler.sealed import Format
from torchmdla.devices.mdla.program_file import DamagedProgram, ProgramFile

MANIFEST = Manifest(
    "a" * 64,
    "entry",
    (Argument("input", "float32", (2, 3)), Argument("parameter", "float64", (), "scalar")),
    (Result("bool", (0, 4)),),
    workspace_bytes=64,
    symbols=1,
    workspace="workspace",
    packs=(Pack("pack", "recipe", (1,), 128),),
    device_calls=("mdla_scratch",),
    statistics={"seconds": 0.5},
)


@dataclass(frozen=True)
class Kind:
    """A format: a value, its inverse function, what it raises, and what its messages begin and end with."""

    value: Any
    read: Callable[[bytes], Any]
    error: type[ValueError]
    name: str
    remedy: str


KINDS = {
    "artifact": Kind(
        Artifact(b"\0code" * 20, MANIFEST),
        Artifact.from_bytes,
        DamagedArtifact,
        "an artifact",
        "compile its program anew",
    ),
    "program": Kind(
        ProgramFile(
            b"\0binary" * 20, ((1, 3), (2,)), (0,), ((1, 4),), (0, 0), "{}", {"precision": "fixed8", "clusters": 2}
        ),
        ProgramFile.from_bytes,
        DamagedProgram,
        "a program of the mdla device",
        "copy it anew, or write it with torchmdla.mdla.save",
    ),
}

VERSION, DIGEST, LENGTHS, BODY = 16, 20, 52, 68

FOREIGN = "^not {name}"
OTHER = "^{name} of version 99, where version [0-9]+ is needed"
LENGTH = "^{name} cut short or extended: [0-9]+ bytes expected, got [0-9]+"
CONTENT = "^{name} whose content does not match its checksum"


def _flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def _resplit(data: bytes) -> bytes:
    """The same total, the border between description and content moved."""
    description, content = struct.unpack_from("<QQ", data, LENGTHS)
    return data[:LENGTHS] + struct.pack("<QQ", description - 1, content + 1) + data[BODY:]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", FOREIGN),
    "another file": (lambda data: b"PK" + data[2:], FOREIGN),
    "no header": (lambda data: data[: BODY - 1], FOREIGN),
    "another version": (lambda data: data[:VERSION] + struct.pack("<I", 99) + data[DIGEST:], OTHER),
    "header only": (lambda data: data[:BODY], LENGTH),
    "cut short": (lambda data: data[:-1], LENGTH),
    "extended": (lambda data: data + b"\0", LENGTH),
    "twice": (lambda data: data + data, LENGTH),
    "huge lengths": (lambda data: data[:LENGTHS] + b"\xff" * 16 + data[BODY:], LENGTH),
    "lengths": (_resplit, CONTENT),
    "the checksum": (lambda data: _flipped(data, DIGEST), CONTENT),
    "the description": (lambda data: _flipped(data, BODY + 3), CONTENT),
    "the content": (lambda data: _flipped(data, len(data) - 5), CONTENT),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def test_comes_back_as_it_was(kind: Kind) -> None:
    assert kind.read(kind.value.to_bytes()) == kind.value


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_refused_and_says_what_to_do(kind: Kind, what: str) -> None:
    damage, message = DAMAGE[what]
    with pytest.raises(kind.error, match=f"{message.format(name=kind.name)}; {re.escape(kind.remedy)}"):
        kind.read(damage(kind.value.to_bytes()))


@given(place=st.integers(0), bit=st.integers(0, 7))
@pytest.mark.parametrize("name", KINDS)
def test_every_bit_counts(name: str, place: int, bit: int) -> None:
    kind = KINDS[name]
    data = bytearray(kind.value.to_bytes())
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(kind.error):
        kind.read(bytes(data))


def test_kinds_are_not_mistaken_for_each_other() -> None:
    for kind in KINDS.values():
        for other in KINDS.values():
            if other is not kind:
                with pytest.raises(kind.error, match=f"^not {kind.name};"):
                    kind.read(other.value.to_bytes())


@pytest.mark.parametrize("description", [{}, {"other": 1}, {"arguments": 3, "inputs": 3}])
def test_intact_with_other_fields(description: dict[str, Any]) -> None:
    class Refused(ValueError):
        pass

    kind = Format(b"test", 1, "a test", "write it anew", Refused)
    block = kind.seal(description, b"content")
    assert kind.open(block, lambda found, content: (found, content)) == (description, b"content")
    for make in (lambda found, content: Manifest.of(found), lambda found, content: ProgramFile(content, **found)):
        with pytest.raises(Refused, match=r"^a test with another description: .*; write it anew$"):
            kind.open(block, make)


def test_a_newer_version_is_told_from_damage() -> None:
    format_ = Format(b"test", 1, "a test", "write it anew", ValueError)
    newer = replace(format_, version=2).seal({}, b"")
    with pytest.raises(ValueError, match=r"^a test of version 2, where version 1 is needed; write it anew$"):
        format_.open(newer, lambda description, content: None)

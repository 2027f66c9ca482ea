"""Blocks with checksums: artifacts and program files are refused if one bit is wrong."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from torchmdla.compiler.artifact import Artifact, DamagedArtifact, Manifest, Pack
from torchmdla.compiler.checksummed import Format
from torchmdla.compiler.program import Argument, Result
from torchmdla.devices.mdla.options import Options
from torchmdla.devices.mdla.program_file import DamagedProgram, ProgramFile
from torchmdla.structures import parse_structure

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
    """A format: a value, its parser, the exception of the parser, and the start and end of error messages."""

    value: Any
    read: Callable[[bytes], Any]
    error: type[ValueError]
    name: str
    remedy: str


# A structure of two values.
PAIR = pytree.treespec_dumps(pytree.tree_structure((0, {"a": [0]})))

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
            b"\0binary" * 20, ((1, 3), (2,)), (0,), ((1, 4),), (0, 0), PAIR, {"precision": "fixed8", "clusters": 2}
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
    """Return a block of the same total length, with the border between description and content moved."""
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
def test_damage_is_refused_with_advice(kind: Kind, what: str) -> None:
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
    assert kind.open(block, lambda fields, content: (fields, content)) == (description, b"content")
    for make in (lambda fields, content: Manifest.of(fields), lambda fields, content: ProgramFile(content, **fields)):
        with pytest.raises(Refused, match=r"^a test with another description: .*; write it anew$"):
            kind.open(block, make)


def test_a_newer_version_is_distinguished_from_damage() -> None:
    format_ = Format(b"test", 1, "a test", "write it anew", ValueError)
    newer = replace(format_, version=2).seal({}, b"")
    with pytest.raises(ValueError, match=r"^a test of version 2, where version 1 is needed; write it anew$"):
        format_.open(newer, lambda description, content: None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in a description, and in JSON strings inside it."""
    yield path
    if isinstance(value, str) and value.startswith(("[", "{")):
        value = json.loads(value)
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def with_other(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    text = isinstance(value, str)
    inner = json.loads(value) if text else copy.copy(value)
    inner[path[0]] = with_other(inner[path[0]], path[1:], other)
    return json.dumps(inner) if text else inner


def description_of(value: ProgramFile) -> dict[str, Any]:
    described = asdict(value)
    del described["binary"]
    return json.loads(json.dumps(described))


DESCRIPTION = description_of(KINDS["program"].value)
BLOCK = Format(b"torchmdla-mdla\n", 2, "", "", ValueError)


@given(path=st.sampled_from(list(places(DESCRIPTION))), other=JSON)
def test_any_description_is_read_or_refused(path: tuple[Any, ...], other: Any) -> None:
    """Read or refuse a description under a correct checksum, with any value at any place."""
    data = BLOCK.seal(with_other(DESCRIPTION, path, other), b"binary")
    try:
        read = ProgramFile.from_bytes(data)
    except DamagedProgram:
        return
    structure = parse_structure(read.structure)
    assert structure.num_leaves == len(read.results)
    assert {type(size) for shape in read.inputs + read.outputs for size in shape} <= {int}
    Options.of(read.options)


DEEP = "[" * 100_000 + "]" * 100_000
HOSTILE = {
    "deep": (("structure",), DEEP),
    "deep inside": (("structure",), f'[1, {{"type": "builtins.list", "context": {DEEP}, "children_spec": []}}]'),
    "a module": (
        ("structure", 1),
        {
            "type": "collections.defaultdict",
            "context": {"default_factory_module": "this", "default_factory_name": "s", "dict_context": "[]"},
            "children_spec": [],
        },
    ),
    "an enumeration": (
        ("structure", 1, "children_spec", 1, "context"),
        json.dumps([{"__enum__": True, "fqn": "this:s", "name": "s"}]),
    ),
    "an enumeration for keys": (
        ("structure", 1, "children_spec", 1),
        {
            "type": "builtins.dict",
            "context": json.dumps({"__enum__": True, "fqn": "this:s", "name": "s"}),
            "children_spec": [{"type": None, "context": None, "children_spec": []}] * 3,
        },
    ),
    "no integer": (("inputs", 0, 0), True),
    "a place that is none": (("results", 0), -1),
    "too large": (("outputs", 0, 0), 2**62),
    "another library": (("options", "library"), "/tmp/other.so"),
    "no option": (("options", "precision"), 3),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_descriptions_import_and_load_nothing(what: str) -> None:
    path, other = HOSTILE[what]
    described = copy.deepcopy(DESCRIPTION)
    described["options"]["library"] = ""
    ProgramFile.from_bytes(BLOCK.seal(described, b"binary"))
    data = BLOCK.seal(with_other(described, path, other), b"binary")
    sys.modules.pop("this", None)
    with pytest.raises(DamagedProgram, match="with another description"):
        ProgramFile.from_bytes(data)
    assert "this" not in sys.modules


def test_a_description_that_is_too_deep() -> None:
    whole = BLOCK.seal({}, b"")[:20]
    text = DEEP.encode()
    sealed = struct.pack("<QQ", len(text), 0) + text
    with pytest.raises(DamagedProgram, match="with another description"):
        ProgramFile.from_bytes(whole + hashlib.sha256(sealed).digest() + sealed)

"""Packages that are damaged, or made to harm: they are refused with a reason, and programs run without them.

PyTorch itself refuses archives that are damaged (``torch.jit.load`` raises); no process may end. Each test has one
process load all of its files; one that ends names the file.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from package_files import (
    INDEX,
    TARGET,
    Found,
    content_of,
    load_all,
    make_package,
    records,
    rewrite,
    sealed,
    sealed_index,
    write_example,
)

from torchmdla.compiler.artifact import Manifest, Pack
from torchmdla.packages import format, specialisation
from torchmdla.packages.fields import FieldWriter
from torchmdla.packages.specialisation import Specialisation, TargetCode

# What a process may ask for beside what it has, for the sake of a file of some kilobytes.
MOST_MEMORY = 1 << 30


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_example(tmp_path_factory.mktemp("example") / "example")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_package(tmp_path_factory.mktemp("package") / "model.pt")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """For hundreds of files, which nobody needs afterwards."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def assert_harmless(found: Found, name: str) -> None:
    assert found.error or found.matches, f"{name}: {found}"
    assert found.peak < MOST_MEMORY, f"{name}: {found}"


def assert_refused(found: Found, reason: str, name: str = "") -> None:
    assert_harmless(found, name)
    assert not found.error and found.packages == 0 and len(found.refused) == 1, f"{name}: {found}"
    assert reason in found.refused[0], f"{name}: {found}"


def one(path: Path, example: Path) -> Found:
    return load_all([path], example)[path]


def flipped(data: bytes, bit: int) -> bytes:
    altered = bytearray(data)
    altered[bit // 8] ^= 1 << bit % 8
    return bytes(altered)


# --- accidents


def offsets_of_records(path: Path, part: str) -> list[int]:
    """The bytes in the file of the records with ``part`` in their names, with their headers."""
    with zipfile.ZipFile(path) as archive:
        starts = [*sorted(info.header_offset for info in archive.infolist()), archive.start_dir]
        spans = [
            range(info.header_offset, next(start for start in starts if start > info.header_offset))
            for info in archive.infolist()
            if part in info.filename
        ]
    return [offset for span in spans for offset in span]


def test_bits_of_the_file_are_flipped(package: Path, example: Path, folder: Path) -> None:
    """PyTorch itself finds a part of it. What it does not find, bits of weights among them, changes what eager PyTorch
    computes likewise. Its reader of source lines, whom it trusts, does not survive all that may stand there."""
    data = package.read_bytes()
    inside = offsets_of_records(package, "/extra/torchmdla/")
    outside = sorted({*range(len(data))} - {*inside} - {*offsets_of_records(package, ".debug_pkl")})
    draw = random.Random(0)
    places = draw.choices(inside, k=200) + draw.choices(outside, k=100)
    paths = []
    for seed, place in enumerate(places):
        path = folder / f"{seed:03}-byte-{place}.pt"
        path.write_bytes(flipped(data, place * 8 + draw.randrange(8)))
        paths.append(path)
    found = load_all(paths, example)
    for path, place in zip(paths, places, strict=True):
        # PyTorch's unpickler reserves the memory that a damaged length of its own asks for.
        result = replace(found[path], peak=0) if place in outside else found[path]
        assert_harmless(result, path.name)
    # The test would say nothing if PyTorch refused all of them.
    assert sum(bool(one.refused) for one in found.values()) > 50


@pytest.mark.parametrize("record", [INDEX, TARGET])
@pytest.mark.sampled(1)
def test_bits_of_a_record_are_flipped(package: Path, example: Path, folder: Path, record: str) -> None:
    """In an archive whose own checksums are right: what only our seals tell."""
    content = records(package)[record]
    draw = random.Random(record)
    paths = []
    for seed in range(250):
        bit = draw.randrange(len(content) * 8)
        path = folder / f"{seed:03}-bit-{bit}.pt"
        paths.append(rewrite(package, path, {record: flipped(content, bit)}))
    for path, one in load_all(paths, example).items():
        assert_refused(one, "", path.name)


def test_a_file_is_cut_short(package: Path, example: Path, folder: Path) -> None:
    data = package.read_bytes()
    paths = []
    for size in range(0, len(data), len(data) // 40):
        path = folder / f"{size}.pt"
        path.write_bytes(data[:size])
        paths.append(path)
    assert all(found.error for found in load_all(paths, example).values())


@pytest.mark.parametrize("record", [INDEX, TARGET])
@pytest.mark.sampled(1)
def test_a_record_is_cut_short_or_extended(package: Path, example: Path, folder: Path, record: str) -> None:
    content = records(package)[record]
    altered = [content[:size] for size in range(0, len(content), len(content) // 20)] + [content + b"\0"]
    paths = [rewrite(package, folder / f"{len(one)}.pt", {record: one}) for one in altered]
    for path, found in load_all(paths, example).items():
        assert_refused(found, "", path.name)


# --- packages that do not fit together


def test_a_target_is_missing(package: Path, example: Path, tmp_path: Path) -> None:
    assert_refused(one(rewrite(package, tmp_path / "model.pt", {TARGET: None}), example), "lacks its target native")


def test_targets_of_two_packages_are_swapped(package: Path, example: Path, tmp_path: Path) -> None:
    other = make_package(tmp_path / "other.pt", width=24)
    swapped = rewrite(package, tmp_path / "model.pt", {TARGET: records(other)[TARGET]})
    assert_refused(one(swapped, example), "target native is not the one that its index has")


def test_a_package_of_another_program_is_no_use(package: Path, example: Path, tmp_path: Path) -> None:
    """It is intact, and taken; no group of the program is of its structure."""
    other = make_package(tmp_path / "other.pt", width=24)
    found = one(rewrite(package, tmp_path / "model.pt", records(other)), example)
    assert_harmless(found, "")
    assert found.packages == 1


@pytest.mark.parametrize(
    ("record", "part"), [(INDEX, "the package's index"), (TARGET, "a package's target")], ids=["index", "target"]
)
@pytest.mark.sampled(1)
def test_another_version(package: Path, example: Path, tmp_path: Path, record: str, part: str) -> None:
    newer = bytearray(records(package)[record])
    newer[16:20] = struct.pack("<I", 99)
    replaced = {record: bytes(newer)}
    if record == TARGET:
        replaced[INDEX] = sealed_index([("native", (), hashlib.sha256(newer).digest())])
    found = one(rewrite(package, tmp_path / "model.pt", replaced), example)
    assert_refused(found, f"{part}: it is of version 99, where version")


def test_one_kind_of_block_is_no_other(package: Path, example: Path, tmp_path: Path) -> None:
    content = records(package)
    found = one(rewrite(package, tmp_path / "index.pt", {INDEX: content[TARGET]}), example)
    assert_refused(found, "the package's index: it does not begin as one")
    digest = hashlib.sha256(content[INDEX]).digest()
    replaced = {INDEX: sealed_index([("native", (), digest)]), TARGET: content[INDEX]}
    found = one(rewrite(package, tmp_path / "target.pt", replaced), example)
    assert_refused(found, "a package's target: it does not begin as one")


def test_another_processor(package: Path, example: Path, tmp_path: Path) -> None:
    content = content_of(records(package)[TARGET])
    found = one(rewrite(package, tmp_path / "model.pt", sealed(content, features=["avx4096"])), example)
    assert_refused(found, "no code for this processor, but for native")


@pytest.mark.parametrize("record", [INDEX, TARGET])
@pytest.mark.sampled(1)
def test_a_record_twice(package: Path, example: Path, tmp_path: Path, record: str) -> None:
    """Either is found, whole."""
    content = records(package)[record]
    path = rewrite(package, tmp_path / "model.pt", {record: flipped(content, 8 * (len(content) - 1))}, twice=[record])
    found = one(path, example)
    assert_harmless(found, "")
    assert found.error or found.packages == 1 or "checksum" in found.refused[0] or "not the one" in found.refused[0]


@pytest.mark.parametrize("name", ["", "../../version", "a" * 1000, "native\n"])
@pytest.mark.sampled(1)
def test_a_name_that_no_target_has(package: Path, example: Path, tmp_path: Path, name: str) -> None:
    content = content_of(records(package)[TARGET])
    replaced = {**sealed(content, name=name), TARGET: b""}
    found = one(rewrite(package, tmp_path / "model.pt", {INDEX: replaced[INDEX]}), example)
    assert_refused(found, "a target's name is none")


# --- content that is sealed rightly, and wrong


def test_random_content(package: Path, example: Path, folder: Path) -> None:
    paths = []
    for seed in range(60):
        draw = random.Random(seed)
        content = draw.randbytes(draw.randrange(300))
        if seed % 2:  # so that some are found behind the counts that stand first
            content = struct.pack("<qq", 0, 1) + content
        paths.append(rewrite(package, folder / f"target-{seed}.pt", sealed(content)))
        index = format._INDEX.seal({}, content)
        paths.append(rewrite(package, folder / f"index-{seed}.pt", {INDEX: index}))
    for path, found in load_all(paths, example).items():
        assert_harmless(found, path.name)
        # An index may be read as that of no targets.
        assert found.refused, f"{path.name}: {found}"


def test_content_that_ends_anywhere(package: Path, example: Path, folder: Path) -> None:
    content = content_of(records(package)[TARGET])
    sizes = range(0, len(content), max(len(content) // 80, 1))
    paths = [rewrite(package, folder / f"{size}.pt", sealed(content[:size])) for size in sizes]
    for path, found in load_all(paths, example).items():
        assert_refused(found, "", path.name)


class Noting(FieldWriter):
    """Notes where in the content what kind of field lies."""

    latest: Noting

    def __init__(self) -> None:
        super().__init__()
        Noting.latest = self
        self.integers_at: list[int] = []
        self.bytes_at: list[int] = []
        self._size = 0

    def raw(self, data: bytes) -> None:
        super().raw(data)
        self._size += len(data)

    def byte(self, value: int) -> None:
        self.bytes_at.append(self._size)
        super().byte(value)
        self._size += 1

    def integer(self, value: int) -> None:
        self.integers_at.append(self._size)
        super().integer(value)
        self._size += 8

    def real(self, value: float) -> None:
        super().real(value)
        self._size += 8


@pytest.fixture(scope="module", params=[(2,), (2, 3, 5)], ids=["static", "dynamic"])
def noted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, bytes, Sequence[int], Sequence[int]]:
    """A package, the content of its target, and where that has integers and bytes."""
    noted: list[Noting] = []

    def block(target: format.Target, write: Callable[[format.Target], bytes] = format._block) -> bytes:
        made = write(target)
        noted.append(Noting.latest)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format, "FieldWriter", Noting)
        patch.setattr(format, "_block", block)
        package = make_package(tmp_path_factory.mktemp("noted") / "model.pt", sizes=request.param, pack_weights=True)
    content = content_of(records(package)[TARGET])
    assert noted[0].getvalue() == content
    return package, content, noted[0].integers_at, noted[0].bytes_at


@pytest.mark.sampled(1)
def test_numbers_out_of_any_range(
    noted: tuple[Path, bytes, Sequence[int], Sequence[int]], example: Path, folder: Path
) -> None:
    """Each number in turn: counts, indices, sizes, numbers of bytes. A number of a signature may be any, and then the
    code is for inputs that nobody has."""
    package, content, places, _ = noted
    paths = []
    for place in places:
        for number in (-1, (1 << 63) - 1, 1 << 41):
            altered = content[:place] + struct.pack("<q", number) + content[place + 8 :]
            paths.append(rewrite(package, folder / f"{place}-{number}.pt", sealed(altered)))
    for path, found in load_all(paths, example).items():
        assert_harmless(found, path.name)
        assert not found.error, f"{path.name}: {found}"


@pytest.mark.sampled(1)
def test_kinds_that_there_are_not(
    noted: tuple[Path, bytes, Sequence[int], Sequence[int]], example: Path, folder: Path
) -> None:
    package, content, _, places = noted
    paths = []
    for place in places:
        altered = content[:place] + b"\xff" + content[place + 1 :]
        paths.append(rewrite(package, folder / f"{place}.pt", sealed(altered)))
    for path, found in load_all(paths, example).items():
        assert_harmless(found, path.name)


# --- code that is bound to what there is not


def package_of(path: Path, alter: Callable[[format.Target], format.Target], **options: object) -> Path:
    """A package whose target is written otherwise."""

    def block(target: format.Target, write: Callable[[format.Target], bytes] = format._block) -> bytes:
        return write(alter(target))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format, "_block", block)
        return make_package(path, **options)  # type: ignore[arg-type]


def with_compiled(alter: Callable[[Any], dict[str, Any]]) -> Callable[[format.Target], format.Target]:
    """Fields of what each specialisation was compiled to."""

    def altered(one: Specialisation) -> Specialisation:
        assert one.compiled is not None
        return replace(one, compiled=replace(one.compiled, **alter(one.compiled)))

    return lambda target: replace(target, specialisations=list(map(altered, target.specialisations)))


def with_manifest(alter: Callable[[Manifest], dict[str, Any]]) -> Callable[[format.Target], format.Target]:
    """Fields of each artifact's manifest."""

    def altered(code: TargetCode | None) -> TargetCode:
        assert code is not None
        manifest = replace(code.artifact.manifest, **alter(code.artifact.manifest))
        return TargetCode(replace(code.artifact, manifest=manifest), [None] * len(manifest.packs))

    return lambda target: replace(target, codes=list(map(altered, target.codes)))


def divided_around(*nodes: int) -> Callable[[format.Target], format.Target]:
    """Each specialisation runs in groups around these nodes."""

    def altered(one: Specialisation) -> Specialisation:
        return replace(one, compiled=None, left_out=nodes)

    return lambda target: replace(
        target,
        specialisations=list(map(altered, target.specialisations)),
        codes=[None] * len(target.specialisations),
    )


def with_output(**places: object) -> Callable[[format.Target], format.Target]:
    """Parts of each output that is a tensor: result, dtype, sizes, strides, quantisation."""

    def altered(output: tuple[Any, ...]) -> tuple[Any, ...]:
        names = ("result", "dtype", "sizes", "strides", "quantisation")
        return tuple(places.get(name, was) for name, was in zip(names, output, strict=True))

    return with_compiled(lambda compiled: {"outputs": [(kind, altered(output)) for kind, output in compiled.outputs]})


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (
            with_compiled(lambda was: {"bindings": tuple(replace(one, index=100) for one in was.bindings)}),
            "the code takes input 100 of a group that has",
        ),
        (with_compiled(lambda was: {"outputs": [*was.outputs, *was.outputs]}), "the code has 2 outputs, the group 1"),
        (with_compiled(lambda was: {"outputs": []}), "the code has 0 outputs, the group 1"),
        (with_output(result=3), "must be in that order"),
        (with_output(sizes=(2, 4), strides=(4,)), "more sizes than strides, or fewer"),
        (with_output(sizes=(-2, 4)), "sizes or strides that there are not"),
        (with_output(sizes=(1 << 40, 1 << 40)), "sizes or strides that there are not"),
        (with_output(quantisation=(1.0, 0)), "not of integers of 8 bits"),
        (with_output(sizes=((((1,), 1),), 4)), "varies with a symbol that there is not"),
        (with_manifest(lambda was: {"entry": "nobody"}), "the code has no function nobody"),
        (with_manifest(lambda was: {"entry": ""}), "needs the address of its entry"),
        (with_manifest(lambda was: {"workspace_bytes": 1 << 50}), "a number of bytes is none"),
        (with_manifest(lambda was: {"packs": (Pack("", "recipe", (0,), 8),)}), "a pack is of no function"),
        (with_manifest(lambda was: {"packs": (Pack(was.entry, "recipe", (99,), 8),)}), "only parameters that lie"),
        (divided_around(), "a division leaves nothing out"),
        (divided_around(1 << 40), "a division leaves nothing out"),
    ],
)
@pytest.mark.sampled(1)
def test_what_code_is_bound_to(
    alter: Callable[[format.Target], format.Target], reason: str, example: Path, tmp_path: Path
) -> None:
    """Not frozen, so that weights are inputs."""
    found = one(package_of(tmp_path / "model.pt", alter, freeze=False), example)
    assert_harmless(found, "")
    assert not found.error and any(reason in refused for refused in found.refused), found


@pytest.mark.parametrize("ready", [False, True], ids=["called", "ready"])
@pytest.mark.parametrize(
    "alter",
    [
        lambda was: {"bindings": tuple(replace(one, element=3) for one in was.bindings)},
        lambda was: {"arguments": tuple(replace(one, kind="scalar") for one in was.arguments)},
    ],
    ids=["lists", "numbers"],
)
@pytest.mark.sampled(1)
def test_inputs_of_another_kind(
    alter: Callable[[Any], dict[str, Any]], ready: bool, example: Path, tmp_path: Path
) -> None:
    """The code takes lists, or numbers, where the group has tensors. It is bound in a call or before one."""
    path = package_of(tmp_path / "model.pt", with_compiled(alter), freeze=False)
    found = load_all([path], example, ready=ready)[path]
    assert_harmless(found, "")
    assert not found.error and any("inputs that the group does not have" in text for text in found.refused), found


def test_a_dtype_that_nothing_is_computed_in(example: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(specialisation, "SCALAR_TYPES", {torch.float32: 14})
        package = make_package(tmp_path / "model.pt")
    assert_refused(one(package, example), "nothing is computed of dtype QInt32")


def test_a_division_for_any_sizes(example: Path, tmp_path: Path) -> None:
    """It has no code, and a pattern of sizes that says that it does."""

    def write_head(self: Specialisation, writer: FieldWriter) -> None:
        writer.raw(self.structure)
        writer.integers(self.signature)
        writer.integers(())
        writer.byte(True)
        writer.integer(1)
        writer.integers([-1] * len(self.signature))
        for _ in range(3):  # nodes, what is computed, conditions
            writer.integers(())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Specialisation, "_write_head", write_head)
        package = package_of(tmp_path / "model.pt", divided_around(1))
    assert_refused(one(package, example), "a division is for any sizes")

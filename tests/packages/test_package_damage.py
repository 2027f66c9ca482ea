"""Damaged and malicious packages: they are refused with a reason, and programs run without them.

PyTorch itself refuses damaged archives (``torch.jit.load`` raises an error). No process may crash. Each test loads all
of its files in one process. If this process crashes, the error names the file.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
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

# The additional memory that a process may request for a file of some kilobytes.
MOST_MEMORY = 1 << 30


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_example(tmp_path_factory.mktemp("example") / "example")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_package(tmp_path_factory.mktemp("package") / "model.pt")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder for hundreds of files, which is removed after the test."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def assert_harmless(outcome: Found, name: str) -> None:
    assert outcome.error or outcome.matches, f"{name}: {outcome}"
    assert outcome.peak < MOST_MEMORY, f"{name}: {outcome}"


def assert_refused(outcome: Found, reason: str, name: str = "") -> None:
    assert_harmless(outcome, name)
    assert not outcome.error and outcome.packages == 0 and len(outcome.refused) == 1, f"{name}: {outcome}"
    assert reason in outcome.refused[0], f"{name}: {outcome}"


def load_one(path: Path, example: Path) -> Found:
    return load_all([path], example)[path]


def assert_all_refused(paths: Sequence[Path], example: Path) -> None:
    for path, outcome in load_all(paths, example).items():
        assert_refused(outcome, "", path.name)


def flipped(data: bytes, bit: int) -> bytes:
    altered = bytearray(data)
    altered[bit // 8] ^= 1 << bit % 8
    return bytes(altered)


# --- accidents


def offsets_of_records(path: Path, part: str) -> list[int]:
    """Return the byte offsets in the file of the records with ``part`` in their names, headers included."""
    with zipfile.ZipFile(path) as archive:
        starts = [*sorted(info.header_offset for info in archive.infolist()), archive.start_dir]
        spans = [
            range(info.header_offset, next(start for start in starts if start > info.header_offset))
            for info in archive.infolist()
            if part in info.filename
        ]
    return [offset for span in spans for offset in span]


def test_bits_of_the_file_are_flipped(package: Path, example: Path, folder: Path) -> None:
    """Flip bits of a file. PyTorch itself detects some of the flips.

    Undetected flips, also those of weights, change the results of eager PyTorch too. PyTorch's reader of source lines
    trusts its records and may crash, so they are left out.
    """
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
    outcomes = load_all(paths, example)
    for path, place in zip(paths, places, strict=True):
        # PyTorch's unpickler reserves as much memory as a damaged length specifies.
        result = replace(outcomes[path], peak=0) if place in outside else outcomes[path]
        assert_harmless(result, path.name)
    # The test would check nothing if PyTorch refused all files.
    assert sum(bool(outcome.refused) for outcome in outcomes.values()) > 50


@pytest.mark.parametrize("record", [INDEX, TARGET])
@pytest.mark.sampled(1)
def test_bits_of_a_record_are_flipped(package: Path, example: Path, folder: Path, record: str) -> None:
    """Flip bits in an archive with correct checksums, so that only our seals detect them."""
    content = records(package)[record]
    draw = random.Random(record)
    bits = [draw.randrange(len(content) * 8) for _ in range(250)]
    places = {folder / f"{seed:03}-bit-{bit}.pt": bit for seed, bit in enumerate(bits)}
    paths = [rewrite(package, path, {record: flipped(content, bit)}) for path, bit in places.items()]
    assert_all_refused(paths, example)


def test_a_file_is_cut_short(package: Path, example: Path, folder: Path) -> None:
    data = package.read_bytes()
    paths = []
    for size in range(0, len(data), len(data) // 40):
        path = folder / f"{size}.pt"
        path.write_bytes(data[:size])
        paths.append(path)
    assert all(outcome.error for outcome in load_all(paths, example).values())


@pytest.mark.parametrize("record", [INDEX, TARGET])
@pytest.mark.sampled(1)
def test_a_record_is_cut_short_or_extended(package: Path, example: Path, folder: Path, record: str) -> None:
    content = records(package)[record]
    altered = [content[:size] for size in range(0, len(content), len(content) // 20)] + [content + b"\0"]
    paths = [rewrite(package, folder / f"{len(part)}.pt", {record: part}) for part in altered]
    assert_all_refused(paths, example)


# --- packages that do not fit together


def test_a_target_is_missing(package: Path, example: Path, tmp_path: Path) -> None:
    outcome = load_one(rewrite(package, tmp_path / "model.pt", {TARGET: None}), example)
    assert_refused(outcome, "lacks its target native")


def test_targets_of_two_packages_are_swapped(package: Path, example: Path, tmp_path: Path) -> None:
    other = make_package(tmp_path / "other.pt", width=24)
    swapped = rewrite(package, tmp_path / "model.pt", {TARGET: records(other)[TARGET]})
    assert_refused(load_one(swapped, example), "target native is not the one that its index has")


def test_a_package_of_another_program_is_no_use(package: Path, example: Path, tmp_path: Path) -> None:
    """The package is intact and loaded, but no group of the program has its structure."""
    other = make_package(tmp_path / "other.pt", width=24)
    outcome = load_one(rewrite(package, tmp_path / "model.pt", records(other)), example)
    assert_harmless(outcome, "")
    assert outcome.packages == 1


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
    outcome = load_one(rewrite(package, tmp_path / "model.pt", replaced), example)
    assert_refused(outcome, f"{part}: it is of version 99, where version")


def test_one_kind_of_block_is_no_other(package: Path, example: Path, tmp_path: Path) -> None:
    content = records(package)
    outcome = load_one(rewrite(package, tmp_path / "index.pt", {INDEX: content[TARGET]}), example)
    assert_refused(outcome, "the package's index: it does not begin as one")
    digest = hashlib.sha256(content[INDEX]).digest()
    replaced = {INDEX: sealed_index([("native", (), digest)]), TARGET: content[INDEX]}
    outcome = load_one(rewrite(package, tmp_path / "target.pt", replaced), example)
    assert_refused(outcome, "a package's target: it does not begin as one")


def test_another_processor(package: Path, example: Path, tmp_path: Path) -> None:
    content = content_of(records(package)[TARGET])
    outcome = load_one(rewrite(package, tmp_path / "model.pt", sealed(content, features=["avx4096"])), example)
    assert_refused(outcome, "no code for this processor, but for native")


@pytest.mark.parametrize("record", [INDEX, TARGET])
@pytest.mark.sampled(1)
def test_a_record_twice(package: Path, example: Path, tmp_path: Path, record: str) -> None:
    """The reader finds either record, complete."""
    content = records(package)[record]
    path = rewrite(package, tmp_path / "model.pt", {record: flipped(content, 8 * (len(content) - 1))}, twice=[record])
    outcome = load_one(path, example)
    assert_harmless(outcome, "")
    assert outcome.error or outcome.packages == 1 or re.search("checksum|not the one", outcome.refused[0])


@pytest.mark.parametrize("name", ["", "../../version", "a" * 1000, "native\n"])
@pytest.mark.sampled(1)
def test_a_name_that_no_target_has(package: Path, example: Path, tmp_path: Path, name: str) -> None:
    content = content_of(records(package)[TARGET])
    replaced = {**sealed(content, name=name), TARGET: b""}
    outcome = load_one(rewrite(package, tmp_path / "model.pt", {INDEX: replaced[INDEX]}), example)
    assert_refused(outcome, "invalid target name")


# --- content that is sealed rightly, and wrong


def test_random_content(package: Path, example: Path, folder: Path) -> None:
    paths = []
    for seed in range(60):
        draw = random.Random(seed)
        content = draw.randbytes(draw.randrange(300))
        if seed % 2:  # then some content passes the counts at the start
            content = struct.pack("<qq", 0, 1) + content
        paths.append(rewrite(package, folder / f"target-{seed}.pt", sealed(content)))
        index = format._INDEX.seal({}, content)
        paths.append(rewrite(package, folder / f"index-{seed}.pt", {INDEX: index}))
    for path, outcome in load_all(paths, example).items():
        assert_harmless(outcome, path.name)
        # An index may be read as one without targets.
        assert outcome.refused, f"{path.name}: {outcome}"


def test_content_that_ends_anywhere(package: Path, example: Path, folder: Path) -> None:
    content = content_of(records(package)[TARGET])
    sizes = range(0, len(content), max(len(content) // 80, 1))
    paths = [rewrite(package, folder / f"{size}.pt", sealed(content[:size])) for size in sizes]
    assert_all_refused(paths, example)


# A package, the content of its target, and the offsets of integers and bytes in it.
Noted = tuple[Path, bytes, Sequence[int], Sequence[int]]


class Noting(FieldWriter):
    """A writer that notes the offsets of integers and bytes in the content."""

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
def noted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Noted:
    noted: list[Noting] = []

    def block(target: format.Target, write: Callable[[format.Target], bytes] = format._block) -> bytes:
        written = write(target)
        noted.append(Noting.latest)
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format, "FieldWriter", Noting)
        patch.setattr(format, "_block", block)
        package = make_package(tmp_path_factory.mktemp("noted") / "model.pt", sizes=request.param, pack_weights=True)
    content = content_of(records(package)[TARGET])
    assert noted[0].getvalue() == content
    return package, content, noted[0].integers_at, noted[0].bytes_at


@pytest.mark.sampled(1)
def test_numbers_out_of_any_range(noted: Noted, example: Path, folder: Path) -> None:
    """Replace each number in turn: counts, indices, sizes, numbers of bytes.

    A number of a signature may have any value. The code is then for inputs that do not occur.
    """
    package, content, places, _ = noted
    paths = []
    for place, number in itertools.product(places, (-1, (1 << 63) - 1, 1 << 41)):
        altered = content[:place] + struct.pack("<q", number) + content[place + 8 :]
        paths.append(rewrite(package, folder / f"{place}-{number}.pt", sealed(altered)))
    for path, outcome in load_all(paths, example).items():
        assert_harmless(outcome, path.name)
        assert not outcome.error, f"{path.name}: {outcome}"


@pytest.mark.sampled(1)
def test_kinds_that_there_are_not(noted: Noted, example: Path, folder: Path) -> None:
    package, content, _, places = noted
    altered = {place: content[:place] + b"\xff" + content[place + 1 :] for place in places}
    paths = [rewrite(package, folder / f"{place}.pt", sealed(other)) for place, other in altered.items()]
    for path, outcome in load_all(paths, example).items():
        assert_harmless(outcome, path.name)


# --- code with bindings that do not exist


def package_of(path: Path, alter: Callable[[format.Target], format.Target], **options: object) -> Path:
    """Return a package whose target is altered before it is written."""

    def block(target: format.Target, write: Callable[[format.Target], bytes] = format._block) -> bytes:
        return write(alter(target))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format, "_block", block)
        return make_package(path, **options)  # type: ignore[arg-type]


def with_compiled(alter: Callable[[Any], dict[str, Any]]) -> Callable[[format.Target], format.Target]:
    """Return a function that alters fields of the compiled code of each specialisation."""

    def altered(original: Specialisation) -> Specialisation:
        assert original.compiled is not None
        return replace(original, compiled=replace(original.compiled, **alter(original.compiled)))

    return lambda target: replace(target, specialisations=list(map(altered, target.specialisations)))


def with_manifest(alter: Callable[[Manifest], dict[str, Any]]) -> Callable[[format.Target], format.Target]:
    """Return a function that alters fields of each artifact's manifest."""

    def altered(code: TargetCode | None) -> TargetCode:
        assert code is not None
        manifest = replace(code.artifact.manifest, **alter(code.artifact.manifest))
        return TargetCode(code.device, replace(code.artifact, manifest=manifest), [None] * len(manifest.packs))

    return lambda target: replace(target, codes=list(map(altered, target.codes)))


def divided_around(*nodes: int) -> Callable[[format.Target], format.Target]:
    """Return a function that divides each specialisation into groups around these nodes."""

    def altered(original: Specialisation) -> Specialisation:
        return replace(original, compiled=None, left_out=nodes)

    return lambda target: replace(
        target, specialisations=list(map(altered, target.specialisations)), codes=[None] * len(target.specialisations)
    )


def with_output(**places: object) -> Callable[[format.Target], format.Target]:
    """Return a function that alters parts of each tensor output: result, dtype, sizes, strides, quantisation."""

    def altered(output: tuple[Any, ...]) -> tuple[Any, ...]:
        names = ("result", "dtype", "sizes", "strides", "quantisation")
        return tuple(places.get(name, was) for name, was in zip(names, output, strict=True))

    return with_compiled(lambda compiled: {"outputs": [(kind, altered(output)) for kind, output in compiled.outputs]})


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (
            with_compiled(lambda was: {"bindings": tuple(replace(binding, index=100) for binding in was.bindings)}),
            "the code takes input 100 of a group that has",
        ),
        (with_compiled(lambda was: {"outputs": [*was.outputs, *was.outputs]}), "the code has 2 outputs, the group 1"),
        (with_compiled(lambda was: {"outputs": []}), "the code has 0 outputs, the group 1"),
        (with_output(result=3), "must be in that order"),
        (with_output(sizes=(2, 4), strides=(4,)), "more sizes than strides, or fewer"),
        (with_output(sizes=(-2, 4)), "invalid sizes or strides"),
        (with_output(sizes=(1 << 40, 1 << 40)), "invalid sizes or strides"),
        (with_output(quantisation=(1.0, 0)), "not of integers of 8 bits"),
        (with_output(sizes=((((1,), 1),), 4)), "varies with an unknown symbol"),
        (with_manifest(lambda was: {"entry": "nobody"}), "the code has no function nobody"),
        (with_manifest(lambda was: {"entry": ""}), "needs the address of its entry"),
        (with_manifest(lambda was: {"workspace_bytes": 1 << 50}), "invalid number of bytes"),
        (with_manifest(lambda was: {"packs": (Pack("", "recipe", (0,), 8),)}), "a pack has no function"),
        (with_manifest(lambda was: {"packs": (Pack(was.entry, "recipe", (99,), 8),)}), "only parameters that lie"),
        (divided_around(), "a division leaves nothing out"),
        (divided_around(1 << 40), "a division leaves nothing out"),
    ],
)
@pytest.mark.sampled(1)
def test_altered_bindings_are_refused(
    alter: Callable[[format.Target], format.Target], reason: str, example: Path, tmp_path: Path
) -> None:
    """Alter bindings of a program that is not frozen, so that weights are inputs."""
    outcome = load_one(package_of(tmp_path / "model.pt", alter, freeze=False), example)
    assert_harmless(outcome, "")
    assert not outcome.error and any(reason in refused for refused in outcome.refused), outcome


@pytest.mark.parametrize("ready", [False, True], ids=["called", "ready"])
@pytest.mark.parametrize(
    "alter",
    [
        lambda was: {"bindings": tuple(replace(binding, element=3) for binding in was.bindings)},
        lambda was: {"arguments": tuple(replace(argument, kind="scalar") for argument in was.arguments)},
    ],
    ids=["lists", "numbers"],
)
@pytest.mark.sampled(1)
def test_inputs_of_another_kind(
    alter: Callable[[Any], dict[str, Any]], ready: bool, example: Path, tmp_path: Path
) -> None:
    """The code takes lists or numbers, but the group has tensors. It is bound in a call or before one."""
    path = package_of(tmp_path / "model.pt", with_compiled(alter), freeze=False)
    outcome = load_all([path], example, ready=ready)[path]
    assert_harmless(outcome, "")
    assert not outcome.error and any("inputs that the group does not have" in text for text in outcome.refused), outcome


def test_a_dtype_that_nothing_is_computed_in(example: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(specialisation, "SCALAR_TYPES", {torch.float32: 14})
        package = make_package(tmp_path / "model.pt")
    assert_refused(load_one(package, example), "nothing is computed of dtype QInt32")


def test_a_division_for_any_sizes(example: Path, tmp_path: Path) -> None:
    """A division has no code, and its pattern of sizes claims that it does."""

    def write_head(self: Specialisation, writer: FieldWriter) -> None:
        writer.raw(self.structure)
        writer.integers(self.signature)
        writer.integers(())
        writer.byte(True)
        writer.integer(1)
        writer.integers([-1] * len(self.signature))
        for _ in range(3):  # nodes, computed sizes, conditions
            writer.integers(())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Specialisation, "_write_head", write_head)
        package = package_of(tmp_path / "model.pt", divided_around(1))
    assert_refused(load_one(package, example), "a division is dynamic")

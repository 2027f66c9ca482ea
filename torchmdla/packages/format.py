"""The parts of a package: an index and a block for each target, sealed (:mod:`torchmdla.compiler.checksummed`).

They are records of an archive that PyTorch writes: ``torchmdla/index`` and ``torchmdla/targets/<name>``. TorchScript's
archives have them among their extra files; exported programs, whose extra files must be text, beside them. What
programs read is binary (``src/package/package.cpp``); before it stands a description for people, in JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchmdla.compiler.checksummed import Format
from torchmdla.packages.fields import FieldWriter
from torchmdla.packages.specialisation import Specialisation, TargetCode
from torchmdla.packages.weights import Weights

FOLDER = "torchmdla/"
INDEX = f"{FOLDER}index"


class DamagedPackage(ValueError):
    """A part of a package is truncated, altered, or of another version."""


# As in src/package/package.cpp.
_VERSION = 2
_REMEDY = "package the model anew (python -m torchmdla package)"
_INDEX = Format(b"torchmdla-index", _VERSION, "a package's index", _REMEDY, DamagedPackage)
_TARGET = Format(b"torchmdla-target", _VERSION, "a package's target", _REMEDY, DamagedPackage)


def record_of(target: str) -> str:
    """The name of a target's record."""
    return f"{FOLDER}targets/{target}"


def weights_record_of(target: str) -> str:
    """The name of the record of a target's packed weights."""
    return f"{FOLDER}weights/{target}"


@dataclass(frozen=True)
class TargetInfo:
    """A target of a package, for people.

    Attributes:
        name: as :func:`torchmdla.save` was given it.
        cpu: the processor that instructions are scheduled for.
        features: of a processor, that its code uses, by LLVM's names.
        size: bytes of its block.
        digest: SHA-256 of its block, in hexadecimal.
        weights: bytes of packed weights.
        groups: what it has code for, a line for each.
    """

    name: str
    cpu: str
    features: tuple[str, ...]
    size: int
    digest: str
    weights: int
    groups: tuple[str, ...]


@dataclass(frozen=True)
class PackageInfo:
    """A package, for people.

    Attributes:
        targets: what it has code for.
        versions: of what made it, by name.
        signer: the number of the key that it says it is signed by, which is not verified; empty where it is not signed.
    """

    targets: tuple[TargetInfo, ...]
    versions: Mapping[str, str]
    signer: str = ""


@dataclass(frozen=True)
class Target:
    """A target's code: ``codes`` of ``specialisations``, None of those that have none, and what packs made."""

    name: str
    cpu: str
    features: tuple[str, ...]
    specialisations: Sequence[Specialisation]
    codes: Sequence[TargetCode | None]
    weights: Weights


def records(targets: Sequence[Target], groups: Sequence[str], versions: Mapping[str, str]) -> dict[str, bytes]:
    """The package, by the names of its records. ``groups``: lines that say what it has code for."""
    files = {record_of(target.name): _block(target) for target in targets}
    files |= {weights_record_of(target.name): target.weights.getvalue() for target in targets if target.weights.infos}
    infos = [_info(target, files[record_of(target.name)], groups) for target in targets]
    writer = FieldWriter()

    def write(info: TargetInfo) -> None:
        writer.text(info.name)
        writer.list(info.features, writer.text)
        writer.raw(bytes.fromhex(info.digest))

    writer.list(infos, write)
    description = {"targets": list(map(asdict, infos)), "versions": dict(versions)}
    return {INDEX: _INDEX.seal(description, writer.getvalue()), **files}


def info_of(index: bytes) -> PackageInfo:
    """What an index says for people.

    Raises:
        DamagedPackage: it is no intact index of this version.
    """

    def read(description: dict[str, Any], content: bytes) -> PackageInfo:
        targets = [
            TargetInfo(**{**raw, "features": tuple(raw["features"]), "groups": tuple(raw["groups"])})
            for raw in description["targets"]
        ]
        return PackageInfo(tuple(targets), description["versions"])

    return _INDEX.open(index, read)


def check_target(info: TargetInfo, block: bytes) -> None:
    """
    Raises:
        DamagedPackage: ``block`` is not what the index has of the target.
    """
    if hashlib.sha256(block).hexdigest() != info.digest:
        raise DamagedPackage(f"target {info.name} is not the one that the index has; {_REMEDY}")
    _TARGET.open(block, lambda description, content: None)


def _block(target: Target) -> bytes:
    # Equal groups have one artifact, hence one image.
    images = {code.artifact.object_code: 0 for code in target.codes if code is not None}
    numbers = {image: number for number, image in enumerate(images)}
    writer = FieldWriter()
    writer.list(images, writer.block)
    writer.integer(len(target.specialisations))
    for specialisation, code in zip(target.specialisations, target.codes, strict=True):
        specialisation.write(writer, code, 0 if code is None else numbers[code.artifact.object_code])
    return _TARGET.seal({}, writer.getvalue())


def _info(target: Target, block: bytes, groups: Sequence[str]) -> TargetInfo:
    digest = hashlib.sha256(block).hexdigest()
    weights = sum(weight.size for weight in target.weights.infos)
    return TargetInfo(target.name, target.cpu, target.features, len(block), digest, weights, tuple(groups))

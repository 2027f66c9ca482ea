"""Parts of a package: an index and a block for each target, sealed (:mod:`torchmdla.compiler.checksummed`).

They are records of an archive that PyTorch writes: ``torchmdla/index`` and ``torchmdla/targets/<name>``. In a
TorchScript archive they are extra files. In the archive of an exported program they are beside the extra files, which
must be text. Programs read the binary part (``src/package/package.cpp``). It is preceded by a description for humans,
in JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchmdla.compile_service.stored_code import stored_code
from torchmdla.compiler.checksummed import Format
from torchmdla.packages.fields import FieldWriter
from torchmdla.packages.specialisation import Specialisation, TargetCode
from torchmdla.packages.weights import Weights

FOLDER = "torchmdla/"
INDEX = f"{FOLDER}index"
WEIGHTS = f"{FOLDER}weights/"


class DamagedPackage(ValueError):
    """Error for a part of a package that is truncated, altered, or of another version."""


# The same values as in src/package/package.cpp.
_VERSION = 2
_REMEDY = "package the model anew (python -m torchmdla package)"
_INDEX = Format(b"torchmdla-index", _VERSION, "a package's index", _REMEDY, DamagedPackage)
_TARGET = Format(b"torchmdla-target", _VERSION, "a package's target", _REMEDY, DamagedPackage)


def record_of(target: str) -> str:
    """Return the name of a target's record."""
    return f"{FOLDER}targets/{target}"


def weights_record_of(target: str) -> str:
    """Return the name of the record of a target's packed weights."""
    return f"{WEIGHTS}{target}"


@dataclass(frozen=True)
class TargetInfo:
    """Description of a target of a package, for humans.

    Attributes:
        name: the name in the call of :func:`torchmdla.save`.
        cpu: the processor that instructions are scheduled for.
        features: what the code needs: processor features by LLVM's names, and features of devices
            (:mod:`torchmdla.compile_service.stored_code`).
        size: bytes of its block.
        digest: SHA-256 of its block, in hexadecimal.
        weights: bytes of packed weights.
        groups: one line for each group that has code.
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
    """Description of a package, for humans.

    Attributes:
        targets: the targets that have code.
        versions: versions of the producers, by name.
        signer: the key identifier in the signature, not verified; empty if the package is not signed.
    """

    targets: tuple[TargetInfo, ...]
    versions: Mapping[str, str]
    signer: str = ""


@dataclass(frozen=True)
class Target:
    """Code of a target: ``codes`` of ``specialisations`` (None for those without code), and the packed weights."""

    name: str
    cpu: str
    features: tuple[str, ...]
    specialisations: Sequence[Specialisation]
    codes: Sequence[TargetCode | None]
    weights: Weights


def records(targets: Sequence[Target], groups: Sequence[str], versions: Mapping[str, str]) -> dict[str, bytes]:
    """Return the package as records by name. ``groups`` describe the code, one line for each group."""
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
    """Return the description in an index, for humans.

    Raises:
        DamagedPackage: ``index`` is not an intact index of this version.
    """

    def read(description: dict[str, Any], content: bytes) -> PackageInfo:
        targets = [
            TargetInfo(**{**raw, "features": tuple(raw["features"]), "groups": tuple(raw["groups"])})
            for raw in description["targets"]
        ]
        return PackageInfo(tuple(targets), description["versions"])

    return _INDEX.open(index, read)


def check_target(info: TargetInfo, block: bytes) -> None:
    """Check the block of a target against the index.

    Raises:
        DamagedPackage: ``block`` does not match the digest in the index, or is damaged.
    """
    if hashlib.sha256(block).hexdigest() != info.digest:
        raise DamagedPackage(f"target {info.name} is not the one that the index has; {_REMEDY}")
    _TARGET.open(block, lambda description, content: None)


def _block(target: Target) -> bytes:
    # Equal groups share one artifact, hence one image.
    stored = [None if code is None else stored_code(code.artifact, code.device) for code in target.codes]
    images = dict.fromkeys(image for image in stored if image is not None)
    numbers = {image: number for number, image in enumerate(images)}
    writer = FieldWriter()
    writer.list(images, writer.block)
    writer.integer(len(target.specialisations))
    for specialisation, code, image in zip(target.specialisations, target.codes, stored, strict=True):
        specialisation.write(writer, code, 0 if image is None else numbers[image])
    return _TARGET.seal({}, writer.getvalue())


def _info(target: Target, block: bytes, groups: Sequence[str]) -> TargetInfo:
    digest = hashlib.sha256(block).hexdigest()
    weights = sum(weight.size for weight in target.weights.infos)
    return TargetInfo(target.name, target.cpu, target.features, len(block), digest, weights, tuple(groups))

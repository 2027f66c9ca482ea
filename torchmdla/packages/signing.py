"""Signing of packages, and the keys that are trusted.

A signature covers the index, which contains the digests of the targets. ``src/package/signature.cpp`` checks
signatures.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

from torchmdla import _C
from torchmdla.compile_service import signatures
from torchmdla.compile_service.signatures import DamagedSignature, SigningKey
from torchmdla.packages.format import FOLDER, INDEX, DamagedPackage, check_target, info_of, record_of
from torchmdla.support.files import atomic_write

SIGNATURE = f"{FOLDER}signature"

# The same value as in src/package/signature.h.
_SIGNED_AS = b"torchmdla: the index of a package, version 1\n"


def require_signatures(keys: Sequence[str | os.PathLike[str]] | None) -> None:
    """Accept only packages that are signed by one of these keys, from the next file on.

    Other packages are refused and counted, and their programs run without them. Until this is called, the environment
    variable ``TORCHMDLA_REQUIRE_SIGNATURE`` has the same effect, with colons between the paths. Packages that are
    already loaded are retained.

    Args:
        keys: files of public keys (PEM), or folders of such files. They are read whenever a package is read. With None,
            signatures are not required, whatever the environment specifies. A package's file must then belong to this
            user or root, and no other user may be able to write to it.

    Raises:
        ValueError: a file cannot be read, is not a public Ed25519 key, or may have been written by another user.
    """
    if isinstance(keys, str):
        raise TypeError("require_signatures takes a sequence of paths, not one")
    _C.set_demanded_keys(None if keys is None else [os.fspath(key) for key in keys])


def signature_of(index: bytes, key: SigningKey) -> bytes:
    """Return the signature record of an index."""
    return key.sign(_SIGNED_AS, index)


def sign(
    file: str | os.PathLike[str], key: str | os.PathLike[str], out: str | os.PathLike[str] | None = None
) -> SigningKey:
    """Sign the package in a file, replacing an existing signature; all other bytes are unchanged.

    Args:
        file: a package.
        key: the file of a private key.
        out: the path of the signed package; by default it replaces ``file``.

    Returns:
        The key.

    Raises:
        DamagedPackage: the file does not contain a package, or the package is damaged.
        KeyProblem, ImportError, OSError: as :class:`SigningKey`.
    """
    signing_key = SigningKey(key)
    with atomic_write(Path(file if out is None else out)) as temporary:
        shutil.copyfile(file, temporary)
        try:
            with zipfile.ZipFile(temporary, "a") as archive:
                folder = _folder_of_package(archive, file)
                index = archive.read(folder + INDEX)
                for target in info_of(index).targets:
                    check_target(target, archive.read(folder + record_of(target.name)))
                if folder + SIGNATURE in archive.NameToInfo:
                    # Its bytes are retained, because the following records must not move.
                    archive.filelist.remove(archive.NameToInfo.pop(folder + SIGNATURE))
                # PyTorch's date for records, so that equal packages are equal files.
                archive.writestr(zipfile.ZipInfo(folder + SIGNATURE), signature_of(index, signing_key))
        except (zipfile.BadZipFile, KeyError) as error:
            raise DamagedPackage(f"{os.fspath(file)} is a damaged archive: {error}") from error
    return signing_key


def signer_of(signature: bytes) -> str:
    """Return the key identifier that a signature contains, without verification.

    Raises:
        DamagedPackage: ``signature`` is not a signature.
    """
    try:
        return signatures.signer_of(signature)
    except DamagedSignature as error:
        raise DamagedPackage(f"the package has {error}") from error


def _folder_of_package(archive: zipfile.ZipFile, file: str | os.PathLike[str]) -> str:
    """Return the prefix of the names of a package's records."""
    for name in archive.namelist():
        if name.endswith(f"/{INDEX}"):
            return name.removesuffix(INDEX)
    raise DamagedPackage(f"{os.fspath(file)} holds no package (torchmdla.save makes one)")

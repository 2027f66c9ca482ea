"""Signs packages: Ed25519 (RFC 8032) over the index, which has the digests of the targets.

``src/package/signature.cpp`` checks signatures; it needs none of what is imported here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from torchmdla.compiler.checksummed import Format
from torchmdla.packages.format import FOLDER, INDEX, DamagedPackage, check_target, info_of, record_of
from torchmdla.packages.replacing import replacing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE = f"{FOLDER}signature"

# As in src/package/signature.cpp.
_SIGNED_AS = b"torchmdla: the index of a package, version 1\n"
_SIGNATURE = Format(
    b"torchmdla-sig", 1, "a package's signature", "sign it anew (python -m torchmdla sign)", DamagedPackage
)
_NUMBER_BYTES = 32


class KeyProblem(ValueError):
    """A file holds no private key of Ed25519 that can be used."""


class SigningKey:
    """A private key of Ed25519.

    Args:
        path: a PEM file (PKCS #8), not encrypted, as :func:`generate_key` or
            ``openssl genpkey -algorithm ed25519`` writes it.

    Raises:
        KeyProblem: it holds something else.
        ImportError: the package ``cryptography`` is not installed.
        OSError: it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._key = _private_key(Path(path))

    @property
    def number(self) -> str:
        """By what signatures name the key: SHA-256 of its public key, in hexadecimal."""
        return _number(self._key.public_key()).hex()

    def sign(self, index: bytes) -> bytes:
        """The record of an index's signature."""
        signature = self._key.sign(_SIGNED_AS + index)
        return _SIGNATURE.seal({}, _number(self._key.public_key()) + signature)


def generate_key(path: str | os.PathLike[str]) -> SigningKey:
    """Makes a key: ``path.pem`` for whoever signs, which nobody else can read, and ``path.pub.pem`` for whoever loads.

    Raises:
        FileExistsError: one of them is there.
        ImportError: the package ``cryptography`` is not installed.
    """
    _demand_cryptography()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    private_path, public_path = (Path(f"{os.fspath(path)}{suffix}") for suffix in (".pem", ".pub.pem"))
    _create(public_path, public, 0o644)
    _create(private_path, private, 0o600)
    return SigningKey(private_path)


def sign(
    file: str | os.PathLike[str], key: str | os.PathLike[str], out: str | os.PathLike[str] | None = None
) -> SigningKey:
    """Signs the package in a file, in the place of a signature that it has. All else stays as it is, byte by byte.

    Args:
        file: a package.
        key: the file of a private key.
        out: where to write the signed package; by default it takes the place of ``file``.

    Returns:
        The key.

    Raises:
        DamagedPackage: the file holds no package, or a damaged one.
        KeyProblem, ImportError, OSError: as :class:`SigningKey`.
    """
    signing_key = SigningKey(key)
    with replacing(Path(file if out is None else out)) as temporary:
        shutil.copyfile(file, temporary)
        try:
            with zipfile.ZipFile(temporary, "a") as archive:
                folder = _folder_of_package(archive, file)
                index = archive.read(folder + INDEX)
                for target in info_of(index).targets:
                    check_target(target, archive.read(folder + record_of(target.name)))
                _remove(archive, folder + SIGNATURE)
                # With the date that PyTorch gives to records, so that equal packages are equal files.
                archive.writestr(zipfile.ZipInfo(folder + SIGNATURE), signing_key.sign(index))
        except (zipfile.BadZipFile, KeyError) as error:
            raise DamagedPackage(f"{os.fspath(file)} is a damaged archive: {error}") from error
    return signing_key


def signer_of(signature: bytes) -> str:
    """The number of the key that a signature says it was made by; nothing of it is verified.

    Raises:
        DamagedPackage: it is no signature.
    """
    return _SIGNATURE.open(signature, lambda _, content: content[:_NUMBER_BYTES].hex())


def _private_key(path: Path) -> Ed25519PrivateKey:
    _demand_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = path.read_bytes()
    try:
        key = load_pem_private_key(data, None)
    except TypeError:
        raise KeyProblem(f"{path} is encrypted; openssl pkey -in {path} decrypts it") from None
    except (ValueError, UnsupportedAlgorithm):
        raise KeyProblem(f"{path} holds no private key in PEM (PKCS #8)") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyProblem(f"{path} holds a private key that is not of Ed25519")
    return key


def _demand_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise ImportError('signing needs the package "cryptography": pip install torchmdla[sign]') from None


def _number(key: Ed25519PublicKey) -> bytes:
    return hashlib.sha256(key.public_bytes_raw()).digest()


def _create(path: Path, data: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
        file.write(data)


def _folder_of_package(archive: zipfile.ZipFile, file: str | os.PathLike[str]) -> str:
    """What stands before the names of a package's records."""
    for name in archive.namelist():
        if name.endswith(f"/{INDEX}"):
            return name.removesuffix(INDEX)
    raise DamagedPackage(f"{os.fspath(file)} holds no package (torchmdla.save makes one)")


def _remove(archive: zipfile.ZipFile, name: str) -> None:
    """Leaves a record out of the directory. Its bytes stay where they are: what follows may not move."""
    if name in archive.NameToInfo:
        archive.filelist.remove(archive.NameToInfo.pop(name))

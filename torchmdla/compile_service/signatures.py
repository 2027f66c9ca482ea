"""Ed25519 signatures (RFC 8032) of what torchmdla hands out: packages, entries of a store.

Checking one needs ``src/package/signature.cpp`` alone; making one the package ``cryptography``, which is imported here
where it is needed.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from torchmdla.compiler.checksummed import Format

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


class KeyProblem(ValueError):
    """A file holds no private key of Ed25519 that can be used."""


class DamagedSignature(ValueError):
    """The bytes are no signature, or one of another version."""


# As in src/package/signature.cpp.
_FORMAT = Format(b"torchmdla-sig", 1, "a signature", "sign it anew (python -m torchmdla sign)", DamagedSignature)
_NUMBER_BYTES = 32


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

    def sign(self, label: bytes, message: bytes) -> bytes:
        """The record of a signature of ``message``. ``label`` says what that is: a signature of one kind is none of
        another."""
        signature = self._key.sign(label + message)
        return _FORMAT.seal({}, _number(self._key.public_key()) + signature)


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


def signer_of(record: bytes) -> str:
    """The number of the key that a signature says it was made by; nothing of it is verified.

    Raises:
        DamagedSignature: it is no signature.
    """
    return _FORMAT.open(record, lambda _, content: content[:_NUMBER_BYTES].hex())


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

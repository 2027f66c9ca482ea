"""Ed25519 signatures (RFC 8032) of packages and of entries of a store.

``src/package/signature.cpp`` checks signatures. Signing needs the package ``cryptography``, which is imported here
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
    """Error for a file that does not contain a usable private Ed25519 key."""


class DamagedSignature(ValueError):
    """Error for bytes that are not a signature, or have another version."""


# The same values as in src/package/signature.cpp.
_FORMAT = Format(b"torchmdla-sig", 1, "a signature", "sign it anew (python -m torchmdla sign)", DamagedSignature)
_NUMBER_BYTES = 32


class SigningKey:
    """Private Ed25519 key.

    Args:
        path: a PEM file (PKCS #8), not encrypted, as :func:`generate_key` or ``openssl genpkey -algorithm ed25519``
            writes it.

    Raises:
        KeyProblem: the file does not contain such a key.
        ImportError: the package ``cryptography`` is not installed.
        OSError: the file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._key = _private_key(Path(path))

    @property
    def number(self) -> str:
        """Return the identifier of the key in signatures: SHA-256 of its public key, in hexadecimal."""
        return _number(self._key.public_key()).hex()

    def sign(self, label: bytes, message: bytes) -> bytes:
        """Return a signature record of ``message``.

        ``label`` specifies the kind of message. A signature for one kind is not valid for another.
        """
        signature = self._key.sign(label + message)
        return _FORMAT.seal({}, _number(self._key.public_key()) + signature)


def generate_key(path: str | os.PathLike[str]) -> SigningKey:
    """Generate a key: ``path.pem`` for the signer, readable by this user only, and ``path.pub.pem`` for those who load.

    Raises:
        FileExistsError: one of the files exists.
        ImportError: the package ``cryptography`` is not installed.
    """
    _require_cryptography()
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
    """Return the key identifier that a signature contains, without verification.

    Raises:
        DamagedSignature: ``record`` is not a signature.
    """
    return _FORMAT.open(record, lambda _, content: content[:_NUMBER_BYTES].hex())


def _private_key(path: Path) -> Ed25519PrivateKey:
    _require_cryptography()
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


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise ImportError('signing needs the package "cryptography": pip install torchmdla[sign]') from None


def _number(key: Ed25519PublicKey) -> bytes:
    return hashlib.sha256(key.public_bytes_raw()).digest()


def _create(path: Path, data: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
        file.write(data)

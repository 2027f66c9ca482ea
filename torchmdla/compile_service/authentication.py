"""Authentication of the entries of a store: code from untrusted writers must not run.

Write access to the store is not enough to be trusted. Entries are authenticated by a secret that all machines of a
fleet share (HMAC-SHA256, RFC 2104). Alternatively, a few machines sign the entries and all machines check them
(Ed25519, with the same keys as packages).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from torchmdla.compile_service.signatures import SigningKey

SECRET_VARIABLE = "TORCHMDLA_STORE_SECRET"
TRUST_VARIABLE = "TORCHMDLA_STORE_TRUST"
SIGN_VARIABLE = "TORCHMDLA_STORE_SIGN"

# Prefix of every signed message. A signature of any other message is therefore not valid for an entry.
_LABEL = "torchmdla: of a store, version 1\n"

# Minimum length of a secret, in bytes. A shorter secret could be guessed.
_LEAST_SECRET = 32


class NotAuthentic(ValueError):
    """Error for a message that was not made by a trusted party."""


class Authentication(Protocol):
    """Algorithm that proves who made a message."""

    @property
    def description(self) -> str:
        """Return a description of the algorithm, for humans."""

    @property
    def may_write(self) -> bool:
        """Return whether this process can make proofs."""

    def prove(self, message: bytes) -> bytes:
        """Return a proof that a trusted party made ``message``."""

    def check(self, message: bytes, proof: bytes) -> None:
        """Check that ``proof`` is valid for ``message``.

        Raises:
            NotAuthentic: the proof does not match this message.
        """


class SharedSecret:
    """Authentication by a secret of at least 32 bytes, in a file that every machine has.

    Raises:
        ValueError: the file does not belong to this user or root, others may read or write it, or it is too short.
        OSError: the file cannot be read.
    """

    description = "a shared secret (HMAC-SHA256)"
    may_write = True

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            _check_private(os.fstat(file.fileno()), path)
            self._secret = file.read().strip()
        if len(self._secret) < _LEAST_SECRET:
            raise ValueError(f"{path} holds {len(self._secret)} bytes: a secret has {_LEAST_SECRET} at least")

    def prove(self, message: bytes) -> bytes:
        return hmac.digest(self._secret, _LABEL.encode() + message, hashlib.sha256)

    def check(self, message: bytes, proof: bytes) -> None:
        if not hmac.compare_digest(self.prove(message), proof):
            raise NotAuthentic("not made with the shared secret")


class Signatures:
    """Authentication by signatures of ``trusted`` keys.

    This process can also sign entries if the file ``sign`` holds a private key.

    Args:
        trusted: files of public keys (PEM), or folders of such files. They are read at every check.
        sign: the file of a private key.

    Raises:
        ValueError, OSError, ImportError: ``sign`` is not a usable key.
    """

    def __init__(self, trusted: Sequence[str], sign: str | None) -> None:
        self._trusted = list(trusted)
        self._key = None if sign is None else SigningKey(sign)

    @property
    def description(self) -> str:
        return f"signatures by keys of {', '.join(self._trusted)}" + ("" if self._key else ", read only")

    @property
    def may_write(self) -> bool:
        return self._key is not None

    def prove(self, message: bytes) -> bytes:
        assert self._key is not None
        return self._key.sign(_LABEL.encode(), message)

    def check(self, message: bytes, proof: bytes) -> None:
        from torchmdla import _C

        try:
            _C.check_signature(self._trusted, proof, _LABEL, "the entry", message)
        except ValueError as error:
            raise NotAuthentic(str(error)) from error


def from_environment() -> Authentication:
    """Return the authentication that the environment variables specify.

    Raises:
        ValueError: the variables specify neither a secret nor keys, or both; or the content of a file is not valid.
        OSError, ImportError: a file cannot be read or used.
    """
    secret, trusted, sign = (os.environ.get(name, "") for name in (SECRET_VARIABLE, TRUST_VARIABLE, SIGN_VARIABLE))
    if bool(secret) == bool(trusted):
        raise ValueError(
            f"set {SECRET_VARIABLE} to the file of a secret, or {TRUST_VARIABLE} to files of public keys"
            + (", not both" if secret else ": what a store hands out is native code")
        )
    if secret:
        return SharedSecret(secret)
    signatures = Signatures([path for path in trusted.split(os.pathsep) if path], sign or None)
    if sign:  # Other machines must accept this key's signatures.
        signatures.check(b"", signatures.prove(b""))
    return signatures


def _check_private(status: os.stat_result, path: str) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise ValueError(f"{path} belongs to user {status.st_uid}, not to this one or root")
    if status.st_mode & (stat.S_IWGRP | stat.S_IRWXO):
        raise ValueError(f"{path} is open to others: chmod 400 {Path(path).name}")

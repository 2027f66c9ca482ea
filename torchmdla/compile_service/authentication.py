"""Who made what a store hands out: code of strangers must not run, whoever can write to the store.

Entries are authenticated by a secret that all machines of a fleet share (HMAC-SHA256, RFC 2104), or signed by few and
checked by all (Ed25519, the keys of packages).
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

# Stands before all that is signed, so that no signature of anything else is one of an entry.
_LABEL = "torchmdla: of a store, version 1\n"

# Fewer bytes could be guessed.
_LEAST_SECRET = 32


class NotAuthentic(ValueError):
    """Nobody who is trusted made it."""


class Authentication(Protocol):
    """Proves who made a message."""

    @property
    def description(self) -> str:
        """How, for people."""

    @property
    def may_write(self) -> bool:
        """Whether this process can make proofs."""

    def prove(self, message: bytes) -> bytes:
        """What proves that the message is of somebody who is trusted."""

    def check(self, message: bytes, proof: bytes) -> None:
        """Raises:
        NotAuthentic: the proof is none of this message.
        """


class SharedSecret:
    """By a secret in a file, of 32 bytes at least, that every machine has.

    Raises:
        ValueError: the file is not this user's or root's, others may read or write it, or it is too short. OSError: it
            cannot be read.
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
    """By signatures: of ``trusted`` keys, and by the private key in the file ``sign``, where there is one.

    Args:
        trusted: files of public keys (PEM), or folders of such. They are read whenever something is checked.
        sign: the file of a private key.

    Raises:
        ValueError, OSError, ImportError: ``sign`` is no key that can be used.
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


def of_environment() -> Authentication:
    """What the variables say.

    Raises:
        ValueError: they say nothing, or two things; or a file is not what it must be. OSError, ImportError: it cannot
            be read or used.
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
    if sign:  # What it signs, others must take.
        signatures.check(b"", signatures.prove(b""))
    return signatures


def _check_private(status: os.stat_result, path: str) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise ValueError(f"{path} belongs to user {status.st_uid}, not to this one or root")
    if status.st_mode & (stat.S_IWGRP | stat.S_IRWXO):
        raise ValueError(f"{path} is open to others: chmod 400 {Path(path).name}")

"""Whose packages this process runs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from torchmdla import _C


def require_signatures(keys: Sequence[str | os.PathLike[str]] | None) -> None:
    """From the next file on, only packages that the owner of one of these keys signed are used; others are refused and
    counted, and their programs run without.

    The environment variable ``TORCHMDLA_REQUIRE_SIGNATURE`` says the same, with colons between the paths, until this is
    called. Packages that are loaded already stay.

    Args:
        keys: files of public keys (PEM), or folders of such. They are read whenever a package is. None: no signature is
            demanded, whatever the environment says; then a package's file must be this user's or root's, and nobody
            else may write to it.

    Raises:
        ValueError: a file cannot be read, is no public key of Ed25519, or may have been written by another user.
    """
    if isinstance(keys, str):
        raise TypeError("require_signatures takes a sequence of paths, not one")
    _C.set_demanded_keys(None if keys is None else [os.fspath(key) for key in keys])

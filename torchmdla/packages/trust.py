"""Trust settings: the packages that this process runs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from torchmdla import _C


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

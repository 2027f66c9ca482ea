"""Reads programs from files that hold the code of their groups."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch

from torchmdla import _C
from torchmdla.packages.format import INDEX, PackageInfo, check_target, info_of, record_of
from torchmdla.packages.signing import SIGNATURE, signer_of


def load(path: str | os.PathLike[str], map_location: Any = None) -> torch.jit.ScriptModule:
    """A TorchScript program, as ``torch.jit.load`` reads it, ready: the code that its file has for its groups is
    mapped, and constants are packed, so that the first call is as fast as later ones.

    Raises:
        What ``torch.jit.load`` raises.
    """
    module: torch.jit.ScriptModule = torch.jit.load(os.fspath(path), map_location)
    _C.prepare(module._c)
    return module


def info(path: str | os.PathLike[str]) -> PackageInfo | None:
    """What a file has of a package, after all of it was checked; None where it has none.

    Raises:
        DamagedPackage: the package is damaged, or of another version.
        RuntimeError: the file is no archive of PyTorch's.
    """
    reader = torch._C.PyTorchFileReader(os.fspath(path))
    names = set(reader.get_all_records())
    if f"extra/{INDEX}" not in names:
        return None
    found = info_of(reader.get_record(f"extra/{INDEX}"))
    for target in found.targets:
        check_target(target, reader.get_record(f"extra/{record_of(target.name)}"))
    if f"extra/{SIGNATURE}" not in names:
        return found
    return replace(found, signer=signer_of(reader.get_record(f"extra/{SIGNATURE}")))

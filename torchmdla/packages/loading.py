"""Reads programs from files that hold the code of their groups."""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from typing import Any

import torch
from torch.jit._recursive import wrap_cpp_module
from torch.jit._serialization import validate_map_location

from torchmdla import _C
from torchmdla.packages.format import FOLDER, INDEX, PackageInfo, check_target, info_of, record_of
from torchmdla.packages.signing import SIGNATURE, signer_of

# Where archives of TorchScript have their extra files.
_EXTRA = "extra/"


def load(path: str | os.PathLike[str], map_location: Any = None) -> Any:
    """A program as ``torch.jit.load`` or ``torch.export.load`` reads it, ready: the code that its file has for its
    groups is mapped, and constants are packed, so that the first call is as fast as later ones.

    The code is kept as long as the program is, or a copy of it (``copy.deepcopy``).

    Returns:
        The TorchScript program; of an exported program what :func:`torchmdla.compile` makes of it.

    Raises:
        What PyTorch's functions raise.
    """
    path = os.fspath(path)
    if _is_exported(path):
        import torchmdla

        lifetime = _C.ProgramLifetime()
        _C.take_package(path, lifetime)
        compiled = torchmdla.compile(torch.export.load(path))
        weakref.finalize(compiled, lambda _: None, lifetime).atexit = False
        return compiled
    module = _C.load_with_package(path, validate_map_location(map_location))
    _C.prepare(module)
    return wrap_cpp_module(module)


def _is_exported(path: str) -> bool:
    return "archive_format" in torch._C.PyTorchFileReader(path).get_all_records()


def info(path: str | os.PathLike[str]) -> PackageInfo | None:
    """What a file has of a package, after all of it was checked; None where it has none.

    Raises:
        DamagedPackage: the package is damaged, or of another version.
        RuntimeError: the file is no archive of PyTorch's.
    """
    reader = torch._C.PyTorchFileReader(os.fspath(path))
    folder = "" if _is_exported(os.fspath(path)) else _EXTRA
    names = reader.get_all_records()
    if f"{folder}{INDEX}" not in names:
        return None
    found = info_of(reader.get_record(f"{folder}{INDEX}"))
    for target in found.targets:
        check_target(target, reader.get_record(f"{folder}{record_of(target.name)}"))
    if f"{folder}{SIGNATURE}" not in names:
        return found
    return replace(found, signer=signer_of(reader.get_record(f"{folder}{SIGNATURE}")))


def other_extra_files(path: str | os.PathLike[str]) -> dict[str, bytes]:
    """The extra files of a TorchScript archive but for a package's, by name; none of another file."""
    try:
        reader = torch._C.PyTorchFileReader(os.fspath(path))
    except RuntimeError:
        return {}
    if "archive_format" in (names := reader.get_all_records()):
        return {}
    others = (name for name in names if name.startswith(_EXTRA) and not name.startswith(f"{_EXTRA}{FOLDER}"))
    return {name.removeprefix(_EXTRA): reader.get_record(name) for name in others}

"""Loading of programs from files that contain the code of their groups."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch.jit._recursive import wrap_cpp_module
from torch.jit._serialization import validate_map_location

from torchmdla import _C
from torchmdla.errors import unknown_name
from torchmdla.packages.format import FOLDER, INDEX, WEIGHTS, PackageInfo, check_target, info_of, record_of
from torchmdla.packages.signing import SIGNATURE, signer_of
from torchmdla.script.reading import read

# Readers of TorchScript's archives.
Reader = Literal["own", "libtorch"]

# Errors of a PyTorch whose reader of TorchScript is an error.
_REMOVED = re.compile(r"TorchScript.*(?:was|been|is) removed|no longer support|torch\.jit.*(?:was|been|is) removed")

# The folder of extra files in TorchScript archives.
_EXTRA = "extra/"


def load(
    path: str | os.PathLike[str],
    map_location: Any = None,
    *,
    map_weights: bool | None = None,
    reader: Reader | None = None,
) -> Any:
    """Load a program as ``torch.jit.load`` or ``torch.export.load`` does, ready to run.

    The code of its groups is mapped from the file, and constants are packed, so that the first call is as fast as later
    ones. The code is retained as long as the program or a copy of it (``copy.deepcopy``) exists.

    Args:
        path: the file.
        map_location: device of the program, as in ``torch.jit.load``.
        map_weights: whether the weights of a TorchScript program stay in the file, which is mapped. Those that were
            packed then take no memory until something reads them. The file must be replaced, not written to, as long
            as the program exists. The default is True for a package with packed weights, which are mapped too.
        reader: the reader of TorchScript's archives. ``"libtorch"`` is PyTorch's, which gives a
            ``torch.jit.ScriptModule``. ``"own"`` is :func:`torchmdla.read`, which gives a ``torch.nn.Module`` that runs
            the program's graphs. The default is PyTorch's, or the own one if this PyTorch does not have a reader.

    Returns:
        The TorchScript program. For an exported program, the result of :func:`torchmdla.compile`.

    Raises:
        TypeError: ``map_weights`` is True for an exported program.
        ValueError: the reader is unknown, or the own reader refuses the file.
        Exception: the exceptions of PyTorch's functions.
    """
    if reader not in (None, *get_args(Reader)):
        raise ValueError(unknown_name("reader", str(reader), get_args(Reader)))
    path = os.fspath(path)
    names = torch._C.PyTorchFileReader(path).get_all_records()
    if _is_exported(names):
        if map_weights:
            raise TypeError("map_weights needs a TorchScript program, and the file has an exported one")
        import torchmdla

        lifetime = _C.ProgramLifetime()
        _C.take_package(path, lifetime)
        compiled = torchmdla.compile(torch.export.load(path))
        weakref.finalize(compiled, lambda _: None, lifetime).atexit = False
        return compiled
    if reader == "own" or (reader is None and not hasattr(torch._C, "import_ir_module")):
        return _load_own(path, map_location, map_weights or False)
    try:
        module = _C.load_with_package(path, validate_map_location(map_location))
    except (RuntimeError, NotImplementedError) as error:
        if reader == "libtorch" or not _REMOVED.search(str(error)):
            raise
        return _load_own(path, map_location, map_weights or False)
    if map_weights is None:
        map_weights = any(name.startswith(f"{_EXTRA}{WEIGHTS}") for name in names)
    weights = _C.map_weights(module, path) if map_weights else None
    _C.prepare(module)
    if weights:
        weights.drop_unwritten_pages()
    _C.return_freed_memory()
    return wrap_cpp_module(module)


def _load_own(path: str, map_location: Any, map_weights: bool) -> Any:
    from torchmdla.capture.script.module import make_module

    device = None if map_location is None else torch.device(map_location)
    return make_module(read(path), device, map_weights)


def _is_exported(names: Sequence[str]) -> bool:
    return "archive_format" in names


def info(path: str | os.PathLike[str]) -> PackageInfo | None:
    """Check the package in a file and return its description; None if the file does not contain a package.

    Raises:
        DamagedPackage: the package is damaged, or of another version.
        RuntimeError: the file is not a PyTorch archive.
    """
    reader = torch._C.PyTorchFileReader(os.fspath(path))
    names = reader.get_all_records()
    folder = "" if _is_exported(names) else _EXTRA
    if f"{folder}{INDEX}" not in names:
        return None
    package = info_of(reader.get_record(f"{folder}{INDEX}"))
    for target in package.targets:
        check_target(target, reader.get_record(f"{folder}{record_of(target.name)}"))
    if f"{folder}{SIGNATURE}" not in names:
        return package
    return replace(package, signer=signer_of(reader.get_record(f"{folder}{SIGNATURE}")))


def other_extra_files(path: str | os.PathLike[str]) -> dict[str, bytes]:
    """Return the extra files of a TorchScript archive by name, without those of a package.

    The result is empty for other files.
    """
    try:
        reader = torch._C.PyTorchFileReader(os.fspath(path))
    except RuntimeError:
        return {}
    if _is_exported(names := reader.get_all_records()):
        return {}
    others = (name for name in names if name.startswith(_EXTRA) and not name.startswith(f"{_EXTRA}{FOLDER}"))
    return {name.removeprefix(_EXTRA): reader.get_record(name) for name in others}

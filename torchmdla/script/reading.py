"""Reader of programs from the archives of ``torch.jit.save``, without PyTorch."""

from __future__ import annotations

import os

from torchmdla.script.archive import Archive
from torchmdla.script.emitter import compile_function
from torchmdla.script.ir import Object, Program
from torchmdla.script.library import Library
from torchmdla.script.unpickler import Unpickler

# The newest version of files that PyTorch writes and this reader knows.
_NEWEST_VERSION = 10
_OTHER_FORMATS = {
    "model.json": "the file is of TorchScript before 1.4. Save it again with torch 1.4 to 2.15",
    "archive_format": "the file is of torch.export. Load it with torchmdla.load",
}


def read(path: str | os.PathLike[str]) -> Program:
    """Return the program in a file of ``torch.jit.save``. PyTorch is not needed.

    Nothing in the file is executed. Methods become graphs when they are looked up, and the tensors stay in the file.

    Raises:
        ReadError: the file is not of ``torch.jit.save``, is damaged or hostile, or has a construct that the reader does
            not know. It has the file, the record and the line. Methods raise it when they are looked up.
        OSError: the file cannot be read.
    """
    archive = Archive(path)
    try:
        return _read(archive)
    except RecursionError as error:
        raise archive.error("the program is nested too deeply") from error


def _read(archive: Archive) -> Program:
    for record, reason in _OTHER_FORMATS.items():
        if record in archive:
            raise archive.error(reason)
    if "data.pkl" not in archive:
        raise archive.error("the archive does not have data.pkl, and is not of torch.jit.save")
    if "constants.pkl" not in archive:
        raise archive.error("the file is of torch.save. torchmdla.read needs one of torch.jit.save")
    if "byteorder" in archive and archive.read("byteorder") != b"little":
        raise archive.error("the tensors are big-endian. Save the file on a little-endian machine", "byteorder")
    library = Library(archive, _version_of(archive), compile_function)
    constants = Unpickler(archive, "constants.pkl", library).load()
    if not isinstance(constants, tuple):
        raise archive.error("the table of constants is not a tuple", "constants.pkl")
    library.constants = constants
    root = Unpickler(archive, "data.pkl", library).load()
    if not isinstance(root, Object):
        raise archive.error("the program is not an object", "data.pkl")
    return Program(root, library.classes, library.functions, library.version, archive.path)


def _version_of(archive: Archive) -> int:
    record = next((name for name in ("version", ".data/version") if name in archive), None)
    text = archive.read(record).strip() if record else b""
    if not text.isdigit() or len(text) > 9:
        raise archive.error("the archive does not have a version", "version")
    version = int(text)
    if version > _NEWEST_VERSION:
        raise archive.error(
            f"the file is of version {version}, and this reader knows up to {_NEWEST_VERSION}", "version"
        )
    return version

"""Writer of programs to archives that ``torch.jit.load`` reads, without PyTorch."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from torchmdla.script.ir import Program, Storage, Type
from torchmdla.script.library import CUSTOM_CLASSES
from torchmdla.script.pickler import Pickler
from torchmdla.script.printing import Constants, print_class, print_function
from torchmdla.script.schemas import table
from torchmdla.support.files import atomic_write

# PyTorch maps tensors and reads them in vectors.
_ALIGNMENT = 64
_PADDING = b"FB"
_CHUNK = 1 << 24

# Returns the bytes of a storage in parts, or None for a storage in the program's file.
ReadStorage = Callable[[Storage], Iterator[bytes] | None]


def write(
    program: Program,
    path: str | os.PathLike[str],
    read_storage: ReadStorage = lambda storage: None,
    extra: Mapping[str, bytes] | None = None,
) -> None:
    """Write a program to a file of TorchScript. An existing file is replaced once the new one is complete.

    Args:
        program: the program.
        path: the file.
        read_storage: returns the bytes of a storage in parts, or None for a storage in the program's file.
        extra: further files of the archive (``extra/``), by name.

    Raises:
        ReadError: the program has a value or an operator that cannot be written.
    """
    constants = Constants()
    code = _code(program, constants)
    data = Pickler(program.classes)
    data.push(program.root)
    table_ = Pickler(program.classes)
    types = tuple(type_ for _, type_ in constants.values)
    table_.push(tuple(value for value, _ in constants.values), Type("Tuple", types))
    version = max(program.version, table().newest_upgrade)  # the graphs have operators of this version
    with atomic_write(Path(path)) as temporary, temporary.open("wb") as file:
        archive = _Writer(file, Path(path).stem or "archive")
        for pickler, name in ((data, "data"), (table_, "constants")):
            archive.add(f"{name}.pkl", [pickler.finish()])
            for storage, number in pickler.storages.items():
                archive.add(f"{name}/{number}", read_storage(storage) or _stored_bytes(program.path, storage))
        for record, text in code.items():
            archive.add(record, [text.encode()], zipfile.ZIP_DEFLATED)
        for record, content in (extra or {}).items():
            archive.add(f"extra/{record}", [content])
        archive.add("byteorder", [b"little"])
        archive.add("version", [f"{version}\n".encode()])
        archive.close()


def _code(program: Program, constants: Constants) -> dict[str, str]:
    """Return the code of all classes and functions, by record."""
    texts: dict[str, list[str]] = {}
    definitions = [
        *((name, print_class(class_, constants)) for name, class_ in program.classes.items() if _is_own(name)),
        *((name, print_function(graph, constants)) for name, graph in program.functions.items()),
    ]
    for name, text in definitions:
        module = name.rpartition(".")[0].replace(".", "/")
        texts.setdefault(f"code/{module}.py", []).append(text)
    return {record: "".join(parts) for record, parts in texts.items()}


def _is_own(name: str) -> bool:
    return not name.startswith(CUSTOM_CLASSES)


def _stored_bytes(path: str, storage: Storage) -> Iterator[bytes]:
    """Return the bytes of a storage in a file."""
    with open(path, "rb") as file:
        file.seek(storage.offset)
        for start in range(0, storage.size, _CHUNK):
            yield file.read(min(_CHUNK, storage.size - start))


class _Writer:
    """Zip archive whose records begin at multiples of the alignment."""

    def __init__(self, file: BinaryIO, folder: str) -> None:
        self._file = file
        self._folder = folder
        self._archive = zipfile.ZipFile(file, "w", allowZip64=True)

    def add(self, name: str, parts: Any, method: int = zipfile.ZIP_STORED) -> None:
        info = zipfile.ZipInfo(f"{self._folder}/{name}", date_time=(1980, 1, 1, 0, 0, 0))
        info.compress_type = method
        header = 30 + len(info.filename.encode()) + 4
        padding = -(self._file.tell() + header) % _ALIGNMENT
        info.extra = _PADDING + padding.to_bytes(2, "little") + b"Z" * padding
        with self._archive.open(info, "w") as record:
            for part in parts:
                record.write(part)

    def close(self) -> None:
        self._archive.close()

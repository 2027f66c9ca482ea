"""Reader of the zip archives of TorchScript. It reads the directory itself, to know the places of tensors in the file.

An archive may be hostile. Names, places and sizes of records are checked before anything is read from them.
"""

from __future__ import annotations

import os
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from torchmdla.errors import ReadError

# Most bytes of code and pickles that one archive may contain, decompressed, and of its directory.
_TEXT_LIMIT, _DIRECTORY_LIMIT = 1 << 28, 1 << 26

_END, _END_64, _LOCATOR_64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_ENTRY, _HEADER = b"PK\x01\x02", b"PK\x03\x04"
_STORED, _DEFLATED = 0, 8
_ENCRYPTED = 1
_UNSAFE_NAME = re.compile(r"^/|\\|\0|(^|/)\.\.(/|$)")


@dataclass(frozen=True, slots=True)
class Entry:
    """Record in the archive's directory.

    Attributes:
        start: the position of its header in the file.
        end: the position behind which its data may not reach: the next header, or the directory.
    """

    name: str
    method: int
    crc: int
    stored: int
    size: int
    start: int
    end: int


class Archive:
    """Archive in a file, which stays open. Records have names without the archive's folder.

    Raises:
        ReadError: the file is not a zip archive, or the archive is damaged.
        OSError: the file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file = open(self.path, "rb")  # noqa: SIM115 (it is read from later)
        self._lock = threading.Lock()
        self.file_size = os.fstat(self._file.fileno()).st_size
        if not self.file_size:
            raise self.error("the file is empty")
        self._text_read = 0
        try:
            self._entries = self._read_directory()
        except struct.error as error:
            raise self.error("the archive's directory is damaged") from error

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def error(self, reason: str, record: str = "", line: int = 0, construct: str = "") -> ReadError:
        """Return an error of this file."""
        return ReadError(reason, file=self.path, record=record, line=line, construct=construct)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def _bytes(self, start: int, count: int) -> bytes:
        """Return bytes of the file, fewer at its end."""
        with self._lock:
            self._file.seek(min(start, self.file_size))
            return self._file.read(count)

    def place(self, name: str) -> tuple[int, int]:
        """Return the position and the size of a record that is stored without compression.

        Raises:
            ReadError: the record does not exist, is compressed, or reaches outside of its place.
        """
        entry = self._entry(name)
        if entry.method != _STORED:
            raise self.error("the record is compressed, and tensors are stored without compression", name)
        return self._start_of_data(entry), entry.size

    def read(self, name: str) -> bytes:
        """Return the bytes of a record of text or pickle.

        Raises:
            ReadError: the record does not exist, is damaged or too large.
        """
        entry = self._entry(name)
        self._text_read += entry.size
        if self._text_read > _TEXT_LIMIT:
            raise self.error(f"the archive has more than {_TEXT_LIMIT >> 20} MiB of code and pickles", name)
        start = self._start_of_data(entry)
        content = self._bytes(start, entry.stored)
        if entry.method == _DEFLATED:
            content = self._decompress(entry, content)
        if len(content) != entry.size or zlib.crc32(content) != entry.crc:
            raise self.error("the record is damaged: its checksum differs. Download or save the file again", name)
        return content

    def _decompress(self, entry: Entry, content: bytes) -> bytes:
        decoder = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            return decoder.decompress(content, entry.size + 1)
        except zlib.error as error:
            raise self.error(f"the record is damaged: {error}", entry.name) from error

    def _entry(self, name: str) -> Entry:
        if name not in self._entries:
            raise self.error("the archive does not have this record", name)
        return self._entries[name]

    def _start_of_data(self, entry: Entry) -> int:
        header = self._bytes(entry.start, 30)
        if len(header) < 30 or header[:4] != _HEADER:
            raise self.error("the record's header is damaged", entry.name)
        name_size, extra_size = struct.unpack_from("<HH", header, 26)
        start = entry.start + 30 + name_size + extra_size
        if start + entry.stored > entry.end:
            raise self.error("the record overlaps the next", entry.name)
        return int(start)

    def _read_directory(self) -> dict[str, Entry]:
        start, size, count = self._find_directory()
        if start + size > self.file_size or count * 46 > size or size > _DIRECTORY_LIMIT:
            raise self.error("the archive's directory reaches outside of the file. The file is truncated")
        directory = self._bytes(start, size)
        entries, position = [], 0
        for _ in range(count):
            entry, position = self._read_entry(directory, position)
            entries.append(entry)
        return self._with_ends(entries, start)

    def _find_directory(self) -> tuple[int, int, int]:
        """Return the place and the size of the directory, and the number of records."""
        tail_start = max(0, self.file_size - 22 - 0xFFFF - 20)
        tail = self._bytes(tail_start, self.file_size - tail_start)
        end = tail.rfind(_END)
        if end < 0:
            raise self._not_an_archive()
        disk, first_disk, _, count, size, start = struct.unpack_from("<HHHHII", tail, end + 4)
        locator = end - 20
        if locator >= 0 and tail[locator : locator + 4] == _LOCATOR_64:
            (end_64,) = struct.unpack_from("<Q", tail, locator + 8)
            record = self._bytes(end_64, 56)
            if record[:4] != _END_64:
                raise self.error("the archive's directory is damaged")
            disk, first_disk, _, count, size, start = struct.unpack_from("<IIQQQQ", record, 16)
        if disk or first_disk:
            raise self.error("the archive has several parts")
        return start, size, count

    def _not_an_archive(self) -> ReadError:
        if self._bytes(0, 2) == b"\x80\x02":
            return self.error("the file is of torch.save in its old form. torchmdla.read needs one of torch.jit.save")
        return self.error("the file is not an archive of torch.jit.save, or it is truncated")

    def _read_entry(self, directory: bytes, position: int) -> tuple[Entry, int]:
        if directory[position : position + 4] != _ENTRY:
            raise self.error("the archive's directory is damaged")
        flags, method, _, crc, stored, size, name_size, extra_size, comment_size = struct.unpack_from(
            "<HHIIIIHHH", directory, position + 8
        )
        (start,) = struct.unpack_from("<I", directory, position + 42)
        behind = position + 46 + name_size + extra_size + comment_size
        if behind > len(directory):
            raise self.error("the archive's directory is damaged")
        try:
            name = directory[position + 46 : position + 46 + name_size].decode()
        except UnicodeDecodeError as error:
            raise self.error("the name of a record is not UTF-8") from error
        if _UNSAFE_NAME.search(name):
            raise self.error("the record's name leaves the archive", name)
        if flags & _ENCRYPTED or method not in (_STORED, _DEFLATED):
            raise self.error("the record is encrypted, or compressed in a way that PyTorch does not read", name)
        extra = directory[position + 46 + name_size : position + 46 + name_size + extra_size]
        size, stored, start = self._sizes_64(name, extra, (size, stored, start))
        if method == _STORED and size != stored:
            raise self.error("the record's sizes differ", name)
        return Entry(name, method, crc, stored, size, start, 0), behind

    def _sizes_64(self, name: str, extra: bytes, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the sizes and the place of a record. Those of 0xFFFFFFFF are in the field of ZIP64."""
        if 0xFFFFFFFF not in sizes:
            return sizes
        position = 0
        while position + 4 <= len(extra):
            tag, size = struct.unpack_from("<HH", extra, position)
            if tag == 1:
                values = iter(struct.unpack_from(f"<{size // 8}Q", extra, position + 4))
                wide = [next(values, 0) if value == 0xFFFFFFFF else value for value in sizes]
                return wide[0], wide[1], wide[2]
            position += 4 + size
        raise self.error("the record's sizes are missing", name)

    def _with_ends(self, entries: list[Entry], directory: int) -> dict[str, Entry]:
        """Return the records of the archive's folder by name, after a check that none overlaps another."""
        entries = sorted(entries, key=lambda entry: entry.start)
        ends = [*(entry.start for entry in entries), directory]
        folder = entries[0].name.partition("/")[0] + "/" if entries else ""
        records: dict[str, Entry] = {}
        for entry, end in zip(entries, ends[1:], strict=True):
            if entry.start + 30 + len(entry.name.encode()) + entry.stored > end:
                raise self.error("the record overlaps the next", entry.name)
            if not entry.name.startswith(folder):
                continue
            name = entry.name[len(folder) :]
            if name in records:
                raise self.error("the archive has two records of this name", name)
            records[name] = Entry(name, entry.method, entry.crc, entry.stored, entry.size, entry.start, end)
        return records

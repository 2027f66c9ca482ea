"""Changes of archives that make them damaged or hostile, and the check that a reader refuses them by its own error."""

from __future__ import annotations

import random
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from torchmdla.errors import ReadError
from torchmdla.script.reading import read

_NUMBERS = (b"0", b"-1", b"9223372036854775807", b"9223372036854775808", b"1e400", b"None", b'"x"', b"1j", b"...")
_OPCODES = b"]})NK\x88\x89J\x8aX(qrhjt\x85\x86\x87laedsucR\x81bQ.G0\x80\x93c\x94\x95"


def records_of(path: Path) -> dict[str, bytes]:
    """Return the records of an archive."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_records(path: Path, records: dict[str, bytes]) -> None:
    """Write an archive without compression."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in records.items():
            archive.writestr(name, content)


def read_all(path: Path) -> str:
    """Read a file with all its methods, and print it."""
    program = read(path)
    for class_ in program.classes.values():
        list(class_.methods.values())
    return str(program)


def refusal_of(path: Path) -> str:
    """Return the error by which a file is refused; empty if it is read. Any other error passes through."""
    try:
        read_all(path)
    except ReadError as error:
        return str(error)
    return ""


def change_record(records: dict[str, bytes], chance: random.Random) -> dict[str, bytes]:
    """Change the code, the pickles or the names of an archive at random."""
    names = [name for name in records if name.endswith((".py", ".pkl", "version"))]
    name = chance.choice(names)
    content = records[name]
    for _ in range(chance.randint(1, 3)):
        content = (_change_code if name.endswith(".py") else _change_bytes)(content, chance)
    changed = {**records, name: content}
    if chance.random() < 0.05:
        del changed[chance.choice(list(changed))]
    return changed


def change_file(content: bytes, chance: random.Random) -> bytes:
    """Change the bytes of a file, mostly of its directory."""
    if chance.random() < 0.2:
        return content[: chance.randrange(len(content))]
    data = bytearray(content)
    start = content.find(b"PK\x01\x02") if chance.random() < 0.7 else 0
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(max(start, 0), len(data))] = chance.choice((0, 1, 127, 255, chance.randrange(256)))
    return bytes(data)


def _change_bytes(content: bytes, chance: random.Random) -> bytes:
    if not content:
        return content
    place = chance.randrange(len(content))
    inserted = bytes(chance.choices(_OPCODES, k=chance.randint(1, 3)))
    return chance.choice(
        (
            content[:place] + bytes([chance.randrange(256)]) + content[place + 1 :],
            content[:place] + inserted + content[place:],
            content[:place] + content[place + chance.randint(1, 8) :],
            content[:place] + content[max(0, place - chance.randint(1, 40)) :],
        )
    )


def _change_code(content: bytes, chance: random.Random) -> bytes:
    change: Callable[[bytes, random.Random], bytes] = chance.choice(
        (_change_bytes, _change_lines, _change_word, _change_number, _nest)
    )
    return change(content, chance)


def _change_lines(content: bytes, chance: random.Random) -> bytes:
    lines = content.split(b"\n")
    first, second = chance.randrange(len(lines)), chance.randrange(len(lines))
    if chance.random() < 0.3:
        del lines[first]
    elif chance.random() < 0.5:
        lines[first], lines[second] = lines[second], lines[first]
    else:
        lines.insert(first, lines[second])
    return b"\n".join(lines)


def _change_word(content: bytes, chance: random.Random) -> bytes:
    return _change_match(
        content, chance, rb"[A-Za-z_][\w.]*", [match[0] for match in _matches(content, rb"[A-Za-z_][\w.]*")]
    )


def _change_number(content: bytes, chance: random.Random) -> bytes:
    return _change_match(content, chance, rb"\b\d[\d.e-]*", _NUMBERS)


def _change_match(content: bytes, chance: random.Random, pattern: bytes, words: Sequence[bytes]) -> bytes:
    matches = _matches(content, pattern)
    if not matches or not words:
        return content
    match = chance.choice(matches)
    return content[: match.start()] + chance.choice(words) + content[match.end() :]


def _matches(content: bytes, pattern: bytes) -> list[re.Match[bytes]]:
    return list(re.finditer(pattern, content))


def _nest(content: bytes, chance: random.Random) -> bytes:
    place, count = chance.randrange(len(content) + 1), chance.choice((2, 80, 300, 20000))
    opening, closing = chance.choice(
        ((b"(", b")"), (b"[", b"]"), (b"-", b""), (b"a.", b""), (b"1+", b"1"), (b"not ", b""))
    )
    return content[:place] + opening * count + b"1" + closing * count + content[place:]

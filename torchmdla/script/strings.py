"""TorchScript's operators on strings. Its strings are bytes of UTF-8, and indices count bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

_BLANKS = " \t\n\r\v\f\x1c\x1d\x1e\x85"
_LINES = "\n\r\v\f\x1c\x1d\x1e\x85"
_LETTERS = "".join(map(chr, range(128)))


def _bytewise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operator on strings whose characters are not all ASCII, from one that takes a character for a byte."""

    @functools.wraps(function)
    def apply(*arguments: Any) -> Any:
        if all(not isinstance(argument, str) or argument.isascii() for argument in arguments):
            return function(*arguments)
        return _to_text(function(*map(_to_bytes, arguments)))

    return apply


def _to_bytes(value: Any) -> Any:
    return value.encode("utf-8", "surrogateescape").decode("latin-1") if isinstance(value, str) else value


def _to_text(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_to_text, value))
    return value.encode("latin-1").decode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _get_item(text: str, index: int) -> str:
    position = index + len(text) if index < 0 else index
    if not 0 <= position < len(text):
        raise RuntimeError(
            f"basic_string::at: __n (which is {position % 2**64}) >= this->size() (which is {len(text)})"
        )
    return text[position]


def slice_of(start: int | None, end: int | None, step: int) -> slice:
    """Return Python's slice for TorchScript's, in which the largest integer also means a missing end."""
    if not step:
        raise RuntimeError("List slice should have non-zero step")
    if step == -(2**63):
        raise RuntimeError("List slice step is out of bounds")
    missing = (None, 2**63 - 1)
    return slice(None if start in missing else start, None if end in missing else end, step)


def _slice(text: str, start: int | None, end: int | None, step: int) -> str:
    return text[slice_of(start, end, step)]


def _ord(text: str) -> int:
    if len(text) != 1:
        raise RuntimeError(f"String for ord() must be 1 character, found {len(text)}")
    return ord(text)


def _chr(number: int) -> str:
    if not 0 <= number < 1114111:
        raise RuntimeError(f"chr() arg not in range(0x110000), found {number}")
    return chr(number & 255).encode("latin-1").decode("utf-8", "surrogateescape")


def _split(text: str, separator: str | None, most: int) -> list[str]:
    if separator is None:
        blanks = str.maketrans(dict.fromkeys(_BLANKS + "\xc2\xe2\x80\xa8\xa9", " "))
        return [part for part in text.translate(blanks).split(" ") if part]
    if not separator:
        raise RuntimeError("ValueError: empty separator")
    return text.split(separator, most if most >= 0 else -1)


def _rsplit(text: str, separator: str, most: int) -> list[str]:
    return text.rsplit(separator, most if most >= 0 else -1)


def _split_lines(text: str, keep: bool) -> list[str]:
    lines, start = [], 0
    for position, letter in enumerate(text):
        if letter in _LINES + "\xc2\xe2\x80\xa8\xa9":
            lines.append(text[start:position])
            if keep:
                lines.append(letter)
            start = position + 1
    return [*lines, text[start:]] if start != len(text) else lines


def _range(text: str, start: int, end: int) -> tuple[int, int]:
    size = len(text)
    return (max(0, size + start) if start < 0 else start), (max(0, size + end + 1) if end < 0 else end)


def _part(text: str, start: int, end: int) -> str:
    start, end = _range(text, start, end)
    if start > len(text):
        raise RuntimeError(f"basic_string::substr: __pos (which is {start}) > this->size() (which is {len(text)})")
    return text[start:end] if end >= start else text[start:]


def _find(text: str, part: str, start: int, end: int) -> int:
    return _search(str.find, text, part, start, end)


def _rfind(text: str, part: str, start: int, end: int) -> int:
    return _search(str.rfind, text, part, start, end)


def _search(function: Callable[[str, str], int], text: str, part: str, start: int, end: int) -> int:
    start, end = _range(text, start, end)
    if end > start > len(text):
        raise RuntimeError(f"basic_string::substr: __pos (which is {start}) > this->size() (which is {len(text)})")
    position = function(text[start:end] if end > start else "", part)
    return position if position < 0 else position + start


def _index(text: str, part: str, start: int, end: int) -> int:
    return _required(_find(text, part, start, end))


def _rindex(text: str, part: str, start: int, end: int) -> int:
    return _required(_rfind(text, part, start, end))


def _required(position: int) -> int:
    if position < 0:
        raise RuntimeError("ValueError: substring not found")
    return position


def _count(text: str, part: str, start: int, end: int) -> int:
    if start > len(text):
        return 0
    start, end = _range(text, start, end)
    count, position = 0, text.find(part, start)
    while 0 <= position < end:
        count += 1
        position = text.find(part, position + len(part))
    return count


def _replace(text: str, old: str, new: str, most: int) -> str:
    return text.replace(old, new, most if most >= 0 else -1)


def _padded(place: Callable[[str, int, str], str]) -> Callable[..., str]:
    def apply(text: str, width: int, fill: str) -> str:
        if len(fill) != 1:
            raise RuntimeError("TypeError: The fill character must be exactly one character long")
        return place(text, width, fill)

    return apply


def _center(text: str, width: int, fill: str) -> str:
    padding = max(0, width - len(text))
    left, right = padding // 2, (padding + 1) // 2
    if width % 2:
        left, right = right, left
    return fill * left + text + fill * right


def _expand_tabs(text: str, size: int) -> str:
    result = ""
    for letter in text:
        if letter != "\t":
            result += letter
        elif size > 0:
            result += " " * (size - len(result) % size)
    return result


def _title(text: str) -> str:
    result, is_inside = "", False
    for letter in text:
        result += _lower(letter) if is_inside else _upper(letter)
        is_inside = letter.isascii() and letter.isalpha()
    return result


def _is_title(text: str) -> bool:
    has_letters = is_inside = False
    for letter in text:
        is_letter = letter.isascii() and letter.isalpha()
        if letter != (_lower(letter) if is_inside else _upper(letter)):
            return False
        has_letters |= is_letter
        is_inside = is_letter
    return has_letters


def _upper(text: str) -> str:
    return text.translate(_TO_UPPER)


def _lower(text: str) -> str:
    return text.translate(_TO_LOWER)


_TO_UPPER = {ord(letter): letter.upper() for letter in _LETTERS}
_TO_LOWER = {ord(letter): letter.lower() for letter in _LETTERS}


def _partition(text: str, separator: str) -> tuple[str, str, str]:
    position = text.find(separator)
    return (text, "", "") if position < 0 else _parts(text, position, separator)


def _rpartition(text: str, separator: str) -> tuple[str, str, str]:
    position = text.rfind(separator)
    return ("", "", text) if position < 0 else _parts(text, position, separator)


def _parts(text: str, position: int, separator: str) -> tuple[str, str, str]:
    return text[:position], separator, text[position + len(separator) :]


def _all(test: Callable[[str], bool], empty: bool = False) -> Callable[[str], bool]:
    letters = frozenset(filter(test, _LETTERS))
    return lambda text: all(letter in letters for letter in text) if text else empty


def _is_identifier(text: str) -> bool:
    return bool(text) and not text[0].isdigit() and text.isascii() and text.isalnum()


def _has_case(text: str, is_upper: bool) -> bool:
    letters = [letter for letter in text if letter.isascii() and letter.isalpha()]
    return bool(letters) and all(letter.isupper() == is_upper for letter in letters)


_METHODS: Mapping[str, Callable[..., Any]] = {
    "aten::__getitem__.str": _get_item,
    "prim::StringIndex": _get_item,
    "aten::slice.str": _slice,
    "aten::len.str": len,
    "aten::list": list,
    "aten::ord": _ord,
    "aten::lower": _lower,
    "aten::upper": _upper,
    "aten::swapcase": lambda text: "".join(_lower(c) if c == _upper(c) else _upper(c) for c in text),
    "aten::capitalize": lambda text: _upper(text[:1]) + _lower(text[1:]),
    "aten::title": _title,
    "aten::isdigit": _all(str.isdigit),
    "aten::isspace": _all(lambda letter: letter in " \t\n\r\v\f"),
    "aten::isalnum": _all(str.isalnum),
    "aten::isalpha": _all(str.isalpha),
    "aten::isdecimal": _all(str.isdigit),
    "aten::isnumeric": _all(str.isdigit),
    "aten::isprintable": _all(str.isprintable, True),
    "aten::isidentifier": _is_identifier,
    "aten::istitle": _is_title,
    "aten::isupper": lambda text: _has_case(text, True),
    "aten::islower": lambda text: _has_case(text, False),
    "aten::strip": str.strip,
    "aten::lstrip": str.lstrip,
    "aten::rstrip": str.rstrip,
    "aten::split.str": _split,
    "aten::rsplit": _rsplit,
    "aten::splitlines": _split_lines,
    "aten::find": _find,
    "aten::rfind": _rfind,
    "aten::index.str": _index,
    "aten::rindex": _rindex,
    "aten::count": _count,
    "aten::startswith": lambda text, part, start, end: _part(text, start, end).startswith(part),
    "aten::endswith": lambda text, part, start, end: _part(text, start, end).endswith(part),
    "aten::replace": _replace,
    "aten::partition": _partition,
    "aten::rpartition": _rpartition,
    "aten::center": _padded(_center),
    "aten::ljust": _padded(str.ljust),
    "aten::rjust": _padded(str.rjust),
    "aten::zfill": lambda text, width: text.rjust(width, "0"),
    "aten::expandtabs": _expand_tabs,
}

OPERATORS: Mapping[str, Callable[..., Any]] = {
    **{name: _bytewise(function) for name, function in _METHODS.items()},
    "aten::add.str": str.__add__,
    "aten::join": str.join,
    "aten::chr": _chr,
    "aten::hex": hex,
    "aten::oct": oct,
    "aten::bin": bin,
}

"""The C library of the device, and the structures of mychip.h."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

RANK = 8
NUMBER = -(2**63)  # the place of an operand that is a number
MAP, REDUCE, PRODUCT = range(3)


class Operand(ctypes.Structure):
    """``struct mychip_operand``."""

    _fields_ = [
        ("place", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("strides", ctypes.c_int64 * RANK),
        ("number", ctypes.c_double),
    ]


class Instruction(ctypes.Structure):
    """``struct mychip_instruction``."""

    _fields_ = [
        ("kind", ctypes.c_int32),
        ("function", ctypes.c_int32),
        ("reduced", ctypes.c_int64),
        ("sizes", ctypes.c_int64 * RANK),
        ("result", Operand),
        ("operands", Operand * 3),
    ]


@cache
def library() -> ctypes.CDLL:
    """Return the loaded library.

    Raises:
        OSError: the wheel was built without it, or for another machine.
        RuntimeError: the library was built from another version of mychip.h.
    """
    loaded = ctypes.CDLL(str(Path(__file__).parent / "libmychip.so"))
    loaded.mychip_run.argtypes = [ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p]
    loaded.mychip_map_name.restype = loaded.mychip_reduction_name.restype = ctypes.c_char_p
    loaded.mychip_instruction_bytes.restype = ctypes.c_int64
    if loaded.mychip_instruction_bytes() != ctypes.sizeof(Instruction):
        raise RuntimeError("libmychip.so is of another version than this package: install the package again")
    return loaded


@cache
def maps() -> dict[str, int]:
    """Return the numbers of the elementwise functions, by name."""
    return {name: number for number, name in enumerate(_names(library().mychip_map_name))}


@cache
def reductions() -> dict[str, int]:
    """Return the numbers of the reductions, by name."""
    return {name: number for number, name in enumerate(_names(library().mychip_reduction_name))}


def address_of(function: str) -> int:
    """Return the address of a function of the library."""
    return ctypes.cast(getattr(library(), function), ctypes.c_void_p).value or 0


def _names(name_of: Callable[[int], bytes | None]) -> Iterator[str]:
    number = 0
    while name := name_of(number):
        yield name.decode()
        number += 1

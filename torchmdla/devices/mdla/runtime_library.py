"""Python interface of the C++ binding (runtime/binding.h).

This module does not import torchmdla, because the compile process also uses it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("libtorchmdla_mdla.so")


class Port(ctypes.Structure):
    """The struct ``mdla_port``."""

    _fields_ = (("position", ctypes.c_uint64), ("elements", ctypes.c_uint64))


class Cost(ctypes.Structure):
    """The struct ``mdla_cost``."""

    _fields_ = (("input", ctypes.c_int64), ("compute", ctypes.c_int64), ("output", ctypes.c_int64))


_TEXT, _POINTER, _COUNT = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint
_FLAGS, _PORTS = ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(Port)

# Function -> result type, argument types.
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "mdla_fault": (_TEXT, []),
    "mdla_set_fault": (None, [_TEXT]),
    "mdla_compile": (
        ctypes.c_int,
        [_TEXT, _FLAGS, _TEXT, _TEXT, _TEXT, _POINTER, _POINTER, _COUNT, ctypes.POINTER(Cost)],
    ),
    "mdla_load": (_POINTER, [_TEXT, _FLAGS, _TEXT, _PORTS, _COUNT, _PORTS, _COUNT, _COUNT, ctypes.c_double]),
    "mdla_unload": (None, [_POINTER]),
    "mdla_submit": (ctypes.c_int, [_POINTER, _POINTER, _POINTER]),
    "mdla_collect": (ctypes.c_int, [_POINTER, _POINTER, _POINTER]),
    "mdla_run": (ctypes.c_int, [_POINTER, _POINTER, _POINTER, ctypes.c_int]),
    "mdla_info": (ctypes.c_int, [_POINTER, _TEXT, _POINTER, ctypes.c_size_t]),
}


@lru_cache(maxsize=1)
def runtime() -> Any:
    """Load and return the binding.

    Raises:
        OSError: the library is not beside this file, because torchmdla was built without it.
    """
    library = ctypes.CDLL(str(PATH))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def array_at(address: int | None, shape: Sequence[int]) -> Any:
    """Return the float array at ``address``, without a copy."""
    import numpy as np

    count = math.prod(shape)
    if not count or address is None:
        return np.empty(shape, dtype=np.float32)
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address)).reshape(shape)


def address_of(name: str) -> int:
    """Return the address of a function of the binding."""
    return ctypes.cast(getattr(runtime(), name), ctypes.c_void_p).value or 0


def flag_array(flags: Sequence[tuple[str, str]]) -> Any:
    """Return names and values as ``mdla_flags``."""
    texts = [text.encode() for pair in flags for text in pair]
    return (ctypes.c_char_p * (len(texts) + 1))(*texts, None)


def fault() -> str:
    """Return the error of the latest call of this thread. It begins with the name of the library's function."""
    return str(runtime().mdla_fault().decode(errors="replace"))

"""Loading of an artifact: the entry is one C function for all programs, and finds its code in the first pack."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from torchmdla.compiler.artifact import Artifact
from torchmdla.devices import LoadedCode, interrupts

from .library import address_of, library
from .lowering import DESTINATION, blocks_of

FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


def load(artifact: Artifact) -> LoadedCode:
    """Return the entry and the packs. A pack runs once for each version of its parameters."""
    entry, *packs = blocks_of(artifact.object_code)
    library()

    def copy_program(buffers: Any) -> int:
        ctypes.memmove(buffers[DESTINATION], entry, len(entry))
        return 0

    functions = [_function(copy_program), *(_function(_pack(block[8:])) for block in packs)]
    addresses = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    return LoadedCode(address_of("mychip_entry"), tuple(addresses), owner=functions)


def _pack(code: bytes) -> Callable[[Any], int]:
    def pack(buffers: Any) -> int:
        status: int = library().mychip_run(code, len(code), buffers)
        return status

    return pack


def _function(body: Callable[[Any], int]) -> Any:
    """Return a C function. An exception, such as an interrupt by the user, is raised after the call."""

    def run(buffers: Any) -> int:
        try:
            return body(buffers)
        except BaseException as error:
            interrupts.hold(error)
            return -1

    return FUNCTION(run)

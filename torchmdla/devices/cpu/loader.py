"""Makes an artifact of the cpu device callable in this process, with LLVM's JIT linker."""

from __future__ import annotations

import ctypes
import itertools
import os
from functools import lru_cache

import torch
from llvmlite import binding

from torchmdla import _C
from torchmdla.compiler.artifact import Artifact
from torchmdla.devices.cpu.code.object_file import separated
from torchmdla.devices.device import LoadedCode
from torchmdla.devices.shared_code import SharedCode
from torchmdla.errors import CompileError
from torchmdla.support import forks

_serial = itertools.count()

# An LLJIT keeps some kilobytes of every library that it ever linked. After this many there is a new one; the old one
# goes with the last of its libraries.
_LIBRARIES_OF_A_JIT = 256


def load(artifact: Artifact) -> LoadedCode:
    """Links the object code of ``artifact`` against the device calls and the math library of PyTorch.

    Raises:
        CompileError: a symbol cannot be resolved, or the object code is not for this machine.
    """
    return _shared.of(artifact)


def _link(artifact: Artifact) -> LoadedCode:
    manifest = artifact.manifest
    builder = binding.JITLibraryBuilder()
    for part in separated(artifact.object_code):
        builder.add_object_img(part)
    for name in manifest.device_calls:
        builder.import_symbol(name, address_of(name))
    workspace = (manifest.workspace,) if manifest.workspace else ()
    fault = (manifest.fault,) if manifest.fault else ()
    for symbol in (manifest.entry, *(pack.symbol for pack in manifest.packs), *workspace, *fault):
        builder.export_symbol(symbol)
    serial = next(_serial)
    jit = _jit(serial // _LIBRARIES_OF_A_JIT)
    try:
        library = builder.link(jit, f"torchmdla{serial}")
    except RuntimeError as error:
        raise CompileError("the object code cannot be linked", diagnostic=str(error)) from error
    packs = tuple(library[pack.symbol] for pack in manifest.packs)
    owner = (jit, library)  # dropped from the last on
    optional = {"workspace": manifest.workspace, "fault": manifest.fault}
    found = {name: library[symbol] for name, symbol in optional.items() if symbol}
    return LoadedCode(library[manifest.entry], packs, owner, **found)


_shared = SharedCode(_link)


def address_of(name: str) -> int:
    """The address of a device call, of one of SLEEF's functions in libtorch, or of one of the C library's.

    Raises:
        CompileError: none of them has it.
    """
    calls = _C.device_calls()
    if name in calls:
        return calls[name]
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    raise CompileError(f"compiled code calls {name}, which this process does not have")


@lru_cache(maxsize=1)
def _libraries() -> tuple[ctypes.CDLL, ...]:
    torch_cpu = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    return ctypes.CDLL(None), ctypes.CDLL(torch_cpu)


@lru_cache(maxsize=1)
def _jit(generation: int) -> binding.LLJIT:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    # One thread at a time is in LLVM, and has this lock; also one that lets go of code.
    forks.held(binding.ffi.lib._lock._lock)
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    return binding.create_lljit_compiler(machine)

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
from torchmdla.devices.device import LoadedCode
from torchmdla.devices.shared_code import SharedCode
from torchmdla.errors import CompileError

_serial = itertools.count()


def load(artifact: Artifact) -> LoadedCode:
    """Links the object code of ``artifact`` against the device calls and the math library of PyTorch.

    Raises:
        CompileError: a symbol cannot be resolved, or the object code is not for this machine.
    """
    return _shared.of(artifact)


def _link(artifact: Artifact) -> LoadedCode:
    manifest = artifact.manifest
    builder = binding.JITLibraryBuilder().add_object_img(artifact.object_code)
    for name in manifest.device_calls:
        builder.import_symbol(name, address_of(name))
    workspace = (manifest.workspace,) if manifest.workspace else ()
    for symbol in (manifest.entry, *(pack.symbol for pack in manifest.packs), *workspace):
        builder.export_symbol(symbol)
    try:
        library = builder.link(_jit(), f"torchmdla{next(_serial)}")
    except RuntimeError as error:
        raise CompileError("the object code cannot be linked", diagnostic=str(error)) from error
    packs = tuple(library[pack.symbol] for pack in manifest.packs)
    return LoadedCode(library[manifest.entry], packs, library, *(library[symbol] for symbol in workspace))


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
def _jit() -> binding.LLJIT:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    return binding.create_lljit_compiler(machine)

"""Linking of object code that is not an image (processors other than x86-64) with LLVM's JIT linker in this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import lru_cache

from llvmlite import binding

from torchmdla.compiler.artifact import Artifact
from torchmdla.devices.cpu.code.object_file import separated
from torchmdla.errors import CompileError
from torchmdla.support import forks

_serial = itertools.count()

# An LLJIT keeps some kilobytes of every library that it ever linked. After this many libraries a new LLJIT is created.
# The old one is freed with the last of its libraries.
_LIBRARIES_OF_A_JIT = 256


def link(artifact: Artifact, imports: Mapping[str, int]) -> tuple[object, Callable[[str], int]]:
    """Link the code of ``artifact`` into this process.

    Returns:
        the object that keeps the code alive, and a function that returns the address of a manifest's symbol.

    Raises:
        CompileError: the object code is not for this machine.
    """
    manifest = artifact.manifest
    builder = binding.JITLibraryBuilder()
    for part in separated(artifact.object_code):
        builder.add_object_img(part)
    for name, address in imports.items():
        builder.import_symbol(name, address)
    optional = filter(None, (manifest.workspace, manifest.fault))
    for symbol in (manifest.entry, *(pack.symbol for pack in manifest.packs), *optional):
        builder.export_symbol(symbol)
    serial = next(_serial)
    jit = _jit(serial // _LIBRARIES_OF_A_JIT)
    try:
        library = builder.link(jit, f"torchmdla{serial}")
    except RuntimeError as error:
        raise CompileError("the object code cannot be linked", diagnostic=str(error)) from error
    # The owner's parts are released in reverse order, so the library goes first.
    return (jit, library), lambda name: int(library[name])


@lru_cache(maxsize=1)
def _jit(generation: int) -> binding.LLJIT:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    # LLVM runs one thread at a time, which holds this lock. A thread that releases code holds it too.
    forks.held(binding.ffi.lib._lock._lock)
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    return binding.create_lljit_compiler(machine)

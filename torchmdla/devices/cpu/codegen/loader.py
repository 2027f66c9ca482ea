"""Loader: makes an artifact of the CPU device callable in this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from torchmdla import _C
from torchmdla.compiler.artifact import Artifact
from torchmdla.devices.cpu.codegen.object_file import split_objects
from torchmdla.devices.device import LoadedCode
from torchmdla.devices.shared_code import SharedCode
from torchmdla.errors import CompileError
from torchmdla.support import forks


def load(artifact: Artifact) -> LoadedCode:
    """Return the loaded code of ``artifact``, linked with the device calls and PyTorch's math library.

    Raises:
        CompileError: a symbol cannot be resolved, or the code is not for this machine.
    """
    return _shared.of(artifact)


def address_of(name: str) -> int:
    """Return the address of a device call, of a SLEEF function in libtorch, or of a C library function.

    Raises:
        CompileError: the process does not have a function of this name.
    """
    if address := _C.address_of_symbol(name):
        return address
    raise CompileError(f"compiled code calls {name}, which this process does not have")


# An object that keeps code alive, and a function that returns the addresses of its symbols.
Code = tuple[object, Callable[[str], int]]


def load_code(artifact: Artifact, addresses: Mapping[str, int]) -> Code:
    """Return the code of ``artifact`` in this process.

    Functions that it calls are resolved in ``addresses`` first, then by :func:`address_of`.

    Raises:
        CompileError: as for :func:`load`. Looking up the address of a missing symbol raises it too.
    """
    if artifact.is_image:
        return _map_image(artifact.object_code, addresses)
    calls = artifact.manifest.device_calls
    return _link(artifact, {name: addresses[name] if name in addresses else address_of(name) for name in calls})


def _map_image(data: bytes, addresses: Mapping[str, int]) -> Code:
    try:
        image = _C.Image(data, addresses)
    except _C.ImageError as error:
        raise CompileError("the image cannot be loaded", diagnostic=str(error)) from error

    def address(name: str) -> int:
        if location := image.symbol(name):
            return location
        raise CompileError(f"the image has no function {name}")

    return image, address


def _load(artifact: Artifact) -> LoadedCode:
    manifest = artifact.manifest
    owner, address = load_code(artifact, {})
    return LoadedCode(
        entry=address(manifest.entry),
        packs=tuple(address(pack.symbol) for pack in manifest.packs),
        owner=owner,
        workspace=address(manifest.workspace) if manifest.workspace else 0,
        fault=address(manifest.fault) if manifest.fault else 0,
    )


_shared = SharedCode(_load)


# Object code that is not an image is linked by LLVM's JIT linker.

_serial = itertools.count()

# An LLJIT keeps some kilobytes of every library that it ever linked. After this many libraries a new LLJIT is created.
# The old one is freed with the last of its libraries.
_LIBRARIES_OF_A_JIT = 256


def _link(artifact: Artifact, imports: Mapping[str, int]) -> Code:
    """Link the code of ``artifact`` into this process.

    Returns:
        the object that keeps the code alive, and a function that returns the address of a manifest's symbol.

    Raises:
        CompileError: the object code is not for this machine.
    """
    # LLVM uses 40 MiB of memory, and images do not need it.
    from llvmlite import binding

    manifest = artifact.manifest
    builder = binding.JITLibraryBuilder()
    for part in split_objects(artifact.object_code):
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
def _jit(generation: int) -> Any:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    # LLVM runs one thread at a time, which holds this lock. A thread that releases code holds it too.
    forks.hold_over_fork(binding.ffi.lib._lock._lock)
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    return binding.create_lljit_compiler(machine)

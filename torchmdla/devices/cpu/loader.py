"""Loader: makes an artifact of the CPU device callable in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torchmdla import _C
from torchmdla.compiler.artifact import Artifact
from torchmdla.devices.cpu.code.image import is_image
from torchmdla.devices.device import LoadedCode
from torchmdla.devices.shared_code import SharedCode
from torchmdla.errors import CompileError


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


def code_of(artifact: Artifact, addresses: Mapping[str, int]) -> Code:
    """Return the code of ``artifact`` in this process.

    Functions that it calls are resolved in ``addresses`` first, then by :func:`address_of`.

    Raises:
        CompileError: as for :func:`load`. Looking up the address of a missing symbol raises it too.
    """
    if is_image(artifact.object_code):
        return _mapped(artifact.object_code, addresses)
    # LLVM uses 40 MiB of memory, and images do not need it.
    from torchmdla.devices.cpu.jit_linking import link

    calls = artifact.manifest.device_calls
    return link(artifact, {name: addresses[name] if name in addresses else address_of(name) for name in calls})


def _mapped(data: bytes, addresses: Mapping[str, int]) -> Code:
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
    owner, address = code_of(artifact, {})
    return LoadedCode(
        entry=address(manifest.entry),
        packs=tuple(address(pack.symbol) for pack in manifest.packs),
        owner=owner,
        workspace=address(manifest.workspace) if manifest.workspace else 0,
        fault=address(manifest.fault) if manifest.fault else 0,
    )


_shared = SharedCode(_load)

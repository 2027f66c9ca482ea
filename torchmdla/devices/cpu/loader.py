"""Makes an artifact of the cpu device callable in this process."""

from __future__ import annotations

from collections.abc import Callable

from torchmdla import _C
from torchmdla.compiler.artifact import Artifact
from torchmdla.devices.cpu.code.image import is_image
from torchmdla.devices.device import LoadedCode
from torchmdla.devices.shared_code import SharedCode
from torchmdla.errors import CompileError


def load(artifact: Artifact) -> LoadedCode:
    """The code of ``artifact``, with the device calls and the math library of PyTorch.

    Raises:
        CompileError: a symbol cannot be resolved, or the code is not for this machine.
    """
    return _shared.of(artifact)


def address_of(name: str) -> int:
    """The address of a device call, of one of SLEEF's functions in libtorch, or of one of the C library's.

    Raises:
        CompileError: none of them has it.
    """
    if address := _C.address_of_symbol(name):
        return address
    raise CompileError(f"compiled code calls {name}, which this process does not have")


def _load(artifact: Artifact) -> LoadedCode:
    manifest = artifact.manifest
    owner, address = _mapped(artifact) if is_image(artifact.object_code) else _linked(artifact)
    return LoadedCode(
        entry=address(manifest.entry),
        packs=tuple(address(pack.symbol) for pack in manifest.packs),
        owner=owner,
        workspace=address(manifest.workspace) if manifest.workspace else 0,
        fault=address(manifest.fault) if manifest.fault else 0,
    )


# What keeps code there, and the addresses of its symbols.
Loaded = tuple[object, Callable[[str], int]]


def _mapped(artifact: Artifact) -> Loaded:
    try:
        image = _C.Image(artifact.object_code)
    except _C.ImageError as error:
        raise CompileError("the image cannot be loaded", diagnostic=str(error)) from error

    def address(name: str) -> int:
        if found := image.symbol(name):
            return found
        raise CompileError(f"the image has no function {name}")

    return image, address


def _linked(artifact: Artifact) -> Loaded:
    # LLVM is 40 MiB of the process, which images do without.
    from torchmdla.devices.cpu.jit_linking import link

    imports = {name: address_of(name) for name in artifact.manifest.device_calls}
    return link(artifact, imports)


_shared = SharedCode(_load)

"""Makes an artifact of the cpu device callable in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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


# What keeps code there, and the addresses of its symbols.
Code = tuple[object, Callable[[str], int]]


def code_of(artifact: Artifact, given: Mapping[str, int]) -> Code:
    """The code of ``artifact`` in this process. What it calls is at the addresses that are ``given``, and else where
    :func:`address_of` finds it.

    Raises:
        CompileError: as :func:`load`; so do the addresses of symbols that are not there.
    """
    if is_image(artifact.object_code):
        return _mapped(artifact.object_code, given)
    # LLVM is 40 MiB of the process, which images do without.
    from torchmdla.devices.cpu.jit_linking import link

    calls = artifact.manifest.device_calls
    return link(artifact, {name: given[name] if name in given else address_of(name) for name in calls})


def _mapped(data: bytes, given: Mapping[str, int]) -> Code:
    try:
        image = _C.Image(data, given)
    except _C.ImageError as error:
        raise CompileError("the image cannot be loaded", diagnostic=str(error)) from error

    def address(name: str) -> int:
        if found := image.symbol(name):
            return found
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

"""Output of the compiler: object code and a manifest, as one value that can be stored, sent and checked."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from torchmdla.compiler.checksummed import Format
from torchmdla.compiler.program import Argument, Result

# Version of an entry's calling convention and of the forms of object code, described in docs/design/abi.md. It is
# increased whenever they change.
ABI_VERSION = 4

# First bytes of an image (docs/design/abi.md).
IMAGE_MAGIC = b"mdlaimg\0"


class DamagedArtifact(ValueError):
    """Error of bytes that are not an artifact, are altered, or have another ABI version."""


_FORMAT = Format(
    magic=b"mdla-artifact\n",
    version=ABI_VERSION,
    kind="an artifact",
    remedy="compile its program anew",
    error=DamagedArtifact,
)


@dataclass(frozen=True)
class Pack:
    """One packed buffer.

    Attributes:
        symbol: name of the function that makes the buffer.
        recipe: hash of the computation, types included. Equal recipes make equal buffers from equal parameters, so that
            specialisations and instances share them.
        arguments: numbers of the arguments of that function, all parameters.
        size: size of the buffer in bytes.
    """

    symbol: str
    recipe: str
    arguments: tuple[int, ...]
    size: int


# A number or, for a dynamic program, the terms of a polynomial in its symbols (:class:`torchmdla.compiler.sizes.Size`).
Count = int | tuple[tuple[tuple[int, ...], int], ...]


@dataclass(frozen=True)
class KernelCall:
    """One call of a kernel in the entry, for debugging.

    Attributes:
        symbol: name of the kernel.
        loops: sizes of its loop nests, such as ``2x64 reduce 128``.
        flops: number of its floating-point operations in a call of the entry.
        bytes: number of bytes that it reads and writes in a call of the entry, each element counted once.
        nodes: numbers of the group's nodes that it computes (``"graph":N`` in the program's locations).
        after: numbers of the earlier calls whose results it reads, -1 for inputs.
        is_result: whether it writes a result of the program.
    """

    symbol: str
    loops: str
    flops: Count
    bytes: Count
    nodes: tuple[int, ...]
    after: tuple[int, ...] = ()
    is_result: bool = False


@dataclass(frozen=True)
class DevicePart:
    """Part of a program that runs on one of several devices, in the order in which they run.

    Attributes:
        device: name of the device.
        nodes: numbers of the group's nodes that it computes.
        transfers: number of tensors that move between the memory of the device and that of the host in a call.
        bytes: bytes of these tensors.
        reasons: pairs of a node's number and why it does not run on the first device.
    """

    device: str
    nodes: tuple[int, ...]
    transfers: int
    bytes: Count
    reasons: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Manifest:
    """Description of the object code for a loader.

    Attributes:
        program: key of the program.
        entry: function that computes the results, from the arguments and from the packed buffers.
        arguments: arguments of the program.
        results: results of the program.
        workspace_bytes: bytes of workspace that the entry and the packs need.
        symbols: number of symbols of a dynamic program.
        workspace: function that returns the bytes of workspace that the entry of a dynamic program needs.
        packs: buffers that are packed from parameters, once for every version of these.
        parameters: the parameters that the entry reads itself.
        in_place: pairs of a result and an argument. The caller may pass the argument's memory for the result. All pairs
            without common tensors can be used in one call.
        releases: pairs of an argument and the number of a kernel. No kernel from that number on reads the argument, and
            the call cannot fail from there on.
        device_calls: undefined symbols that the loader has to provide, the imports of an image.
        fault: function that returns why the code has failed, if it can fail where eager PyTorch would not
            (:class:`torchmdla.devices.device.LoadedCode`).
        kernels: calls of kernels in the entry, by the numbers that it passes to ``mdla_begin_kernel``.
        parts: parts on several devices; empty for code of one device.
        statistics: times (seconds) and counts of the compilation, for debugging.
    """

    program: str
    entry: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    workspace_bytes: int
    symbols: int = 0
    workspace: str = ""
    packs: tuple[Pack, ...] = ()
    parameters: tuple[int, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    releases: tuple[tuple[int, int], ...] = ()
    device_calls: tuple[str, ...] = ()
    fault: str = ""
    kernels: tuple[KernelCall, ...] = ()
    parts: tuple[DevicePart, ...] = ()
    statistics: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, description: dict[str, Any]) -> Manifest:
        """Return the manifest with the fields of ``description``, which has JSON's types: the inverse of ``asdict``.

        Raises:
            KeyError, TypeError: ``description`` has other fields.
        """
        lists: dict[str, Any] = {
            "arguments": tuple(map(Argument.of, description["arguments"])),
            "results": tuple(Result(r["dtype"], tuple(r["shape"])) for r in description["results"]),
            "packs": tuple(
                Pack(p["symbol"], p["recipe"], tuple(p["arguments"]), p["size"]) for p in description["packs"]
            ),
            "kernels": tuple(
                KernelCall(
                    k["symbol"],
                    k["loops"],
                    _count(k["flops"]),
                    _count(k["bytes"]),
                    tuple(k["nodes"]),
                    tuple(k["after"]),
                    k["is_result"],
                )
                for k in description["kernels"]
            ),
            "parts": tuple(
                DevicePart(
                    p["device"], tuple(p["nodes"]), p["transfers"], _count(p["bytes"]), tuple(map(tuple, p["reasons"]))
                )
                for p in description["parts"]
            ),
            "parameters": tuple(description["parameters"]),
            **{name: tuple(map(tuple, description[name])) for name in ("in_place", "releases")},
            "device_calls": tuple(description["device_calls"]),
        }
        return cls(**{**description, **lists})


def _count(raw: Any) -> Count:
    return raw if isinstance(raw, int) else tuple((tuple(exponents), factor) for exponents, factor in raw)


@dataclass(frozen=True)
class Artifact:
    """Object code and its manifest.

    The object code is an image, relocatable files of the target's format, or any other form that the device loads.
    """

    object_code: bytes
    manifest: Manifest

    @property
    def is_image(self) -> bool:
        """Return whether the object code begins like an image, which every runtime loads without the device."""
        return self.object_code.startswith(IMAGE_MAGIC)

    def to_bytes(self) -> bytes:
        """Return one self-checking block (:mod:`torchmdla.compiler.checksummed`)."""
        return _FORMAT.seal(asdict(self.manifest), self.object_code)

    @classmethod
    def from_bytes(cls, data: bytes) -> Artifact:
        """Return the artifact of a block that :meth:`to_bytes` returned.

        Raises:
            DamagedArtifact: the block is truncated, altered, or of another ABI version.
        """
        return _FORMAT.open(data, lambda description, code: cls(code, Manifest.of(description)))

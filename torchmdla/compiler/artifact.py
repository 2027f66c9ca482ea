"""The compiler's output: object code and a manifest, as one value that can be stored, sent and checked."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from torchmdla.compiler.checksummed import Format
from torchmdla.compiler.program import Argument, Result

# The calling convention of an entry, and the forms of object code, described in docs/architecture.md. Raised whenever
# they change.
ABI_VERSION = 4


class DamagedArtifact(ValueError):
    """The bytes are not an artifact, not the one that was written, or one of another ABI version."""


_FORMAT = Format(
    magic=b"mdla-artifact\n",
    version=ABI_VERSION,
    kind="an artifact",
    remedy="compile its program anew",
    error=DamagedArtifact,
)


@dataclass(frozen=True)
class Pack:
    """One packed buffer of ``size`` bytes: function ``symbol`` makes it from the ``arguments``, all parameters.

    ``recipe`` is a hash of what is computed, types included: equal recipes make equal buffers of equal parameters, so
    that specialisations and instances share them.
    """

    symbol: str
    recipe: str
    arguments: tuple[int, ...]
    size: int


# A number; of a dynamic program the terms of a polynomial in its symbols (:class:`torchmdla.compiler.sizes.Size`).
Count = int | tuple[tuple[tuple[int, ...], int], ...]


@dataclass(frozen=True)
class KernelCall:
    """A place in the entry that calls a kernel, for people.

    ``loops`` are the sizes of its loop nests, ``2x64 reduce 128`` say; ``flops`` its floating-point operations in a
    call of the entry, ``bytes`` those of what it reads and writes, each element once; ``nodes`` the numbers of the
    group's nodes that it computes (``"graph":N`` in the program's locations); ``after`` the numbers of the earlier
    places whose results it reads, -1 for inputs; with ``is_result`` it writes a result of the program.
    """

    symbol: str
    loops: str
    flops: Count
    bytes: Count
    nodes: tuple[int, ...]
    after: tuple[int, ...] = ()
    is_result: bool = False


@dataclass(frozen=True)
class Manifest:
    """What a loader must know about the object code.

    ``entry`` computes the results, from the arguments and from the buffers that ``packs`` make of parameters, once for
    every version of these; ``parameters`` are the arguments among them that the entry reads itself. ``workspace_bytes``
    are what the entry and the packs need; the entry of a dynamic program, with ``symbols`` symbols, needs what the
    function ``workspace`` says. ``device_calls`` are the undefined symbols
    that the loader has to provide, the imports of an image. ``fault`` is the function that tells why the code has
    failed, where it may fail and eager PyTorch would not (:class:`torchmdla.devices.device.LoadedCode`). ``kernels``
    are the places in the entry that call kernels, by the numbers that it tells ``mdla_begin_kernel``. ``statistics``
    are times (seconds) and counts of the compilation, for people.
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
    device_calls: tuple[str, ...] = ()
    fault: str = ""
    kernels: tuple[KernelCall, ...] = ()
    statistics: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, description: dict[str, Any]) -> Manifest:
        """The inverse of ``asdict``, from JSON's types.

        Raises:
            KeyError, TypeError: it has other fields.
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
            "parameters": tuple(description["parameters"]),
            "device_calls": tuple(description["device_calls"]),
        }
        return cls(**{**description, **lists})


def _count(raw: Any) -> Count:
    return raw if isinstance(raw, int) else tuple((tuple(exponents), factor) for exponents, factor in raw)


@dataclass(frozen=True)
class Artifact:
    """Object code (an image, relocatable files of the target's format, or whatever the device loads) and its
    manifest."""

    object_code: bytes
    manifest: Manifest

    def to_bytes(self) -> bytes:
        """One self-checking block (:mod:`torchmdla.compiler.checksummed`)."""
        return _FORMAT.seal(asdict(self.manifest), self.object_code)

    @classmethod
    def from_bytes(cls, data: bytes) -> Artifact:
        """The inverse of :meth:`to_bytes`.

        Raises:
            DamagedArtifact: the block is truncated, altered, or of another ABI version.
        """
        return _FORMAT.open(data, lambda description, code: cls(code, Manifest.of(description)))

"""The compiler's input: a function in the Torch dialect and what MLIR's types do not say about it.

Nothing here imports torch: a program is text and numbers, so that it can be hashed, stored and sent to a worker.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torchmdla.compiler.sizes import Size

Role = Literal["input", "parameter"]


@dataclass(frozen=True)
class Argument:
    """One argument of ``@forward``.

    ``role`` is ``"parameter"`` for weights and buffers, which change seldom and may be packed once per version, and
    ``"input"`` for everything else. ``dtype`` is torch's name (``"float32"``, ``"int64"``, ``"bool"``, …). ``shape``
    holds the sizes; the data is contiguous in that order. A Python ``float`` of the graph is a 0-d ``float64``
    tensor of kind ``"scalar"``: its argument in MLIR is ``!torch.float``. So is an ``int`` that varies of ``int64`` and
    ``!torch.int``. ``bits``: of a parameter of int8, how many of
    them were enough for what it held (0: all 8); whoever relies on it checks it when the parameter is packed.
    """

    role: Role
    dtype: str
    shape: tuple[int, ...]
    kind: Literal["tensor", "scalar"] = "tensor"
    bits: int = 0

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Argument:
        """The inverse of ``asdict``, from JSON's types."""
        return cls(raw["role"], raw["dtype"], tuple(raw["shape"]), raw["kind"], raw["bits"])


@dataclass(frozen=True)
class Result:
    """One result of ``@forward``: a tensor that the caller allocates, contiguous with sizes ``shape``."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Target:
    """What to generate code for: the device's registered name and, for a CPU, LLVM's names of it."""

    device: str
    triple: str = ""
    cpu: str = ""
    features: str = ""


@dataclass(frozen=True)
class Sample:
    """A dynamic program written out where its symbols have ``values``."""

    values: tuple[int, ...]
    mlir: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]


@dataclass(frozen=True)
class Program:
    """One function ``@forward`` in the Torch dialect (MLIR text) with roles, target and options.

    A program with ``symbols`` is dynamic: it runs at any values of them from 2 on. It has no text of its own:
    ``samples`` are the program at generic values (primes, all different), from which the device learns how numbers
    depend on the symbols (:func:`torchmdla.compiler.sizes.fit`). Its arguments and results are those at the typical
    values ``symbols``, for which a device chooses what is fastest. ``quotients`` are the numerators and denominators of
    the floats that it computes of sizes.

    ``versions`` names the producers (torchmdla, torch-mlir): an artifact of another version is never reused.
    """

    mlir: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    target: Target
    options: tuple[tuple[str, str], ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    symbols: tuple[int, ...] = ()
    samples: tuple[Sample, ...] = ()
    quotients: tuple[tuple[int | Size, int | Size], ...] = ()

    @property
    def key(self) -> str:
        """SHA-256 of the whole program in hexadecimal: the name of its artifact in any cache."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Program:
        raw = json.loads(text)
        return cls(
            mlir=raw["mlir"],
            arguments=_arguments(raw),
            results=_results(raw),
            target=Target(**raw["target"]),
            options=tuple((k, v) for k, v in raw["options"]),
            versions=tuple((k, v) for k, v in raw["versions"]),
            symbols=tuple(raw["symbols"]),
            samples=tuple(Sample(tuple(s["values"]), s["mlir"], _arguments(s), _results(s)) for s in raw["samples"]),
            quotients=tuple((_size(numerator), _size(denominator)) for numerator, denominator in raw["quotients"]),
        )

    def to_bytes(self) -> bytes:
        """Small enough to be kept beside what was compiled: some hundredths of the text."""
        return zlib.compress(self.to_json().encode(), 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> Program:
        return cls.from_json(zlib.decompress(data).decode())

    def sample(self, number: int) -> Program:
        """The static program that sample ``number`` is."""
        at = self.samples[number]
        own = replace(self, mlir=at.mlir, arguments=at.arguments, results=at.results)
        return replace(own, symbols=(), samples=(), quotients=())


def _size(raw: Any) -> int | Size:
    return raw if isinstance(raw, int) else Size(tuple((tuple(powers), factor) for powers, factor in raw["terms"]))


def _arguments(raw: dict[str, Any]) -> tuple[Argument, ...]:
    return tuple(map(Argument.of, raw["arguments"]))


def _results(raw: dict[str, Any]) -> tuple[Result, ...]:
    return tuple(Result(r["dtype"], tuple(r["shape"])) for r in raw["results"])

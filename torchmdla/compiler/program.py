"""Input of the compiler: a function in the Torch dialect and the facts about it that MLIR's types do not contain.

This module does not import torch. A program is text and numbers, so that it can be hashed, stored and sent to a worker.
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

    Attributes:
        role: ``"parameter"`` for weights and buffers, which change rarely and may be packed once per version;
            ``"input"`` for everything else.
        dtype: torch's name of the dtype (``"float32"``, ``"int64"``, ``"bool"``, …).
        shape: sizes. The data is contiguous in that order.
        kind: ``"tensor"`` or ``"scalar"``. A Python ``float`` of the graph is a 0-d ``float64`` tensor of kind
            ``"scalar"``, whose argument in MLIR is ``!torch.float``. An ``int`` that varies is likewise ``int64`` and
            ``!torch.int``.
        bits: number of bits that were enough for the values of an int8 parameter (0: all 8), or 1 for a vector of
            int64 zeros. Code that relies on it checks it when the parameter is packed, or in each call.
    """

    role: Role
    dtype: str
    shape: tuple[int, ...]
    kind: Literal["tensor", "scalar"] = "tensor"
    bits: int = 0

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Argument:
        """Return the argument with the fields of ``raw``, which has JSON's types: the inverse of ``asdict``."""
        return cls(raw["role"], raw["dtype"], tuple(raw["shape"]), raw["kind"], raw["bits"])


@dataclass(frozen=True)
class Result:
    """One result of ``@forward``: a tensor that the caller allocates, contiguous with sizes ``shape``."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Target:
    """Target of code generation: the device's registered name and, for a CPU, LLVM's names of it."""

    device: str
    triple: str = ""
    cpu: str = ""
    features: str = ""

    @property
    def architecture(self) -> str:
        """Return the triple's instruction set, by LLVM's name."""
        name = self.triple.partition("-")[0]
        return "aarch64" if name == "arm64" else name


@dataclass(frozen=True)
class Sample:
    """Dynamic program, written out where its symbols have ``values``."""

    values: tuple[int, ...]
    mlir: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]


@dataclass(frozen=True)
class Program:
    """One function ``@forward`` in the Torch dialect (MLIR text) with roles, target and options.

    A program with ``symbols`` is dynamic: it runs at any values of them from 2 on. It does not have its own text.
    Instead ``samples`` are the program at generic values (primes, all different). The device fits its numbers to them
    as functions of the symbols (:func:`torchmdla.compiler.sizes.fit`). The arguments and results are those at the
    typical values ``symbols``, for which a device chooses the fastest code. ``quotients`` are the numerators and
    denominators of the floats that the program computes from sizes.

    ``versions`` names the producers (torchmdla, torch-mlir, llvmlite). An artifact of another version is never reused.
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
        """Return the SHA-256 of the whole program in hexadecimal, the name of its artifact in any cache."""
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
        """Return the compressed program, a few hundredths of the text, to be kept beside the compiled code."""
        return zlib.compress(self.to_json().encode(), 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> Program:
        return cls.from_json(zlib.decompress(data).decode())

    def sample(self, number: int) -> Program:
        """Return the static program of sample ``number``."""
        at = self.samples[number]
        static_program = replace(self, mlir=at.mlir, arguments=at.arguments, results=at.results)
        return replace(static_program, symbols=(), samples=(), quotients=())


def _size(raw: Any) -> int | Size:
    return raw if isinstance(raw, int) else Size(tuple((tuple(powers), factor) for powers, factor in raw["terms"]))


def _arguments(raw: dict[str, Any]) -> tuple[Argument, ...]:
    return tuple(map(Argument.of, raw["arguments"]))


def _results(raw: dict[str, Any]) -> tuple[Result, ...]:
    return tuple(Result(r["dtype"], tuple(r["shape"])) for r in raw["results"])

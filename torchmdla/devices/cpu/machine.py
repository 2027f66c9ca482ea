"""The processor that code is generated for, as far as schedules depend on it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from torchmdla.compiler import records
from torchmdla.compiler.program import Target

# Among a target's features: generated code checks its accesses (``code/checks``).
CHECK_BOUNDS = "check-bounds"

# Among a target's features, before one of these: sums of products in whatever way takes least time (``fast``), only
# convolutions in another way than plainly (``winograd``), or all plainly (``direct``); or, for tests, in Winograd's way
# by tiles of two, four or six results, or in Strassen's, wherever that applies, whatever it costs.
ALGORITHMS = "algorithms="
Algorithms = Literal["fast", "winograd", "direct", "winograd2", "winograd4", "winograd6", "strassen"]

# Among a target's features: generated code calls functions of the C library alone, none on vectors that libtorch has.
SCALAR_FUNCTIONS = "scalar-functions"

# LLVM's names of processors on which norms and softmax of what comes from memory take less time without instructions
# that fetch ahead (Zen 4: 0.75 to 1, measured), where others (Zen 5) take 1.1 to 1.8 times as long.
_FORESEEING = frozenset({"znver4"})

# Processors that compute a vector of 64 bytes in two halves (AMD, Software Optimization Guide for the Zen4
# Microarchitecture, 2.11), by LLVM's names: what is known of them before anything is measured.
_SPLITTING = frozenset(("znver4",))

# Fields of a machine that are measured on it (``tuning/calibration.py``): their type, and what they lie between.
MEASURED: Mapping[str, tuple[type, float, float]] = {
    "splits": (bool, 0, 1),
    "memory_bytes": (float, 1, 1 << 10),
    "second_level": (int, 1 << 16, 1 << 28),
    "ways": (int, 1, 1 << 6),
}


@dataclass(frozen=True)
class Machine:
    """The widest vector in bytes, how many vector registers there are, and whether arithmetic takes an operand from
    memory broadcast to all lanes. Caches are those of a common core of the kind, in bytes, with the ways and line of
    the second level; smaller ones cost speed, not correctness. ``fused``: multiply-add is one instruction;
    ``scales``: so is a product with a power of two; ``looks_up``: a lookup in a table of 16 floats; ``dots_bf16``:
    two products of bfloat16 and their sum; ``dots_bytes``: four products of integers of 8 bits, one without and
    one with a sign, and their sum; ``foresees``: it fetches what a tile walks next as well as instructions that say so
    would. ``splits``: an operation on the widest vector takes as long as two on halves of it;
    ``memory_bytes``: how many bytes come in a cycle from memory that no second cache holds. A cycle is one in which two
    operations begin. ``calls_vectors``: there are library functions of vectors."""

    vector_bytes: int
    registers: int
    embeds_broadcasts: bool = False
    first_level: int = 32 << 10
    second_level: int = 1 << 20
    ways: int = 16
    line: int = 64
    fused: bool = True
    scales: bool = False
    looks_up: bool = False
    dots_bf16: bool = False
    dots_bytes: bool = False
    foresees: bool = False
    splits: bool = False
    memory_bytes: float = 10.0
    algorithms: Algorithms = "fast"
    calls_vectors: bool = True

    @property
    def called_vector_bytes(self) -> int:
        """The widest vector that functions of libraries take; 0 where they take none."""
        return self.vector_bytes if self.calls_vectors else 0

    @property
    def operation(self) -> float:
        """Cycles of an operation on the widest vector."""
        return 1.0 if self.splits else 0.5

    @property
    def blocks(self) -> Sequence[int]:
        """How many floats to compute at once, the widest vectors first, then halves of them that are as fast."""
        lanes = self.vector_bytes // 4
        return (lanes, lanes // 2) if self.splits else (lanes,)

    def far(self, count: float) -> float:
        """The time, in operations on the widest vectors, to fetch so many bytes of weights, or to store as many: where
        the second cache does not hold them, other layers have filled all caches since."""
        return count / self.memory_bytes / self.operation if count > self.second_level else 0.0

    def streams(self, count: int) -> bool:
        """Whether so many bytes, walked once, come from behind the second cache."""
        return count >= 2 * self.second_level

    @classmethod
    def of(cls, target: Target, options: Iterable[tuple[str, str]] = ()) -> Machine:
        """The machine that ``target``'s features promise, with what a program's ``options`` say was measured of it."""
        features = set(target.features.split(","))
        chosen = next((f.removeprefix(ALGORITHMS) for f in features if f.startswith(ALGORITHMS)), "fast")
        promised = cls._promised(target, features)
        promised = replace(
            promised,
            foresees=target.cpu in _FORESEEING,
            algorithms=cast(Algorithms, chosen),
            calls_vectors=SCALAR_FUNCTIONS not in features,
        )
        return replace(promised, **_measured(dict(options).get(records.MACHINE, "{}")))

    @classmethod
    def _promised(cls, target: Target, features: set[str]) -> Machine:
        if "+avx512f" in features:
            splits = target.cpu in _SPLITTING
            return cls(
                64,
                32,
                embeds_broadcasts=True,
                scales=True,
                looks_up=True,
                dots_bf16="+avx512bf16" in features,
                dots_bytes="+avx512vnni" in features,
                splits=splits,
            )
        if "+avx2" in features:
            dots = "+avxvnni" in features
            return cls(32, 16, second_level=256 << 10, ways=8, fused="+fma" in features, dots_bytes=dots)
        is_arm = target.triple.startswith(("aarch64", "arm64"))
        fused = is_arm or "+fma" in features
        return cls(16, 32 if is_arm else 16, second_level=256 << 10, ways=8, fused=fused)


def converts_bf16(target: Target) -> bool:
    """Whether float32 is rounded to bfloat16 by instructions."""
    return not {"+avx512bf16", "+avxneconvert", "+bf16"}.isdisjoint(target.features.split(","))


def converts_f16(target: Target) -> bool:
    """Whether float16 is converted by instructions: of x86's processors by those of AVX2."""
    features = target.features.split(",")
    return not target.triple.startswith("x86_64") or "+f16c" in features or "+avx512f" in features


def _measured(text: str) -> dict[str, Any]:
    """The fields that a JSON text has, without those that are none or out of bounds."""
    try:
        raw = json.loads(text)
    except ValueError:
        return {}
    numbers = raw.items() if isinstance(raw, dict) else ()
    made = {name: value for name, value in numbers if name in MEASURED and isinstance(value, int | float)}
    return {name: MEASURED[name][0](n) for name, n in made.items() if MEASURED[name][1] <= n <= MEASURED[name][2]}

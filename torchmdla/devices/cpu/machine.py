"""The processor that code is generated for, as far as schedules depend on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, cast

from torchmdla.compiler.program import Target

# Among a target's features: generated code checks its accesses (``code/checks``).
CHECK_BOUNDS = "check-bounds"

# Among a target's features, before one of these: sums of products in whatever way takes least time (``fast``), only
# convolutions in another way than plainly (``winograd``), or all plainly (``direct``); or, for tests, in Winograd's way
# by tiles of two, four or six results, or in Strassen's, wherever that applies, whatever it costs.
ALGORITHMS = "algorithms="
Algorithms = Literal["fast", "winograd", "direct", "winograd2", "winograd4", "winograd6", "strassen"]

# LLVM's names of processors on which norms and softmax of what comes from memory were measured to take 0.55 to 0.9 of
# the time without instructions that fetch ahead (Zen 4), where others (Zen 5) take 1.1 to 1.8 times as long.
_FORESEEING = frozenset({"znver4"})


@dataclass(frozen=True)
class Machine:
    """The widest vector in bytes, how many vector registers there are, and whether arithmetic takes an operand from
    memory broadcast to all lanes. Caches are those of a common core of the kind, in bytes, with the ways and line of
    the second level; smaller ones cost speed, not correctness. ``fused``: multiply-add is one instruction;
    ``scales``: so is a product with a power of two; ``looks_up``: so is a lookup in a table of 16
    floats; ``foresees``: it fetches what a tile walks next as well as instructions that say so would."""

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
    foresees: bool = False
    algorithms: Algorithms = "fast"

    def streams(self, count: int) -> bool:
        """Whether so many bytes, walked once, come from behind the second cache."""
        return count >= 2 * self.second_level

    @classmethod
    def of(cls, target: Target) -> Machine:
        """The machine that ``target``'s features promise."""
        features = set(target.features.split(","))
        chosen = next((f.removeprefix(ALGORITHMS) for f in features if f.startswith(ALGORITHMS)), "fast")
        promised = cls._promised(target, features)
        return replace(promised, foresees=target.cpu in _FORESEEING, algorithms=cast(Algorithms, chosen))

    @classmethod
    def _promised(cls, target: Target, features: set[str]) -> Machine:
        if "+avx512f" in features:
            return cls(64, 32, embeds_broadcasts=True, scales=True, looks_up=True)
        if "+avx2" in features:
            return cls(32, 16, second_level=256 << 10, ways=8, fused="+fma" in features)
        is_arm = target.triple.startswith(("aarch64", "arm64"))
        fused = is_arm or "+fma" in features
        return cls(16, 32 if is_arm else 16, second_level=256 << 10, ways=8, fused=fused)

"""Properties of the target processor that schedules depend on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from torchmdla.compiler import records
from torchmdla.compiler.program import Target
from torchmdla.devices.cpu.target.matrix_units import MatrixUnit, matrix_unit

# A target's feature: generated code checks its accesses (``code/checks``).
CHECK_BOUNDS = "check-bounds"

# The prefix of a target's feature that selects the algorithms of contractions.
# ``fast``: the fastest algorithm of each. ``winograd``: other algorithms only for convolutions. ``direct``: only the
# direct algorithm.
# The others are for tests: Winograd's algorithm with tiles of 2, 4 or 6 results, or Strassen's, wherever it applies.
ALGORITHMS = "algorithms="
Algorithms = Literal["fast", "winograd", "direct", "winograd2", "winograd4", "winograd6", "strassen"]

# The prefix of a target's feature that specifies how many threads share kernels: one of 4, 8, 16 and 32. Schedules for
# one and two threads are the same, and such targets do not have the feature.
THREADS = "threads="
_FEWEST_THREADS, _MOST_THREADS = 4, 32

# A target's feature: generated code calls only functions of the C library, not the vector functions of libtorch.
SCALAR_FUNCTIONS = "scalar-functions"

# The prefix of a target's feature that names the triple of the machine on which constants are packed. Such code
# consists of the packs of the target's code, in the baseline instructions of that machine.
PACKS_ON = "packs-on="

# LLVM's names of processors on which norms and softmax of data in memory are faster without prefetch instructions (Zen
# 4: 0.75 to 1 times as long, measured). On others (Zen 5) they take 1.1 to 1.8 times as long.
_STRONG_PREFETCHERS = frozenset({"znver4"})

# LLVM's names of processors that compute a 64-byte vector in two halves (AMD, Software Optimization Guide for the Zen4
# Microarchitecture, 2.11). This is the default until it is measured.
_SPLIT_VECTOR_CPUS = frozenset(("znver4",))

# The elements of a word, by their type.
_ELEMENTS_OF_WORD: Mapping[str, int] = {"bf16": 2, "f16": 2, "i8": 4}

# Fields that are measured on the machine (``tuning/calibration.py``): the type, and the lower and upper bound.
MEASURED: Mapping[str, tuple[type, float, float]] = {
    "splits": (bool, 0, 1),
    "memory_bytes": (float, 1, 1 << 10),
    "second_level": (int, 1 << 16, 1 << 28),
    "ways": (int, 1, 1 << 6),
}


@dataclass(frozen=True)
class Machine:
    """Processor that code is generated for.

    A cycle is the time in which two vector operations begin. Cache sizes are those of a common core of the kind. If a
    cache is smaller, code is slower but still correct.

    Attributes:
        vector_bytes: the size of the widest vector.
        registers: the number of vector registers.
        embeds_broadcasts: whether an arithmetic instruction can broadcast an operand from memory to all lanes.
        first_level: the size of the first-level cache, in bytes.
        second_level: the size of the second-level cache, in bytes.
        ways: the ways of the second-level cache.
        line: the size of a line of the second-level cache, in bytes.
        fused: whether multiply-add is one instruction.
        has_scale: whether multiplication by a power of two is one instruction.
        lookup: the floats in the largest table in which a lookup is one instruction: 16, 8, or 0.
        dots_bf16: whether two products of bfloat16 and their sum are one instruction.
        dots_bytes: whether four products of an unsigned and a signed 8-bit integer and their sum are one instruction.
        has_strong_prefetcher: whether the hardware prefetches a tile's data as well as prefetch instructions do.
        splits: whether an operation on the widest vector takes as long as two operations on halves of it.
        memory_bytes: the bytes per cycle that come from memory beyond the second-level cache.
        threads: the number of threads that share kernels: a power of two up to 32; 1 for one and two threads.
        algorithms: the algorithms that contractions may use.
        calls_vectors: whether there are library functions on vectors.
        matrix: the matrix unit, if there is one.
        architecture: LLVM's name of the instruction set.
    """

    vector_bytes: int
    registers: int
    embeds_broadcasts: bool = False
    first_level: int = 32 << 10
    second_level: int = 1 << 20
    ways: int = 16
    line: int = 64
    fused: bool = True
    has_scale: bool = False
    lookup: int = 0
    dots_bf16: bool = False
    dots_bytes: bool = False
    has_strong_prefetcher: bool = False
    splits: bool = False
    memory_bytes: float = 10.0
    threads: int = 1
    algorithms: Algorithms = "fast"
    calls_vectors: bool = True
    matrix: MatrixUnit | None = None
    architecture: str = "x86_64"

    def sums_words(self, element: str) -> bool:
        """Return whether products of elements of a type are summed a word at a time."""
        has_dots = {"bf16": self.dots_bf16, "i8": self.dots_bytes}.get(element, False)
        return has_dots or (self.matrix is not None and self.matrix.multiplies(element))

    def part_of_products(self, element: str) -> float:
        """Return the time of sums of narrow products, relative to that of as many products of floats."""
        words = _ELEMENTS_OF_WORD[element]
        if self.matrix is not None and self.matrix.multiplies(element):
            products = self.matrix.columns * self.matrix.columns * words
            return self.matrix.row_cycles / products * (self.vector_bytes // 4) / self.operation
        return 1 / words

    @property
    def called_vector_bytes(self) -> int:
        """Return the size of the widest vector that library functions support; 0 if they support none."""
        is_exported = self.vector_bytes > 16 or self.architecture == "aarch64"
        return self.vector_bytes if self.calls_vectors and is_exported else 0

    @property
    def operation(self) -> float:
        """Return the cycles of one operation on the widest vector."""
        return 1.0 if self.splits else 0.5

    @property
    def blocks(self) -> Sequence[int]:
        """Return the numbers of floats per vector to choose from: full vectors, then halves if they are as fast."""
        lanes = self.vector_bytes // 4
        return (lanes, lanes // 2) if self.splits else (lanes,)

    def memory_time(self, count: float) -> float:
        """Return the time to fetch or store ``count`` bytes, in operations on the widest vectors.

        It is 0 for data that fits the second-level cache. Larger data is in no cache, since other layers have run in
        between.
        """
        return count / self.memory_bytes / self.operation if count > self.second_level else 0.0

    def is_streamed(self, count: int) -> bool:
        """Return whether ``count`` bytes that are read once come from beyond the second-level cache."""
        return count >= 2 * self.second_level

    def comes_from_memory(self, count: int) -> bool:
        """Return whether ``count`` bytes that are read again are in no cache, by the usual size of the last one."""
        return count > 16 * self.second_level

    @classmethod
    def of(cls, target: Target, options: Iterable[tuple[str, str]] = ()) -> Machine:
        """Return the machine with the target's features and a program's measured constants.

        The measured constants are in ``options``.
        """
        features = set(target.features.split(","))
        chosen = next((f.removeprefix(ALGORITHMS) for f in features if f.startswith(ALGORITHMS)), "fast")
        threads = next((int(f.removeprefix(THREADS)) for f in features if f.startswith(THREADS)), 1)
        matrix = matrix_unit(features)
        if matrix is not None and CHECK_BOUNDS in features:
            matrix = replace(matrix, is_modelled=True)  # Accesses by instructions of a unit cannot be checked.
        promised = cls._from_features(target, features)
        calls_vectors = SCALAR_FUNCTIONS not in features
        if matrix is not None and promised.vector_bytes < matrix.row_bytes:
            # The layouts and loops of a processor with the unit. LLVM divides its vectors.
            promised, calls_vectors = replace(promised, vector_bytes=matrix.row_bytes, registers=32), False
        if matrix is not None:
            promised = replace(promised, first_level=matrix.first_level, second_level=matrix.second_level)
        promised = replace(
            promised,
            has_strong_prefetcher=target.cpu in _STRONG_PREFETCHERS,
            threads=threads,
            algorithms=cast(Algorithms, chosen),
            calls_vectors=calls_vectors,
            matrix=matrix,
        )
        return replace(promised, **_parse_measured(dict(options).get(records.MACHINE, "{}")))

    @classmethod
    def _from_features(cls, target: Target, features: set[str]) -> Machine:
        if "+avx512f" in features:
            splits = target.cpu in _SPLIT_VECTOR_CPUS
            return cls(
                64,
                32,
                embeds_broadcasts=True,
                has_scale=True,
                lookup=16,
                dots_bf16="+avx512bf16" in features,
                dots_bytes="+avx512vnni" in features,
                splits=splits,
            )
        if "+avx2" in features:
            dots = "+avxvnni" in features
            return cls(32, 16, second_level=256 << 10, ways=8, fused="+fma" in features, lookup=8, dots_bytes=dots)
        if target.architecture == "aarch64":
            return cls(
                16,
                32,
                first_level=64 << 10,
                ways=8,
                dots_bf16="+bf16" in features,
                dots_bytes="+i8mm" in features,
                architecture=target.architecture,
            )
        return cls(16, 16, second_level=256 << 10, ways=8, fused="+fma" in features)


def share_between(target: Target, threads: int) -> Target:
    """Return the target for kernels that ``threads`` threads share.

    The number is rounded down to a power of two of at most 32. Then few targets, and so few compiled programs, differ.
    """
    if threads < _FEWEST_THREADS:
        return target
    rounded = min(_MOST_THREADS, 1 << (threads.bit_length() - 1))
    return replace(target, features=f"{target.features},{THREADS}{rounded}")


def emission_target(target: Target) -> Target:
    """Return the target whose instructions code for ``target`` consists of."""
    triples = (f.removeprefix(PACKS_ON) for f in target.features.split(",") if f.startswith(PACKS_ON))
    return next((Target(target.device, triple) for triple in triples), target)


def converts_bf16(target: Target) -> bool:
    """Return whether float32 is rounded to bfloat16 by instructions."""
    return not {"+avx512bf16", "+avxneconvert", "+bf16"}.isdisjoint(target.features.split(","))


def converts_f16(target: Target) -> bool:
    """Return whether float16 is converted by instructions. On x86, processors with AVX2 have them."""
    features = target.features.split(",")
    return target.architecture != "x86_64" or "+f16c" in features or "+avx512f" in features


def _parse_measured(text: str) -> dict[str, Any]:
    """Return the measured fields in a JSON text, without unknown fields and values out of bounds."""
    try:
        raw = json.loads(text)
    except ValueError:
        return {}
    numbers = raw.items() if isinstance(raw, dict) else ()
    known = {name: value for name, value in numbers if name in MEASURED and isinstance(value, int | float)}
    return {name: MEASURED[name][0](n) for name, n in known.items() if MEASURED[name][1] <= n <= MEASURED[name][2]}

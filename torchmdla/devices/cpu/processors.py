"""Processors to generate code for: this one, or as much of it as all of a level of x86-64 have."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from torchmdla.compiler.program import Target

NATIVE = "native"

# LLVM's names of what each level has beside the levels before it (System V ABI for AMD64, "Micro-Architecture Levels").
LEVELS: Mapping[str, str] = {
    "x86-64-v2": "cx16 sahf popcnt sse3 ssse3 sse4.1 sse4.2",
    "x86-64-v3": "avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave",
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
}
_BASE = "cmov cx8 fxsr mmx sse sse2 64bit"

# Of LLVM's names, those of instructions for systems, cryptography, random numbers and the like.
_SYSTEMS = """
adx aes cldemote clflushopt clwb clzero cmpccxadd enqcmd fsgsbase hreset invpcid kl lwp movdir64b movdiri movrs mwaitx
pclmul pconfig pku prefetchi prfchw ptwrite raoint rdpid rdpru rdrnd rdseed rtm serialize sgx sha sha512 shstk sm3 sm4
tsxldtrk uintr usermsr vaes waitpkg wbnoinvd widekl xsave xsavec xsaveopt xsaves
"""
FOR_SYSTEMS = frozenset(_SYSTEMS.split())


def target_of(processor: str) -> Target:
    """The target ``processor``: ``"native"``, or a level of x86-64 as ``"x86-64-v3"``, whose code runs on every
    processor of that level.

    Raises:
        ValueError: there is none of this name, or this machine is none of that level.
    """
    own = host()
    if processor == NATIVE:
        return own
    if missing := sorted(features_of_level(processor) - _features_in(own)):
        raise ValueError(f"this processor, {own.cpu}, is no {processor}: it has no {', '.join(missing)}")
    return level_of(processor)


def level_of(processor: str) -> Target:
    """As :func:`target_of`, whether this machine is of the level or not.

    Raises:
        ValueError: there is none of this name.
    """
    own = host()
    if processor == NATIVE:
        return own
    wanted = features_of_level(processor)
    listed = [feature[1:] for feature in own.features.split(",") if feature]
    features = ",".join(f"{'+' if name in wanted else '-'}{name}" for name in listed)
    return replace(own, cpu=processor, features=features)


def used_features(target: Target) -> tuple[str, ...]:
    """What code for ``target`` may use of a processor, by LLVM's names, sorted: without what the code generator makes
    no instructions of by itself."""
    return tuple(sorted(_features_in(target) - FOR_SYSTEMS))


def described(target: Target) -> str:
    """The machine that measurements of code for ``target`` hold for: processor, features and caches."""
    features = " ".join(sorted(_features_in(target)))
    return f"{target.triple} {target.cpu}\n{features}\n{_caches()}"


def second_cache() -> tuple[int, int] | None:
    """Bytes and ways of the second cache, as Linux tells them; None elsewhere."""
    found = [own for own in _described("level", "type", "size", "ways_of_associativity") if own[0] == "2"]
    if not found or not found[0][2].endswith("K"):
        return None
    return int(found[0][2].removesuffix("K")) << 10, int(found[0][3])


def _caches() -> str:
    """Level, type and size of each cache; empty where none is told of."""
    return ", ".join(map(" ".join, _described("level", "type", "size")))


@lru_cache(maxsize=2)
def _described(*names: str) -> list[list[str]]:
    """Properties of each cache of the first core."""
    found = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        with contextlib.suppress(OSError):
            found.append([(folder / name).read_text().strip() for name in names])
    return found


def features_of_level(processor: str) -> frozenset[str]:
    """LLVM's names of what all processors of a level have.

    Raises:
        ValueError: there is no such level.
    """
    if processor not in LEVELS:
        raise ValueError(f"no processor {processor!r}; there are {', '.join((NATIVE, *LEVELS))}")
    names = list(LEVELS)
    levels = names[: names.index(processor) + 1]
    return frozenset(" ".join((_BASE, *(LEVELS[level] for level in levels))).split())


def _features_in(target: Target) -> frozenset[str]:
    return frozenset(name[1:] for name in target.features.split(",") if name.startswith("+"))


_known_host: Target | None = None


def set_host(target: Target) -> None:
    """Has :func:`host` be ``target``, without asking LLVM."""
    global _known_host
    _known_host = target


def host() -> Target:
    """The target that this machine is."""
    return _known_host or _llvm_host()


@lru_cache(maxsize=1)
def _llvm_host() -> Target:
    from llvmlite import binding

    features = binding.get_host_cpu_features().flatten()
    return Target("cpu", binding.get_process_triple(), binding.get_host_cpu_name(), features)

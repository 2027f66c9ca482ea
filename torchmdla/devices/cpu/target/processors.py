"""Target processors: the host's, or the features that all processors of a level have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from torchmdla.compiler.program import Target
from torchmdla.devices.cpu.target.machine import THREADS
from torchmdla.devices.cpu.target.matrix_units import MATRIX_UNIT, UNIT_FEATURES
from torchmdla.errors import unknown_name

NATIVE = "native"


@dataclass(frozen=True)
class Level:
    """Level of an architecture: the features that all of its processors have, by LLVM's names.

    ``cpu`` is LLVM's name of the processor that code for the level is tuned for.
    """

    architecture: str
    cpu: str
    features: frozenset[str]


# For each architecture the features of all processors, then those that each level adds to the levels before it. For
# x86-64 these are from the System V ABI for AMD64 ("Micro-Architecture Levels"). Its last level is of processors with
# AMX, from Sapphire Rapids on. Of Arm's versions, 8.6 requires instructions for products of bfloat16 and of bytes.
_ADDED: Mapping[str, Mapping[str, str]] = {
    "x86_64": {
        "": "cmov cx8 fxsr mmx sse sse2 64bit",
        "x86-64-v2": "cx16 sahf popcnt sse3 ssse3 sse4.1 sse4.2",
        "x86-64-v3": "avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave",
        "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
        "x86-64-v4-amx": "avx512bf16 avx512vnni amx-tile amx-bf16 amx-int8",
    },
    "aarch64": {
        "armv8-a": "fp-armv8 neon",
        "armv8.6-a": "crc lse rdm dotprod bf16 i8mm",
    },
}
# The processors that code for levels is tuned for, if LLVM does not have a processor of the level's name.
_TUNED_FOR: Mapping[str, str] = {"x86-64-v4-amx": "sapphirerapids", "armv8-a": "generic", "armv8.6-a": "neoverse-v1"}


def _levels() -> Iterator[tuple[str, Level]]:
    for architecture, added in _ADDED.items():
        features: frozenset[str] = frozenset()
        for name, more in added.items():
            features |= frozenset(more.split())
            if name:
                yield name, Level(architecture, _TUNED_FOR.get(name, name), features)


LEVELS: Mapping[str, Level] = dict(_levels())

# LLVM's names of features for system software, cryptography, random numbers and the like.
_SYSTEMS = """
adx aes cldemote clflushopt clwb clzero cmpccxadd enqcmd fsgsbase hreset invpcid kl lwp movdir64b movdiri movrs mwaitx
pclmul pconfig pku prefetchi prfchw ptwrite raoint rdpid rdpru rdrnd rdseed rtm serialize sgx sha sha512 shstk sm3 sm4
tsxldtrk uintr usermsr vaes waitpkg wbnoinvd widekl xsave xsavec xsaveopt xsaves
"""
SYSTEM_FEATURES = frozenset(_SYSTEMS.split())


def target_of(processor: str) -> Target:
    """Return the target for ``processor``.

    It is ``"native"``, or a level such as ``"x86-64-v3"``. Code for a level runs on every processor of that level.

    Raises:
        ValueError: the level does not exist, or this machine is not of that level.
    """
    native, wanted = host(), frozenset() if processor == NATIVE else features_of_level(processor)
    if missing := sorted(wanted - _enabled_features(native)):
        raise ValueError(f"this processor, {native.cpu}, does not support {processor} (missing: {', '.join(missing)})")
    return level_of(processor)


def level_of(processor: str) -> Target:
    """Return the target as :func:`target_of` does, even if this machine is not of the level.

    Raises:
        ValueError: the level does not exist.
    """
    native = host()
    if processor == NATIVE:
        return native
    wanted, level = features_of_level(processor), LEVELS[processor]
    if level.architecture != native.architecture:
        features = ",".join(f"+{name}" for name in sorted(wanted))
        return Target(native.device, f"{level.architecture}-unknown-linux-gnu", level.cpu, features)
    listed = [feature[1:] for feature in native.features.split(",") if feature]
    features = ",".join(f"{'+' if name in wanted else '-'}{name}" for name in listed)
    return replace(native, cpu=level.cpu, features=features)


def separate_threads(name: str) -> tuple[str, int]:
    """Return a processor's name without its number of threads (``"x86-64-v4-threads16"``), and that number, else 1."""
    processor, _, number = name.rpartition("-threads")
    return (processor, int(number)) if processor and number.isdecimal() else (name, 1)


def used_features(target: Target) -> tuple[str, ...]:
    """Return the LLVM features that code for ``target`` may use, sorted, then the number of threads that it is for.

    Features whose instructions the code generator does not emit by itself are left out, and those of a matrix unit that
    is not used.
    """
    has_choice = any(name.startswith(MATRIX_UNIT) for name in target.features.split(","))
    used = _enabled_features(target) - SYSTEM_FEATURES - (UNIT_FEATURES if has_choice else set())
    return (*sorted(used), *_threads_of(target))


def describe_machine(target: Target) -> str:
    """Return a description of the machine: processor, features and caches.

    Measurements of code for ``target`` are valid only for machines with the same description. It names the number of
    threads that share kernels if schedules depend on it.
    """
    features = " ".join(sorted(_enabled_features(target)))
    caches = ", ".join(map(" ".join, _read_cache_properties("level", "type", "size")))
    return "\n".join([f"{target.triple} {target.cpu}", features, caches, *_threads_of(target)])


def second_cache() -> tuple[int, int] | None:
    """Return the bytes and ways of the second-level cache as Linux reports them; None on other systems."""
    caches = [
        cache for cache in _read_cache_properties("level", "type", "size", "ways_of_associativity") if cache[0] == "2"
    ]
    if not caches or not caches[0][2].endswith("K"):
        return None
    return int(caches[0][2].removesuffix("K")) << 10, int(caches[0][3])


@lru_cache(maxsize=2)
def _read_cache_properties(*names: str) -> list[list[str]]:
    caches = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        with contextlib.suppress(OSError):
            caches.append([(folder / name).read_text().strip() for name in names])
    return caches


def features_of_level(processor: str) -> frozenset[str]:
    """Return LLVM's names of the features that all processors of a level have.

    Raises:
        ValueError: the level does not exist.
    """
    if processor not in LEVELS:
        raise ValueError(unknown_name("processor", processor, (NATIVE, *LEVELS)))
    return LEVELS[processor].features


def _threads_of(target: Target) -> list[str]:
    return [feature for feature in target.features.split(",") if feature.startswith(THREADS)]


def _enabled_features(target: Target) -> frozenset[str]:
    return frozenset(name[1:] for name in target.features.split(",") if name.startswith("+"))


_known_host: Target | None = None


def set_host(target: Target) -> None:
    """Set the target that :func:`host` returns, so that LLVM is not queried."""
    global _known_host
    _known_host = target


def host() -> Target:
    """Return the target for this machine."""
    return _known_host or _llvm_host()


@lru_cache(maxsize=1)
def _llvm_host() -> Target:
    from llvmlite import binding

    target = Target("cpu", binding.get_process_triple(), binding.get_host_cpu_name())
    if target.architecture == "aarch64":
        from torchmdla import _C

        # LLVM reads a text that emulators do not replace, and leaves out features.
        return replace(target, features=",".join(f"+{name}" for name in sorted(_C.host_features())))
    return replace(target, features=binding.get_host_cpu_features().flatten())

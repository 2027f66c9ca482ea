"""Limits on the time and memory of a compile, and sizes and durations in environment variables."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_SECONDS, _MEMORY = "TORCHMDLA_COMPILE_SECONDS", "TORCHMDLA_COMPILE_MEMORY"

_UNITS_OF_TIME = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class Limits:
    """Limits of one compile: ``seconds`` of time and, for the process, ``memory`` in bytes; 0 means no limit.

    Upstream's passes do not terminate on some inputs. The user's program must not wait or run out of memory because of
    them.
    """

    seconds: float
    memory: int

    @classmethod
    def from_environment(cls) -> Limits:
        """Return the limits that the environment sets; the defaults are ten minutes and half of the machine's memory.

        A malformed variable causes a warning, and its default is used.
        """
        return cls(
            _variable_or_default(_SECONDS, duration, 600.0),
            _variable_or_default(_MEMORY, size, _physical_memory() // 2),
        )


def size(text: str) -> int:
    """Return the bytes of a size such as ``1234``, ``512M``, ``4G`` or ``1 GiB``.

    Raises:
        ValueError: the text is not a size.
    """
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)(i?b)?", text.lower())
    if not match:
        raise ValueError("is not a size in bytes (1234, 512M, 4G, 1GiB)")
    return int(match[1]) << (10 * " kmgt".index(match[2] or " "))


def duration(text: str) -> float:
    """Return the seconds of a duration such as ``600``, ``0.5``, ``90s``, ``10m`` or ``1h``.

    Raises:
        ValueError: the text is not a duration.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|)", text.lower())
    if not match:
        raise ValueError("is not a duration (600, 90s, 10m, 1h)")
    return float(match[1]) * _UNITS_OF_TIME[match[2]]


def variable(name: str, read: Callable[[str], _Number], default: _Number) -> _Number:
    """Return the value of the environment variable ``name``, or ``default`` if it is unset or empty.

    Raises:
        ValueError: ``read`` does not accept the text. The message has the variable and its value.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        return read(text)
    except ValueError as error:
        raise ValueError(f"{name} {error}: {text!r}") from None


def limit_memory(limit: int) -> None:
    """Limit the data memory of this process to ``limit`` bytes (0: no limit).

    A compile that needs more fails, instead of taking the memory from the user's program.
    """
    if resource is not None and limit:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        limit = min(limit, sys.maxsize if most == resource.RLIM_INFINITY else most)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def _variable_or_default(name: str, read: Callable[[str], _Number], default: _Number) -> _Number:
    try:
        return variable(name, read, default)
    except ValueError as error:
        warnings.warn(f"torchmdla: {error}; {default:g} is taken", RuntimeWarning, stacklevel=2)
        return default


def _physical_memory() -> int:
    """Return the bytes of this machine's memory, 0 if unknown."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return 0
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

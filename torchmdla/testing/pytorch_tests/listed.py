"""Table of PyTorch's tests that the CPU passes and the device ``acap`` does not, with the reasons.

A name is that of a class, or of a class and a test function. It covers all tests that PyTorch makes from the class or the
function: their names continue it after ``.`` or ``_``.
"""

from __future__ import annotations

from collections.abc import Mapping

LISTED: Mapping[str, str] = {}


def reason(test: str) -> str:
    """Return the reason why a test is expected to fail; empty if it must pass."""
    name = test
    while name and name not in LISTED:
        name = name[: max(name.rfind("_"), name.rfind("."), 0)]
    return LISTED.get(name, "")

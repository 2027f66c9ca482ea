"""Variants of a module, prepared in one process and compared with eager before they are timed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from harness import children

# Makes the function to time from its own copy of the module and the inputs.
Prepare = Callable[[Any, Any], Callable[[], Any]]

_CALLS_TO_WARM_UP = 4


def prepare_checked(
    name: str, ways: Mapping[str, Prepare], module: Any, inputs: Any, layers: int, strides: bool = True
) -> tuple[dict[str, Callable[[], Any]], dict[str, Any], list[str]]:
    """Return the warm calls and the results, by variant, and the differences from eager beyond tolerance.

    Args:
        name: the name of the module, for the progress.
        ways: by name: a function that prepares the variant.
        module: the module; each variant gets a copy.
        inputs: the inputs of all calls.
        layers: the depth of the module, which tolerances grow with.
        strides: whether the strides of results must be eager's.
    """
    from torchmdla.testing.compare import assert_matches

    expected = module(*inputs)
    calls: dict[str, Callable[[], Any]] = {}
    results: dict[str, Any] = {}
    faults = []
    for way, prepare in ways.items():
        children.step(f"{name}: preparing {way}")
        calls[way] = prepare(copy.deepcopy(module), inputs)
        for _ in range(_CALLS_TO_WARM_UP):
            results[way] = calls[way]()
        try:
            assert_matches(results[way], expected, layers=layers, strides=strides)
        except AssertionError as difference:
            faults.append(f"{way}: {difference}")
    return calls, results, faults

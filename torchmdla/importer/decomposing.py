"""Operators in terms of others: their decompositions, traced on the types of a call's operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from torchmdla.importer.operands import described
from torchmdla.importer.operators import Decomposition, operator
from torchmdla.importer.schemas import call_in_order, overload_of, schema_of
from torchmdla.importer.size_int import SizeInt
from torchmdla.importer.trace import Trace, leaves, map_structure, spelled_numbers, trace
from torchmdla.importer.types import TensorMeta, dtype_of_number


def traced(name: str, operands: Sequence[object]) -> Trace:
    """What the decomposition of the operator ``name``, a schema name with overload, does with such operands. The inputs
    of the trace are the tensors among them, in order.

    Raises:
        CompileError: it refuses them.
    """
    arguments: Any = map_structure(described, list(operands))
    # A trace of sizes that remember where they come from decides for one run alone.
    if _varies(arguments):
        return trace(_decomposition(name), arguments)
    return _cached_trace(name, arguments, spelled_numbers(arguments), torch.get_default_dtype())


@lru_cache(maxsize=512)
def _cached_trace(
    name: str, arguments: tuple[object, ...], numbers: tuple[str, ...], default_dtype: torch.dtype
) -> Trace:
    """Trace a decomposition, which may read the default dtype."""
    return trace(_decomposition(name), arguments)


def _varies(arguments: Sequence[object]) -> bool:
    for leaf in leaves(arguments):
        numbers = (*leaf.shape, *leaf.strides) if isinstance(leaf, TensorMeta) else (leaf,)
        if any(isinstance(number, SizeInt) for number in numbers):
            return True
    return False


def _decomposition(name: str) -> Decomposition:
    found = operator(name).decomposition
    if found == "composite":
        return composite(name)
    if found == "table":
        return _by_position(torch._decomp.decomposition_table[overload_of(name)], name)
    assert found is not None
    return _with_dtypes(found, name)


def composite(name: str) -> Decomposition:
    """The op itself: the dispatcher runs PyTorch's composite kernel."""
    return _by_position(overload_of(name), name)


def _by_position(function: Callable[..., object], name: str) -> Decomposition:
    """``function`` taking keyword-only arguments by position, as every decomposition does, and dtypes as such."""
    schema = schema_of(name)
    return _with_dtypes(lambda *given: call_in_order(function, schema, given), name)


def _with_dtypes(function: Callable[..., object], name: str) -> Decomposition:
    """``function`` given dtypes as such, where graphs have their numbers."""
    places = {index for index, argument in enumerate(schema_of(name).arguments) if "dtype" in argument.name}
    if not places:
        return function

    def call(*given: object) -> object:
        return function(*(dtype_of_number(v) if i in places and isinstance(v, int) else v for i, v in enumerate(given)))

    return call

"""Decompositions of operators into others, traced on the types of a call's operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from torchmdla.importer.operands import as_meta
from torchmdla.importer.operators import Decomposition, operator
from torchmdla.importer.schemas import call_in_order, overload_of, schema_of
from torchmdla.importer.size_int import SizeInt
from torchmdla.importer.trace import Trace, leaves, map_structure, number_cache_key, trace
from torchmdla.importer.types import TensorMeta, dtype_of_number


def trace_decomposition(name: str, operands: Sequence[object]) -> Trace:
    """Return the trace of the decomposition of the operator ``name`` on such operands.

    ``name`` is a schema name with overload. The inputs of the trace are the tensors among the operands, in order.

    Raises:
        CompileError: If the decomposition refuses the operands.
    """
    arguments: Any = map_structure(as_meta, list(operands))
    # A trace whose sizes remember their origin is valid for one run only, so it is not cached.
    if _has_symbolic_sizes(arguments):
        return trace(_decomposition(name), arguments)
    return _cached_trace(name, arguments, number_cache_key(arguments), torch.get_default_dtype())


@lru_cache(maxsize=512)
def _cached_trace(
    name: str, arguments: tuple[object, ...], numbers: tuple[str, ...], default_dtype: torch.dtype
) -> Trace:
    """Trace a decomposition, which may read the default dtype."""
    return trace(_decomposition(name), arguments)


def _has_symbolic_sizes(arguments: Sequence[object]) -> bool:
    for leaf in leaves(arguments):
        numbers = (*leaf.shape, *leaf.strides) if isinstance(leaf, TensorMeta) else (leaf,)
        if any(isinstance(number, SizeInt) for number in numbers):
            return True
    return False


def _decomposition(name: str) -> Decomposition:
    decomposition = operator(name).decomposition
    if decomposition == "composite":
        return composite_decomposition(name)
    if decomposition == "table":
        return _accept_positional(torch._decomp.decomposition_table[overload_of(name)], name)
    assert decomposition is not None
    return _convert_dtype_numbers(decomposition, name)


def composite_decomposition(name: str) -> Decomposition:
    """Return the op itself as a decomposition: the dispatcher runs PyTorch's composite kernel."""
    return _accept_positional(overload_of(name), name)


def _accept_positional(function: Callable[..., object], name: str) -> Decomposition:
    """Return ``function`` with keyword-only arguments accepted by position and dtype numbers converted to dtypes."""
    schema = schema_of(name)
    return _convert_dtype_numbers(lambda *arguments: call_in_order(function, schema, arguments), name)


def _convert_dtype_numbers(function: Callable[..., object], name: str) -> Decomposition:
    """Return ``function`` with dtypes in place of the dtype numbers that graphs hold."""
    places = {index for index, argument in enumerate(schema_of(name).arguments) if "dtype" in argument.name}
    if not places:
        return function

    def call(*arguments: object) -> object:
        return function(
            *(dtype_of_number(v) if i in places and isinstance(v, int) else v for i, v in enumerate(arguments))
        )

    return call

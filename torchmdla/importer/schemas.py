"""Operators by name, and the effects on memory and types that their schemas specify."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch


def overload_of(name: str) -> torch._ops.OpOverload:
    """Return the function of an operator by its schema name with overload."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base)
    function: torch._ops.OpOverload = getattr(packet, overload or "default")
    return function


def schema_of(name: str) -> torch._C.FunctionSchema:
    """Return the schema of an operator by its name with overload."""
    schema: torch._C.FunctionSchema = overload_of(name)._schema
    return schema


@lru_cache(maxsize=4096)
def find_schema(op: str) -> torch._C.FunctionSchema | None:
    """Return the schema of a node's operator, or None for a node of the language."""
    name, _, overload = op.partition(".")
    try:
        schema: torch._C.FunctionSchema = torch._C._get_schema(name, overload)
    except RuntimeError:
        return None
    return schema


def aten_names(names: str) -> frozenset[str]:
    """Return the names of operators of ATen, given without the namespace and separated by white space."""
    return frozenset(f"aten::{name}" for name in names.split())


# Ops that read a tensor's type. Their result is known even if the tensor's data is not.
METADATA = aten_names(
    "size dim numel len stride is_floating_point is_complex is_contiguous is_same_size sym_size sym_stride sym_numel "
    "sym_storage_offset element_size get_device storage_offset"
) | {"prim::dtype", "prim::device", "prim::layout", "prim::is_cuda", "prim::shape", "prim::requires_grad"}


def is_metadata(op: str) -> bool:
    """Return whether an operator reads only the types of tensors. The schema name may include the overload."""
    return op.partition(".")[0] in METADATA


def written_arguments(schema: torch._C.FunctionSchema) -> tuple[int, ...]:
    """Return the positions of the arguments that an operator writes to."""
    infos = (argument.alias_info for argument in schema.arguments)
    return tuple(index for index, info in enumerate(infos) if info is not None and info.is_write)


def aliased_arguments(schema: torch._C.FunctionSchema) -> tuple[int | None, ...]:
    """Return for each result the argument that it may be a view of, or that is written and returned."""
    sets = [_alias_set(argument) for argument in schema.arguments]
    if not any(sets):
        return (None,) * len(schema.returns)
    writes = written_arguments(schema)
    listed = next((index for index, known in enumerate(sets) if known and index not in writes), None)
    return tuple(
        # A list's set belongs to its elements, which the bindings do not show.
        listed
        if returned.type.kind() == "ListType"
        else next((index for index, known in enumerate(sets) if known & _alias_set(returned)), None)
        for returned in schema.returns
    )


def may_be_view(schema: torch._C.FunctionSchema) -> bool:
    """Return whether an operator writes nothing and returns, or may return, views of an argument."""
    is_aliased = any(index is not None for index in aliased_arguments(schema))
    return (is_aliased or schema.name in _UNDECLARED_VIEWS) and not written_arguments(schema)


# Operators that return views although their schemas do not specify it.
_UNDECLARED_VIEWS = frozenset(("aten::_unsafe_view", "aten::meshgrid", "aten::type_as"))


def _alias_set(argument: torch._C.Argument) -> frozenset[str]:
    info = argument.alias_info
    return frozenset() if info is None else frozenset(info.before_set)


def call_in_order(function: Callable[..., Any], schema: torch._C.FunctionSchema, arguments: Sequence[Any]) -> Any:
    """Return the result of a function with the signature ``schema``. ``arguments`` are all its arguments, in order."""
    positional = sum(not argument.kwarg_only for argument in schema.arguments)
    names = (argument.name for argument in schema.arguments[positional:])
    return function(*arguments[:positional], **dict(zip(names, arguments[positional:], strict=True)))

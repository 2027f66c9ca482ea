"""Operators by name: their functions and schemas in PyTorch's registry."""

from __future__ import annotations

import torch


def overload_of(name: str) -> torch._ops.OpOverload:
    """The function of an operator by its schema name with overload."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base)
    found: torch._ops.OpOverload = getattr(packet, overload or "default")
    return found


def schema_of(name: str) -> torch._C.FunctionSchema:
    """The schema of an operator by its name with overload."""
    schema: torch._C.FunctionSchema = overload_of(name)._schema
    return schema

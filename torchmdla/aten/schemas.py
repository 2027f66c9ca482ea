"""PyTorch's registry as a table that maps ops of the dialect to schemas.

``docs/aten.md`` has the rule for the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from torchmdla.importer.schemas import aliased_arguments, may_be_view, written_arguments


@dataclass(frozen=True)
class OpSchema:
    """Schema and its op.

    ``name`` is the op's name (``aten.add``), and ``qualified`` is the schema's name (``aten::add.Tensor``).
    """

    name: str
    qualified: str
    schema: torch._C.FunctionSchema

    @property
    def base(self) -> str:
        """Return the schema's name without namespace and overload, such as ``add``."""
        return self.qualified.partition("::")[2].partition(".")[0]

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """Return the names of the arguments; each argument is one operand."""
        return tuple(argument.name for argument in self.schema.arguments)

    @cached_property
    def types(self) -> tuple[torch._C.JitType, ...]:
        """Return the types of the arguments."""
        return tuple(argument.type for argument in self.schema.arguments)

    @cached_property
    def repeated(self) -> tuple[int | None, ...]:
        """Return the N of each argument of type ``int[N]``; one number may replace such a list."""
        return tuple(argument.N for argument in self.schema.arguments)  # type: ignore[attr-defined]

    @cached_property
    def returns(self) -> tuple[torch._C.JitType, ...]:
        """Return the types of the results."""
        return tuple(returned.type for returned in self.schema.returns)

    @cached_property
    def aliased(self) -> tuple[int | None, ...]:
        """Return for each result the argument that it may be a view of, or that is written and returned."""
        return aliased_arguments(self.schema)

    @cached_property
    def written(self) -> tuple[int, ...]:
        """Return the arguments that the op writes to."""
        return written_arguments(self.schema)

    @cached_property
    def is_view(self) -> bool:
        """Return whether the results may be views of arguments."""
        return may_be_view(self.schema)


@lru_cache(maxsize=1)
def registry() -> Mapping[str, OpSchema]:
    """Return every op of the dialect, by schema name with overload (``aten::add.Tensor``).

    The table is generated from PyTorch's registered schemas at the first call. The few schemas without a fixed number
    of arguments (``aten::format``) are left out.
    """
    overloads: dict[str, dict[str, torch._C.FunctionSchema]] = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::") and "..." not in str(schema):
            overloads.setdefault(schema.name, {}).setdefault(schema.overload_name, schema)
    ops = {}
    for name, known in overloads.items():
        principal = _principal(known)
        for overload, schema in known.items():
            qualified = f"{name}.{overload}" if overload else name
            suffix = "" if overload == principal else f".{overload or 'default'}"
            ops[qualified] = OpSchema(f"aten.{name[6:]}{suffix}", qualified, schema)
    return ops


@lru_cache(maxsize=1)
def by_op() -> Mapping[str, OpSchema]:
    """Return every op of the dialect, by op name (``aten.add``)."""
    return {op.name: op for op in registry().values()}


def _principal(overloads: Mapping[str, torch._C.FunctionSchema]) -> str:
    on_tensors = sorted(name for name, schema in overloads.items() if _has_tensor(schema))
    candidates = [name for name in ("", "Tensor") if name in on_tensors]
    return next(iter([*candidates, *on_tensors, *sorted(overloads)]))


def _has_tensor(schema: torch._C.FunctionSchema) -> bool:
    return any("Tensor" in str(value.type) for value in (*schema.arguments, *schema.returns))

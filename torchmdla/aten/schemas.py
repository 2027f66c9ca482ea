"""PyTorch's registry as a table of ops: which schema stands behind which op of the dialect.

One op per schema. Its name is the schema's, and the overload follows where it is needed to tell schemas apart: the
*principal* overload of a name goes without. That is the overload without a name where it takes or returns a tensor,
else ``Tensor``, else the first in the alphabet that takes or returns a tensor, else the first of all. So ``aten.add``
is ``aten::add.Tensor``, ``aten.add.Scalar`` is ``aten::add.Scalar``, and ``aten.add.default`` is ``aten::add``, the one
on two numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from torchmdla.importer.schemas import aliased, may_be_view, written


@dataclass(frozen=True)
class OpSchema:
    """A schema and its op: ``name`` is the op's (``aten.add``), ``qualified`` the schema's (``aten::add.Tensor``)."""

    name: str
    qualified: str
    schema: torch._C.FunctionSchema

    @property
    def base(self) -> str:
        """The schema's name without namespace and overload, as ``add``."""
        return self.qualified.partition("::")[2].partition(".")[0]

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """Names of the arguments, one operand each."""
        return tuple(argument.name for argument in self.schema.arguments)

    @cached_property
    def types(self) -> tuple[torch._C.JitType, ...]:
        """Types of the arguments."""
        return tuple(argument.type for argument in self.schema.arguments)

    @cached_property
    def repeated(self) -> tuple[int | None, ...]:
        """For each argument of type ``int[N]`` the N: one number may stand for the list."""
        return tuple(argument.N for argument in self.schema.arguments)  # type: ignore[attr-defined]

    @cached_property
    def returns(self) -> tuple[torch._C.JitType, ...]:
        """Types of the results, one result each."""
        return tuple(returned.type for returned in self.schema.returns)

    @cached_property
    def aliased(self) -> tuple[int | None, ...]:
        """For each result the argument that it may be a view of, or that is written and returned."""
        return aliased(self.schema)

    @cached_property
    def written(self) -> tuple[int, ...]:
        """The arguments that the op writes to."""
        return written(self.schema)

    @cached_property
    def is_view(self) -> bool:
        """Whether the results may be views of arguments."""
        return may_be_view(self.schema)


@lru_cache(maxsize=1)
def registry() -> Mapping[str, OpSchema]:
    """Every op of the dialect, by schema name with overload (``aten::add.Tensor``).

    Generated from what PyTorch has registered when it is first asked for. Left out are the few schemas without a
    fixed number of arguments (``aten::format``).
    """
    overloads: dict[str, dict[str, torch._C.FunctionSchema]] = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::") and "..." not in str(schema):
            overloads.setdefault(schema.name, {}).setdefault(schema.overload_name, schema)
    found = {}
    for name, known in overloads.items():
        principal = _principal(known)
        for overload, schema in known.items():
            qualified = f"{name}.{overload}" if overload else name
            suffix = "" if overload == principal else f".{overload or 'default'}"
            found[qualified] = OpSchema(f"aten.{name[6:]}{suffix}", qualified, schema)
    return found


@lru_cache(maxsize=1)
def by_op() -> Mapping[str, OpSchema]:
    """Every op of the dialect, by op name (``aten.add``)."""
    return {op.name: op for op in registry().values()}


def _principal(overloads: Mapping[str, torch._C.FunctionSchema]) -> str:
    on_tensors = sorted(name for name, schema in overloads.items() if _has_tensor(schema))
    candidates = [name for name in ("", "Tensor") if name in on_tensors]
    return next(iter([*candidates, *on_tensors, *sorted(overloads)]))


def _has_tensor(schema: torch._C.FunctionSchema) -> bool:
    values: Sequence[torch._C.Argument] = [*schema.arguments, *schema.returns]
    return any("Tensor" in str(value.type) for value in values)

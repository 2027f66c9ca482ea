"""Translation of ops in place, which TorchScript's groups apply to their own tensors.

Each becomes the op that returns a new tensor, converted to the dtype of the tensor that eager PyTorch writes to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from torchmdla.importer.builder import ProgramBuilder
from torchmdla.importer.decomposing import composite
from torchmdla.importer.emitter import Value
from torchmdla.importer.operands import NumberTensor, Operand, as_tensor
from torchmdla.importer.rewrites import cast
from torchmdla.importer.schemas import schema_of
from torchmdla.importer.trace import map_structure, qualified_name, spelled_numbers, trace
from torchmdla.importer.types import TensorMeta


def functional(name: str) -> str:
    """Return the op that returns a new tensor, for the op ``name`` of a group that writes its first argument."""
    base, dot, overload = name.partition(".")
    in_place = base.startswith("aten::") and base.endswith("_") and not base.endswith("__")
    return base.removesuffix("_") + dot + overload if in_place else name


def call_in_place(
    builder: ProgramBuilder, schema: torch._C.FunctionSchema, operands: Sequence[Operand], meta: TensorMeta
) -> Operand:
    """Return the result of an op in place. ``meta`` is its recorded type."""
    name = functional(qualified_name(schema))
    arguments: Any = map_structure(_described, list(operands))
    promoted = replace(meta, dtype=_dtype(name, arguments, spelled_numbers(arguments), torch.get_default_dtype()))
    (result,) = builder.call(schema_of(name), operands, [promoted])
    value = as_tensor(builder.emitter, result)
    assert isinstance(value, Value)
    return cast(builder.emitter, value, meta)


def _described(operand: Operand) -> object:
    """Return the type of a tensor, or an arbitrary number for a float that is known only at run time."""
    if isinstance(operand, Value) and operand.meta is None:
        return 1.0
    return operand.meta if isinstance(operand, Value | NumberTensor) else operand


@lru_cache(maxsize=512)
def _dtype(
    name: str, arguments: tuple[object, ...], numbers: tuple[str, ...], default_dtype: torch.dtype
) -> torch.dtype:
    """Return the dtype that PyTorch promotes the arguments of an op to. It may depend on the default dtype."""
    recorded = trace(composite(name), arguments)
    metas = {ref: meta for call in recorded.calls for ref, meta in zip(call.results, call.metas, strict=True)}
    (output,) = recorded.outputs
    # An op that does nothing returns its argument unchanged.
    result = metas.get(output, arguments[0])
    assert isinstance(result, TensorMeta)
    return result.dtype

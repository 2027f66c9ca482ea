"""The dtypes in which operators compute: what PyTorch's kernels take in the place of dtypes that they only store, what
autocast casts to, and products whose factors a device may round."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, TypeGuard

import torch

from torchmdla.importer.emitter import Value
from torchmdla.importer.op_call import OpCall, Results
from torchmdla.importer.operands import NumberTensor
from torchmdla.importer.operators import operator
from torchmdla.importer.rewrites import cast
from torchmdla.importer.trace import leaves, map_structure
from torchmdla.importer.types import COMPUTED, HALVES, TensorMeta, dtype_of_number


def with_rounded_factors(call: OpCall) -> Results:
    """With factors that are bfloat16, where the device multiplies these faster and PyTorch's settings allow it. A
    product within the decomposition of another has them already."""
    outer = operator(call.within)
    if call.operator.factors is None or outer.factors or call.has_rounded_factors:
        return None
    kind, factors = call.operator.factors
    if ("rnn" if outer.autocasts else kind) not in call.emitter.wanted.bf16_products:
        return None
    named = zip((argument.name for argument in call.schema.arguments), call.operands, strict=True)
    operands = [_widened(call, _rounded(call, torch.bfloat16, x)) if name in factors else x for name, x in named]
    return replace(call, operands=operands, has_rounded_factors=True).written()


def in_dtype_of_autocast(call: OpCall) -> Results:
    """With tensors in the dtype of the results, where an operator is computed under autocast: no other takes float32
    and gives a float of 16 bits."""
    halves = [meta for meta in leaves(call.metas) if _is_half(meta)]
    if not halves or not (call.operator.autocasts or _has_autocast(call.name)):
        return None
    if not any(map(_is_single, _given(call))):
        return None
    dtype = halves[0].dtype
    return replace(call, operands=[map_structure(partial(_rounded, call, dtype), x) for x in call.operands]).written()


@lru_cache(maxsize=4096)
def _has_autocast(name: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCPU")


def _given(call: OpCall) -> list[TensorMeta]:
    return [meta for operand in leaves(call.operands) if (meta := getattr(operand, "meta", None)) is not None]


def _is_single(meta: TensorMeta) -> bool:
    return meta.dtype == torch.float32


def _rounded(call: OpCall, dtype: torch.dtype, operand: Any) -> Any:
    is_tensor = isinstance(operand, Value) and operand.meta is not None and _is_single(operand.meta)
    return cast(call.emitter, operand, replace(operand.meta, dtype=dtype)) if is_tensor else operand


def in_computed_dtype(call: OpCall) -> Results:
    """Dtypes that are only stored computed in others, with results rounded once, as eager's kernels do."""
    dtypes = [meta.dtype for meta in _given(call)]
    if dtypes.count(torch.uint8) not in (0, len(dtypes)):  # Programs hold these as int8.
        keeps = call.operator.converts
    else:
        keeps = call.operator.keeps_dtype
    if keeps or not any(_is_stored(meta) for meta in (*_given(call), *leaves(call.metas))):
        return None
    arguments = [argument.name for argument in call.schema.arguments]
    compared = dtypes[0] if call.operator.computed_in == "promoted" and dtypes and dtypes[0] in HALVES else None
    operands = [
        _as_computed(operand)
        if name == "dtype"
        else map_structure(partial(_widened, call), _rounded_to(compared, operand))
        for name, operand in zip(arguments, call.operands, strict=True)
    ]
    metas = [map_structure(_computed, meta) for meta in call.metas]
    results = replace(call, operands=operands, metas=metas).written()
    return [_narrowed(call, result, meta) for result, meta in zip(results, call.metas, strict=True)]


def _rounded_to(dtype: torch.dtype | None, operand: object) -> object:
    """A number as eager compares it with tensors of ``dtype``."""
    return operand if dtype is None or not isinstance(operand, float) else torch.tensor(operand, dtype=dtype).item()


def _as_computed(dtype: object) -> object:
    """A dtype that is an argument, as Python or TorchScript has it."""
    found = dtype_of_number(dtype) if isinstance(dtype, int) else dtype
    return COMPUTED.get(found, dtype) if isinstance(found, torch.dtype) else dtype


def _is_half(meta: object) -> TypeGuard[TensorMeta]:
    return isinstance(meta, TensorMeta) and meta.dtype in HALVES


def _is_stored(meta: object) -> TypeGuard[TensorMeta]:
    """Whether a tensor's dtype is only stored."""
    return isinstance(meta, TensorMeta) and meta.dtype in COMPUTED


def _computed(meta: Any) -> Any:
    return replace(meta, dtype=COMPUTED[meta.dtype]) if _is_stored(meta) else meta


def _widened(call: OpCall, operand: Any) -> Any:
    if isinstance(operand, Value) and operand.meta is not None:
        return cast(call.emitter, operand, _computed(operand.meta))
    return replace(operand, meta=_computed(operand.meta)) if isinstance(operand, NumberTensor) else operand


def _narrowed(call: OpCall, result: Any, meta: Any) -> Any:
    if isinstance(meta, list | tuple):
        return [_narrowed(call, *pair) for pair in zip(result, meta, strict=True)]
    return cast(call.emitter, result, meta) if _is_stored(meta) else result

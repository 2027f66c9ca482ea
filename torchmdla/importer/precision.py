"""Dtypes in which operators compute.

Three rules change them. PyTorch's kernels compute in other dtypes where they only store a dtype. Autocast casts
operands. A device may round the factors of products.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, TypeGuard

import torch

from torchmdla.errors import CompileError
from torchmdla.importer import guards, promotion
from torchmdla.importer.emitter import Value
from torchmdla.importer.op_call import OpCall, Results
from torchmdla.importer.operands import NumberTensor
from torchmdla.importer.operators import operator
from torchmdla.importer.rewrites import cast
from torchmdla.importer.runtime_scalars import as_number, as_tensor, is_integer
from torchmdla.importer.scalars import ScalarRule, convert_number, scalar_rule
from torchmdla.importer.trace import leaves, map_structure
from torchmdla.importer.types import COMPUTED, HALVES, TensorMeta, dtype_of_number


def round_factors(call: OpCall) -> Results:
    """Write a call with factors in bfloat16, if the device multiplies them faster and PyTorch's settings allow it.

    A product in the decomposition of another product already has rounded factors.
    """
    outer = operator(call.within)
    if call.operator.factors is None or outer.factors or call.has_rounded_factors:
        return None
    kind, factors = call.operator.factors
    if ("rnn" if outer.autocasts else kind) not in call.emitter.options.bf16_products:
        return None
    operands = [
        _widen(call, _cast_float32(call, torch.bfloat16, operand)) if name in factors else operand
        for name, operand in call.named_operands.items()
    ]
    return replace(call, operands=operands, has_rounded_factors=True).write()


def apply_autocast(call: OpCall) -> Results:
    """Write a call with tensors in the dtype of the results, if autocast computes the operator.

    Types show whether autocast is active: otherwise operands that promote to float32 do not give a float of 16 bits.
    """
    halves = [meta for meta in leaves(call.metas) if _is_half(meta)]
    if not halves or not (call.operator.autocasts or _has_autocast(call.name)):
        return None
    tensors = [
        leaf for leaf in leaves(call.operands) if isinstance(leaf, Value | NumberTensor) and leaf.meta is not None
    ]
    if not tensors or promotion.common_dtype(tensors) != torch.float32:
        return None
    dtype = halves[0].dtype
    operands = [map_structure(partial(_cast_float32, call, dtype), operand) for operand in call.operands]
    return replace(call, operands=operands).write()


@lru_cache(maxsize=4096)
def _has_autocast(name: str) -> bool:
    # TorchScript's own operators are unknown to the dispatcher.
    return torch._C._dispatch_has_kernel(name) and torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCPU")


def _operand_metas(call: OpCall) -> list[TensorMeta]:
    return [meta for operand in leaves(call.operands) if (meta := getattr(operand, "meta", None)) is not None]


def _cast_float32(call: OpCall, dtype: torch.dtype, operand: Any) -> Any:
    is_tensor = isinstance(operand, Value) and operand.meta is not None and operand.meta.dtype == torch.float32
    return cast(call.emitter, operand, replace(operand.meta, dtype=dtype)) if is_tensor else operand


def convert_scalars(call: OpCall) -> Results:
    """Write a call with tensors in the promoted dtype, and scalars as eager's kernel sees them (``scalars.py``).

    An integer beside a float of 16 bits is rounded to that dtype before it is widened.
    """
    rule = scalar_rule(call.name)
    (meta, *_) = call.metas
    if rule is None or call.has_converted_scalars or not isinstance(meta, TensorMeta):
        return None
    dtype = meta.dtype
    if call.operator.computed_in == "promoted":
        dtype = promotion.common_dtype(map(_with_placeholder, call.operands[:2]))
    operands = [
        _convert_scalar(call, rule, argument, operand, dtype)
        for argument, operand in zip(call.schema.arguments, call.operands, strict=True)
    ]
    return replace(call, operands=operands, has_converted_scalars=True).write()


# Arguments that are not operands of a computation, regardless of their type.
_PLACES = frozenset({"condition", "mask", "index"})


def _convert_scalar(
    call: OpCall, rule: ScalarRule, argument: torch._C.Argument, operand: Any, dtype: torch.dtype
) -> Any:
    kind = argument.type.getElementType() if argument.type.kind() == "OptionalType" else argument.type  # type: ignore[attr-defined]
    if argument.name in _PLACES or kind.kind() not in ("TensorType", "NumberType", "FloatType"):
        return operand
    if isinstance(operand, Value) and operand.meta is not None and operand.meta.shape:
        return cast(call.emitter, operand, replace(operand.meta, dtype=dtype))
    scalar_dtype = rule.dtype_of(argument.name, dtype)
    if isinstance(operand, int | float):
        return convert_number(operand, scalar_dtype)
    if isinstance(operand, NumberTensor):
        return NumberTensor(convert_number(operand.value, scalar_dtype), replace(operand.meta, dtype=scalar_dtype))
    if not isinstance(operand, Value):
        return operand
    return _convert_runtime_scalar(call, operand, scalar_dtype, is_checked=argument.name in rule.checked)


def _with_placeholder(operand: Any) -> Any:
    """Return an operand. A number that is known only at run time is replaced by a number of its kind."""
    if not isinstance(operand, Value) or operand.meta is not None:
        return operand
    return 0 if is_integer(operand) else 0.0


def _convert_runtime_scalar(call: OpCall, operand: Value, dtype: torch.dtype, *, is_checked: bool) -> Value:
    """Return a 0-d tensor in ``dtype``, or a number that is known only at run time as ``dtype`` holds it."""
    is_number = operand.meta is None
    is_float = is_number and not is_integer(operand)
    record = call.operator
    takes_float = record.decomposition is None or record.with_tensors or record.keeps_whole_with_runtime_scalars
    if is_float and is_checked and not dtype.is_floating_point and not takes_float:
        raise CompileError("a float that is known only at run time among integers", scope="place")
    tensor = as_tensor(call.emitter, operand) if is_number else operand
    assert tensor.meta is not None
    if is_checked:
        guards.check_range(call.emitter, tensor, dtype)
    if is_number and dtype not in HALVES:
        return operand
    converted = cast(call.emitter, tensor, replace(tensor.meta, dtype=dtype))
    return as_number(call.emitter, converted) if is_number else converted


def widen_stored_dtypes(call: OpCall) -> Results:
    """Write a call on stored-only dtypes in the dtypes of computation. Round results once, as eager's kernels do."""
    dtypes = [meta.dtype for meta in _operand_metas(call)]
    keeps = call.operator.keeps_dtype or call.operator.rounds_each_step(call.operands)
    is_mixed = dtypes.count(torch.uint8) not in (0, len(dtypes))  # Programs store uint8 as int8.
    if is_mixed and (call.operator.decomposition is None or call.name == call.within):
        keeps = call.operator.converts
    if keeps or not any(_is_stored(meta) for meta in (*_operand_metas(call), *leaves(call.metas))):
        return None
    operands = [
        _computed_dtype(operand) if name == "dtype" else map_structure(partial(_widen, call), operand)
        for name, operand in call.named_operands.items()
    ]
    metas = [map_structure(_computed_meta, meta) for meta in call.metas]
    results = replace(call, operands=operands, metas=metas).write()
    return [_narrow(call, result, meta) for result, meta in zip(results, call.metas, strict=True)]


def _computed_dtype(dtype: object) -> object:
    """Return the dtype of computation for a dtype argument, which is Python's or TorchScript's."""
    known = dtype_of_number(dtype) if isinstance(dtype, int) else dtype
    return COMPUTED.get(known, dtype) if isinstance(known, torch.dtype) else dtype


def _is_half(meta: object) -> TypeGuard[TensorMeta]:
    return isinstance(meta, TensorMeta) and meta.dtype in HALVES


def _is_stored(meta: object) -> TypeGuard[TensorMeta]:
    """Return whether a tensor's dtype is only stored."""
    return isinstance(meta, TensorMeta) and meta.dtype in COMPUTED


def _computed_meta(meta: Any) -> Any:
    return replace(meta, dtype=COMPUTED[meta.dtype]) if _is_stored(meta) else meta


def _widen(call: OpCall, operand: Any) -> Any:
    if isinstance(operand, Value) and operand.meta is not None:
        return cast(call.emitter, operand, _computed_meta(operand.meta))
    return replace(operand, meta=_computed_meta(operand.meta)) if isinstance(operand, NumberTensor) else operand


def _narrow(call: OpCall, result: Any, meta: Any) -> Any:
    if isinstance(meta, list | tuple):
        return [_narrow(call, *pair) for pair in zip(result, meta, strict=True)]
    return cast(call.emitter, result, meta) if _is_stored(meta) else result

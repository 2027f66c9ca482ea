"""Dtype in which PyTorch computes an op, and operands converted to it.

A number is rounded to the dtype of the computation, as in eager's kernels. So 0.1 is not larger than the float32
nearest to 0.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from torchmdla.importer.emitter import Emitter, Value
from torchmdla.importer.operands import Number, NumberTensor
from torchmdla.importer.operators import Operator, operator
from torchmdla.importer.rewrites import cast
from torchmdla.importer.scalars import convert_number
from torchmdla.importer.types import TensorMeta

_NUMBER_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}


def number_dtype(value: int | float | bool) -> torch.dtype:
    """Return the dtype that PyTorch gives to a tensor made from a number."""
    return next(dtype for kind, dtype in _NUMBER_DTYPES.items() if isinstance(value, kind))


def common_dtype(operands: Iterable[object]) -> torch.dtype:
    """Return the dtype that tensors and numbers are promoted to (``torch.result_type`` for any count of operands).

    Tensors with dimensions have priority over 0-d tensors, and these over numbers. An operand of lower priority counts
    only if its kind (bool, integer, float) is higher.
    """
    dimensioned, scalars, numbers = None, None, None
    for operand in operands:
        if isinstance(operand, Value | NumberTensor):
            assert operand.meta is not None
            if operand.meta.shape:
                dimensioned = _wider(dimensioned, operand.meta.dtype)
            else:
                scalars = _wider(scalars, operand.meta.dtype)
        else:
            value = operand.value if isinstance(operand, Number) else operand
            wrapped = torch.get_default_dtype() if isinstance(value, float) else number_dtype(value)  # type: ignore[arg-type]
            numbers = _wider(numbers, wrapped)
    dtype = _higher_kind(dimensioned, _higher_kind(scalars, numbers))
    assert dtype is not None
    return dtype


def _wider(first: torch.dtype | None, other: torch.dtype) -> torch.dtype:
    return other if first is None else torch.promote_types(first, other)


def _kind(dtype: torch.dtype) -> int:
    return 2 if dtype.is_floating_point else int(dtype != torch.bool)


def _higher_kind(first: torch.dtype | None, second: torch.dtype | None) -> torch.dtype | None:
    """Return ``first`` unless ``second`` is of a higher kind."""
    if first is None or second is None:
        return first or second
    return second if _kind(second) > _kind(first) else first


def prepare_operands(
    schema: torch._C.FunctionSchema, name: str, operands: Sequence[object], meta: object
) -> tuple[str, torch.dtype | None, list[object]]:
    """Return the op to write for ``name``, the dtype of its tensors (None: unchanged), and its operands.

    If the second operand is a known number, the op is the overload with a constant in its kernel. ``meta`` is the
    first result's.
    """
    record = operator(name)
    dtype = _computation_dtype(record, operands, meta)
    if record.number_as_tensor:
        value, number = operands
        meta_of_number = TensorMeta(dtype or number_dtype(number), (), ())  # type: ignore[arg-type]
        return record.with_tensors, dtype, [value, NumberTensor(convert_number(number, dtype), meta_of_number)]  # type: ignore[arg-type]
    # Upstream adds a number to booleans without a carry.
    takes_number = bool(record.with_number) and dtype != torch.bool
    scalar = takes_number and isinstance(operands[1], NumberTensor | int | float)
    numbers = [
        _prepare_number(
            operand,
            argument.type,
            dtype,
            as_scalar=scalar and position == 1,
            is_operand=argument.name == "other",
        )
        for position, (operand, argument) in enumerate(zip(operands, schema.arguments, strict=True))
    ]
    return record.with_number if scalar else name, dtype, numbers


def _computation_dtype(record: Operator, operands: Sequence[object], meta: object) -> torch.dtype | None:
    if record.computed_in == "promoted":
        return common_dtype(operands[:2])
    if record.computed_in == "float" and isinstance(meta, float):
        return torch.float64
    return meta.dtype if record.computed_in == "result" and isinstance(meta, TensorMeta) else None


def _prepare_number(
    operand: object, type_: torch._C.JitType, dtype: torch.dtype | None, *, as_scalar: bool, is_operand: bool
) -> object:
    """Return a number, or a 0-d tensor with a known value, in the schema's form: rounded, and as a tensor if needed."""
    if isinstance(operand, NumberTensor):
        rounded = convert_number(operand.value, dtype)
        return (
            Number(rounded)
            if as_scalar
            else NumberTensor(rounded, replace(operand.meta, dtype=dtype or operand.meta.dtype))
        )
    if not isinstance(operand, int | float) or type_.kind() not in ("TensorType", "NumberType"):
        return operand
    rounded = convert_number(operand, dtype)
    if is_operand and dtype is not None and dtype.is_floating_point:
        rounded = float(rounded)  # Upstream folds a negative integer among floats as an unsigned integer.
    if as_scalar or type_.kind() == "NumberType":
        return Number(rounded) if as_scalar else rounded
    return NumberTensor(rounded, TensorMeta(dtype or number_dtype(operand), (), ()))


def cast_operand(emitter: Emitter, operand: object, dtype: torch.dtype | None) -> object:
    """Return a tensor converted to ``dtype``. Other operands stay unchanged, and all do without a ``dtype``."""
    if dtype is None or not isinstance(operand, Value) or operand.meta is None:
        return operand
    return cast(emitter, operand, replace(operand.meta, dtype=dtype))

"""Floats and integers that are known only at run time. Computations with them use 0-d tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchmdla.importer import promotion
from torchmdla.importer.emitter import Emitter, Value
from torchmdla.importer.operands import NumberTensor, Operand
from torchmdla.importer.operators import operator
from torchmdla.importer.rewrites import cast
from torchmdla.importer.schemas import schema_of
from torchmdla.importer.trace import leaves
from torchmdla.importer.types import TensorMeta


def select_tensor_overload(
    emitter: Emitter, name: str, operands: Sequence[Operand], meta: object = None
) -> tuple[torch._C.FunctionSchema, list[Operand]]:
    """Return the overload of the operator for tensors instead of numbers, and its operands.

    All numbers become 0-d tensors, whether they are known now or only at run time. ``meta`` is the first result's.
    """
    record = operator(name)
    schema = schema_of(record.with_tensors or name)
    dtype = meta.dtype if record.computed_in == "result" and isinstance(meta, TensorMeta) else None
    tensors = [runtime_scalar_as_tensor(emitter, operand, operands, dtype) for operand in operands]
    return schema, [
        _number_as_tensor(operand, operands, dtype) if _takes_tensor(argument.type) else operand
        for operand, argument in zip(tensors, schema.arguments, strict=False)
    ]


def as_tensor(emitter: Emitter, number: Value) -> Value:
    """Return a number that is known only at run time as a 0-d tensor of int64 or float64."""
    meta = TensorMeta(promotion.number_dtype(0 if is_integer(number) else 0.0), (), ())
    return emitter.tensor_op("torch.prim.NumToTensor.Scalar", [number], meta)


def as_number(emitter: Emitter, tensor: Value) -> Value:
    """Return a 0-d tensor as a float that is known only at run time."""
    exact = cast(emitter, tensor, TensorMeta(torch.float64, (), ()))
    return Value(emitter.op("torch.aten.Float.Tensor", [exact], ["!torch.float"])[0], "!torch.float")


def is_integer(number: Value) -> bool:
    """Return whether a number that is known only at run time is an integer."""
    return number.type == "!torch.int"


def as_float(emitter: Emitter, operand: Operand) -> Operand:
    """Return an integer that is known only at run time as a float, and any other operand as it is."""
    if not isinstance(operand, Value) or not is_integer(operand):
        return operand
    return Value(emitter.op("torch.aten.Float.Scalar", [operand], ["!torch.float"])[0], "!torch.float")


def runtime_scalars_as_tensors(
    emitter: Emitter, schema: torch._C.FunctionSchema, operands: Sequence[Operand]
) -> Sequence[Operand]:
    """Return the operands with 0-d tensors for runtime scalars where the schema expects tensors, as in FX graphs."""
    return [
        runtime_scalar_as_tensor(emitter, operand, operands) if argument.type.kind() == "TensorType" else operand
        for operand, argument in zip(operands, schema.arguments, strict=True)
    ]


def runtime_scalar_as_tensor(
    emitter: Emitter, operand: Operand, operands: Sequence[Operand], dtype: torch.dtype | None = None
) -> Operand:
    """Return a number known only at run time as a 0-d tensor.

    Its dtype is ``dtype``, or the one in which PyTorch computes the number with the tensors.
    """
    if not isinstance(operand, Value) or operand.meta is not None:
        return operand
    dtype = dtype or _promoted_dtype(0 if is_integer(operand) else 0.0, operands)
    return cast(emitter, as_tensor(emitter, operand), TensorMeta(dtype, (), ()))


def has_runtime_scalar(operands: Sequence[Operand]) -> bool:
    """Return whether a number is known only at run time, so that the call cannot be traced."""
    return any(isinstance(leaf, Value) and leaf.meta is None for leaf in leaves(operands))


def _takes_tensor(type_: torch._C.JitType) -> bool:
    kind = type_.getElementType() if type_.kind() == "OptionalType" else type_  # type: ignore[attr-defined]
    return bool(kind.kind() == "TensorType")


def _number_as_tensor(operand: Operand, operands: Sequence[Operand], dtype: torch.dtype | None) -> Operand:
    """Return a known number as a 0-d tensor.

    Its dtype is ``dtype``, or the one in which PyTorch computes the number with the tensors.
    """
    if not isinstance(operand, int | float):
        return operand
    return NumberTensor(operand, TensorMeta(dtype or _promoted_dtype(operand, operands), (), ()))


def _promoted_dtype(number: int | float, operands: Sequence[Operand]) -> torch.dtype:
    """Return the dtype in which PyTorch computes a number with the tensors among ``operands``."""
    tensors = [operand for operand in operands if isinstance(operand, Value | NumberTensor) and operand.meta]
    return promotion.common_dtype([*tensors, number])

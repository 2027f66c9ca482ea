"""Floats that are known only at run time: what is computed with them is computed with 0-d tensors instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from torchmdla.importer import promotion
from torchmdla.importer.emitter import Emitter, Value
from torchmdla.importer.operands import NumberTensor, Operand
from torchmdla.importer.operators import operator
from torchmdla.importer.rewrites import cast
from torchmdla.importer.schemas import schema_of
from torchmdla.importer.trace import leaves
from torchmdla.importer.types import TensorMeta


def in_tensor_form(
    emitter: Emitter, name: str, operands: Sequence[Operand]
) -> tuple[torch._C.FunctionSchema, list[Operand]]:
    """The op on tensors instead of numbers: they become 0-d tensors, whether they are known or at run time only."""
    schema = schema_of(operator(name).with_tensors or name)
    tensors = [opened(emitter, operand, operands) for operand in operands]
    return schema, [
        _known_as_tensor(operand, operands) if _takes_tensor(argument.type) else operand
        for operand, argument in zip(tensors, schema.arguments, strict=False)
    ]


def as_integer_tensor(emitter: Emitter, number: Value) -> Value:
    """An integer that is known only at run time, and given as a float, as a 0-d tensor."""
    meta = TensorMeta(torch.float64, (), ())
    exact = emitter.tensor_op("torch.prim.NumToTensor.Scalar", [number], meta)
    return cast(emitter, exact, replace(meta, dtype=torch.int64))


def opened_tensors(emitter: Emitter, schema: torch._C.FunctionSchema, operands: Sequence[Operand]) -> Sequence[Operand]:
    """With 0-d tensors for open floats where the schema asks for tensors, as graphs of FX have them."""
    return [
        opened(emitter, operand, operands) if argument.type.kind() == "TensorType" else operand
        for operand, argument in zip(operands, schema.arguments, strict=True)
    ]


def opened(emitter: Emitter, operand: Operand, operands: Sequence[Operand]) -> Operand:
    """A float known only at run time as a 0-d tensor, in the dtype that PyTorch computes it with the tensors in."""
    if not isinstance(operand, Value) or operand.meta is not None:
        return operand
    meta = TensorMeta(torch.float64, (), ())
    number = emitter.tensor_op("torch.prim.NumToTensor.Scalar", [operand], meta)
    return cast(emitter, number, replace(meta, dtype=_dtype_beside(0.0, operands)))


def has_open_float(operands: Sequence[Operand]) -> bool:
    """Whether a float is known only at run time: then there is nothing to trace with."""
    return any(isinstance(leaf, Value) and leaf.meta is None for leaf in leaves(operands))


def _takes_tensor(type_: torch._C.JitType) -> bool:
    kind = type_.getElementType() if type_.kind() == "OptionalType" else type_  # type: ignore[attr-defined]
    return bool(kind.kind() == "TensorType")


def _known_as_tensor(operand: Operand, operands: Sequence[Operand]) -> Operand:
    """A known number as a 0-d tensor, in the dtype that PyTorch computes it with the tensors in."""
    if not isinstance(operand, int | float):
        return operand
    return NumberTensor(operand, TensorMeta(_dtype_beside(operand, operands), (), ()))


def _dtype_beside(number: int | float, operands: Sequence[Operand]) -> torch.dtype:
    """The dtype that PyTorch computes a number with the tensors among ``operands`` in."""
    tensors = [operand for operand in operands if isinstance(operand, Value | NumberTensor) and operand.meta]
    return promotion.common_dtype([*tensors, number])

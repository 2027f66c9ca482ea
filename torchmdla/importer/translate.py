"""Turns one op with its operands into ops of the Torch dialect, whatever graph the op comes from.

Three ways, tried in this order: an op that needs no computation or that is plain slicing is rewritten
(``rewrites.py``), one that torch-mlir lacks or lowers badly is decomposed (``decompositions.py``), every other becomes
the op of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from torchmdla.errors import CompileError
from torchmdla.importer.decompositions import decomposition
from torchmdla.importer.emitter import Emitter, Value
from torchmdla.importer.rewrites import REWRITES, cast
from torchmdla.importer.trace import Call, Ref, Trace, leaves, map_structure, qualified_name, trace
from torchmdla.importer.types import TensorMeta, dtype_number, tensor_type


@dataclass(frozen=True)
class NumberTensor:
    """A 0-d tensor whose value is known, because it is computed from sizes."""

    value: int | float | bool
    meta: TensorMeta


@dataclass(frozen=True)
class Number:
    """A known number that takes the place of a tensor in the op's schema."""

    value: int | float | bool


# The dtype that PyTorch gives a number that it makes a tensor of.
NUMBER_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}

# An operand: a Value (tensor, or float known only at run time), a NumberTensor, a known Python value (dtype, layout,
# memory format and device as TorchScript or as Python has them), or a sequence of operands.
Operand = object

_LAYOUTS = {torch.strided: 0}
_MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}

_SCALAR_FORMS: Mapping[str, str] = {
    **{
        f"aten::{name}.Tensor": f"aten::{name}.Scalar"
        for name in [
            "add",
            "sub",
            "mul",
            "div",
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
            "remainder",
            "fmod",
            "floor_divide",
        ]
    },
    "aten::div.Tensor_mode": "aten::div.Scalar_mode",
    "aten::pow.Tensor_Tensor": "aten::pow.Tensor_Scalar",
}


def translate(
    emitter: Emitter,
    schema: torch._C.FunctionSchema,
    operands: Sequence[Operand],
    metas: Sequence[object],
    within: str = "",
) -> list[Operand]:
    """Writes the op and returns its results.

    ``metas``: for each result a :class:`TensorMeta`, a sequence of them, or None for an undefined tensor. ``within``:
    the op whose decomposition this op is part of; it is not decomposed again.

    Raises:
        CompileError: the op cannot be expressed.
    """
    name = qualified_name(schema)
    rewrite = REWRITES.get(name)
    if rewrite is not None:
        named = dict(zip((argument.name for argument in schema.arguments), operands, strict=True))
        tensors = {key: as_tensor(emitter, value) for key, value in named.items()}
        rewritten = rewrite(emitter, tensors, metas)
        if rewritten is not None:
            return rewritten
    if name in _SIZED_BY_NUMBERS and _has_open_float(operands):
        raise CompileError("its size depends on a float that is known only at run time")
    if name != within and decomposition(name) is not None:
        if not _has_open_float(operands):
            results = _decompose(emitter, name, operands)
            return [results] if schema.returns[0].type.kind() == "ListType" else results
        if name not in _WHOLE_WITH_OPEN_FLOATS:
            raise CompileError("it takes a float that is known only at run time")
    return _same_op(emitter, schema, operands, metas)


def as_tensor(emitter: Emitter, operand: Operand) -> Operand:
    """Writes known 0-d tensors, alone or in lists, as literals; every other operand stays as it is."""
    if isinstance(operand, NumberTensor):
        return emitter.number_tensor(operand.value, operand.meta)
    if isinstance(operand, list | tuple):
        return [as_tensor(emitter, item) for item in operand]
    return operand


def _same_op(
    emitter: Emitter, schema: torch._C.FunctionSchema, operands: Sequence[Operand], metas: Sequence[object]
) -> list[Operand]:
    name, operands = _scalar_form(qualified_name(schema), operands)
    operands = [
        _number_tensor(operand, argument.type) for operand, argument in zip(operands, schema.arguments, strict=True)
    ]
    if name.partition(".")[0] in _PROMOTING:
        operands = [_promoted(emitter, operand, metas[0]) for operand in operands]
    values = [
        _materialise(emitter, operand, argument.type, argument.N)  # type: ignore[attr-defined]
        for operand, argument in zip(operands, schema.arguments, strict=True)
    ]
    results = [_result_type(meta, returned.type) for meta, returned in zip(metas, schema.returns, strict=True)]
    names = emitter.op("torch." + name.replace("::", "."), values, results)
    return [
        None if type_ == "!torch.none" else Value(name, type_, meta if isinstance(meta, TensorMeta) else None)
        for name, type_, meta in zip(names, results, metas, strict=True)
    ]


def _scalar_form(name: str, operands: Sequence[Operand]) -> tuple[str, Sequence[Operand]]:
    """The overload with a number as second operand, if that operand is known: it becomes a constant in the kernel.

    Result types come from the record, so the overloads' different type promotion does not matter.
    """
    if name not in _SCALAR_FORMS or not isinstance(operands[1], NumberTensor | int | float):
        return name, operands
    number = operands[1].value if isinstance(operands[1], NumberTensor) else operands[1]
    return _SCALAR_FORMS[name], [operands[0], Number(number), *operands[2:]]


# Elementwise ops that PyTorch computes in the dtype of their result. torch-mlir refuses integers in some of them, and
# ends the process in others, so their operands are converted first.
_PROMOTING = frozenset(
    f"aten::{name}"
    for name in [
        "relu",
        "relu6",
        "sigmoid",
        "tanh",
        "exp",
        "exp2",
        "expm1",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
        "log",
        "log2",
        "log10",
        "log1p",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "erf",
        "square",
        "logit",
        "clamp",
        "clamp_min",
        "clamp_max",
        "add",
        "sub",
        "rsub",
        "mul",
        "div",
        "floor_divide",
        "remainder",
        "fmod",
        "pow",
        "atan2",
        "maximum",
        "minimum",
        "fmax",
        "fmin",
        "lerp",
        "addcmul",
        "addcdiv",
        "heaviside",
        "xlogy",
        "copysign",
        "softplus",
        "hardtanh",
    ]
)


def _number_tensor(operand: Operand, type_: torch._C.JitType) -> Operand:
    """A number where the schema asks for a tensor, as PyTorch's dispatcher passes it."""
    if type_.kind() != "TensorType" or not isinstance(operand, int | float):
        return operand
    return NumberTensor(operand, TensorMeta.of(torch.tensor(operand, dtype=NUMBER_DTYPES[type(operand)])))


def _promoted(emitter: Emitter, operand: Operand, meta: object) -> Operand:
    if isinstance(operand, NumberTensor) and isinstance(meta, TensorMeta):
        return replace(operand, meta=replace(operand.meta, dtype=meta.dtype))
    if not isinstance(operand, Value) or operand.meta is None or not isinstance(meta, TensorMeta):
        return operand
    return cast(emitter, operand, replace(operand.meta, dtype=meta.dtype))


def _result_type(meta: object, type_: torch._C.JitType) -> str:
    if isinstance(meta, TensorMeta):
        return tensor_type(meta)
    if meta is None:
        return "!torch.none"
    if isinstance(meta, float) and type_.kind() in ("FloatType", "NumberType"):
        return "!torch.float"
    raise CompileError(f"a result of type {type_} cannot be expressed")


def _materialise(emitter: Emitter, operand: Operand, type_: torch._C.JitType, count: int | None = None) -> Value:
    """The SSA value of an operand where the schema asks for ``type_``; ``count`` is the N of ``int[N]``."""
    kind = type_.kind()
    if kind == "OptionalType":
        if operand is None:
            return emitter.none()
        return _materialise(emitter, operand, type_.getElementType(), count)
    if kind == "ListType":
        return _materialise_list(emitter, operand, type_.getElementType(), count)
    if isinstance(operand, Number):
        return _write_number(emitter, operand.value)
    operand = as_tensor(emitter, operand)
    if isinstance(operand, Value):
        return operand
    if kind not in _WRITERS or (operand is None and kind != "GeneratorType"):
        raise CompileError(f"an argument of type {type_} cannot be expressed by {operand!r}")
    value: Value = _WRITERS[kind](emitter, operand)  # type: ignore[no-untyped-call]
    return value


_ELEMENTS: Mapping[str, str] = {
    "IntType": "int",
    "SymIntType": "int",
    "FloatType": "float",
    "BoolType": "bool",
    "StringType": "str",
    "TensorType": "vtensor",
    "OptionalType": "optional<vtensor>",
}


def _materialise_list(emitter: Emitter, operand: Operand, element: torch._C.JitType, count: int | None) -> Value:
    items = list(operand) if isinstance(operand, list | tuple) else [operand] * (count or 1)
    if element.kind() not in _ELEMENTS:
        raise CompileError(f"a list of {element} cannot be expressed")
    return emitter.list([_materialise(emitter, item, element) for item in items], _ELEMENTS[element.kind()])


def _write_int(emitter: Emitter, operand: Operand) -> Value:
    if isinstance(operand, torch.dtype):
        return emitter.integer(dtype_number(operand))
    if isinstance(operand, torch.layout):
        return emitter.integer(_LAYOUTS[operand])
    if isinstance(operand, torch.memory_format):
        return emitter.integer(_MEMORY_FORMATS[operand])
    return emitter.integer(int(operand))  # type: ignore[call-overload]


def _write_number(emitter: Emitter, operand: Operand) -> Value:
    return emitter.floating(operand) if isinstance(operand, float) else _write_int(emitter, operand)


_WRITERS = {
    "IntType": _write_int,
    "SymIntType": _write_int,
    "FloatType": lambda emitter, operand: emitter.floating(float(operand)),
    "BoolType": lambda emitter, operand: emitter.boolean(bool(operand)),
    "NumberType": _write_number,
    "StringType": lambda emitter, operand: emitter.string(operand),
    # Compiled code knows no devices: whatever the op asked for, its memory is the caller's.
    "DeviceObjType": lambda emitter, operand: emitter.device("cpu"),
    "GeneratorType": lambda emitter, operand: emitter.none(),
}


def _decompose(emitter: Emitter, name: str, operands: Sequence[Operand]) -> list[Operand]:
    tensors = [
        value for value in leaves([as_tensor(emitter, operand) for operand in operands]) if isinstance(value, Value)
    ]
    recorded = _cached_trace(name, map_structure(_describe, list(operands)))
    return _replay(emitter, recorded, tensors, name)


_SIZED_BY_NUMBERS = frozenset(("aten::arange", "aten::arange.start", "aten::arange.start_step"))

# Those that are right, if slower, without their decomposition.
_WHOLE_WITH_OPEN_FLOATS = frozenset(("aten::pow.Tensor_Scalar", "aten::addmm", "aten::baddbmm"))


def _has_open_float(operands: Sequence[Operand]) -> bool:
    """Whether a float is known only at run time: then there is nothing to trace with."""
    return any(isinstance(leaf, Value) and leaf.meta is None for leaf in leaves(operands))


def _describe(operand: Operand) -> object:
    return operand.meta if isinstance(operand, Value | NumberTensor) else operand


@lru_cache(maxsize=512)
def _cached_trace(name: str, arguments: tuple[object, ...]) -> Trace:
    function = decomposition(name)
    assert function is not None
    return trace(function, arguments)


def _replay(emitter: Emitter, recorded: Trace, inputs: Sequence[Value], name: str) -> list[Operand]:
    values: dict[int, Operand] = dict(enumerate(inputs))

    def read(leaf: object) -> Operand:
        return values[leaf.index] if isinstance(leaf, Ref) else leaf

    for call in recorded.calls:
        operands: Any = map_structure(read, call.arguments)
        results = translate(emitter, call.schema, operands, call.metas, within=name)
        _define(values, call, results)
    outputs: list[Operand] = list(map_structure(read, recorded.outputs))  # type: ignore[call-overload]
    return outputs


def _define(values: dict[int, Operand], call: Call, results: Sequence[Operand]) -> None:
    for ref, value in zip(leaves(call.results), leaves(list(results)), strict=True):
        if isinstance(ref, Ref):
            values[ref.index] = value

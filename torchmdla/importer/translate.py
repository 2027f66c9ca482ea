"""Turns one op with its operands into ops of the Torch dialect, whatever graph the op comes from.

Three ways, tried in this order: an op that needs no computation or that is plain slicing is rewritten
(``rewrites.py``), one that torch-mlir lacks or lowers badly is decomposed (``decompositions/``), every other becomes
the op of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from torchmdla.errors import CompileError
from torchmdla.importer import empties, indices, promotion, ranks
from torchmdla.importer.decompositions import paddings
from torchmdla.importer.decompositions.registry import decomposition, schema_of
from torchmdla.importer.emitter import Emitter, Value
from torchmdla.importer.promotion import Number, NumberTensor
from torchmdla.importer.rewrites import REWRITES, cast, widened
from torchmdla.importer.size_int import SizeInt
from torchmdla.importer.trace import Call, Ref, Trace, leaves, map_structure, qualified_name, trace
from torchmdla.importer.types import LAYOUTS, MEMORY_FORMATS, TensorMeta, dtype_number, tensor_type

# An operand: a Value (tensor, or float known only at run time), a NumberTensor, a known Python value (dtype, layout,
# memory format and device as TorchScript or as Python has them), or a sequence of operands.
Operand = object


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
    nothing = empties.without_elements(emitter, metas) or empties.variance(emitter, name, operands, metas)
    if nothing is not None:
        return nothing
    operands = empties.dense_operands(name, operands)
    same = empties.unchanged(name, operands)
    if same is not None:
        return [same]
    rewrite = REWRITES.get(name)
    if rewrite is not None:
        named = dict(zip((argument.name for argument in schema.arguments), operands, strict=True))
        tensors = {key: as_tensor(emitter, value) for key, value in named.items()}
        rewritten = rewrite(emitter, tensors, metas)
        if rewritten is not None:
            return rewritten
    if ranks.lacks_a_dimension(name, operands):
        return _with_one_more_dimension(emitter, schema, operands, metas, within)
    if _has_open_float(operands):
        if name in _NEED_NUMBERS:
            raise CompileError(f"its {_NEED_NUMBERS[name]} a float that is known only at run time", scope="place")
        if name in _TENSOR_FORMS:
            schema, operands = in_tensor_form(emitter, name, operands)
            return translate(emitter, schema, operands, metas, within)
        operands = _opened_tensors(emitter, schema, operands)
    as_itself = name == within or name in emitter.composite_ops or _is_kept_whole(name, operands)
    if not as_itself and decomposition(name) is not None:
        results = _decompose(emitter, name, operands)
        _check_dtypes(results, metas)
        return [results] if schema.returns[0].type.kind() == "ListType" else results
    return _same_op(emitter, schema, operands, metas)


def _with_one_more_dimension(
    emitter: Emitter,
    schema: torch._C.FunctionSchema,
    operands: Sequence[Operand],
    metas: Sequence[object],
    within: str,
) -> list[Operand]:
    more = ranks.raised_metas(schema, operands, metas)
    results = translate(emitter, schema, ranks.raised(emitter, operands), more, within)
    return ranks.restored(emitter, results, metas)


def _check_dtypes(results: Sequence[Operand], metas: Sequence[object]) -> None:
    """The program would read the results as what eager made.

    Raises:
        CompileError: a decomposition promotes otherwise than eager.
    """
    expected = [meta for meta in leaves(metas) if isinstance(meta, TensorMeta)]
    made = [value for value in leaves(results) if isinstance(value, Value)]
    for value, meta in zip(made, expected, strict=False):
        if value.meta is not None and value.meta.dtype != meta.dtype:
            raise CompileError(f"its decomposition makes {value.meta.dtype} instead of {meta.dtype}")


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
    name, dtype, operands = promotion.prepared(schema, qualified_name(schema), operands, metas[0])
    operands = [promotion.in_dtype(emitter, operand, dtype) for operand in operands]
    _guard(emitter, name, operands, metas[0])
    if name in ("aten::index.Tensor", "aten::index_put"):
        operands[1] = widened(emitter, operands[1])  # type: ignore[arg-type]
    if name == "aten::index_put":
        operands[1] = indices.from_front(emitter, operands[0], operands[1])  # type: ignore[arg-type]
    if name in indices.SCATTERS:
        indices.check(emitter, *operands[:3])  # type: ignore[arg-type]
    values = [
        materialise(emitter, operand, argument.type, argument.N)  # type: ignore[attr-defined]
        for operand, argument in zip(operands, schema.arguments, strict=True)
    ]
    results = [_result_type(meta, returned.type) for meta, returned in zip(metas, schema.returns, strict=True)]
    names = emitter.op("torch." + name.replace("::", "."), values, results)
    return [
        None if type_ == "!torch.none" else Value(name, type_, meta if isinstance(meta, TensorMeta) else None)
        for name, type_, meta in zip(names, results, metas, strict=True)
    ]


# Where eager reports a division of integers by zero, the processor ends the process.
_DIVISIONS = frozenset(("aten::div.Tensor_mode", "aten::remainder.Tensor"))


def _guard(emitter: Emitter, name: str, operands: Sequence[Operand], meta: object) -> None:
    """Makes the call fail, so that eager can raise its error, where an integer divisor is zero."""
    if name not in _DIVISIONS or not isinstance(meta, TensorMeta) or meta.dtype.is_floating_point:
        return
    if isinstance(operands[1], NumberTensor) and operands[1].value != 0:
        return
    divisor = as_tensor(emitter, operands[1])
    assert isinstance(divisor, Value)
    assert divisor.meta is not None
    flags = replace(divisor.meta, dtype=torch.bool)
    nonzero = emitter.tensor_op("torch.aten.ne.Scalar", [divisor, emitter.integer(0)], flags)
    every = emitter.tensor_op("torch.aten.all", [nonzero], TensorMeta(torch.bool, (), ()))
    emitter.check(every, "division by zero")


def _result_type(meta: object, type_: torch._C.JitType) -> str:
    if isinstance(meta, TensorMeta):
        return tensor_type(meta)
    if meta is None:
        return "!torch.none"
    if isinstance(meta, float) and type_.kind() in ("FloatType", "NumberType"):
        return "!torch.float"
    raise CompileError(f"a result of type {type_} cannot be expressed")


def materialise(emitter: Emitter, operand: Operand, type_: torch._C.JitType, count: int | None = None) -> Value:
    """The SSA value of an operand where the schema asks for ``type_``; ``count`` is the N of ``int[N]``."""
    kind = type_.kind()
    if kind == "OptionalType":
        if operand is None:
            return emitter.none()
        return materialise(emitter, operand, type_.getElementType(), count)
    if kind == "ListType":
        return _materialise_list(emitter, operand, type_.getElementType(), count)
    if isinstance(operand, Number):
        return _write_number(emitter, operand.value)
    operand = as_tensor(emitter, operand)
    if isinstance(operand, Value):
        return operand
    if kind not in _WRITERS or (operand is None and kind != "GeneratorType"):
        raise CompileError(f"an argument of type {type_} cannot be expressed by {operand!r}", scope="place")
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
    items = list(operand) if isinstance(operand, list | tuple) else [operand]
    if len(items) == 1:  # One number for all dimensions, of which upstream knows nothing.
        items *= count or 1
    if element.kind() not in _ELEMENTS:
        raise CompileError(f"a list of {element} cannot be expressed")
    return emitter.list([materialise(emitter, item, element) for item in items], _ELEMENTS[element.kind()])


def _write_int(emitter: Emitter, operand: Operand) -> Value:
    if isinstance(operand, torch.dtype):
        return emitter.integer(dtype_number(operand))
    if isinstance(operand, torch.layout):
        return emitter.integer(LAYOUTS[operand])
    if isinstance(operand, torch.memory_format):
        return emitter.integer(MEMORY_FORMATS[operand])
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
    operands = [_opened(emitter, operand, operands) for operand in operands]
    tensors = [
        value for value in leaves([as_tensor(emitter, operand) for operand in operands]) if isinstance(value, Value)
    ]
    arguments: Any = map_structure(_describe, list(operands))
    recorded = (_trace if _varies(arguments) else _cached_trace)(name, arguments)
    return _replay(emitter, recorded, tensors, name)


_NEED_NUMBERS: Mapping[str, str] = {
    **dict.fromkeys(("aten::arange", "aten::arange.start", "aten::arange.start_step"), "size depends on"),
    **dict.fromkeys((f"aten::{name}.correction" for name in ("var", "std", "var_mean", "std_mean")), "correction is"),
}

# Those that are right, if slower, without their decomposition: it needs their numbers.
_WHOLE_WITH_OPEN_FLOATS = frozenset(("aten::addmm", "aten::baddbmm", "aten::constant_pad_nd"))


def _is_kept_whole(name: str, operands: Sequence[Operand]) -> bool:
    if name not in _WHOLE_WITH_OPEN_FLOATS or not _has_open_float(operands):
        return False
    return name != "aten::constant_pad_nd" or not paddings.crops(operands[1])  # type: ignore[arg-type]


# Overloads that take a tensor in the place of a number.
_TENSOR_FORMS: Mapping[str, str] = {
    **{
        f"aten::{name}.Scalar": f"aten::{name}.Tensor"
        for name in [
            "add",
            "sub",
            "rsub",
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
            "masked_fill",
        ]
    },
    "aten::fill.Scalar": "aten::fill.Tensor",
    "aten::floor_divide.Scalar": "aten::floor_divide",
    "aten::div.Scalar_mode": "aten::div.Tensor_mode",
    "aten::pow.Scalar": "aten::pow.Tensor_Tensor",
    "aten::pow.Tensor_Scalar": "aten::pow.Tensor_Tensor",
    "aten::where.Scalar": "aten::where.self",
    "aten::where.ScalarSelf": "aten::where.self",
    "aten::where.ScalarOther": "aten::where.self",
    "aten::lerp.Scalar": "aten::lerp.Tensor",
    "aten::clamp": "aten::clamp.Tensor",
    "aten::clamp_min": "aten::clamp_min.Tensor",
    "aten::clamp_max": "aten::clamp_max.Tensor",
    "aten::hardtanh": "aten::clamp.Tensor",
}


def in_tensor_form(
    emitter: Emitter, name: str, operands: Sequence[Operand]
) -> tuple[torch._C.FunctionSchema, list[Operand]]:
    """The op on tensors instead of numbers: they become 0-d tensors, whether they are known or at run time only."""
    schema = schema_of(_TENSOR_FORMS.get(name, name))
    opened = [_opened(emitter, operand, operands) for operand in operands]
    return schema, [
        _known_as_tensor(operand, operands) if _takes_tensor(argument.type) else operand
        for operand, argument in zip(opened, schema.arguments, strict=False)
    ]


def _takes_tensor(type_: torch._C.JitType) -> bool:
    kind = type_.getElementType() if type_.kind() == "OptionalType" else type_  # type: ignore[attr-defined]
    return bool(kind.kind() == "TensorType")


def _known_as_tensor(operand: Operand, operands: Sequence[Operand]) -> Operand:
    """A known number as a 0-d tensor, in the dtype that PyTorch computes it with the tensors in."""
    if not isinstance(operand, int | float):
        return operand
    return NumberTensor(operand, TensorMeta(_dtype_beside(operand, operands), (), ()))


def as_integer_tensor(emitter: Emitter, number: Value) -> Value:
    """An integer that is known only at run time, and given as a float, as a 0-d tensor."""
    meta = TensorMeta(torch.float64, (), ())
    exact = emitter.tensor_op("torch.prim.NumToTensor.Scalar", [number], meta)
    return cast(emitter, exact, replace(meta, dtype=torch.int64))


def _opened_tensors(
    emitter: Emitter, schema: torch._C.FunctionSchema, operands: Sequence[Operand]
) -> Sequence[Operand]:
    """With 0-d tensors for open floats where the schema asks for tensors, as graphs of FX have them."""
    return [
        _opened(emitter, operand, operands) if argument.type.kind() == "TensorType" else operand
        for operand, argument in zip(operands, schema.arguments, strict=True)
    ]


def _opened(emitter: Emitter, operand: Operand, operands: Sequence[Operand]) -> Operand:
    """A float known only at run time as a 0-d tensor, in the dtype that PyTorch computes it with the tensors in."""
    if not isinstance(operand, Value) or operand.meta is not None:
        return operand
    meta = TensorMeta(torch.float64, (), ())
    number = emitter.tensor_op("torch.prim.NumToTensor.Scalar", [operand], meta)
    return cast(emitter, number, replace(meta, dtype=_dtype_beside(0.0, operands)))


def _dtype_beside(number: int | float, operands: Sequence[Operand]) -> torch.dtype:
    """The dtype that PyTorch computes a number with the tensors among ``operands`` in."""
    tensors = [operand for operand in operands if isinstance(operand, Value | NumberTensor) and operand.meta]
    return promotion.common_dtype([*tensors, number])


def _has_open_float(operands: Sequence[Operand]) -> bool:
    """Whether a float is known only at run time: then there is nothing to trace with."""
    return any(isinstance(leaf, Value) and leaf.meta is None for leaf in leaves(operands))


def _varies(arguments: Sequence[object]) -> bool:
    """Whether sizes among ``arguments`` remember where they come from: a trace then decides for one run alone."""
    for leaf in leaves(arguments):
        numbers = (*leaf.shape, *leaf.strides) if isinstance(leaf, TensorMeta) else (leaf,)
        if any(isinstance(number, SizeInt) for number in numbers):
            return True
    return False


def _describe(operand: Operand) -> object:
    return operand.meta if isinstance(operand, Value | NumberTensor) else operand


def _trace(name: str, arguments: tuple[object, ...]) -> Trace:
    function = decomposition(name)
    assert function is not None
    return trace(function, arguments)


_cached_trace = lru_cache(maxsize=512)(_trace)


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

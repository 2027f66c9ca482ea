"""Translation of a call of an operator into ops of the Torch dialect, for every kind of graph.

:data:`STRATEGIES` lists the strategies for writing a call, in order. The first one that gives results applies. Each
operator's requirements are in its record (``operators.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from torchmdla.errors import CompileError
from torchmdla.importer import guards, precision, promotion, quantised
from torchmdla.importer.decomposing import trace_decomposition
from torchmdla.importer.emitter import Emitter, Value
from torchmdla.importer.layout import contiguous_strides
from torchmdla.importer.op_call import OpCall, Results, Strategy
from torchmdla.importer.operands import Operand, as_meta, as_tensor, materialise
from torchmdla.importer.operators import operator
from torchmdla.importer.rewrites import write_view
from torchmdla.importer.runtime_scalars import (
    runtime_scalar_as_tensor,
    runtime_scalars_as_tensors,
    select_tensor_overload,
)
from torchmdla.importer.trace import Ref, Trace, leaves, map_structure, trace
from torchmdla.importer.types import ZEROS, TensorMeta


def translate(
    emitter: Emitter,
    schema: torch._C.FunctionSchema,
    operands: Sequence[Operand],
    metas: Sequence[object],
    within: str = "",
) -> list[Operand]:
    """Write the call and return its results.

    ``metas`` has for each result a :class:`TensorMeta`, a sequence of them, or None for an undefined tensor. ``within``
    is the operator whose decomposition contains this call. That operator is not decomposed again.

    Raises:
        CompileError: If the call cannot be expressed.
    """
    return OpCall(STRATEGIES, emitter, schema, operands, metas, within).write()


def _write_empty_results(call: OpCall) -> Results:
    """Return literals if no result has an element. Upstream refuses many such calls and ends the process on some."""
    metas = list(leaves(call.metas))
    if not metas or not all(isinstance(meta, TensorMeta) and 0 in meta.shape for meta in metas):
        return None
    # Another call with the same types may select elements.
    if call.name == "aten::index.Tensor" and any(map(guards.is_mask, leaves(call.operands[1]))):
        return None
    return [map_structure(call.emitter.empty_tensor, meta) for meta in call.metas]


def _omit_zeros(call: OpCall) -> Results:
    """Write the call without an optional tensor of zeros."""
    zeros = call.named_operands.get(call.operator.omits_zeros)
    if (
        call.name in call.emitter.options.composite_ops
        or not isinstance(zeros, Value)
        or zeros.meta is None
        or zeros.meta.bits != ZEROS
    ):
        return None
    guards.check_zeros(call.emitter, zeros)
    return replace(call, operands=[None if operand is zeros else operand for operand in call.operands]).write()


def _write_checks(call: OpCall) -> Results:
    """Write the operator's check of values, and leave the call to the next strategy.

    A device that has an operator whole checks its values itself.
    """
    if call.operator.check is not None and call.name not in call.emitter.options.composite_ops:
        call.operator.check(call.emitter, _operands_by_name(call))
    return None


def _rewrite(call: OpCall) -> Results:
    if call.operator.rewrite is None:
        return None
    return call.operator.rewrite(call.emitter, _operands_by_name(call), call.metas)


def _operands_by_name(call: OpCall) -> dict[str, Any]:
    """Return the operands by the schema's names, with tensors for known 0-d operands."""
    return {name: as_tensor(call.emitter, operand) for name, operand in call.named_operands.items()}


def _raise_rank(call: OpCall) -> Results:
    """Add a dimension of size 1 before those of each tensor if the first tensor's rank is too low."""
    first = call.operands[0] if call.operands else None
    if not isinstance(first, Value) or first.meta is None or len(first.meta.shape) >= call.operator.least_rank:
        return None
    raised = [
        write_view(call.emitter, operand, _add_dimension(operand.meta))
        if isinstance(operand, Value) and operand.meta
        else operand
        for operand in call.operands
    ]
    # A reduction that keeps no dimension has unchanged result types.
    metas: Sequence[Any] = call.metas
    types = metas if call.named_operands.get("keepdim") is False else [_add_dimension(meta) for meta in metas]
    results: list[Any] = replace(call, operands=raised, metas=types).write()
    return [
        result if result.meta.shape == meta.shape else write_view(call.emitter, result, meta)
        for result, meta in zip(results, metas, strict=True)
    ]


def _add_dimension(meta: TensorMeta) -> TensorMeta:
    shape = (1, *meta.shape)
    return replace(meta, shape=shape, strides=contiguous_strides(shape))


def _use_tensor_overload(call: OpCall) -> Results:
    """Write the overload that accepts tensors, if a number is known only at run time."""
    if not call.has_runtime_scalar:
        return None
    if call.operator.needs_number:
        raise CompileError(f"its {call.operator.needs_number} a float that is known only at run time", scope="place")
    if not call.operator.with_tensors:
        return None
    schema, operands = select_tensor_overload(call.emitter, call.name, call.operands, call.metas[0])
    return replace(call, schema=schema, operands=operands).write()


def _decompose(call: OpCall) -> Results:
    if call.operator.decomposition is None or _is_kept_whole(call):
        return None
    operands = [runtime_scalar_as_tensor(call.emitter, operand, call.operands) for operand in _tensor_operands(call)]
    results = replay(call, trace_decomposition(call.name, operands), operands)
    _check_dtypes(results, call.metas)
    return _wrap_list(call, results)


def _is_kept_whole(call: OpCall) -> bool:
    if call.name in (call.within, *call.emitter.options.composite_ops):
        return True
    whole = call.operator.keeps_whole_with_runtime_scalars
    return whole is not None and call.has_runtime_scalar and whole(call.operands)


def _tensor_operands(call: OpCall) -> Sequence[Operand]:
    if not call.has_runtime_scalar:
        return call.operands
    return runtime_scalars_as_tensors(call.emitter, call.schema, call.operands)


def _decompose_quantised(call: OpCall) -> Results:
    """Write the call in terms of floats, if a tensor is quantised."""
    result = quantised.decompose_quantised(call)
    if result is None:
        return None
    function, operands = result
    results = replay(call, trace(function, [map_structure(as_meta, operand) for operand in operands]), operands)
    return quantised.restore_types(_wrap_list(call, results), call.metas)


def _wrap_list(call: OpCall, results: list[Operand]) -> list[Operand]:
    return [results] if call.schema.returns[0].type.kind() == "ListType" else results


def replay(call: OpCall, recorded: Trace, operands: Sequence[Operand]) -> list[Operand]:
    """Return the results of a trace, whose calls are written with the tensors among ``operands`` as inputs."""
    inputs = leaves([as_tensor(call.emitter, operand) for operand in operands])
    values: dict[int, Operand] = dict(enumerate(value for value in inputs if isinstance(value, Value)))

    def read(leaf: object) -> Operand:
        return values[leaf.index] if isinstance(leaf, Ref) else leaf

    for recorded_call in recorded.calls:
        arguments: Any = map_structure(read, recorded_call.arguments)
        results = translate(call.emitter, recorded_call.schema, arguments, recorded_call.metas, within=call.name)
        for ref, value in zip(leaves(recorded_call.results), leaves(results), strict=True):
            if isinstance(ref, Ref):
                values[ref.index] = value
    outputs: Any = map_structure(read, recorded.outputs)
    return list(outputs)


def _check_dtypes(results: Sequence[Operand], metas: Sequence[object]) -> None:
    """Check the dtypes of results: the program would read the results in eager's dtypes.

    Raises:
        CompileError: If a decomposition promotes differently from eager.
    """
    expected = [meta for meta in leaves(metas) if isinstance(meta, TensorMeta)]
    values = [value for value in leaves(results) if isinstance(value, Value)]
    for value, meta in zip(values, expected, strict=False):
        if value.meta is not None and value.meta.dtype != meta.dtype:
            raise CompileError(f"its decomposition makes {value.meta.dtype} instead of {meta.dtype}")


def _write_op(call: OpCall) -> list[Operand]:
    """Write the op of the same name, or its overload for numbers, in the dtype in which PyTorch computes it."""
    emitter = call.emitter
    name, dtype, operands = promotion.prepare_operands(call.schema, call.name, _tensor_operands(call), call.metas[0])
    operands = [promotion.cast_operand(emitter, operand, dtype) for operand in operands]
    if guard := operator(name).guard:
        operands = guard(emitter, operands)
    values = [
        materialise(emitter, operand, argument.type, argument.N)  # type: ignore[attr-defined]
        for operand, argument in zip(operands, call.schema.arguments, strict=True)
    ]
    types = [
        _result_type(emitter, meta, returned.type)
        for meta, returned in zip(call.metas, call.schema.returns, strict=True)
    ]
    names = emitter.op("torch." + name.replace("::", "."), values, types)
    return [
        None if type_ == "!torch.none" else Value(name, type_, meta if isinstance(meta, TensorMeta) else None)
        for name, type_, meta in zip(names, types, call.metas, strict=True)
    ]


def _result_type(emitter: Emitter, meta: object, type_: torch._C.JitType) -> str:
    if isinstance(meta, TensorMeta):
        return emitter.tensor_type(meta)
    if meta is None:
        return "!torch.none"
    if isinstance(meta, float) and type_.kind() in ("FloatType", "NumberType"):
        return "!torch.float"
    raise CompileError(f"a result of type {type_} cannot be expressed")


STRATEGIES: tuple[Strategy, ...] = (
    _decompose_quantised,
    _write_empty_results,
    precision.apply_autocast,
    precision.convert_scalars,
    precision.widen_stored_dtypes,
    precision.round_factors,
    _omit_zeros,
    _write_checks,
    _rewrite,
    _raise_rank,
    _use_tensor_overload,
    _decompose,
    _write_op,
)

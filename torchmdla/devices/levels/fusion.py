"""Fusion of elementwise ops in linalg on tensors, for devices that compile each op to a kernel."""

from __future__ import annotations

from typing import Any

from torch_mlir import ir

from torchmdla.compiler.mlir import convert_errors, forward_of, ops_named, run

_GENERALISE = "func.func(refback-generalize-tensor-concat,linalg-generalize-named-ops,canonicalize,cse)"
_FUSE = "func.func(linalg-fuse-elementwise-ops)"
_CLEAN = "func.func(canonicalize,cse),lower-affine"

_FREE = frozenset({"arith.extf", "linalg.yield"})


def fuse(module: ir.Module) -> Any:
    """Fuse elementwise ops in linalg on tensors, in place, and return the module's function.

    Each op is a ``linalg.generic`` then, and its operands are fused into it unless it would compute them several times.

    Raises:
        CompileError: a pass of upstream fails.
    """
    with convert_errors("fusion failed"):
        run(module, _GENERALISE)
        function = forward_of(module)
        results = list(function.type.results)
        ops = ops_named(function, {"linalg.generic"})
        for op in filter(_is_free, ops):
            _copy_for_uses(op)
        # A value that is also returned is not fused. A sum would compute its operands again for each of its results.
        sums = [op for op in ops if "reduction" in str(op.attributes["iterator_types"])]
        _return(function, [*_returned(function), *(value for op in sums for value in _computed(op))])
        run(module, _FUSE)
        _return(function, _returned(function)[: len(results)])
        run(module, _CLEAN)
    return forward_of(module)


def _is_free(op: Any) -> bool:
    """Return whether an op only moves or widens numbers, which takes no longer than to read them."""
    is_of_one = list(op.attributes["operandSegmentSizes"]) == [1, 1]
    return is_of_one and {inner.operation.name for inner in op.regions[0].blocks[0].operations} <= _FREE


def _copy_for_uses(op: Any) -> None:
    """Copy an op for each op that uses it after the first: only values with one use are fused."""
    uses = [use for use in op.results[0].uses if use.owner.operation.name == "linalg.generic"]
    for use in uses[1:]:
        with ir.InsertionPoint(use.owner):
            use.owner.operands[use.operand_number] = op.clone().results[0]


def _returned(function: Any) -> list[Any]:
    block = function.regions[0].blocks[0]
    return list(block.operations[len(block.operations) - 1].operands)


def _computed(op: Any) -> list[Any]:
    """Return the results of other ops that an op reads several times, without ops that are free in between."""
    maps = [attribute.value for attribute in op.attributes["indexing_maps"]]
    repeated = [value for value, place in zip(op.operands, maps, strict=True) if len(place.results) < place.n_dims]
    sources = [_source(value) for value in repeated]
    return [value for value in sources if _generic_of(value) is not None]


def _source(value: Any) -> Any:
    op = _generic_of(value)
    return value if op is None or not _is_free(op) else _source(op.operands[0])


def _generic_of(value: Any) -> Any | None:
    """Return the op that computes a value, if it is a ``linalg.generic``."""
    op = value.owner.operation if isinstance(value, ir.OpResult) else None
    return op if op is not None and op.name == "linalg.generic" else None


def _return(function: Any, values: list[Any]) -> None:
    block = function.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    with ir.InsertionPoint(end), end.location:
        ir.Operation.create("func.return", operands=values)
    end.erase()
    kind = ir.FunctionType.get(list(function.type.inputs), [value.type for value in values])
    function.attributes["function_type"] = ir.TypeAttr.get(kind)

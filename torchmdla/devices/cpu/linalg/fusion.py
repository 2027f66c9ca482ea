"""Fusion of computations into kernels, by upstream's elementwise fusion. The fused ops are chosen on tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch_mlir import ir

from torchmdla.compiler.mlir import convert_errors, forward_of, run
from torchmdla.devices.cpu.ir.loop_program import MAX_BODY_OPERATIONS
from torchmdla.devices.cpu.target import math_library

_GENERALISE = "func.func(refback-generalize-tensor-concat,linalg-generalize-named-ops,canonicalize,cse)"
_FUSE = "func.func(linalg-fuse-elementwise-ops)"
_CLEAN = "func.func(canonicalize,cse),lower-affine"

# Ops that only change a value's type. Repeating them is cheaper than storing their results.
_CASTS = frozenset(f"arith.{name}" for name in ("extf", "truncf", "extsi", "extui", "trunci", "sitofp", "uitofp"))

_RESHAPES = frozenset(f"tensor.{name}" for name in ("expand_shape", "collapse_shape", "cast", "extract_slice"))


def fuse(module: ir.Module) -> None:
    """Generalise every linalg op, and fuse elementwise producers into their only consumer, in place.

    A producer is not fused if this would compute its values more than once at some cost. The consumer then has more
    loops than the operand has dimensions. In addition, the consumer is a contraction, or the producer calls the
    library.

    A producer between two reductions is not fused into the second one. It becomes the epilogue of the first one, in
    registers and with factors that can be folded into weights. That requires that nothing else uses the first one's
    result.
    """
    with convert_errors("fusion failed"):
        run(module, _GENERALISE)
        function = forward_of(module)
        unfused = [v for op in _generics(function) for v in _unfused_values(op)]
        unfused += [op.results[0] for op in _generics(function) if _has_no_reduction(op)]
        unfused += _limit_bodies(function)
        pinned = list(dict.fromkeys(unfused))
        results = list(function.type.results)
        # Upstream does not fuse the producers of values that are also returned, due to this second use.
        _replace_return(function, list(_return_of(function).operands) + pinned)
        run(module, _FUSE)
        _replace_return(function, list(_return_of(function).operands)[: len(results)])
        run(module, _CLEAN)


def _generics(function: Any) -> Iterator[Any]:
    for op in function.regions[0].blocks[0].operations:
        if op.operation.name == "linalg.generic":
            yield op.operation


def _unfused_values(op: Any) -> Iterator[Any]:
    """Yield values that fusion into ``op`` would compute more than once at some cost, or remove from an epilogue."""
    maps = [attribute.value for attribute in op.attributes["indexing_maps"]]
    contracts = _reduces(op)
    for value, affine_map in zip(op.operands, maps, strict=True):
        repeated = len(affine_map.results) < affine_map.n_dims
        source = _source(value)
        if source is None:
            continue
        recomputed = repeated and ((contracts and (_computes(source) or _widens(source))) or _has_call(source))
        if recomputed or (contracts and _computes(source) and _follows_reduction(source)):
            yield source.results[0]


def _limit_bodies(function: Any) -> Iterator[Any]:
    """Yield the values that end a kernel because it would be too long with the ops after them."""
    lengths: dict[Any | None, int] = {}  # The lengths of the fused bodies of ops with one user.
    for op in _generics(function):
        sources = dict.fromkeys(source for value in op.operands if (source := _source(value)) in lengths)
        size = len(_body(op))
        length = size + sum(lengths[source] for source in sources)
        if length > MAX_BODY_OPERATIONS:
            yield from (source.results[0] for source in sources if source is not None)
            length = size
        if len(op.results) == 1 and _has_one_use(op) and not _reduces(op):
            lengths[op] = length


def _reduces(op: Any) -> bool:
    return any("reduction" in str(kind) for kind in op.attributes["iterator_types"])


def _has_no_reduction(op: Any) -> bool:
    """Return whether an op starts from its outputs' values, like a reduction, but does not have a reduction loop.

    An example is the sum of a tensor without dimensions. If it were fused, it would accumulate in the loops of its
    consumer.
    """
    outputs = list(op.regions[0].blocks[0].arguments)[len(op.operands) - len(op.results) :]
    return not _reduces(op) and any(next(iter(value.uses), None) is not None for value in outputs)


def _follows_reduction(op: Any) -> bool:
    """Return whether an op alone uses equally many results of a reduction, maybe through other elementwise ops."""
    return any(_reduces(source) and _has_one_use(source) for source in _fusible_sources(op) if source is not op)


def _has_one_use(op: Any) -> bool:
    return len(list(op.results[0].uses)) == 1


def _has_call(op: Any) -> bool:
    """Return whether an op calls the library, maybe in an op that is fused into it."""
    return any(_calls(source) for source in _fusible_sources(op) if not _reduces(source))


def _fusible_sources(op: Any) -> Iterator[Any]:
    """Yield an op and the ops behind it with equally many results, up to reductions."""
    waiting, seen = [op], {op}
    while waiting:
        current = waiting.pop()
        yield current
        if _reduces(current):
            continue
        sources = [source for value in current.operands if (source := _source(value)) is not None]
        fresh = [source for source in sources if source not in seen and _count(source) == _count(op)]
        waiting += fresh
        seen.update(fresh)


def _count(op: Any) -> int:
    return math.prod(op.results[0].type.shape)


def _source(value: Any) -> Any | None:
    """Return the generic op that computes a value, past ops that only move data, or None."""
    while isinstance(value, ir.OpResult):
        op = value.owner.operation
        if op.name == "linalg.generic":
            if len(op.results) != 1 or len(_body(op)) > 1 or len(op.operands) != 2:
                return op if len(op.results) == 1 else None
        elif op.name not in _RESHAPES:
            return None
        value = op.operands[0]
    return None


def _body(op: Any) -> list[str]:
    return [inner.operation.name for inner in op.regions[0].blocks[0].operations]


def _computes(op: Any) -> bool:
    return any(name not in _CASTS for name in _body(op)[:-1])


def _widens(op: Any) -> bool:
    """Return whether an op widens values.

    Factors are widened before a contraction: in a pack of weights, or by the producer of the factor.
    """
    return "arith.extf" in _body(op)


def _calls(op: Any) -> bool:
    return any(math_library.is_call(name) for name in _body(op))


def _return_of(function: Any) -> Any:
    block = function.regions[0].blocks[0]
    return block.operations[len(block.operations) - 1].operation


def _replace_return(function: Any, values: list[Any]) -> None:
    old = _return_of(function)
    with ir.InsertionPoint(old), old.location:
        ir.Operation.create("func.return", operands=values)
    old.erase()
    kind = ir.FunctionType.get(list(function.type.inputs), [v.type for v in values])
    function.attributes["function_type"] = ir.TypeAttr.get(kind)

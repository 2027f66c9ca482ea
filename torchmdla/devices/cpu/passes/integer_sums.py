"""Sums of products of quantised integers, in integers: what the zeros of the factors add is subtracted at the end.

With ``x = (q - z) * s`` and ``w = (p - y) * t``, of which neither ``z``, ``s``, ``y`` nor ``t`` varies along the ``n``
terms of a sum::

    sum(x * w) = (sum(q * p) - z * sum(p) - y * (sum(q) - n * z)) * s * t

The sums of ``p`` are known ahead where ``p`` is made of parameters; those of ``q`` matter where ``y`` is not zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torchmdla.compiler.sizes import static
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.expressions import (
    Expression,
    accessing,
    accumulator,
    constant,
    contents,
    load,
    operation,
    reduced,
    rewritten,
    substituted,
)
from torchmdla.devices.cpu.loop_program import Epilogue, LoopNest

_SUM, _WIDE = "i32", "f32"

# A sum of this many products of two differences of integers of 8 bits fits into 32 bits.
MOST_TERMS = (2**31 - 1) // 255**2

# One factor: the access to an element and to a word of it, its zero and scale. An element without a sign comes first.
Factor = tuple[Access, Access, Expression, Expression]


def sum_of_words(step: LoopNest, left: Factor, right: Factor) -> list[LoopNest]:
    """Lets a step sum the products in words of its factors; returns what has to come before it."""
    values, left_words, left_zero, left_scale = left
    weights, right_words, right_zero, right_scale = right
    terms = static(math.prod(size for size, reduces in zip(step.sizes, step.reduction, strict=True) if reduces))
    before: list[LoopNest] = []
    # What is known ahead comes first: z * (sum(p) - n * y).
    total = reduced(0, _SUM)
    if not _is_zero(left_zero):
        sums = _minus(_summed(step, weights, before), _times(right_zero, constant(terms, _SUM)))
        total = _minus(total, ahead(step, _times(left_zero, sums), before))
    if not _is_zero(right_zero):
        sums = _summed_by_windows(step, values, before)
        total = _minus(total, _times(ahead(step, right_zero, before), sums))
    products = operation("dot", [load(left_words), load(right_words)], _SUM)
    if (kind := step.values[0].type) != _WIDE:
        _go_on(step, reduced(0, kind), operation("arith.extsi", [total], kind))
        step.map_expressions(lambda roots: rewritten(roots, _without_extension))
    else:
        scale = ahead(step, operation("arith.mulf", [left_scale, right_scale], _WIDE), before)
        scale_result(step, operation("arith.sitofp", [total], _WIDE), scale)
    step.values = (operation("arith.addi", [accumulator(0, _SUM), products], _SUM),)
    step.initial = constant(0, _SUM)
    step.outputs = tuple(replace(a, buffer=replace(a.buffer, kind="temporary", element=_SUM)) for a in step.outputs)
    return before


def _without_extension(expression: Expression) -> Expression | None:
    """A sum of 32 bits that is extended and truncated again."""
    if expression.op != "arith.trunci" or expression.operands[0].op != "arith.extsi":
        return None
    (value,) = expression.operands[0].operands
    return value if value.type == expression.type else None


def scale_result(step: LoopNest, total: Expression, scale: Expression) -> None:
    """Lets a step go on with ``total * scale`` in the place of its sum; with what is added to it as one operation."""
    scaled = operation("arith.mulf", [total, scale], _WIDE)

    def with_one_rounding(expression: Expression) -> Expression | None:
        if expression.op != "arith.addf" or scaled not in expression.operands:
            return None
        first, second = expression.operands
        return operation("math.fma", [total, scale, second if first is scaled else first], _WIDE)

    _go_on(step, reduced(0, _WIDE), scaled)
    assert step.epilogue is not None
    step.epilogue = replace(step.epilogue, values=rewritten(step.epilogue.values, with_one_rounding))


def _go_on(step: LoopNest, total: Expression, other: Expression) -> None:
    """Lets a step go on with ``other`` in the place of ``total``."""
    epilogue = step.epilogue or Epilogue(step.outputs, (total,))
    step.epilogue = replace(epilogue, values=substituted(epilogue.values, {total: other}))


def ahead(step: LoopNest, value: Expression, before: list[LoopNest], order: Sequence[int] | None = None) -> Expression:
    """What a step reads of a value that is computed before: packed, where it depends on parameters alone, and
    converted, so that wider types do not take lanes from the step. ``order``: the loops as they should walk its memory,
    outermost first; without it, what is an element of memory already is read where it lies."""
    body = contents((value,))
    if not body.loads or (value.op == "load" and order is None) or body.scalars:
        return value
    varying = frozenset[int]().union(*(access.loops for access in body.loads))
    assert order is None or all(loop in order or step.sizes[loop] == 1 for loop in varying), "a loop is left out"
    loops = sorted(varying) if order is None else [loop for loop in order if loop in varying]
    sizes = tuple(step.sizes[loop] for loop in loops)
    buffer = Buffer("temporary", value.type, sizes)
    (moved,) = accessing((value,), lambda access: access.over(loops))
    before.append(replace(LoopNest.elementwise(sizes, Access.whole(buffer), moved), nodes=step.nodes))
    return load(Access.of_loops(buffer, loops, len(step.sizes)))


def _is_zero(value: Expression) -> bool:
    return value.op == "constant" and value.payload == 0


def _minus(left: Expression, right: Expression) -> Expression:
    return left if _is_zero(right) else operation("arith.subi", [left, right], _SUM)


def _times(left: Expression, right: Expression) -> Expression:
    if left.op == "constant" and right.op == "constant":
        return constant(left.payload * right.payload, _SUM)
    if _is_zero(left) or _is_zero(right):
        return constant(0, _SUM)
    return operation("arith.muli", [left, right], _SUM)


def _summed(step: LoopNest, access: Access, before: list[LoopNest], is_signed: bool = True) -> Expression:
    """The sum of what a step reads at ``access``, over the loops of the step that reduce."""
    loops = sorted(access.loops)
    kept = [loop for loop in loops if not step.reduction[loop]]
    buffer = Buffer("temporary", _SUM, tuple(step.sizes[loop] for loop in kept))
    read = load(access.over(loops))
    term = read if read.type == _SUM else operation("arith.extsi" if is_signed else "arith.extui", [read], _SUM)
    before.append(
        LoopNest(
            sizes=tuple(step.sizes[loop] for loop in loops),
            reduction=tuple(step.reduction[loop] for loop in loops),
            outputs=(Access.of_loops(buffer, [loops.index(loop) for loop in kept], len(loops)),),
            values=(operation("arith.addi", [accumulator(0, _SUM), term], _SUM),),
            initial=constant(0, _SUM),
            nodes=step.nodes,
        )
    )
    return load(Access.of_loops(buffer, kept, len(step.sizes)))


def _summed_by_windows(step: LoopNest, access: Access, before: list[LoopNest]) -> Expression:
    """The same: first over the dimensions that are only summed over, for all of the others, then over windows."""
    is_summed = [bool(i.loops) and all(step.reduction[loop] for loop in i.loops) for i in access.indices]
    inner = {loop for i, own in zip(access.indices, is_summed, strict=True) if own for loop in i.loops}
    kept = [d for d, own in enumerate(is_summed) if not own]
    windows = {loop for d in kept for loop in access.indices[d].loops}
    if not inner or inner & windows or len(access.indices) != len(access.buffer.sizes):
        return _summed(step, access, before, is_signed=False)
    walked, first = sorted(inner), len(kept)
    along = {loop: AffineExpr.of_loop(first + k, first + len(walked)) for k, loop in enumerate(walked)}
    indices = [index.along(along, first + len(walked)) for index in access.indices]
    for k, d in enumerate(kept):
        indices[d] = AffineExpr.of_loop(k, first + len(walked))
    rows = replace(
        step,
        sizes=(*(access.buffer.sizes[d] for d in kept), *(step.sizes[loop] for loop in walked)),
        reduction=(*(False for _ in kept), *(True for _ in walked)),
    )
    sums = _summed(rows, replace(access, indices=tuple(indices)), before, is_signed=False).payload
    read = Access(sums.buffer, tuple(access.indices[d] for d in kept))
    return _summed(step, read, before) if any(step.reduction[loop] for loop in windows) else load(read)

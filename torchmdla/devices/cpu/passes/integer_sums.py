"""Integer sums of products of quantised integers, with the contribution of zero points subtracted at the end.

Let ``x = (q - z) * s`` and ``w = (p - y) * t``, where ``z``, ``s``, ``y`` and ``t`` do not vary along the ``n`` terms
of a sum. Then::

    sum(x * w) = (sum(q * p) - z * sum(p) - y * (sum(q) - n * z)) * s * t

The sums of ``p`` are known ahead if ``p`` is computed from parameters. Those of ``q`` are needed only if ``y`` is not
zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torchmdla.compiler.sizes import static
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.expressions import (
    Expression,
    accumulator,
    constant,
    contents,
    load,
    map_loads,
    operation,
    reduced,
    rewrite,
    substitute,
)
from torchmdla.devices.cpu.loop_program import Epilogue, LoopNest

_SUM, _WIDE = "i32", "f32"

# A sum of this many products of two differences of integers of 8 bits fits into 32 bits.
MOST_TERMS = (2**31 - 1) // 255**2

# One factor: the access to an element and to a word of it, its zero point and scale. The unsigned factor comes first.
Factor = tuple[Access, Access, Expression, Expression]


def sum_of_words(step: LoopNest, left: Factor, right: Factor) -> list[LoopNest]:
    """Rewrite a step to sum the products in words of its factors.

    Returns:
        The steps that have to run before it.
    """
    values, left_words, left_zero, left_scale = left
    weights, right_words, right_zero, right_scale = right
    terms = static(math.prod(size for size, reduces in zip(step.sizes, step.reduction, strict=True) if reduces))
    before: list[LoopNest] = []
    # Values that are known ahead come first: z * (sum(p) - n * y).
    total = reduced(0, _SUM)
    if not _is_zero(left_zero):
        sums = _subtract(_sum_elements(step, weights, before), _multiply(right_zero, constant(terms, _SUM)))
        total = _subtract(total, hoist(step, _multiply(left_zero, sums), before))
    if not _is_zero(right_zero):
        sums = _sum_by_windows(step, values, before)
        total = _subtract(total, _multiply(hoist(step, right_zero, before), sums))
    products = operation("dot", [load(left_words), load(right_words)], _SUM)
    if (kind := step.values[0].type) != _WIDE:
        _replace_in_epilogue(step, reduced(0, kind), operation("arith.extsi", [total], kind))
        step.map_expressions(lambda roots: rewrite(roots, _without_extension))
    else:
        scale = hoist(step, operation("arith.mulf", [left_scale, right_scale], _WIDE), before)
        scale_result(step, operation("arith.sitofp", [total], _WIDE), scale)
    step.values = (operation("arith.addi", [accumulator(0, _SUM), products], _SUM),)
    step.initial = constant(0, _SUM)
    step.outputs = tuple(replace(a, buffer=replace(a.buffer, kind="temporary", element=_SUM)) for a in step.outputs)
    return before


def _without_extension(expression: Expression) -> Expression | None:
    """Return the operand of a 32-bit value that is extended and truncated again, else None."""
    if expression.op != "arith.trunci" or expression.operands[0].op != "arith.extsi":
        return None
    (value,) = expression.operands[0].operands
    return value if value.type == expression.type else None


def scale_result(step: LoopNest, total: Expression, scale: Expression) -> None:
    """Replace the sum of a step by ``total * scale`` in the rest of its epilogue.

    An addition to the product becomes a fused multiply-add.
    """
    scaled = operation("arith.mulf", [total, scale], _WIDE)

    def with_one_rounding(expression: Expression) -> Expression | None:
        if expression.op != "arith.addf" or scaled not in expression.operands:
            return None
        first, second = expression.operands
        return operation("math.fma", [total, scale, second if first is scaled else first], _WIDE)

    _replace_in_epilogue(step, reduced(0, _WIDE), scaled)
    assert step.epilogue is not None
    step.epilogue = replace(step.epilogue, values=rewrite(step.epilogue.values, with_one_rounding))


def _replace_in_epilogue(step: LoopNest, total: Expression, other: Expression) -> None:
    """Replace ``total`` by ``other`` in the step's epilogue."""
    epilogue = step.epilogue or Epilogue(step.outputs, (total,))
    step.epilogue = replace(epilogue, values=substitute(epilogue.values, {total: other}))


def hoist(step: LoopNest, value: Expression, before: list[LoopNest], order: Sequence[int] | None = None) -> Expression:
    """Return a load of ``value``, which a step in ``before`` computes ahead of ``step``.

    The value is packed where it depends on parameters alone. It is converted, so that wider types do not use up lanes
    of the step. ``order`` lists the loops in the order in which they should walk the value's memory, outermost first.
    Without it, an element that is already in memory is read in place.
    """
    body = contents((value,))
    if not body.loads or (value.op == "load" and order is None) or body.scalars:
        return value
    varying = frozenset[int]().union(*(access.loops for access in body.loads))
    assert order is None or all(loop in order or step.sizes[loop] == 1 for loop in varying), "a loop is left out"
    loops = sorted(varying) if order is None else [loop for loop in order if loop in varying]
    sizes = tuple(step.sizes[loop] for loop in loops)
    buffer = Buffer("temporary", value.type, sizes)
    (moved,) = map_loads((value,), lambda access: access.restrict(loops))
    before.append(replace(LoopNest.elementwise(sizes, Access.identity(buffer), moved), nodes=step.nodes))
    return load(Access.of_loops(buffer, loops, len(step.sizes)))


def _is_zero(value: Expression) -> bool:
    return value.op == "constant" and value.payload == 0


def _subtract(left: Expression, right: Expression) -> Expression:
    return left if _is_zero(right) else operation("arith.subi", [left, right], _SUM)


def _multiply(left: Expression, right: Expression) -> Expression:
    if left.op == "constant" and right.op == "constant":
        return constant(left.payload * right.payload, _SUM)
    if _is_zero(left) or _is_zero(right):
        return constant(0, _SUM)
    return operation("arith.muli", [left, right], _SUM)


def _sum_elements(step: LoopNest, access: Access, before: list[LoopNest], is_signed: bool = True) -> Expression:
    """Return the sum of the elements that a step reads at ``access``, over the step's reduced loops."""
    loops = sorted(access.loops)
    retained = [loop for loop in loops if not step.reduction[loop]]
    buffer = Buffer("temporary", _SUM, tuple(step.sizes[loop] for loop in retained))
    read = load(access.restrict(loops))
    term = read if read.type == _SUM else operation("arith.extsi" if is_signed else "arith.extui", [read], _SUM)
    before.append(
        LoopNest(
            sizes=tuple(step.sizes[loop] for loop in loops),
            reduction=tuple(step.reduction[loop] for loop in loops),
            outputs=(Access.of_loops(buffer, [loops.index(loop) for loop in retained], len(loops)),),
            values=(operation("arith.addi", [accumulator(0, _SUM), term], _SUM),),
            initial=constant(0, _SUM),
            nodes=step.nodes,
        )
    )
    return load(Access.of_loops(buffer, retained, len(step.sizes)))


def _sum_by_windows(step: LoopNest, access: Access, before: list[LoopNest]) -> Expression:
    """Return the same sum in two stages: over dimensions that are only summed, then over windows."""
    is_summed = [bool(i.loops) and all(step.reduction[loop] for loop in i.loops) for i in access.indices]
    inner = {loop for i, flag in zip(access.indices, is_summed, strict=True) if flag for loop in i.loops}
    retained = [d for d, flag in enumerate(is_summed) if not flag]
    windows = {loop for d in retained for loop in access.indices[d].loops}
    if not inner or inner & windows or len(access.indices) != len(access.buffer.sizes):
        return _sum_elements(step, access, before, is_signed=False)
    walked, first = sorted(inner), len(retained)
    along = {loop: AffineExpr.of_loop(first + k, first + len(walked)) for k, loop in enumerate(walked)}
    indices = [index.substitute(along, first + len(walked)) for index in access.indices]
    for k, d in enumerate(retained):
        indices[d] = AffineExpr.of_loop(k, first + len(walked))
    rows = replace(
        step,
        sizes=(*(access.buffer.sizes[d] for d in retained), *(step.sizes[loop] for loop in walked)),
        reduction=(*(False for _ in retained), *(True for _ in walked)),
    )
    sums = _sum_elements(rows, replace(access, indices=tuple(indices)), before, is_signed=False).payload
    read = Access(sums.buffer, tuple(access.indices[d] for d in retained))
    return _sum_elements(step, read, before) if any(step.reduction[loop] for loop in windows) else load(read)

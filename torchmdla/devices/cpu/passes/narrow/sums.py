"""Integer sums of products of quantised integers, with the contribution of zero points subtracted at the end.

Let ``x = (q - z) * s`` and ``w = (p - y) * t``, where ``z``, ``s``, ``y`` and ``t`` do not vary along the ``n`` terms
of a sum. Then::

    sum(x * w) = (sum(q * p) - z * sum(p) - y * (sum(q) - n * z)) * s * t

The sums of ``p`` are known ahead if ``p`` is computed from parameters. Those of ``q`` are needed only if ``y`` is not
zero.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from torchmdla.compiler.sizes import AnySize, static
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.expressions import (
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
from torchmdla.devices.cpu.ir.loop_program import Epilogue, LoopNest
from torchmdla.devices.cpu.passes.narrow.formats import SUM, WIDE, Quantisation, integer_op, is_zero
from torchmdla.devices.cpu.passes.narrow.layouts import word_access

# A sum of this many products of two differences of integers of 8 bits fits into 32 bits.
_MOST_TERMS = (2**31 - 1) // 255**2

# One factor: the access to an element, and the form of the elements. The unsigned factor comes first.
Factor = tuple[Access, Quantisation]


def has_few_terms(step: LoopNest) -> bool:
    """Return whether the sums of a step and their corrections fit into 32 bits."""
    terms = _count_terms(step)
    return isinstance(terms, int) and terms <= _MOST_TERMS


def _count_terms(step: LoopNest) -> AnySize:
    return math.prod(size for size, reduces in zip(step.sizes, step.reduction, strict=True) if reduces)


def sum_of_words(step: LoopNest, inner: int, left: Factor, right: Factor) -> list[LoopNest]:
    """Rewrite a step to sum the products in words of its factors, whose elements are along the loop ``inner``.

    Returns:
        The steps that have to run before it.
    """
    (values, left_form), (weights, right_form) = left, right
    left_zero, right_zero = left_form.zero, right_form.zero
    before: list[LoopNest] = []
    # Values that are known ahead come first: z * (sum(p) - n * y).
    total = reduced(0, SUM)
    if not is_zero(left_zero):
        terms = integer_op("arith.muli", right_zero, constant(static(_count_terms(step)), SUM))
        sums = integer_op("arith.subi", _sum_elements(step, weights, before), terms)
        total = integer_op("arith.subi", total, hoist(step, integer_op("arith.muli", left_zero, sums), before))
    if not is_zero(right_zero):
        sums = _sum_by_windows(step, values, before)
        total = integer_op("arith.subi", total, integer_op("arith.muli", hoist(step, right_zero, before), sums))
    products = operation("dot", [load(word_access(stored, inner)) for stored in (values, weights)], SUM)
    if (kind := step.values[0].type) != WIDE:
        replace_in_epilogue(step, reduced(0, kind), operation("arith.extsi", [total], kind))
        step.map_expressions(lambda roots: rewrite(roots, _without_extension))
    else:
        scale = hoist(step, operation("arith.mulf", [left_form.scale, right_form.scale], WIDE), before)
        scale_result(step, scale, operation("arith.sitofp", [total], WIDE))
    step.values = (add_to_sum(products),)
    step.initial = constant(0, SUM)
    step.outputs = tuple(replace(a, buffer=replace(a.buffer, kind="temporary", element=SUM)) for a in step.outputs)
    return before


def _without_extension(expression: Expression) -> Expression | None:
    """Return the operand of a 32-bit value that is extended and truncated again, else None."""
    if expression.op != "arith.trunci" or expression.operands[0].op != "arith.extsi":
        return None
    (value,) = expression.operands[0].operands
    return value if value.type == expression.type else None


def scale_result(step: LoopNest, scale: Expression, total: Expression | None = None) -> None:
    """Replace the sum of a step by ``total * scale`` in the rest of its epilogue; ``total`` is the sum by default.

    An addition to the product becomes a fused multiply-add.
    """
    total = total or reduced(0, WIDE)
    scaled = operation("arith.mulf", [total, scale], WIDE)

    def with_one_rounding(expression: Expression) -> Expression | None:
        if expression.op != "arith.addf" or scaled not in expression.operands:
            return None
        first, second = expression.operands
        return operation("math.fma", [total, scale, second if first is scaled else first], WIDE)

    replace_in_epilogue(step, reduced(0, WIDE), scaled)
    assert step.epilogue is not None
    step.epilogue = replace(step.epilogue, values=rewrite(step.epilogue.values, with_one_rounding))


def replace_in_epilogue(step: LoopNest, total: Expression, other: Expression) -> None:
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
    return compute_ahead(step, value, loops, before)


def compute_ahead(
    step: LoopNest,
    value: Expression,
    loops: Sequence[int],
    before: list[LoopNest],
    summed: Collection[int] = (),
    checks: Sequence[Expression] = (),
) -> Expression:
    """Return a load of ``value``, or of its sum over the loops ``summed``, which a new step in ``before`` computes.

    The new step has the loops ``loops`` of ``step``, in this order, and checks ``checks``.
    """
    retained = [loop for loop in loops if loop not in summed]
    buffer = Buffer("temporary", value.type, tuple(step.sizes[loop] for loop in retained))
    result, *checks = map_loads((value, *checks), lambda access: access.restrict(loops))
    before.append(
        LoopNest(
            sizes=tuple(step.sizes[loop] for loop in loops),
            reduction=tuple(loop in summed for loop in loops),
            outputs=(Access.of_loops(buffer, [loops.index(loop) for loop in retained], len(loops)),),
            values=(add_to_sum(result) if summed else result,),
            initial=constant(0, value.type) if summed else None,
            checks=tuple(checks),
            nodes=step.nodes,
        )
    )
    return load(Access.of_loops(buffer, retained, len(step.sizes)))


def add_to_sum(value: Expression) -> Expression:
    """Return the accumulator of a nest's only output after an addition of ``value``."""
    add = "arith.addi" if value.type == SUM else "arith.addf"
    return operation(add, [accumulator(0, value.type), value], value.type)


def _sum_elements(step: LoopNest, access: Access, before: list[LoopNest], extend: str = "arith.extsi") -> Expression:
    """Return the sum of the elements that a step reads at ``access``, over the step's reduced loops."""
    element, loops = load(access), sorted(access.loops)
    term = element if element.type == SUM else operation(extend, [element], SUM)
    return compute_ahead(step, term, loops, before, [loop for loop in loops if step.reduction[loop]])


def _sum_by_windows(step: LoopNest, access: Access, before: list[LoopNest]) -> Expression:
    """Return the same sum in two stages: over dimensions that are only summed, then over windows."""
    is_summed = [bool(i.loops) and all(step.reduction[loop] for loop in i.loops) for i in access.indices]
    inner = {loop for i, flag in zip(access.indices, is_summed, strict=True) if flag for loop in i.loops}
    retained = [d for d, flag in enumerate(is_summed) if not flag]
    windows = {loop for d in retained for loop in access.indices[d].loops}
    if not inner or inner & windows or len(access.indices) != len(access.buffer.sizes):
        return _sum_elements(step, access, before, "arith.extui")
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
    sums = _sum_elements(rows, replace(access, indices=tuple(indices)), before, "arith.extui").payload
    read = Access(sums.buffer, tuple(access.indices[d] for d in retained))
    return _sum_elements(step, read, before) if any(step.reduction[loop] for loop in windows) else load(read)

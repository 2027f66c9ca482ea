"""Hoisting of repeated work on arguments alone, such as the factor and the term of a batch norm.

As a step of its own, the work is done once for each call. If all the arguments are parameters, packing does it once for
each version of them (``precompute.py``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from torchmdla.compiler.sizes import estimate
from torchmdla.devices.cpu.ir.accesses import Access, Buffer
from torchmdla.devices.cpu.ir.expressions import Expression, contents, load, map_loads, substitute
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, is_elementwise

# A separate step pays off if its work was repeated at least this many times.
_LEAST_REPEATED = 8


def hoist_loop_invariants(steps: LoopProgram) -> None:
    """Hoist values that elementwise nests and epilogues compute from arguments alone, over fewer loops.

    Each value becomes a step before the nest.
    """
    known = _argument_values(steps)
    for step in steps.nests():
        if known.issuperset(step.writes):
            continue
        values = _values(step)
        producers = {value: _build_producer(value, step) for value in _invariant_values(values, known, step)}
        if producers:
            position = steps.steps.index(step)
            steps.steps[position:position] = producers.values()
            read = {
                value: load(Access.of_loops(producer.writes[0], _loops(value), len(step.sizes)))
                for value, producer in producers.items()
            }
            _set_values(step, substitute(values, read))


def _argument_values(steps: LoopProgram) -> set[Buffer]:
    """Return the temporaries that elementwise steps compute from arguments alone."""
    writers = Counter(buffer for step in steps.steps for buffer in step.writes)
    known: set[Buffer] = set()
    for step in steps.nests():
        if is_elementwise(step) and not step.scalars and all(_is_known(b, known) for b in step.reads):
            known.update(b for b in step.writes if b.kind == "temporary" and writers[b] == 1)
    return known


def _is_known(buffer: Buffer, known: set[Buffer]) -> bool:
    return buffer.kind in ("parameter", "input", "global") or buffer in known


def _values(step: LoopNest) -> tuple[Expression, ...]:
    """Return the values that a step computes once for each element that it stores."""
    if step.epilogue:
        return step.epilogue.values
    return step.values if is_elementwise(step) else ()


def _set_values(step: LoopNest, values: tuple[Expression, ...]) -> None:
    if step.epilogue:
        step.epilogue = replace(step.epilogue, values=values)
    else:
        step.values = values


def _invariant_values(values: Sequence[Expression], known: set[Buffer], step: LoopNest) -> list[Expression]:
    """Return the operations that depend on arguments alone, and whose result another operation uses."""
    constants: set[Expression] = set()
    ours: set[Expression] = set()
    others: list[Expression] = []
    for expression in contents(tuple(values)).expressions:
        # A table is built in the call, whatever its index is.
        operands = expression.operands if expression.op != "gather" else ()
        if expression.op == "constant" or (operands and constants.issuperset(operands)):
            constants.add(expression)
            continue
        if expression.op == "load":
            depends = _is_known(expression.payload.buffer, known)
        else:
            depends = bool(operands) and all(operand in constants or operand in ours for operand in operands)
        if depends and _is_profitable(step, _loops(expression)):
            ours.add(expression)
        else:
            others.append(expression)
    read = {operand for expression in others for operand in expression.operands} | set(values)
    return [e for e in contents(tuple(values)).expressions if e in read and e in ours and e.op != "load"]


def _is_profitable(step: LoopNest, loops: Sequence[int]) -> bool:
    """Return whether the other loops that do not reduce repeat a value that varies with ``loops`` often enough."""
    others = [n for k, n in enumerate(step.sizes) if k not in loops and not step.reduction[k]]
    return bool(loops) and estimate(math.prod(others)) >= _LEAST_REPEATED


def _loops(value: Expression) -> list[int]:
    """Return the loops that a value varies with."""
    return sorted({loop for access in contents((value,)).loads for loop in access.loops})


def _build_producer(value: Expression, step: LoopNest) -> LoopNest:
    """Return a step that computes ``value`` into a new buffer, over the loops that it varies with."""
    loops = _loops(value)
    buffer = Buffer("temporary", value.type, tuple(step.sizes[loop] for loop in loops))
    (stored,) = map_loads((value,), lambda access: access.restrict(loops))
    return LoopNest.elementwise(buffer.sizes, Access.identity(buffer), stored)

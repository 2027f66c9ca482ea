"""Alignment of the loops of two steps that walk the same buffer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from torchmdla.compiler.sizes import AnySize, estimate, quotient
from torchmdla.devices.cpu.accesses import Access
from torchmdla.devices.cpu.loop_program import LoopNest, split_loop

# A function that returns the same access again after a step's loops were split.
Getter = Callable[[LoopNest], Access]


def places(step: LoopNest, access: Access) -> dict[AnySize, int] | None:
    """Return the loop of each place value of the access, where element numbers of the buffer are in mixed radix.

    Loops that the access does not vary with have no place value. Return None if some element is touched by no iteration
    of these loops, or by several.
    """
    flat = access.flat(len(step.sizes))
    loops = [(factor, loop) for loop, factor in enumerate(flat.factors) if factor and step.sizes[loop] != 1]
    expected: AnySize = 1
    for factor, loop in sorted(loops, key=lambda pair: estimate(pair[0])):
        if factor != expected:
            return None
        expected *= step.sizes[loop]
    return dict(loops) if not flat.constant and expected == access.buffer.count else None


def align(first: LoopNest, of_first: Getter, second: LoopNest, of_second: Getter) -> list[tuple[int, int]] | None:
    """Return pairs of loops, outermost first, that walk the accessed buffer alike.

    Loops are split where necessary.

    Returns:
        None if the accesses do not each touch the whole buffer once (over the loops that they vary with). None also if
            their loops cannot be split to agree, or if a body uses the index of a loop that needs a split.
    """
    sides = [(first, of_first), (second, of_second)]
    loops_by_value = [places(step, get(step)) for step, get in sides]
    if loops_by_value[0] is None or loops_by_value[1] is None:
        return None
    values = sorted(loops_by_value[0].keys() | loops_by_value[1].keys(), key=estimate)
    if any(quotient(outer, inner) is None for inner, outer in pairwise(values)):
        return None
    splits = [
        _splits(step, known, values)
        for (step, _), known in zip(sides, loops_by_value, strict=True)
        if known is not None
    ]
    for (step, _), wanted in zip(sides, splits, strict=True):
        if step.indexed_loops & wanted.keys():
            return None
    for (step, _), wanted in zip(sides, splits, strict=True):
        for loop in sorted(wanted, reverse=True):
            split_loop(step, loop, wanted[loop])
    aligned = [places(step, get(step)) for step, get in sides]
    assert aligned[0] is not None and aligned[1] is not None and aligned[0].keys() == aligned[1].keys()
    return [(aligned[0][value], aligned[1][value]) for value in reversed(values)]


def _splits(step: LoopNest, known: dict[AnySize, int], values: list[AnySize]) -> dict[int, list[AnySize]]:
    """Return the sizes that each loop has to be split into, outermost first."""
    wanted = {}
    for start, loop in known.items():
        end = start * step.sizes[loop]
        cuts = [value for value in values if estimate(start) <= estimate(value) < estimate(end)] + [end]
        if len(cuts) > 2:
            wanted[loop] = [outer // inner for inner, outer in reversed(list(pairwise(cuts)))]
    return wanted

"""Long reductions to a few numbers, as a loss ends with: partial results that threads make side by side, then one step
that combines them.

How many parts there are depends on the sizes alone, so results are the same for any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from torchmdla.compiler.sizes import AnySize, estimate, quotient
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.expressions import accessing, accumulator, load, reindexed
from torchmdla.devices.cpu.loop_program import Epilogue, LoopNest, LoopProgram, split_loop
from torchmdla.devices.cpu.patterns import Captured, Rule
from torchmdla.devices.cpu.schedule import NEUTRAL, combines_in_any_order

# A reduction of fewer elements is over before a second thread has begun.
_LEAST_ELEMENTS = 1 << 18

# More results than this are shared by threads as they are.
_MOST_RESULTS = 16

# Enough parts for threads to balance, few enough to combine in no time.
_FEWEST_PARTS, _MOST_PARTS = 16, 128

# Whatever the partial results start from, each is combined with it once more: these do not mind.
_IDEMPOTENT = frozenset(f"arith.{name}" for name in ("maximumf", "minimumf", "maxsi", "minsi", "andi", "ori"))


@dataclass(frozen=True)
class _Division:
    """A nest, and the number of parts of each loop that is split."""

    steps: LoopProgram
    step: LoopNest
    parts: dict[int, int]


def _division(steps: LoopProgram, step: LoopNest, _: Captured) -> _Division | None:
    parts = {} if step.initial is None or step.tables else _parts(step)
    return _Division(steps, step, parts) if parts else None


def _parts(step: LoopNest) -> dict[int, int]:
    """Return the number of parts of each loop that is split; empty if it does not pay."""
    results = math.prod(size for size, reduced in zip(step.sizes, step.reduction, strict=True) if not reduced)
    if not any(step.reduction) or estimate(results) > _MOST_RESULTS:
        return {}
    if estimate(math.prod(step.sizes)) < _LEAST_ELEMENTS:
        return {}
    parts: dict[int, int] = {}
    made = 1
    for loop in _outermost_first(step):
        if made < _FEWEST_PARTS and (count := _cut(step.sizes[loop], _MOST_PARTS // made)) > 1:
            parts[loop] = count
            made *= count
    return parts


def _may_start_twice(step: LoopNest) -> bool:
    """Return whether partial results, each from the nest's start on, may be combined from it on."""
    assert step.initial is not None
    # A sum may start from either zero.
    return all(e.op in _IDEMPOTENT or step.initial.payload == float(NEUTRAL.get(e.op, "nan")) for e in step.values)


def _outermost_first(step: LoopNest) -> list[int]:
    """The loops that can be cut, by the distance in the memory of the largest input."""
    loops = [loop for loop, reduced in enumerate(step.reduction) if reduced]
    flats = [access.flat(len(step.sizes)).factors for access in step.inputs]
    return sorted(loops, key=lambda loop: -max((estimate(factors[loop]) for factors in flats), default=0))


def _cut(size: AnySize, most: int) -> int:
    """The parts of one loop: the largest number up to ``most`` that divides it."""
    return next(count for count in range(min(estimate(size), most), 0, -1) if quotient(size, count) is not None)


def _split(case: _Division) -> None:
    """Replace a step by the one that makes the partial results and the one that combines them."""
    step, parts = case.step, case.parts
    cut, kept = sorted(parts), [loop for loop, reduced in enumerate(step.reduction) if not reduced]
    sizes = (*(parts[loop] for loop in cut), *(step.sizes[loop] for loop in kept))
    # In one dimension, so that both are not run tile by tile along the loops that are kept.
    buffers = [Buffer("temporary", output.buffer.element, (math.prod(sizes),)) for output in step.outputs]
    making, combining = _making(step, parts, buffers, kept), _combining(step, cut, kept, sizes, buffers)
    case.steps.replace_step(step, [making, combining])


def _making(step: LoopNest, parts: dict[int, int], buffers: Sequence[Buffer], kept: Sequence[int]) -> LoopNest:
    made = replace(step, epilogue=None)
    for loop in sorted(parts, reverse=True):
        split_loop(made, loop, (parts[loop], made.sizes[loop] // parts[loop]))
    # A loop that is cut has become two, of which the first makes the parts.
    places = [loop + sum(other < loop for other in parts) for loop in [*sorted(parts), *kept]]
    made.reduction = tuple(reduced and loop not in places for loop, reduced in enumerate(made.reduction))
    made.outputs = tuple(Access(buffer, _across(places, made.sizes)) for buffer in buffers)
    return made


def _combining(
    step: LoopNest, cut: Sequence[int], kept: Sequence[int], sizes: tuple[AnySize, ...], buffers: Sequence[Buffer]
) -> LoopNest:
    """Its loops, of ``sizes``, are the parts of ``cut``, then ``kept``."""
    parts = [load(Access(buffer, _across(range(len(sizes)), sizes))) for buffer in buffers]
    combined = LoopNest(
        sizes=sizes,
        reduction=(True,) * len(cut) + (False,) * len(kept),
        outputs=step.outputs,
        values=tuple(
            value.with_operands((part, accumulator(k, part.type)))
            for k, (value, part) in enumerate(zip(step.values, parts, strict=True))
        ),
        initial=step.initial,
        epilogue=step.epilogue,
        nodes=step.nodes,
    )
    _keep_loops(combined, cut, kept)
    return combined


def _keep_loops(step: LoopNest, cut: Sequence[int], kept: Sequence[int]) -> None:
    """Lets outputs and epilogue, which are over other loops, know the step's."""

    def over(access: Access) -> Access:
        factors = [(0,) * len(cut) + tuple(index.factors[loop] for loop in kept) for index in access.indices]
        indices = [replace(index, factors=own) for index, own in zip(access.indices, factors, strict=True)]
        return replace(access, indices=tuple(indices))

    step.outputs = tuple(map(over, step.outputs))
    if step.epilogue:
        values = reindexed(accessing(step.epilogue.values, over), lambda loop: len(cut) + kept.index(loop))
        step.epilogue = Epilogue(tuple(map(over, step.epilogue.outputs)), values)


def _across(loops: Sequence[int], sizes: Sequence[AnySize]) -> tuple[AffineExpr]:
    """The place in memory that ``loops``, among those of ``sizes``, walk, the last of them element by element."""
    distance: AnySize = 1
    factors: list[AnySize] = [0] * len(sizes)
    for loop in reversed(loops):
        factors[loop] = distance
        distance *= sizes[loop]
    return (AffineExpr(tuple(factors)),)


SPLIT_REDUCTIONS = Rule(
    None,
    lambda steps, _: partial(_division, steps),
    _split,
    {
        "results may be combined in any order": lambda case: combines_in_any_order(case.step.kernel),
        "a second start changes no result": lambda case: _may_start_twice(case.step),
    },
)

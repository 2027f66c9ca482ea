"""Split of long reductions to a few numbers, such as the end of a loss, and of products that few threads could share.

Threads compute partial results in parallel, and one step combines them. The number of parts depends on the sizes, and
for products on the number of threads of the target. So results do not depend on the threads of a call.

A product has few blocks of results where a row attends to a long cache: one for each head, or few for each. Then the
sums over the cache are split (T. Dao et al., Flash-Decoding for long-context inference, 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from torchmdla.compiler.sizes import AnySize, at, estimate, quotient
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES
from torchmdla.devices.cpu.ir.expressions import accumulator, load, map_loads, reindex
from torchmdla.devices.cpu.ir.loop_program import Epilogue, LoopNest, LoopProgram, is_contraction, split_loop
from torchmdla.devices.cpu.ir.patterns import Captured, Rule
from torchmdla.devices.cpu.schedule import (
    BYTE_COST,
    NEUTRAL,
    choose_schedule,
    estimate_cycles,
    is_reorderable,
    ranges,
)
from torchmdla.devices.cpu.schedule.partition import join_cycles, largest_share
from torchmdla.devices.cpu.target.machine import Machine

# A reduction of fewer elements ends before a second thread has begun.
_LEAST_ELEMENTS = 1 << 18

# Threads share the work on more results than this without a split.
_MOST_RESULTS = 16

# The bytes of an element that partial results are stored in without loss.
_WORD = 4

# Enough parts for threads to balance, but few enough to combine in negligible time.
_FEWEST_PARTS, _MOST_PARTS = 16, 128

# The most parts of a product's sums for each thread, and the part of its time that a split has to save at least.
_PARTS_OF_THREAD, _LEAST_GAIN = 2, 0.1

# Operations for which it does not matter that each partial result is combined with the start value again.
_IDEMPOTENT = frozenset(
    f"arith.{name}" for name in ("maximumf", "maxnumf", "minimumf", "maxsi", "minsi", "andi", "ori")
)


@dataclass(frozen=True)
class _SplitReduction:
    """Nest, and the number of parts of each loop that is split."""

    steps: LoopProgram
    step: LoopNest
    parts: dict[int, int]


def _match_reduction(steps: LoopProgram, machine: Machine, step: LoopNest, _: Captured) -> _SplitReduction | None:
    if step.initial is None or step.tables:
        return None
    parts = _parts(step) or _parts_for_threads(step, machine, tuple(steps.typical))
    return _SplitReduction(steps, step, parts) if parts else None


def _parts(step: LoopNest) -> dict[int, int]:
    """Return the number of parts of each loop that is split; empty if a split does not pay off."""
    results = math.prod(size for size, reduced in zip(step.sizes, step.reduction, strict=True) if not reduced)
    if not any(step.reduction) or estimate(results) > _MOST_RESULTS:
        return {}
    if estimate(math.prod(step.sizes)) < _LEAST_ELEMENTS:
        return {}
    parts: dict[int, int] = {}
    total = 1
    for loop in _outermost_first(step):
        if total < _FEWEST_PARTS and (count := _count_parts(step.sizes[loop], _MOST_PARTS // total)) > 1:
            parts[loop] = count
            total *= count
    return parts


def _parts_for_threads(step: LoopNest, machine: Machine, typical: tuple[int, ...]) -> dict[int, int]:
    """Return the number of parts of a product's outermost loop that reduces; empty if threads share it well enough.

    The parts are those for which the busiest thread takes the least time, with the time to combine them.
    """
    threads, results = machine.threads, step.written_accesses
    if threads == 1 or not is_contraction(step) or any(ELEMENT_BYTES[a.buffer.element] < _WORD for a in step.outputs):
        return {}
    loop, cycles = _outermost_first(step)[0], estimate_cycles(step.kernel, machine, typical)
    schedule = choose_schedule(step.kernel, machine, typical)
    if not schedule.grain:
        return {}
    blocks = [(at(size, typical), block) for size, block in ranges(step.kernel, schedule)]
    stored = sum(estimate(a.buffer.bytes) for a in results) * BYTE_COST / threads

    def time(parts: int) -> float:
        if parts == 1:
            return cycles * largest_share(blocks, schedule.grain, threads)
        return cycles * largest_share([(parts, 1), *blocks], 1, threads) + stored * 2 * parts + join_cycles(threads)

    sizes = range(1, _PARTS_OF_THREAD * threads + 1)
    best = min((n for n in sizes if quotient(step.sizes[loop], n) is not None), key=time)
    return {loop: best} if time(best) < (1 - _LEAST_GAIN) * time(1) else {}


def _has_idempotent_start(step: LoopNest) -> bool:
    """Return whether partial results that each begin with the start value may be combined from it on."""
    assert step.initial is not None
    # A sum may start from either zero.
    return all(e.op in _IDEMPOTENT or step.initial.payload == float(NEUTRAL.get(e.op, "nan")) for e in step.values)


def _outermost_first(step: LoopNest) -> list[int]:
    loops = [loop for loop, reduced in enumerate(step.reduction) if reduced]
    flats = [access.linearise(len(step.sizes)).factors for access in step.inputs]
    return sorted(loops, key=lambda loop: -max((estimate(factors[loop]) for factors in flats), default=0))


def _count_parts(size: AnySize, most: int) -> int:
    """Return the number of parts of one loop: the largest divisor up to ``most``."""
    return next(count for count in range(min(estimate(size), most), 0, -1) if quotient(size, count) is not None)


def _split(case: _SplitReduction) -> None:
    """Replace a step by the step of the partial results and the step that combines them."""
    step, parts = case.step, case.parts
    cut, retained = sorted(parts), [loop for loop, reduced in enumerate(step.reduction) if not reduced]
    sizes = (*(parts[loop] for loop in cut), *(step.sizes[loop] for loop in retained))
    # They have one dimension, so that both steps are not run tile by tile along the retained loops.
    buffers = [Buffer("temporary", output.buffer.element, (math.prod(sizes),)) for output in step.outputs]
    partial_results = _partial_step(step, parts, buffers, retained)
    case.steps.replace_step(step, [partial_results, _combining_step(step, cut, retained, sizes, buffers)])


def _partial_step(
    step: LoopNest, parts: dict[int, int], buffers: Sequence[Buffer], retained: Sequence[int]
) -> LoopNest:
    nest = replace(step, epilogue=None)
    for loop in sorted(parts, reverse=True):
        split_loop(nest, loop, (parts[loop], nest.sizes[loop] // parts[loop]))
    # A split loop has become two loops, of which the first one walks the parts.
    places = [loop + sum(other < loop for other in parts) for loop in [*sorted(parts), *retained]]
    nest.reduction = tuple(reduced and loop not in places for loop, reduced in enumerate(nest.reduction))
    nest.outputs = tuple(Access(buffer, _linearise(places, nest.sizes)) for buffer in buffers)
    return nest


def _combining_step(
    step: LoopNest, cut: Sequence[int], retained: Sequence[int], sizes: tuple[AnySize, ...], buffers: Sequence[Buffer]
) -> LoopNest:
    """Return the step that combines the parts; its loops, of ``sizes``, are the parts of ``cut``, then ``retained``."""
    parts = [load(Access(buffer, _linearise(range(len(sizes)), sizes))) for buffer in buffers]
    combined = LoopNest(
        sizes=sizes,
        reduction=(True,) * len(cut) + (False,) * len(retained),
        outputs=step.outputs,
        values=tuple(
            value.with_operands((part, accumulator(k, part.type)))
            for k, (value, part) in enumerate(zip(step.values, parts, strict=True))
        ),
        initial=step.initial,
        epilogue=step.epilogue,
        nodes=step.nodes,
    )
    _keep_loops(combined, cut, retained)
    return combined


def _keep_loops(step: LoopNest, cut: Sequence[int], retained: Sequence[int]) -> None:
    """Rewrite outputs and epilogue, which are over the original loops, to the loops of ``step``."""

    def over(access: Access) -> Access:
        factors = [(0,) * len(cut) + tuple(index.factors[loop] for loop in retained) for index in access.indices]
        indices = [replace(index, factors=row) for index, row in zip(access.indices, factors, strict=True)]
        return replace(access, indices=tuple(indices))

    step.outputs = tuple(map(over, step.outputs))
    if step.epilogue:
        values = reindex(map_loads(step.epilogue.values, over), lambda loop: len(cut) + retained.index(loop))
        step.epilogue = Epilogue(tuple(map(over, step.epilogue.outputs)), values)


def _linearise(loops: Sequence[int], sizes: Sequence[AnySize]) -> tuple[AffineExpr]:
    """Return a dense index over ``loops``, among those of ``sizes``; the last loop has stride 1."""
    distance: AnySize = 1
    factors: list[AnySize] = [0] * len(sizes)
    for loop in reversed(loops):
        factors[loop] = distance
        distance *= sizes[loop]
    return (AffineExpr(tuple(factors)),)


SPLIT_REDUCTIONS = Rule(
    None,
    lambda steps, machine: partial(_match_reduction, steps, machine),
    _split,
    {
        "results may be combined in any order": lambda case: is_reorderable(case.step.kernel),
        "a second start changes no result": lambda case: _has_idempotent_start(case.step),
    },
)

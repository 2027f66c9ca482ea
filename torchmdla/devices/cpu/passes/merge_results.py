"""Merging of elementwise nests that compute results from the same buffers, as the step of an optimiser does.

Each buffer is read once, and a result that the other nest reads stays in registers.

::

    nest d0:64 { m[d0] = … momentum[d0], gradient[d0] }          nest d0:64 {
    nest d0:64 { w[d0] = weight[d0] - rate * m[d0] }        →      m[d0] = v0 = … momentum[d0], gradient[d0]
                                                                   w[d0] = weight[d0] - rate * v0
                                                                 }
"""

from __future__ import annotations

from torchmdla.devices.cpu.ir.expressions import load, substitute
from torchmdla.devices.cpu.ir.loop_program import (
    MAX_BODY_OPERATIONS,
    LoopNest,
    LoopProgram,
    Step,
    Users,
    is_bijective,
    is_elementwise,
    may_move,
)

# Each result is a stream in memory. Processors fetch a limited number of streams ahead.
_MOST_RESULTS = 8


def merge_results(steps: LoopProgram) -> None:
    """Merge each nest that computes results with earlier ones that read the same buffers, in place."""
    users = Users(steps.steps)
    for step in steps.nests():
        if not _may_merge(step):
            continue
        for earlier in _related(users, step):
            if _fits(earlier, step) and _may_delay(steps, earlier, step):
                _merge(earlier, step)
                steps.steps.remove(earlier)
                users.replace_step(earlier, step)


def _may_merge(step: Step) -> bool:
    """Return whether a step only computes results, from buffers that it walks as the first result."""
    if not isinstance(step, LoopNest) or not is_elementwise(step) or not is_bijective(step, step.outputs[0]):
        return False
    indices = step.outputs[0].indices
    return all(access.buffer.kind == "result" and access.indices == indices for access in step.outputs) and all(
        access.indices == indices or not access.loops for access in step.inputs
    )


def _related(users: Users, step: LoopNest) -> list[LoopNest]:
    """Return the earlier nests that touch a buffer which ``step`` reads element by element."""
    touching = [
        user
        for access in step.inputs
        if access.loops
        for user in users.of(access.buffer)[: users.of(access.buffer).index(step)]
    ]
    return [user for user in dict.fromkeys(touching) if isinstance(user, LoopNest) and _may_merge(user)]


def _fits(earlier: LoopNest, step: LoopNest) -> bool:
    operations = len(earlier.body.expressions) + len(step.body.expressions)
    return (
        earlier.sizes == step.sizes
        and earlier.outputs[0].indices == step.outputs[0].indices
        and len(earlier.outputs) + len(step.outputs) <= _MOST_RESULTS
        and operations <= MAX_BODY_OPERATIONS
    )


def _may_delay(steps: LoopProgram, earlier: LoopNest, step: LoopNest) -> bool:
    """Return whether no step between two nests uses a result of ``earlier`` or writes what it reads."""
    between = steps.steps[steps.steps.index(earlier) + 1 : steps.steps.index(step)]
    used = {buffer for other in between for buffer in (*other.reads, *other.writes)}
    return may_move(steps, earlier, step) and used.isdisjoint(earlier.writes)


def _merge(earlier: LoopNest, step: LoopNest) -> None:
    """Compute the results of ``earlier`` in ``step``, too."""
    computed = {load(access): value for access, value in zip(earlier.outputs, earlier.values, strict=True)}
    step.values = (*earlier.values, *substitute(step.values, computed))
    step.outputs = (*earlier.outputs, *step.outputs)
    step.nodes |= earlier.nodes

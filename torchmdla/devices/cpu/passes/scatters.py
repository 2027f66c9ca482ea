"""Fusion of scatters with the values that they add.

The nest that computes the updates of a scatter becomes part of it. Messages of a graph network are then not stored::

    nest d0:99 d1:8 { … t[d0, d1] = gather x, i0, d1 * i1 }         scatter d0:99 d1:8 { … place i2 * 8
    scatter d0:99 d1:8 { … y[d1] = o0 + t[d0, d1] }            →      y[d1] = o0 + gather x, i0, d1 * i1 }

Afterwards, memory that a scatter reads has a fixed layout, since other passes change only the accesses of nests.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torchmdla.devices.cpu.ir.accesses import Access, Buffer
from torchmdla.devices.cpu.ir.expressions import load, map_loads, reindex, substitute
from torchmdla.devices.cpu.ir.loop_program import (
    MAX_BODY_OPERATIONS,
    LoopNest,
    LoopProgram,
    Scatter,
    is_permutation,
    may_move,
)
from torchmdla.devices.cpu.passes.rematerialise import operand_access


def fuse_scatters(steps: LoopProgram) -> None:
    """Move the computation of updates into scatters, in place."""
    for scatter in [step for step in steps.steps if isinstance(step, Scatter)]:
        waiting = list(scatter.nest.inputs)
        while waiting:
            read = waiting.pop()
            producer = _find_producer(steps, scatter, read)
            if producer is not None:
                waiting += _inline(scatter.nest, producer, read)
                steps.steps.remove(producer)
        for access in scatter.nest.inputs:
            if access.buffer.is_free:
                _fix_layout(steps, access.buffer)


def _find_producer(steps: LoopProgram, scatter: Scatter, read: Access) -> LoopNest | None:
    """Return the nest that computes each element of ``read`` once, for this scatter only."""
    buffer, nest = read.buffer, scatter.nest
    if not buffer.is_free or read.word or not nest.is_indexed_by_all_loops(read):
        return None
    producer, *readers = steps.users(buffer)
    if not isinstance(producer, LoopNest) or readers != [scatter] or nest.reads.count(buffer) > 1:
        return None
    accumulates = any(producer.reduction) or producer.initial is not None or producer.epilogue or producer.carried
    is_short = len(producer.body.expressions) + len(nest.body.expressions) <= MAX_BODY_OPERATIONS
    if accumulates or producer.checks or not is_short or not is_permutation(producer, producer.outputs[0]):
        return None
    if not set(producer.reads).isdisjoint(scatter.writes):
        return None  # Each iteration of the scatter would read what others have changed.
    # The producer's values may use the indices of its loops, which must be loops of the scatter.
    has_same_loops = all(index.is_loop() or not index.loops for index in read.indices)
    has_one_output = len(producer.outputs) == 1
    return producer if has_one_output and has_same_loops and may_move(steps, producer, scatter) else None


def _inline(nest: LoopNest, producer: LoopNest, read: Access) -> list[Access]:
    """Compute the value of ``producer`` where ``nest`` reads it. Return the accesses of that computation."""
    places = zip(producer.outputs[0].indices, read.indices, strict=True)
    loops = {index.loops[0]: place.loops[0] for index, place in places if index.loops and place.loops}
    values = reindex(producer.values, lambda loop: loops[loop])
    (value,) = map_loads(values, lambda access: operand_access(access, producer, read))
    nest.map_body(lambda roots: substitute(roots, {load(read): value}))
    nest.nodes |= producer.nodes
    return [operand_access(access, producer, read) for access in producer.inputs]


def _fix_layout(steps: LoopProgram, buffer: Buffer) -> None:
    """Give a buffer one dimension, its memory."""
    for step in steps.users(buffer):
        nest = step.nest if isinstance(step, Scatter) else step
        if isinstance(nest, LoopNest):
            nest.map_accesses(partial(_flatten, buffer=buffer, loops=len(nest.sizes)))
    buffer.sizes, buffer.fixed = (buffer.count,), True


def _flatten(access: Access, buffer: Buffer, loops: int) -> Access:
    return replace(access, indices=(access.linearise(loops),)) if access.buffer is buffer else access

"""Fewer buffers: equal factors share one, outputs overwrite inputs that are not used afterwards, and inputs are freed.

Several layers with fewer products may each compute the sums of one image, or of one left factor. These sums are
computed once.

::

    nest d0:64 d1:32 { x[0..6, d0, d1] = … input0 }        nest d0:64 d1:32 { x[0..6, d0, d1] = … input0 }
    nest d0:7 d1:64 d2:48 d3:32+ { … x * query }      →    nest d0:7 d1:64 d2:48 d3:32+ { … x * query }
    nest d0:64 d1:32 { y[0..6, d0, d1] = … input0 }        nest d0:7 d1:64 d2:48 d3:32+ { … x * key }
    nest d0:7 d1:64 d2:48 d3:32+ { … y * key }
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from torchmdla.compiler.sizes import estimate
from torchmdla.devices.cpu.ir.accesses import Access, Buffer
from torchmdla.devices.cpu.ir.loop_program import (
    AssertStep,
    KernelStep,
    LoopNest,
    LoopProgram,
    OutlinedRegion,
    RepeatLoop,
    Scatter,
    Step,
    TileLoop,
    Users,
    first_and_last_uses,
    flatten,
    is_bijective,
    is_contraction,
    is_elementwise,
)
from torchmdla.devices.cpu.target.machine import Machine

# Equal factors of products.


def merge_equal(steps: LoopProgram) -> None:
    """Replace buffers with equal contents by one buffer in the products that read them, in place."""
    users, position = Users(steps.steps), {step: k for k, step in enumerate(steps.steps)}
    known: dict[Hashable, tuple[Buffer, int]] = {}
    removed: set[Step] = set()
    for buffer in steps.buffers():
        producers, readers = _producers_and_readers(users.of(buffer), buffer)
        if not producers or not readers:
            continue
        key = (buffer.element, buffer.sizes, tuple(map(_computation, producers)))
        first, since = known.setdefault(key, (buffer, position[producers[0]]))
        read = {other for producer in producers for other in producer.reads}
        is_stable = all(position[step] < since for other in read for step in users.of(other) if other in step.writes)
        if first is not buffer and is_stable:
            for reader in readers:
                reader.map_accesses(partial(Access.replace_buffer, old=buffer, new=first))
            removed.update(producers)
    steps.steps = [step for step in steps.steps if step not in removed]


def _producers_and_readers(
    users: Sequence[Step], buffer: Buffer
) -> tuple[Sequence[LoopNest], Sequence[LoopNest | TileLoop]]:
    """Return the steps that write only a temporary, and the later steps that read it, if these are all products."""
    producers = [step for step in users if isinstance(step, LoopNest) and _only_writes(step, buffer)]
    readers = [step for step in users if isinstance(step, LoopNest | TileLoop) and _multiplies(step, buffer)]
    return (producers, readers) if buffer.is_free and [*producers, *readers] == list(users) else ((), ())


def _only_writes(step: LoopNest, buffer: Buffer) -> bool:
    return set(step.writes) == {buffer} and buffer not in step.reads and not (step.checks or step.tables)


def _multiplies(step: LoopNest | TileLoop, buffer: Buffer) -> bool:
    nests = step.members if isinstance(step, TileLoop) else (step,)
    return buffer not in step.writes and all(is_contraction(nest) for nest in nests if buffer in nest.reads)


def _computation(step: LoopNest) -> Hashable:
    """Return the computation of a step, independent of the buffer that it writes."""
    places = tuple(access.indices for access in step.written_accesses)
    return step.sizes, step.reduction, step.values, step.initial, step.epilogue and step.epilogue.values, places


# Values that would wait in memory.


def delay_steps(steps: LoopProgram, machine: Machine) -> None:
    """Move each step whose result would wait in memory to before its first use, or the last use of an input.

    Fewer values live at once, and no input lives longer. Backward passes that are differentiated have such values.
    """
    last_user = {buffer: step for step in steps.steps for buffer in (*step.reads, *step.writes)}
    order = list(steps.steps)
    for step in reversed(steps.steps):
        if not (isinstance(step, LoopNest) and all(buffer.is_free for buffer in step.writes)) or _may_fail(step):
            continue
        if any(last_user[buffer] is step for buffer in step.reads if estimate(buffer.bytes) >= _LEAST_RELEASED):
            continue
        ends = {last_user[buffer] for buffer in step.reads}
        start = order.index(step)
        end = next(k for k in range(start + 1, len(order)) if order[k] in ends or _conflict(step, order[k]))
        if machine.comes_from_memory(sum(estimate(b.bytes) for other in order[start + 1 : end] for b in other.writes)):
            order.insert(end - 1, order.pop(start))
    steps.steps = order


def _conflict(step: Step, later: Step) -> bool:
    """Return whether a later step uses what a step writes, or writes what it reads."""
    return not set(later.writes).isdisjoint([*step.reads, *step.writes]) or not set(later.reads).isdisjoint(step.writes)


# Outputs in the buffers of inputs, so that fewer bytes stay in the caches.


def share_buffers(steps: LoopProgram) -> None:
    """Let elementwise steps write over inputs that are not used afterwards, so that fewer bytes stay in the caches."""
    first, last = first_and_last_uses(steps.steps)
    merged: dict[Buffer, Buffer] = {}

    def resolve(buffer: Buffer) -> Buffer:
        while buffer in merged:
            buffer = merged[buffer]
        return buffer

    for position, step in enumerate(steps.steps):
        if isinstance(step, LoopNest | TileLoop | Scatter):
            step.map_accesses(lambda access: replace(access, buffer=resolve(access.buffer)))
        if isinstance(step, RepeatLoop):
            step.rename(resolve)
        if isinstance(step, LoopNest):
            pair = _find_reuse(step, position, first, last)
            if pair is not None:
                old, new = pair
                merged[new] = old
                last[old] = last[new]
                step.map_accesses(lambda access: replace(access, buffer=resolve(access.buffer)))


def _find_reuse(
    step: LoopNest, position: int, first: dict[Buffer, int], last: dict[Buffer, int]
) -> tuple[Buffer, Buffer] | None:
    """Return an input whose lifetime ends with a step and an output whose lifetime begins with it, or None.

    Both are accessed at the same indices.
    """
    if any(step.reduction) or len(step.outputs) != 1:
        return None
    output = step.outputs[0]
    new = output.buffer
    if not new.is_free or first[new] != position or not is_bijective(step, output):
        return None
    for old in _overwritable_inputs(step, output):
        if old.is_free and last[old] == position:
            return old, new
    return None


def _overwritable_inputs(step: LoopNest, output: Access) -> Iterator[Buffer]:
    """Yield the buffers of which each iteration reads only the element that ``output`` would overwrite there."""
    new = output.buffer
    for candidate in step.inputs:
        old = candidate.buffer
        same = candidate.indices == output.indices and (old.sizes, old.element) == (new.sizes, new.element)
        alone = sum(old is a.buffer for a in step.inputs) == 1 and all(old is not t.buffer for t in step.tables)
        if same and alone:
            yield old


# Results in the memory of arguments, if the caller asks for it.


def find_in_place_results(steps: LoopProgram) -> tuple[tuple[int, int], ...]:
    """Return the positions of each result and input in whose memory the result may be computed.

    All pairs without common buffers can be used in one call.
    """
    if any(_may_fail(step) for step in flatten(steps.steps)):
        return ()  # The caller would compute the call again, from inputs that are partly overwritten.
    _, last = first_and_last_uses(steps.steps)
    writers = Counter(buffer for step in steps.steps for buffer in dict.fromkeys(step.writes))
    return tuple(
        (output.buffer.position, old.position)
        for position, step in enumerate(steps.steps)
        if isinstance(step, LoopNest) and is_elementwise(step)
        for output in step.outputs
        if output.buffer.kind == "result" and writers[output.buffer] == 1 and is_bijective(step, output)
        for old in _overwritable_inputs(step, output)
        if old.kind == "input" and last[old] == position
    )


# Smaller inputs stay to the end of a call: memory allocators do not return such blocks.
_LEAST_RELEASED = 64 << 10


def find_releases(steps: LoopProgram) -> tuple[tuple[int, int], ...]:
    """Return the positions of large inputs that are not read to the end, each with the first kernel after its last use.

    If a step may fail, inputs stay until it has run: the caller would compute the call again.
    """
    kernel, last, least = 0, dict[int, int](), 0
    for step in steps.steps:
        parts = list(flatten([step]))
        kernel += sum(isinstance(part, KernelStep) for part in parts)
        least = kernel if any(map(_may_fail, parts)) else least
        inputs = [buffer for buffer in step.reads if buffer.kind == "input"]
        last |= {b.position: kernel for b in inputs if isinstance(b.bytes, int) and b.bytes >= _LEAST_RELEASED}
    return tuple((position, first) for position, end in last.items() if (first := max(end, least)) < kernel)


def _may_fail(step: Step) -> bool:
    nests = step.members if isinstance(step, TileLoop) else (step,) if isinstance(step, LoopNest) else ()
    return isinstance(step, AssertStep | OutlinedRegion | Scatter) or any(nest.tables or nest.checks for nest in nests)

"""Precomputation of work on parameters: its steps move from the entry into packs, which run once per version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torchmdla.compiler.sizes import AnySize, Size, static
from torchmdla.devices.cpu.ir.accesses import Access, Buffer
from torchmdla.devices.cpu.ir.expressions import map_gathers
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, Packing, Step, TileLoop, Users

# A pack with repeated values may be this many times as large as its sources: a bias that fills an image is not packed.
_MOST_GROWTH = 4


def precompute_parameters(steps: LoopProgram) -> None:
    """Replace temporaries that depend on parameters alone by packed buffers, each with the steps that compute it."""
    producers = parameter_values(steps)
    packed: dict[Buffer, Buffer] = {}
    users = Users(steps.steps)
    places = {step: place for place, step in enumerate(steps.steps)}
    for buffer in producers:
        recipe = _collect_producers(buffer, producers)
        if _is_read(users, buffer, producers) and _is_profitable(buffer, recipe, steps.is_varying):
            packed[buffer] = Buffer("packed", buffer.element, buffer.sizes, position=len(steps.packings))
            ordered = sorted(recipe, key=places.__getitem__)
            steps.packings.append(Packing(packed[buffer], [_write_to(s, buffer, packed[buffer]) for s in ordered]))
    for step in steps.steps:
        if not isinstance(step, LoopNest | TileLoop) or all(b in producers for b in step.writes):
            continue
        step.map_accesses(lambda access: replace(access, buffer=packed.get(access.buffer, access.buffer)))
        if isinstance(step, LoopNest):
            step.map_body(lambda roots: map_gathers(roots, lambda t: replace(t, buffer=packed.get(t.buffer, t.buffer))))
    read = {buffer for step in steps.steps for buffer in step.reads}
    # Steps with checks are never unread, but a pack runs these now.
    moved = {step for step in steps.steps if step.writes and all(b in packed and b not in read for b in step.writes)}
    steps.steps = [step for step in steps.steps if step not in moved]
    steps.remove_unread()


# A function that returns whether an access reads a value that depends on parameters alone.
IsKnown = Callable[[Access], bool]


def parameter_predicate(steps: LoopProgram) -> IsKnown:
    """Return a predicate for accesses of parameters, and of temporaries that depend on parameters alone.

    It holds for the steps as they are now.
    """
    values = parameter_values(steps)
    return lambda access: access.buffer.kind == "parameter" or access.buffer in values


def parameter_values(steps: LoopProgram) -> dict[Buffer, list[LoopNest]]:
    """Return the temporaries that hold one value computed from parameters alone, with the steps that write it."""
    producers: dict[Buffer, list[LoopNest]] = {}
    other = overwritten_buffers(steps)
    for step in steps.steps:
        is_nest = isinstance(step, LoopNest) and not (step.scalars or step.tables or step.epilogue)
        known = is_nest and all(_is_known(b, producers, other) for b in step.reads)
        for buffer in step.writes:
            if known and isinstance(step, LoopNest) and buffer.kind == "temporary" and buffer not in other:
                producers.setdefault(buffer, []).append(step)
            else:
                other.add(buffer)
    # A buffer that was computed from a later overwritten buffer does not qualify either.
    while spoiled := [
        b for b, writers in producers.items() if b in other or any(r in other for s in writers for r in s.reads)
    ]:
        for buffer in spoiled:
            other.add(buffer)
            del producers[buffer]
    return producers


def overwritten_buffers(steps: LoopProgram) -> set[Buffer]:
    """Return the buffers that hold several values in turn, as buffers with tables do."""
    buffers: set[Buffer] = set()
    read: set[Buffer] = set()
    for step in steps.steps:
        buffers |= read.intersection(step.writes)
        read |= set(step.reads) - set(step.writes)
    return buffers


def _is_known(buffer: Buffer, producers: dict[Buffer, list[LoopNest]], other: set[Buffer]) -> bool:
    return buffer.kind in ("parameter", "global") or (buffer in producers and buffer not in other)


def _collect_producers(buffer: Buffer, producers: dict[Buffer, list[LoopNest]]) -> set[Step]:
    steps: set[Step] = set()
    waiting = [buffer]
    while waiting:
        for step in producers.get(waiting.pop(), []):
            if step not in steps:
                steps.add(step)
                waiting += [*step.reads, *step.writes]
    return steps


def _is_read(users: Users, buffer: Buffer, producers: dict[Buffer, list[LoopNest]]) -> bool:
    """Return whether only nests read a buffer, and at least one of them is not part of a recipe."""
    readers = [s for s in users.of(buffer) if buffer in s.reads]
    nests = all(isinstance(s, LoopNest | TileLoop) for s in readers)
    return nests and any(not all(b in producers for b in s.writes) for s in readers)


def _is_profitable(buffer: Buffer, recipe: set[Step], varies: Callable[[AnySize], bool]) -> bool:
    parameters = {b for s in recipe for b in s.reads if b.kind == "parameter"}
    if not parameters or any(varies(size) for s in recipe for b in [*s.reads, *s.writes] for size in b.sizes):
        return False
    read = sum(static(b.bytes) for b in parameters)
    is_small = static(buffer.bytes) <= _MOST_GROWTH * read
    return not any(map(has_dynamic_sizes, recipe)) and (is_small or not any(map(_repeats, recipe)))


def _repeats(step: Step) -> bool:
    """Return whether a step computes the same value in several iterations."""
    return not (isinstance(step, LoopNest) and any(map(step.is_indexed_by_all_loops, step.inputs)))


def has_dynamic_sizes(step: Step) -> bool:
    """Return whether the result of a step depends on sizes that vary between calls."""
    assert isinstance(step, LoopNest)
    return step.kernel.is_dynamic or any(isinstance(offset, Size) for _, offset in step.places)


def _write_to(step: Step, buffer: Buffer, packed: Buffer) -> LoopNest:
    """Return the step for a pack, with ``packed`` in the place of ``buffer``."""
    assert isinstance(step, LoopNest)
    copy = replace(step)
    copy.map_accesses(partial(Access.replace_buffer, old=buffer, new=packed))
    return copy

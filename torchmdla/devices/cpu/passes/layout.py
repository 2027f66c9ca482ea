"""Blocked layout: channels in blocks of a vector's lanes, innermost, for the images between convolutions.

Temporaries of sizes N, C, H, W become N, C/lanes, H, W, lanes wherever every step can index them so. It is decided for
everything that convolutions and poolings read and write and that elementwise steps connect, so conversions are left at
the edges, as part of the steps there. Where half of a vector takes half of the time, channels that whole ones do not
divide lie in blocks of half the lanes. Weights of these convolutions are laid out as their kernels walk them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from torchmdla.compiler.sizes import estimate, quotient
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.expressions import load
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, contracts, split_loop

# Channels are the second dimension, by PyTorch's convention.
_CHANNEL = 1


def block_channels(steps: LoopProgram, lanes: Sequence[int]) -> None:
    """Changes the layout of images to blocks of as many channels as the first of ``lanes`` says that divides them, and
    lays out weights to fit. Smaller blocks than the first are for where a convolution or a pooling has all in blocks:
    between others, plain rows are as fast."""
    blocked: dict[Buffer, Buffer] = {}
    for count in lanes:
        _detach_results(steps, count)
        candidates = _candidates(steps, count).difference(_beside(steps, blocked))
        sliding = [s for s in steps.nests() if slides(s)]
        if count != lanes[0]:
            sliding = [s for s in sliding if candidates.union(blocked).issuperset(_images(s))]
        chosen = _connected(steps, candidates, sliding)
        blocked |= {buffer: _blocked(buffer, count) for buffer in chosen}
    if not blocked:
        return
    _read_plain_where_flattened(steps, list(blocked))
    for step in steps.nests():
        _split_channels(step, blocked)
        step.map_accesses(lambda access: _in_blocks(access, blocked))
    for step in [s for s in steps.nests() if slides(s)]:
        if step.outputs[0].buffer in blocked.values():
            _lay_out_weights(steps, step)


def slides(step: LoopNest) -> bool:
    """Whether a step reduces over a window that moves with its output: a convolution or a pooling. The mean of a group
    of channels is none."""
    first = 0 if contracts(step) else _CHANNEL + 1
    return any(_is_window(step, index) for access in step.inputs for index in access.indices[first:])


def _images(step: LoopNest) -> list[Buffer]:
    """What a convolution or a pooling reads by windows, and what it makes."""
    read = [a.buffer for a in step.inputs if any(_is_window(step, index) for index in a.indices)]
    return [*read, *(a.buffer for a in step.outputs)]


def _is_window(step: LoopNest, index: AffineExpr) -> bool:
    flags = {step.reduction[loop] for loop in index.loops}
    return flags == {True, False}


def _detach_results(steps: LoopProgram, lanes: int) -> None:
    """A convolution or a pooling that computes a result of the program gets a temporary in its place, which may be
    blocked, and a copy of it into the result: the kernel stores what it has, or the next epilogue takes it."""
    for step in [s for s in steps.nests() if slides(s)]:
        result = step.outputs[0].buffer
        if result.kind != "result" or not _is_only_accessed(steps, result):
            continue
        inside = Buffer("temporary", result.element, result.sizes)
        if not _may_block(step, replace(step.outputs[0], buffer=inside), lanes):
            continue
        last = max(k for k, s in enumerate(steps.steps) if result in s.writes)
        for other in steps.nests():
            other.map_accesses(partial(Access.instead, old=result, new=inside))
        steps.steps.insert(last + 1, _copy(inside, result))


def _is_only_accessed(steps: LoopProgram, buffer: Buffer) -> bool:
    """Whether all that uses ``buffer`` are accesses of nests, which may be changed: no tables, no regions."""
    users = [s for s in steps.steps if buffer in [*s.reads, *s.writes]]
    return all(isinstance(s, LoopNest) and buffer not in [table.buffer for table in s.tables] for s in users)


# What is blocked.


def _candidates(steps: LoopProgram, lanes: int) -> set[Buffer]:
    """Temporaries whose channels every step indexes by whole blocks."""
    refused: set[Buffer] = set()
    found: set[Buffer] = set()
    for step in steps.steps:
        if not isinstance(step, LoopNest):
            refused.update([*step.reads, *step.writes])
            continue
        refused.update(table.buffer for table in step.tables)
        for access in _accesses(step):
            found.add(access.buffer)
            if not _may_block(step, access, lanes):
                refused.add(access.buffer)
    return found - refused


def _accesses(step: LoopNest) -> tuple[Access, ...]:
    return step.inputs + step.outputs + (step.epilogue.body.loads + step.epilogue.outputs if step.epilogue else ())


def _may_block(step: LoopNest, access: Access, lanes: int) -> bool:
    buffer = access.buffer
    if buffer.kind != "temporary" or buffer.fixed or len(buffer.sizes) < 3:
        return False
    loop = _channel_loop(access)
    if loop < 0 or loop in step.indexed_loops:
        return False
    index = access.indices[_CHANNEL]
    others = [f for k, f in enumerate(index.factors) if k != loop]
    blocks = (buffer.sizes[_CHANNEL], step.sizes[loop], *others, index.constant)
    return all(quotient(number, lanes) is not None for number in blocks)


def _channel_loop(access: Access) -> int:
    """The loop that counts single channels; -1 if there is none."""
    loops = [loop for loop, factor in enumerate(access.indices[_CHANNEL].factors) if factor == 1]
    return loops[0] if len(loops) == 1 else -1


def _connected(steps: LoopProgram, candidates: set[Buffer], sliding: Sequence[LoopNest]) -> list[Buffer]:
    """The candidates that some convolutions and poolings touch, and those that share channels with them in a step."""
    touched = [access.buffer for step in sliding for access in _accesses(step)]
    chosen = dict.fromkeys(buffer for buffer in touched if buffer in candidates)
    size = -1
    while size != len(chosen):
        size = len(chosen)
        chosen.update(dict.fromkeys(b for b in _beside(steps, chosen) if b in candidates))
    return list(chosen)


def _beside(steps: LoopProgram, chosen: Collection[Buffer]) -> list[Buffer]:
    """All that shares channels with some of ``chosen`` in a step, these among them."""
    found: list[Buffer] = []
    for step in steps.nests():
        accesses = [a for a in _accesses(step) if len(a.indices) > _CHANNEL]
        loops = {_channel_loop(a) for a in accesses if a.buffer in chosen}
        found += [a.buffer for a in accesses if _channel_loop(a) in loops]
    return found


def _read_plain_where_flattened(steps: LoopProgram, chosen: Sequence[Buffer]) -> None:
    """A product that sums over channels and pixels walks its weights in the plain order: it gets a plain copy."""
    for step in steps.nests():
        if slides(step):
            continue
        for access in step.inputs:
            if access.buffer in chosen and len(step.inputs) > 1 and _sums_over_pixels(step, access):
                plain = Buffer("temporary", access.buffer.element, access.buffer.sizes)
                steps.steps.insert(steps.steps.index(step), _copy(access.buffer, plain))
                step.read_instead(access, replace(access, buffer=plain))


def _sums_over_pixels(step: LoopNest, access: Access) -> bool:
    reduced = [loop for index in access.indices for loop in index.loops if step.reduction[loop]]
    return _channel_loop(access) in reduced and any(step.sizes[d] != 1 for d in reduced if d != _channel_loop(access))


def _copy(source: Buffer, destination: Buffer) -> LoopNest:
    return LoopNest.elementwise(source.sizes, Access.whole(destination), load(Access.whole(source)))


# The change of layout.


def _blocked(buffer: Buffer, lanes: int) -> Buffer:
    sizes = list(buffer.sizes)
    sizes[_CHANNEL] //= lanes
    return Buffer("temporary", buffer.element, (*sizes, lanes))


def _split_channels(step: LoopNest, blocked: dict[Buffer, Buffer]) -> None:
    """Splits the loops over channels of blocked buffers into blocks and lanes."""
    found = {_channel_loop(a): blocked[a.buffer].sizes[-1] for a in _accesses(step) if a.buffer in blocked}
    for loop in sorted(found, reverse=True):
        split_loop(step, loop, (step.sizes[loop] // found[loop], found[loop]))


def _in_blocks(access: Access, blocked: dict[Buffer, Buffer]) -> Access:
    if access.buffer not in blocked:
        return access
    buffer = blocked[access.buffer]
    index, lanes = access.indices[_CHANNEL], buffer.sizes[-1]
    block = AffineExpr(tuple(f // lanes if f != 1 else 0 for f in index.factors), index.constant // lanes)
    lane = AffineExpr(tuple(int(f == 1) for f in index.factors))
    return Access(buffer, (*access.indices[:_CHANNEL], block, *access.indices[_CHANNEL + 1 :], lane))


# Weights.


def _lay_out_weights(steps: LoopProgram, step: LoopNest) -> None:
    """Stores what does not move with the window in the order in which the kernel walks it: blocks of the output's
    channels, then what is summed in the order of the image's memory, then the lanes."""
    lane = step.outputs[0].indices[-1].loops[0]
    loops = len(step.sizes)
    images = [a.flat(loops) for a in step.inputs if any(_is_window(step, index) for index in a.indices)]
    order = [d for d in range(loops) if not step.reduction[d] and d != lane]
    order += sorted((d for d in range(loops) if step.reduction[d]), key=lambda d: -estimate(images[0].factors[d]))
    order.append(lane)
    for access in step.inputs:
        if any(_is_window(step, index) for index in access.indices) or not access.flat(loops).loops:
            continue
        steps.steps.insert(steps.steps.index(step), lay_out(step, access, order))


def in_memory_order(step: LoopNest, access: Access) -> tuple[int, ...]:
    """The loops of a step that an access varies with, as its buffer lies in memory."""
    flat = access.flat(len(step.sizes))
    moving = [loop for loop in access.loops if flat.factors[loop]]
    return tuple(sorted(moving, key=lambda loop: -estimate(flat.factors[loop])))


def lay_out(step: LoopNest, access: Access, order: Sequence[int]) -> LoopNest:
    """Lets a step read a new buffer in the place of ``access``, in which that lies in the order of ``order``, a list of
    all loops, outermost first; returns the step that fills the buffer."""
    walked = [d for d in order if any(index.factors[d] for index in access.indices)]
    buffer = Buffer("temporary", access.element, tuple(step.sizes[d] for d in walked))
    step.read_instead(access, Access.of_loops(buffer, walked, len(step.sizes)))
    made = LoopNest.elementwise(buffer.sizes, Access.whole(buffer), load(access.over(walked)))
    made.nodes = step.nodes
    return made

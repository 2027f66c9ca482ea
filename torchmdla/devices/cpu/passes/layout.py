"""Blocked layout: channels in blocks of a vector's lanes, innermost, for the images between convolutions.

Temporaries of sizes N, C, H, W become N, C/lanes, H, W, lanes if every step can index them so. The decision covers all
buffers that convolutions and poolings read and write and that elementwise steps connect. Conversions thus remain only
at the edges, as part of the steps there. If half a vector takes half the time, channel counts that are not multiples of
a whole vector get blocks of half the lanes. Weights of these convolutions are laid out in the order of their kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from torchmdla.compiler.sizes import estimate, quotient
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.expressions import load
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, Users, is_contraction, split_loop

# Channels are the second dimension, by PyTorch's convention.
CHANNEL = 1


def block_channels(steps: LoopProgram, lanes: Sequence[int]) -> None:
    """Change the layout of images to blocks of channels, and lay out weights to match.

    A block has as many channels as the first of ``lanes`` that divides them. Blocks that are smaller than the first are
    used only if all images of a convolution or a pooling are blocked. Between other images, plain rows are as fast.
    """
    sliding = [step for step in steps.nests() if has_sliding_window(step)]
    if not sliding:
        return
    copies = _detach_results(steps, sliding)
    blocked: dict[Buffer, Buffer] = {}
    for count in lanes:
        candidates = _candidates(steps, count).difference(_sharing_channels(steps, blocked))
        if count != lanes[0]:
            sliding = [s for s in sliding if candidates.union(blocked).issuperset(_images(s))]
        chosen = _collect_connected(steps, candidates, sliding)
        for buffer in chosen:
            sizes = list(buffer.sizes)
            sizes[CHANNEL] //= count
            blocked[buffer] = Buffer("temporary", buffer.element, (*sizes, count))
    _attach_results(steps, [copy for copy in copies if copy.inputs[0].buffer not in blocked])
    if not blocked:
        return
    _copy_flattened_inputs(steps, list(blocked))
    for step in steps.nests():
        _split_channels(step, blocked)
        step.map_accesses(lambda access: _block_access(access, blocked))
    for step in [s for s in steps.nests() if has_sliding_window(s)]:
        if step.outputs[0].buffer in blocked.values():
            _lay_out_weights(steps, step)


def has_sliding_window(step: LoopNest) -> bool:
    """Return whether a step reduces over a window that moves with its output: a convolution or a pooling.

    The mean of a group of channels does not qualify.
    """
    first = 0 if is_contraction(step) else CHANNEL + 1
    return any(_is_window(step, index) for access in step.inputs for index in access.indices[first:])


def _images(step: LoopNest) -> list[Buffer]:
    """Return the buffers that a convolution or a pooling reads by windows, and its outputs."""
    read = [a.buffer for a in step.inputs if any(_is_window(step, index) for index in a.indices)]
    return [*read, *(a.buffer for a in step.outputs)]


def _is_window(step: LoopNest, index: AffineExpr) -> bool:
    flags = {step.reduction[loop] for loop in index.loops}
    return flags == {True, False}


def _detach_results(steps: LoopProgram, sliding: Collection[LoopNest]) -> list[LoopNest]:
    """Replace results by temporaries, which may be blocked, and return the new steps that copy these to the results.

    The results are those of convolutions and poolings, and those that steps read. An example of the latter is an image
    of 16 bits for the backward pass. The copy becomes part of an epilogue: that of the step itself, or the next one.
    """
    users = Users(steps.steps)
    results = dict.fromkeys(b for step in steps.nests() for b in step.writes if b.kind == "result")
    detached = {
        result: Buffer("temporary", result.element, result.sizes)
        for result in results
        if any(step in sliding or result in step.reads for step in users.of(result))
        and all(isinstance(s, LoopNest) and result not in [t.buffer for t in s.tables] for s in users.of(result))
    }
    _replace_buffers(steps, detached)
    copies = []
    for result, inside in detached.items():
        last = max(k for k, step in enumerate(steps.steps) if inside in step.writes)
        copies.append(_copy(inside, result))
        steps.steps.insert(last + 1, copies[-1])
    return copies


def _attach_results(steps: LoopProgram, copies: Collection[LoopNest]) -> None:
    """Undo the replacement of results for some of its copies."""
    steps.steps = [step for step in steps.steps if step not in copies]
    _replace_buffers(steps, {copy.inputs[0].buffer: copy.outputs[0].buffer for copy in copies})


def _replace_buffers(steps: LoopProgram, replaced: Mapping[Buffer, Buffer]) -> None:
    for step in steps.nests():
        if not replaced.keys().isdisjoint([*step.reads, *step.writes]):
            step.map_accesses(lambda access: replace(access, buffer=replaced.get(access.buffer, access.buffer)))


# Selection of buffers.


def _candidates(steps: LoopProgram, lanes: int) -> set[Buffer]:
    """Return the temporaries whose channels every step indexes by whole blocks."""
    refused: set[Buffer] = set()
    accessed: set[Buffer] = set()
    for step in steps.steps:
        if not isinstance(step, LoopNest):
            refused.update([*step.reads, *step.writes])
            continue
        refused.update(table.buffer for table in step.tables)
        for access in _accesses(step):
            accessed.add(access.buffer)
            if not _may_block(step, access, lanes):
                refused.add(access.buffer)
    return accessed - refused


def _accesses(step: LoopNest) -> tuple[Access, ...]:
    return step.inputs + step.outputs + (step.epilogue.body.loads + step.epilogue.outputs if step.epilogue else ())


def _may_block(step: LoopNest, access: Access, lanes: int) -> bool:
    buffer = access.buffer
    if not buffer.is_free or len(buffer.sizes) < 3:
        return False
    loop = _channel_loop(access)
    if loop < 0 or loop in step.indexed_loops:
        return False
    index = access.indices[CHANNEL]
    others = [f for k, f in enumerate(index.factors) if k != loop]
    blocks = (buffer.sizes[CHANNEL], step.sizes[loop], *others, index.constant)
    return all(quotient(number, lanes) is not None for number in blocks)


def _channel_loop(access: Access) -> int:
    """Return the loop that counts single channels; -1 if there is not exactly one."""
    loops = [loop for loop, factor in enumerate(access.indices[CHANNEL].factors) if factor == 1]
    return loops[0] if len(loops) == 1 else -1


def _collect_connected(steps: LoopProgram, candidates: set[Buffer], sliding: Sequence[LoopNest]) -> list[Buffer]:
    """Return the candidates that ``sliding`` steps touch, and those that share channels with them in a step."""
    touched = [access.buffer for step in sliding for access in _accesses(step)]
    chosen = dict.fromkeys(buffer for buffer in touched if buffer in candidates)
    size = -1
    while size != len(chosen):
        size = len(chosen)
        chosen.update(dict.fromkeys(b for b in _sharing_channels(steps, chosen) if b in candidates))
    return list(chosen)


def _sharing_channels(steps: LoopProgram, chosen: Collection[Buffer]) -> list[Buffer]:
    """Return all buffers that share channels with some of ``chosen`` in a step, including these."""
    buffers: list[Buffer] = []
    for step in steps.nests():
        accesses = [a for a in _accesses(step) if len(a.indices) > CHANNEL]
        loops = {_channel_loop(a) for a in accesses if a.buffer in chosen}
        buffers += [a.buffer for a in accesses if _channel_loop(a) in loops]
    return buffers


def _copy_flattened_inputs(steps: LoopProgram, chosen: Sequence[Buffer]) -> None:
    """Copy inputs of products that sum over channels and pixels to plain buffers, as their weights have plain order."""
    for step in steps.nests():
        if has_sliding_window(step):
            continue
        for access in step.inputs:
            if access.buffer in chosen and len(step.inputs) > 1 and _sums_over_pixels(step, access):
                plain = Buffer("temporary", access.buffer.element, access.buffer.sizes)
                steps.steps.insert(steps.steps.index(step), _copy(access.buffer, plain))
                step.replace_load(access, replace(access, buffer=plain))


def _sums_over_pixels(step: LoopNest, access: Access) -> bool:
    reduced = [loop for index in access.indices for loop in index.loops if step.reduction[loop]]
    return _channel_loop(access) in reduced and any(step.sizes[d] != 1 for d in reduced if d != _channel_loop(access))


def _copy(source: Buffer, destination: Buffer) -> LoopNest:
    return LoopNest.elementwise(source.sizes, Access.identity(destination), load(Access.identity(source)))


# The change of layout.


def _split_channels(step: LoopNest, blocked: dict[Buffer, Buffer]) -> None:
    lanes_by_loop = {_channel_loop(a): blocked[a.buffer].sizes[-1] for a in _accesses(step) if a.buffer in blocked}
    for loop in sorted(lanes_by_loop, reverse=True):
        split_loop(step, loop, (step.sizes[loop] // lanes_by_loop[loop], lanes_by_loop[loop]))


def _block_access(access: Access, blocked: dict[Buffer, Buffer]) -> Access:
    if access.buffer not in blocked:
        return access
    buffer = blocked[access.buffer]
    index, lanes = access.indices[CHANNEL], buffer.sizes[-1]
    block = AffineExpr(tuple(f // lanes if f != 1 else 0 for f in index.factors), index.constant // lanes)
    lane = AffineExpr(tuple(int(f == 1) for f in index.factors))
    return Access(buffer, (*access.indices[:CHANNEL], block, *access.indices[CHANNEL + 1 :], lane))


# Weights.


def _lay_out_weights(steps: LoopProgram, step: LoopNest) -> None:
    """Store the inputs that do not move with the window in the order in which the kernel walks them.

    The order is: blocks of the output's channels, then the reduced loops in the order of the image's memory, then the
    lanes.
    """
    lane = step.outputs[0].indices[-1].loops[0]
    loops = len(step.sizes)
    images = [a.linearise(loops) for a in step.inputs if any(_is_window(step, index) for index in a.indices)]
    order = [d for d in range(loops) if not step.reduction[d] and d != lane]
    order += sorted((d for d in range(loops) if step.reduction[d]), key=lambda d: -estimate(images[0].factors[d]))
    order.append(lane)
    for access in step.inputs:
        if any(_is_window(step, index) for index in access.indices) or not access.linearise(loops).loops:
            continue
        steps.steps.insert(steps.steps.index(step), lay_out(step, access, order))


def in_memory_order(step: LoopNest, access: Access) -> tuple[int, ...]:
    """Return the loops of a step that an access varies with, in the order of its buffer's memory."""
    flat = access.linearise(len(step.sizes))
    moving = [loop for loop in access.loops if flat.factors[loop]]
    return tuple(sorted(moving, key=lambda loop: -estimate(flat.factors[loop])))


def lay_out(step: LoopNest, access: Access, order: Sequence[int]) -> LoopNest:
    """Replace ``access`` in a step by a new buffer with elements in the order of ``order``.

    Args:
        step: The step that reads the access.
        access: The access to replace.
        order: A list of all loops, outermost first.

    Returns:
        The step that fills the buffer.
    """
    walked = [d for d in order if any(index.factors[d] for index in access.indices)]
    buffer = Buffer("temporary", access.element, tuple(step.sizes[d] for d in walked))
    step.replace_load(access, Access.of_loops(buffer, walked, len(step.sizes)))
    fill = LoopNest.elementwise(buffer.sizes, Access.identity(buffer), load(access.restrict(walked)))
    fill.nodes = step.nodes
    return fill

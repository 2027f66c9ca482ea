"""Verifier of loop programs. It runs after each pass if ``TORCHMDLA_VERIFY=1``, as in the tests.

It checks these invariants:

- Indices match the buffers and the loops, and operands have the types of their ops.
- Only reductions carry values.
- Only results, temporaries and packed buffers are written.
- A buffer is not read before it is written. Memory that is never written may be read: ``torch.empty``.

:mod:`~torchmdla.devices.cpu.passes.bounds` proves that every access is inside its buffer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torchmdla.devices.cpu.ir.accesses import Access, Buffer
from torchmdla.devices.cpu.ir.expressions import Contents
from torchmdla.devices.cpu.ir.loop_program import (
    LoadStep,
    LoopNest,
    LoopProgram,
    RepeatLoop,
    Scatter,
    Step,
    TileLoop,
    flatten,
)
from torchmdla.devices.cpu.ir.printer import StepsPrinter
from torchmdla.errors import CompileError

# The kinds of buffers that a step may write.
_WRITABLE = frozenset(("result", "temporary", "packed", "local", "view"))

# Ops whose operands and result have one type.
_SAME_TYPE_OPS = re.compile(
    r"arith\.(add|sub|mul|div|rem|max|min|neg|and|or|xor|sh[lr])|math\.(exp|log|sqrt|rsqrt|tanh|fma)"
)

# The kinds of buffers that have content before the first step.
_INITIALISED_KINDS = frozenset(("input", "parameter", "global", "packed"))


def is_enabled() -> bool:
    """Return whether the environment requests verification."""
    return os.environ.get("TORCHMDLA_VERIFY", "0") not in ("", "0")


def verify(steps: LoopProgram, after: str) -> None:
    """Check ``steps``.

    Raises:
        CompileError: an invariant does not hold; names it, the step, and the stage ``after`` which it is violated.
    """
    for packing in steps.packings:
        _verify(steps, packing.steps, after)
    _verify(steps, steps.steps, after)


def _verify(steps: LoopProgram, those: Sequence[Step], after: str) -> None:
    written = {b for step in those for b in step.reads if b.kind in _INITIALISED_KINDS}
    nests = [n for s in flatten(those) for n in (s.members if isinstance(s, TileLoop) else (s,))]
    written |= {b for nest in nests for b in nest.reads} - {b for step in flatten(those) for b in step.writes}
    for step in those:
        for fault in _faults(step, written):
            text = StepsPrinter(steps).step(step)
            raise CompileError(f"internal error: after {after} a step {fault}", diagnostic=text)
        written.update(step.writes)


def _faults(step: Step, written: set[Buffer]) -> Iterator[str]:
    if type(step) in _CHECKS:
        yield from _CHECKS[type(step)](step, written)
    if any(b.kind not in _WRITABLE for b in step.writes):
        yield "writes to what is given"
    # A tile or repeat loop reads values that its own steps write.
    if not isinstance(step, TileLoop | RepeatLoop):
        yield from _unwritten_reads(step.reads, written)


def _unwritten_reads(reads: Iterable[Buffer], written: set[Buffer]) -> Iterator[str]:
    if any(b not in written and b.count for b in reads):
        yield "reads what is not yet written"


def _nest_faults(step: LoopNest, written: set[Buffer]) -> Iterator[str]:
    loops = len(step.sizes)
    if len(step.reduction) != loops:
        yield "specifies the reduction of other loops"
    epilogue = step.epilogue
    for access in (*step.accesses, *(step.outputs if not epilogue else ())):
        yield from _access_faults(access, loops)
    if len(step.values) != len(step.outputs):
        yield "computes other values than its outputs"
    yield from _body_faults(step.body, loops, {"accumulator": len(step.outputs)})
    if epilogue:
        yield from _body_faults(epilogue.body, loops, {"reduced": len(step.outputs)})
        if step.initial is None:
            yield "has an epilogue, but no initial value"
        if len(epilogue.values) != len(epilogue.outputs):
            yield "computes other values than its epilogue's outputs"
    if step.carried and not any(step.reduction) and not step.place:
        yield "carries a value, but has no loop that reduces"
    reduced = {loop for loop, flag in enumerate(step.reduction) if flag and step.sizes[loop] != 1}
    stored = (*epilogue.body.loads, *epilogue.outputs) if epilogue else step.outputs
    if any(reduced & access.loops for access in stored):
        yield "stores results at the index of a loop that reduces"


def _access_faults(access: Access, loops: int) -> Iterator[str]:
    if len(access.indices) not in (len(access.buffer.sizes), 1):
        yield f"has {len(access.indices)} indices into a buffer of {len(access.buffer.sizes)} dimensions"
    if any(len(index.factors) != loops for index in access.indices):
        yield "has an index over other loops than its own"


def _body_faults(body: Contents, loops: int, carried: Mapping[str, int]) -> Iterator[str]:
    """Yield the faults of a body.

    ``carried``: the number of values of reductions that the body may use, by op.
    """
    if any(not 0 <= loop < loops for loop in body.loops):
        yield "uses the index of a loop that it does not have"
    for expression in body.expressions:
        if expression.op in ("accumulator", "reduced") and not 0 <= expression.payload < carried.get(expression.op, 0):
            yield "uses a reduction that it does not have"
        if _SAME_TYPE_OPS.match(expression.op) and {operand.type for operand in expression.operands} != {
            expression.type
        }:
            yield f"computes {expression.op} of operands of another type than {expression.type}"
        if expression.op == "gather" and len(expression.operands) != len(expression.payload.table.sizes):
            yield "looks up at other indices than a table has"


def _tile_loop_faults(step: TileLoop, written: set[Buffer]) -> Iterator[str]:
    if len(step.extents) != len(step.tile) or len(step.loops) != len(step.members):
        yield "has tiles of other axes than its own"
    inside = set(written)
    for member, loops in zip(step.members, step.loops, strict=False):
        yield from _nest_faults(member, inside)
        yield from _unwritten_reads(member.reads, inside)
        inside.update(member.writes)
        if [member.sizes[loop] for loop in loops] != list(step.tile):
            yield "has a member that is not over one tile"


def _repeat_faults(step: RepeatLoop, written: set[Buffer]) -> Iterator[str]:
    # An iteration may read values that the previous one has written.
    inside = written | {view.buffer for view in step.views} | set(step.writes)
    for part in step.steps:
        yield from _faults(part, inside)


def _load_faults(step: LoadStep, written: set[Buffer]) -> Iterator[str]:
    if len(step.indices) != len(step.strides):
        yield "has other indices than strides"


def _scatter_faults(step: Scatter, written: set[Buffer]) -> Iterator[str]:
    yield from _nest_faults(step.nest, written)
    if step.nest.place is None or any(step.nest.reduction) or step.nest.initial or step.nest.epilogue:
        yield "scatters without a place, or reduces"
    others = {access.buffer for access in step.nest.inputs} | {table.buffer for table in step.nest.tables}
    if not others.isdisjoint(step.writes):
        yield "reads elements that its other iterations change"


_CHECKS: Mapping[type, Callable[..., Iterator[str]]] = {
    LoopNest: _nest_faults,
    TileLoop: _tile_loop_faults,
    RepeatLoop: _repeat_faults,
    Scatter: _scatter_faults,
    LoadStep: _load_faults,
}

"""Work on arguments alone that is repeated inside of larger steps: the factor and the term of a batch norm, say.

Once it is a step of its own, it is done once for each call; where all the arguments are parameters, packing does it
once for each version of them (``packing.py``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchmdla.devices.cpu.nests import Instruction, renumbered
from torchmdla.devices.cpu.steps import Access, Buffer, Linear, NestStep, Steps, is_elementwise

# A step of its own pays where its work was repeated at least this many times. Sizes that vary are more at all samples,
# so that these decide alike.
_LEAST_REPEATED = 8

# What depends on more than the values of its operands, or may fail.
_IMPURE = frozenset({"index", "load", "assert", "size"})


@dataclass(frozen=True)
class _Body:
    """The body of a nest or of its ending. Values are numbered: ``before`` of them, the inputs, ``after`` of them, then
    the results of ``body`` in order."""

    inputs: tuple[Access, ...]
    before: int
    after: int
    body: tuple[Instruction, ...]
    yields: tuple[int, ...]

    @property
    def first_result(self) -> int:
        return self.before + len(self.inputs) + self.after

    def input_of(self, value: int) -> Access | None:
        position = value - self.before
        return self.inputs[position] if 0 <= position < len(self.inputs) else None


def hoist_argument_work(steps: Steps) -> None:
    """Gives what elementwise nests and endings compute of arguments alone, over fewer loops, a step before theirs."""
    known = _argument_values(steps)
    for step in steps.nests():
        if known.issuperset(step.writes):
            continue
        body = _body_of(step)
        roots = _roots(body, known, step) if body else []
        if body and roots:
            makers = {root: _maker(body, root, step) for root in roots}
            position = steps.steps.index(step)
            steps.steps[position:position] = makers.values()
            read = {root: _read(maker, _loops(body, root), step) for root, maker in makers.items()}
            _set_body(step, _without(body, read))


def _argument_values(steps: Steps) -> set[Buffer]:
    """The temporaries that elementwise steps compute of arguments alone."""
    writers = Counter(buffer for step in steps.steps for buffer in step.writes)
    known: set[Buffer] = set()
    for step in steps.nests():
        if is_elementwise(step) and not step.scalars and all(_is_known(b, known) for b in step.reads):
            known.update(b for b in step.writes if b.kind == "temporary" and writers[b] == 1)
    return known


def _is_known(buffer: Buffer, known: set[Buffer]) -> bool:
    return buffer.kind in ("parameter", "input", "global") or buffer in known


def _body_of(step: NestStep) -> _Body | None:
    if step.ending:
        ending = step.ending
        return _Body(ending.inputs, len(step.outputs), len(ending.scalars), ending.body, ending.yields)
    if is_elementwise(step) and not step.tables:
        return _Body(step.inputs, 0, len(step.outputs) + len(step.scalars), step.body, step.yields)
    return None


def _set_body(step: NestStep, body: _Body) -> None:
    if step.ending:
        step.ending = replace(step.ending, inputs=body.inputs, body=body.body, yields=body.yields)
    else:
        step.inputs, step.body, step.yields = body.inputs, body.body, body.yields


def _roots(body: _Body, known: set[Buffer], step: NestStep) -> list[int]:
    """The results that depend on arguments alone, and that something else depends on."""
    constants: set[int] = set()
    ours: set[int] = set()
    for value in range(body.before, body.before + len(body.inputs)):
        access = body.input_of(value)
        if access and _is_known(access.buffer, known) and _pays(step, _loops(body, value)):
            ours.add(value)
    for value, instruction in enumerate(body.body, body.first_result):
        if instruction.name in _IMPURE or not (constants | ours).issuperset(instruction.operands):
            continue
        if not ours.intersection(instruction.operands):
            constants.add(value)
        elif _pays(step, _loops(body, value)):
            ours.add(value)
    readers = [i for value, i in enumerate(body.body, body.first_result) if value not in ours]
    read = {v for i in readers for v in i.operands} | set(body.yields)
    return [v for v in sorted(read & ours) if v >= body.first_result]


def _pays(step: NestStep, loops: Sequence[int]) -> bool:
    """Whether the other loops, but for those that reduce, repeat what varies with ``loops`` often."""
    others = [n for k, n in enumerate(step.sizes) if k not in loops and not step.reduction[k]]
    return bool(loops) and math.prod(others) >= _LEAST_REPEATED


def _needed(body: _Body, value: int) -> list[int]:
    """The values that ``value`` is computed from, itself included, in order."""
    found: set[int] = set()
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            if current >= body.first_result:
                waiting += body.body[current - body.first_result].operands
    return sorted(found)


def _loops(body: _Body, value: int) -> list[int]:
    """The loops that a value varies with."""
    accesses = [access for v in _needed(body, value) if (access := body.input_of(v))]
    return sorted({loop for access in accesses for loop in access.loops})


def _maker(body: _Body, root: int, step: NestStep) -> NestStep:
    """The step that computes ``root`` into a buffer of its own, over the loops that it varies with."""
    loops = _loops(body, root)
    sizes = tuple(step.sizes[loop] for loop in loops)
    needed = _needed(body, root)
    inputs = [v for v in needed if v < body.first_result]
    results = [v for v in needed if v >= body.first_result]
    numbers = {v: k for k, v in enumerate(inputs)} | {v: len(inputs) + 1 + k for k, v in enumerate(results)}
    written = body.body[root - body.first_result].result
    buffer = Buffer("temporary", written, sizes)
    return NestStep(
        sizes=sizes,
        reduction=(False,) * len(loops),
        inputs=tuple(body.inputs[v - body.before].over(loops) for v in inputs),
        outputs=(Access(buffer, _at(range(len(loops)), len(loops))),),
        scalars=(),
        tables=(),
        body=renumbered([body.body[v - body.first_result] for v in results], numbers.__getitem__),
        yields=(numbers[root],),
    )


def _read(maker: NestStep, loops: Sequence[int], step: NestStep) -> Access:
    """Where ``step`` reads what ``maker`` writes."""
    return Access(maker.writes[0], _at(loops, len(step.sizes)))


def _at(loops: Sequence[int], count: int) -> tuple[Linear, ...]:
    """The indices of ``loops`` among ``count``."""
    return tuple(Linear(tuple(int(loop == k) for k in range(count))) for loop in loops)


def _without(body: _Body, replaced: dict[int, Access]) -> _Body:
    """The body with values that are read instead of computed, and without what nothing needs any more."""
    keep: set[int] = set()
    waiting = [*body.yields, *(v for v, i in enumerate(body.body, body.first_result) if i.name == "assert")]
    while waiting:
        value = waiting.pop()
        if value not in keep:
            keep.add(value)
            if value >= body.first_result and value not in replaced:
                waiting += body.body[value - body.first_result].operands
    inputs = [v for v in range(body.before, body.before + len(body.inputs)) if v in keep]
    made = [v for v in replaced if v in keep]
    results = [v for v in sorted(keep) if v >= body.first_result and v not in replaced]
    end = body.before + len(body.inputs)
    order = [*range(body.before), *inputs, *made, *range(end, end + body.after), *results]
    numbers = {value: number for number, value in enumerate(order)}
    return replace(
        body,
        inputs=(*(body.inputs[v - body.before] for v in inputs), *(replaced[v] for v in made)),
        body=renumbered([body.body[v - body.first_result] for v in results], numbers.__getitem__),
        yields=tuple(numbers[v] for v in body.yields),
    )

"""Stores of whole words, where the elements of a word are separate results.

An example is an image with interleaved channels, where a word has the same pixel of four channels::

    nest d0:6 d1:4 d2:64 {                         nest d0:6 d1:64 {
      v0 : i8 = … i0                                 v0 : i8 = … i0
      x[d0, d2, d1] = v0 }                  →        v1 : i8 = … i1
                                                     …
                                                     x[d0, d1, 0] as i32 = v0 | v1 << 8 | v2 << 16 | v3 << 24 }

Storing single bytes, four apart, would take longer than computing them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from torchmdla.devices.cpu.ir.accesses import Buffer
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES
from torchmdla.devices.cpu.ir.expressions import Expression, constant, map_loads, numbered_value, operation, rewrite
from torchmdla.devices.cpu.ir.loop_program import Epilogue, LoopNest
from torchmdla.devices.cpu.passes.narrow.layouts import WORD, shift

# A body of more expressions than this is not unrolled over the elements of a word.
_MOST_EXPRESSIONS = 64


def store_words(step: LoopNest, buffer: Buffer, used: int) -> bool:
    """Rewrite a step to store whole words, and return whether this was possible.

    The last dimension of ``buffer`` is within words, of which the first ``used`` elements are in use. The step must not
    write anything else.
    """
    loop = _loop_within_words(step, buffer)
    if loop is None or step.sizes[loop] != used:
        return False
    (stored,) = (step.epilogue or step).values
    bits = 8 * ELEMENT_BYTES[buffer.element]
    word = _pack_word([_select_element(stored, loop, k) for k in range(used)], bits)
    written = replace(step.written_accesses[0].at_iteration(loop, 0), word=WORD)
    if any(step.reduction):
        (value,), (output,) = step.values, step.outputs
        step.values = tuple(_select_element(value, loop, k) for k in range(used))
        step.outputs = tuple(replace(output.at_iteration(loop, 0), buffer=replace(output.buffer)) for _ in range(used))
        step.epilogue = Epilogue((written,), (word,))
    else:
        step.outputs, step.values = (written,), (word,)
    step.sizes = (*step.sizes[:loop], 1, *step.sizes[loop + 1 :])
    return True


def _loop_within_words(step: LoopNest, buffer: Buffer) -> int | None:
    """Return the loop over the elements of the words that a step writes, if it can be unrolled, else None."""
    if [access.buffer for access in step.written_accesses] != [buffer] or step.checks or step.tables or step.carried:
        return None
    if any(step.reduction) and (step.epilogue is None or len(step.outputs) != 1):
        return None
    *others, last = step.written_accesses[0].indices
    if not last.is_loop() or any(last.loops[0] in other.loops for other in others):
        return None
    expressions = len(step.body.expressions) + (len(step.epilogue.body.expressions) if step.epilogue else 0)
    return last.loops[0] if expressions <= _MOST_EXPRESSIONS and not step.reduction[last.loops[0]] else None


def _select_element(value: Expression, loop: int, number: int) -> Expression:
    """Return the value for one element of a word, which has its own accumulator if the step reduces."""

    def select(e: Expression) -> Expression | None:
        if e.op in ("accumulator", "reduced"):
            return numbered_value(e.op, e.type, number)
        return constant(number, e.type) if e.op == "index" and e.payload == loop else None

    return rewrite(map_loads((value,), lambda access: access.at_iteration(loop, number)), select)[0]


def _pack_word(elements: Sequence[Expression], bits: int) -> Expression:
    """Return a word of elements, the first in the lowest bits."""
    if all(element.op == "constant" and element.type.startswith("i") for element in elements):
        word = sum((element.payload % (1 << bits)) << (bits * k) for k, element in enumerate(elements))
        return constant((word + 2**31) % 2**32 - 2**31, WORD)
    parts = [shift("arith.shli", _zero_extend(element), bits * k) for k, element in enumerate(elements)]
    return reduce(lambda word, part: operation("arith.ori", [word, part], WORD), parts)


def _zero_extend(element: Expression) -> Expression:
    if not element.type.startswith("i"):
        bits = 8 * ELEMENT_BYTES[element.type]
        element = operation("arith.bitcast", [element], f"i{bits}")
    return operation("arith.extui", [element], WORD)

"""Convolutions by Winograd's algorithm (:mod:`~torchmdla.devices.cpu.passes.bilinear_maps`): fewer products.

A convolution with overlapping taps becomes four steps. The weights are transformed (they depend on parameters alone, so
they are packed once). Tiles of the image are transformed. There is a product of matrices for each place in a tile.
Results are transformed back with the epilogue. In one dimension, with three taps, stride one, tiles of two results, and
an image of eight places::

    nest d0:16 d1:6 d2:16+ d3:3+ {                  nest d0:16 d1:16 { transformed weights w[0..3, d0, d1] }
      i0 = input0[d2, d1 + d3]                      nest d0:16 d1:3 { transformed tiles v[0..3, d0, d1] = …
      i1 = parameter1[d0, d2, d3]             →          input0[d0, 2*d1 + 0..3] }
      o0 = from 0.0 : f32                           nest d0:4 d1:16 d2:3 d3:16+ { p[d0, d1, d2] = … v * w }
      o0 + i0 * i1 }                                nest d0:16 d1:3 { result2[d0, 2*d1 + 0..1] = … p[0..3, d0, d1] }

If tiles do not divide the image, the last ones along a dimension have separate nests. These read zeros outside of the
image, and omit results that do not exist.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from torchmdla.compiler.sizes import estimate, static
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.expressions import accumulator, load, operation
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, split_loop
from torchmdla.devices.cpu.ir.patterns import SUM_OF_PRODUCTS, SUM_OF_WORDS, Captured, Rule
from torchmdla.devices.cpu.passes.bilinear_algorithms import (
    BILINEAR_REQUIREMENTS,
    SINGLE_PRECISION,
    Convolution,
    Window,
    winograd,
)
from torchmdla.devices.cpu.passes.bilinear_costs import WinogradChoice, is_exact
from torchmdla.devices.cpu.passes.bilinear_maps import KIND, WHOLE
from torchmdla.devices.cpu.passes.narrow.formats import BYTE
from torchmdla.devices.cpu.passes.precompute import IsKnown, parameter_predicate
from torchmdla.devices.cpu.target.machine import Machine

# The elements of a word.
_ELEMENTS = 4

# With more windows than this, tiles have too many places.
_MOST_WINDOWS = 2


def is_faster_by_winograd(steps: LoopProgram, step: LoopNest, is_known: IsKnown, machine: Machine, part: float) -> bool:
    """Return whether Winograd's algorithm computes a step in less than ``part`` of its time."""
    case = USE_WINOGRAD.case(partial(_match_convolution, steps, machine, is_known), step)
    return case is not None and bool(case.best(machine.algorithms, part))


def _match_convolution(
    steps: LoopProgram, machine: Machine, is_known: IsKnown, step: LoopNest, match: Captured
) -> WinogradChoice | None:
    """Return the step as a convolution over channels, if it is one."""
    image, weights = match["left"].payload, match["right"].payload
    return _read_convolution(steps, machine, is_known, step, Convolution(step, image, weights, ()))


def _match_words(
    steps: LoopProgram, machine: Machine, is_known: IsKnown, step: LoopNest, match: Captured
) -> WinogradChoice | None:
    """Return the step as a convolution of the elements of its words, if it is one."""
    free = [loop for loop, reduces in enumerate(step.reduction) if reduces and step.sizes[loop] == 1]
    words = [match["left"].payload, match["right"].payload]
    if not free or any(word.width != _ELEMENTS or word.buffer.element != BYTE for word in words):
        return None

    def element(word: Access) -> Access:
        *indices, last = (index.at_iteration(free[0], 0) for index in word.indices)
        return replace(word, word="", indices=(*indices, last.plus_loop(free[0])))

    elements, loads = replace(step), [load(element(word)) for word in words]
    image, weights = (
        operation(op, [each], WHOLE) for op, each in zip(("arith.extui", "arith.extsi"), loads, strict=True)
    )
    product = operation("arith.muli", [image, weights], WHOLE)
    elements.values = (operation("arith.addi", [accumulator(0, WHOLE), product], WHOLE),)
    elements.sizes = (*step.sizes[: free[0]], _ELEMENTS, *step.sizes[free[0] + 1 :])
    split_loop(elements, free[0], (_ELEMENTS // 2, 2))
    left, right, *_ = elements.inputs
    return _read_convolution(steps, machine, is_known, step, Convolution(elements, left, right, (), free[0] + 1))


def _read_convolution(
    steps: LoopProgram, machine: Machine, is_known: IsKnown, replaced: LoopNest, products: Convolution
) -> WinogradChoice | None:
    """Return the choice for a sum of products without windows, which are those of its image."""
    step, image = products.step, products.image
    windows = [_window(steps, products, index) for index in image.indices if _slides(step, index)]
    if not 0 < len(windows) <= _MOST_WINDOWS:
        return None
    overlapping = tuple(window for window in windows if window is not None)
    summed = math.prod(size for size, reduces in zip(step.sizes, step.reduction, strict=True) if reduces)
    has_channels = estimate(summed) > math.prod(window.count for window in overlapping)
    has_parts = any(window.is_long for window in overlapping)
    if len(overlapping) < len(windows) or not (has_channels or has_parts):
        return None
    convolution = replace(products, windows=overlapping)
    return WinogradChoice(steps, replaced, convolution, machine, is_known(products.weights))


def _iterating_loops(step: LoopNest, index: AffineExpr) -> list[int]:
    return [loop for loop in index.loops if step.sizes[loop] != 1]


def _slides(step: LoopNest, index: AffineExpr) -> bool:
    """Return whether an index varies with several loops, which are not all summed."""
    loops = _iterating_loops(step, index)
    return len(loops) > 1 and not all(step.reduction[loop] for loop in loops)


def _window(steps: LoopProgram, products: Convolution, index: AffineExpr) -> Window | None:
    """Return the window of an image dimension along which overlapping taps slide, else None."""
    step = products.step
    loops = _iterating_loops(step, index)
    taps, results = ([loop for loop in loops if step.reduction[loop] is reduces] for reduces in (True, False))
    if len(taps) != 1 or len(results) != 1 or steps.is_varying(step.sizes[results[0]]):
        return None
    extent, count, stride = step.sizes[results[0]], step.sizes[taps[0]], index.factors[results[0]]
    if not isinstance(count, int) or not isinstance(stride, int) or not 0 < stride < count:
        return None
    return Window(results[0], static(extent), taps[0], count, stride, products.word is not None)


def _use_winograd(case: WinogradChoice) -> None:
    """Use Winograd's algorithm if it is faster, or if the setting requires it for all possible convolutions."""
    tiling = case.best(case.select())
    # It is the name of a setting if tiles have the same size along all dimensions.
    pairs = zip(case.convolution.windows if tiling else (), tiling, strict=True)
    name = "winograd" + "x".join(dict.fromkeys(str(window.size(transforms)) for window, transforms in pairs))
    case.record(name if tiling else "direct", case.convolution.word is not None or is_exact(tiling))
    if tiling:
        case = _block_image(case)
        algorithm = winograd(case.convolution, tiling, case.machine.fused)
        case.steps.replace_step(case.replaced, algorithm.nests(case.tiles(tiling)))


def _block_image(case: WinogradChoice) -> WinogradChoice:
    """Lay out the image of a gradient of weights in blocks of its outermost dimension; return the choice for it.

    Sums of its tiles then have vectors across a block. Without blocks, elements of neighbouring tiles are apart.
    """
    step, image, lanes = case.step, case.convolution.image, case.machine.vector_bytes // 4
    places = [d for d, index in enumerate(image.indices) if index.is_loop() and not step.reduction[index.loops[0]]]
    sizes, position = image.buffer.sizes, step.inputs.index(image)
    if not places or not all(window.is_long for window in case.convolution.windows):
        return case
    dimension, (loop,) = places[0], image.indices[places[0]].loops
    size = step.sizes[loop]
    if not isinstance(size, int) or size % lanes or size != sizes[dimension]:
        return case
    split, loops = (size // lanes, lanes), len(sizes) + 1
    blocked = Buffer("temporary", KIND, (*sizes[:dimension], split[0], *sizes[dimension + 1 :], lanes))
    fill = LoopNest.elementwise(sizes, Access.identity(image.buffer), load(Access.identity(image.buffer)))
    fill.nodes = step.nodes
    split_loop(fill, dimension, split)
    order = sorted(range(loops), key=lambda other: other == dimension + 1)
    fill.outputs = (Access.of_loops(blocked, order, loops),)
    case.steps.steps.insert(case.steps.steps.index(step), fill)
    split_loop(step, loop, split)
    old = step.inputs[position]
    block, lane = (AffineExpr.of_loop(k, len(step.sizes)) for k in (loop, loop + 1))
    step.replace_load(old, Access(blocked, (*old.indices[:dimension], block, *old.indices[dimension + 1 :], lane)))
    read = partial(_match_convolution, case.steps, case.machine, parameter_predicate(case.steps))
    again = USE_WINOGRAD.case(read, step)
    assert again is not None, "a convolution is one in any layout"
    return again


USE_WINOGRAD = Rule(
    SUM_OF_PRODUCTS,
    lambda steps, machine: partial(_match_convolution, steps, machine, parameter_predicate(steps)),
    _use_winograd,
    {
        **BILINEAR_REQUIREMENTS,
        "a tap is the next element of the image": lambda case: all(
            index.factors[w.taps] in (0, 1)
            for index in case.convolution.image.indices
            for w in case.convolution.windows
        ),
        "each tap has a weight, the same for all results": lambda case: all(
            w.taps in case.convolution.weights.loops and w.results not in case.convolution.weights.loops
            for w in case.convolution.windows
        ),
        "a window slides along one dimension": lambda case: all(
            sum(not {w.taps, w.results}.isdisjoint(index.loops) for index in case.convolution.image.indices) == 1
            for w in case.convolution.windows
        ),
    },
)

# The same for quantised integers: all sums are exact.
USE_INTEGER_WINOGRAD = Rule(
    SUM_OF_WORDS,
    lambda steps, machine: partial(_match_words, steps, machine, parameter_predicate(steps)),
    _use_winograd,
    {text: holds for text, holds in USE_WINOGRAD.requires.items() if text != SINGLE_PRECISION},
)

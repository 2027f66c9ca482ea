"""Contractions as bilinear algorithms: convolutions by Winograd's, products of matrices by Strassen's.

A convolution of stride ``s`` is the sum of ``s`` convolutions of stride one along each dimension, its phases. Phase
``p`` has taps ``p``, ``p + s``, …, and every ``s``-th element of the image from ``p`` on. All phases have the same
transforms. Thus their products are summed before the transform back, as those of channels are. If ``s`` does not divide
the taps, the last phases have one tap less. Their product at the last place, infinity, is then zero and is omitted.

A long filter with few results, as in the gradient of weights, is the sum of convolutions with a part of its taps. The
products of all parts are summed before the transform back, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchmdla.compiler.sizes import AnySize, static
from torchmdla.devices.cpu.ir.accesses import Access
from torchmdla.devices.cpu.ir.expressions import Expression
from torchmdla.devices.cpu.ir.loop_program import LoopNest, has_zero_initial
from torchmdla.devices.cpu.passes.bilinear_maps import (
    KIND,
    PRODUCTS,
    QUARTERS,
    ZERO,
    Matrix,
    Transforms,
    Values,
    apply_matrices,
    has_transforms,
    integer_transforms,
    left_sums,
    restore,
    result_sums,
    right_sums,
    transforms,
)
from torchmdla.devices.cpu.passes.bilinear_nests import BilinearAlgorithm, Operand, Part, Parts, Split, split_in_tiles

# The requirement that algorithms for integers do not have.
SINGLE_PRECISION = "factors and sums are in single precision"

# Requirements of bilinear algorithms for the step of a case.
BILINEAR_REQUIREMENTS: Mapping[str, Callable[[Any], bool]] = {
    "the sum starts from zero": lambda case: has_zero_initial(case.step),
    "nothing is checked of the products": lambda case: not case.step.checks,
    SINGLE_PRECISION: lambda case: (
        {access.buffer.element for access in case.step.inputs} | {case.step.values[0].type} == {KIND}
    ),
    "nothing is computed of the numbers of iterations": lambda case: not case.step.indexed_loops,
}


@dataclass(frozen=True)
class Window:
    """Dimension that is split into tiles, with the loop over ``results`` and the loop over ``taps``.

    There are ``count`` taps. From result to result, they move by ``stride`` elements of the image. If the window
    ``is_long``, all ``extent`` results are one tile, and the taps are split into parts. If it ``has_integers``, its
    transforms do not have fractions.
    """

    results: int
    extent: int
    taps: int
    count: int
    stride: int
    has_integers: bool = False

    @property
    def most_taps(self) -> int:
        """Return the largest number of taps of a phase."""
        return -(-self.count // self.stride)

    @property
    def is_long(self) -> bool:
        return self.stride == 1 and 1 < self.extent <= self.count // 2

    def transforms(self, size: int) -> Sequence[Transforms]:
        """Return the transforms for tiles of ``size`` results, or parts of ``size`` taps of a long window."""
        results, taps = (self.extent, size) if self.is_long else (size, self.most_taps)
        if taps > self.count:
            return ()
        if self.has_integers:
            return integer_transforms(results, taps)
        return [transforms(results, taps)] if has_transforms(results, taps) else ()

    def size(self, chosen: Transforms) -> int:
        """Return the size for which :meth:`transforms` returns the chosen transforms."""
        return chosen.most_taps if self.is_long else chosen.results

    def split_taps(self, chosen: Transforms) -> Split:
        """Return the split of the taps into parts, or into phases.

        There are phases with ``most_taps`` taps, and later ones with one tap less.
        """
        if self.is_long:
            return Split(chosen.most_taps, 1, split_in_tiles(self.count, chosen.most_taps))
        most = self.most_taps
        full = self.count - self.stride * (most - 1)
        rest = [Part(full, full, self.stride - full, most - 1)] if full < self.stride else []
        return Split(1, self.stride, [Part(0, 0, full, most), *rest])

    def products(self, chosen: Transforms) -> list[tuple[range, int]]:
        """Return the places in a tile, split by their number of parts or phases, and these numbers."""
        last, parts = chosen.products - 1, self.split_taps(chosen).parts
        count = sum(part.count for part in parts)
        if self.is_long or len(parts) == 1:
            return [(range(last + 1), count)]
        return [(range(last), count), (range(last, last + 1), parts[0].count)]


@dataclass(frozen=True)
class Convolution:
    """Step with its ``image``, ``weights`` and ``windows``, outermost first.

    If factors are quantised integers, ``word`` is the innermost loop over their elements, of which there are two.
    """

    step: LoopNest
    image: Access
    weights: Access
    windows: tuple[Window, ...]
    word: int | None = None


def winograd(convolution: Convolution, tiling: Sequence[Transforms], fused: bool) -> BilinearAlgorithm:
    """Return Winograd's algorithm for a convolution.

    Args:
        convolution: The convolution.
        tiling: The transforms of each window.
        fused: Whether multiply-add is one instruction.
    """
    step, windows = convolution.step, convolution.windows

    def transformed(matrix: Callable[[Transforms], Matrix]) -> Callable[[Values, Parts], Values]:
        def sums(values: Values, parts: Parts) -> Values:
            drops_tap = [not w.is_long and parts[w.taps].elements < w.most_taps for w in windows]
            chosen = [t.drop_tap() if drops else t for t, drops in zip(tiling, drops_tap, strict=True)]
            return apply_matrices(list(map(matrix, chosen)), values, fused)

        return sums

    def restored(values: Values, parts: Parts) -> Values:
        sums, divisor = transformed(lambda t: t.outputs)(values, parts), math.prod(each.divisor for each in tiling)
        return {place: restore(total, divisor) for place, total in sums.items()} if divisor > 1 else sums

    taps, has_integers = [window.taps for window in windows], convolution.word is not None
    left, right = ("arith.extui", "arith.extsi") if has_integers else ("", "")
    splits = {window.taps: window.split_taps(each) for window, each in zip(windows, tiling, strict=True)}
    counts_of_taps = {loop: sum(part.count for part in split.parts) for loop, split in splits.items()}
    phases = {loop: count for loop, count in counts_of_taps.items() if count > 1}
    for window, each in zip(windows, tiling, strict=True):
        tiles = split_in_tiles(window.extent, each.results)
        splits[window.results] = Split(each.results, 1, tiles)
    products = []
    for spans in itertools.product(*map(Window.products, windows, tiling)):
        counts = {loop: count for loop, (_, count) in zip(taps, spans, strict=True) if loop in phases}
        products.append(([*itertools.product(*(places for places, _ in spans))], counts))
    return BilinearAlgorithm(
        step=step,
        left=Operand(convolution.image, [(w.results, w.taps) for w in windows], transformed(lambda t: t.inputs), left),
        right=Operand(convolution.weights, [(loop,) for loop in taps], transformed(lambda t: t.taps), right),
        result=Operand(step.outputs[0], [(w.results,) for w in windows], restored),
        splits=splits,
        sizes={loop: size for loop, size in enumerate(step.sizes) if loop not in taps} | phases,
        products=products,
        word=convolution.word,
    )


@dataclass(frozen=True)
class Product:
    """Step that sums products of ``left`` and of weights, ``right``, with the loops to split in halves.

    The loop ``row`` is in ``left`` alone, ``column`` in ``right`` alone, and ``term`` is a reduced loop in both.
    ``rows`` are all loops of the first kind, in the order of the result's memory.
    """

    step: LoopNest
    left: Access
    right: Access
    row: int
    column: int
    term: int
    rows: tuple[int, ...]

    def half(self, loop: int) -> AnySize:
        """Return the iterations of a loop, or of its first half if the loop is split."""
        size = self.step.sizes[loop]
        return -(-static(size) // 2) if loop in (self.row, self.column, self.term) else size


def strassen(product: Product) -> BilinearAlgorithm:
    """Return Strassen's algorithm for a product, where a tile has an element of each half."""
    step, keys = product.step, [(k,) for k in range(PRODUCTS)]
    row, column, term = (product.row,), (product.column,), (product.term,)

    def summed(function: Callable[[Values], Sequence[Expression]]) -> Callable[[Values, Parts], Values]:
        zeros = dict.fromkeys(QUARTERS, ZERO)
        return lambda quarters, _: dict(zip(keys, function({**zeros, **quarters}), strict=True))

    return BilinearAlgorithm(
        step=step,
        left=Operand(product.left, [row, term], summed(left_sums)),
        right=Operand(product.right, [term, column], summed(right_sums)),
        result=Operand(step.outputs[0], [row, column], lambda products, _: result_sums([*products.values()])),
        splits={
            loop: Split(1, static(product.half(loop)), split_in_tiles(static(step.sizes[loop]), 2))
            for loop in (*row, *column, *term)
        },
        sizes={loop: product.half(loop) for loop in range(len(step.sizes))},
        products=[(keys, {})],
    )

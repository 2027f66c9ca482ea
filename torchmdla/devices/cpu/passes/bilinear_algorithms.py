"""Contractions as bilinear algorithms: convolutions by Winograd's, products of matrices by Strassen's.

A convolution of stride ``s`` is the sum of ``s`` convolutions of stride one along each dimension, its phases. Phase
``p`` has taps ``p``, ``p + s``, …, and every ``s``-th element of the image from ``p`` on. All phases have the same
transforms. Thus their products are summed before the transform back, as those of channels are. If ``s`` does not divide
the taps, the last phases have one tap less. Their product at the last place, infinity, is then zero and is omitted.
"""

from __future__ import annotations

import itertools
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
    left_sums,
    result_sums,
    right_sums,
)
from torchmdla.devices.cpu.passes.bilinear_nests import BilinearAlgorithm, Operand, Part, Parts, Split, split_in_tiles

# Requirements of bilinear algorithms for the step of a case.
BILINEAR_REQUIREMENTS: Mapping[str, Callable[[Any], bool]] = {
    "the sum starts from zero": lambda case: has_zero_initial(case.step),
    "nothing is checked of the products": lambda case: not case.step.checks,
    "factors and sums are in single precision": lambda case: (
        {access.buffer.element for access in case.step.inputs} | {case.step.values[0].type} == {KIND}
    ),
    "nothing is computed of the numbers of iterations": lambda case: not case.step.indexed_loops,
}


@dataclass(frozen=True)
class Window:
    """Dimension that is split into tiles, with the loop over ``results`` and the loop over ``taps``.

    There are ``count`` taps. From result to result, they move by ``stride`` elements of the image.
    """

    results: int
    taps: int
    count: int
    stride: int

    @property
    def most_taps(self) -> int:
        """Return the largest number of taps of a phase."""
        return -(-self.count // self.stride)

    @property
    def phases(self) -> list[Part]:
        """Return the phases with ``most_taps`` taps, and the later ones, which have one tap less."""
        most = self.most_taps
        full = self.count - self.stride * (most - 1)
        rest = [Part(full, full, self.stride - full, most - 1)] if full < self.stride else []
        return [Part(0, 0, full, most), *rest]

    def products(self, transforms: Transforms) -> list[tuple[range, int]]:
        """Return the places in a tile, split by their number of phases, and these numbers."""
        last, full = transforms.products - 1, self.phases[0].count
        if full == self.stride:
            return [(range(last + 1), full)]
        return [(range(last), self.stride), (range(last, last + 1), full)]


@dataclass(frozen=True)
class Convolution:
    """Step with its ``image``, ``weights`` and ``windows``, outermost first."""

    step: LoopNest
    image: Access
    weights: Access
    windows: tuple[Window, ...]


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
            every = zip(windows, tiling, strict=True)
            chosen = [t if parts[w.taps].elements == w.most_taps else t.drop_tap() for w, t in every]
            return apply_matrices(list(map(matrix, chosen)), values, fused)

        return sums

    taps = [window.taps for window in windows]
    phases = {window.taps: window.stride for window in windows if window.stride > 1}
    splits = {window.taps: Split(1, window.stride, window.phases) for window in windows}
    for window, transforms in zip(windows, tiling, strict=True):
        tiles = split_in_tiles(static(step.sizes[window.results]), transforms.results)
        splits[window.results] = Split(transforms.results, 1, tiles)
    products = []
    for spans in itertools.product(*map(Window.products, windows, tiling)):
        counts = {loop: count for loop, (_, count) in zip(taps, spans, strict=True) if loop in phases}
        products.append(([*itertools.product(*(places for places, _ in spans))], counts))
    return BilinearAlgorithm(
        step=step,
        left=Operand(convolution.image, [(w.results, w.taps) for w in windows], transformed(lambda t: t.inputs)),
        right=Operand(convolution.weights, [(loop,) for loop in taps], transformed(lambda t: t.taps)),
        result=Operand(step.outputs[0], [(w.results,) for w in windows], transformed(lambda t: t.outputs)),
        splits=splits,
        sizes={loop: size for loop, size in enumerate(step.sizes) if loop not in taps} | phases,
        products=products,
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

"""Convolutions of three taps by fewer products, in Winograd's way (:mod:`~torchmdla.devices.cpu.winograd`).

A convolution of stride one becomes four steps: weights transformed (of parameters alone, so packed once), tiles of the
image transformed, a product of matrices for each place in a tile, and the results transformed back with the epilogue.
In one dimension, tiles of two results, an image ``i`` of eight places::

    nest d0:16 d1:6 d2:16+ d3:3+ {                  nest d0:16 d1:16 { transformed weights w[0..3, d0, d1] }
      i0 = input0[d2, d1 + d3]                      nest d0:16 d1:3 { transformed tiles v[0..3, d0, d1] = …
      i1 = parameter1[d0, d2, d3]             →          input0[d0, 2*d1 + 0..3] }
      o0 = from 0.0 : f32                           nest d0:4 d1:16 d2:3 d3:16+ { p[d0, d1, d2] = … v * w }
      o0 + i0 * i1 }                                nest d0:16 d1:3 { result2[d0, 2*d1 + 0..1] = … p[0..3, d0, d1] }

Where tiles do not divide the image, the last ones along a dimension have nests of their own, which take what is outside
as zero and leave out results that there are none of.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.expressions import (
    Expression,
    accumulator,
    constant,
    load,
    operation,
    reduced,
    substituted,
)
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, starts_from_zero
from torchmdla.devices.cpu.machine import Algorithms, Machine
from torchmdla.devices.cpu.passes.precompute import parameter_values
from torchmdla.devices.cpu.patterns import SUM_OF_PRODUCTS
from torchmdla.devices.cpu.winograd import TAPS, Matrix, Transforms, transforms

_KIND = "f32"
_ZERO = constant(0.0, _KIND)


def use_winograd(steps: LoopProgram, machine: Machine) -> None:
    """Replaces convolutions that Winograd's way is faster for, in place."""
    known = parameter_values(steps)
    for step in steps.nests():
        found = _convolution(steps, step, known)
        if found is not None and (results := _tile(found, machine)):
            position = steps.steps.index(step)
            steps.steps[position : position + 1] = _Writer(found, transforms(results), machine).steps()


@dataclass(frozen=True)
class _Convolution:
    """A step with its ``image`` and ``weights``; ``windows``: the loop over results and the loop over taps of each
    dimension that tiles are cut of, outermost first; ``sizes``: those of the step's loops to reckon with, one where it
    varies between calls."""

    step: LoopNest
    image: Access
    weights: Access
    windows: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]

    @property
    def slid(self) -> Mapping[int, int]:
        """The place among the windows of each loop over results."""
        return {result: k for k, (result, _) in enumerate(self.windows)}

    @property
    def taps(self) -> frozenset[int]:
        """The loops over taps."""
        return frozenset(tap for _, tap in self.windows)


def _convolution(steps: LoopProgram, step: LoopNest, known: Mapping[Buffer, object]) -> _Convolution | None:
    """The step as a convolution of stride one with taps that are known ahead, if it is one."""
    if len(step.outputs) != 1 or step.tables or step.indexed_loops or not starts_from_zero(step):
        return None
    for match in SUM_OF_PRODUCTS.matches(step.values[0]):
        image, weights = match["left"].payload, match["right"].payload
        elements = {image.buffer.element, weights.buffer.element, step.values[0].type}
        if not (weights.buffer.kind == "parameter" or weights.buffer in known) or elements != {_KIND}:
            continue
        windows = tuple(_windows(steps, step, image, weights))
        rest = math.prod(size for size, flag in zip(step.sizes, step.reduction, strict=True) if flag) > TAPS ** len(windows)
        if windows and rest and all(index.is_loop() or not index.loops for index in weights.indices):
            sizes = tuple(1 if size in steps.varying else size for size in step.sizes)
            return _Convolution(step, image, weights, windows, sizes)
    return None


def _windows(steps: LoopProgram, step: LoopNest, image: Access, weights: Access) -> Iterator[tuple[int, int]]:
    """The loops over results and taps of each dimension of the image along which a window of three taps slides."""
    for index in image.indices:
        taps = [loop for loop in index.loops if step.reduction[loop]]
        results = [loop for loop in index.loops if not step.reduction[loop]]
        if len(taps) != 1 or len(results) != 1 or step.sizes[taps[0]] != TAPS:
            continue
        (tap,), (result,) = taps, results
        alone = all(other is index or not {tap, result} & set(other.loops) for other in image.indices)
        steps_by_one = index.factors[tap] == index.factors[result] == 1
        varies = step.sizes[result] in steps.varying
        if alone and steps_by_one and not varies and tap in weights.loops and result not in weights.loops:
            yield result, tap


# Which convolutions.

# Results of tiles that are tried, and of those that are asked for.
_TILES = (2, 4)
_FORCED: Mapping[Algorithms, int] = {"direct": 0, "winograd2": 2, "winograd4": 4}

# Cycles of a vector that a transform loads, computes or stores, beside one that a product multiplies and adds.
_TRANSFORM_COST = 0.7

# Cycles to fetch a byte of weights that no second cache holds.
_WEIGHT_BYTE = 1 / 16


def _tile(found: _Convolution, machine: Machine) -> int:
    """Results of a tile along each dimension; 0 if the plain sum takes no longer."""
    if machine.algorithms != "fast":
        return _FORCED[machine.algorithms]
    costs = {0: _direct_cost(found, machine), **{m: _cost(found, transforms(m), machine) for m in _TILES}}
    return min(costs, key=lambda results: costs[results])


def _direct_cost(found: _Convolution, machine: Machine) -> float:
    weights = math.prod(found.sizes[loop] for loop in found.weights.loops)
    return math.prod(found.sizes) / (machine.vector_bytes // 4) + _streaming(weights * 4, machine)


def _streaming(count: int, machine: Machine) -> float:
    return count * _WEIGHT_BYTE if count > machine.second_level else 0.0


def _cost(found: _Convolution, by: Transforms, machine: Machine) -> float:
    """Cycles, of which products take one for a vector."""
    lanes, dims = machine.vector_bytes // 4, len(found.windows)
    places = by.products**dims
    tiles = math.prod(-(-found.sizes[result] // by.results) for result in found.slid)

    def others(loops: frozenset[int]) -> int:
        return math.prod(found.sizes[loop] for loop in loops - found.taps - found.slid.keys())

    products = places * tiles * others(frozenset(range(len(found.sizes))))
    moved = tiles * (others(found.image.loops) + others(found.step.outputs[0].loops)) * 2 * places
    weights = places * others(found.weights.loops)
    return (products + _TRANSFORM_COST * moved) / lanes + _streaming(weights * 4, machine)


# The steps.


@dataclass(frozen=True)
class _Part:
    """Tiles along a dimension: ``count`` from tile ``first`` on, of whose inputs and results the first ``inputs`` and
    ``results`` there are."""

    first: int
    count: int
    inputs: int
    results: int


@dataclass(frozen=True)
class _Writer:
    found: _Convolution
    by: Transforms
    machine: Machine

    def steps(self) -> list[LoopNest]:
        """What the convolution becomes."""
        step, loops = self.found.step, range(len(self.found.step.sizes))
        weights = self._order(self.found.weights, but=self.found.taps)
        image = self._order(self.found.image, but=self.found.taps)
        result = self._order(step.outputs[0], but=frozenset())
        buffers = [self._buffer(order) for order in (weights, image, result)]
        reducing = [loop for loop in loops if step.reduction[loop] and loop not in self.found.taps]
        made = [
            self._transformed_weights(weights, buffers[0]),
            *(self._transformed_image(image, buffers[1], parts) for parts in self._parts()),
            self._product((weights, image, result), buffers, reducing),
            *(self._results(result, buffers[2], parts) for parts in self._parts()),
        ]
        for nest in made:
            nest.nodes = step.nodes
        return made

    def _order(self, access: Access, but: frozenset[int]) -> list[int]:
        """The loops that an access varies with, as its buffer lies in memory."""
        flat = access.flat(len(self.found.step.sizes))
        moving = [loop for loop in access.loops - but if flat.factors[loop]]
        return sorted(moving, key=lambda loop: -flat.factors[loop])

    def _extent(self, loop: int) -> int:
        """Iterations of a loop of the convolution, tiles in place of results."""
        size = self.found.step.sizes[loop]
        return -(-size // self.by.results) if loop in self.found.slid else size

    def _buffer(self, order: Sequence[int]) -> Buffer:
        """Of a dimension for the places of a tile, then one for each loop."""
        places = self.by.products ** len(self.found.windows)
        return Buffer("temporary", _KIND, (places, *map(self._extent, order)))

    def _parts(self) -> list[tuple[_Part, ...]]:
        """The tiles along each dimension, those that are whole apart from those that are not."""
        return list(itertools.product(*(self._parts_along(result, tap) for result, tap in self.found.windows)))

    def _parts_along(self, result: int, tap: int) -> list[_Part]:
        full, rest = divmod(self.found.step.sizes[result], self.by.results)
        parts = [_Part(0, full, self.by.products, self.by.results)] if full else []
        return parts + ([_Part(full, 1, rest + TAPS - 1, rest)] if rest else [])

    def _transformed_weights(self, order: Sequence[int], target: Buffer) -> LoopNest:
        found = self.found
        taps = {tap: k for k, (_, tap) in enumerate(found.windows)}

        def at(places: Sequence[int]) -> Expression:
            def index(own: AffineExpr) -> AffineExpr:
                tap = next((loop for loop in own.loops if loop in taps), None)
                constant_part = 0 if tap is None else own.factors[tap] * places[taps[tap]]
                return AffineExpr(tuple(own.factors[loop] for loop in order), own.constant + constant_part)

            return load(Access(found.weights.buffer, tuple(map(index, found.weights.indices))))

        return self._transform(order, target, self.by.taps, at, [TAPS] * len(taps))

    def _transformed_image(self, order: Sequence[int], target: Buffer, parts: Sequence[_Part]) -> LoopNest:
        found, slid = self.found, self.found.slid

        def at(places: Sequence[int]) -> Expression:
            if any(place >= part.inputs for place, part in zip(places, parts, strict=True)):
                return _ZERO
            return load(self._in_tiles(found.image, order, parts, places))

        return self._transform(order, target, self.by.inputs, at, [self.by.products] * len(parts), parts)

    def _transform(
        self,
        order: Sequence[int],
        target: Buffer,
        matrix: Matrix,
        at: Callable[[tuple[int, ...]], Expression],
        inputs: Sequence[int],
        parts: Sequence[_Part] = (),
    ) -> LoopNest:
        """A nest over ``order`` that stores to each place of a tile what ``matrix`` makes, along each dimension, of
        ``at``, a value of places among ``inputs``."""
        transformed = self._along_all({places: at(places) for places in itertools.product(*map(range, inputs))}, matrix)
        outputs = (self._of_tile(target, number, order, parts) for number in range(len(transformed)))
        sizes = self._sizes(order, parts)
        return LoopNest(sizes, (False,) * len(sizes), tuple(outputs), tuple(transformed.values()))

    def _of_tile(self, buffer: Buffer, place: int, order: Sequence[int], parts: Sequence[_Part]) -> Access:
        """One place of each tile of ``parts``, over the loops ``order``."""
        firsts = [parts[self.found.slid[loop]].first if parts and loop in self.found.slid else 0 for loop in order]
        loops = len(order)
        walked = (AffineExpr.of_loop(k, loops, first) for k, first in enumerate(firsts))
        return Access(buffer, (AffineExpr((0,) * loops, place), *walked))

    def _sizes(self, order: Sequence[int], parts: Sequence[_Part]) -> tuple[int, ...]:
        slid = self.found.slid
        return tuple(parts[slid[k]].count if parts and k in slid else self._extent(k) for k in order)

    def _along_all(
        self, values: Mapping[tuple[int, ...], Expression], matrix: Matrix
    ) -> dict[tuple[int, ...], Expression]:
        """``matrix`` along each dimension of ``values``, by place."""
        found = dict(values)
        for d in range(len(self.found.windows)):
            lines: dict[tuple[int, ...], dict[int, Expression]] = {}
            for place, value in found.items():
                lines.setdefault((*place[:d], *place[d + 1 :]), {})[place[d]] = value
            found = {
                (*rest[:d], k, *rest[d:]): value
                for rest, line in lines.items()
                for k, value in enumerate(self._product_with(matrix, [line[j] for j in sorted(line)]))
            }
        return dict(sorted(found.items()))

    def _product_with(self, matrix: Matrix, vector: Sequence[Expression]) -> list[Expression]:
        """A matrix times a vector; rows that differ in signs alone share what they have in common."""
        sums = _Sums(self.machine.fused)
        made: list[Expression] = []
        for number, row in enumerate(matrix):
            earlier = next((k for k in range(number) if _is_mirrored(matrix[k], row)), None)
            later = next((k for k in range(number + 1, len(matrix)) if _is_mirrored(row, matrix[k])), None)
            if earlier is None and later is None:
                made.append(sums.of(row, vector))
                continue
            first = matrix[earlier] if earlier is not None else row
            second = row if earlier is not None else matrix[later]  # type: ignore[index]
            even = sums.of([a if a == b else 0 for a, b in zip(first, second, strict=True)], vector)
            odd = sums.of([a if a != b else 0 for a, b in zip(first, second, strict=True)], vector)
            made.append(_binary("arith.subf" if earlier is not None else "arith.addf", even, odd))
        return made

    def _product(
        self, orders: tuple[list[int], list[int], list[int]], buffers: Sequence[Buffer], reducing: Sequence[int]
    ) -> LoopNest:
        """A product of matrices for each place of a tile, the first loop."""
        weights, image, result = orders
        loops = [*result, *reducing]
        place_of = {loop: k + 1 for k, loop in enumerate(loops)}

        def access(buffer: Buffer, order: Sequence[int]) -> Access:
            return Access.of_loops(buffer, [0, *(place_of[loop] for loop in order)], len(loops) + 1)

        left, right = load(access(buffers[1], image)), load(access(buffers[0], weights))
        product = operation("arith.mulf", [left, right], _KIND)
        return LoopNest(
            sizes=(buffers[0].sizes[0], *map(self._extent, loops)),
            reduction=(False, *(loop in reducing for loop in loops)),
            outputs=(access(buffers[2], result),),
            values=(operation("arith.addf", [accumulator(0, _KIND), product], _KIND),),
            initial=_ZERO,
        )

    def _results(self, order: Sequence[int], source: Buffer, parts: Sequence[_Part]) -> LoopNest:
        """The results of tiles, with the convolution's epilogue."""
        step = self.found.step
        places = itertools.product(*(range(self.by.products) for _ in parts))
        products = {
            place: load(self._of_tile(source, number, order, parts))
            for number, place in enumerate(places)
        }
        outputs: list[Access] = []
        values: list[Expression] = []
        for place, total in self._along_all(products, self.by.outputs).items():
            if any(k >= part.results for k, part in zip(place, parts, strict=True)):
                continue
            if step.epilogue is None:
                stored, of = step.outputs, (total,)
            else:
                stored = step.epilogue.outputs
                moved = {load(a): load(self._in_tiles(a, order, parts, place)) for a in step.epilogue.body.loads}
                of = substituted(step.epilogue.values, {reduced(0, _KIND): total, **moved})
            outputs += [self._in_tiles(access, order, parts, place) for access in stored]
            values += of
        return LoopNest(self._sizes(order, parts), (False,) * len(order), tuple(outputs), tuple(values))

    def _in_tiles(self, access: Access, order: Sequence[int], parts: Sequence[_Part], places: Sequence[int]) -> Access:
        """An access of the convolution at one place of each tile, over the loops ``order``."""
        slid, by = self.found.slid, self.by.results

        def moved(index: AffineExpr) -> AffineExpr:
            factors = tuple(index.factors[loop] * (by if loop in slid else 1) for loop in order)
            starts = (index.factors[loop] * (by * parts[k].first + places[k]) for loop, k in slid.items())
            return AffineExpr(factors, index.constant + sum(starts))

        return replace(access, indices=tuple(map(moved, access.indices)))


def _is_mirrored(row: Sequence[object], other: Sequence[object]) -> bool:
    """Whether rows differ in the signs of some elements, and in nothing else."""
    pairs = list(zip(row, other, strict=True))
    return row != other and all(a in (b, -b) for a, b in pairs) and any(a == b != 0 for a, b in pairs)  # type: ignore


@dataclass(frozen=True)
class _Sums:
    """Sums of products with numbers. ``fused``: multiply-add is one instruction."""

    fused: bool

    def of(self, factors: Sequence, values: Sequence[Expression]) -> Expression:
        """The sum; values whose factors are alike up to their signs are added first, so that sums share that."""
        terms: dict[object, list[tuple[int, Expression]]] = {}
        for factor, value in zip(factors, values, strict=True):
            if factor and value is not _ZERO:
                terms.setdefault(abs(factor), []).append((1 if factor > 0 else -1, value))
        total: Expression | None = None
        for factor, signed in sorted(terms.items(), key=lambda term: term[0] != 1):  # type: ignore[arg-type]
            sign, part = _added(signed)
            total = self._plus(total, float(sign * factor), part)  # type: ignore[operator]
        return _ZERO if total is None else total

    def _plus(self, total: Expression | None, factor: float, value: Expression) -> Expression:
        if total is None:
            return value if factor == 1 else _binary("arith.mulf", value, constant(factor, _KIND))
        if factor in (1, -1):
            return _binary("arith.addf" if factor == 1 else "arith.subf", total, value)
        if self.fused:
            return operation("math.fma", [value, constant(factor, _KIND), total], _KIND)
        return _binary("arith.addf", total, _binary("arith.mulf", value, constant(factor, _KIND)))


def _added(signed: Sequence[tuple[int, Expression]]) -> tuple[int, Expression]:
    """A sign, and the sum of values with signs that it is the sign of."""
    (sign, total), *rest = signed
    for own, value in rest:
        total = _binary("arith.addf" if own == sign else "arith.subf", total, value)
    return sign, total


def _binary(op: str, left: Expression, right: Expression) -> Expression:
    if op in ("arith.addf", "arith.subf") and right is _ZERO:
        return left
    if op == "arith.addf" and left is _ZERO:
        return right
    return operation(op, [left, right], _KIND)

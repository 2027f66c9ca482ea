"""Dataflow of a kernel: the loops that its values vary with, and fused multiply-adds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from torchmdla.devices.cpu.ir.expressions import Expression, contents
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest
from torchmdla.devices.cpu.ir.patterns import find_matches, op

# Represents the reduction among the loops that a value varies with, even if all reduction loops were removed.
ACCUMULATION = -1

_REDUCED = ("accumulator", "reduced")
_PRODUCTS = tuple(
    op(addition, op(""), op(product, name="product"), name="sum")
    for addition, product in (("arith.addf", "arith.mulf"), ("arith.addf", "dot"), ("arith.addi", "dot"))
)


@lru_cache(maxsize=4096)
def varying_loops(nest: AnyNest) -> Mapping[Expression, frozenset[int]]:
    """Return the loops that each value of the nest and its epilogue varies with.

    ``ACCUMULATION`` is included if the value depends on an accumulator.
    """
    every = frozenset((*range(len(nest.sizes)), ACCUMULATION))
    varying: dict[Expression, frozenset[int]] = {}

    def of_operand(number: int) -> frozenset[int]:
        return frozenset(d for d, stride in enumerate(nest.operands[number].strides) if stride != 0)

    def loops_of(e: Expression) -> frozenset[int]:
        if e.op == "operand":
            return of_operand(e.payload)
        if e.op in _REDUCED:
            # The roots of a scatter begin with its place.
            moving = varying[nest.place] if nest.place else frozenset()
            return every if nest.accumulates else of_operand(len(nest.inputs) + e.payload) | moving
        return frozenset([e.payload] if e.op == "index" else [])

    roots = (*nest.roots, *nest.asserts, *(nest.epilogue.values if nest.epilogue else ()))
    for e in contents(roots).expressions:
        varying[e] = loops_of(e).union(*(varying[operand] for operand in e.operands))
    return varying


def serial_loops(nest: AnyNest) -> frozenset[int]:
    """Return the loops that the place of a scatter's outputs varies with: their iterations may update one element."""
    return varying_loops(nest)[nest.place] if nest.place else frozenset()


@lru_cache(maxsize=4096)
def multiply_adds(nest: AnyNest) -> Mapping[Expression, Expression]:
    """Return the additions to accumulators that can be fused, each with its product or sum of products.

    The addition must be the product's only user. Then one instruction computes both. A scatter rounds products as eager
    mode does.
    """
    fusible: dict[Expression, Expression] = {}
    if nest.place:
        return fusible
    for roots in ((*nest.values, *nest.asserts), nest.epilogue.values if nest.epilogue else ()):
        for match in (match for pattern in _PRODUCTS for match in find_matches(pattern, roots)):
            addition, product = match["sum"], match["product"]
            if product.type not in ("f32", "f64", "i32") or not any(o.op in _REDUCED for o in addition.operands):
                continue
            if contents(roots).users(product) == [addition] and product not in roots:
                fusible[addition] = product
    return fusible

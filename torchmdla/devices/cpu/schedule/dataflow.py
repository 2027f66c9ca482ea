"""What the values of a kernel vary with, and which of them one instruction computes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from torchmdla.devices.cpu.expressions import Expression, contents
from torchmdla.devices.cpu.kernel_spec import AnyNest
from torchmdla.devices.cpu.patterns import op, within

# Stands for the reduction among the loops that a value varies with, also where no loop is left of it.
ACCUMULATION = -1

_REDUCED = ("accumulator", "reduced")
_PRODUCTS = tuple(
    op(addition, op(""), op(product, name="product"), name="sum")
    for addition, product in (("arith.addf", "arith.mulf"), ("arith.addf", "dot"), ("arith.addi", "dot"))
)


@lru_cache(maxsize=4096)
def varying_loops(nest: AnyNest) -> Mapping[Expression, frozenset[int]]:
    """For each value of the nest and of its epilogue the loops that it varies with, and ``ACCUMULATION`` if it depends
    on what is accumulated."""
    every = frozenset((*range(len(nest.sizes)), ACCUMULATION))
    found: dict[Expression, frozenset[int]] = {}

    def of_operand(number: int) -> frozenset[int]:
        return frozenset(d for d, stride in enumerate(nest.operands[number].strides) if stride != 0)

    def own(e: Expression) -> frozenset[int]:
        if e.op == "operand":
            return of_operand(e.payload)
        if e.op in _REDUCED:
            return every if nest.accumulates else of_operand(len(nest.inputs) + e.payload)
        return frozenset([e.payload] if e.op == "index" else [])

    for e in contents((*nest.values, *nest.asserts, *(nest.epilogue.values if nest.epilogue else ()))).expressions:
        found[e] = own(e).union(*(found[operand] for operand in e.operands))
    return found


@lru_cache(maxsize=4096)
def multiply_adds(nest: AnyNest) -> Mapping[Expression, Expression]:
    """Additions to what is accumulated, each with the product, or sum of products, that it adds and that nothing else
    reads: one instruction can do both."""
    found: dict[Expression, Expression] = {}
    for roots in ((*nest.values, *nest.asserts), nest.epilogue.values if nest.epilogue else ()):
        for match in (match for pattern in _PRODUCTS for match in within(pattern, roots)):
            addition, product = match["sum"], match["product"]
            if product.type not in ("f32", "f64", "i32") or not any(o.op in _REDUCED for o in addition.operands):
                continue
            if contents(roots).readers(product) == [addition] and product not in roots:
                found[addition] = product
    return found

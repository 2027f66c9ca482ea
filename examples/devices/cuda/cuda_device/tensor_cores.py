"""Products of matrices by tensor cores: a warp multiplies blocks of 16 × 16 numbers (``wmma`` of PTX).

The matrices have elements of float16 or bfloat16, sizes that are multiples of 16, and a float32 result. Other products
are loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import arith, llvm, memref, scf

SIZE = 16

# The part of a block that a thread of a warp has, by the element's type: its values, all of one type.
_FRAGMENTS = {"f16": (8, "vector<2xf16>"), "bf16": (4, "i32"), "f32": (8, "f32")}


@dataclass(frozen=True)
class Matrix:
    """Matrices in a buffer: the distances of elements, the block's layout, and the distance of its rows or columns."""

    value: Any
    element: str
    strides: Mapping[int, int]
    offset: int
    layout: str
    leading: int

    @classmethod
    def of(cls, value: Any, affine_map: Any, row: int, column: int) -> Matrix | None:
        """Return a matrix, or None if blocks of it have no layout that a warp loads, or are not aligned."""
        kind = ir.MemRefType(value.type)
        distances, offset = kind.get_strides_and_offset()
        dims = [position.position for position in affine_map.results]
        strides = dict(zip(dims, distances, strict=True))
        if set(map(type, affine_map.results)) != {ir.AffineDimExpr} or not {row, column} <= set(dims):
            return None
        layout, unit, leading = ("row", column, row) if strides[column] == 1 else ("col", row, column)
        rest = [stride for d, stride in strides.items() if d != unit]
        if strides[unit] != 1 or any(number % SIZE for number in (offset, *rest)):
            return None
        return cls(value, str(kind.element_type), strides, offset, layout, strides[leading])


@dataclass(frozen=True)
class Product:
    """Sum over ``k`` of ``left[…, m, k] * right[…, k, n]``, which is added to ``result[…, m, n]``."""

    left: Matrix
    right: Matrix
    result: Matrix
    sizes: tuple[int, ...]
    m: int
    n: int
    k: int

    @property
    def grid(self) -> dict[int, int]:
        """Return the numbers of blocks of the result, by loop."""
        return {d: size // SIZE if d in (self.m, self.n) else size for d, size in enumerate(self.sizes) if d != self.k}

    @property
    def warps(self) -> int:
        return math.prod(self.grid.values())


def product_of(
    body: Any, sizes: tuple[int, ...], reductions: Sequence[int], values: Sequence[Any], maps: Sequence[Any]
) -> Product | None:
    """Return the product that an op with one body computes, or None."""
    if len(values) != 3 or len(reductions) != 1 or not _multiplies(body):
        return None
    dims = [
        {position.position for position in affine_map.results if isinstance(position, ir.AffineDimExpr)}
        for affine_map in maps
    ]
    (k,) = reductions
    rows, columns = dims[0] - dims[1], dims[1] - dims[0]
    if len(rows) != 1 or len(columns) != 1 or k not in dims[0] & dims[1]:
        return None
    (m,), (n,) = rows, columns
    if any(sizes[d] % SIZE for d in (m, n, k)):
        return None
    left, right, result = (
        Matrix.of(value, affine_map, row, column)
        for value, affine_map, (row, column) in zip(values, maps, ((m, k), (k, n), (m, n)), strict=True)
    )
    if left is None or right is None or result is None or result.layout != "row":
        return None
    return Product(left, right, result, sizes, m, n, k)


def _multiplies(body: Any) -> bool:
    """Return whether a body adds the product of two narrow numbers to a float32."""
    left, right, total = body.arguments
    *_, end = body.operations
    names = sorted(op.operation.name for op in body.operations)
    if names != ["arith.addf", "arith.extf", "arith.extf", "arith.mulf", "linalg.yield"]:
        return False
    add = end.operands[0].owner.operation
    factors = [value.owner.operation for value in add.operands if value != total]
    return (
        add.name == "arith.addf"
        and len(factors) == 1
        and factors[0].name == "arith.mulf"
        and {value.owner.operation.operands[0] for value in factors[0].operands} == {left, right}
        and str(left.type) == str(right.type) in ("f16", "bf16")
        and str(total.type) == "f32"
    )


def write_product(product: Product, blocks: Mapping[int, Any], inside: Callable[[Any], Any]) -> None:
    """Write the computation of one block of the result by a warp.

    Args:
        product: the product.
        blocks: the block's numbers, by loop.
        inside: function that returns a kernel's value for one of the function.
    """
    corner = {
        d: arith.muli(number, index(SIZE)) if d in (product.m, product.n) else number for d, number in blocks.items()
    }
    left, right, result = product.left, product.right, product.result
    total = _load("c", result, corner, inside)
    loop = scf.ForOp(index(0), index(product.sizes[product.k]), index(SIZE), total)
    with ir.InsertionPoint(loop.body):
        place = {**corner, product.k: loop.induction_variable}
        factors = [*_load("a", left, place, inside), *_load("b", right, place, inside)]
        types = "bf16" if left.element == "bf16" else "f32.f32"
        scf.yield_(_call(f"mma.{left.layout}.{right.layout}.{types}", [*factors, *loop.inner_iter_args], "f32"))
    operands = [_address(result, corner, inside), *loop.results, i32(result.leading)]
    _call(f"store.d.{result.layout}.stride.f32.p0", operands)


def _load(fragment: str, matrix: Matrix, place: Mapping[int, Any], inside: Callable[[Any], Any]) -> list[Any]:
    """Write the load of a block, and return the values that a thread has of it."""
    operands = [_address(matrix, place, inside), i32(matrix.leading)]
    return _call(f"load.{fragment}.{matrix.layout}.stride.{matrix.element}.p0", operands, matrix.element)


def _address(matrix: Matrix, place: Mapping[int, Any], inside: Callable[[Any], Any]) -> Any:
    element = index(matrix.offset)
    for d, stride in matrix.strides.items():
        element = arith.addi(element, arith.muli(place[d], index(stride)))
    size = index(4 if matrix.element == "f32" else 2)
    start = memref.extract_aligned_pointer_as_index(inside(matrix.value))
    number = arith.index_cast(ir.IntegerType.get_signless(64), arith.addi(start, arith.muli(element, size)))
    return llvm.inttoptr(ir.Type.parse("!llvm.ptr"), number)


def _call(name: str, operands: Sequence[Any], element: str = "") -> list[Any]:
    """Write an instruction of tensor cores, and return the values of the block that it returns."""
    count, kind = _FRAGMENTS[element] if element else (0, "")
    result = ir.Type.parse(f"!llvm.struct<({', '.join([kind] * count)})>") if element else None
    block = llvm.call_intrinsic(result, f"llvm.nvvm.wmma.m16n16k16.{name}", operands, [], [])
    return [llvm.extractvalue(ir.Type.parse(kind), block, [position]) for position in range(count)]


def i32(number: int) -> Any:
    return arith.constant(ir.IntegerType.get_signless(32), number)


def index(number: int) -> Any:
    return arith.constant(ir.IndexType.get(), number)

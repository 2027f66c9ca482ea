"""Kernels in MLIR's gpu dialect: each ``linalg.generic`` on buffers becomes one kernel.

A thread computes a result, in a loop over the reductions. If there are few results, a warp of threads computes each
one: each thread has a part of the reductions, and ``gpu.shuffle`` exchanges the parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import affine, arith, gpu, memref, scf

from cuda_device.functions import has_function
from cuda_device.tensor_cores import Product, i32, index, product_of, write_product
from torchmdla.errors import CompileError

# Threads of a block, and of a warp.
BLOCK, WARP = 128, 32

# Most parameters of a kernel (runtime.c).
_MOST_PARAMETERS = 256

# Warps compute results from at least so many reductions, if there are at most so many results.
_LEAST_REDUCTIONS, _MOST_RESULTS = 64, 16384

# Ops that combine parts of a reduction, and the number that changes nothing.
_NEUTRAL: Mapping[str, Callable[[Any], Any]] = {
    "arith.addf": lambda kind: 0.0,
    "arith.mulf": lambda kind: 1.0,
    "arith.maximumf": lambda kind: -math.inf,
    "arith.minimumf": lambda kind: math.inf,
    "arith.addi": lambda kind: 0,
    "arith.muli": lambda kind: 1,
    "arith.maxsi": lambda kind: -(1 << kind.width - 1),
    "arith.minsi": lambda kind: (1 << kind.width - 1) - 1,
}
# Types that threads exchange.
_EXCHANGED = frozenset({"f32", "i32", "i64"})

# Ops of which a reduction rounds a sum of a product once, as eager does.
_CONTRACTED = frozenset({"arith.addf", "arith.mulf"})

_X = gpu.Dimension.x


@dataclass(frozen=True)
class Launch:
    """Launch of a kernel: its blocks of ``BLOCK`` threads, and the buffers and numbers that it gets."""

    kernel: str
    blocks: int
    operands: tuple[Any, ...]


class Kernels:
    """Kernels of a function on buffers.

    Attributes:
        module: the ``gpu.module`` that contains them, in the module ``holder``.
        launches: the launches, in order.
    """

    def __init__(self, function: Any, inputs: int) -> None:
        """Write the kernels of a function, whose first ``inputs`` arguments are only read.

        Raises:
            CompileError: the function contains an op that has no kernel.
        """
        self._inputs = set(list(function.arguments)[:inputs])
        self.holder = ir.Module.create()
        with ir.InsertionPoint(self.holder.body):
            self.module = gpu.GPUModuleOp("kernels")
        self.module.bodyRegion.blocks.append()
        self.launches: list[Launch] = []
        for operation in function.regions[0].blocks[0].operations:
            op = operation.operation
            if op.name == "linalg.generic":
                self._add(op, _Nest.of(op))
            elif op.name == "memref.copy" and op.operands[0] != op.operands[1]:
                self._add(op, _Nest.of_copy(op))
            elif not self._is_outside(op):
                raise unsupported(op)

    def _is_outside(self, op: Any) -> bool:
        """Return whether kernels may compute an op's result later: memory, a view, or a number that does not change."""
        if op.name == "memref.load":
            return op.operands[0] in self._inputs
        return op.name in _OUTSIDE or op.name.startswith(("arith.", "math."))

    def _add(self, op: Any, nest: _Nest) -> None:
        if nest.results == 0:
            return
        name = f"k{len(self.launches)}"
        with op.location, ir.InsertionPoint(self.module.bodyRegion.blocks[0]):
            kernel = _Kernel(name)
            product, combiners = nest.product(), nest.combiners()
            with ir.InsertionPoint(kernel.block):
                if product is not None:
                    _write_product(kernel, product)
                else:
                    _write(kernel, nest, combiners)
                gpu.return_([])
            kernel.end()
        if len(kernel.operands) > _MOST_PARAMETERS:
            raise CompileError(f"a kernel of the cuda device has at most {_MOST_PARAMETERS} buffers")
        results = nest.results if product is None else product.warps
        threads = results * (1 if product is None and not combiners else WARP)
        self.launches.append(Launch(name, -(-threads // BLOCK), tuple(kernel.operands)))


# Ops of the function that are not kernels.
_OUTSIDE = frozenset(
    {
        *("func.return", "memref.alloc", "memref.copy", "memref.get_global"),
        *("memref.cast", "memref.collapse_shape", "memref.expand_shape", "memref.subview", "memref.reinterpret_cast"),
    }
)


@dataclass(frozen=True)
class _Nest:
    """Loops of an op: their sizes, and the places of the operands' elements as maps of the loops."""

    sizes: tuple[int, ...]
    parallel: tuple[int, ...]
    reductions: tuple[int, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    maps: tuple[Any, ...]
    body: Any | None = None

    @classmethod
    def of(cls, op: Any) -> _Nest:
        maps = tuple(attribute.value for attribute in op.attributes["indexing_maps"])
        kinds = ["reduction" in str(kind) for kind in op.attributes["iterator_types"]]
        operands = list(op.operands)
        inputs = len(operands) - _outputs_of(op)
        return cls(
            _loop_sizes(maps, operands),
            tuple(d for d, is_reduction in enumerate(kinds) if not is_reduction),
            tuple(d for d, is_reduction in enumerate(kinds) if is_reduction),
            tuple(operands[:inputs]),
            tuple(operands[inputs:]),
            maps,
            op.regions[0].blocks[0],
        )

    @classmethod
    def of_copy(cls, op: Any) -> _Nest:
        source, destination = op.operands
        sizes = shape_of(source)
        place = ir.AffineMap.get_identity(len(sizes))
        return cls(sizes, tuple(range(len(sizes))), (), (source,), (destination,), (place, place))

    @property
    def carried(self) -> list[Any]:
        """Return the arguments of the body that are earlier elements of the outputs."""
        return [] if self.body is None else list(self.body.arguments)[len(self.inputs) :]

    @property
    def output_maps(self) -> tuple[Any, ...]:
        return self.maps[len(self.inputs) :]

    @property
    def results(self) -> int:
        return math.prod(self.sizes[d] for d in self.parallel)

    def product(self) -> Product | None:
        """Return the product of matrices that tensor cores compute, or None."""
        if self.body is None:
            return None
        return product_of(self.body, self.sizes, self.reductions, (*self.inputs, *self.outputs), self.maps)

    def combiners(self) -> list[Any]:
        """Return the ops by which the threads of a warp combine their parts of results; empty if a thread has all."""
        reductions = math.prod(self.sizes[d] for d in self.reductions)
        if self.body is None or reductions < _LEAST_REDUCTIONS or self.results > _MOST_RESULTS:
            return []
        *_, end = self.body.operations
        carried = self.carried
        ops = [value.owner.operation for value in end.operands if isinstance(value, ir.OpResult)]
        is_combined = len(ops) == len(carried) and all(
            op.name in _NEUTRAL
            and [use.owner.operation for use in argument.uses] == [op]
            and str(argument.type) in _EXCHANGED
            for op, argument in zip(ops, carried, strict=True)
        )
        return ops if is_combined else []


class _Kernel:
    """Kernel that is being written: its parameters are the buffers and numbers that it uses.

    Attributes:
        block: the block of operations to which it is written.
        operands: the function's values that are its parameters.
        thread: the number of the thread among those of all blocks.
    """

    def __init__(self, name: str) -> None:
        empty = ir.FunctionType.get([], [])
        self._function = gpu.GPUFuncOp(empty, name, kernel=True, known_block_size=[BLOCK, 1, 1])
        self.block = self._function.add_entry_block()
        self.operands: list[Any] = []
        self._values: dict[Any, Any] = {}
        with ir.InsertionPoint(self.block):
            block = gpu.block_id(_X)
            self.thread = arith.addi(arith.muli(block, index(BLOCK)), gpu.thread_id(_X))
        self._start = block.owner

    def end(self) -> None:
        kind = ir.FunctionType.get([argument.type for argument in self.block.arguments], [])
        self._function.attributes["function_type"] = ir.TypeAttr.get(kind)

    def outside(self, value: Any) -> Any:
        """Return the kernel's value for one of the function: a parameter, or a copy of the op that computes it."""
        if value not in self._values:
            if isinstance(value, ir.BlockArgument) or value.owner.operation.name in (
                "memref.alloc",
                "memref.get_global",
            ):
                self.operands.append(value)
                self._values[value] = self.block.add_argument(value.type, ir.Location.unknown())
            else:
                with ir.InsertionPoint(self._start):
                    self._values[value] = self.copy(value.owner.operation, self.outside)
        return self._values[value]

    def copy(self, op: Any, value_of: Callable[[Any], Any]) -> Any:
        """Return the result of a copy of an op on other operands."""
        has_code = has_function(op) if op.name.startswith("math.") else not op.regions and len(op.results) == 1
        if not has_code:
            raise unsupported(op)
        operands = [value_of(operand) for operand in op.operands]
        copy = op.clone()
        for position, operand in enumerate(operands):
            copy.operands[position] = operand
        return copy.results[0]


def _write(kernel: _Kernel, nest: _Nest, combiners: list[Any]) -> None:
    """Write the body of a kernel: a warp computes each result if there are ``combiners``, otherwise a thread."""
    lane = arith.remui(kernel.thread, index(WARP)) if combiners else index(0)
    result = arith.divui(kernel.thread, index(WARP)) if combiners else kernel.thread
    with _guarded(arith.cmpi(arith.CmpIPredicate.ult, result, index(nest.results))):
        loops = _split(result, nest.parallel, nest.sizes)
        if nest.reductions:
            values = _reduced(kernel, nest, loops, lane, combiners)
        else:
            values = _body(kernel, nest, loops, _earlier(kernel, nest, loops))
        with _guarded(arith.cmpi(arith.CmpIPredicate.eq, lane, index(0))):
            for value, output, affine_map in zip(values, nest.outputs, nest.output_maps, strict=True):
                memref.store(value, kernel.outside(output), _place(affine_map, loops))


def _write_product(kernel: _Kernel, product: Product) -> None:
    """Write the body of a kernel in which a warp computes each block of a product."""
    warp = arith.divui(kernel.thread, index(WARP))
    with _guarded(arith.cmpi(arith.CmpIPredicate.ult, warp, index(product.warps))):
        write_product(product, _split(warp, list(product.grid), product.grid), kernel.outside)


@contextmanager
def _guarded(condition: Any) -> Iterator[None]:
    guard = scf.IfOp(condition)
    with ir.InsertionPoint(guard.then_block):
        yield
        scf.yield_([])


def _earlier(kernel: _Kernel, nest: _Nest, loops: Mapping[int, Any]) -> dict[Any, Any]:
    """Return the earlier elements of the outputs that the op's body reads, by the body's arguments."""
    return {
        argument: _element(kernel, output, affine_map, loops)
        for argument, output, affine_map in zip(nest.carried, nest.outputs, nest.output_maps, strict=bool(nest.body))
        if next(iter(argument.uses), None) is not None
    }


def _reduced(kernel: _Kernel, nest: _Nest, loops: Mapping[int, Any], lane: Any, combiners: list[Any]) -> list[Any]:
    """Write a loop over the reductions, and return its results. With ``combiners`` it has a part of the reductions."""
    earlier = _earlier(kernel, nest, loops)
    if len(earlier) != len(nest.carried):
        raise CompileError("the cuda device has no code for reductions that do not read their results")
    starts = [_neutral(op) for op in combiners] or list(earlier.values())
    total = math.prod(nest.sizes[d] for d in nest.reductions)
    loop = scf.ForOp(lane, index(total), index(WARP if combiners else 1), starts)
    with ir.InsertionPoint(loop.body):
        inner = {**loops, **_split(loop.induction_variable, nest.reductions, nest.sizes)}
        scf.yield_(_body(kernel, nest, inner, dict(zip(nest.carried, loop.inner_iter_args, strict=True))))
    values = list(loop.results)
    for k, op in enumerate(combiners):
        for distance in (16, 8, 4, 2, 1):
            other = gpu.shuffle(values[k], i32(distance), i32(WARP), gpu.ShuffleMode.XOR)[0]
            values[k] = _combined(kernel, op, values[k], other)
        values[k] = _combined(kernel, op, earlier[nest.carried[k]], values[k])
    return values


def _combined(kernel: _Kernel, op: Any, first: Any, second: Any) -> Any:
    return kernel.copy(op, dict(zip(op.operands, (first, second), strict=True)).__getitem__)


def _body(kernel: _Kernel, nest: _Nest, loops: Mapping[int, Any], carried: Mapping[Any, Any]) -> list[Any]:
    """Write the op's body at a place, and return the values that it yields."""
    elements = list(zip(nest.inputs, nest.maps, strict=False))
    if nest.body is None:
        return [_element(kernel, value, affine_map, loops) for value, affine_map in elements]
    values = dict(carried)
    for argument, (value, affine_map) in zip(nest.body.arguments, elements, strict=False):
        if next(iter(argument.uses), None) is not None:
            values[argument] = _element(kernel, value, affine_map, loops)

    def value_of(value: Any) -> Any:
        return values[value] if value in values else kernel.outside(value)

    *operations, end = nest.body.operations
    for operation in operations:
        op = operation.operation
        if op.name == "linalg.index":
            values[op.results[0]] = loops[ir.IntegerAttr(op.attributes["dim"]).value]
        else:
            values[op.results[0]] = kernel.copy(op, value_of)
            if nest.reductions and op.name in _CONTRACTED:
                contract = ir.Attribute.parse("#arith.fastmath<contract>")
                values[op.results[0]].owner.attributes["fastmath"] = contract
    return [value_of(value) for value in end.operands]


def _element(kernel: _Kernel, value: Any, affine_map: Any, loops: Mapping[int, Any]) -> Any:
    inside = kernel.outside(value)
    return memref.load(inside, _place(affine_map, loops)) if isinstance(value.type, ir.MemRefType) else inside


def _place(affine_map: Any, loops: Mapping[int, Any]) -> list[Any]:
    """Return the indices of an element."""
    places = []
    for position in affine_map.results:
        if isinstance(position, ir.AffineDimExpr):
            places.append(loops[position.position])
        elif isinstance(position, ir.AffineConstantExpr):
            places.append(index(position.value))
        else:
            used = [loops.get(d) or index(0) for d in range(affine_map.n_dims)]
            places.append(affine.apply(ir.AffineMap.get(affine_map.n_dims, 0, [position]), used))
    return places


def _split(number: Any, dims: Sequence[int], sizes: Mapping[int, int] | Sequence[int]) -> dict[int, Any]:
    """Return the indices of loops from the number of an iteration, whose last loop is the fastest."""
    loops = {}
    for d in reversed(dims[1:]):
        size = index(max(sizes[d], 1))
        loops[d] = arith.remui(number, size)
        number = arith.divui(number, size)
    return {**loops, **dict.fromkeys(dims[:1], number)}


def _neutral(op: Any) -> Any:
    kind = op.results[0].type
    return arith.constant(kind, _NEUTRAL[op.name](kind))


def _outputs_of(op: Any) -> int:
    return list(op.attributes["operandSegmentSizes"])[1]


def _loop_sizes(maps: Sequence[Any], operands: Sequence[Any]) -> tuple[int, ...]:
    """Return the sizes of loops. Each loop is a plain dimension of some operand."""
    sizes: dict[int, int] = {}
    for affine_map, value in zip(maps, operands, strict=True):
        shape = shape_of(value) if isinstance(value.type, ir.MemRefType) else ()
        for position, size in zip(affine_map.results, shape, strict=True):
            if isinstance(position, ir.AffineDimExpr):
                sizes[position.position] = size
    return tuple(sizes[d] for d in range(maps[0].n_dims))


def shape_of(value: Any) -> tuple[int, ...]:
    kind = ir.MemRefType(value.type)
    if not kind.has_static_shape:
        raise CompileError(f"the cuda device takes no sizes that vary: {kind}")
    return tuple(kind.shape)


def unsupported(op: Any) -> CompileError:
    """Return the error of an operation that kernels cannot compute: its group is compiled without the call."""
    return CompileError(f"the cuda device has no code for {op.name}", diagnostic=str(op.location))

"""Kernels of OpenCL C from linalg on tensors: each ``linalg.generic`` becomes one kernel.

The parallel loops of an op are the work items, and its reductions are loops in the work item::

    linalg.generic {(d0, d1, d2) -> (d0, d2), … (d0, d1)} { %0 * %1 + %2 }

    kernel void k0(global const float *b0, global const float *b1, global float *b2) {
      int id = get_global_id(0);
      int d1 = id % 64; id /= 64; int d0 = id;
      float acc0 = 0;
      for (int d2 = 0; d2 < 128; ++d2) { … }
      b2[d0 * 64 + d1] = acc0;
    }
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch_mlir import ir

from opencl_device.program import Buffer, Step
from opencl_device.scalars import expression, register_type, stored_type, type_of, unsupported
from torchmdla.errors import CompileError

# Sums of more terms are sums of parts with so many terms each, so that rounding errors stay small.
_PART = 256


@dataclass(frozen=True)
class View:
    """Tensor in a buffer: its first element and the distance between elements in each dimension, in elements."""

    buffer: Buffer
    element: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def whole(cls, buffer: Buffer, element: str, shape: Sequence[int]) -> View:
        return cls(buffer, element, tuple(shape), contiguous(shape))

    @property
    def is_whole(self) -> bool:
        """Return whether it consists of the buffer's elements in their order."""
        used = [(n, s) for n, s in zip(self.shape, self.strides, strict=True) if n != 1]
        standard = [(n, s) for n, s in zip(self.shape, contiguous(self.shape), strict=True) if n != 1]
        size = math.prod(self.shape) * element_size(self.element)
        return self.offset == 0 and used == standard and size == self.buffer.bytes

    def at(self, indices: Sequence[str]) -> str:
        """Return the place of an element, as an expression."""
        terms = [f"({i}) * {s}" for i, s, n in zip(indices, self.strides, self.shape, strict=True) if n != 1 and s]
        return " + ".join([*terms, str(self.offset)])


class Generator:
    """Generator of the kernels and steps of a function on tensors.

    Attributes:
        steps: the calls of kernels, in order.
        literals: the contents of constant tensors, by buffer.
        failure: the number that kernels set to 1 if a check fails.
    """

    def __init__(self, function: Any, arguments: Sequence[Buffer]) -> None:
        self.steps: list[Step] = []
        self.literals: dict[Buffer, bytes] = {}
        self.failure = View.whole(Buffer("failure", 4, 0), "i32", ())
        self._function = function
        self._kernels: dict[str, str] = {}
        self._views: dict[Any, View] = {}
        # Scalars with which all elements of a tensor are filled; None if they are not defined.
        self._uniform: dict[Any, Any] = {}
        self._scalars: dict[Any, View] = {}
        for value, buffer in zip(function.arguments, arguments, strict=True):
            if isinstance(value.type, ir.RankedTensorType):
                self._views[value] = View.whole(buffer, _element(value), shape_of(value))
            else:
                self._scalars[value] = View.whole(buffer, str(value.type), ())

    @property
    def source(self) -> str:
        return "\n".join(text.replace("NAME", name, 1) for text, name in self._kernels.items())

    def generate(self) -> tuple[Buffer, ...]:
        """Generate all kernels, and return the buffers of the results.

        Raises:
            CompileError: the function contains an op that has no kernel.
        """
        *operations, end = self._function.regions[0].blocks[0].operations
        for operation in operations:
            op = operation.operation
            makes_tensors = any(isinstance(result.type, ir.RankedTensorType) for result in op.results)
            if op.name.startswith(("arith.", "math.", "tensor.extract")) and not makes_tensors:
                continue  # Kernels compute the numbers that they use.
            handler = _HANDLERS.get(op.name)
            if handler is None:
                raise unsupported(op)
            handler(self, op)
        results: list[Buffer] = []
        for value in end.operands:
            view = self._views.get(value)
            if view is None or view.buffer.kind != "temporary" or not view.is_whole or view.buffer in results:
                view = self._copied(self._view(value))
            results.append(view.buffer)
        return tuple(results)

    # Tensors.

    def _view(self, value: Any) -> View:
        if value not in self._views:
            self._views[value] = self._new(value)
            if self._uniform[value] is not None:
                self._fill(self._views[value], self._uniform[value])
        return self._views[value]

    def _new(self, value: Any) -> View:
        return new_tensor(_element(value), shape_of(value))

    def _fill(self, view: View, scalar: Any) -> None:
        kernel = _Kernel(self)
        text = kernel.outside(scalar)
        kernel.store(view, [f"d{k}" for k in range(len(view.shape))], text)
        self._add(kernel, view.shape, range(len(view.shape)))

    def _copy(self, source: View, destination: View) -> None:
        kernel = _Kernel(self)
        indices = [f"d{k}" for k in range(len(source.shape))]
        kernel.store(destination, indices, kernel.load(source, indices))
        self._add(kernel, source.shape, range(len(source.shape)))

    def _copied(self, source: View) -> View:
        destination = new_tensor(source.element, source.shape)
        self._copy(source, destination)
        return destination

    def _writable(self, value: Any) -> View:
        """Return the memory of a tensor that the next op changes, which is a copy if anything else reads the tensor."""
        view = self._view(value)
        is_written = isinstance(value, ir.OpResult) and value.owner.operation.name == "tensor.insert_slice"
        is_own = value in self._uniform or is_written
        return view if is_own and len(list(value.uses)) == 1 else self._copied(view)

    def _add(self, kernel: _Kernel, sizes: Sequence[int], parallel: Sequence[int]) -> None:
        items = math.prod(sizes[d] for d in parallel)
        if items == 0:
            return
        is_small = max(math.prod(sizes), *(buffer.bytes for buffer in kernel.buffers)) < 1 << 31
        head = f"  typedef {'int' if is_small else 'long'} place;\n  place id = get_global_id(0);\n"
        for d in reversed(parallel):
            head += f"  const place d{d} = id % {sizes[d]}; id /= {sizes[d]};\n"
        parameters = ", ".join(
            f"global {stored_type(element)} *b{number}" for number, element in enumerate(kernel.elements)
        )
        text = f"kernel void NAME({parameters}) {{\n{head}{kernel.text}}}\n"
        name = self._kernels.setdefault(text, f"k{len(self._kernels)}")
        self.steps.append(Step(name, items, tuple(kernel.buffers)))

    # Ops, by name in _HANDLERS.

    def constant(self, op: Any) -> None:
        value, attribute = op.results[0], op.attributes["value"]
        if not isinstance(attribute, ir.DenseElementsAttr):
            raise unsupported(op)
        if attribute.is_splat:
            self._uniform[value] = attribute.get_splat_value()
            return
        array = np.asarray(attribute)
        view = self._views[value] = View.whole(
            Buffer("literal", array.size * element_size(_element(value))), _element(value), shape_of(value)
        )
        self.literals[view.buffer] = np.ascontiguousarray(array).tobytes()

    def empty(self, op: Any) -> None:
        self._uniform[op.results[0]] = None

    def cast(self, op: Any) -> None:
        self._alias(op, lambda view: view)

    def collapse_shape(self, op: Any) -> None:
        def collapse(view: View) -> View:
            shape, strides = [], []
            for group in _reassociation(op):
                dims = [(view.shape[d], view.strides[d]) for d in group if view.shape[d] != 1]
                if any(outer != n * inner for (_, outer), (n, inner) in itertools.pairwise(dims)):
                    return collapse(self._copied(view))
                shape.append(math.prod(n for n, _ in dims))
                strides.append(dims[-1][1] if dims else 0)
            return replace(view, shape=tuple(shape), strides=tuple(strides))

        self._alias(op, collapse)

    def expand_shape(self, op: Any) -> None:
        def expand(view: View) -> View:
            shape, strides = shape_of(op.results[0]), [1] * len(shape_of(op.results[0]))
            for stride, group in zip(view.strides, _reassociation(op), strict=True):
                for d, inside in zip(group, contiguous([shape[d] for d in group]), strict=True):
                    strides[d] = stride * inside
            return replace(view, shape=shape, strides=tuple(strides))

        self._alias(op, expand)

    def extract_slice(self, op: Any) -> None:
        self._alias(op, lambda view: _block(view, op, shape_of(op.results[0])))

    def _alias(self, op: Any, derive: Callable[[View], View]) -> None:
        source, result = op.operands[0], op.results[0]
        if source in self._uniform and source not in self._views:
            self._uniform[result] = self._uniform[source]
        else:
            self._views[result] = derive(self._view(source))

    def insert_slice(self, op: Any) -> None:
        source, whole = op.operands[0], op.operands[1]
        view = self._views[op.results[0]] = self._writable(whole)
        part = _block(view, op, shape_of(source))
        if source in self._uniform and source not in self._views:
            if self._uniform[source] is not None:
                self._fill(part, self._uniform[source])
        else:
            self._copy(self._view(source), part)

    def pad(self, op: Any) -> None:
        source, result = op.operands[0], op.results[0]
        body = list(op.regions[0].blocks[0].operations)
        low = list(ir.DenseI64ArrayAttr(op.attributes["static_low"]))
        if len(op.operands) > 1 or len(body) > 1:
            raise unsupported(op)
        view = self._views[result] = self._new(result)
        self._fill(view, body[-1].operation.operands[0])
        offset = sum(place * stride for place, stride in zip(low, view.strides, strict=True))
        self._copy(self._view(source), replace(view, shape=shape_of(source), offset=offset))

    def scatter(self, op: Any) -> None:
        """Write blocks, one after the other, because their places may be equal: each row of indices is a place."""
        updates, rows, whole = op.operands
        sizes, shape = shape_of(updates), shape_of(whole)
        indexed = list(ir.DenseI64ArrayAttr(op.attributes["dimension_map"]))
        view = self._views[op.results[0]] = self._writable(whole)
        # Loop 0 is over the blocks, and loop k > 0 over the dimension `first + k` of a block.
        first = len(shape) - len(sizes)
        parallel = [k for k in range(1, len(sizes)) if first + k not in indexed]
        kernel = _Kernel(self)
        for k in sorted({*range(len(sizes))} - {*parallel}):
            kernel.line(f"for (place d{k} = 0; d{k} < {sizes[k]}; ++d{k}) {{")
        places = [f"d{d - first}" if d > first else "0" for d in range(len(shape))]
        for number, d in enumerate(indexed):
            kernel.line(f"const long i{number} = {kernel.operand(rows, ['d0', str(number)])} + {places[d]};")
            places[d] = f"i{number}"
            kernel.check(f"i{number} >= 0 && i{number} < {shape[d]}")
        block = op.regions[0].blocks[0]
        texts = kernel.operand(updates, [f"d{k}" for k in range(len(sizes))]), kernel.load(view, places)
        values = {
            argument: kernel.define(argument, text) for argument, text in zip(block.arguments, texts, strict=True)
        }
        kernel.store(view, places, *kernel.body(block, values))
        kernel.line("}" * (len(sizes) - len(parallel)))
        self._add(kernel, sizes, parallel)

    def check(self, op: Any) -> None:
        kernel = _Kernel(self)
        kernel.check(kernel.outside(op.operands[0]))
        self._add(kernel, (), ())

    def generic(self, op: Any) -> None:
        maps = [attribute.value for attribute in op.attributes["indexing_maps"]]
        loops = maps[0].n_dims
        reductions = [d for d, kind in enumerate(op.attributes["iterator_types"]) if "reduction" in str(kind)]
        operands = list(op.operands)
        inputs = len(operands) - len(op.results)
        block = op.regions[0].blocks[0]
        filled = _filled_with(op, operands)
        if filled is not None:
            self._uniform[op.results[0]] = filled
            return
        sizes = _loop_sizes(maps, operands, loops)
        kernel = _Kernel(self)
        values = dict[Any, str]()
        places = [[_index(expression) for expression in affine_map.results] for affine_map in maps]
        carried = list(block.arguments)[inputs:]
        for k, argument in enumerate(carried):
            if next(iter(argument.uses), None) is not None:
                start = kernel.operand(operands[inputs + k], places[inputs + k])
                kernel.line(f"{type_of(argument)} acc{k} = {start};")
                values[argument] = f"acc{k}"
        results = list(block.operations)[-1].operands
        is_long = math.prod(sizes[d] for d in reductions) > _PART and all(map(_is_sum, carried, results))
        flush = "".join(f"acc{k} += part{k}; part{k} = 0; " for k in range(len(carried)))
        if is_long:
            values |= {argument: f"part{k}" for k, argument in enumerate(carried)}
            kernel.line(
                "".join(f"{type_of(argument)} {values[argument]} = 0; " for argument in carried) + "int terms = 0;"
            )
        for d in reductions:
            kernel.line(f"for (place d{d} = 0; d{d} < {sizes[d]}; ++d{d}) {{")
        for k, argument in enumerate(list(block.arguments)[:inputs]):
            if next(iter(argument.uses), None) is not None:
                values[argument] = kernel.define(argument, kernel.operand(operands[k], places[k]))
        yields = kernel.body(block, values)
        if reductions:
            # All new values are known before the first accumulator changes.
            fresh = [kernel.define(argument, text) for argument, text in zip(carried, yields, strict=True)]
            for argument, text in zip(carried, fresh, strict=True):
                if argument not in values:
                    raise unsupported(op)
                kernel.line(f"{values[argument]} = {text};")
            if is_long:
                kernel.line(f"if (++terms == {_PART}) {{ {flush}terms = 0; }}")
            kernel.line("}" * len(reductions) + (flush if is_long else ""))
            yields = [f"acc{k}" for k in range(len(carried))]
        for k, (result, text) in enumerate(zip(op.results, yields, strict=True)):
            self._views[result] = self._new(result)
            kernel.store(self._views[result], places[inputs + k], text)
        self._add(kernel, sizes, [d for d in range(loops) if d not in reductions])


_HANDLERS: Mapping[str, Callable[[Generator, Any], None]] = {
    "arith.constant": Generator.constant,
    "cf.assert": Generator.check,
    "linalg.generic": Generator.generic,
    "tensor.cast": Generator.cast,
    "tensor.collapse_shape": Generator.collapse_shape,
    "tensor.empty": Generator.empty,
    "tensor.expand_shape": Generator.expand_shape,
    "tensor.extract_slice": Generator.extract_slice,
    "tensor.insert_slice": Generator.insert_slice,
    "tensor.pad": Generator.pad,
    "tm_tensor.scatter": Generator.scatter,
}


class _Kernel:
    """Text of one kernel, and the buffers that it is called with."""

    def __init__(self, generator: Generator) -> None:
        self.text = ""
        self.buffers: list[Buffer] = []
        self.elements: list[str] = []
        self._generator = generator
        self._names = 0

    def line(self, text: str) -> None:
        self.text += f"  {text}\n"

    def define(self, value: Any, text: str) -> str:
        name = f"v{self._names}"
        self._names += 1
        self.line(f"{type_of(value)} {name} = {text};")
        return name

    def load(self, view: View, indices: Sequence[str]) -> str:
        text = f"b{self._parameter(view)}[{view.at(indices)}]"
        return f"({text} != 0)" if view.element == "i1" else text

    def store(self, view: View, indices: Sequence[str], text: str) -> None:
        self.line(f"b{self._parameter(view)}[{view.at(indices)}] = {text};")

    def operand(self, value: Any, indices: Sequence[str]) -> str:
        """Return an element of a tensor, or a number."""
        generator = self._generator
        if not isinstance(value.type, ir.RankedTensorType):
            return self.outside(value)
        if value in generator._uniform and value not in generator._views and generator._uniform[value] is not None:
            return self.outside(generator._uniform[value], _element(value))
        return self.load(generator._view(value), indices)

    def outside(self, scalar: Any, element: str = "") -> str:
        """Return a number that is computed outside of the kernel: a constant, an argument, or an op on those."""
        if isinstance(scalar, ir.Attribute):
            from opencl_device.scalars import number

            return number(scalar, register_type(element or str(scalar.type)))
        if scalar in self._generator._scalars:
            return self.load(self._generator._scalars[scalar], [])
        op = scalar.owner.operation
        if op.name == "tensor.extract":
            return self.extract(op, self.outside)
        return expression(op, [self.outside(operand) for operand in op.operands])

    def extract(self, op: Any, text_of: Callable[[Any], str]) -> str:
        """Return an element of a tensor. Indices that depend on data are checked."""
        tensor, *indices = op.operands
        texts = [text_of(index) for index in indices]
        for index, text, size in zip(indices, texts, shape_of(tensor), strict=True):
            if _depends_on_data(index):
                self.check(f"{text} >= 0 && {text} < {size}")
        return self.operand(tensor, texts)

    def check(self, condition: str) -> None:
        """End the work item, and let the call fail, if a condition is false."""
        self.line(f"if (!({condition})) {{ b{self._parameter(self._generator.failure)}[0] = 1; return; }}")

    def body(self, block: Any, values: dict[Any, str]) -> list[str]:
        """Write the ops of a block, and return the values that it yields."""

        def text_of(value: Any) -> str:
            return values[value] if value in values else self.outside(value)

        *operations, end = block.operations
        for operation in operations:
            op = operation.operation
            if op.name == "cf.assert":
                self.check(text_of(op.operands[0]))
                continue
            if len(op.regions) or len(op.results) != 1:
                raise unsupported(op)
            if op.name == "linalg.index":
                text = f"d{ir.IntegerAttr(op.attributes['dim']).value}"
            elif op.name == "tensor.extract":
                text = self.extract(op, text_of)
            else:
                text = expression(op, [text_of(operand) for operand in op.operands])
            values[op.results[0]] = self.define(op.results[0], text)
        return [text_of(value) for value in end.operands]

    def _parameter(self, view: View) -> int:
        if view.buffer not in self.buffers:
            self.buffers.append(view.buffer)
            self.elements.append(view.element)
        return self.buffers.index(view.buffer)


def new_tensor(element: str, shape: Sequence[int]) -> View:
    """Return a tensor in a new buffer."""
    return View.whole(Buffer("temporary", math.prod(shape) * element_size(element)), element, shape)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def element_size(element: str) -> int:
    stored_type(element)  # An element that kernels do not have is an error.
    return 8 if element == "index" else max(1, int(element[1:]) // 8)


def shape_of(value: Any) -> tuple[int, ...]:
    kind = ir.RankedTensorType(value.type)
    if not kind.has_static_shape:
        raise CompileError(f"the opencl device takes no sizes that vary: {kind}")
    return tuple(kind.shape)


def _element(value: Any) -> str:
    return str(ir.RankedTensorType(value.type).element_type)


def _depends_on_data(number: Any) -> bool:
    """Return whether a number is computed from elements of tensors or from arguments."""
    pending, seen = [number], set[Any]()
    while pending:
        value = pending.pop()
        if not isinstance(value, ir.OpResult) or value.owner.operation.name == "tensor.extract":
            return True
        if value not in seen:
            seen.add(value)
            pending += value.owner.operation.operands
    return False


def _reassociation(op: Any) -> list[list[int]]:
    return [[int(i) for i in group] for group in op.attributes["reassociation"]]


def _is_sum(carried: Any, result: Any) -> bool:
    """Return whether a value that a reduction carries becomes its sum with a float, and nothing else reads it."""
    is_added = isinstance(result, ir.OpResult) and result.owner.operation.name == "arith.addf"
    return is_added and carried in list(result.owner.operation.operands) and len(list(carried.uses)) == 1


def _filled_with(op: Any, operands: Sequence[Any]) -> Any | None:
    """Return the number that an op fills its only result with, or None."""
    block = op.regions[0].blocks[0]
    if len(op.results) != 1 or len(list(block.operations)) != 1:
        return None
    value = next(iter(block.operations)).operation.operands[0]
    for argument, operand in zip(block.arguments, operands, strict=True):
        if argument == value:
            return None if isinstance(operand.type, ir.RankedTensorType) else operand
    return value


def _block(view: View, op: Any, shape: Sequence[int]) -> View:
    """Return the block that a slice reads or writes, in the shape ``shape``, which lacks some dimensions of size 1."""
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    offsets, sizes, steps = (
        list(ir.DenseI64ArrayAttr(op.attributes[f"static_{name}"])) for name in ("offsets", "sizes", "strides")
    )
    if dynamic in (*offsets, *sizes, *steps):
        raise unsupported(op)
    strides: list[int] = []
    for size, step, stride in zip(sizes, steps, view.strides, strict=True):
        if len(strides) < len(shape) and size == shape[len(strides)]:
            strides.append(step * stride)
    first = sum(place * stride for place, stride in zip(offsets, view.strides, strict=True))
    return replace(view, shape=tuple(shape), strides=tuple(strides), offset=view.offset + first)


def _loop_sizes(maps: Sequence[Any], values: Sequence[Any], loops: int) -> list[int]:
    """Return the sizes of loops. Each loop is a plain dimension of some operand."""
    sizes: dict[int, int] = {}
    for affine_map, value in zip(maps, values, strict=True):
        for position, size in zip(affine_map.results, _sizes(value), strict=True):
            if isinstance(position, ir.AffineDimExpr):
                sizes[position.position] = size
    return [sizes[loop] for loop in range(loops)]


def _sizes(value: Any) -> tuple[int, ...]:
    return shape_of(value) if isinstance(value.type, ir.RankedTensorType) else ()


_SIGNS = ((ir.AffineAddExpr, "+"), (ir.AffineMulExpr, "*"), (ir.AffineFloorDivExpr, "/"), (ir.AffineModExpr, "%"))


def _index(position: Any) -> str:
    """Return an index, whose parts are never negative, as an expression of the loops."""
    if isinstance(position, ir.AffineDimExpr):
        return f"d{position.position}"
    if isinstance(position, ir.AffineConstantExpr):
        return str(position.value)
    for kind, sign in _SIGNS:
        if isinstance(position, kind):
            return f"({_index(position.lhs)} {sign} {_index(position.rhs)})"
    raise CompileError(f"the opencl device has no code for the index {position}")

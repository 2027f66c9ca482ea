"""Division of batches: a model that computes a part of its batch, if every operation works on each item alone.

A tensor is *divided* along one axis: along that axis it is the concatenation of the parts' elements. Inputs and outputs
are divided along their first axis, so that each part is contiguous. If an operation mixes parts, or no rule below
covers it, the model cannot be divided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from torchmdla.devices.levels.onnx.graph import sizes_of


class _MixesParts(Exception):
    """Error for a result of one part that depends, or may depend, on another part."""


def possible_parts(model: onnx.ModelProto) -> Iterator[int]:
    """Return the numbers of equal parts, from 2 on, that divide the first axis of all inputs and outputs."""
    leading = [sizes_of(info)[0] for info in (*model.graph.input, *model.graph.output)]
    items = math.gcd(*leading)
    return (parts for parts in range(2, items + 1) if items % parts == 0)


def divide_batch(model: onnx.ModelProto, parts: int) -> onnx.ModelProto | None:
    """Return the model of one of ``parts`` equal parts of the batch; None if the model cannot be divided.

    ``model`` contains its weights and the shape of every value.
    """
    part = onnx.ModelProto()
    part.CopyFrom(model)
    try:
        _Divider(part.graph, parts).divide()
    except _MixesParts:
        return None
    return part


class _Divider:
    """Rewriter of a graph that converts each node to the size of one part."""

    def __init__(self, graph: onnx.GraphProto, parts: int) -> None:
        self.parts = parts
        self._graph = graph
        self._infos = {info.name: info for info in (*graph.input, *graph.value_info, *graph.output)}
        self._shapes = {name: sizes_of(info) for name, info in self._infos.items()}
        self._constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self._axes: dict[str, int] = {}

    def divide(self) -> None:
        for info in self._graph.input:
            self._set(info.name, 0)
        for node in self._graph.node:
            rule = _RULES.get(node.op_type)
            if rule is None:
                raise _MixesParts
            self._set(node.output[0], rule(self, node))
        if any(self._axes[info.name] != 0 for info in self._graph.output):
            raise _MixesParts
        for name, axis in self._axes.items():
            size = self._infos[name].type.tensor_type.shape.dim[axis]
            size.dim_value //= self.parts
        read = {name for node in self._graph.node for name in node.input}
        initializers = [tensor for tensor in self._graph.initializer if tensor.name in read]
        del self._graph.initializer[:]
        self._graph.initializer.extend(initializers)

    def axis(self, name: str) -> int | None:
        """Return the axis along which a value is divided; None if it is a constant."""
        return self._axes.get(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the value for the whole batch."""
        return self._constants[name].shape if name in self._constants else self._shapes[name]

    def constant(self, name: str) -> Any:
        """Return the elements of a constant.

        Raises:
            _MixesParts: the value is not a constant.
        """
        if name not in self._constants:
            raise _MixesParts
        return self._constants[name]

    def replace(self, node: onnx.NodeProto, place: int, value: Any) -> None:
        """Replace an operand of the node by another constant."""
        name = f"{node.name}_part_{place}"
        node.input[place] = name
        self._constants[name] = value
        self._graph.initializer.append(numpy_helper.from_array(value, name))

    def shorten(self, node: onnx.NodeProto, place: int, axis: int) -> None:
        """Divide a constant operand along an axis, if its parts are equal.

        If the axis has size 1 or does not exist, the operand is unchanged: it is broadcast to all parts.
        """
        value = self.constant(node.input[place])
        if axis < 0 or value.shape[axis] == 1:
            return
        if value.shape[axis] % self.parts:
            raise _MixesParts
        first, *others = np.split(value, self.parts, axis)
        if not all(np.array_equal(first, other) for other in others):
            raise _MixesParts
        self.replace(node, place, np.ascontiguousarray(first))

    def _set(self, name: str, axis: int) -> None:
        if self._shapes[name][axis] % self.parts:
            raise _MixesParts
        self._axes[name] = axis


def _attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    return next(
        (helper.get_attribute_value(attribute) for attribute in node.attribute if attribute.name == name), default
    )


def _required_axis(divider: _Divider, name: str) -> int:
    axis = divider.axis(name)
    if axis is None:
        raise _MixesParts
    return axis


def _elementwise(divider: _Divider, node: onnx.NodeProto) -> int:
    """Return the axis of the result of an operation on one operand; the other operands are numbers."""
    for name in filter(None, node.input[1:]):
        if divider.constant(name).size != 1:
            raise _MixesParts
    return _required_axis(divider, node.input[0])


def _by_image(divider: _Divider, node: onnx.NodeProto) -> int:
    """Return the axis of an operation that processes each element of the first axis alone, with constant parameters."""
    for name in filter(None, node.input[1:]):
        divider.constant(name)
    return _require_first_axis(_required_axis(divider, node.input[0]))


def _require_first_axis(axis: int) -> int:
    if axis != 0:
        raise _MixesParts
    return axis


def _resize(divider: _Divider, node: onnx.NodeProto) -> int:
    axis = _by_image(divider, node)
    scales, sizes = (node.input[place] if len(node.input) > place else "" for place in (2, 3))
    if scales and divider.constant(scales)[0] != 1:
        raise _MixesParts
    if sizes:
        _divide_size(divider, node, 3, axis)
    return axis


def _divide_size(divider: _Divider, node: onnx.NodeProto, place: int, axis: int) -> None:
    sizes = divider.constant(node.input[place]).copy()
    sizes[axis] //= divider.parts
    divider.replace(node, place, sizes)


def _gemm(divider: _Divider, node: onnx.NodeProto) -> int:
    """Return the axis of a product with a constant matrix, which is divided by rows."""
    if _attribute(node, "transA", 0):
        raise _MixesParts
    divider.constant(node.input[1])
    if len(node.input) > 2:
        divider.shorten(node, 2, len(divider.shape(node.input[2])) - 2)
    return _require_first_axis(_required_axis(divider, node.input[0]))


def _matmul(divider: _Divider, node: onnx.NodeProto) -> int:
    """Return the axis of a batched product, or of a product with a constant matrix that is divided by rows."""
    left, right = node.input
    axis, rank = _required_axis(divider, left), len(divider.shape(left))
    if divider.axis(right) is None:
        allowed = len(divider.shape(right)) == 2 and axis < rank - 1
    else:
        allowed = divider.axis(right) == axis < rank - 2 and len(divider.shape(right)) == rank
    if not allowed:
        raise _MixesParts
    return axis


def _broadcast(divider: _Divider, node: onnx.NodeProto) -> int:
    """Return the axis of an elementwise operation with broadcast operands.

    Operands are divided along the same axis, and constants are equal for all parts.
    """
    shape = divider.shape(node.output[0])
    before = {name: len(shape) - len(divider.shape(name)) for name in node.input}
    axes = {before[name] + axis for name in node.input if (axis := divider.axis(name)) is not None}
    if len(axes) != 1:
        raise _MixesParts
    (result,) = axes
    for place, name in enumerate(node.input):
        if divider.axis(name) is None:
            divider.shorten(node, place, result - before[name])
        elif divider.shape(name)[result - before[name]] != shape[result]:
            raise _MixesParts
    return result


def _softmax(divider: _Divider, node: onnx.NodeProto) -> int:
    axis, rank = _required_axis(divider, node.input[0]), len(divider.shape(node.input[0]))
    if _attribute(node, "axis", -1) % rank == axis:
        raise _MixesParts
    return axis


def _concatenate(divider: _Divider, node: onnx.NodeProto) -> int:
    result = _broadcast(divider, node)
    if _attribute(node, "axis") % len(divider.shape(node.output[0])) == result:
        raise _MixesParts
    return result


def _slice(divider: _Divider, node: onnx.NodeProto) -> int:
    axis, rank = _required_axis(divider, node.input[0]), len(divider.shape(node.input[0]))
    if any(other % rank == axis for other in divider.constant(node.input[3])):
        raise _MixesParts
    return axis


def _reshape(divider: _Divider, node: onnx.NodeProto) -> int:
    """Return the axis along which the reshaped value is divided.

    The elements keep their order. The division is preserved if an axis of the result has the same product of preceding
    sizes as the divided axis.
    """
    axis = _required_axis(divider, node.input[0])
    before = math.prod(divider.shape(node.input[0])[:axis])
    sizes = [int(size) for size in divider.constant(node.input[1])]
    for place, size in enumerate(sizes):
        if math.prod(sizes[:place]) == before and size % divider.parts == 0:
            _divide_size(divider, node, 1, place)
            return place
    raise _MixesParts


def _pad(divider: _Divider, node: onnx.NodeProto) -> int:
    axis = _required_axis(divider, node.input[0])
    pads: Sequence[int] = divider.constant(node.input[1])
    if pads[axis] or pads[axis + len(pads) // 2]:
        raise _MixesParts
    return axis


# Kind of a node -> function that returns the axis along which its result is divided.
_RULES: Mapping[str, Callable[[_Divider, onnx.NodeProto], int]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "BatchNormalization"), _by_image),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool"), _by_image),
    **dict.fromkeys(("Relu", "LeakyRelu", "Tanh", "Sigmoid", "Clip", "Identity"), _elementwise),
    **dict.fromkeys(("Add", "Sub", "Mul"), _broadcast),
    "Concat": _concatenate,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Pad": _pad,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Softmax": _softmax,
    "Transpose": lambda divider, node: list(_attribute(node, "perm")).index(_required_axis(divider, node.input[0])),
}

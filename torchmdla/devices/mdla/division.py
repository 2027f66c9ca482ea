"""Batches in parts: a model that computes a part of its batch, where every operation works on each item alone.

A tensor is *divided* along one axis: its elements there are those of the parts, one part after the other. Inputs and
outputs are divided along their first axis, so that a part of them lies in one piece. Where an operation mixes parts, or
no rule below covers it, the model cannot be divided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from torchmdla.devices.mdla.onnx_graph import sizes_of


class _Mixes(Exception):
    """A result of one part depends on another part, or it is not known not to."""


def parts_possible(model: onnx.ModelProto) -> Iterator[int]:
    """Into how many equal parts the sizes of the model's inputs and outputs can be divided, from two on."""
    leading = [sizes_of(info)[0] for info in (*model.graph.input, *model.graph.output)]
    items = math.gcd(*leading)
    return (parts for parts in range(2, items + 1) if items % parts == 0)


def divided(model: onnx.ModelProto, parts: int) -> onnx.ModelProto | None:
    """The model of one of ``parts`` equal parts of the batch; None where there is none that computes the same.

    ``model`` has its weights in it, and the shape of every value.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    try:
        _Divider(made.graph, parts).divide()
    except _Mixes:
        return None
    return made


class _Divider:
    """Walks the graph and writes each node for one part."""

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
                raise _Mixes
            self._set(node.output[0], rule(self, node))
        if any(self._axes[info.name] != 0 for info in self._graph.output):
            raise _Mixes
        for name, axis in self._axes.items():
            size = self._infos[name].type.tensor_type.shape.dim[axis]
            size.dim_value //= self.parts
        read = {name for node in self._graph.node for name in node.input}
        kept = [tensor for tensor in self._graph.initializer if tensor.name in read]
        del self._graph.initializer[:]
        self._graph.initializer.extend(kept)

    def axis(self, name: str) -> int | None:
        """Along which a value is divided; None: it is a constant."""
        return self._axes.get(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the value for the whole batch."""
        return self._constants[name].shape if name in self._constants else self._shapes[name]

    def constant(self, name: str) -> Any:
        """Its elements."""
        if name not in self._constants:
            raise _Mixes
        return self._constants[name]

    def replace(self, node: onnx.NodeProto, place: int, value: Any) -> None:
        """Gives the node another constant as an operand."""
        name = f"{node.name}_part_{place}"
        node.input[place] = name
        self._constants[name] = value
        self._graph.initializer.append(numpy_helper.from_array(value, name))

    def shorten(self, node: onnx.NodeProto, place: int, axis: int) -> None:
        """Divides a constant operand whose parts are equal along an axis; where that is 1 or not there, all have it."""
        value = self.constant(node.input[place])
        if axis < 0 or value.shape[axis] == 1:
            return
        if value.shape[axis] % self.parts:
            raise _Mixes
        first, *others = np.split(value, self.parts, axis)
        if not all(np.array_equal(first, other) for other in others):
            raise _Mixes
        self.replace(node, place, np.ascontiguousarray(first))

    def _set(self, name: str, axis: int) -> None:
        if self._shapes[name][axis] % self.parts:
            raise _Mixes
        self._axes[name] = axis


def _attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    return next((helper.get_attribute_value(given) for given in node.attribute if given.name == name), default)


def _given_axis(divider: _Divider, name: str) -> int:
    axis = divider.axis(name)
    if axis is None:
        raise _Mixes
    return axis


def _elementwise(divider: _Divider, node: onnx.NodeProto) -> int:
    """Of one operand; the others are numbers."""
    for name in filter(None, node.input[1:]):
        if divider.constant(name).size != 1:
            raise _Mixes
    return _given_axis(divider, node.input[0])


def _by_image(divider: _Divider, node: onnx.NodeProto) -> int:
    """On each element of the first axis alone, by constants."""
    for name in filter(None, node.input[1:]):
        divider.constant(name)
    return _first(_given_axis(divider, node.input[0]))


def _first(axis: int) -> int:
    if axis != 0:
        raise _Mixes
    return axis


def _resize(divider: _Divider, node: onnx.NodeProto) -> int:
    axis = _by_image(divider, node)
    scales, sizes = (node.input[place] if len(node.input) > place else "" for place in (2, 3))
    if scales and divider.constant(scales)[0] != 1:
        raise _Mixes
    if sizes:
        _divide_size(divider, node, 3, axis)
    return axis


def _divide_size(divider: _Divider, node: onnx.NodeProto, place: int, axis: int) -> None:
    sizes = divider.constant(node.input[place]).copy()
    sizes[axis] //= divider.parts
    divider.replace(node, place, sizes)


def _gemm(divider: _Divider, node: onnx.NodeProto) -> int:
    """Rows of a product with a constant matrix."""
    if _attribute(node, "transA", 0):
        raise _Mixes
    divider.constant(node.input[1])
    if len(node.input) > 2:
        divider.shorten(node, 2, len(divider.shape(node.input[2])) - 2)
    return _first(_given_axis(divider, node.input[0]))


def _matmul(divider: _Divider, node: onnx.NodeProto) -> int:
    """Products of equally many matrices, or rows of a product with a constant one."""
    left, right = node.input
    axis, rank = _given_axis(divider, left), len(divider.shape(left))
    if divider.axis(right) is None:
        allowed = len(divider.shape(right)) == 2 and axis < rank - 1
    else:
        allowed = divider.axis(right) == axis < rank - 2 and len(divider.shape(right)) == rank
    if not allowed:
        raise _Mixes
    return axis


def _broadcast(divider: _Divider, node: onnx.NodeProto) -> int:
    """Of operands that are divided along the same axis, and constants that are the same for all parts."""
    shape = divider.shape(node.output[0])
    before = {name: len(shape) - len(divider.shape(name)) for name in node.input}
    axes = {before[name] + axis for name in node.input if (axis := divider.axis(name)) is not None}
    if len(axes) != 1:
        raise _Mixes
    (result,) = axes
    for place, name in enumerate(node.input):
        if divider.axis(name) is None:
            divider.shorten(node, place, result - before[name])
        elif divider.shape(name)[result - before[name]] != shape[result]:
            raise _Mixes
    return result


def _softmax(divider: _Divider, node: onnx.NodeProto) -> int:
    axis, rank = _given_axis(divider, node.input[0]), len(divider.shape(node.input[0]))
    if _attribute(node, "axis", -1) % rank == axis:
        raise _Mixes
    return axis


def _concatenate(divider: _Divider, node: onnx.NodeProto) -> int:
    result = _broadcast(divider, node)
    if _attribute(node, "axis") % len(divider.shape(node.output[0])) == result:
        raise _Mixes
    return result


def _slice(divider: _Divider, node: onnx.NodeProto) -> int:
    axis, rank = _given_axis(divider, node.input[0]), len(divider.shape(node.input[0]))
    if any(other % rank == axis for other in divider.constant(node.input[3])):
        raise _Mixes
    return axis


def _transpose(divider: _Divider, node: onnx.NodeProto) -> int:
    return list(_attribute(node, "perm")).index(_given_axis(divider, node.input[0]))


def _reshape(divider: _Divider, node: onnx.NodeProto) -> int:
    """The elements stay where they are, so the parts do where an axis begins with them again."""
    axis = _given_axis(divider, node.input[0])
    before = math.prod(divider.shape(node.input[0])[:axis])
    sizes = [int(size) for size in divider.constant(node.input[1])]
    for place, size in enumerate(sizes):
        if math.prod(sizes[:place]) == before and size % divider.parts == 0:
            _divide_size(divider, node, 1, place)
            return place
    raise _Mixes


def _pad(divider: _Divider, node: onnx.NodeProto) -> int:
    axis = _given_axis(divider, node.input[0])
    pads: Sequence[int] = divider.constant(node.input[1])
    if pads[axis] or pads[axis + len(pads) // 2]:
        raise _Mixes
    return axis


# A node's kind -> along which axis its result is divided.
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
    "Transpose": _transpose,
}

"""Builder of an ONNX graph: names, nodes, shapes, and the weights that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from torchmdla.devices.levels.onnx.weights import Array, BatchNorm, Recipe, Weight

# The versions that accelerators' tools support.
OPSET = 13
IR_VERSION = 7


@dataclass(frozen=True)
class Tensor:
    """Value of the graph that depends on inputs, float32.

    ``used_once``: the value has a single use in the program.
    """

    name: str
    shape: tuple[int, ...]
    used_once: bool = False


Value = Tensor | Weight


def sizes_of(info: onnx.ValueInfoProto) -> tuple[int, ...]:
    """Return the shape of a value in a model; all sizes are static."""
    return tuple(size.dim_value for size in info.type.tensor_type.shape.dim)


@dataclass
class _Anchor:
    """Node with weights into which a subsequent batch norm may be folded."""

    node: onnx.NodeProto
    weight: Weight
    bias: Weight | None
    axis: int  # axis of the output channels in the weight


class OnnxGraph:
    """Builder that collects nodes in order.

    ``label`` is the name of subsequent nodes (``conv2d_3``) until it changes.
    """

    def __init__(self) -> None:
        self.label = "op"
        self._used: set[str] = set()
        self._nodes: list[onnx.NodeProto] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._inputs: list[str] = []
        self._weights: dict[str, Weight] = {}
        self._names: dict[Recipe, str] = {}
        self._integers: dict[tuple[int, ...], str] = {}
        self._anchors: dict[str, _Anchor] = {}

    def input(self, name: str, shape: Sequence[int], used_once: bool) -> Tensor:
        """Add an input to the graph."""
        self._inputs.append(name)
        self._used.add(name)
        self._shapes[name] = tuple(shape)
        return Tensor(name, tuple(shape), used_once)

    def node(
        self,
        kind: str,
        operands: Sequence[Value | str | None],
        shape: Sequence[int],
        used_once: bool = False,
        **attributes: Any,
    ) -> Tensor:
        """Add a node with one result.

        Operands are values, names of integers, or None for an omitted operand.
        """
        name = self._unique_name(self.label)
        inputs = [self._name_of(operand) for operand in operands]
        while inputs and not inputs[-1]:
            inputs.pop()
        self._nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        self._shapes[name] = tuple(shape)
        return Tensor(name, tuple(shape), used_once)

    def anchor(self, result: Tensor, weight: Value, bias: Value | None, axis: int) -> Tensor:
        """Record that the last node, which computes ``result``, uses ``weight`` and ``bias``."""
        if isinstance(weight, Weight) and not isinstance(bias, Tensor) and result.used_once:
            self._anchors[result.name] = _Anchor(self._nodes[-1], weight, bias, axis)
        return result

    def fold(self, value: Tensor, norm: BatchNorm) -> Tensor | None:
        """Return ``value`` with the norm folded into the weights of its producer; None if that is not possible."""
        anchor = self._anchors.pop(value.name, None)
        if anchor is None:
            return None
        weight, bias = norm.fold_into_weight(anchor.weight, anchor.axis), norm.fold_into_bias(anchor.bias)
        names = [anchor.node.input[0], self._name_of(weight), self._name_of(bias)]
        del anchor.node.input[:]
        anchor.node.input.extend(names)
        return value

    def integers(self, values: Sequence[int]) -> str:
        """Return the name of a constant list of integers."""
        key = tuple(values)
        if key not in self._integers:
            self._integers[key] = self._unique_name("sizes")
        return self._integers[key]

    def model(self, results: Sequence[Value]) -> tuple[onnx.ModelProto, dict[str, Weight]]:
        """Return the model, and its weights by name.

        The weights follow the graph's own inputs as inputs without data. ``results`` become the graph's outputs in this
        order.
        """
        outputs: list[str] = []
        for result in results:
            is_own = isinstance(result, Tensor) and result.name not in self._inputs and result.name not in outputs
            self.label = "output"
            outputs.append(result.name if is_own else self.node("Identity", [result], result.shape).name)  # type: ignore[union-attr]
        read = {name for node in self._nodes for name in node.input}
        weights = {name: weight for name, weight in self._weights.items() if name in read}
        inputs = {name: self._shapes[name] for name in self._inputs}
        inner = {name: shape for name, shape in self._shapes.items() if name not in inputs and name not in outputs}
        graph = helper.make_graph(
            self._nodes,
            "group",
            _infos({**inputs, **{name: weight.shape for name, weight in weights.items()}}),
            _infos({name: self._shapes[name] for name in outputs}),
            [
                helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
                for values, name in self._integers.items()
                if name in read
            ],
            value_info=_infos(inner),
        )
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="torchmdla")
        return model, weights

    def _name_of(self, operand: Value | str | None) -> str:
        if operand is None:
            return ""
        if isinstance(operand, str):
            return operand
        if isinstance(operand, Tensor):
            return operand.name
        if operand.recipe not in self._names:
            name = self._names[operand.recipe] = self._unique_name(f"{self.label}_weight")
            self._weights[name] = operand
        return self._names[operand.recipe]

    def _unique_name(self, base: str) -> str:
        name, count = base, 1
        while name in self._used:
            count += 1
            name = f"{base}_{count}"
        self._used.add(name)
        return name


def _infos(shapes: Mapping[str, Sequence[int]]) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]


def add_weights(model: onnx.ModelProto, weights: Mapping[str, Array]) -> onnx.ModelProto:
    """Return a copy of a model from :meth:`OnnxGraph.model` whose weights are initializers instead of inputs."""
    filled = onnx.ModelProto()
    filled.CopyFrom(model)
    inputs = [info for info in filled.graph.input if info.name not in weights]
    del filled.graph.input[:]
    filled.graph.input.extend(inputs)
    filled.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return filled

"""Quantisation of a model for a device: export, preparation, calibration, conversion, and comparison with float."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from torchmdla import api, devices
from torchmdla.devices import Quantisation
from torchmdla.quantisation.comparison import Comparison, ErrorCollector
from torchmdla.quantisation.data import arguments_of, batches_of, positions_of
from torchmdla.quantisation.graphs import (
    is_conversion,
    is_float,
    layer_name,
    operator_name,
    schema_name,
)
from torchmdla.report.printed import Printable, new_table

if TYPE_CHECKING:
    from torchmdla.quantisation.quantizer import DeviceQuantizer, Match


@dataclass(frozen=True)
class LayerTypes:
    """Types of a layer's tensors, as texts; empty for float.

    ``name`` is the module's name, or the node's in the graph. ``kind`` has the operators, without ``aten::``.
    """

    name: str
    kind: str
    activations: str
    weights: str
    bias: str
    results: str


@dataclass(frozen=True)
class Quantised(Printable):
    """Model that was quantised for a device; printing shows the types of each layer.

    Attributes:
        module: quantised model. PyTorch computes it in float, with the rounding of the integers.
        reference: the same model in float, with batch norms folded. Its nodes have the names of those of ``module``.
        layers: layers that the device computes in integers, in the graph's order.
        float_operators: number of calls of each other operator on floating-point tensors.
    """

    module: GraphModule
    reference: GraphModule
    layers: tuple[LayerTypes, ...]
    float_operators: Mapping[str, int]

    def compare(
        self,
        data: Iterable[Any],
        *,
        program: Callable[..., Any] | None = None,
        batches: int | None = None,
    ) -> Comparison:
        """Return the errors of the results and of each layer against float.

        Args:
            data: batches, as for :func:`quantise`; better others than those of the calibration.
            program: callable that computes the results in place of ``module``, such as the compiled module. Errors of
                layers are those of ``module`` in PyTorch.
            batches: largest number of batches to use.

        Raises:
            ValueError: there is not any batch, or the model has no floating-point results.
        """
        errors = ErrorCollector()
        others = _layers_of(self.reference)
        layers = [name for name in _layers_of(self.module) if name in others]
        reference, float_values = _with_probes(self.reference, layers)
        quantised, values = _with_probes(self.module, layers)
        with torch.no_grad(), api.enabled(api.is_enabled() and program is not None):
            for batch in batches_of(data, batches, "comparing"):
                positional, keywords = _call_of(batch, positions_of(self.reference))
                expected, actual = (_run(graph, positional, keywords) for graph in (reference, quantised))
                errors.add_results(program(*positional, **keywords) if program else actual, expected)
                for place, name in enumerate(layers):
                    node = others[name]
                    errors.add_layer(place, layer_name(node), operator_name(node), values[name], float_values[name])
        return errors.comparison()

    def table(self) -> Table:
        """Return the table of the layers' types."""
        table = new_table("Quantised layers", "layer", "operation", "activations", "weights", "bias", "results")
        for layer in self.layers:
            types = (text or "float" for text in (layer.activations, layer.weights, layer.bias, layer.results))
            table.add_row(layer.name, layer.kind, *types)
        counts = ", ".join(f"{name} {count}" for name, count in self.float_operators.items())
        table.caption = f"Other operators on floats: {counts or 'none'}"
        return table


def quantise(
    model: Any,
    data: Iterable[Any],
    *,
    device: str | None = None,
    batches: int | None = None,
    float_layers: Collection[str] = (),
    method: str = "histogram",
    dynamic_shapes: Any = None,
) -> Quantised:
    """Quantise a model for a device, with scales chosen from the values that it computes for ``data``.

    The model does not change. Batch norms after convolutions and linear layers are folded into them.

    Args:
        model: ``nn.Module`` in eval mode, or an ``ExportedProgram`` of one.
        data: a ``DataLoader`` or other iterable of batches. A batch is a tensor, a tuple or list of a call's arguments,
            or a dict of keyword arguments. Extra arguments that the model does not have (labels) are ignored.
        device: name of the device; the default is the device in use.
        batches: largest number of batches to use.
        float_layers: modules and nodes that stay in float, by the names that the result prints.
        method: how scales of activations are chosen. ``"histogram"`` minimises the squared error of 8-bit types;
            ``"range"`` represents the smallest and the largest value.
        dynamic_shapes: sizes that may vary, as for ``torch.export.export``; none by default.

    Raises:
        ImportError: the package ``torchao`` is missing.
        TypeError: the model has another type, the device does not declare quantised types, or ``data`` is a tensor.
        ValueError: the device does not exist or has no quantised form of any operator of the model, the model is in
            training mode, a batch has other sizes, a value is not finite, or there is not any batch.
    """
    _check_model(model)
    quantizer = quantizer_of(device, float_layers=float_layers, method=method)
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    prepared: GraphModule | None = None
    taken = None if isinstance(model, ExportedProgram) else positions_of(model)
    with torch.no_grad(), api.enabled(False):
        for batch in batches_of(data, batches, "calibrating"):
            positional, keywords = _call_of(batch, taken)
            if prepared is None:
                prepared = prepare_pt2e(_export(model, positional, keywords, dynamic_shapes), quantizer)
                _check_quantised(prepared, quantizer, device)
                _refuse_infinite_values(prepared)
            _run(prepared, positional, keywords)
    assert prepared is not None
    reference = _without_observers(prepared)
    layers = tuple(map(_types_of, quantizer.matches))
    return Quantised(convert_pt2e(prepared), reference, layers, _count_others(reference, quantizer.matches))


def quantizer_of(
    device: str | None = None, *, float_layers: Collection[str] = (), method: str = "histogram"
) -> DeviceQuantizer:
    """Return torchao's quantizer for a device, for ``prepare_pt2e``; the arguments are those of :func:`quantise`.

    Raises:
        ImportError: the package ``torchao`` is missing.
        TypeError: the device does not declare quantised types.
        ValueError: the device or the method does not exist.
    """
    patterns = devices.require(devices.get(device or devices.in_use()), Quantisation).quantised_patterns
    try:
        from torchmdla.quantisation.quantizer import DeviceQuantizer
    except ModuleNotFoundError as error:
        raise ImportError(
            f"torchmdla.quantise needs the package torchao: pip install 'torchmdla[quantise]' ({error})",
            name=error.name,
        ) from None
    return DeviceQuantizer(patterns, float_layers, method)


def _check_model(model: Any) -> None:
    if isinstance(model, ExportedProgram):
        return
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"quantise takes a module or an exported program, got {type(model).__name__}")
    if model.training:
        raise ValueError("the model is in training mode: call model.eval() before quantise")


def _export(model: Any, positional: tuple[Any, ...], keywords: Mapping[str, Any], dynamic_shapes: Any) -> GraphModule:
    """Return the model as a graph without in-place operators, whose nodes can be quantised one by one."""
    is_exported = isinstance(model, ExportedProgram)
    program = (
        model if is_exported else torch.export.export(model, positional, dict(keywords), dynamic_shapes=dynamic_shapes)
    )
    graph_module: GraphModule = program.run_decompositions({}).module()
    return graph_module


def _call_of(batch: Any, taken: int | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments of a batch; a model takes ``taken`` positional ones at most."""
    return ((), dict(batch)) if isinstance(batch, Mapping) else (arguments_of(batch)[:taken], {})


def _run(model: GraphModule, positional: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Return the model's results.

    Raises:
        ValueError: the arguments have other sizes than those of the export.
    """
    try:
        return model(*positional, **keywords)
    except AssertionError as error:
        if "Guard failed" not in str(error):
            raise
        raise ValueError(
            f"a batch has other sizes than the first one ({str(error).strip()}): leave the last batch out "
            "(drop_last=True), or let the size vary by dynamic_shapes"
        ) from error


def _check_quantised(prepared: GraphModule, quantizer: DeviceQuantizer, device: str | None) -> None:
    if not quantizer.matches:
        raise ValueError(
            f"device {device or devices.in_use()!r} has no quantised form of any operator of the model: "
            f"{', '.join(_count_others(prepared, ()))}"
        )


def _refuse_infinite_values(prepared: GraphModule) -> None:
    """Make the model fail where a value that has to be quantised is not finite."""
    for node, observer in _observers(prepared):
        name = node.all_input_nodes[0].name

        def check(observer: nn.Module, arguments: tuple[Any, ...], name: str = name) -> None:
            if not arguments[0].isfinite().all():
                raise ValueError(
                    f"the calibration data gives values of {name!r} that are not finite: leave its layer in float "
                    "(float_layers), or repair the data"
                )

        observer.register_forward_pre_hook(check)


def _observers(graph_module: GraphModule) -> list[tuple[Node, nn.Module]]:
    from torchao.quantization.pt2e import ObserverBase

    calls = (
        (node, graph_module.get_submodule(str(node.target)))
        for node in graph_module.graph.nodes
        if node.op == "call_module"
    )
    return [(node, module) for node, module in calls if isinstance(module, ObserverBase)]


def _without_observers(prepared: GraphModule) -> GraphModule:
    """Return a copy that shares the weights, and has no observers."""
    plain = GraphModule(prepared, copy.deepcopy(prepared.graph))
    for node, _ in _observers(plain):
        node.replace_all_uses_with(node.all_input_nodes[0])
        plain.graph.erase_node(node)
    plain.delete_all_unused_submodules()
    plain.recompile()
    return plain


def _with_probes(model: GraphModule, names: Iterable[str]) -> tuple[GraphModule, dict[str, Tensor]]:
    """Return a copy that shares the weights, and the dict in which its calls store the values of these nodes.

    The value of a quantised node is the one that the integers represent.
    """
    values: dict[str, Tensor] = {}
    probed = GraphModule(model, copy.deepcopy(model.graph))
    nodes = {node.name: node for node in probed.graph.nodes}
    for name in names:
        node = _after_rounding(nodes[name])
        probed.add_submodule(f"probe_of_{name}", _Probe(name, values))
        with probed.graph.inserting_after(node):
            probed.graph.call_module(f"probe_of_{name}", (node,))
    probed.recompile()
    return probed, values


class _Probe(nn.Module):
    """Layer that stores its argument in a dict."""

    def __init__(self, name: str, values: dict[str, Tensor]) -> None:
        super().__init__()
        self._name, self._values = name, values

    def forward(self, value: Tensor) -> None:
        self._values[self._name] = value.detach()


def _after_rounding(node: Node) -> Node:
    """Return the node that dequantises the result of ``node``, or ``node`` if its result is not quantised."""
    for _ in range(2):
        node = next((user for user in node.users if is_conversion(user)), node)
    return node


def _layers_of(model: GraphModule) -> dict[str, Node]:
    """Return the nodes that compute floating-point tensors, by name, without conversions to integers and back."""
    return {
        node.name: node
        for node in model.graph.nodes
        if schema_name(node) and is_float(node) and not is_conversion(node)
    }


def _count_others(model: GraphModule, matches: Iterable[Match]) -> dict[str, int]:
    quantised = {node.name for match in matches for node in match.nodes}
    others = (operator_name(node) for name, node in _layers_of(model).items() if name not in quantised)
    return dict(Counter(others).most_common())


def _types_of(match: Match) -> LayerTypes:
    pattern = match.pattern
    kinds = (
        pattern.activations,
        pattern.weights if "weight" in match.arguments else None,
        pattern.bias if "bias" in match.arguments else None,
        pattern.activations if pattern.shares_scale else pattern.results,
    )
    texts = (str(kind) if kind else "" for kind in kinds)
    return LayerTypes(layer_name(match.nodes[0]), " + ".join(map(operator_name, match.nodes)), *texts)

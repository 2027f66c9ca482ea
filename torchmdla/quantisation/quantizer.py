"""torchao's quantizer for a device: annotations of a graph, made from the patterns that the device declares.

It needs the package ``torchao``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import (
    HistogramObserver,
    MinMaxObserver,
    ObserverOrFakeQuantize,
    PerChannelMinMaxObserver,
    PlaceholderObserver,
)
from torchao.quantization.pt2e.quantizer import (
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    QuantizationAnnotation,
    QuantizationSpec,
    QuantizationSpecBase,
    Quantizer,
    SharedQuantizationSpec,
)
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from torchmdla.devices import QuantisedPattern, QuantisedType
from torchmdla.errors import unknown_name
from torchmdla.quantisation.graphs import float_arguments, is_float, names_of, schema_name

METHODS = ("histogram", "range")

# The smallest scale of weights. The scale of a bias is a product with it, so that 32 bits hold the bias of a channel
# whose weights are zeros.
_SMALLEST_WEIGHT_SCALE = 2.0**-20

_SCHEMES = {
    (False, True): torch.per_tensor_symmetric,
    (False, False): torch.per_tensor_affine,
    (True, True): torch.per_channel_symmetric,
    (True, False): torch.per_channel_affine,
}


@dataclass(frozen=True)
class Match:
    """Nodes of a graph that form a pattern, in order, and the schema's names of the first node's float tensors."""

    pattern: QuantisedPattern
    nodes: tuple[Node, ...]
    arguments: frozenset[str]


class DeviceQuantizer(Quantizer):  # type: ignore[misc]
    """Quantizer for ``prepare_pt2e`` of torchao.

    Attributes:
        patterns: patterns of the device; where several match, the longest is used.
        float_layers: names of modules, or of nodes of the graph, whose operators stay in float.
        method: how the scale of activations is chosen from calibration values: ``"histogram"`` minimises the squared
            error of 8-bit types, ``"range"`` represents all values.
        matches: quantised patterns of the last annotated graph, in the graph's order.
    """

    def __init__(
        self,
        patterns: Sequence[QuantisedPattern],
        float_layers: Collection[str] = (),
        method: str = "histogram",
    ) -> None:
        if method not in METHODS:
            raise ValueError(unknown_name("method", method, METHODS))
        self.patterns = sorted(patterns, key=lambda pattern: -len(pattern.ops))
        self.float_layers = frozenset(float_layers)
        self.method = method
        self.matches: list[Match] = []

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate every pattern with its types.

        Raises:
            ValueError: a name of ``float_layers`` does not occur in the graph.
        """
        self._check_names(model)
        taken: set[Node] = set()
        computing = list(self._matches(model, taken, shares_scale=False))
        for match in computing:
            self._annotate_chain(match)
        waiting = list(self._matches(model, taken, shares_scale=True))
        sharing: list[Match] = []
        while ready := [match for match in waiting if _is_next_to_integers(match.nodes[0])]:
            for match in ready:
                self._annotate_sharing(match)
            sharing += ready
            waiting = [match for match in waiting if match not in ready]
        places = {node: place for place, node in enumerate(model.graph.nodes)}
        self.matches = sorted((*computing, *sharing), key=lambda match: places[match.nodes[0]])
        return model

    def validate(self, model: GraphModule) -> None:
        """Check nothing: annotations follow from the device's patterns."""

    def _check_names(self, model: GraphModule) -> None:
        names = {name for node in model.graph.nodes for name in names_of(node)}
        if unknown := sorted(self.float_layers - names):
            raise ValueError(unknown_name("layer in float_layers", unknown[0], sorted(names)))

    def _matches(self, model: GraphModule, taken: set[Node], shares_scale: bool) -> Iterator[Match]:
        for pattern in self.patterns:
            if pattern.shares_scale == shares_scale:
                for node in model.graph.nodes:
                    chain = _chain_from(node, pattern.ops)
                    if chain and taken.isdisjoint(chain) and not any(self._stays_float(link) for link in chain):
                        taken.update(chain)
                        yield Match(pattern, chain, frozenset(name for name, _ in float_arguments(chain[0])))

    def _stays_float(self, node: Node) -> bool:
        return not self.float_layers.isdisjoint(names_of(node)) or not is_float(node)

    def _annotate_chain(self, match: Match) -> None:
        pattern = match.pattern
        for node in match.nodes:
            annotation = _annotation(node)
            arguments = [(name, value) for name, value in float_arguments(node) if value not in match.nodes]
            kinds = {"weight": pattern.weights, "bias": pattern.bias}
            for name, value in arguments:
                kind = kinds.get(name, pattern.activations)
                if kind is not None:
                    annotation.input_qspec_map[value] = (
                        self._bias_spec(pattern, node, dict(arguments))
                        if name == "bias"
                        else self._spec(kind, name == "weight")
                    )
        if pattern.results is not None:
            _annotation(match.nodes[-1]).output_qspec = self._spec(pattern.results)

    def _annotate_sharing(self, match: Match) -> None:
        (node,) = match.nodes
        annotation = _annotation(node)
        assert match.pattern.activations is not None
        first, *others = dict.fromkeys(value for _, value in float_arguments(node))
        shared = SharedQuantizationSpec((first, node))
        annotation.input_qspec_map[first] = self._spec(match.pattern.activations)
        annotation.input_qspec_map.update(dict.fromkeys(others, shared))
        annotation.output_qspec = shared

    def _spec(self, kind: QuantisedType, is_weight: bool = False) -> QuantizationSpecBase:
        dtype = getattr(torch, kind.storage)
        scheme = _SCHEMES[kind.axis is not None, kind.symmetric]
        if isinstance(kind.fraction, int):
            return FixedQParamsQuantizationSpec(dtype, 2.0**-kind.fraction, 0, kind.least, kind.most, scheme)
        observer = self._observer(kind, is_weight)
        return QuantizationSpec(dtype, observer, kind.least, kind.most, scheme, kind.axis, kind.dynamic)

    def _observer(self, kind: QuantisedType, is_weight: bool) -> Any:
        epsilon = {"eps": _SMALLEST_WEIGHT_SCALE} if is_weight else {}
        if kind.dynamic:
            return PlaceholderObserver.with_args()
        if kind.fraction is not None:
            observer = _PerChannelFractionObserver if kind.axis is not None else _FractionObserver
            return observer.with_args(headroom=kind.headroom)
        if kind.axis is not None:
            return PerChannelMinMaxObserver.with_args(**epsilon)
        # torchao's search over a histogram assumes that all integers of 8 bits are used.
        if is_weight or kind.bits != 8 or self.method == "range":
            return MinMaxObserver.with_args(**epsilon)
        return HistogramObserver.with_args(**epsilon)

    def _bias_spec(self, pattern: QuantisedPattern, node: Node, arguments: dict[str, Node]) -> QuantizationSpecBase:
        kind, weights = pattern.bias, pattern.weights
        assert kind is not None
        if kind.fraction is not None:
            return self._spec(kind)
        assert weights is not None
        by_channel = weights.axis is not None
        factors = [(arguments[name], node) for name in (next(iter(arguments)), "weight")]
        return DerivedQuantizationSpec(
            factors,
            _product_of_scales,
            getattr(torch, kind.storage),
            kind.least,
            kind.most,
            _SCHEMES[by_channel, True],
            0 if by_channel else None,
        )


class _FractionObserver(MinMaxObserver):  # type: ignore[misc]
    """Observer that chooses the largest fraction with which no value is out of range."""

    def __init__(self, headroom: int = 0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._headroom = headroom

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        return _power_of_two(self, self._headroom)


class _PerChannelFractionObserver(PerChannelMinMaxObserver):  # type: ignore[misc]
    """Observer that chooses a fraction for each channel."""

    def __init__(self, headroom: int = 0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._headroom = headroom

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        return _power_of_two(self, self._headroom)


def _power_of_two(observer: Any, headroom: int) -> tuple[Tensor, Tensor]:
    """Return the smallest powers of two as scales with which the observed values are in range, and zeros."""
    largest = torch.maximum(observer.min_val.abs(), observer.max_val.abs()).reshape(-1) * 2.0**headroom
    scale = torch.clamp(largest.double() / observer.quant_max, min=2.0**-24)
    return torch.exp2(torch.ceil(torch.log2(scale))).float(), torch.zeros(scale.shape, dtype=torch.int64)


def _product_of_scales(observers: list[ObserverOrFakeQuantize]) -> tuple[Tensor, Tensor]:
    """Return the scale of a bias, which is added to sums of products of integers, and its zero point."""
    activation, weight = (observer.calculate_qparams()[0] for observer in observers)
    scale = activation * weight
    return scale, torch.zeros(scale.shape, dtype=torch.int64)


def _chain_from(node: Node, ops: Sequence[str]) -> tuple[Node, ...]:
    """Return the nodes from ``node`` on that are ``ops``, or an empty tuple. Each node but the last has one user."""
    chain: list[Node] = []
    for op in ops:
        if chain:
            users = list(chain[-1].users)
            if len(users) != 1:
                return ()
            (node,) = users
        if schema_name(node) != op:
            return ()
        chain.append(node)
    return tuple(chain)


def _annotation(node: Node) -> QuantizationAnnotation:
    annotation: QuantizationAnnotation = node.meta.setdefault(Q_ANNOTATION_KEY, QuantizationAnnotation(_annotated=True))
    return annotation


def _is_next_to_integers(node: Node) -> bool:
    """Return whether an argument of a node is quantised where it is computed, or its result where it is used."""
    producers = (value.meta.get(Q_ANNOTATION_KEY) for _, value in float_arguments(node))
    users = (user.meta.get(Q_ANNOTATION_KEY) for user in node.users)
    return any(annotation and annotation.output_qspec for annotation in producers) or any(
        annotation and annotation.input_qspec_map.get(node) for annotation in users
    )

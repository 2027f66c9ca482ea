"""Operation counts of normalisations of N elements in R rows.

A row is a channel of a batch norm, a group of a group norm, and so on.

With statistics of the data, as in training, the counts of each row are as follows. The mean is a sum of N/R terms and
one multiplication by the reciprocal of their number. It is negated, and elements are centred by adding it. Squares are
summed, starting from eps times the number of terms. One multiplication by the reciprocal of that number gives variance
plus eps. A square root and a division follow. Each element is multiplied by the result and by the weight, and the bias
is added. With weight and bias:

    * 3·N + 2·R     + 4·N     - R     / R     sqrt R

Updates of running statistics are not counted. With running statistics a row has one factor and one summand: weight /
√(var + eps) and bias − mean · factor. Each element needs one multiplication and one addition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torchmdla.aten.calls import Call
from torchmdla.aten.op_counts.kinds import Counts, Rule, total


def norm_counts(elements: int, rows: int, *, weight: bool, bias: bool) -> Counts:
    """Return the counts of a normalisation with statistics of the data."""
    return {
        "*": (2 + weight) * elements + 2 * rows,
        "+": (3 + bias) * elements,
        "-": rows,
        "/": rows,
        "sqrt": rows,
    }


def _inference_norm_counts(elements: int, rows: int, *, weight: bool, bias: bool) -> Counts:
    """Return the counts of a normalisation with running statistics.

    Without a bias the summand of a row is −mean · factor.
    """
    scales = rows if weight else 0
    return total(
        {"*": elements, "+": elements},
        {"+": rows, "sqrt": rows, "/": rows, "*": rows + scales, "-": rows},
    )


def _batch_norm(training: str) -> Rule:
    def rule(call: Call) -> Counts:
        value = call["input"]
        channels = value.shape[1] if len(value.shape) > 1 else 1
        affine = {"weight": call["weight"] is not None, "bias": call["bias"] is not None}
        count = norm_counts if call.arguments.get(training, True) else _inference_norm_counts
        return count(value.numel, channels, **affine)

    return rule


def _instance_norm(call: Call) -> Counts:
    value = call["input"]
    affine = {"weight": call["weight"] is not None, "bias": call["bias"] is not None}
    if call["use_input_stats"]:
        return norm_counts(value.numel, value.shape[0] * value.shape[1], **affine)
    return _inference_norm_counts(value.numel, value.shape[1], **affine)


def _layer_norm(call: Call) -> Counts:
    value = call["input"]
    row = math.prod(call["normalized_shape"])
    rows = value.numel // row if row else 0
    return norm_counts(value.numel, rows, weight=call["weight"] is not None, bias=call["bias"] is not None)


def _group_norm(groups: str) -> Rule:
    def rule(call: Call) -> Counts:
        value = call["input"]
        rows = value.shape[0] * call[groups]
        return norm_counts(value.numel, rows, weight=call["weight"] is not None, bias=call["bias"] is not None)

    return rule


def _rms_norm(call: Call) -> Counts:
    """Return the counts of x / √(mean of squares + eps), times the weight."""
    elements = call["input"].numel
    row = math.prod(call["normalized_shape"])
    rows = elements // row if row else 0
    weights = elements if call["weight"] is not None else 0
    return total({"MAC": elements, "*": elements + rows + weights, "+": rows, "/": rows, "sqrt": rows})


def _batch_norm_backward(call: Call) -> Counts:
    """Return the counts of the gradients of a batch norm.

    Σ g and Σ g·x̂ are computed for each channel, then weight/σ · (g − mean g − x̂ · mean g·x̂). x̂ is computed again.
    """
    elements = call["input"].numel
    channels = call["input"].shape[1]
    return {"+": 2 * elements, "-": 2 * elements, "*": 3 * elements + 3 * channels, "MAC": elements}


def _layer_norm_backward(call: Call) -> Counts:
    """Return the counts of the gradients of a layer norm.

    They are as those of a batch norm. The gradients of weight and bias are summed separately from those of the rows.
    """
    elements, rows = call["input"].numel, call["mean"].numel
    return {"+": 3 * elements, "-": 2 * elements, "*": 4 * elements + 3 * rows, "MAC": 2 * elements}


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("batch_norm", "native_batch_norm", "_native_batch_norm_legit"), _batch_norm("training")),
    "cudnn_batch_norm": _batch_norm("training"),
    "_batch_norm_impl_index": _batch_norm("training"),
    "_native_batch_norm_legit_functional": _batch_norm("training"),
    "_native_batch_norm_legit_no_training": lambda call: _inference_norm_counts(
        call["input"].numel,
        call["input"].shape[1],
        weight=call["weight"] is not None,
        bias=call["bias"] is not None,
    ),
    "instance_norm": _instance_norm,
    **dict.fromkeys(("layer_norm", "native_layer_norm"), _layer_norm),
    "group_norm": _group_norm("num_groups"),
    "native_group_norm": _group_norm("group"),
    "rms_norm": _rms_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "native_layer_norm_backward": _layer_norm_backward,
}

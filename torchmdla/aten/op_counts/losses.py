"""Operation counts of losses: elementwise terms, then their sum or mean.

An op with the argument ``reduction`` reduces the terms (0 none, 1 mean, 2 sum).
"""

from __future__ import annotations

from collections.abc import Mapping

from torchmdla.aten.calls import Call
from torchmdla.aten.op_counts.kinds import Counts, Rule, times, total
from torchmdla.aten.op_counts.reductions import log_softmax, rows_of

# Counts per element of the input.
_TERMS: Mapping[str, Mapping[str, int]] = {
    "mse_loss": {"-": 1, "*": 1},
    "l1_loss": {"-": 1, "abs": 1},
    # Quadratic below a bound, linear above
    "smooth_l1_loss": {"-": 2, "abs": 1, ">": 1, "*": 2, "/": 1, "?": 1},
    "huber_loss": {"-": 2, "abs": 1, ">": 1, "*": 3, "?": 1},
    # −(t · log p + (1 − t) · log(1 − p)), logarithms clamped to at least −100
    "binary_cross_entropy": {"log": 2, "-": 3, "*": 1, "MAC": 1, ">": 2},
    # max(x, 0) − x·t + log(1 + exp(−|x|))
    "binary_cross_entropy_with_logits": {">": 1, "*": 1, "-": 2, "+": 2, "abs": 1, "exp": 1, "log": 1},
}


def _term(each: Mapping[str, int]) -> Rule:
    def rule(call: Call) -> Counts:
        elements = call["self"].numel
        weights = {"*": elements if call.arguments.get("weight") is not None else 0}
        positive = {"*": elements if call.arguments.get("pos_weight") is not None else 0}
        return total(times(elements, each), weights, positive, _loss_reduction(call, elements))

    return rule


def _loss_reduction(call: Call, terms: int) -> Counts:
    """Return the counts of the sum or mean of the terms."""
    return ({}, {"+": terms, "*": 1}, {"+": terms})[call["reduction"]]


def _kl_div(call: Call) -> Counts:
    """Return the counts of t · (log t − x).

    A target in logarithmic form needs its exponential instead.
    """
    elements = call["self"].numel
    logarithm = {"exp": 1} if call["log_target"] else {"log": 1, ">": 1}
    return total(times(elements, {**logarithm, "-": 1, "*": 1}), _loss_reduction(call, elements))


def _nll_loss(call: Call) -> Counts:
    """Return the counts of the negated target element of each row, scaled by its class's weight.

    A mean divides by the sum of weights.
    """
    rows = call["target"].numel
    weighted = {"*": rows} if call.arguments.get("weight") is not None else {}
    gathered = ({}, {"+": 2 * rows, "/": 1}, {"+": rows})[call["reduction"]]
    return total({"-": rows, ">": rows}, weighted, gathered)


def _nll_loss_backward(call: Call) -> Counts:
    rows = call["target"].numel
    weighted = {"*": rows} if call["weight"] is not None else {}
    return total({"-": rows, ">": rows}, weighted, {"/": rows} if call["reduction"] == 1 else {})


def _cross_entropy(call: Call) -> Counts:
    value = call["self"]
    rows = rows_of(value, 1 if len(value.shape) > 1 else 0)
    logarithms = log_softmax(value.numel, rows)
    if call["target"].is_float:  # class probabilities
        return total(logarithms, {"MAC": value.numel, "-": rows}, _loss_reduction(call, rows))
    return total(logarithms, _nll_loss(call))


RULES: Mapping[str, Rule] = {
    **{name: _term(each) for name, each in _TERMS.items()},
    "kl_div": _kl_div,
    **dict.fromkeys(("nll_loss", "nll_loss_nd", "nll_loss_forward", "nll_loss2d", "nll_loss2d_forward"), _nll_loss),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _nll_loss_backward),
    "cross_entropy_loss": _cross_entropy,
}

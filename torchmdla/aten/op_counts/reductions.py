"""Operation counts of reductions, scans, softmax, normalisations and losses: N elements in R rows or results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torchmdla.aten.calls import Call, Tensor
from torchmdla.aten.op_counts.kinds import Counts, Rule, each


def _comparisons(elements: int, rows: int) -> Counts:
    """Return the counts of an extremum of each row."""
    return each(elements, ">") - each(rows, ">")


def softmax(elements: int, rows: int) -> Counts:
    """Return the counts of the softmax of each row, with its maximum subtracted."""
    return _comparisons(elements, rows) + each(elements, "- exp + /")


def _log_softmax(elements: int, rows: int) -> Counts:
    """Return the counts of the log-softmax of each row, with its maximum subtracted first."""
    return _comparisons(elements, rows) + each(elements, "- - exp +") + each(rows, "log")


def _reduction(elements: str, results: str = "") -> Rule:
    """Return the rule with the kinds for each element of ``self`` and for each result."""
    return lambda call: each(call["self"].numel, elements) + each(call.out.numel, results)


def _reduction_by(count: Callable[[int, int], Counts]) -> Rule:
    return lambda call: count(call["self"].numel, call.out.numel)


def _rows_of(tensor: Tensor, dim: int) -> int:
    """Return the number of rows along ``dim``."""
    if not tensor.shape or not tensor.numel:
        return tensor.numel
    return tensor.numel // tensor.shape[dim]


def _softmax_by(count: Callable[[int, int], Counts]) -> Rule:
    return lambda call: count(call["self"].numel, _rows_of(call["self"], call["dim"]))


def _norm(call: Call) -> Counts:
    order = next((call[name] for name in ("ord", "p") if call.arguments.get(name) is not None), 2)
    elements, rows = call["self"].numel, call.out.numel
    if order in (math.inf, -math.inf):
        return each(elements, "abs") + _comparisons(elements, rows)
    by_element, by_row = {0: ("> +", ""), 1: ("abs +", ""), 2: ("MAC", "sqrt")}.get(order, ("abs pow +", "pow"))
    return each(elements, by_element) + each(rows, by_row)


def _cosine_similarity(call: Call) -> Counts:
    rows = call.out.numel
    elements = rows * max(call["x1"].shape[call["dim"]], call["x2"].shape[call["dim"]])
    return each(elements, "MAC MAC MAC") + each(rows, "sqrt sqrt > > * /")


# --- normalisations: a row is a channel of a batch norm, a group of a group norm, and so on -----------------------


def normalisation(elements: int, rows: int, *, weight: bool = True, bias: bool = True) -> Counts:
    """Return the counts of a normalisation with statistics of the data (``docs/aten.md``)."""
    return each(elements, "* * + + +" + " *" * weight + " +" * bias) + each(rows, "* * - / sqrt")


def _inference_normalisation(elements: int, rows: int, *, weight: bool, bias: bool) -> Counts:
    """Return the counts of a normalisation with running statistics, by one factor and one summand for each row.

    They are weight / √(var + eps) and bias − mean · factor. Without a bias the summand is −mean · factor.
    """
    return each(elements, "* +") + each(rows, "+ sqrt / * -" + " *" * weight)


def _normalisation(rows: Callable[[Call], int], trains: Callable[[Call], bool] = lambda call: True) -> Rule:
    """Return the rule for an op with ``rows``; ``trains`` returns whether it computes statistics of the data."""

    def rule(call: Call) -> Counts:
        count = normalisation if trains(call) else _inference_normalisation
        affine = {"weight": call["weight"] is not None, "bias": call["bias"] is not None}
        return count(call["input"].numel, rows(call), **affine)

    return rule


def _channels(call: Call) -> int:
    shape: tuple[int, ...] = call["input"].shape
    return shape[1] if len(shape) > 1 else 1


def _instances(call: Call) -> int:
    samples: int = call["input"].shape[0] if call["use_input_stats"] else 1
    return samples * _channels(call)


def _normalised_rows(call: Call) -> int:
    elements: int = call["input"].numel
    row = math.prod(call["normalized_shape"])
    return elements // row if row else 0


def _rms_norm(call: Call) -> Counts:
    """Return the counts of x / √(mean of squares + eps), times the weight."""
    kinds = "MAC *" if call["weight"] is None else "MAC * *"
    return each(call["input"].numel, kinds) + each(_normalised_rows(call), "* + / sqrt")


# --- losses: elementwise terms, reduced by the argument ``reduction`` (0 none, 1 mean, 2 sum) ---------------------

# Kinds for each element of the input.
_TERMS: Mapping[str, str] = {
    "mse_loss": "- *",
    "l1_loss": "- abs",
    # Quadratic below a bound, linear above
    "smooth_l1_loss": "- - abs > * * / ?",
    "huber_loss": "- - abs > * * * ?",
    # −(t · log p + (1 − t) · log(1 − p)), logarithms clamped to at least −100
    "binary_cross_entropy": "log log - - - * MAC > >",
    # max(x, 0) − x·t + log(1 + exp(−|x|))
    "binary_cross_entropy_with_logits": "> * - - + + abs exp log",
}


def _terms(kinds: str) -> Rule:
    def rule(call: Call) -> Counts:
        elements = call["self"].numel
        weights = sum(call.arguments.get(name) is not None for name in ("weight", "pos_weight"))
        return each(elements, kinds) + each(weights * elements, "*") + _loss_reduction(call, elements)

    return rule


def _loss_reduction(call: Call, terms: int) -> Counts:
    return each(terms, "+" if call["reduction"] else "") + each(1, "*" if call["reduction"] == 1 else "")


def _kl_div(call: Call) -> Counts:
    """Return the counts of t · (log t − x); a target in logarithmic form needs its exponential instead."""
    elements = call["self"].numel
    return each(elements, "exp - *" if call["log_target"] else "log > - *") + _loss_reduction(call, elements)


def _nll_loss(call: Call) -> Counts:
    """Return the counts of the negated target element of each row, scaled by its class's weight.

    A mean divides by the sum of weights.
    """
    rows = call["target"].numel
    reduced = ("", "+ +", "+")[call["reduction"]]
    weighted = "" if call.arguments.get("weight") is None else "*"
    return each(rows, f"- > {weighted} {reduced}") + each(1, "/" if call["reduction"] == 1 else "")


def _nll_loss_backward(call: Call) -> Counts:
    weighted, mean = "" if call["weight"] is None else "*", "/" if call["reduction"] == 1 else ""
    return each(call["target"].numel, f"- > {weighted} {mean}")


def _cross_entropy(call: Call) -> Counts:
    value = call["self"]
    rows = _rows_of(value, 1 if len(value.shape) > 1 else 0)
    logarithms = _log_softmax(value.numel, rows)
    if call["target"].is_float:  # class probabilities
        return logarithms + each(value.numel, "MAC") + each(rows, "-") + _loss_reduction(call, rows)
    return logarithms + _nll_loss(call)


RULES: Mapping[str, Rule] = {
    "sum": _reduction("+"),
    "nansum": _reduction("> ? +"),
    "mean": _reduction("+", "*"),
    # Sum, centre, square, sum
    **dict.fromkeys(("var", "var_mean"), _reduction("+ + + *", "* * -")),
    "std": _reduction("+ + + *", "* * - sqrt"),
    "prod": _reduction("*"),
    **dict.fromkeys(("amax", "amin", "argmax", "argmin", "max", "min"), _reduction_by(_comparisons)),
    "aminmax": _reduction_by(lambda n, r: _comparisons(2 * n, 2 * r)),
    **dict.fromkeys(("all", "any"), _reduction("&")),
    "count_nonzero": _reduction("> +"),
    "logsumexp": _reduction_by(lambda n, r: _comparisons(n, r) + each(n, "- exp +") + each(r, "+ log")),
    **dict.fromkeys(("norm", "linalg_vector_norm", "frobenius_norm"), _norm),
    "cumsum": _reduction("+"),
    "cumprod": _reduction("*"),
    **dict.fromkeys(("softmax", "_softmax"), _softmax_by(softmax)),
    **dict.fromkeys(("log_softmax", "_log_softmax"), _softmax_by(_log_softmax)),
    "_softmax_backward_data": "MAC - *",  # (g − Σ g·y) · y
    "_log_softmax_backward_data": "+ exp * -",  # g − exp(y) · Σ g
    "cosine_similarity": _cosine_similarity,
    **dict.fromkeys(
        ("sum_to_size", "_grad_sum_to_size"),
        _reduction_by(lambda n, r: each(n, "+" if n != r else "")),
    ),
    **dict.fromkeys(
        (
            *("batch_norm", "native_batch_norm", "cudnn_batch_norm", "_batch_norm_impl_index"),
            *("_native_batch_norm_legit", "_native_batch_norm_legit_functional"),
        ),
        _normalisation(_channels, lambda call: call["training"]),
    ),
    "_native_batch_norm_legit_no_training": _normalisation(_channels, lambda call: False),
    "instance_norm": _normalisation(_instances, lambda call: call["use_input_stats"]),
    **dict.fromkeys(("layer_norm", "native_layer_norm"), _normalisation(_normalised_rows)),
    "group_norm": _normalisation(lambda call: call["input"].shape[0] * call["num_groups"]),
    "native_group_norm": _normalisation(lambda call: call["input"].shape[0] * call["group"]),
    "rms_norm": _rms_norm,
    # Σ g and Σ g·x̂ for each row, then weight/σ · (g − mean g − x̂ · mean g·x̂). x̂ is computed again.
    "native_batch_norm_backward": lambda call: (
        each(call["input"].numel, "+ + - - * * * MAC") + each(_channels(call), "* * *")
    ),
    # The gradients of weight and bias are summed separately from those of the rows.
    "native_layer_norm_backward": lambda call: (
        each(call["input"].numel, "+ + + - - * * * * MAC MAC") + each(call["mean"].numel, "* * *")
    ),
    **{name: _terms(kinds) for name, kinds in _TERMS.items()},
    "kl_div": _kl_div,
    **dict.fromkeys(("nll_loss", "nll_loss_nd", "nll_loss_forward", "nll_loss2d", "nll_loss2d_forward"), _nll_loss),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _nll_loss_backward),
    "cross_entropy_loss": _cross_entropy,
}

"""Operation counts of reductions, scans and softmax, which reduce N elements in rows to R results."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torchmdla.aten.calls import Call, Tensor
from torchmdla.aten.op_counts.kinds import Counts, Rule, total

_ByRows = Callable[[int, int], Counts]


def _reduction(count: _ByRows) -> Rule:
    """Return the rule that counts for the N elements of the tensor ``self`` and the R results."""
    return lambda call: count(call["self"].numel, call.out.numel)


def comparisons(elements: int, rows: int) -> Counts:
    """Return the counts of an extremum of each row."""
    return {">": max(elements - rows, 0)}


def mean(elements: int, rows: int) -> Counts:
    """Return the counts of the mean of each row."""
    return {"+": elements, "*": rows}


def variance(elements: int, rows: int) -> Counts:
    """Return the counts of the variance of each row about its mean: sum, centre, square, sum."""
    return {"+": 3 * elements, "*": elements + 2 * rows, "-": rows}


def _deviation(elements: int, rows: int) -> Counts:
    return total(variance(elements, rows), {"sqrt": rows})


def softmax(elements: int, rows: int) -> Counts:
    """Return the counts of the softmax of each row, with its maximum subtracted."""
    return total(comparisons(elements, rows), {"-": elements, "exp": elements, "+": elements, "/": elements})


def log_softmax(elements: int, rows: int) -> Counts:
    """Return the counts of the log-softmax of each row.

    The row's maximum is subtracted first, and the logarithm of the sum last.
    """
    return total(comparisons(elements, rows), {"-": 2 * elements, "exp": elements, "+": elements, "log": rows})


def _logsumexp(elements: int, rows: int) -> Counts:
    return total(comparisons(elements, rows), {"-": elements, "exp": elements, "+": elements + rows, "log": rows})


def rows_of(tensor: Tensor, dim: int) -> int:
    """Return the number of rows along ``dim``."""
    if not tensor.shape or not tensor.numel:
        return tensor.numel
    return tensor.numel // tensor.shape[dim]


def _along_dim(count: _ByRows, name: str = "self") -> Rule:
    """Return the rule for ops whose result has every element; R is the number of rows along ``dim``."""
    return lambda call: count(call[name].numel, rows_of(call[name], call["dim"]))


def _norm(call: Call) -> Counts:
    order = next((call[name] for name in ("ord", "p") if call.arguments.get(name) is not None), 2)
    elements, rows = call["self"].numel, call.out.numel
    return {
        0: {">": elements, "+": elements},
        1: {"abs": elements, "+": elements},
        2: {"MAC": elements, "sqrt": rows},
        float("inf"): {"abs": elements, **comparisons(elements, rows)},
        float("-inf"): {"abs": elements, **comparisons(elements, rows)},
    }.get(order, {"abs": elements, "pow": elements + rows, "+": elements})


def _cosine_similarity(call: Call) -> Counts:
    rows = call.out.numel
    elements = rows * max(call["x1"].shape[call["dim"]], call["x2"].shape[call["dim"]])
    return {"MAC": 3 * elements, "sqrt": 2 * rows, ">": 2 * rows, "*": rows, "/": rows}


RULES: Mapping[str, Rule] = {
    "sum": _reduction(lambda n, r: {"+": n}),
    "nansum": _reduction(lambda n, r: {">": n, "?": n, "+": n}),
    "mean": _reduction(mean),
    "var": _reduction(variance),
    "var_mean": _reduction(variance),
    "std": _reduction(_deviation),
    "prod": _reduction(lambda n, r: {"*": n}),
    **dict.fromkeys(("amax", "amin", "argmax", "argmin", "max", "min"), _reduction(comparisons)),
    "aminmax": _reduction(lambda n, r: {">": 2 * max(n - r, 0)}),
    "all": _reduction(lambda n, r: {"&": n}),
    "any": _reduction(lambda n, r: {"&": n}),
    "count_nonzero": _reduction(lambda n, r: {">": n, "+": n}),
    "logsumexp": _reduction(_logsumexp),
    **dict.fromkeys(("norm", "linalg_vector_norm", "frobenius_norm"), _norm),
    "cumsum": _along_dim(lambda n, r: {"+": n}),
    "cumprod": _along_dim(lambda n, r: {"*": n}),
    **dict.fromkeys(("softmax", "_softmax"), _along_dim(softmax)),
    **dict.fromkeys(("log_softmax", "_log_softmax"), _along_dim(log_softmax)),
    # (g − Σ g·y) · y, and g − exp(y) · Σ g
    "_softmax_backward_data": _along_dim(lambda n, r: {"MAC": n, "-": n, "*": n}, "output"),
    "_log_softmax_backward_data": _along_dim(lambda n, r: {"+": n, "exp": n, "*": n, "-": n}, "output"),
    "cosine_similarity": _cosine_similarity,
    "sum_to_size": _reduction(lambda n, r: {"+": n if n != r else 0}),
    "_grad_sum_to_size": _reduction(lambda n, r: {"+": n if n != r else 0}),
}

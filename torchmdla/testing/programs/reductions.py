"""Sums and other reductions, over some dimensions or all, with and without ``keepdim``."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdla.testing.programs.inputs import booleans, integers, normal, positive
from torchmdla.testing.programs.program import functions, with_gradients

X, IMAGE, INTS, MASK = normal(6, 9), normal(2, 3, 8, 5), integers(6, 9, high=7), booleans(6, 9)


def standardised(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-5)


def softmax_by_hand(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(1, keepdim=True))
    return e / e.sum(1, keepdim=True)


def running_totals(x: Tensor) -> Tensor:
    return torch.cumsum(x, 0) - torch.cumsum(x, 1)


DIFFERENTIABLE = {
    "sum": (lambda x: torch.sum(x * 2), X),
    "sum_rows": (lambda x: x.sum(1) * 2, X),
    "sum_columns": (lambda x: x.sum(0, keepdim=True) + x, X),
    "sum_inner_and_outer": (lambda x: x.sum((0, 3)), IMAGE),
    "sum_middle": (lambda x: x.sum((1, 2), keepdim=True) * x, IMAGE),
    "sum_of_products": (lambda x, y: (x * y).sum(-1), X, normal(9)),
    "mean": (lambda x: x.mean() - x, X),
    "mean_image": (lambda x: x.mean((2, 3)), IMAGE),
    "var": (lambda x: x.var(1) + x.var(1, unbiased=False), X),
    "std_mean": (lambda x: torch.std_mean(x, dim=1), X),
    "var_all": (lambda x: torch.var(x) * 2, X),
    "prod": (lambda x: x.prod(1) + x.prod(), positive(3, 4)),
    "amax": (lambda x: x.amax(1) - x.amin(0).sum(), X),
    "logsumexp": (lambda x: torch.logsumexp(x, (1, 2)), normal(3, 4, 5)),
    "norm": (lambda x: x.norm() + x.norm(1, dim=1), X),
    "vector_norm": (lambda x: torch.linalg.vector_norm(x, 3, dim=1) * 2, X),
    "softmax": (lambda x: torch.softmax(x, 0) + torch.log_softmax(x, 1), X),
    "cumsum": (running_totals, X),
    "cumprod": (lambda x: torch.cumprod(x, 1), positive(3, 5)),
    "standardised": (standardised, X),
    "softmax_by_hand": (softmax_by_hand, X),
    "max_with_index": (lambda x: torch.max(x, 1), X),
    "median_row": (lambda x: x.median(1).values + 1, X),
}

OTHERS = {
    "argmax": (lambda x: (x.argmax(1), x.argmin(0, keepdim=True), x.argmax()), X),
    "argmax_ties": (lambda x: (x.argmax(1), x.max(0), x.min(1)), INTS),
    "sum_integers": (lambda x: x.sum(1) + x.sum(), INTS),
    "sum_int32": (lambda x: x.sum(1), integers(6, 9, dtype=torch.int32)),
    "sum_booleans": (lambda x: x.sum(0) * 2, MASK),
    "sum_as_float64": (lambda x: x.sum(1, dtype=torch.float64) * 2, X),
    "mean_of_casted": (lambda x: x.float().mean(1), INTS),
    "all_any": (lambda x: (x.all(1), x.any(0), x.all(), x.any()), MASK),
    "any_of_floats": (lambda x: (x > 1).any(1) | (x < -1).all(1), X),
    "count_nonzero": (lambda x: torch.count_nonzero(x, 1) * 2, INTS),
    "prod_integers": (lambda x: (x + 1).prod(1), integers(4, 6)),
    "amax_integers": (lambda x: x.amax(0) - x.amin(0), INTS),
    "cumsum_integers": (lambda x: x.cumsum(1) + x, INTS),
    "cummax": (lambda x: torch.cummax(x, 1), X),
    "aminmax": (lambda x: torch.aminmax(x * 2, dim=1), X),
}

PROGRAMS = [*with_gradients(functions("reductions", DIFFERENTIABLE, layers=4)), *functions("reductions", OTHERS)]

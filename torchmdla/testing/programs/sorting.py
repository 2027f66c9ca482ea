"""Operators that no device supports, between supported ones: sorting, searching, decompositions, transforms."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdla.testing.programs.inputs import integers, normal
from torchmdla.testing.programs.program import functions

X = normal(5, 7)


def greedy(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    best, index = torch.topk(torch.softmax(logits * 2, -1), count)
    return best / best.sum(-1, keepdim=True), index


FUNCTIONS = {
    "sort": (lambda x: torch.sort(x * 2, 1), X),
    "sort_stable": (lambda x: torch.sort(x, stable=True, descending=True), integers(5, 7)),
    "argsort": (lambda x: torch.argsort(torch.tanh(x) * 2, 0), X),
    "topk": (greedy, X, 3),
    "kthvalue": (lambda x: torch.kthvalue(x + 1, 2), X),
    "unique": (lambda x: torch.unique(x * 2), integers(20)),
    "unique_counts": (lambda x: torch.unique(x + 1, return_inverse=True, return_counts=True), integers(20)),
    "searchsorted": (lambda x: torch.searchsorted(x.sort().values, x * 2) + 1, X),
    "histogram": (lambda x: torch.histc(x * 2, 5, -2, 2) + 1, X),
    "quantile": (lambda x: torch.quantile(x * 2, 0.3, dim=1) + 1, X),
    "inverse": (lambda x: torch.linalg.inv(x @ x.t() + torch.eye(5)) * 2, X),
    "cholesky": (lambda x: torch.linalg.cholesky(x @ x.t() + torch.eye(5)) * 2, X),
    "solve": (lambda x, y: torch.linalg.solve(x @ x.t() + torch.eye(5), y) * 2, X, normal(5, 2)),
    "fourier": (lambda x: torch.fft.irfft(torch.fft.rfft(x * 2, dim=1) * 0.5, 7, dim=1) + 1, X),
    "special": (lambda x: torch.special.i0e(x * 2) + torch.lgamma(x.abs() + 1) + torch.digamma(x.abs() + 1), X),
}

SPARSE = {"sparse": (lambda x: torch.sparse.mm((x * 2).to_sparse(), x.t()) + 1, X)}

PROGRAMS = [*functions("sorting", FUNCTIONS, layers=8), *functions("sorting", SPARSE, "sparse", layers=8)]

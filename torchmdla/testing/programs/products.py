"""Products of matrices: all ranks, transposed operands, fused additions, chains."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchmdla.testing.programs.inputs import expanded, integers, normal, transposed
from torchmdla.testing.programs.program import functions, modules, with_gradients

A, B, ROW = normal(6, 8), normal(8, 5), normal(8)
BATCH_A, BATCH_B = normal(3, 6, 8), normal(3, 8, 5)


def low_rank(x: Tensor, u: Tensor, v: Tensor) -> Tensor:
    return x + (x @ u) @ v


def gram(x: Tensor) -> Tensor:
    product = x @ x.t()
    return product / product.diagonal().sum()


PRODUCTS = {
    "mm": (lambda a, b: torch.mm(a, b), A, B),
    "mm_relu": (lambda a, b: torch.relu(a @ b) + 1, A, B),
    "transposed_left": (lambda a, b: a.t() @ b, normal(8, 6), B),
    "transposed_right": (lambda a, b: a @ b.t(), A, normal(5, 8)),
    "transposed_both": (lambda a, b: a.t() @ b.t(), normal(8, 6), normal(5, 8)),
    "transposed_in_memory": (lambda a, b: a @ b, transposed(A), transposed(B)),
    "bmm": (lambda a, b: torch.bmm(a, b), BATCH_A, BATCH_B),
    "bmm_transposed": (lambda a, b: a @ b.transpose(1, 2), BATCH_A, normal(3, 5, 8)),
    "matrix_vector": (lambda a, x: a @ x, A, ROW),
    "vector_matrix": (lambda x, b: x @ b, ROW, B),
    "dot": (lambda x, y: torch.dot(x, y) * 2, ROW, normal(8)),
    "outer": (lambda x, y: torch.outer(x, y) + 1, ROW, normal(5)),
    "broadcast_batch": (lambda a, b: a @ b, normal(2, 1, 6, 8), normal(4, 8, 5)),
    "batch_by_matrix": (lambda a, b: a @ b, BATCH_A, B),
    "expanded_batch": (lambda a, b: a @ b, expanded(normal(1, 6, 8), 3, 6, 8), BATCH_B),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), normal(5), A, B),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b), normal(3, 6, 5), BATCH_A, BATCH_B),
    "addmv": (lambda c, a, x: torch.addmv(c, a, x, beta=2), normal(6), A, ROW),
    "einsum_attention": (
        lambda q, k: torch.einsum("bihd,bjhd->bhij", q, k),
        normal(2, 3, 2, 4),
        normal(2, 5, 2, 4),
    ),
    "einsum_bilinear": (lambda x, w, y: torch.einsum("bi,oij,bj->bo", x, w, y), A, normal(5, 8, 4), normal(6, 4)),
    "einsum_trace": (lambda x: torch.einsum("ii->i", x) * 2, normal(5, 5)),
    "tensordot": (lambda x, y: torch.tensordot(x, y, 2), normal(3, 4, 5), normal(4, 5, 2)),
    "chain": (lambda a, b, c: (a @ b) @ c, A, B, normal(5, 7)),
    "low_rank": (low_rank, A, normal(8, 2), normal(2, 8)),
    "gram": (gram, A),
    "one_row": (lambda a, b: a @ b, normal(1, 64), normal(64, 48)),
    "one_column": (lambda a, b: a @ b, normal(33, 20), normal(20, 1)),
    "inner_size_one": (lambda a, b: a @ b, normal(7, 1), normal(1, 9)),
    "odd_sizes": (lambda a, b: a @ b, normal(37, 53), normal(53, 41)),
}

MODULES = {
    "linear": (lambda: nn.Linear(8, 5), A),
    "linear_without_bias": (lambda: nn.Linear(8, 5, bias=False), A),
    "linear_of_three": (lambda: nn.Linear(8, 5), BATCH_A),
    "linear_of_one": (lambda: nn.Linear(8, 5), ROW),
    "linear_relu": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5)), A),
    "bilinear": (lambda: nn.Bilinear(8, 4, 5), A, normal(6, 4)),
    "double": (lambda: nn.Linear(8, 5).double(), normal(6, 8, dtype=torch.float64)),
}

PROGRAMS = [
    *with_gradients(functions("products", PRODUCTS, layers=4)),
    *with_gradients(modules("products", MODULES, layers=4)),
    *functions("products", {"integers": (lambda a, b: a @ b + 1, integers(4, 6), integers(6, 3))}),
]

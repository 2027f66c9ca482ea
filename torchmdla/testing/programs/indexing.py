"""Programs that read and write by index: slices, index tensors, masks, embeddings, scattering."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchmdla.testing.programs.inputs import booleans, integers, normal, permutation
from torchmdla.testing.programs.program import functions, modules, with_gradients

X, CUBE = normal(6, 8), normal(3, 4, 5)
ROWS = integers(5, high=6)


def windows(x: Tensor) -> Tensor:
    return x[:, 1:-1] * 2 - x[:, :-2] - x[:, 2:]


def last_of_each(x: Tensor, lengths: Tensor) -> Tensor:
    return x[torch.arange(x.size(0)), lengths] * 2


def one_hot_by_scatter(x: Tensor, index: Tensor) -> Tensor:
    return torch.zeros_like(x).scatter(1, index.unsqueeze(1), 1.0) * x


READING = {
    "slice": (lambda x: x[1:4, ::2] + 1, X),
    "negative_slice": (lambda x: x[-3:, :-1] * 2, X),
    "select": (lambda x: x[2] + x[:, 3].sum(), X),
    "ellipsis": (lambda x: x[..., 0] * x[..., -1], CUBE),
    "new_axis": (lambda x: (x[:, None] - x[None]).square().sum(-1), X),
    "windows": (windows, X),
    "rows_by_tensor": (lambda x, i: x[i] * 2, X, ROWS),
    "columns_by_tensor": (lambda x, i: x[:, i] * 2, X, ROWS),
    "pairs": (lambda x, i, j: x[i, j] * 2, X, ROWS, integers(5, high=8)),
    "pairs_broadcast": (lambda x, i, j: x[i, j] * 2, X, integers(5, 1, high=6), integers(3, high=8)),
    "around_a_slice": (lambda x, i, j: x[i, :, j] + 1, CUBE, integers(2, high=3), integers(2, high=5)),
    "negative_indices": (lambda x, i: x[i] * 2, X, integers(5, low=-6, high=6)),
    "index_select": (lambda x, i: torch.index_select(x, 1, i) * 2, X, ROWS),
    "gather": (lambda x, i: torch.gather(x, 1, i) * 2, X, integers(6, 3, high=8)),
    "take_along": (lambda x: torch.take_along_dim(x, x.argmax(1, keepdim=True), 1) * 2, X),
    "permuted": (lambda x, p: x[p].tanh() * 2, X, permutation(6)),
    "last_of_each": (last_of_each, X, integers(6, high=8)),
    "take": (lambda x, i: torch.take(x, i) * 2, X, integers(4, high=48)),
    "roll": (lambda x: torch.roll(x, 3, 1) - torch.roll(x, (-1, 2), (0, 1)), X),
    "roll_far": (lambda x: torch.roll(x, 19, 1) + torch.roll(x, (-13, 8), (0, 1)) * 2 + torch.roll(x, -97), X),
    "flip": (lambda x: x.flip(0) + x.flip(1), X),
    "tril": (lambda x: torch.tril(x) + torch.triu(x, 2), X),
    "diagonal": (lambda x: torch.diagonal(x, 1) * 2, X),
    "diag_embed": (lambda x: torch.diag_embed(x) + 1, X),
    "unfold": (lambda x: x.unfold(1, 3, 2).sum(-1), X),
}

WRITING = {
    "scatter": (lambda x, p, y: torch.scatter(x, 0, p.unsqueeze(1).expand(6, 8), y) * 2, X, permutation(6), X),
    "scatter_add": (lambda x, i, y: torch.scatter_add(x, 1, i, y) * 2, X, integers(6, 5, high=8), normal(6, 5)),
    "scatter_reduce": (
        lambda x, i, y: x.scatter_reduce(1, i, y, "amax") * 2,
        X,
        integers(6, 5, high=8),
        normal(6, 5),
    ),
    "index_add": (lambda x, i, y: x.index_add(0, i, y) * 2, X, ROWS, normal(5, 8)),
    "index_copy": (lambda x, p, y: x.index_copy(0, p, y) * 2, X, permutation(6), X),
    "index_put": (lambda x, p, y: torch.index_put(x, (p,), y) * 2, X, permutation(6), X),
    "index_put_accumulate": (lambda x, i, y: torch.index_put(x, (i,), y, True) * 2, X, ROWS, normal(5, 8)),
    "select_scatter": (lambda x, y: torch.select_scatter(x, y, 0, 2) * 2, X, normal(8)),
    "slice_scatter": (lambda x, y: torch.slice_scatter(x, y, 1, 2, 5) * 2, X, normal(6, 3)),
    "one_hot_by_scatter": (one_hot_by_scatter, X, integers(6, high=8)),
    "masked_scatter": (lambda x, mask, y: x.masked_scatter(mask, y) * 2, X, booleans(6, 8), X),
}

OTHERS = {
    "boolean_mask": (lambda x: x[x > 0] * 2, X),
    "nonzero": (lambda x: torch.nonzero(x > 0), X),
    "one_hot": (lambda i: torch.nn.functional.one_hot(i, 6) * 2, ROWS),
    "bincount": (lambda i: torch.bincount(i, minlength=6) * 2, ROWS),
    "bucketize": (lambda x, edges: torch.bucketize(x, edges.sort().values) + 1, X, normal(4)),
}

EMBEDDINGS = {
    "embedding": (lambda: nn.Embedding(10, 6), integers(3, 5, high=10)),
    "embedding_padding": (lambda: nn.Embedding(10, 6, padding_idx=0), integers(3, 5, high=10)),
    "embedding_int32": (lambda: nn.Embedding(10, 6), integers(3, 5, high=10, dtype=torch.int32)),
    "embedding_positions": (lambda: Positions(), integers(3, 5, high=10)),
    "embedding_bag": (lambda: nn.EmbeddingBag(10, 6, mode="mean"), integers(3, 5, high=10)),
}


class Positions(nn.Module):
    """Sum of token and position embeddings, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places, self.norm = nn.Embedding(10, 6), nn.Embedding(8, 6), nn.LayerNorm(6)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.size(1)).unsqueeze(0)
        summed: Tensor = self.norm(self.tokens(ids) + self.places(places))
        return summed


PROGRAMS = [
    *with_gradients(functions("indexing", READING | WRITING)),
    *functions("indexing", OTHERS),
    *with_gradients(modules("indexing", EMBEDDINGS, layers=2)),
]

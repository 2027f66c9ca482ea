"""Views and rearrangements, joining and splitting, factories."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdla.testing.programs.inputs import normal, strided, transposed
from torchmdla.testing.programs.program import functions, with_gradients

X, CUBE = normal(4, 6), normal(2, 3, 4)


def heads(x: Tensor) -> Tensor:
    return x.view(x.size(0), x.size(1), 2, 2).permute(0, 2, 1, 3) * 2


def patches(x: Tensor) -> Tensor:
    return x.unfold(0, 2, 2).unfold(1, 3, 3).reshape(-1, 6) + 1


def every_piece(x: Tensor) -> list[Tensor]:
    return [piece * (index + 1) for index, piece in enumerate(x.unbind(0))]


def shape_arithmetic(x: Tensor) -> Tensor:
    rows, columns = x.shape
    return x.reshape(rows * columns // 2, 2).sum(1) / (rows + columns)


REARRANGING = {
    "view": (lambda x: x.view(8, 3) * 2, X),
    "view_inferred": (lambda x: x.view(-1, 2) + 1, X),
    "reshape_transposed": (lambda x: x.t().reshape(4, 6) * 2, X),
    "reshape_of_strided": (lambda x: x.reshape(-1) * 2, strided(X)),
    "flatten": (lambda x: torch.flatten(x, 1) * 2, CUBE),
    "unflatten": (lambda x: x.unflatten(1, (2, 3)) * 2, X),
    "transpose": (lambda x: x.transpose(0, 2) * 2, CUBE),
    "permute": (lambda x: x.permute(2, 0, 1) + 1, CUBE),
    "permute_contiguous": (lambda x: x.permute(2, 0, 1).contiguous() * 2, CUBE),
    "movedim": (lambda x: torch.movedim(x, 0, -1) * 2, CUBE),
    "squeeze": (lambda x: x.unsqueeze(1).squeeze() * 2, X),
    "expand": (lambda x: x.unsqueeze(0).expand(3, -1, -1) * 2, X),
    "repeat": (lambda x: x.repeat(2, 1, 3) + 1, X),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, 1) * 2, X),
    "tile": (lambda x: torch.tile(x, (2, 2)) * 2, X),
    "cat": (lambda x, y: torch.cat([x, y * 2, x], 1), X, normal(4, 3)),
    "cat_rows": (lambda x, y: torch.cat((x, y)) * 2, X, normal(1, 6)),
    "stack": (lambda x, y: torch.stack([x, y], -1) * 2, X, X),
    "hstack_vstack": (lambda x, y: torch.vstack([torch.hstack([x, y]), torch.hstack([y, x])]) * 2, X, X),
    "chunk": (lambda x: sum(x.chunk(3, 1)) * 2, X),
    "chunk_uneven": (lambda x: [piece * 2 for piece in x.chunk(4, 1)], X),
    "split": (lambda x: [piece.tanh() * 2 for piece in x.split([1, 2, 3], 1)], X),
    "unbind": (every_piece, X),
    "meshgrid": (lambda x, y: torch.meshgrid(x * 2, y * 2, indexing="ij"), normal(3), normal(4)),
    "rot90": (lambda x: torch.rot90(x) * 2, X),
    "block_diagonal": (lambda x, y: torch.block_diag(x, y) * 2, X, normal(2, 2)),
    "kron": (lambda x, y: torch.kron(x, y) * 2, normal(2, 3), normal(3, 2)),
    "cartesian": (lambda x, y: torch.cdist(x, y), X, normal(5, 6)),
    "heads": (heads, CUBE),
    "patches": (patches, X),
    "shape_arithmetic": (shape_arithmetic, X),
    "transposed_in_memory": (lambda x: x * 2 + x.sum(0), transposed(CUBE)),
}

FACTORIES = {
    "zeros_like": (lambda x: torch.zeros_like(x) + x * 2, X),
    "full": (lambda x: torch.full((4, 6), 1.5) * x + 1, X),
    "new_ones": (lambda x: x.new_ones(6) * x + 1, X),
    "arange": (lambda x: torch.arange(6) * x + torch.arange(0, 3, 0.5), X),
    "linspace": (lambda x: torch.linspace(-1, 1, 6) * x + 1, X),
    "eye": (lambda x: torch.eye(4) @ x, X),
    "positions": (lambda x: torch.arange(x.size(0)).unsqueeze(1) + x.argmax(1), X),
    "causal_mask": (lambda x: torch.full((6, 6), float("-inf")).triu(1) + x[0], X),
    "constant": (lambda x: x * torch.tensor([1.0, 2, 3, 4, 5, 6]) + 1, X),
}

PROGRAMS = [*with_gradients(functions("shapes", REARRANGING)), *functions("shapes", FACTORIES)]

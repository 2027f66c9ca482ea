"""Programs at empty, single and large sizes, and at ranks from 0."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from torchmdla.testing.programs.inputs import normal
from torchmdla.testing.programs.program import Program, functions, modules

SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (0, 4), (4, 0), (1, 1), (1, 7), (7, 1), (2, 0, 3), (1, 1, 1, 1))
LARGE: tuple[tuple[int, ...], ...] = ((100003,), (1, 65537), (513, 257), (3, 5, 7, 11, 13))


def elementwise(x: Tensor) -> Tensor:
    return torch.tanh(x * 2 + 1) - x


def reduced(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sum(x * 2), (x * 2).mean()


def joined(x: Tensor) -> Tensor:
    return torch.cat([x * 2, x + 1]) * 2


def rows_reduced(x: Tensor) -> Tensor:
    return torch.softmax(x, -1).sum(-1) * 2


def _programs() -> Iterator[Program]:
    for shape in (*SHAPES, *LARGE):
        name = "x".join(map(str, shape)) or "scalar"
        yield from functions("sizes", {f"elementwise_{name}": (elementwise, normal(*shape))})
        yield from functions("sizes", {f"reduced_{name}": (reduced, normal(*shape))}, layers=16)
        if shape:
            yield from functions("sizes", {f"joined_{name}": (joined, normal(*shape))})
            yield from functions("sizes", {f"rows_{name}": (rows_reduced, normal(*shape))}, layers=4)


def product(a: Tensor, b: Tensor) -> Tensor:
    return torch.relu(a @ b) + 1


PRODUCTS = {
    f"product_{m}x{k}x{n}": (product, normal(m, k), normal(k, n))
    for m, k, n in ((0, 4, 5), (4, 0, 5), (4, 5, 0), (1, 1, 1), (1, 200, 1), (129, 65, 33), (64, 1024, 48))
}

MODULES = {
    "linear_empty_batch": (lambda: nn.Linear(6, 3), normal(0, 6)),
    "linear_large_batch": (lambda: nn.Linear(6, 3), normal(5000, 6)),
    "convolution_empty_batch": (lambda: nn.Conv2d(3, 4, 3), normal(0, 3, 8, 8)),
    "convolution_one_pixel": (lambda: nn.Conv2d(3, 4, 1), normal(1, 3, 1, 1)),
    "convolution_large": (lambda: nn.Conv2d(8, 16, 3, padding=1), normal(1, 8, 70, 67)),
    "batch_norm_one": (lambda: nn.BatchNorm2d(3).eval(), normal(1, 3, 1, 1)),
    "embedding_one": (lambda: nn.LayerNorm(1), normal(5, 1)),
    "many_dimensions": (lambda: nn.LayerNorm(2), normal(1, 2, 1, 3, 1, 2, 1, 2)),
}

PROGRAMS = [
    *_programs(),
    *functions("sizes", PRODUCTS, layers=8),
    *modules("sizes", MODULES, layers=4),
]

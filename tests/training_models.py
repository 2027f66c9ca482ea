"""Small models that learn to classify, for training in several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

CLASSES = 4


class Dense(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.product = nn.Linear(inputs, outputs)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(self.norm(self.product(x)))


class Convolution(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.convolution(x)).relu()


class Attention(nn.Module):
    """Layer of an encoder. Its keys have no bias, since the gradient of that bias is only rounding errors."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.outputs = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.inputs(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts.unbind())
        x = x + self.outputs(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.second(x))))


class Recomputed(nn.Module):
    """Block that saves only its input for the backward pass, which computes it once more."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.block, x, use_reentrant=False)


class Blocks(nn.Module):
    """Sequence of blocks, the mean over all dimensions between rows and features, and the logits of classes."""

    def __init__(self, first: nn.Module, blocks: list[nn.Module], width: int, features: int = -1) -> None:
        super().__init__()
        self.first = first
        self.blocks = nn.ModuleList(blocks)
        self.features = features
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.movedim(self.features, -1).unflatten(0, (len(x), 1)).flatten(1, -2).mean(1))


class Branches(nn.Module):
    """Model that uses one of two layers, depending on the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Dense(12, 16), Dense(12, 16)])
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks[len(x) % 2](x))


def _features(width: int) -> Callable[[int], Tensor]:
    return lambda rows: torch.randn(rows, width)


@dataclass(frozen=True)
class Model:
    """Functions that build a model and draw an input of a number of rows, and the products behind one output."""

    build: Callable[[], nn.Module]
    draw: Callable[[int], Tensor]
    layers: int
    rows: tuple[int, ...] = (6,)


MODELS = {
    "dense": Model(lambda: Blocks(nn.Identity(), [Dense(12, 32), Dense(32, 32)], 32), _features(12), 3),
    # Layers larger than DDP's first bucket, which is 1 MiB.
    "wide": Model(
        lambda: Blocks(nn.Identity(), [Dense(12, 560), *(Dense(560, 560) for _ in range(3))], 560), _features(12), 5
    ),
    "convolutions": Model(
        lambda: Blocks(nn.Identity(), [Convolution(2, 8), Convolution(8, 8)], 8, features=1),
        lambda rows: torch.randn(rows, 2, 6, 6),
        3,
    ),
    "encoder": Model(
        lambda: Blocks(nn.Embedding(20, 16), [Attention(16, 2), Attention(16, 2)], 16),
        lambda rows: torch.randint(20, (rows, 7)),
        9,
    ),
    "branches": Model(Branches, _features(12), 2, rows=(6, 5)),
}  # fmt: skip

OPTIMISERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    # Small enough that rounding errors do not grow from step to step.
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.005, momentum=0.9),
    # The same for gradients that are only rounding errors, which Adam divides by themselves.
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=3e-3, eps=1e-4),
}

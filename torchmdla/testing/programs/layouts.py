"""Inputs and results that are not contiguous: channels-last, transposed, with gaps, with an offset, broadcast."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from torchmdla.testing.programs.inputs import Draw, channels_last, expanded, normal, offset, strided, transposed
from torchmdla.testing.programs.program import Program, functions, in_eval, modules

IMAGE = normal(2, 4, 6, 5)
LAYOUTS: dict[str, Draw] = {
    "channels_last": channels_last(IMAGE),
    "transposed": transposed(IMAGE),
    "strided": strided(IMAGE),
    "offset": offset(normal(3, 4, 6, 5)),
    "expanded": expanded(normal(1, 4, 1, 5), 2, 4, 6, 5),
    "sliced": normal(2, 4, 8, 9).then(lambda x: x[:, :, 1:7, 2:7]),
    "flipped_strides": normal(5, 6, 4, 2).then(lambda x: x.permute(3, 2, 1, 0)),
}

FUNCTIONS: dict[str, Callable[..., object]] = {
    "elementwise": lambda x: torch.tanh(x) * 2 + x,
    "bias": lambda x: torch.relu(x + torch.arange(4.0).view(4, 1, 1)) * 2,
    "sum": lambda x: x.sum((0, 2)) * 2,
    "softmax": lambda x: torch.softmax(x, 1) * 2,
    "product": lambda x: x @ x.transpose(-1, -2),
    "cat": lambda x: torch.cat([x, x * 2], 1) + 1,
    "mixed": lambda x: x.contiguous() * x + 1,
    "to_channels_last": lambda x: (x * 2).contiguous(memory_format=torch.channels_last) + 1,
}

MODULES: dict[str, Callable[[], nn.Module]] = {
    "convolution": lambda: nn.Conv2d(4, 6, 3, padding=1),
    "block": lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
    "batch_norm": lambda: nn.BatchNorm2d(4),
    "group_norm": lambda: nn.GroupNorm(2, 4),
    "average_pool": lambda: nn.AvgPool2d(2),
    "upsample": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "linear": lambda: nn.Linear(5, 3),
}


def mixed_orders(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(x) * y + 1


def _programs() -> Iterator[Program]:
    for layout, draw in LAYOUTS.items():
        yield from functions(
            "layouts", {f"{name}_{layout}": (call, draw) for name, call in FUNCTIONS.items()}, layers=2
        )
        table = {f"{name}_{layout}": (make, draw) for name, make in MODULES.items()}
        yield from in_eval(modules("layouts", table, layers=4))
        yield from functions("layouts", {f"mixed_orders_{layout}": (mixed_orders, draw, IMAGE)})
        yield from functions("layouts", {f"mixed_orders_of_{layout}": (mixed_orders, IMAGE, draw)})


PROGRAMS = list(_programs())

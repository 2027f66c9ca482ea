"""Programs with in-place operators, writes through views, to inputs and to buffers; results that share memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchmdla.testing.programs.inputs import booleans, integers, normal, strided
from torchmdla.testing.programs.program import functions, modules, with_gradients

X, Y = normal(4, 6), normal(4, 6)


def select_fill(x: Tensor) -> Tensor:
    x = x * 1.5
    x.select(0, 1).fill_(5)
    return torch.tanh(x) * 2


def write_before(x: Tensor) -> Tensor:
    y = x + 1
    y.mul_(2)
    return torch.sigmoid(y) * 3


def write_between(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    view = y.view(-1)
    a = torch.tanh(view) + 1
    view.add_(1)
    return a, torch.tanh(y) + 1


def write_after(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.tanh(x) * 2
    z = y.t()
    w = torch.relu(z) + 1
    y.zero_()
    return z, w


def write_slices(x: Tensor) -> Tensor:
    y = torch.zeros(4, 6)
    y[1:3] = torch.tanh(x[1:3]) * 2
    y[:, 0] += 1
    return torch.relu(y) + x


def write_rows(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for row in range(x.size(0)):
        y[row] = torch.softmax(x[row], 0) * row
    return y * 2


def write_masked(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = 0
    return torch.relu(y) + 1


def write_indexed(x: Tensor, index: Tensor) -> Tensor:
    y = x * 2
    y[index] = 7
    return y + 1


def input_written(x: Tensor) -> Tensor:
    x.add_(1)
    y = torch.tanh(x) * 2
    x.mul_(3)
    return y + x


def input_copied_to(x: Tensor, y: Tensor) -> None:
    x.copy_(torch.tanh(y) * 2)


def input_view_written(x: Tensor) -> Tensor:
    x[:, 1:3].mul_(2)
    return torch.tanh(x) + 1


def accumulate(total: Tensor, x: Tensor) -> Tensor:
    total += torch.relu(x) * 2
    return total


def in_place_chain(x: Tensor) -> Tensor:
    return (x * 1).add_(1).mul_(2).clamp_(-3, 3).sub_(0.5).relu_()


def out_argument(x: Tensor, y: Tensor) -> Tensor:
    z = torch.empty_like(x)
    torch.add(x, y, out=z)
    return z * 2 + 1


def views_out(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.tanh(x) * 2
    return y, y[1:, ::2], y.t()


def views_of_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.view(-1), x[1:] * 2 + 1


def swap(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    original = x.clone()
    x.copy_(y)
    y.copy_(original)
    return x + y, x - y


class Cache(nn.Module):
    """Module that writes its input into the next row of a buffer."""

    memory: Tensor
    place: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.zeros(8, 6))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.memory[self.place % 8] = torch.tanh(x[0]) * 2
        self.place += 1
        return self.memory.sum(0) + x


class Momentum(nn.Module):
    """Module with a buffer that holds a moving average of its input."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return (x - self.mean) * 2


class WithInPlaceActivations(nn.Module):
    """Network with in-place activations, as in most convolutional networks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 6), nn.Hardswish(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        y += x
        return y


OF_INTERMEDIATES = {
    "select_fill": (select_fill, X),
    "write_before": (write_before, X),
    "write_between": (write_between, X),
    "write_slices": (write_slices, X),
    "write_rows": (write_rows, X),
    "write_masked": (write_masked, X, booleans(4, 6)),
    "write_indexed": (write_indexed, X, integers(3)),
    "in_place_chain": (in_place_chain, X),
    "views_out": (views_out, X),
    "views_of_input": (views_of_input, X),
}

OF_INPUTS = {
    "write_after": (write_after, X),
    "input_written": (input_written, X),
    "input_written_strided": (input_written, strided(X)),
    "input_copied_to": (input_copied_to, X, Y),
    "input_view_written": (input_view_written, X),
    "accumulate": (accumulate, X, Y),
    "out_argument": (out_argument, X, Y),
    "swap": (swap, X, Y),
    "integers_written": (input_written, integers(4, 6).then(lambda x: x.float())),
}

PROGRAMS = [
    *with_gradients(functions("mutation", OF_INTERMEDIATES)),
    *functions("mutation", OF_INPUTS),
    *modules("mutation", {"cache": (Cache, X), "momentum": (Momentum, X)}),
    *with_gradients(modules("mutation", {"in_place_activations": (WithInPlaceActivations, X)}, layers=4)),
]

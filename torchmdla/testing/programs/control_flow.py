"""Branches and loops that depend on data, sizes or numbers; several methods; early returns; assertions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchmdla.testing.programs.inputs import integers, normal
from torchmdla.testing.programs.program import Program, functions, modules, with_gradients

X = normal(4, 6)


def branch_on_data(x: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        return torch.tanh(x) * 2
    return torch.relu(x) - 1


def branch_on_size(x: Tensor) -> Tensor:
    y = x * 2
    if x.size(0) > 3:
        y = y.sum(0)
    else:
        y = y.mean(0)
    return torch.sigmoid(y) + 1


def branch_on_number(x: Tensor, count: int, flag: bool) -> Tensor:
    if flag and count > 2:
        x = torch.tanh(x) * count
    elif flag:
        x = torch.exp(x) + count
    return x * 2 + 1


def branch_with_other_shapes(x: Tensor) -> Tensor:
    return torch.relu(x[:2]) * 2 if bool(x[0, 0] > 0) else torch.relu(x) * 3


def nested_branches(x: Tensor) -> Tensor:
    total = float(x.sum())
    if total > 0:
        x = torch.tanh(x) * 2 if total > 3 else torch.sigmoid(x) + 1
    else:
        x = torch.exp(x) - 1
    return x * total


def loop_counted(x: Tensor, count: int) -> Tensor:
    for step in range(count):
        x = torch.tanh(x) * 1.5 + step
    return x


def loop_until(x: Tensor) -> Tensor:
    while bool(x.abs().max() > 0.1):
        x = torch.tanh(x) * 0.5
    return x


def loop_with_break(x: Tensor) -> tuple[Tensor, int]:
    steps = 0
    for _ in range(20):
        x = x * 0.7 - 0.01
        steps += 1
        if bool(x.abs().sum() < 3):
            break
    return x, steps


def loop_with_continue(x: Tensor) -> Tensor:
    total = torch.zeros(6)
    for row in range(x.size(0)):
        if bool(x[row, 0] < 0):
            continue
        total = total + torch.relu(x[row]) * 2
    return total


def early_return(x: Tensor) -> Tensor:
    for row in range(x.size(0)):
        if bool(x[row].sum() > 0):
            return torch.exp(x[row]) * 2
    return torch.zeros(6) - 1


def optional(x: Tensor, bias: Tensor | None) -> Tensor:
    x = torch.tanh(x) * 2
    if bias is not None:
        x = x + bias
    return torch.relu(x)


def newton(x: Tensor) -> Tensor:
    y = torch.ones_like(x)
    for _ in range(6):
        y = 0.5 * (y + (x * x + 1) / y)
    return y


def beam(x: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    score, token = torch.log_softmax(x, -1).max(-1)
    for _ in range(steps):
        following = torch.log_softmax(x + token.unsqueeze(1), -1)
        best, token = (following + score.unsqueeze(1)).max(-1)
        score = best * 0.5
    return score, token


def checked(x: Tensor) -> Tensor:
    assert x.dim() == 2, "rows are expected"
    return torch.relu(x) * 2 + 1


def number_from_data(x: Tensor) -> Tensor:
    length = int(x.abs().sum()) % 4 + 1
    return torch.tanh(x[:, :length]) * 2


class Gated(nn.Module):
    """Module with layers in a list; a layer is skipped when the mean of its input is small."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if bool(x.mean() > -0.2):
                x = torch.tanh(layer(x)) + x
        return x


class Coder(nn.Module):
    """Module with two methods besides forward, which calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.inwards, self.outwards = nn.Linear(6, 3), nn.Linear(3, 6)

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inwards(x)) * 2

    @torch.jit.export
    def reconstruct(self, x: Tensor) -> Tensor:
        y: Tensor = self.outwards(self.encode(x))
        return y

    def forward(self, x: Tensor) -> Tensor:
        return (self.reconstruct(x) - x).square().mean()


class Counting(nn.Module):
    """Module that counts calls in a buffer and branches on it."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if bool(self.calls % 2 == 0):
            return torch.relu(x) * 2
        return torch.tanh(x) * 3


CHOOSING = {
    "branch_on_data": (branch_on_data, X),
    "branch_with_other_shapes": (branch_with_other_shapes, X),
    "nested_branches": (nested_branches, X),
    "loop_until": (loop_until, X),
    "loop_with_break": (loop_with_break, X),
    "loop_with_continue": (loop_with_continue, X),
    "early_return": (early_return, X),
    "number_from_data": (number_from_data, X),
}

FIXED = {
    "branch_on_size": (branch_on_size, X),
    "branch_on_size_other": (branch_on_size, normal(2, 6)),
    "branch_on_number": (branch_on_number, X, 3, True),
    "branch_on_number_other": (branch_on_number, X, 3, False),
    "loop_counted": (loop_counted, X, 4),
    "loop_never": (loop_counted, X, 0),
    "optional": (optional, X, normal(6)),
    "optional_none": (optional, X, None),
    "newton": (newton, X),
    "beam": (beam, X, 3),
    "checked": (checked, X),
}

PROGRAMS = [
    *functions("control_flow", CHOOSING, "chooses", layers=8),
    *with_gradients(functions("control_flow", FIXED, layers=8)),
    *modules("control_flow", {"gated": (Gated, X), "counting": (Counting, X)}, "chooses", layers=6),
    Program("control_flow.methods", Coder, (X,), 8, methods=("encode", "reconstruct", "forward")),
    *functions("control_flow", {"integers": (loop_counted, integers(4, 6), 3)}),
]

"""Lists, dicts, tuples and named tuples as inputs and results, nested; several results and no results."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchmdla.testing.programs.inputs import integers, normal
from torchmdla.testing.programs.program import functions, modules

X, Y = normal(4, 6), normal(4, 6)


class Point(NamedTuple):
    """Pair of named tensors."""

    place: Tensor
    weight: Tensor


def list_in(values: list[Tensor]) -> Tensor:
    total = torch.zeros(4, 6)
    for value in values:
        total = total + torch.tanh(value) * 2
    return total


def list_out(x: Tensor, count: int) -> list[Tensor]:
    return [torch.relu(x) * (index + 1) for index in range(count)]


def dict_in(values: dict[str, Tensor]) -> Tensor:
    return torch.tanh(values["x"]) * 2 + values["y"]


def dict_out(x: Tensor) -> dict[str, Tensor]:
    y = torch.softmax(x, -1)
    return {"probability": y, "entropy": -(y * torch.log(y)).sum(-1)}


def tuple_in(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    first, second = pair
    return torch.relu(second) * 2, torch.tanh(first) + 1


def nested_in(values: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat(parts, 1) * 2 + 1 for name, parts in values.items()}


def nested_out(x: Tensor) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
    y = torch.tanh(x) * 2
    return y, (y.sum(0), [y + 1, y * 3])


def named_out(x: Tensor) -> Point:
    y = torch.tanh(x) * 2
    return Point(y, y.sum(1))


def numbers_out(x: Tensor) -> tuple[Tensor, int, float, bool, str]:
    y = torch.relu(x) + 1
    return y * 2, y.size(0), 2.5, y.dim() == 2, "name"


def one_result_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.tanh(x) * 2
    return y, y


def input_as_result(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, torch.tanh(x) * 2


def none_among_results(x: Tensor) -> tuple[Tensor, Tensor | None]:
    return torch.tanh(x) * 2, None


def unused_input(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x) * 2


def list_built(x: Tensor) -> Tensor:
    parts: list[Tensor] = []
    for column in range(x.size(1)):
        parts.append(torch.sigmoid(x[:, column]) * column)  # noqa: PERF401  (appends are what is meant)  # noqa: PERF401  (TorchScript sees appends)
    parts.reverse()
    return torch.stack(parts[1:]) * 2


def dict_changed(x: Tensor) -> dict[int, Tensor]:
    table = {0: x * 2}
    table[1] = torch.tanh(table[0]) + 1
    table[0] = table[1] - x
    return table


class State(nn.Module):
    """Module that passes a state from call to call through its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        h = torch.tanh(self.layer(x) + state["h"])
        return h * 2, {"h": h}


TRACEABLE = {
    "list_in": (list_in, [X, Y, X]),
    "dict_in": (dict_in, {"x": X, "y": Y}),
    "dict_out": (dict_out, X),
    "tuple_in": (tuple_in, (X, Y)),
    "nested_in": (nested_in, {"a": [X, Y], "b": [X]}),
    "nested_out": (nested_out, X),
    "named_out": (named_out, X),
    "one_result_twice": (one_result_twice, X),
    "input_as_result": (input_as_result, X),
    "unused_input": (unused_input, X, Y),
    "list_built": (list_built, X),
    "many_results": (lambda x: [torch.tanh(x) * n for n in range(20)], X),
    "many_inputs": (lambda *xs: torch.relu(torch.stack(xs).sum(0)) * 2, *[X] * 20),
}

UNTRACEABLE = {
    "list_out": (list_out, X, 3),
    "list_out_empty": (list_out, X, 0),
    "numbers_out": (numbers_out, X),
    "none_among_results": (none_among_results, X),
    "dict_changed": (dict_changed, X),
    "list_of_numbers": (lambda x, sizes: torch.tanh(x).view(sizes) * 2, X, [3, 8]),
    "list_of_floats": (lambda x, weights: sum(torch.relu(x) * w for w in weights), X, [0.5, 2.0, -1.0]),
    "string": (lambda x, how: nn.functional.pad(torch.relu(x) * 2, (1, 1), how), normal(1, 4, 6), "reflect"),
    "dtype": (lambda x, dtype: (x * 2).to(dtype) + 1, X, torch.float64),
    "device": (lambda x, device: (x * 2).to(device) + 1, X, torch.device("cpu")),
}

MODULES = {
    "state": (State, X, {"h": Y}),
    "identity": (nn.Identity, X),
    "module_dict": (lambda: _Named(), X),
    "sequential_of_functions": (lambda: nn.Sequential(nn.Flatten(0), nn.Tanh(), nn.Unflatten(0, (6, 4))), X),
}


class _Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"a": nn.Linear(6, 2), "b": nn.Linear(6, 3)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {name: torch.relu(head(x)) for name, head in self.heads.items()}


PROGRAMS = [
    *functions("structures", TRACEABLE),
    *functions("structures", UNTRACEABLE, "chooses"),
    *modules("structures", MODULES, layers=4),
    *functions("structures", {"integers": (list_in, [integers(4, 6), integers(4, 6)])}),
]

"""Modules whose lists, views and writes cross the border between Python and PyTorch's interpreter."""

from typing import Any

import torch
from torch import Tensor, nn


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3)
        self.again = nn.BatchNorm2d(4)

    def forward(self, image: Tensor) -> Tensor:
        return self.again(self.second(self.norm(self.first(image)).relu())).relu()


class Stateful(nn.Module):
    """A view of a buffer is written to before and after Python sets an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(4))
        self.steps = 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        view = self.state[:2]
        view.add_(x)
        self.steps += 1
        view.mul_(2)
        self.state[2:] += view * self.steps
        return self.state.clone(), view + 1


class Replaced(nn.Module):
    """A buffer is replaced, and read again."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        before = self.state * 2
        self.state = self.state + x
        return before + self.state.exp()


class OuterList(nn.Module):
    """A list from outside is written to between computations with it."""

    def forward(self, x: Tensor, parts: list[Tensor]) -> tuple[Tensor, Tensor, int]:
        first = torch.cat(parts)
        alias = parts
        parts.append(x)
        second = torch.cat(alias)
        return first, second, len(parts)


class Nested(nn.Module):
    """Lists in a list are aliases of each other."""

    def forward(self, x: Tensor) -> tuple[list[list[Tensor]], list[Tensor]]:
        inner = [x * 2]
        outer = [inner, inner]
        inner.append(x + 1)
        outer[1].append(x.sum())
        return outer, inner


class InLoop(nn.Module):
    """A list grows in a loop with a branch."""

    def forward(self, x: Tensor, count: int) -> tuple[list[Tensor], Tensor]:
        parts: list[Tensor] = []
        total = torch.zeros_like(x)
        for i in range(count):
            if i % 2 == 0:
                parts.append(x * i)
            else:
                total += parts[-1]
        parts[0].add_(1)
        return parts, total


class InDict(nn.Module):
    """Tensors in a dict are written to in place."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        result = {"a": x * 1, "b": x + 1}
        result["a"].mul_(3)
        alias = result
        alias["c"] = result["a"] + result["b"]
        return result


class Sizes(nn.Module):
    """A list of sizes is changed and used."""

    def forward(self, x: Tensor) -> Tensor:
        sizes = [x.size(0), x.size(1)]
        sizes.append(1)
        sizes[0] *= sizes.pop()
        sizes.insert(0, 1)
        return x.reshape(sizes) * len(sizes)


class Input(nn.Module):
    """The input is written to."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.t()
        y.add_(1)
        return x.relu_() * y.t()


def x() -> Tensor:
    return torch.tensor([0.5, -1.5])


# Name → module, and the arguments of a call.
PROGRAMS: dict[str, tuple[type[nn.Module], tuple[Any, ...]]] = {
    "stateful": (Stateful, (x(),)),
    "replaced": (Replaced, (x(),)),
    "outer list": (OuterList, (x(), [x() * 2])),
    "nested": (Nested, (x(),)),
    "in a loop": (InLoop, (x(), 5)),
    "in a dict": (InDict, (x(),)),
    "sizes": (Sizes, (torch.arange(6.0).reshape(2, 3),)),
    "input": (Input, (torch.arange(6.0).reshape(2, 3) - 3,)),
}

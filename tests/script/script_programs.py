"""Modules that use TorchScript's language beyond tensors, and the inputs of calls."""

import enum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Scaled(NamedTuple):
    value: Tensor
    factor: float


class Counter:
    """Class with a state and methods."""

    def __init__(self, start: int) -> None:
        self.count = start
        self.seen: list[str] = []

    def add(self, name: str) -> int:
        self.count += 1
        self.seen.append(name)
        return self.count

    def __lt__(self, other: "Counter") -> bool:
        return self.count < other.count


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("total", torch.zeros(2))
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        self.calls += 1
        self.total += x.sum(0)
        return self.linear(x) + self.total, self.calls

    @torch.jit.export
    def reset(self, value: int = 0) -> int:
        before = self.calls
        self.calls = value
        self.total.zero_()
        return before


class Classes(nn.Module):
    def forward(self, x: Tensor, names: list[str]) -> tuple[Tensor, int, list[str], bool]:
        counter = Counter(3)
        other = Counter(100)
        for name in names:
            counter.add(name)
        return x * counter.count, counter.count, counter.seen, counter < other


class Sorted(nn.Module):
    def forward(self, starts: list[int]) -> list[int]:
        counters = [Counter(start) for start in starts]
        counters.sort()
        return [counter.count for counter in counters]


class Enums(nn.Module):
    def forward(self, x: Tensor, colour: Colour) -> tuple[Tensor, Colour, str, int]:
        if colour == Colour.RED:
            return x + colour.value, Colour.GREEN, colour.name, colour.value
        return x - colour.value, Colour.RED, colour.name, colour.value


class Tuples(nn.Module):
    def forward(self, x: Tensor, factor: float) -> Scaled:
        scaled = Scaled(x * factor, factor)
        value, again = scaled
        return Scaled(value + again, scaled.factor)


class Lists(nn.Module):
    """Lists that are written to after tensors were computed from them, and aliases of lists."""

    def forward(self, x: Tensor, sizes: list[int]) -> tuple[list[Tensor], list[int], list[list[int]], Tensor]:
        parts = list(x.split(1))
        alias = parts
        alias.append(x.sum())
        sizes.append(7)
        nested = [sizes, [1]]
        nested[0].append(8)
        nested[1] += [2]
        total = torch.stack([part.sum() for part in parts])
        parts.reverse()
        del parts[0]
        shapes = list(x.size())
        shapes.append(3)
        nested.append(shapes)
        return alias, sizes, nested, total


class Dicts(nn.Module):
    def forward(self, x: Tensor, counts: dict[str, int]) -> tuple[dict[str, Tensor], dict[str, int], list[str]]:
        result: dict[str, Tensor] = {}
        for name, count in counts.items():
            result[name] = x * count
        counts["new"] = len(counts)
        if "a" in result:
            result["a"] = result["a"] + result.pop("b", x)
        return result, counts, [f"{key}:{value}" for key, value in counts.items()]


class Strings(nn.Module):
    def forward(self, text: str, number: int, x: Tensor) -> tuple[str, list[str], str]:
        words = text.strip().split(" ")
        return "-".join(words).upper(), [w[::-1] for w in words], "{} {} %d".format(number, x.size(0)) % number  # noqa: UP032


class Refined(nn.Module):
    def forward(self, x: Tensor | None, y: int | list[int] | None) -> tuple[Tensor, int]:
        total = 0
        if isinstance(y, int):
            total = y
        elif y is not None:
            total = sum(y)
        if x is None:
            return torch.zeros(1), total
        return x + total, total


class Modes(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            constant = x.exp() * 2
        return constant, x.exp() * 2


class Forked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        first = torch.jit.fork(_double, x, 3)
        second = torch.jit.fork(_double, x + 1, 2)
        return torch.jit.wait(first) + torch.jit.wait(second)


def _double(x: Tensor, factor: int) -> Tensor:
    return x * 2 * factor


class Raising(nn.Module):
    def forward(self, values: list[int], place: int) -> int:
        if place < 0:
            raise ValueError("negative")
        assert place != 3, "three"
        return values[place] // (place - 1)


@torch.jit.interface
class Layer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pass


class Doubling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Adding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class Interfaces(nn.Module):
    layer: Layer

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Doubling(), Adding()])
        self.layer = Adding()

    def forward(self, x: Tensor, place: int) -> Tensor:
        chosen: Layer = self.layers[place]
        return self.layer.forward(chosen.forward(x))


class Properties(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0

    @property
    def doubled(self) -> float:
        return self.scale * 2

    @doubled.setter
    def doubled(self, value: float) -> None:
        self.scale = value / 2

    def forward(self, x: Tensor) -> Tensor:
        self.doubled = self.doubled + 1.0
        return x * self.doubled


class Looping(nn.Module):
    def forward(self, x: Tensor, limit: int) -> tuple[Tensor, int, list[int]]:
        steps = 0
        places: list[int] = []
        while bool(x.sum() < limit):
            x = x * 2
            steps += 1
            if steps % 2 == 0:
                continue
            places.append(steps)
            if steps > 6:
                break
        for i in range(steps, 0, -2):
            places.append(i)  # noqa: PERF402
        return x, steps, places


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.again = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.second(self.first(x)))


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.norm(x)).relu()


def x(rows: int = 2) -> Tensor:
    return torch.arange(2.0 * rows).reshape(rows, 2) / 4 + 0.25


# Name → module, and the arguments of each call.
PROGRAMS: dict[str, tuple[type[nn.Module], list[tuple[Any, ...]]]] = {
    "counting": (Counting, [(x(),), (x(3),)]),
    "classes": (Classes, [(x(), ["a", "b"])]),
    "sorted": (Sorted, [([3, 1, 2],)]),
    "tuples": (Tuples, [(x(), 2.0), (x(), 3.0)]),
    "lists": (Lists, [(x(), [1, 2])]),
    "dicts": (Dicts, [(x(), {"a": 1, "b": 2}), (x(), {})]),
    "strings": (Strings, [("  ab cd ", 5, x())]),
    "refined": (Refined, [(x(), 3), (None, [1, 2]), (x(), None)]),
    "modes": (Modes, [(x(),)]),
    "forked": (Forked, [(x(),)]),
    "interfaces": (Interfaces, [(x(), 0), (x(), 1)]),
    "properties": (Properties, [(x(),), (x(),)]),
    "looping": (Looping, [(x(), 100), (x(), 1)]),
    "shared": (Shared, [(x(),)]),
}

# Calls that fail.
FAILING: dict[str, tuple[type[nn.Module], tuple[Any, ...]]] = {
    "raise": (Raising, ([1], -1)),
    "assert": (Raising, ([1], 3)),
    "index": (Raising, ([1], 2)),
    "division": (Raising, ([1, 2], 1)),
    "missing": (Raising, ([1],)),
    "type": (Raising, ([1], "a")),
    "element": (Raising, (["a"], 0)),
}

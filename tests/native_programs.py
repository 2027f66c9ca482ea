"""Programs of several steps, which TorchScript compiles. It does not know annotations that are strings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchmdla
import torchmdla_runtime


class Branches(nn.Module):
    """A module whose way depends on data, sizes and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, times: int, scale: float = 1.5) -> Tensor:
        if bool((x.sum() * 2).relu() > 0):
            x = self.one(x).tanh()
        elif x.size(0) > 2:
            x = self.other(x).relu()
        for step in range(times):
            if step == 3:
                break
            x = self.other(x) * scale + step
        while times > 0:
            times -= 2
            x = x.sigmoid() + 1
        return x


class Containers(nn.Module):
    """A module with dictionaries, lists, tuples, strings and optional values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(
        self, inputs: dict[str, Tensor], names: list[str], extra: Tensor | None, sizes: tuple[int, float]
    ) -> tuple[dict[str, Tensor], list[str], dict[int, str], int | None]:
        results: dict[str, Tensor] = {}
        lengths: dict[int, str] = {}
        for name in names:
            if name in inputs:
                value = self.layer(inputs[name]).relu() + sizes[1]
                if extra is not None:
                    value = value + extra
                results[name.upper()] = value
            lengths[len(name)] = f"{name} has {len(name)} letters"
        total: int | None = None
        if len(results) > 1:
            total = sizes[0] * len(results)
        names.append("-".join(names))
        return results, names, lengths, total


class Views(nn.Module):
    """A module with views, copies and new tensors around its computations."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, list[int]]:
        rows = torch.jit.annotate(list[Tensor], [])
        for k in range(x.size(0)):
            rows.append((x[k] * (k + 1)).exp())
        stacked = torch.stack(rows, 1)
        joined = torch.cat([stacked, torch.zeros([stacked.size(0), 2])], dim=1)
        last = joined.transpose(0, 1)[-1:].unsqueeze(0).expand(3, -1, -1)
        pages = torch.arange(2 * joined.numel()).view(-1, 2).permute(1, 0).to(torch.float32)
        return joined, last, pages, list(pages.size())


class Counter(nn.Module):
    """A module that keeps state between calls. It raises an exception after ``most`` of them."""

    calls: int
    history: list[int]

    def __init__(self, most: int = 5) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 6)
        self.calls, self.most = 0, most
        self.register_buffer("hidden", torch.zeros(1, 6))
        self.history = []

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = self.cell(x, self.hidden)
        self.calls += 1
        self.history.append(self.calls * 10)
        if len(self.history) > 6:
            self.history.pop(0)
        if self.calls > self.most:
            raise ValueError("it was called " + str(self.calls) + " times")
        return self.hidden * 2

    @torch.jit.export
    def summary(self, factor: int = 2) -> tuple[int, list[int], Tensor]:
        return self.calls * factor, self.history, self.hidden

    @torch.jit.export
    def clear(self) -> None:
        self.hidden.zero_()
        self.calls = 0
        self.history.clear()


@dataclass(frozen=True)
class Stateful:
    """File of a :class:`Counter`, which counts its calls up to ``most``."""

    path: Path
    most: int

    def module(self) -> Counter:
        """Return a module with the state of the file."""
        torch.manual_seed(0)
        return Counter(self.most).eval()

    def load(self) -> torchmdla_runtime.Model:
        return torchmdla_runtime.Model(self.path, threads=1)

    def expected(self, rows: Tensor) -> Tensor:
        """Return the first number of eager's result for each row, in turn."""
        module = self.module()
        return torch.stack([eager(module, (row[None],))[0, 0] for row in rows])


def export_counter(folder: Path, most: int) -> Stateful:
    """Export a :class:`Counter` with all its methods."""
    stateful = Stateful(folder / f"counter{most}.tmdla", most)
    calls = {"forward": [(torch.ones(1, 4),)], "summary": [(2,)], "clear": [()]}
    torchmdla.export_native(torch.jit.script(stateful.module()), calls, stateful.path)
    return stateful


def eager(module: nn.Module, arguments: tuple[Any, ...]) -> Any:
    with torch.no_grad(), torchmdla.enabled(False):
        return module(*arguments)

"""Programs that a process compiles and saves by ``aot_compile``, and that another process loads and runs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import torchmdla
from torchmdla.testing.compare import assert_matches


@dataclass(frozen=True)
class Saved:
    """Program with inputs.

    Attributes:
        function: the program.
        inputs: returns the inputs of a call with this batch size.
        batches: batch sizes of the calls. The program is saved for the first of them.
        trains: whether the first result is differentiated with respect to the parameters.
        options: options of the backend.
    """

    function: Callable[..., Any]
    inputs: Callable[[int], Sequence[Any]]
    batches: tuple[int, ...] = (4,)
    trains: bool = False
    options: Mapping[str, Any] | None = None


@torch.library.custom_op("saved_programs::rank", mutates_args=())
def rank(x: Tensor) -> Tensor:
    """Return the place of each element in its row, as floats. This operator belongs to the program."""
    return x.argsort(-1).argsort(-1).to(x.dtype)


@rank.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def classify(x: Tensor, model: nn.Module) -> tuple[Tensor, Tensor]:
    scores = model(x)
    return torch.softmax(scores, 1), scores.argmax(1)


def write(cache: Tensor, place: Tensor, x: Tensor) -> Tensor:
    cache.index_copy_(1, place, x)
    return torch.softmax((cache * 2).sum(-1), -1) + x.sum()


def around(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute around operators that stay outside of groups."""
    values = rank(torch.linalg.eigvalsh(x @ x.mT + 1) * 2)
    return torch.exp(-values.abs()) * 2 + 1, (x.sin() + 1).sum(-1)


def loss_of(x: Tensor, model: nn.Module) -> Tensor:
    return (torch.tanh(model(x)) * x[:, :4]).sum()


def drop(x: Tensor) -> Tensor:
    return functional.dropout(torch.exp(x) * 2, 0.5) + 1


def look_up(words: Tensor, table: Tensor) -> Tensor:
    return functional.embedding(words, table).sum(1).relu() + torch.tensor([1.0, -1.0, 2.0, 0.5])


def view(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.t(), x * 2 + 1


def normalise(x: Tensor, model: nn.Module) -> Tensor:
    """Write to the buffers of a batch norm."""
    return torch.relu(model(x))


def scale(x: Tensor, factor: float, count: int) -> Tensor:
    return torch.relu(x * factor)[:, :count] + count


def recur(x: Tensor, model: nn.Module) -> Tensor:
    result: Tensor = model(x)[0].relu()
    return result


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()


class Quantised(nn.Module):
    """Linear layer with weights of 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randint(-128, 128, (4, 8), dtype=torch.int8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight.to(x.dtype) * 0.01).t()


PROGRAMS: Mapping[str, Saved] = {
    "module": Saved(classify, lambda n: (torch.randn(n, 8), mlp().requires_grad_(False))),
    "sizes": Saved(classify, lambda n: (torch.randn(n, 8), mlp().requires_grad_(False)), batches=(4, 3, 17)),
    "in place": Saved(write, lambda n: (torch.zeros(n, 8, 4), torch.tensor([2]), torch.randn(n, 1, 4))),
    "fallback": Saved(around, lambda n: (torch.randn(n, 3, 3),), batches=(4, 5)),
    "gradients": Saved(loss_of, lambda n: (torch.randn(n, 8), mlp()), trains=True),
    "gradients of sizes": Saved(loss_of, lambda n: (torch.randn(n, 8), mlp()), (4, 6, 3), trains=True),
    "random": Saved(drop, lambda n: (torch.randn(n, 8),)),
    "constants": Saved(look_up, lambda n: (torch.randint(0, 9, (n, 3)), torch.randn(9, 4))),
    "views": Saved(view, lambda n: (torch.randn(n, 8),)),
    "bfloat16": Saved(classify, lambda n: (torch.randn(n, 8).bfloat16(), mlp().bfloat16().requires_grad_(False))),
    "buffers": Saved(normalise, lambda n: (torch.randn(n, 8), nn.BatchNorm1d(8)), trains=True),
    "numbers": Saved(scale, lambda n: (torch.randn(4, 8), 1.5 * n, n), batches=(3, 5)),
    "8 bits": Saved(classify, lambda n: (torch.randn(n, 8), Quantised())),
    "recurrent": Saved(recur, lambda n: (torch.randn(n, 5, 8), nn.GRU(8, 4, batch_first=True)), trains=True),
    "background": Saved(view, lambda n: (torch.randn(n, 8),), options={"background": True}),
}


def save(folder: Path, names: Sequence[str] = tuple(PROGRAMS)) -> None:
    """Compile programs, and save them without a call."""
    torch._dynamo.config.allow_rnn = True
    for name in names:
        program = PROGRAMS[name]
        torch._dynamo.reset()
        varies = len(program.batches) > 1
        options = dict(program.options or {})
        compiled = torch.compile(
            program.function, backend="torchmdla", fullgraph=True, dynamic=varies, options=options or None
        )
        function = compiled.aot_compile((tuple(program.inputs(program.batches[0])), {}))
        function.save_compiled_function(str(folder / name))


def _run(function: Callable[..., Any], program: Saved, batch: int) -> list[Any]:
    """Return the results of a call with other values than at compile time, its inputs afterwards, and gradients."""
    torch.manual_seed(batch)
    inputs = program.inputs(batch)
    results = function(*inputs)
    parts: list[Any] = [results]
    for value in inputs:
        if not isinstance(value, nn.Module):
            parts.append(value)
            continue
        parts += value.state_dict().values()
        if program.trains:
            first = results if isinstance(results, Tensor) else results[0]
            parts += torch.autograd.grad(first.square().sum(), list(value.parameters()))
    return parts


@contextmanager
def _counting(name: str) -> Iterator[None]:
    """Print a line of statistics of the block."""
    torchmdla.reset_stats()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    stats = torchmdla.stats()
    counts = {
        "compiled": stats.compiled + stats.cache_hits + stats.memory_hits,
        "packaged": stats.packaged,
        "recorded": stats.recorded_calls,
        "refused": list(stats.refused),
        "warnings": [str(warning.message) for warning in caught if "torchmdla" in str(warning.message)],
    }
    print(json.dumps([name, counts]), flush=True)


def load(folder: Path, names: Sequence[str] = tuple(PROGRAMS)) -> None:
    """Load programs, compare each call with eager, and print a line of statistics for each program."""
    for name in names:
        program = PROGRAMS[name]
        with _counting(name):
            with open(folder / name, "rb") as file:
                function = torch.compiler.load_compiled_function(file, f_globals=program.function.__globals__)
            for batch in program.batches:
                assert_matches(_run(function, program, batch), _run(program.function, program, batch), layers=3)

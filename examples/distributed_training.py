"""Train in several processes with compiled forward and backward passes: DistributedDataParallel, or FSDP2.

By default, the script starts the processes itself: ``python examples/distributed_training.py``. PyTorch's launcher can
also start them: ``torchrun --nproc-per-node 2 examples/distributed_training.py --sharded``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import torchmdla

WIDTH, CLASSES = 64, 4


class Layer(nn.Module):
    """Residual layer. FSDP's hooks break graphs, so the unit of compilation is a module that FSDP shards."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(functional.gelu(self.wide(self.norm(x))))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def program_of(model: Classifier, *, sharded: bool, compiled: bool) -> Any:
    """Return the module that a process trains."""
    if not sharded:
        program = DistributedDataParallel(model)
        return torch.compile(program, backend="torchmdla") if compiled else program
    for layer in model.layers:
        if compiled:
            layer.compile(backend="torchmdla")
        fully_shard(layer)
    return fully_shard(model)


def train(steps: int, *, sharded: bool, compiled: bool) -> Tensor:
    """Return the losses of all steps, each the mean over the processes."""
    torch.manual_seed(0)
    program = program_of(Classifier(), sharded=sharded, compiled=compiled)
    optimiser = torch.optim.AdamW(program.parameters(), lr=1e-3)
    centres = torch.randn(CLASSES, WIDTH)
    torch.manual_seed(1 + distributed.get_rank())  # each process draws its own data
    losses = []
    for _ in range(steps):
        labels = torch.randint(CLASSES, (16,))
        loss = functional.cross_entropy(program(centres[labels] + 2 * torch.randn(16, WIDTH)), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    means = torch.stack(losses)
    distributed.all_reduce(means)
    return means / distributed.get_world_size()


def work(steps: int, sharded: bool) -> None:
    """Train and compare with eager, in each process. The first process prints the results."""
    losses = train(steps, sharded=sharded, compiled=True)
    stats = torchmdla.stats()
    eager = train(steps, sharded=sharded, compiled=False)
    torch.testing.assert_close(losses, eager, rtol=1e-3, atol=1e-3)
    if distributed.get_rank() == 0:
        print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}, eager {eager[0]:.3f} → {eager[-1]:.3f}")
        print(
            f"{stats.specialisations} groups were compiled in each of {distributed.get_world_size()} processes, "
            f"{stats.fallbacks or 'none fell back'}"
        )


def start(rank: int, processes: int, store: str, steps: int, sharded: bool) -> None:
    """Run a process that this script has started."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=processes)
    work(steps, sharded)
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains in several processes, compiled and by eager PyTorch.")
    parser.add_argument("--processes", type=int, default=2, help="how many to start, but under torchrun (default: 2)")
    parser.add_argument("--steps", type=int, default=50, help="steps of training (default: 50)")
    parser.add_argument("--sharded", action="store_true", help="FSDP2 instead of DistributedDataParallel")
    arguments = parser.parse_args()
    if min(arguments.processes, arguments.steps) < 1:
        parser.error("--processes and --steps are at least 1")
    if "RANK" in os.environ:  # torchrun
        distributed.init_process_group("gloo")
        work(arguments.steps, arguments.sharded)
        distributed.destroy_process_group()
        return
    with tempfile.TemporaryDirectory() as folder:
        store = (Path(folder) / "store").as_uri()
        multiprocessing.spawn(
            start, (arguments.processes, store, arguments.steps, arguments.sharded), nprocs=arguments.processes
        )


if __name__ == "__main__":
    main()

"""Programs of ranks beside training: they follow weights that others write, continue after errors, and fork.

The processes of ``ranks.py`` import this.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from training_cases import STEPS, WRAPPINGS, Activity, Case, activity, batches_of, train_both
from training_models import MODELS, OPTIMISERS

import torchmdla
from torchmdla.testing.compare import assert_matches

# --- weights that others write ---------------------------------------------------------------------------------------

WRITES = 20


class WithTable(nn.Module):
    """Product with a buffer, which has one row for each input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.product = nn.Linear(width, width)
        self.table: Tensor
        self.register_buffer("table", torch.randn(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.product(x)) @ self.table.t()


class ByArguments(nn.Module):
    """Module that passes its parameters to a function, which may be compiled."""

    def __init__(self, width: int, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.product = nn.Linear(width, width)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.product.weight, self.product.bias)


def product_of(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(functional.linear(x, weight, bias))


def follow_buffers_of_rank_0() -> Activity:
    """Run training steps of DDP, which sends the buffers of rank 0 to the other ranks. Single rows of them change."""
    torchmdla.reset_stats()
    torch._dynamo.reset()
    torch.manual_seed(2)
    module = WithTable(512)
    program = torch.compile(DistributedDataParallel(module), backend="torchmdla")
    x = torch.randn(4, 512)
    for row in range(WRITES):
        if distributed.get_rank() == 0:
            module.table[3 * row] += 1
        result = program(x)
        assert_matches(result, module(x), layers=2)
        result.sum().backward()
    return activity()


def follow_gathered_weights() -> Activity:
    """Run calls of FSDP2 without gradients, with a weight whose rows change one by one."""
    torchmdla.reset_stats()
    torch._dynamo.reset()
    torch.manual_seed(2)
    program = fully_shard(ByArguments(512, torch.compile(product_of, backend="torchmdla")), reshard_after_forward=True)
    shard = program.product.weight.to_local()  # type: ignore[union-attr, operator]
    x = torch.randn(4, 512)
    with torch.no_grad():
        for row in range(WRITES):
            shard[row] += 1
            result = program(x)
            whole = (parameter.full_tensor() for parameter in program.product.parameters())  # type: ignore[union-attr]
            assert_matches(result, product_of(x, *whole), layers=1)
    return activity()


def weights_of_sharded_groups() -> list[list[int]]:
    """Return the packed inputs of each group of a model that FSDP2 manages."""
    torch._dynamo.reset()
    torchmdla.reset_stats()
    program = WRAPPINGS["FSDP(compile)"](MODELS["dense"].build(), True)
    with torch.no_grad():
        for _ in range(2):
            program(MODELS["dense"].draw(3))
    called = {group.number for group in torchmdla.stats().by_group}
    return [report["parameters"] for report in torchmdla._C.groups() if report["number"] in called]


# --- errors ----------------------------------------------------------------------------------------------------------


def train_past_errors() -> list[str]:
    """Train with two bad batches of ten.

    They hold a token that does not exist, in the last rank alone. All ranks skip these batches.

    Returns:
        The errors in this rank, by eager PyTorch.
    """
    expected_errors, expected = _train_past_errors(compiled=False)
    torch._dynamo.reset()
    errors, losses = _train_past_errors(compiled=True)
    assert errors == expected_errors
    assert_matches(losses, expected, layers=10 * MODELS["encoder"].layers)
    return errors


def _train_past_errors(compiled: bool) -> tuple[list[str], Tensor]:
    torch.manual_seed(1)
    program = WRAPPINGS["compile(DDP)"](MODELS["encoder"].build(), compiled)
    optimiser = OPTIMISERS["SGD"](program.parameters())
    is_last = distributed.get_rank() == distributed.get_world_size() - 1
    errors, losses = [], []
    for step, (x, labels) in enumerate(itertools.islice(batches_of(MODELS["encoder"]), 10)):
        failed = torch.zeros(())
        try:
            loss = functional.cross_entropy(program(x + 100 if is_last and step in (4, 7) else x), labels)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
            failed += 1
        distributed.all_reduce(failed)
        if failed:
            continue
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return errors, torch.tensor(losses)


def train_forked(rank: int, size: int, store: str, case: Case) -> None:
    """Train in a rank that is a fork of a process which has compiled."""
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    assert train_both(case).compiled_calls >= STEPS

"""Inputs that a program partially overwrites, like the cache of a decoder.

They are written in place and immediately, unless the program could observe it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchmdla
from torchmdla import devices
from torchmdla.capture.fx.partition import partition
from torchmdla.testing.compare import assert_matches


def step(cache: Tensor, place: Tensor, x: Tensor) -> Tensor:
    cache.index_copy_(1, place, x)
    return torch.softmax((cache * 2).sum(-1), -1) + x.sum()


def two_steps(cache: Tensor, place: Tensor, x: Tensor) -> Tensor:
    cache.index_copy_(1, place, x)
    before = cache.exp().sum((1, 2))
    cache.index_copy_(1, place + 1, x + 1)
    return before + cache.sum((1, 2))


def put(cache: Tensor, place: Tensor, x: Tensor) -> Tensor:
    cache[:, place] = x
    return torch.exp(cache).sum(-1)


def read_before(cache: Tensor, place: Tensor, x: Tensor) -> Tensor:
    before = torch.exp(cache).sum(1)
    cache.index_copy_(1, place, x)
    return before * 2


def through_views(cache: Tensor, place: Tensor, x: Tensor) -> Tensor:
    """Write to a cache, and read it repeated, like an attention with groups of heads."""
    cache.index_copy_(1, place, x)
    repeated = cache[:, None].expand(2, 3, 8, 4).reshape(6, 8, 4)
    return torch.tanh(repeated @ x[:1, 0, :, None]).sum(0)


def read_afterwards(cache: Tensor, place: Tensor, x: Tensor) -> Tensor:
    """Read the old cache after the new one is computed: an immediate write would change the result."""
    updated = torch.index_copy(cache, 1, place, x)
    result = torch.exp(cache).sum(1) + updated.sum(1)
    cache.copy_(updated)
    return result


def returned(cache: Tensor, place: Tensor, x: Tensor) -> Tensor:
    updated = torch.index_copy(cache, 1, place, x)
    cache.copy_(updated)
    return updated


def viewed(cache: Tensor, place: Tensor, x: Tensor) -> Tensor:
    early = cache[:, 2:5]
    updated = torch.index_copy(cache, 1, place, x)
    result = torch.exp(early).sum(1) + updated.sum(1)
    cache.copy_(updated)
    return result


# Programs, and whether they write to the cache immediately.
PROGRAMS: list[tuple[Callable[[Tensor, Tensor, Tensor], Tensor], bool]] = [
    (step, True),
    (put, True),
    (read_before, True),
    (through_views, True),
    (two_steps, False),
    (read_afterwards, True),  # the group that reads it writes it
    (returned, False),
    (viewed, False),
]


@pytest.mark.parametrize(("function", "is_at_once"), PROGRAMS)
def test_caches(function: Callable[[Tensor, Tensor, Tensor], Tensor], is_at_once: bool) -> None:
    torch._dynamo.reset()
    torchmdla.reset_stats()
    compiled = torch.compile(function, backend="torchmdla", dynamic=False)
    cache = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    expected, original, address = cache.clone(), cache, cache.data_ptr()
    with torch.no_grad():
        for place in range(5):
            x = torch.randn(2, 1, 4, generator=torch.Generator().manual_seed(place))
            result, wanted = compiled(cache, torch.tensor([place]), x), function(expected, torch.tensor([place]), x)
            assert_matches(result, wanted)
            assert torch.equal(cache, expected)
    assert cache is original
    assert cache.data_ptr() == address
    assert not torchmdla.stats().fallbacks
    outside = torchmdla.stats().ungrouped
    copies = any(name.startswith("aten::copy_:") for name in outside)
    assert copies == (not is_at_once)


class Widened(torch.nn.Module):
    """Integer weights, one of which is used after an operator that the device does not support."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Buffer(torch.randint(-8, 8, (4, 4), dtype=torch.int8))
        self.last = torch.nn.Buffer(torch.randint(-8, 8, (4, 4), dtype=torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sort(torch.relu(x @ self.first.float())).values
        return torch.relu(x @ self.last.float())


def test_weight_computations_are_in_the_groups_that_use_them() -> None:
    graph = torch.export.export(Widened(), (torch.randn(3, 4),)).run_decompositions({}).graph
    weights = [node for node in graph.nodes if node.op == "placeholder" and node.meta["val"].dtype == torch.int8]
    partitioned = partition(graph, devices.get("cpu"), (), weights)
    names = [sorted(node.name.partition("_")[0] or "to_copy" for node in group) for group in partitioned.groups]
    assert names == [["matmul", "relu", "to_copy"]] * 2

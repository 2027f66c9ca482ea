"""Reading a value on PyTorch's lazy device computes the tensors that share a computation with it, and no others."""

from __future__ import annotations

import random

import pytest
import torch
from lazy_device import X
from torch import Tensor

import torchmdla
from torchmdla import lazy
from torchmdla.testing.compare import assert_matches

pytestmark = pytest.mark.usefixtures("lazy_device")


def is_pending(tensor: Tensor) -> bool:
    return any(True for _ in lazy.pending_computation(tensor).graph.nodes())


class Program:
    """Tensors that are computed from others, and the computations that each one needs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.inputs = [X + i for i in range(8)]
        self.moved = [x.to("lazy") for x in self.inputs]
        self.tensors: list[Tensor] = []
        self.values: list[Tensor] = []
        self.computations: list[set[int]] = []
        self.pending: set[int] = set()

    def make(self, inherits: float) -> None:
        """Add a tensor that is computed from two inputs or earlier tensors."""
        operands = []
        taken = {len(self.tensors)}
        for _ in range(2):
            if self.tensors and self.random.random() < inherits:
                i = self.random.randrange(len(self.tensors))
                operands.append((self.tensors[i], self.values[i]))
                taken |= self.computations[i] if i in self.pending else set()
            else:
                operands.append(self.random.choice(list(zip(self.moved, self.inputs, strict=True))))
        (a, x), (b, y) = operands
        self.pending.add(len(self.tensors))
        self.tensors.append(torch.hypot(a, b))
        self.values.append(torch.hypot(x, y))
        self.computations.append(taken)

    def look(self) -> None:
        i = self.random.randrange(len(self.tensors))
        assert_matches(self.tensors[i].cpu(), self.values[i])
        if i in self.pending:
            self.pending -= {j for j in self.pending if self.computations[i] & self.computations[j]}


@pytest.mark.parametrize("inherits", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled(1)
def test_a_look_computes_tensors_that_share_operands(seed: int, inherits: float) -> None:
    program = Program(seed)
    for count in (3, 200, 10, 300, 30):
        for _ in range(count):
            program.make(inherits)
        for _ in range(6):
            program.look()
            assert {i for i, tensor in enumerate(program.tensors) if is_pending(tensor)} == program.pending


def test_released_tensors_are_in_no_computation() -> None:
    """A released tensor is in no computation.

    This also holds when many tensors were pending, and when a new tensor reuses the memory of a released one.
    """
    x = X.to("lazy")
    many = [x * i for i in range(100)]
    assert_matches(many[0].cpu(), X * 0)
    del many[1::2]
    later = [x - i for i in range(100)]
    torchmdla.reset_stats()
    assert_matches(later[50].cpu(), X - 50)
    assert torchmdla.stats().lazy.runs == 1
    assert [is_pending(tensor) for tensor in later] == [i != 50 for i in range(100)]
    assert [is_pending(tensor) for tensor in many] == [i != 0 for i in range(len(many))]

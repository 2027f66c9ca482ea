"""Derivatives of derivatives through ``torch.compile(…, backend="torchmdla")``: the training of forces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torchmdla
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import SCHNET


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """Reset Dynamo, so that no test reuses code or recompilation counts of another."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_forces_of_a_potential() -> None:
    spec = SCHNET.reduced()
    model = spec.build()
    program = torch.compile(model, backend="torchmdla", dynamic=True)
    for size in spec.sizes:
        positions, *others = spec.inputs(size=size)
        positions.requires_grad_()
        results = []
        for call in (program, model):
            energy = call(positions, *others)
            results.append((energy, *torch.autograd.grad(energy, positions)))
        assert_matches(*results, layers=spec.layers)
    assert not torchmdla.stats().fallbacks

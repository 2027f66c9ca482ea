"""Fixture of tests that compile by Dynamo."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.utils import counters


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Reset Dynamo, so that no test reuses code, counters or recompilation counts of another."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()

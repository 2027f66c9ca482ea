"""Errors while a graph of PyTorch's lazy device runs: only values that depend on them are lost."""

from __future__ import annotations

import pytest
import torch
import torch._lazy
from lazy_device import X, check, moved

import torchmdla
from torchmdla.testing.compare import assert_matches

pytestmark = pytest.mark.usefixtures("lazy_device")


def out_of_bounds(x):
    return x.index_select(0, torch.tensor([7], device=x.device))


def test_an_error_affects_only_dependent_tensors():
    x = X.to("lazy")
    before, wrong = x + 1, out_of_bounds(x)
    after = wrong * 2
    with pytest.raises((RuntimeError, IndexError), match="out of range"):
        torch._lazy.mark_step()
    assert_matches(before.cpu(), X + 1)
    assert_matches(x.cpu(), X)
    for tensor in (wrong, after, after + before[:1]):
        with pytest.raises((RuntimeError, IndexError), match="out of range"):
            tensor.cpu()


def test_an_error_is_raised_once():
    x = X.to("lazy")
    wrong = out_of_bounds(x)
    with pytest.raises((RuntimeError, IndexError), match="out of range"):
        wrong.cpu()
    del wrong
    assert_matches((x * 2).cpu(), X * 2)
    torch._lazy.mark_step()
    torch._lazy.wait_device_ops()


def test_an_error_after_groups_were_formed():
    x, y = X.to("lazy"), torch.eye(4).to("lazy")

    def step(row):
        picked = torch.tanh(x @ y).index_select(0, torch.tensor([row], device="lazy"))
        return [torch.exp(x) * 2, torch.relu(picked) + 1]

    for _ in range(4):
        assert_matches(moved(step(2)), [torch.exp(X) * 2, torch.relu(torch.tanh(X)[2:]) + 1], strides=False)
    right, _wrong = step(7)
    with pytest.raises((RuntimeError, IndexError), match="out of range"):
        torch._lazy.mark_step()
    assert_matches(right.cpu(), torch.exp(X) * 2)
    assert_matches(moved(step(1)), [torch.exp(X) * 2, torch.relu(torch.tanh(X)[1:2]) + 1], strides=False)


@pytest.mark.usefixtures("broken_compiler")
def test_a_failed_compile_leaves_right_values():
    torchmdla.reset_stats()
    with pytest.warns(RuntimeWarning, match="cannot be lowered"):
        check(lambda x: [torch.tanh(x) * 3.25 + x.sum(), x.t() + 0.75], X, calls=6)
    ((reason, count),) = torchmdla.stats().fallbacks.items()
    assert "cannot be lowered" in reason
    assert count >= 3


@pytest.mark.usefixtures("broken_compiler")
def test_strict_raises_and_leaves_values():
    torchmdla.enable(strict=True)
    x = X.to("lazy")

    def step():
        return torch.tanh(x) * 4.25 + x.sum()

    expected = torch.tanh(X) * 4.25 + X.sum()
    for _ in range(2):  # at first the graph differs; the first run of each graph interprets it
        result = step()
        torch._lazy.mark_step()
    for _ in range(2):
        result = step()
        with pytest.raises(torchmdla.CompileError, match="cannot be lowered"):
            torch._lazy.mark_step()
        assert_matches(result.cpu(), expected)
    torchmdla.enable()
    assert_matches(step().cpu(), expected)

"""Faults on the acap device: no value is lost, and fallbacks are counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from in_threads import in_threads
from torch import Tensor

import torchmdla
from torchmdla.compile_service import service
from torchmdla.testing.compare import assert_matches

X = torch.linspace(-1, 1, 12).view(3, 4)


# --- the compiler ------------------------------------------------------------------------------------------------
# Each test uses different ops: graphs that only differ in floats are equal.


@pytest.mark.usefixtures("broken_compiler")
def test_a_failed_compile_leaves_right_values(dev: torch.device) -> None:
    x = X.to(dev)

    def step() -> Tensor:
        return x.tanh() * 3.25 + x.sum()

    step().cpu()  # the first run interprets
    with pytest.warns(RuntimeWarning, match="cannot be lowered"):
        assert_matches(step().cpu(), X.tanh() * 3.25 + X.sum())
    for _ in range(2):
        assert_matches(step().cpu(), X.tanh() * 3.25 + X.sum())
    ((reason, count),) = torchmdla.stats().fallbacks.items()
    assert "cannot be lowered" in reason
    # The run that recorded the group did not count as a fallback. Nor did the run that recorded it without the blamed
    # op.
    assert count == 1


@pytest.mark.usefixtures("broken_compiler")
def test_strict_raises_and_leaves_tensors_usable(dev: torch.device) -> None:
    torchmdla.enable(strict=True)
    x = X.to(dev)

    def step() -> Tensor:
        return x.sigmoid() * 4.25 + x.sum()

    step().cpu()
    result = step()
    for _ in range(2):
        with pytest.raises(torchmdla.CompileError, match="cannot be lowered"):
            result.cpu()
        with pytest.raises(torchmdla.CompileError, match="cannot be lowered"):
            torchmdla.acap.mark_step()
        assert torchmdla.acap.is_pending(result)
    torchmdla.enable()
    assert_matches(result.cpu(), X.sigmoid() * 4.25 + X.sum())


def test_an_interrupt_is_the_users(dev: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    x = X.to(dev)

    def step() -> Tensor:
        return x.exp() * 5.25 + x.sum()

    step().cpu()
    result = step()
    with monkeypatch.context() as patch:
        patch.setattr(service, "compile_program", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            result.cpu()
    assert_matches(result.cpu(), X.exp() * 5.25 + X.sum())
    assert torchmdla.stats().fallbacks == {}


# --- operators of others -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def others() -> Iterator[Any]:
    """Define operators of a foreign library.

    One takes a storage, so no graph can hold it. One lacks a meta kernel, and one lacks a kernel.
    """
    library = torch.library.Library("acap_tests", "DEF")
    library.define("scaled(Tensor x, Storage factors) -> Tensor")
    library.impl("scaled", lambda x, factors: x * factors.nbytes(), "CPU")
    library.impl("scaled", lambda x, factors: torch.empty_like(x), "Meta")
    library.define("shifted(Tensor x) -> Tensor")
    library.impl("shifted", lambda x: x + 1, "CPU")
    library.define("nowhere(Tensor x) -> Tensor")
    yield torch.ops.acap_tests
    library._destroy()


def test_operators_outside_graphs_run_op_by_op(dev: torch.device, others: Any) -> None:
    factors = torch.ones(1).untyped_storage()

    def program(x: Tensor) -> list[Tensor]:
        base = x * 2
        rows = base.view(-1)[2:8].view(2, 3)  # views of a pending tensor
        parts = torch.cat([rows, rows.t().reshape(2, 3)]).split(2)
        picked = base[torch.tensor([2, 0], device=x.device), 1:]
        scaled = others.scaled(parts[1], factors)
        base.t()[1].fill_(7)
        return [scaled.relu(), scaled, picked, base, torch.stack([scaled, rows]).max(0)[0]]

    results = program(X.to(dev))
    assert all(torchmdla.acap.is_pending(tensor) for tensor in results)
    torchmdla.acap.mark_step()
    for tensor, wanted in zip(results, program(X), strict=True):
        assert_matches(tensor.cpu(), wanted.clone())
    assert torchmdla.stats().fallbacks == {"acap: a graph ran op by op: Unsupported value kind: Storage": 1}


def test_errors_of_values_op_by_op(dev: torch.device, others: Any) -> None:
    factors = torch.ones(1).untyped_storage()
    scaled = others.scaled(X.to(dev), factors)
    picked = scaled.index_select(0, torch.tensor([9], device=dev))
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        picked.cpu()
    assert_matches(scaled.cpu(), X * 4)


def test_without_a_meta_kernel(dev: torch.device, others: Any) -> None:
    assert_matches((others.shifted(X.to(dev) * 2) * 3).cpu(), (X * 2 + 1) * 3)
    assert torchmdla.stats().fallbacks == {"acap: acap_tests::shifted ran on the CPU": 1}


def test_without_a_kernel(dev: torch.device, others: Any) -> None:
    x = X.to(dev) * 2
    with pytest.raises(NotImplementedError, match="acap_tests::nowhere"):
        others.nowhere(x)
    assert_matches(x.cpu(), X * 2)


# --- threads -----------------------------------------------------------------------------------------------------


def test_an_error_of_one_thread_is_not_the_others(dev: torch.device) -> None:
    shared = X.to(dev) * 2

    def wrong() -> None:
        shared.index_select(0, torch.tensor([9], device=dev)).cpu()

    def right() -> None:
        for number in range(20):
            assert_matches((shared + number).cpu(), X * 2 + number)

    (error,) = in_threads(3, lambda number: right() if number else wrong())
    assert "out of range" in str(error)
    assert_matches(shared.cpu(), X * 2)


def test_all_threads_graphs_are_computed_by_one(dev: torch.device) -> None:
    results: list[Tensor] = []
    assert not in_threads(4, lambda number: results.append(X.to(dev) * number))
    torchmdla.acap.mark_step()
    assert not any(torchmdla.acap.is_pending(tensor) for tensor in results)
    assert sorted(tensor[0, 0].item() for tensor in results) == [-3, -2, -1, 0]


def test_threads_look_at_one_graph(dev: torch.device) -> None:
    x, wanted = X.to(dev), X
    for _ in range(20):
        x, wanted = x.tanh() + 0.25, wanted.tanh() + 0.25
    assert not in_threads(4, lambda _: assert_matches(x.cpu(), wanted, layers=20))

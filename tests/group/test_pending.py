"""Tests of results that an asynchronous device leaves pending (``Asynchronous``, runtime/pending.h)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from pending_device import PendingDevice
from torch import Tensor

import torchmdla
from torchmdla.testing.compare import assert_matches

# Loaded code calls the functions of the device that loaded it, and PyTorch keeps scripted functions.
DEVICE = PendingDevice()


@pytest.fixture
def device() -> Iterator[PendingDevice]:
    torchmdla.devices.register(DEVICE)
    torchmdla.enable(device="pending")
    DEVICE.fails = False
    DEVICE.log.clear()
    yield DEVICE
    assert not DEVICE.content, "results that the runtime neither waited for nor forgot"
    torchmdla.enable()


def chain(x: Tensor, w: Tensor, again: bool) -> Tensor:
    """Run a group, and a second one in a branch, which is the only reader of the first one's result."""
    first = torch.mm(x, w).relu()
    if again:
        result = torch.mm(first, w).tanh()
    else:
        result = x
    return result


def beside(x: Tensor, w: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Run a group, and an operator that the device does not support on other values."""
    result = torch.mm(x, w).relu()
    return result, torch.cumsum(w, axis - 1)


def looped(x: Tensor, w: Tensor, count: int) -> Tensor:
    for _ in range(count):
        x = torch.mm(x, w).tanh()
    return x


def read(x: Tensor, w: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Read a group's result by an operator that the device does not support, and return it too."""
    first = torch.mm(x, w).relu()
    return first, torch.cumsum(first, 1) + count


def written(x: Tensor, w: Tensor, again: bool) -> Tensor:
    """Write to a group's result before the next group reads it."""
    first = torch.mm(x, w).tanh()
    if again:
        torch.sin_(first[0])
        first = torch.mm(first, w).tanh()
    return first


def inputs(rows: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 8, generator=generator), torch.randn(8, 8, generator=generator)


def compiled(function: object, *arguments: object) -> torch.jit.ScriptFunction:
    """Return a scripted function after the calls in which its groups are formed and compiled."""
    result: torch.jit.ScriptFunction = torch.jit.script(function)
    for _ in range(4):
        result(*arguments)
    return result


@pytest.mark.parametrize("function", [chain, beside, looped, read, written])
def test_values(device: PendingDevice, function: object) -> None:
    x, w = inputs()
    scripted = compiled(function, x, w, 2)
    device.log.clear()
    for _ in range(2):
        assert_matches(scripted(x, w, 2), function(x, w, 2))  # type: ignore[operator]
    assert ("entry", 0) in device.log
    assert not torchmdla.stats().fallbacks


def test_a_result_stays_on_the_device(device: PendingDevice) -> None:
    x, w = inputs()
    scripted = compiled(chain, x, w, True)
    device.log.clear()
    result = scripted(x, w, True)
    assert device.log == [("entry", 0), ("entry", 1), ("wait",), ("forget",)]
    assert_matches(result, chain(x, w, True))


def test_operators_that_do_not_read_a_result_do_not_wait(device: PendingDevice) -> None:
    x, w = inputs()
    compiled(beside, x, w, 2)
    graph = str(torch.jit.last_executed_optimized_graph())
    assert graph.index("mdla::CompilationGroup") < graph.index("aten::cumsum") < graph.index("mdla::wait")


def test_a_result_without_a_reader_is_forgotten(device: PendingDevice) -> None:
    x, w = inputs()
    scripted = compiled(chain, x, w, True)
    device.log.clear()
    assert scripted(x, w, False) is x
    assert device.log == [("entry", 0), ("forget",)]


def test_a_device_may_wait_in_each_call(device: PendingDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def waiting(x: Tensor, w: Tensor, again: bool) -> Tensor:
        first = torch.mm(x, w).relu()
        if again:
            result = torch.mm(first, w).tanh()
        else:
            result = x
        return result

    monkeypatch.setattr(PendingDevice, "leaves_results_pending", False)
    torchmdla.enable(device="pending")
    x, w = inputs()
    scripted = compiled(waiting, x, w, True)
    assert "mdla::wait" not in str(torch.jit.last_executed_optimized_graph())
    device.log.clear()
    assert_matches(scripted(x, w, True), waiting(x, w, True))
    assert device.log == [("entry", 0), ("wait",), ("entry", 0), ("wait",)]


def test_python_frontends_wait(device: PendingDevice) -> None:
    x, w = inputs()
    program = torch.compile(lambda x, w: torch.mm(x, w).relu(), backend="torchmdla", options={"device": "pending"})
    for _ in range(3):
        assert_matches(program(x, w), torch.mm(x, w).relu())
    assert device.log[-2:] == [("entry", 0), ("wait",)]


def test_groups_that_are_switched_off(device: PendingDevice) -> None:
    x, w = inputs()
    scripted = compiled(read, x, w, 1)
    torchmdla.enable(False)
    device.log.clear()
    assert_matches(scripted(x, w, 1), read(x, w, 1))
    assert device.log == []
    torchmdla.enable(device="pending")


@pytest.mark.parametrize("strict", [False, True])
def test_operators_replace_a_device_that_fails_in_wait(device: PendingDevice, strict: bool) -> None:
    x, w = inputs()
    scripted = compiled(chain, x, w, True)
    torchmdla.enable(device="pending", strict=strict)
    device.fails = True
    if strict:
        with pytest.raises(Exception, match="unplugged"):
            scripted(x, w, True)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_matches(scripted(x, w, True), chain(x, w, True))
    assert any("unplugged" in reason for reason in torchmdla.stats().fallbacks)


def test_operators_cannot_compute_from_changed_inputs(device: PendingDevice) -> None:
    def change(x: Tensor, w: Tensor, again: bool) -> tuple[Tensor, Tensor]:
        first = torch.mm(x, w).relu()
        if again:
            x.sin_()
        return first, x.cumsum(0)

    x, w = inputs()
    scripted = compiled(change, x, w, False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_matches(scripted(x.clone(), w, True), change(x.clone(), w, True))
        device.fails = True
        with pytest.raises(Exception, match=r"unplugged.* was changed since"):
            scripted(x.clone(), w, True)


def test_threads(device: PendingDevice) -> None:
    scripted = compiled(chain, *inputs(), True)
    with ThreadPoolExecutor(4) as pool:
        cases = [inputs(rows=8) for _ in range(32)]
        results = list(pool.map(lambda case: scripted(*case, True), cases))
    for case, result in zip(cases, results, strict=True):
        assert_matches(result, chain(*case, True))

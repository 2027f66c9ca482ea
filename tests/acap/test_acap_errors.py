"""Errors, processes and threads on the acap device."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from child_process import run_script
from in_threads import in_threads
from torch import Tensor, nn

import torchmdla
from torchmdla import _C


def test_mixing_devices(dev: torch.device) -> None:
    message = "Expected all tensors to be on the same device, but found at least two devices, acap:0 and cpu!"
    with pytest.raises(RuntimeError, match=message):
        torch.ones(2, device=dev) + torch.ones(2)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        nn.Linear(2, 2).to(dev)(torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.nonzero(torch.ones(2, device=dev), out=torch.tensor(0))
    with pytest.raises(RuntimeError, match=r"torch\.block_diag: input tensors must all be on the same device"):
        torch.block_diag(torch.ones(2, 2, device=dev), torch.ones(2, 2))
    assert (torch.ones(2, device=dev) + torch.tensor(1.0)).tolist() == [2, 2]


_FAULTS: dict[str, Callable[[Any], object]] = {
    "sizes of a product": lambda device: torch.ones(2, 3, device=device) @ torch.ones(2, 3, device=device),
    "broadcasting": lambda device: torch.ones(3, device=device) + torch.ones(4, device=device),
    "view": lambda device: torch.ones(6, device=device).view(5),
    "memory of a view": lambda device: torch.ones(4, device=device).as_strided((2, 2), (2, 1), 1),
    "dtype of a write": lambda device: torch.ones(2, dtype=torch.int64, device=device).add_(1.5),
    "a real result in a complex tensor": lambda device: torch.ones(2, dtype=torch.complex64, device=device).abs_(),
    "dtype of an out": lambda device: torch.gather(
        torch.ones(2, device=device),
        0,
        torch.tensor([0], device=device),
        out=torch.ones(1, dtype=torch.float64, device=device),
    ),
    "sizes that a meta kernel takes": lambda device: torch.ones(3, 4, device=device).index_add_(
        0, torch.tensor([0], device=device), torch.ones(1, device=device)
    ),
    "dtypes that a meta kernel takes": lambda device: torch.complex(
        torch.ones(2, device=device), torch.ones(2, dtype=torch.float64, device=device)
    ),
    "a factor that a meta kernel takes": lambda device: torch.add(
        torch.ones(2, dtype=torch.bool, device=device), torch.ones(2, dtype=torch.bool, device=device), alpha=1.5
    ),
    "strides of another number of dimensions": lambda device: torch.ones(2, device=device).as_strided_((1, 2), (1,)),
    "dtype of a written number": lambda device: torch.ones(3, device=device).index_fill_(
        0, torch.tensor([0], device=device), 1j
    ),
    "dtype of a reduction": lambda device: torch.ones(3, dtype=torch.complex64, device=device).aminmax(dim=0),
    "number of dimensions": lambda device: torch.ones([1] * 65, device=device).mean(64),
    "an option": lambda device: torch.searchsorted(
        torch.ones(3, device=device), torch.ones(2, device=device), side="middle"
    ),
    "order of a norm": lambda device: [
        torch.linalg.vector_norm(torch.ones(0, device=device), order) for order in (0.5, -0.5)
    ],
    "write to an expanded": lambda device: torch.ones(3, device=device).expand(2, 3).add_(1),
    "an index": lambda device: torch.ones(3, 4, device=device)[:, torch.tensor([0, 4], device=device)],
    "an index of nothing": lambda device: torch.ones(0, 4, device=device)[torch.tensor([0], device=device)],
    "a negative index of a write": lambda device: operator.setitem(
        torch.ones(3, device=device), torch.tensor([-4], device=device), 1
    ),
    "indices that do not broadcast": lambda device: torch.ones(3, 4, device=device)[
        torch.tensor([0, 1], device=device), torch.tensor([0, 1, 2], device=device)
    ],
    "sizes of written values": lambda device: operator.setitem(
        torch.ones(3, 4, device=device), torch.tensor([0, 1], device=device), torch.ones(3, 4, device=device)
    ),
    "dtype of written values": lambda device: operator.setitem(
        torch.ones(3, device=device), torch.tensor([0], device=device), torch.ones(1, dtype=torch.int64, device=device)
    ),
    "number of masked values": lambda device: operator.setitem(
        torch.ones(3, device=device), torch.tensor([True, False, True], device=device), torch.ones(3, device=device)
    ),
    "number of values of a pending mask": lambda device: operator.setitem(
        x := torch.ones(3, device=device), x > 0, torch.ones(2, device=device)
    ),
    "number of scattered values": lambda device: torch.ones(2, 3, device=device).masked_scatter_(
        torch.tensor([True, False, True], device=device), torch.ones(3, device=device)
    ),
    "sizes of a mask": lambda device: operator.setitem(
        torch.ones(3, device=device), torch.tensor([True, False], device=device), 1
    ),
    "dtypes of a length and an angle": lambda device: torch.polar(
        torch.ones(2, device=device), torch.ones(2, dtype=torch.float64, device=device)
    ),
    "index": lambda device: nn.functional.embedding(
        torch.tensor([9], device=device), torch.ones(3, 2, device=device)
    ).cpu(),
}


@pytest.mark.parametrize("fault", _FAULTS)
def test_errors_are_pytorchs(dev: torch.device, fault: str) -> None:
    with pytest.raises((RuntimeError, IndexError)) as wanted:
        _FAULTS[fault]("cpu")
    with pytest.raises(type(wanted.value)) as raised:
        _FAULTS[fault](dev)
    assert str(raised.value) == str(wanted.value)


@pytest.mark.parametrize("make", [Tensor.to_sparse, lambda x: torch.nested.as_nested_tensor([x, x])])
def test_tensors_that_are_not_dense_are_refused(dev: torch.device, make: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(NotImplementedError, match="move the operands to the CPU first"):
        make(torch.ones(2, 3, device=dev))


def test_operators_without_an_order_are_rejected_at_the_call(dev: torch.device) -> None:
    def put(device: Any) -> None:
        torch.ones(3, device=device).put_(torch.tensor([0], device=device), torch.ones(1, device=device))

    put(dev)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
            put(dev)
        torch.use_deterministic_algorithms(True, warn_only=True)
        for _ in range(2):
            with pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
                put(dev)
    finally:
        torch.use_deterministic_algorithms(False)


def test_masks_of_bytes_cause_a_warning(dev: torch.device) -> None:
    x = torch.ones(3, device=dev)
    with pytest.warns(UserWarning, match="dtype torch.uint8"):
        x[torch.tensor([1, 0, 1], dtype=torch.uint8, device=dev)] = torch.tensor([5.0, 6.0], device=dev)
    assert x.tolist() == [5, 1, 6]


def test_pending_masks_stay_pending_if_values_fit_any_number(dev: torch.device) -> None:
    x = torch.arange(6.0).view(3, 2).to(dev)
    mask = x[:, 0] > 0
    x[mask] = torch.tensor([7.0, 8.0], device=dev)
    assert torchmdla.acap.is_pending(mask)
    assert x.tolist() == [[0, 1], [7, 8], [7, 8]]


def test_pending_indices_stay_pending(dev: torch.device) -> None:
    indices = torch.tensor([0, 4], device=dev) + 1
    picked = torch.ones(3, device=dev)[indices]
    assert torchmdla.acap.is_pending(picked) and torchmdla.acap.is_pending(indices)
    with pytest.raises(IndexError):
        picked.cpu()


def test_tensors_stay_usable_after_an_error(dev: torch.device) -> None:
    rows = torch.ones(3, 2, device=dev) * 2
    picked = nn.functional.embedding(torch.tensor([9], device=dev), rows)
    for _ in range(2):
        with pytest.raises(IndexError):
            picked.cpu()
    assert rows.sum().item() == 12


def test_an_error_costs_a_step_nothing_else(dev: torch.device) -> None:
    rows = torch.ones(3, 2, device=dev) * 2
    picked = nn.functional.embedding(torch.tensor([9], device=dev), rows) + 1
    others = [rows.sum(), torch.zeros(2, device=dev) + 1]
    for _ in range(2):
        with pytest.raises(IndexError):
            torchmdla.acap.mark_step()
    assert torchmdla.acap.is_pending(picked)
    assert not any(torchmdla.acap.is_pending(tensor) for tensor in (rows, *others))
    del picked
    torchmdla.acap.mark_step()


def test_an_error_is_not_raised_at_the_size_limit(dev: torch.device) -> None:
    picked = nn.functional.embedding(torch.tensor([9], device=dev), torch.ones(3, 2, device=dev) * 2)
    torchmdla.acap.set_most_pending_nodes(10)
    try:
        x = torch.zeros(2, device=dev)
        for _ in range(35):
            x = x + 1
            assert _C.acap.pending_nodes() <= 12
        assert x.tolist() == [35, 35]
    finally:
        torchmdla.acap.set_most_pending_nodes(20000)
    with pytest.raises(IndexError):
        picked.cpu()


_AFTER_A_BACKWARD = """
import torch, torchmdla
w = torch.ones(3, requires_grad=True)
(w * 2).sum().backward()  # PyTorch's engine counts devices in its first pass.
v = torch.ones(3, device=torchmdla.acap_device(), requires_grad=True)
(v * 3).sum().backward()
(first,) = torch.autograd.grad((v * v).sum().cpu(), v)
assert [w.grad.tolist(), v.grad.tolist(), first.tolist()] == [[2] * 3, [3] * 3, [2] * 3]
assert torch._C._is_multithreading_enabled()
"""

_LEFT_PENDING = "import torch, torchmdla; x = torch.ones(2, device=torchmdla.acap_device()) + 1"

_OF_ANOTHER = """
import torch, torchmdla
torch.utils.rename_privateuse1_backend("other")
try:
    torchmdla.acap_device()
except RuntimeError as error:
    assert "'other' already" in str(error)
"""

_NOT_ASKED_FOR = "import torch, torchmdla; torch.utils.rename_privateuse1_backend('other')"


@pytest.mark.parametrize("program", [_AFTER_A_BACKWARD, _LEFT_PENDING, _OF_ANOTHER, _NOT_ASKED_FOR])
@pytest.mark.sampled(1)
def test_in_a_process_of_its_own(program: str) -> None:
    ended = run_script("-c", program)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_threads(dev: torch.device) -> None:
    shared = torch.eye(4, device=dev) * 2

    def work(number: int) -> None:
        def chain(x: Tensor, other: Tensor) -> Tensor:
            for _ in range(30):
                x = (x @ other).softmax(-1) + number
            return x

        result = chain(torch.full((4, 4), float(number), device=dev), shared)
        wanted = chain(torch.full((4, 4), float(number)), torch.eye(4) * 2)
        torch.testing.assert_close(result.cpu(), wanted)

    assert not in_threads(6, work)

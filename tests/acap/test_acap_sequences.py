"""Ops, views, writes and reads in random order: the acap device matches the CPU, errors included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import torchmdla

# Functions that derive a tensor from another one and a number. They return views or not, as PyTorch defines.
_TAKES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "select": lambda x, n: x.select(0, n % 3),
    "slice": lambda x, n: x[n % 3 :],
    "step": lambda x, n: x[..., n % 2 :: 2],
    "transpose": lambda x, n: x.transpose(0, -1),
    "permute": lambda x, n: x.permute([(d + n) % x.dim() for d in range(x.dim())]),
    "view": lambda x, n: x.view(-1),
    "reshape": lambda x, n: x.reshape(2, -1),
    "unsqueeze": lambda x, n: x.unsqueeze(n % (x.dim() + 1)),
    "squeeze": lambda x, n: x.squeeze(),
    "expand": lambda x, n: x.unsqueeze(0).expand(2, *x.shape),
    "diagonal": lambda x, n: x.diagonal(),
    "split": lambda x, n: x.split(2)[-1],
    "unbind": lambda x, n: x.unbind(-1)[n % 3],
    "as_strided": lambda x, n: x.as_strided((2, 2), (2, 1), n % 3),
    "unfold": lambda x, n: x.unfold(0, 2, 1),
    "bits": lambda x, n: x.view(torch.int32).view(torch.float32),
    "detach": lambda x, n: x.detach(),
    "clone": lambda x, n: x.clone(),
    "contiguous": lambda x, n: x.contiguous(),
    "double": lambda x, n: x * 2,
    "sum": lambda x, n: x.sum(0, keepdim=True),
    "sort": lambda x, n: x.sort(0)[0],
    "masked": lambda x, n: x[x > n],
    "flip": lambda x, n: x.flip(0),
}

# Functions that write to their first operand, from a second operand and a number.
_WRITES: dict[str, Callable[[Tensor, Tensor, int], object]] = {
    "add_": lambda x, y, n: x.add_(y, alpha=0.5),
    "add_ a number": lambda x, y, n: x.add_(n),
    "copy_": lambda x, y, n: x.copy_(y),
    "fill_": lambda x, y, n: x.fill_(n),
    "mul_ of itself": lambda x, y, n: x.mul_(x),
    "clamp_": lambda x, y, n: x.clamp_(max=n),
    "set an element": lambda x, y, n: x.__setitem__(0, n),
    "set a part": lambda x, y, n: x.__setitem__(slice(1, None), y),
    "masked_fill_": lambda x, y, n: x.masked_fill_(x < n, -n),
    "index_add_": lambda x, y, n: x.index_add_(0, torch.tensor([0], device=x.device), y[:1]),
    "scatter_": lambda x, y, n: x.scatter_(0, torch.zeros_like(y, dtype=torch.int64), y),
    "cumsum_": lambda x, y, n: x.cumsum_(0),
    "out=": lambda x, y, n: torch.mul(x, 2, out=y),
    "t_": lambda x, y, n: x.t_(),
    "unsqueeze_": lambda x, y, n: x.unsqueeze_(0),
    "normal_": lambda x, y, n: x.normal_(),
    "look": lambda x, y, n: x.sum().item(),
    "step": lambda x, y, n: torchmdla.acap.mark_step() if x.device.type == "acap" else None,
}

_NUMBER = st.integers(0, 7)
_STEPS = st.lists(
    st.tuples(st.sampled_from([*_TAKES, *_WRITES]), _NUMBER, _NUMBER, st.integers(0, 3)), min_size=3, max_size=12
)


def _done(device: Any, steps: Sequence[tuple[str, int, int, int]]) -> tuple[list[Tensor], list[str]]:
    """Return all tensors and the types of all errors. A failed step creates and writes nothing."""
    torch.manual_seed(0)
    tensors, faults = [torch.arange(1.0, 13).view(3, 4).to(device), (torch.arange(4.0) - 1.5).to(device)], []
    for name, first, second, number in steps:
        x, y = tensors[first % len(tensors)], tensors[second % len(tensors)]
        try:
            if name in _TAKES:
                tensors.append(_TAKES[name](x, number))
            else:
                _WRITES[name](x, y, number)
        except (RuntimeError, IndexError) as error:
            faults.append(f"{name}: {type(error).__name__}")
    return tensors, faults


def _geometry(tensor: Tensor) -> tuple[object, ...]:
    """Return the sizes, the offset, and the strides that determine addresses."""
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    return tensor.shape, tensor.storage_offset(), strides if tensor.numel() else []


def _first_of_each(tensors: Sequence[Tensor]) -> list[int]:
    """Return for each tensor the index of the first tensor with the same memory."""
    first: dict[int, int] = {}
    return [first.setdefault(tensor.untyped_storage().data_ptr(), index) for index, tensor in enumerate(tensors)]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated")
@settings(max_examples=100, derandomize=True)
@given(steps=_STEPS)
def test_sequences(steps: list[tuple[str, int, int, int]]) -> None:
    wanted, expected_faults = _done("cpu", steps)
    results, faults = _done(torchmdla.acap_device(), steps)
    assert faults == expected_faults
    assert [_geometry(tensor) for tensor in results] == [_geometry(tensor) for tensor in wanted]
    holding = [index for index, tensor in enumerate(wanted) if tensor.numel()]
    assert _first_of_each([results[i] for i in holding]) == _first_of_each([wanted[i] for i in holding])
    for ours, theirs in zip(results, wanted, strict=True):
        # Sums may cancel.
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4, equal_nan=True)

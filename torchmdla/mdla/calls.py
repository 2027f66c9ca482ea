"""Calls of a model's groups on the device, recorded on a copy of the model."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torchmdla import api
from torchmdla.mdla.recording import Call, Run, recording


def record_calls(model: Any, inputs: Sequence[Any], run: Run) -> tuple[Any, list[Call]]:
    """Return the results of a model whose groups ``run`` computes, and the groups' calls.

    Raises:
        ValueError: the device computes no part of the model.
    """
    with recording(run) as recorder, torch.no_grad():
        results, calls = recorder.calls_of(copy_of(model, inputs), inputs)
    check_any(calls)
    return results, calls


def copy_of(model: Any, inputs: Sequence[Any]) -> Any:
    """Return a TorchScript program of the model that is new to PyTorch's executor."""
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        buffer = io.BytesIO()
        torch.jit.save(model, buffer)
        buffer.seek(0)
        model = torch.jit.load(buffer)
    return api.as_frozen_torchscript(model, tuple(inputs))


def check_any(items: Iterable[Any]) -> None:
    """Raise an error if ``items`` is empty.

    Raises:
        ValueError: the device computes no part of the model.
    """
    if not any(True for _ in items):
        raise ValueError("the device computes nothing of this model; print(torchmdla.stats()) has the reasons")

"""What a model has the device compute: the calls of its groups, recorded on a copy of the model."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torchmdla import api
from torchmdla.mdla.recording import Call, Run, recording


def recorded(model: Any, inputs: Sequence[Any], run: Run) -> tuple[Any, list[Call]]:
    """The results of a model whose groups ``run`` computes, and the groups' calls.

    Raises:
        ValueError: the device computes nothing of the model.
    """
    with recording(run) as recorder, torch.no_grad():
        results, calls = recorder.calls_of(copy_of(model, inputs), inputs)
    check_any(calls)
    return results, calls


def copy_of(model: Any, inputs: Sequence[Any]) -> Any:
    """A TorchScript program of the model that PyTorch's executor has not seen."""
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        kept = io.BytesIO()
        torch.jit.save(model, kept)
        kept.seek(0)
        model = torch.jit.load(kept)
    return api.ready(model, tuple(inputs))


def check_any(found: Iterable[Any]) -> None:
    """
    Raises:
        ValueError: nothing was found that the device computes.
    """
    if not any(True for _ in found):
        raise ValueError("the device computes nothing of this model; print(torchmdla.stats()) says why")

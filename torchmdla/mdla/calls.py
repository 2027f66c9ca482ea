"""Options and arguments of the functions, and calls of a model's groups, recorded on a copy of the model."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from torchmdla import api, devices
from torchmdla.devices.mdla.options import Options
from torchmdla.mdla.recording import Call, Run, recording
from torchmdla.support import jit


def options_with(changes: Mapping[str, Any]) -> Options:
    """Return the options in use with ``changes``, checked, and with the path of the library.

    Raises:
        TypeError, ValueError: as :meth:`Options.of`.
    """
    in_use = asdict(Options.from_text(devices.get("mdla").target().features))
    return Options.of(
        {**in_use, **{name: value for name, value in changes.items() if value is not None}}
    ).with_library()


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
        jit.save(model, buffer)
        buffer.seek(0)
        model = jit.load(buffer)
    return api.as_frozen_torchscript(model, tuple(inputs))


def check_any(items: Iterable[Any]) -> None:
    """Raise an error if ``items`` is empty.

    Raises:
        ValueError: the device computes no part of the model.
    """
    if not any(True for _ in items):
        raise ValueError("the device computes nothing of this model; print(torchmdla.stats()) has the reasons")

"""The functions that users call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from torchmdla import _C, devices
from torchmdla.capture import torchscript
from torchmdla.compiler import service
from torchmdla.devices import OpSupport
from torchmdla.report import progress

# The profiling executor looks at the types in its first run and optimises in its second; a differentiable graph
# profiles once more inside. One further call compiles what that leaves.
_WARM_UP_CALLS = 4

_device: devices.Device | None = None


def enable(
    enabled: bool = True,
    *,
    device: str = "cpu",
    strict: bool = False,
    background: bool = False,
    max_specialisations: int = 32,
) -> None:
    """Turns torchmdla on or off, from the next call of any TorchScript program on.

    Off, groups that exist already run in PyTorch's interpreter.

    Args:
        enabled: on or off.
        device: name of a registered device. Groups formed so far stay with theirs.
        strict: raise :class:`torchmdla.CompileError` where a group cannot be compiled, instead of falling back.
        background: compile on threads of their own; a group falls back until its code is there, so that no call waits
            for the compiler.
        max_specialisations: input types (sizes, dtypes, integer values) a group is compiled for; calls with further
            ones fall back.

    Raises:
        ValueError: no such device, or ``max_specialisations`` is negative.
    """
    if max_specialisations < 0:
        raise ValueError(f"max_specialisations must not be negative, got {max_specialisations}")
    if enabled:
        _use(devices.get(device))
        _C.set_strict(strict)
        _C.set_background(background)
        _C.set_max_specialisations(max_specialisations)
    _C.set_enabled(enabled)


def disable() -> None:
    """The same as ``enable(False)``."""
    _C.set_enabled(False)


def is_enabled() -> bool:
    """Whether groups run compiled."""
    return _C.is_enabled()


class enabled:  # noqa: N801  (a context manager that reads like a function)
    """``with torchmdla.enabled(False):`` turns torchmdla on or off for a block, for all threads."""

    def __init__(self, enabled: bool = True) -> None:
        self._wanted = enabled

    def __enter__(self) -> None:
        self._before = _C.is_enabled()
        if self._wanted and _device is None:
            _use(devices.get("cpu"))
        _C.set_enabled(self._wanted)

    def __exit__(self, *exception: object) -> None:
        _C.set_enabled(self._before)


def compile(module: Any, *example_inputs: Any) -> torch.jit.ScriptModule | torch.jit.ScriptFunction[Any, Any]:
    """Makes ``module`` ready to run compiled: the first call after it compiles nothing.

    A plain module or function is traced with the example inputs; script it first where it chooses by the data, which
    a trace would fix. A module in eval mode is frozen. Then the calls that PyTorch's profiling executor needs are made,
    without gradients. On a terminal a progress bar shows when that takes longer than a second.

    Args:
        module: ``nn.Module``, function, or anything that ``torch.jit`` made.
        example_inputs: positional arguments of one call, as in ``torch.jit.trace``.

    Returns:
        A ``ScriptModule``, or a ``ScriptFunction`` for a function.

    Raises:
        TypeError: ``module`` is none of these, or there are no example inputs to trace it with.
        CompileError: in strict mode, a group cannot be compiled.
    """
    service.prestart()
    scripted: torch.jit.ScriptModule | torch.jit.ScriptFunction[Any, Any] = _frozen(_scripted(module, example_inputs))
    with torch.no_grad(), progress.compiling(_C.statistics):
        for _ in range(_WARM_UP_CALLS):
            scripted(*example_inputs)
    return scripted


def graph_for(scripted: Any, *inputs: Any) -> torch._C.Graph:
    """The optimised graph of a scripted module or function for ``inputs``, with its groups.

    Makes the warm-up calls that PyTorch's profiling executor needs first.
    """
    for _ in range(_WARM_UP_CALLS):
        scripted(*inputs)
    graph: torch._C.Graph = scripted.graph_for(*inputs)
    return graph


def supported_ops(device: str = "cpu") -> Mapping[str, OpSupport]:
    """The operators that ``device`` takes into groups, by schema name with overload.

    Raises:
        ValueError: no such device.
    """
    return dict(devices.get(device).ops)


def _scripted(module: Any, example_inputs: tuple[Any, ...]) -> Any:
    if isinstance(module, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        return module
    if not isinstance(module, torch.nn.Module) and not callable(module):
        raise TypeError(f"compile takes a module, a function or a TorchScript program, got {type(module).__name__}")
    if not example_inputs:
        raise TypeError("compile needs example inputs to trace a plain module or function")
    with torch.no_grad():
        return torch.jit.trace(module, example_inputs, check_trace=False)


def _frozen(scripted: Any) -> Any:
    is_module = isinstance(scripted, torch.jit.ScriptModule)
    if is_module and hasattr(scripted, "training") and not scripted.training:
        return torch.jit.freeze(scripted)
    return scripted


def _use(device: devices.Device) -> None:
    global _device
    if device is not _device:
        torchscript.use_device(device)
        _device = device


torchscript.install()
if os.environ.get("TORCHMDLA_ENABLE", "1") not in ("0", ""):
    enable()

"""Device ``acap``, whose tensors record their operators and compute when a value is needed. See docs/acap.md.

The C++ side (``src/acap/``) records ops and runs their graphs. This module has the functions for users, and the Python
part that PyTorch requires of a device.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, _tensor_str, nn
from torch.autograd.variable import Variable
from torch.utils import backend_registration

from torchmdla import _C, devices
from torchmdla.capture import torchscript

__all__ = ["acap_device", "is_pending", "mark_step", "set_most_pending_nodes"]

NAME = "acap"

# The torchmdla device that compiles for acap.
_RUNS_ON = "cpu"


def acap_device() -> torch.device:
    """Return the device ``acap:0``, for ``.to(device)`` and ``device=``.

    The first call registers the device type with PyTorch under the name ``"acap"``, as the process's PrivateUse1.

    Raises:
        RuntimeError: another device type of this process is PyTorch's PrivateUse1 already.
    """
    _register()
    return torch.device(NAME, 0)


def mark_step() -> None:
    """Compute all pending tensors of the device, of all threads, as one graph.

    A training loop that reads no value calls this function once per step.

    Raises:
        RuntimeError, IndexError: an op fails, as it would have failed in eager PyTorch. Tensors that do not depend on
            it are computed all the same.
    """
    _C.acap.mark_step()


def is_pending(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor``, which is on the device, is still to be computed.

    Raises:
        ValueError: ``tensor`` is on another device.
    """
    return _C.acap.is_pending(tensor)


def set_most_pending_nodes(most: int) -> None:
    """Set the number of pending ops above which everything is computed as by :func:`mark_step`.

    The initial value is 20000.

    Raises:
        ValueError: ``most`` is negative.
    """
    if most < 0:
        raise ValueError(f"most must not be negative, got {most}")
    _C.acap.set_most_pending_nodes(most)


# Registration with PyTorch


@functools.cache
def _register() -> None:
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", NAME):
        raise RuntimeError(f"PyTorch has room for one more device type in a process, and that is {taken!r} already")
    backend_registration.rename_privateuse1_backend(NAME)
    torchscript.add_device(devices.get(_RUNS_ON))
    _C.acap.initialize(_RUNS_ON)
    torch._register_device_module(NAME, _device_module())
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    _install_printing()
    _install_moves()
    Variable._execution_engine = _Engine()


class _Engine(torch._C._ImperativeEngine):
    """PyTorch's autograd engine, limited to the thread that requests a backward pass.

    The engine has a thread for a device only if the device was registered before the process's first backward pass. It
    fails without one. This device gains nothing from such a thread.
    """

    def run_backward(self, *arguments: Any, **options: Any) -> Any:
        """Run a backward pass; the arguments are those of PyTorch's engine."""
        with torch.autograd.set_multithreading_enabled(False):
            return super().run_backward(*arguments, **options)


def _device_module() -> types.ModuleType:
    """Return the module ``torch.acap`` with the functions that PyTorch requires of a device's module.

    There is only one device. It draws random numbers from the CPU's stream, which ``torch.manual_seed`` seeds itself.
    """
    module = types.ModuleType(f"torch.{NAME}", __doc__)
    generator = torch.default_generator
    vars(module).update(
        current_device=lambda: 0,
        device=contextlib.nullcontext,
        device_count=lambda: 1,
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        get_rng_state=lambda device=NAME: generator.get_state(),
        is_available=lambda: True,
        is_initialized=lambda: True,
        manual_seed=generator.manual_seed,
        manual_seed_all=lambda seed: None,
        set_device=lambda device: None,
        set_rng_state=lambda new_state, device=NAME: generator.set_state(new_state),
        synchronize=lambda device=None: mark_step(),
        _is_in_bad_fork=lambda: False,
    )
    return module


# Printing


def _install_printing() -> None:
    """Make ``repr`` of a tensor on the device use a copy on the CPU. Call it once per process.

    PyTorch formats a tensor with ops on it, which would be many small graphs.
    """
    format_elements: Callable[..., str] = _tensor_str._tensor_str

    def on_the_cpu(tensor: torch.Tensor, *arguments: Any) -> str:
        shown = tensor.cpu() if tensor.device.type == "acap" else tensor
        return format_elements(shown, *arguments)

    _tensor_str._tensor_str = on_the_cpu


# Moves of modules to and from the device


def _install_moves() -> None:
    """Make modules keep their parameters when they move to or from the device. Call it once per process.

    PyTorch keeps a parameter's identity when its data moves between its own devices. For an external device
    ``module.to(…)`` makes new parameters, which unties tied weights and leaves optimisers with the old parameters. Here
    parameters and their gradients move first and in place, so that PyTorch replaces none of them. From the device
    ``meta``, PyTorch makes new parameters on all devices. If modules swap their parameters
    (``torch.__future__.set_swap_module_params_on_conversion``), PyTorch keeps them itself.
    """
    apply: Callable[..., Any] = nn.Module._apply

    def move_and_apply(module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        if not torch.__future__.get_swap_module_params_on_conversion():
            _move_parameters(module.parameters(recurse), function)
        return apply(module, function, recurse)

    nn.Module._apply = move_and_apply  # type: ignore[method-assign]


def _move_parameters(parameters: Any, function: Callable[[Tensor], Tensor]) -> None:
    """Move the parameters, with their gradients, that ``function`` moves to or from the device."""
    moves: dict[torch.device, bool] = {}
    with torch.no_grad():
        for parameter in list(parameters):
            here = parameter.device
            if here not in moves:
                there = function(torch.empty(0, device=here)).device
                types = {here.type, there.type}
                moves[here] = here != there and "acap" in types and "meta" not in types
            if moves[here]:
                gradient = parameter.grad
                parameter.grad = None
                _C.acap.set_data(parameter, function(parameter))
                if gradient is not None:
                    _C.acap.set_data(gradient, function(gradient))
                    parameter.grad = gradient

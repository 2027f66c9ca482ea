"""Registration of the device type ``acap`` with PyTorch."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, _tensor_str, nn
from torch.autograd.variable import Variable
from torch.utils import backend_registration

from torchmdla import _C, devices

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


@functools.cache
def _register() -> None:
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", NAME):
        raise RuntimeError(f"PyTorch has room for one more device type in a process, and that is {taken!r} already")
    backend_registration.rename_privateuse1_backend(NAME)
    from torchmdla.capture import torchscript

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
    """Return the module ``torch.acap`` with the functions that PyTorch requires of a device's module."""
    module: Any = types.ModuleType(f"torch.{NAME}", __doc__)
    functions = (
        current_device,
        device,
        device_count,
        get_amp_supported_dtype,
        get_rng_state,
        is_available,
        is_initialized,
        manual_seed,
        manual_seed_all,
        set_device,
        set_rng_state,
        synchronize,
    )
    for function in functions:
        setattr(module, function.__name__, function)
    module._is_in_bad_fork = lambda: False
    return module  # type: ignore[no-any-return]


def is_available() -> bool:
    """Return True: the device is always available."""
    return True


def is_initialized() -> bool:
    """Return True: the device is always initialised."""
    return True


class device:  # noqa: N801  (as torch.cuda.device)
    """Context manager ``torch.acap.device(…)``, which does nothing because there is only one device."""

    def __init__(self, device: object) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


def device_count() -> int:
    """Return 1: there is only one device."""
    return 1


def current_device() -> int:
    """Return 0, the index of the only device."""
    return 0


def set_device(device: object) -> None:
    """Do nothing: there is only one device."""


def synchronize(device: object = None) -> None:
    """Compute all pending tensors."""
    _C.acap.mark_step()


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that ``torch.autocast("acap")`` may compute in."""
    return [torch.bfloat16, torch.float16]


def manual_seed(seed: int) -> None:
    """Seed the device's generator, which draws from the CPU's stream."""
    torch.default_generator.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Do nothing: ``torch.manual_seed`` has seeded the CPU's stream already, and the device draws from it."""


def get_rng_state(device: object = NAME) -> torch.Tensor:
    """Return the state of the CPU's generator."""
    return torch.default_generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: object = NAME) -> None:
    """Set the state of the CPU's generator."""
    torch.default_generator.set_state(new_state)


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
    parameters move first and in place, so that PyTorch replaces none of them.
    """
    apply: Callable[..., Any] = nn.Module._apply

    def applied(module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        _move_parameters(module.parameters(recurse), function)
        return apply(module, function, recurse)

    nn.Module._apply = applied  # type: ignore[method-assign]


def _move_parameters(parameters: Any, function: Callable[[Tensor], Tensor]) -> None:
    """Move the parameters, with their gradients, that ``function`` moves to or from the device."""
    moves: dict[torch.device, bool] = {}
    with torch.no_grad():
        for parameter in list(parameters):
            here = parameter.device
            if here not in moves:
                there = function(torch.empty(0, device=here)).device
                moves[here] = here != there and "acap" in (here.type, there.type)
            if moves[here]:
                gradient = parameter.grad
                parameter.grad = None
                _C.acap.set_data(parameter, function(parameter))
                parameter.grad = gradient if gradient is None else function(gradient)

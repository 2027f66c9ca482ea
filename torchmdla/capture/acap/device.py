"""Registration of the device type ``acap`` with PyTorch."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from torch.autograd.variable import Variable
from torch.utils import backend_registration

from torchmdla import _C, devices
from torchmdla.capture.acap import modules, printing

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
    printing.install()
    modules.install()
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

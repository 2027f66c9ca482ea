"""PyTorch's Lazy Tensor Core with torchmdla's compiler as its backend.

The C++ side (``src/lazy/``) lowers pending tensors to graphs and runs them. This module has the functions for users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.library import Library

from torchmdla import _C, devices
from torchmdla.capture import torchscript


class Backend(Protocol):
    """Interface of the backends that :func:`set_backend` accepts."""

    def compile(self, graph: torch._C.Graph) -> Callable[..., Sequence[Tensor]] | None:
        """Compile one graph.

        Args:
            graph: functional ATen calls. Each tensor's type has its dtype and sizes.

        Returns:
            A callable with one argument for each input of the graph, a CPU tensor or number. It returns a CPU tensor
            for each output. None makes torchmdla run the graph.
        """


def initialize(device: str = "cpu", *, verbose: bool = False) -> None:
    """Make torchmdla compile and run the tensors of PyTorch's device ``"lazy"``.

    Call it before the first such tensor is made, and again to compile for another device.

    Args:
        device: name of a registered device.
        verbose: whether to print the number of compiled computations, and the number of arguments and results of each
            run.

    Raises:
        ValueError: the device does not exist.
    """
    torchscript.add_device(devices.get(device))
    _C.lazy_set_verbose(verbose)
    _C.lazy_initialise(device)
    _hook_operator_registration()


@lru_cache(maxsize=1)
def _hook_operator_registration() -> None:
    """Register operators that Python defines from now on with the device, before their first call.

    PyTorch does not have a hook for that: its dispatcher's listeners may not register anything.
    """
    original: Callable[..., None] = Library.impl

    @wraps(original)
    def impl(library: Library, *arguments: Any, **keywords: Any) -> None:
        original(library, *arguments, **keywords)
        _C.lazy_register_foreign_operators()

    Library.impl = impl  # type: ignore[method-assign, assignment]


def set_verbose(on: bool = True) -> None:
    """Print the computations that are compiled and run, or stop printing them."""
    _C.lazy_set_verbose(on)


def set_backend(backend: Backend | Any | None) -> None:
    """Set another compiler as the backend of the lazy device.

    If the backend does not support a graph, or fails to compile it, the graph runs as without the backend. A failure
    becomes a warning.

    Args:
        backend: an object with a method ``compile`` as in :class:`Backend`; a capsule of a C++ backend
            (``torchmdla/lazy_backend.h`` in :func:`include_path`); None for torchmdla's own compiler.
    """
    _C.lazy_set_backend(backend)


def include_path() -> str:
    """Return the include directory for compiling C++ backends."""
    from pathlib import Path

    import torchmdla

    return str(Path(torchmdla.__file__).parent / "include")

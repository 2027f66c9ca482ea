"""PyTorch's Lazy Tensor Core with torchmdla's compiler behind it.

The C++ side (``src/lazy/``) lowers pending tensors to graphs and runs them; here is what users call.
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
    """What :func:`set_backend` takes."""

    def compile(self, graph: torch._C.Graph) -> Callable[..., Sequence[Tensor]] | None:
        """Compiles one graph.

        Args:
            graph: functional ATen calls, every tensor typed with its dtype and sizes.

        Returns:
            a callable of a value for each input of the graph, CPU tensors and numbers, which returns a CPU tensor for
            each output; None to let torchmdla run the graph.
        """


def initialize(device: str = "cpu", *, verbose: bool = False) -> None:
    """Makes torchmdla what compiles and runs the tensors of PyTorch's device ``"lazy"``.

    Call it before the first such tensor is made, and again to compile for another device.

    Args:
        device: the name of a registered device.
        verbose: print how many computations come to be compiled, and how many arguments and results each run has.

    Raises:
        ValueError: no such device.
    """
    torchscript.add_device(devices.get(device))
    _C.lazy_set_verbose(verbose)
    _C.lazy_initialise(device)
    _tell_of_operators()


@lru_cache(maxsize=1)
def _tell_of_operators() -> None:
    """Has the device told of operators that Python defines from now on, before anybody calls them. PyTorch has no hook
    for that: its dispatcher's listeners may not register anything."""
    original: Callable[..., None] = Library.impl

    @wraps(original)
    def impl(library: Library, *arguments: Any, **keywords: Any) -> None:
        original(library, *arguments, **keywords)
        _C.lazy_register_foreign_operators()

    Library.impl = impl  # type: ignore[method-assign, assignment]


def set_verbose(on: bool = True) -> None:
    """Prints, or no longer, what comes to be compiled and run."""
    _C.lazy_set_verbose(on)


def set_backend(backend: Backend | Any | None) -> None:
    """Puts another compiler behind the lazy device.

    A graph that it does not take, or fails to compile, runs as without it; the failure is a warning.

    Args:
        backend: an object with ``compile`` as :class:`Backend` has it; a capsule of a C++ one
            (``torchmdla/lazy_backend.h`` in :func:`include_path`); None for torchmdla's own compiler.
    """
    _C.lazy_set_backend(backend)


def include_path() -> str:
    """The directory that C++ backends are compiled with as an include path."""
    from pathlib import Path

    import torchmdla

    return str(Path(torchmdla.__file__).parent / "include")

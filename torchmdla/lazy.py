"""PyTorch's device ``lazy``, compiled by torchmdla, and the graphs of its tensors. See docs/lazy.md.

The C++ side (``src/lazy/``) lowers pending tensors to graphs and runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.library import Library

from torchmdla import _C, devices
from torchmdla.capture import torchscript

__all__ = [
    "Backend",
    "Computation",
    "get_latest_computation",
    "include_path",
    "initialize",
    "pending_computation",
    "set_backend",
    "set_verbose",
]


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


# The name in torch-mlir's documentation: ``lazy_backend._initialize()``.
_initialize = initialize


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
    return str(Path(__file__).parent / "include")


class Computation:
    """Graph that lazy tensors were lowered to."""

    def __init__(self, computation: _C.LazyComputation) -> None:
        self._computation = computation

    @property
    def graph(self) -> Any:
        """Return the ``torch._C.Graph``: functional ATen calls, where each tensor's type has its dtype and sizes."""
        return self._computation.graph

    @property
    def aliases(self) -> list[tuple[int, int]]:
        """Return pairs of an output and the parameter whose new value it is. Both are the same tensor."""
        return self._computation.aliases

    @property
    def in_mark_step(self) -> bool:
        """Return whether ``torch._lazy.mark_step()`` requested the computation, and not a read of a value."""
        return self._computation.in_mark_step

    def mlir(self) -> str:
        """Return the function ``@graph`` in the Torch dialect.

        Raises:
            CompileError: the dialect cannot express a part of the graph.
        """
        from torchmdla.mlir.kinds import module_of_graph

        module = module_of_graph(self.graph)  # owns the function
        return str(module.body.operations[0])

    def debug_string(self) -> str:
        """Return all information for debugging: the graph, its MLIR, the aliases, and whether it was in a mark step."""
        aliases = "".join(f"Output: {output} -> Input param: {parameter}\n" for output, parameter in self.aliases)
        # False: without source locations, which a lazy graph does not have.
        return (
            f"JIT Graph:\n{self.graph.str(False)}\n"
            f"MLIR:\n{self.mlir()}\n\n"
            f"Input/Output Alias Mapping:\n{aliases}\n"
            f"In Mark Step: {str(self.in_mark_step).lower()}\n"
        )


def get_latest_computation() -> Computation | None:
    """Return the latest computation that was compiled, or None if there was none.

    A computation that was compiled before and runs again is not a new one.
    """
    latest = _C.lazy_latest_computation()
    return None if latest is None else Computation(latest)


def pending_computation(*tensors: Tensor) -> Computation:
    """Return the computation of ``tensors`` without running it.

    Raises:
        TypeError: a tensor is not on the lazy device.
        ValueError: ``tensors`` is empty.
    """
    return Computation(_C.lazy_pending_computation(tensors))


_C.lazy_set_text_writer(lambda computation: Computation(computation).mlir())

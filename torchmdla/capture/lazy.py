"""PyTorch's Lazy Tensor Core with torchmdla's compiler behind it.

The C++ side (``src/lazy/``) lowers pending tensors to graphs and runs them; here is what users call, and read.
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
    _C.lazy_set_text_writer(_text)
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


class Computation:
    """A graph that lazy tensors were lowered to."""

    def __init__(self, computation: _C.LazyComputation) -> None:
        self._computation = computation

    @property
    def graph(self) -> Any:
        """The ``torch._C.Graph``: functional ATen calls, every tensor typed with its dtype and sizes."""
        return self._computation.graph

    @property
    def aliases(self) -> list[tuple[int, int]]:
        """Outputs and the parameters that they are the new values of: both are of one tensor."""
        return self._computation.aliases

    @property
    def in_mark_step(self) -> bool:
        """Whether ``torch._lazy.mark_step()`` asked for it, and not somebody who looked at a value."""
        return self._computation.in_mark_step

    def mlir(self) -> str:
        """The function ``@graph`` in the Torch dialect.

        Raises:
            CompileError: something in the graph has no form in the dialect.
        """
        from torchmdla.mlir.lazy import module_of_graph

        module = module_of_graph(self.graph)  # owns the function
        return str(module.body.operations[0])

    def debug_string(self) -> str:
        """Everything for people: the graph, the same in MLIR, aliases, and whether it was in a mark step."""
        aliases = "".join(f"Output: {output} -> Input param: {parameter}\n" for output, parameter in self.aliases)
        return (
            f"JIT Graph:\n{_printed(self.graph)}\n"
            f"MLIR:\n{self.mlir()}\n\n"
            f"Input/Output Alias Mapping:\n{aliases}\n"
            f"In Mark Step: {str(self.in_mark_step).lower()}\n"
        )


def get_latest_computation() -> Computation | None:
    """The last computation that came to be compiled; None before the first. One that was compiled before and runs
    again is not new."""
    latest = _C.lazy_latest_computation()
    return None if latest is None else Computation(latest)


def pending_computation(*tensors: Tensor) -> Computation:
    """What tensors would be computed by, without computing it.

    Raises:
        TypeError: one of them is not on the lazy device.
        ValueError: there are none.
    """
    return Computation(_C.lazy_pending_computation(tensors))


def _printed(graph: Any) -> str:
    return str(graph.str(False))  # without places in a source, of which a lazy graph has none


def _text(computation: _C.LazyComputation) -> str:
    return Computation(computation).mlir()

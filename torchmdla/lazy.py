"""PyTorch's device ``lazy``, compiled by torchmdla, and the graphs that its tensors become. See docs/lazy.md."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchmdla import _C
from torchmdla.capture.lazy import Backend, include_path, initialize, set_backend, set_verbose

# As torch-mlir's documents call it: ``lazy_backend._initialize()``.
_initialize = initialize

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


_C.lazy_set_text_writer(lambda computation: Computation(computation).mlir())

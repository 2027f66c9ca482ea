"""PyTorch's device ``lazy``, compiled by torchmdla, and the graphs of its tensors. See docs/lazy.md."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchmdla import _C
from torchmdla.capture.lazy import Backend, include_path, initialize, set_backend, set_verbose

# The name in torch-mlir's documentation: ``lazy_backend._initialize()``.
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
        graph = self.graph.str(False)  # False: without source locations, which a lazy graph does not have
        aliases = "".join(f"Output: {output} -> Input param: {parameter}\n" for output, parameter in self.aliases)
        return (
            f"JIT Graph:\n{graph}\n"
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

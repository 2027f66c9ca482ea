"""One captured block of code: the context that records it, and the result."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torch import Tensor, fx
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import TreeSpec, tree_flatten

from torchmdla.capture.dispatch import External, NumberRead, Recorder, described
from torchmdla.capture.functional import final_values, functional
from torchmdla.capture.tensor_names import names_in_frame
from torchmdla.errors import CaptureError, CaptureWarning


@dataclass(frozen=True)
class Origin:
    """Origin of a result: the graph or, with ``external``, the memory of a tensor from outside.

    Attributes:
        external: number of the tensor among arguments and captured tensors; None for a result of the graph.
        is_whole: whether the result is that tensor itself, not a view of it.
        shape, stride, offset: layout of a view. ``offset`` is relative to the tensor's own offset.
    """

    external: int | None = None
    is_whole: bool = False
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0

    @classmethod
    def of(cls, result: Tensor, entering: Sequence[External]) -> Origin:
        """Return the origin of a result of the captured run."""
        storage = result.untyped_storage()._cdata
        for index, external in enumerate(entering):
            if external.storage == storage and external.layout.dtype == result.dtype:
                shape, stride = tuple(result.shape), tuple(result.stride())
                offset = int(result.storage_offset()) - external.offset
                is_whole = (shape, stride, offset) == (tuple(external.layout.shape), external.layout.stride(), 0)
                return cls(index, is_whole, shape, stride, offset)
        return cls()


@dataclass(frozen=True)
class Block:
    """Captured block.

    Attributes:
        name: name of the function that the block becomes.
        module: the functional graph. It writes to its placeholders only at its end, by ``copy_``.
        externals: tensor that each placeholder represents.
        names: name of each external; empty if none was found.
        origins: origin of each result; None for a None result.
        structure: structure of the results.
    """

    name: str
    module: fx.GraphModule
    externals: Sequence[External]
    names: Sequence[str]
    origins: Sequence[Origin | None]
    structure: TreeSpec


class Capture:
    """Context manager of ``with builder.capture_function(…) as f``.

    Args:
        name: name of the function that the block becomes.
        arguments: arguments of that function.
        add: function that receives the block if it ends without an exception.
    """

    def __init__(self, name: str, arguments: Sequence[Tensor], add: Callable[[Block], None]) -> None:
        _check_alone()
        self._name = name
        self._add = add
        self._recorder = Recorder(arguments)
        self._results: tuple[list[Tensor | None], TreeSpec] | None = None
        self._state = "new"

    def returns(self, results: Any) -> None:
        """Set the function's results: a tensor, or lists, tuples and dictionaries of tensors and None.

        Raises:
            CaptureError: the results were set before, or the call is outside of the block.
            TypeError: a result is neither a tensor nor None.
        """
        if self._state != "open":
            raise CaptureError("returns must be called inside of the block")
        if self._results is not None:
            raise CaptureError(f"returns was called twice in the capture of {self._name!r}")
        flat, structure = tree_flatten(results)
        for index, result in enumerate(flat):
            if result is not None and not isinstance(result, Tensor):
                raise TypeError(f"result {index} of {self._name!r} must be a tensor, got {type(result).__name__}")
        self._results = flat, structure

    def __enter__(self) -> Capture:
        if self._state != "new":
            raise CaptureError("a capture can be entered once; call capture_function again")
        _check_alone()
        self._state = "open"
        self._recorder.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._recorder.__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        self._state = "closed"
        try:
            if kind is None:
                block = self._finish(names_in_frame(sys._getframe(1)))
                self._add(block)
                _warn(block, self._recorder.fixed_numbers())
        finally:
            self._results = None
            self._recorder.release()

    def _finish(self, names: Mapping[int, str]) -> Block:
        if self._results is None:
            raise CaptureError(f"returns was not called in the capture of {self._name!r}")
        flat, structure = self._results
        self._recorder.finish(flat)
        externals = self._recorder.externals
        module = functional(self._recorder.graph, [external.layout for external in externals])
        _check_writes(module.graph, externals)
        entering = [external for external in externals if not external.is_constant]
        return Block(
            self._name,
            module,
            externals,
            [names.get(external.storage, "") for external in externals],
            [None if result is None else Origin.of(result, entering) for result in flat],
            structure,
        )


def _check_alone() -> None:
    if any(isinstance(mode, Recorder) for mode in _get_current_dispatch_mode_stack()):
        raise CaptureError("a capture inside of another one is not supported")


def _check_writes(graph: fx.Graph, externals: Sequence[External]) -> None:
    """Check that the recorded writes are the writes that are left in the graph."""
    finals = final_values(graph)
    for node, external in zip(graph.find_nodes(op="placeholder"), externals, strict=True):
        if external.is_written != (node in finals) and external.layout.numel():
            raise CaptureError(f"a write to {described(external.layout)} cannot be captured")


def _warn(block: Block, reads: Sequence[NumberRead]) -> None:
    """Warn once about the block's dependences on state other than its arguments."""

    def listed(holds: Callable[[External], bool]) -> str:
        labels = [
            f"{name or 'a tensor'} ({described(external.layout)})"
            for external, name in zip(block.externals, block.names, strict=True)
            if holds(external)
        ]
        return ", ".join(labels)

    told = {
        "writes to tensors that are no arguments, which become arguments and results": listed(
            lambda external: external.is_written and not external.is_argument
        ),
        "reads tensors that are no arguments, which become constants as they are now": listed(
            lambda external: external.is_constant and not external.is_literal
        ),
        "keeps numbers that were read from tensors as they were in the capture": ", ".join(
            dict.fromkeys(f"{read.op} at {read.source}" for read in reads)
        ),
    }
    text = "; it ".join(f"{what}: {which}" for what, which in told.items() if which)
    if text:
        warnings.warn(f"captured function {block.name!r}: it {text}", CaptureWarning, stacklevel=3)

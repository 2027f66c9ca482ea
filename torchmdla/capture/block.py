"""Captured blocks of code: the context that records a block, the block, and the function that runs it."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from torchmdla.capture.dispatch import External, NumberRead, Recorder, describe_tensor
from torchmdla.capture.fx.functional import final_values, functionalise
from torchmdla.capture.fx.graph import form_groups
from torchmdla.capture.options import Options
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
                block = self._finish(_names_in_frame(sys._getframe(1)))
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
        module = functionalise(self._recorder.graph, [external.layout for external in externals])
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
            raise CaptureError(f"a write to {describe_tensor(external.layout)} cannot be captured")


def _warn(block: Block, reads: Sequence[NumberRead]) -> None:
    """Warn once about the block's dependences on state other than its arguments."""

    def list_tensors(holds: Callable[[External], bool]) -> str:
        labels = [
            f"{name or 'a tensor'} ({describe_tensor(external.layout)})"
            for external, name in zip(block.externals, block.names, strict=True)
            if holds(external)
        ]
        return ", ".join(labels)

    told = {
        "writes to tensors that are not arguments; they become arguments and results": list_tensors(
            lambda external: external.is_written and not external.is_argument
        ),
        "reads tensors that are not arguments; they become constants with their present values": list_tensors(
            lambda external: external.is_constant and not external.is_literal
        ),
        "keeps numbers that were read from tensors as they were in the capture": ", ".join(
            dict.fromkeys(f"{read.op} at {read.source}" for read in reads)
        ),
    }
    text = "; it ".join(f"{what}: {which}" for what, which in told.items() if which)
    if text:
        warnings.warn(f"captured function {block.name!r}: it {text}", CaptureWarning, stacklevel=3)


# Names of tensors in the user's program


def _names_in_frame(frame: FrameType) -> dict[int, str]:
    """Return the names of tensors that the variables of a frame lead to, by storage.

    The search covers tensors, parameters, buffers and gradients of modules, states of optimisers, and lists, tuples and
    dictionaries of these. The first name found counts. The frame's local variables come before its globals.
    """
    names: dict[int, str] = {}
    for variables in (frame.f_locals, frame.f_globals):
        for name, value in list(variables.items()):
            for full_name, tensor in _named_tensors(name, value):
                if tensor.layout == torch.strided:
                    names.setdefault(tensor.untyped_storage()._cdata, full_name)
    return names


def _named_tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
        if value.is_leaf and value.grad is not None:
            yield f"{name}.grad", value.grad
    elif isinstance(value, nn.Module):
        for key, tensor in [*value.named_parameters(), *value.named_buffers()]:
            yield from _named_tensors(f"{name}.{key}", tensor)
    elif isinstance(value, torch.optim.Optimizer):
        yield from _named_optimiser_state(name, value)
    elif type(value) in (list, tuple, dict):
        for key, item in list(value.items() if type(value) is dict else enumerate(value)):
            if isinstance(item, Tensor):
                yield from _named_tensors(f"{name}[{key!r}]", item)


def _named_optimiser_state(name: str, optimiser: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    for index, parameter in enumerate(parameters):
        state: Mapping[str, Any] = optimiser.state.get(parameter, {})
        for key, item in state.items():
            if isinstance(item, Tensor):
                yield f"{name}.state[{index}][{key!r}]", item


# The block as a function


class CapturedFunction:
    """Callable that runs a captured block with other arguments.

    Results, writes and memory that they share are the same as for the block. Results do not require gradients.

    Args:
        block: the captured block.
        options: the device and options of the groups.

    Attributes:
        module: the graph with its groups.
    """

    def __init__(self, block: Block, options: Options) -> None:
        self.__name__ = block.name
        self._entering = [external for external in block.externals if not external.is_constant]
        self._arguments = [external for external in self._entering if external.is_argument]
        self._captured = [external.tensor for external in self._entering if not external.is_argument]
        self._origins = block.origins
        self._structure = block.structure
        self._viewed = {origin.external for origin in block.origins if origin is not None and not origin.is_whole}
        self.module = form_groups(_executable(block), (), options)

    def __call__(self, *arguments: Tensor) -> Any:
        """Run the function.

        Raises:
            TypeError: the number of arguments differs, or an argument is not a tensor.
            ValueError: an argument's dtype or sizes differ from the captured ones; its strides differ and a result is a
                view of it; two arguments share memory that is written to.
        """
        self._check(arguments)
        tensors = [*arguments, *self._captured]
        with torch.no_grad():
            outputs = iter(self.module(*tensors))
        flat = [None if origin is None else self._result(origin, tensors, outputs) for origin in self._origins]
        return tree_unflatten(flat, self._structure)

    def _result(self, origin: Origin, tensors: Sequence[Tensor], outputs: Any) -> Tensor:
        if origin.external is None:
            result: Tensor = next(outputs)
            return result
        tensor = tensors[origin.external]
        if origin.is_whole:
            return tensor
        return tensor.detach().as_strided(origin.shape, origin.stride, tensor.storage_offset() + origin.offset)

    def _check(self, arguments: Sequence[Tensor]) -> None:
        if len(arguments) != len(self._arguments):
            raise TypeError(f"{self.__name__} takes {len(self._arguments)} arguments, got {len(arguments)}")
        for index, (tensor, expected) in enumerate(zip(arguments, self._arguments, strict=True)):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"argument {index} of {self.__name__} must be a tensor, got {type(tensor).__name__}")
            layout = expected.layout
            if (tensor.dtype, tensor.shape, tensor.device.type) != (layout.dtype, layout.shape, "cpu"):
                actual = f"{describe_tensor(tensor)} on {tensor.device}"
                raise ValueError(
                    f"argument {index} of {self.__name__} must be {describe_tensor(layout)} on cpu, got {actual}"
                )
            if index in self._viewed and tensor.stride() != layout.stride():
                raise ValueError(
                    f"argument {index} of {self.__name__} must have strides {layout.stride()}, got {tensor.stride()}: "
                    "a result is a view of it"
                )
        self._check_shared([*arguments, *self._captured])

    def _check_shared(self, tensors: Sequence[Tensor]) -> None:
        storages = [tensor.untyped_storage()._cdata for tensor in tensors]
        for index, external in enumerate(self._entering):
            if external.is_written and external.is_argument and storages.count(storages[index]) > 1:
                raise ValueError(
                    f"argument {index} of {self.__name__}, which is written to, shares memory with another"
                )


def _executable(block: Block) -> fx.GraphModule:
    """Return a copy of the graph that has its constants and returns only tensors that it computes."""
    module = fx.GraphModule(torch.nn.Module(), copy.deepcopy(block.module.graph))
    graph = module.graph
    for index, (node, external) in enumerate(zip(graph.find_nodes(op="placeholder"), block.externals, strict=True)):
        if external.is_constant:
            setattr(module, f"constant_{index}", external.tensor)
            with graph.inserting_before(node):
                constant = graph.create_node("get_attr", f"constant_{index}")
            constant.meta = dict(node.meta)
            node.replace_all_uses_with(constant)
            graph.erase_node(node)
    output = graph.output_node()
    results: Any = output.args[0]
    made_here = [origin is not None and origin.external is None for origin in block.origins]
    output.args = (tuple(result for result, here in zip(results, made_here, strict=True) if here),)
    graph.eliminate_dead_code()
    module.recompile()
    return module

"""Training steps of a group: one program forward and one backward, made by AOT Autograd and divided into groups.

The group's autograd node (``src/group/group_autograd.h``) runs both. It keeps the values that the backward needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.convert_frame import compile_lock
from torch._functorch.aot_autograd import _aot_export_function
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException
from torch.utils import _pytree as pytree

from torchmdla.capture.fx.decompositions import decompositions, keep_operators_whole
from torchmdla.capture.fx.graph import Boxed, compile_boxed, divide_step, draws_numbers
from torchmdla.capture.options import Options
from torchmdla.errors import CompileError, internal_error
from torchmdla.importer.interpreter import Run
from torchmdla.importer.script_graph import convert_graph
from torchmdla.script.ir import Graph, Node
from torchmdla.support.garbage import pause_collection

# Types of AOT Autograd's outputs that do not share memory with other values, as far as autograd is concerned.
_UNSHARED = ("non_alias", "unsafe_view_alias")


@dataclass(frozen=True)
class TrainingProgram:
    """Forward and backward programs of a group, for one signature.

    Tensors of lists among the group's inputs count as inputs of their own here.

    Attributes:
        forward: function from the input tensors to the results: the new values of ``written``, the outputs that are
            tensors, and values that only the backward needs.
        backward: function from the saved values, then the gradients of the outputs, to a gradient or None for each
            input tensor.
        outputs: for each output None, or its value if it is not a tensor.
        written: indices of the input tensors that the group writes to.
        saved: origin of each saved value: ``"input"`` or ``"result"``, and its index.
        gradients: sizes and strides that the backward requires of each gradient.
        is_random: whether the forward draws random numbers.
    """

    forward: Boxed
    backward: Boxed
    outputs: list[Any]
    written: list[int]
    saved: list[tuple[str, int]]
    gradients: list[tuple[list[int], list[int]]]
    is_random: bool


def compile_training(
    subgraph: Any,
    inputs: Sequence[Any],
    parameters: Sequence[int],
    device: str,
    used: Sequence[bool],
    strides: Sequence[Sequence[int] | None],
) -> TrainingProgram:
    """Compile the training steps of a group.

    Args:
        subgraph: TorchScript graph, or an object with a method ``run``.
        inputs: inputs of a call.
        parameters: indices of inputs that are weights.
        device: name of the device.
        used: for each output, whether the backward receives a gradient for it.
        strides: strides of each output that is a tensor.

    Raises:
        CompileError: the group cannot be traced.
    """
    try:
        # `Run` reports faults of operators as CompileError.
        with compile_lock, pause_collection(), torch.enable_grad(), keep_operators_whole():
            return _compile(_Function(subgraph, inputs, used, strides), parameters, Options(device=device))
    except CompileError:
        raise
    except (RuntimeError, UnsupportedFakeTensorException) as error:
        reason, _, _ = str(error).partition("\n")
        raise CompileError(f"its training step cannot be traced: {reason}") from error
    except Exception as error:
        raise internal_error(error) from error


class _Function:
    """Function of a group's input tensors, and of its constants, that AOT Autograd can trace.

    Attributes:
        leaves: tensors of a call: the inputs, then the constants.
        places: index of the group's input that contains each input tensor.
        used: for each output, whether the backward receives a gradient for it.
        outputs: as in :class:`TrainingProgram`, after a call.
    """

    def __init__(
        self, subgraph: Any, inputs: Sequence[Any], used: Sequence[bool], strides: Sequence[Sequence[int] | None]
    ) -> None:
        self._subgraph = subgraph
        self.used = used
        self._strides = strides
        leaves, self._structure = pytree.tree_flatten(list(inputs))
        self._values = leaves
        self._places = [index for index, value in enumerate(leaves) if isinstance(value, Tensor)]
        owners = [index for index, value in enumerate(inputs) for _ in pytree.tree_leaves(value)]
        self.places = [owners[index] for index in self._places]
        self._graph = convert_graph(subgraph) if isinstance(subgraph, torch._C.Graph) else None
        self._constants = _constants(self._graph) if self._graph else {}
        self.leaves = [*(leaves[index] for index in self._places), *self._constants.values()]
        self.outputs: list[Any] = []

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        values = list(self._values)
        for index, tensor in zip(self._places, tensors, strict=False):
            values[index] = tensor
        constants = dict(zip(self._constants, tensors[len(self._places) :], strict=True))
        results = self._run(pytree.tree_unflatten(values, self._structure), constants)
        self.outputs = [None if isinstance(result, Tensor) else result for result in results]
        return [
            _restride(result if is_used else result.detach(), strides)
            for result, is_used, strides in zip(results, self.used, self._strides, strict=True)
            if isinstance(result, Tensor)
        ]

    def _run(self, inputs: Sequence[Any], constants: dict[Node, Tensor]) -> Sequence[Any]:
        if self._graph is None:
            results: Sequence[Any] = self._subgraph.run(*inputs)
            return results
        run = _Run(constants)
        run.run(self._graph, inputs)
        return run.values(self._graph.outputs)


class _Run(Run):
    """Run of a TorchScript graph in which tensors replace the constants of some nodes."""

    def __init__(self, constants: dict[Node, Tensor]) -> None:
        super().__init__()
        self._constants = constants

    def constant(self, node: Node) -> Any:
        return self._constants[node] if node in self._constants else super().constant(node)


def _constants(graph: Graph) -> dict[Node, Tensor]:
    """Return the constant tensors of a TorchScript graph."""
    constants = ((node, node.attributes.get("value")) for node in graph.nodes)
    return {node: value for node, value in constants if isinstance(value, Tensor)}


def _restride(tensor: Tensor, strides: Sequence[int] | None) -> Tensor:
    """Return ``tensor`` with the order of ``strides``, which are those of eager's result."""
    matters = [size > 1 for size in tensor.shape]
    if strides is None or not tensor.numel() or _equal_where(matters, tensor.stride(), strides):
        return tensor
    order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    result = tensor.permute(order).contiguous().permute([order.index(dim) for dim in range(tensor.dim())])
    if not _equal_where(matters, result.stride(), strides):
        raise CompileError("its training step returns a tensor that is not dense")
    return result


def _equal_where(matters: Sequence[bool], left: Sequence[int], right: Sequence[int]) -> bool:
    return list(compress(left, matters)) == list(compress(right, matters))


def _compile(function: _Function, parameters: Sequence[int], options: Options) -> TrainingProgram:
    leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in function.leaves]
    joint, metadata, _, _ = _aot_export_function(
        function, tuple(leaves), decompositions=decompositions(), dynamic_shapes=False, trace_joint=True
    )
    assert isinstance(joint, fx.GraphModule)
    written = [index for index, info in enumerate(metadata.input_info) if info.mutates_data]
    _check(metadata, written, len(function.places))
    num_results = len(written) + len(metadata.output_info)
    forward, backward = divide_step(joint, None, num_fwd_outputs=num_results)
    saved = _separate_saved(forward, num_results, len(function.places))
    if any(origin == "input" and index in written for _, (origin, index) in saved):
        raise CompileError("its training step needs the old value of an input that it writes to")
    _order_inputs(backward, saved)
    placeholders = forward.graph.find_nodes(op="placeholder")
    weights = [
        placeholders[index]
        for index, place in enumerate(function.places)
        if place in parameters and index not in written and not leaves[index].requires_grad
    ]
    tangents = [node.meta["val"] for node in backward.graph.find_nodes(op="placeholder")][len(saved) :]
    if len(tangents) != sum(function.used):
        raise CompileError("an output of its training step has a gradient in eager PyTorch only")
    is_random = any(map(draws_numbers, forward.graph.nodes))
    constants = function.leaves[len(function.places) :]
    run_forward = compile_boxed(forward, weights, options, begins=True)
    run_backward = compile_boxed(backward, (), options, gives_up_inputs=True, begins=True)
    return TrainingProgram(
        forward=(lambda tensors: run_forward([*tensors, *constants])) if constants else run_forward,
        backward=run_backward,
        outputs=function.outputs,
        written=written,
        saved=[origin for _, origin in saved],
        gradients=[(list(tangent.shape), list(tangent.stride())) for tangent in tangents],
        is_random=is_random,
    )


def _check(metadata: Any, written: Sequence[int], num_inputs: int) -> None:
    """Raise CompileError if a caller would have to do more than write the new values of ``written``."""
    infos = metadata.input_info
    if any(index >= num_inputs for index in written):
        raise CompileError("its training step writes to a constant")
    if any(info.mutates_metadata for info in infos) or any(infos[index].requires_grad for index in written):
        raise CompileError("its training step writes to an input that requires grad, or resizes an input")
    if any(info.output_type.name not in _UNSHARED for info in metadata.output_info):
        raise CompileError("its training step returns tensors that share memory")


def _separate_saved(
    forward: fx.GraphModule, num_results: int, num_inputs: int
) -> list[tuple[fx.Node, tuple[str, int]]]:
    """Remove saved inputs and repeated values from the outputs of ``forward``.

    The first ``num_inputs`` placeholders are inputs, and the others constants.

    Returns:
        Each saved value with its origin, as in :class:`TrainingProgram`.
    """
    output = forward.graph.output_node()
    values: Any = output.args[0]
    inputs = {node: index for index, node in enumerate(forward.graph.find_nodes(op="placeholder")[:num_inputs])}
    results: list[fx.Node] = list(values[:num_results])
    saved = []
    for node in values[num_results:]:
        if node in inputs:
            saved.append((node, ("input", inputs[node])))
            continue
        if node not in results:
            results.append(node)
        saved.append((node, ("result", results.index(node))))
    output.args = (tuple(results),)
    return saved


def _order_inputs(backward: fx.GraphModule, saved: Sequence[tuple[fx.Node, object]]) -> None:
    """Move the placeholders of ``saved`` to the front, in order."""
    placeholders = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    first = next(iter(backward.graph.nodes))
    for node, _ in saved:
        if placeholders[node.name] is not first:
            first.prepend(placeholders[node.name])
        else:
            first = first.next

"""Captured block as a function that runs with groups."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_unflatten

from torchmdla.capture.block import Block, Origin
from torchmdla.capture.dispatch import describe_tensor
from torchmdla.capture.fx import form_groups
from torchmdla.capture.options import Options


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

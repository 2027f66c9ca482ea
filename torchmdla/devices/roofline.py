"""Estimate of a call's time on the host: the larger one of the times for its operations and for its bytes.

This is the roofline model (S. Williams, A. Waterman, D. Patterson, "Roofline: An Insightful Visual Performance Model
for Multicore Architectures", 2009).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchmdla.devices.capabilities import CostModel
from torchmdla.devices.device import Node, NodeTypes, TensorType

# Rates of a current processor: floating-point operations of a thread, and bytes from memory, in a second.
_OPERATIONS, _BYTES = 4e10, 2e10

_ITEM_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}

# Operators that multiply matrices: the argument whose last dimension they sum over.
_PRODUCTS = {
    "mm": "self",
    "bmm": "self",
    "matmul": "self",
    "linear": "input",
    "addmm": "mat1",
    "addmv": "mat",
    "mv": "self",
    "baddbmm": "batch1",
    "addbmm": "batch1",
}
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "_convolution", "convolution", "convolution_overrideable")


def host_seconds(node: Node, types: NodeTypes, threads: int = 1) -> float:
    """Return the estimated seconds of a call on ``threads`` threads of the host's processor."""
    moved = sum(bytes_of(tensor) for tensor in types.tensors())
    return max(operations(node, types) / (threads * _OPERATIONS), moved / _BYTES)


def operations(node: Node, types: NodeTypes) -> float:
    """Return the number of floating-point operations of a call; an elementwise operator has one for each element."""
    elements = sum(math.prod(result.shape) for result in types.results if isinstance(result, TensorType))
    name = node.op.removeprefix("aten::").partition(".")[0]
    factor = types.arguments.get(_PRODUCTS.get(name, "weight" if name in _CONVOLUTIONS else ""))
    if not isinstance(factor, TensorType):
        return elements
    return 2.0 * elements * (math.prod(factor.shape[1:]) if name in _CONVOLUTIONS else factor.shape[-1])


def bytes_of(tensor: TensorType) -> int:
    """Return the bytes of a tensor's elements."""
    return math.prod(tensor.shape) * _ITEM_BYTES.get(tensor.dtype, 1)


def loss(
    name: str,
    model: CostModel,
    calls: Sequence[tuple[Node, NodeTypes]],
    moved: Sequence[TensorType],
    threads: int,
) -> str:
    """Return why a group is not worth the device ``name``; empty if it takes no longer there than on the host.

    Args:
        name: name of the device.
        model: the device.
        calls: the calls of the group.
        moved: inputs and results of the group, without weights.
        threads: number of the host's threads.
    """
    computing = model.launch_seconds + sum(model.call_seconds(node, types) for node, types in calls)
    moving = sum(model.transfer_seconds + bytes_of(tensor) / model.transfer_bandwidth for tensor in moved)
    there, here = computing + moving, sum(host_seconds(node, types, threads) for node, types in calls)
    if there <= here:
        return ""
    return f"it is not worth device {name!r}: {there:.2g} s there, {moving:.2g} s of it in transfers, {here:.2g} s here"

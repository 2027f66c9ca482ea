"""Hash of the structure that FX subgraphs share if the same compiled code is right for them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from torchmdla.importer.fx import attribute, name_of_call

# Types of constants whose text determines them.
_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class _NotSerialisable(Exception):
    """Error of a value whose form differs between processes."""


def structure_of(graph: fx.Graph, device: str, parameters: Sequence[int]) -> bytes | None:
    """Return a hash of 32 bytes that is equal for subgraphs with the same calls and constants.

    The names of nodes do not matter. The hash is equal in any process and on any machine. If the subgraph holds a value
    without such a form, the function returns None.

    Args:
        graph: graph of a group.
        device: device of the group.
        parameters: indices of placeholders that are weights.
    """
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    digest = hashlib.sha256(f"fx\n{device}\n{list(parameters)}\n".encode())
    try:
        for node in graph.nodes:
            for part in _parts(node, numbers):
                digest.update(part)
                digest.update(b"\0")
    except _NotSerialisable:
        return None
    return digest.digest()


def _parts(node: fx.Node, numbers: Mapping[fx.Node, int]) -> Iterator[bytes]:
    yield node.op.encode()
    if node.op == "get_attr":
        yield from _constant(attribute(node))
    elif node.op == "call_function":
        yield name_of_call(node).encode()
    if node.op != "placeholder":
        yield _text((node.args, dict(sorted(node.kwargs.items()))), numbers).encode()


def _constant(value: Any) -> Iterator[bytes]:
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.layout != torch.strided:
        raise _NotSerialisable
    if value.is_quantized:
        raise _NotSerialisable
    yield f"{value.dtype} {tuple(value.shape)} {value.stride()}".encode()
    if not value.dim():  # A tensor with dimensions is a weight, which compiled code takes as an argument.
        yield value.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


def _text(value: Any, numbers: Mapping[fx.Node, int]) -> str:
    if isinstance(value, fx.Node):
        return f"%{numbers[value]}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(item, numbers) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_text(item, numbers)}' for key, item in value.items())}}}"
    if isinstance(value, slice):
        return f"slice{_text((value.start, value.stop, value.step), numbers)}"
    if not isinstance(value, _PLAIN):
        raise _NotSerialisable
    return repr(value)

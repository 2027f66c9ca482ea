"""Nodes of exported graphs: operators, names that users know, floating-point tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node


def schema_name(node: Node) -> str:
    """Return the operator of a node as ``"aten::relu"``, without the mark of in-place forms; empty if it has none."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return ""
    name, overload = node.target._schema.name, node.target._schema.overload_name
    name = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    return f"{name}.{overload}" if overload else name


def operator_name(node: Node) -> str:
    """Return the operator of a node as people read it: ``"relu"``."""
    return schema_name(node).removeprefix("aten::")


def is_conversion(node: Node) -> bool:
    """Return whether a node quantises or dequantises, or chooses the scale for it."""
    return schema_name(node).startswith("quantized_decomposed::")


def layer_name(node: Node) -> str:
    """Return the name of the innermost module that calls a node, or the node's own name in the model itself."""
    return _module_path(node) or node.name


def names_of(node: Node) -> list[str]:
    """Return the names by which users select a node: its own, and its modules from the outermost on."""
    parts = _module_path(node).split(".")
    return [node.name, *(".".join(parts[:count]) for count in range(1, len(parts) + 1) if parts[0])]


def _module_path(node: Node) -> str:
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return stack[-1][0].removeprefix("L['self'].") if stack else ""


def float_arguments(node: Node) -> Iterator[tuple[str, Node]]:
    """Yield the floating-point tensors among the arguments of an operator, each with the schema's name.

    Elements of a list have the list's name.
    """
    assert isinstance(node.target, torch._ops.OpOverload)
    for place, argument in enumerate(node.target._schema.arguments):
        value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
        for element in value if isinstance(value, list | tuple) else [value]:
            if isinstance(element, Node) and is_float(element):
                yield argument.name, element


def is_float(node: Node) -> bool:
    """Return whether a node is a floating-point tensor."""
    value = node.meta.get("val")
    if value is None and node.op == "get_attr":
        value = _attribute(node)
    return isinstance(value, Tensor) and value.is_floating_point()


def _attribute(node: Node) -> Any:
    value: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value

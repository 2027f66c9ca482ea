"""Tensors that are stored outside the text of a module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_mlir import ir


def fill_resources(module: ir.Module, resources: Mapping[str, Tensor], prefix: str) -> None:
    """Set the contents of the module's resources, under names that no other function of the module uses."""
    if not resources:
        return

    def visit(operation: Any) -> Any:
        if operation.name in _LITERALS and (match := _RESOURCE.match(str(operation.attributes["value"]))):
            data = resources[match["name"]].contiguous().view(torch.uint8).numpy()
            operation.attributes["value"] = ir.DenseResourceElementsAttr.get_from_buffer(
                data, f"{prefix}.{match['name']}", ir.Type.parse(match["type"])
            )
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(visit)


_LITERALS = ("torch.vtensor.literal", "torch.tensor.literal")
_RESOURCE = re.compile(r"dense_resource<(?P<name>\w+)> : (?P<type>.*)")

"""Tensors beside the text of a module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_mlir import ir


def fill_resources(module: ir.Module, resources: Mapping[str, Tensor], prefix: str) -> None:
    """Gives the module's resources their contents, under names that no other function of the module has."""
    if not resources:
        return

    def visit(operation: Any) -> Any:
        if operation.name in _LITERALS and (found := _RESOURCE.match(str(operation.attributes["value"]))):
            data = resources[found["name"]].contiguous().view(torch.uint8).numpy()
            operation.attributes["value"] = ir.DenseResourceElementsAttr.get_from_buffer(
                data, f"{prefix}.{found['name']}", ir.Type.parse(found["type"])
            )
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(visit)


_LITERALS = ("torch.vtensor.literal", "torch.tensor.literal")
_RESOURCE = re.compile(r"dense_resource<(?P<name>\w+)> : (?P<type>.*)")

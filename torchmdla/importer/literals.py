"""Tensors with known values in the text of a program: few elements as literals, more as resources beside the text."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdla.importer.emitter import dense_element
from torchmdla.importer.types import element_type

# MLIR's parser takes seconds for a network's weights as text.
_LITERAL_ELEMENTS = 16


class Literals:
    """The literals of one text.

    Attributes:
        resources: what the text's resources must hold, by name.
    """

    def __init__(self) -> None:
        self.resources: dict[str, Tensor] = {}

    def attribute(self, tensor: Tensor) -> str:
        """The attribute that holds ``tensor``, with its type.

        Raises:
            CompileError: the Torch dialect has no such dtype.
        """
        sizes = "".join(f"{size}x" for size in tensor.shape)
        type_ = f"tensor<{sizes}{element_type(tensor.dtype)}>"
        # MLIR packs booleans in an order of its own.
        if tensor.numel() <= _LITERAL_ELEMENTS or tensor.dtype == torch.bool:
            return f"dense<{_nested(tensor.detach())}> : {type_}"
        name = f"constant_{len(self.resources)}"
        self.resources[name] = tensor.detach()
        return f"dense_resource<{name}> : {type_}"


def literal_type(tensor: Tensor) -> str:
    """The type of a tensor that may be written to, ``"!torch.tensor<[2],f32>"``."""
    return f"!torch.tensor<[{','.join(map(str, tensor.shape))}],{element_type(tensor.dtype)}>"


def _nested(tensor: Tensor) -> str:
    if tensor.numel() == 0:
        return ""
    if tensor.dim():
        return f"[{', '.join(map(_nested, tensor.unbind()))}]"
    if tensor.is_complex():
        real, imaginary = torch.view_as_real(tensor.resolve_conj()).unbind()
        return f"({dense_element(real)}, {dense_element(imaginary)})"
    return dense_element(tensor)

"""Tensors with known values in a program's text: literals for few elements, resources beside the text for more."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdla.importer.emitter import dense_element
from torchmdla.importer.types import element_type

# MLIR's parser takes seconds for a network's weights as text.
_LITERAL_ELEMENTS = 16


class Literals:
    """Literals of one text.

    Attributes:
        resources: the content of the text's resources, by name.
    """

    def __init__(self) -> None:
        self.resources: dict[str, Tensor] = {}

    def attribute(self, tensor: Tensor) -> str:
        """Return the attribute that holds ``tensor``, with its type.

        Raises:
            CompileError: If the Torch dialect does not have the dtype.
        """
        sizes = "".join(f"{size}x" for size in tensor.shape)
        type_ = f"tensor<{sizes}{element_type(tensor.dtype)}>"
        # MLIR packs booleans in a special order, so they are always literals.
        if tensor.numel() <= _LITERAL_ELEMENTS or tensor.dtype == torch.bool:
            return f"dense<{_dense_text(tensor.detach())}> : {type_}"
        name = f"constant_{len(self.resources)}"
        self.resources[name] = tensor.detach()
        return f"dense_resource<{name}> : {type_}"


def literal_type(tensor: Tensor) -> str:
    """Return the type of a tensor that may be written to, ``"!torch.tensor<[2],f32>"``."""
    return f"!torch.tensor<[{','.join(map(str, tensor.shape))}],{element_type(tensor.dtype)}>"


def _dense_text(tensor: Tensor) -> str:
    if tensor.numel() == 0:
        return ""
    if tensor.dim():
        return f"[{', '.join(map(_dense_text, tensor.unbind()))}]"
    if tensor.is_complex():
        real, imaginary = torch.view_as_real(tensor.resolve_conj()).unbind()
        return f"({dense_element(real)}, {dense_element(imaginary)})"
    return dense_element(tensor)

"""Types of tensors that users give in place of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

# The size of a varying dimension during capture. It is large enough for most networks' strides. All varying dimensions
# have the same size, so that sizes that must be equal are equal.
_EXAMPLE_SIZE = 32


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of a tensor, in place of a tensor.

    Args:
        shape: sizes; ``None`` or ``-1`` where a size may vary.
        dtype: dtype of the elements.

    Raises:
        ValueError: If a size is below -1.
    """

    shape: Sequence[int | None]
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(None if size == -1 else size for size in self.shape))
        if any(size is not None and size < 0 for size in self.shape):
            raise ValueError(f"a size is a number from 0 on, None or -1; got {self.shape}")

    @classmethod
    def parse(cls, text: str) -> TensorSpec:
        """Return the spec written as ``1x3x224x224``, ``?x128:int64`` or ``:bool`` (no dimensions).

        The default dtype is float32.

        Raises:
            ValueError: If the text does not have this form. The message describes the mistake.
        """
        sizes, _, dtype = text.partition(":")
        element_dtype = getattr(torch, dtype or "float32", None)
        if not isinstance(element_dtype, torch.dtype):
            raise ValueError(f"{text!r}: unknown dtype {dtype!r}")
        try:
            shape = [None if size in ("?", "-1") else int(size) for size in sizes.split("x")] if sizes else []
            return cls(shape, element_dtype)
        except ValueError:
            raise ValueError(f"{text!r}: sizes are written as 1x3x224x224, with ? for one that varies") from None

    def example(self) -> torch.Tensor:
        """Return an example tensor: ones, or zeros for integers, which may be indices."""
        sizes = [_EXAMPLE_SIZE if size is None else size for size in self.shape]
        return (torch.ones if self.dtype.is_floating_point else torch.zeros)(sizes, dtype=self.dtype)

"""Ops that return a tensor with values written into it: scatters, fills and copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchmdla.errors import CompileError
from torchmdla.importer.types import COMPUTED


def scatter(value: Tensor, dim: int, index: Tensor, source: Tensor | float) -> Tensor:
    """Scatter with ``dim`` counted from the front: upstream's lowering ends the process on negative dimensions.

    0-d tensors become rows of one element. A number may be a 0-d tensor.
    """
    if isinstance(source, Tensor) and source.dim() == 0:
        source = source.to(value.dtype).expand(index.shape)
    tensors = [value, index, source] if isinstance(source, Tensor) else [value, index]
    if all(tensor.dim() for tensor in tensors):
        return torch.scatter(value, dim % value.dim(), index, source)  # type: ignore[arg-type]
    row, places, *written = (tensor.reshape(-1) for tensor in tensors)
    return torch.scatter(row, 0, places, written[0] if written else source).view(value.shape)  # type: ignore[arg-type]


def index_put(value: Tensor, indices: Sequence[Tensor | None], source: Tensor, accumulate: bool = False) -> Tensor:
    """Return ``value`` with ``source`` at the indices, in a form that upstream lowers.

    If whole dimensions are between indexed ones, the indexed dimensions move to the front. The dimensions of the source
    already have that order. A 0-d index becomes an index of one dimension.
    """
    indexed = [dim for dim, index in enumerate(indices) if index is not None]
    adjacent = not indexed or indexed[-1] - indexed[0] + 1 == len(indexed)
    if indexed and not any(index.dim() for index in indices if index is not None):
        behind = value.dim() - 1 - indexed[-1] if adjacent else value.dim() - len(indexed)
        source = source.unsqueeze(source.dim() - behind) if source.dim() > behind else source
    indices = [index.reshape(-1) if index is not None and index.dim() == 0 else index for index in indices]
    put: Callable[..., Tensor] = torch.ops.aten.index_put
    if adjacent:
        return put(value, indices, source, accumulate)
    order = [*indexed, *(dim for dim in range(value.dim()) if dim not in indexed)]
    leading = [indices[dim] for dim in indexed]
    return put(value.permute(order), leading, source, accumulate).permute(
        [order.index(dim) for dim in range(value.dim())]
    )


def index_add(value: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float = 1) -> Tensor:
    """Add slices of ``source``. Indices count from the front."""
    source = source if alpha == 1 else source * alpha
    if not value.dim():
        return index_put(value.reshape(1), [index.reshape(-1)], source.reshape(-1), True).reshape(())
    source = source if source.dim() else source.reshape(1)
    total = index_put(value.movedim(dim, 0), [index.reshape(-1)], source.movedim(dim, 0), True)
    return total.movedim(0, dim)


def scatter_add(value: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Add whole slices where the index is the same in the other dimensions, as in an expanded tensor."""
    if not all(tensor.dim() for tensor in (value, index, source)):
        row, places, added = (tensor.reshape(-1) for tensor in (value, index, source))
        return torch.scatter_add(row, 0, places, added).view(value.shape)
    dim = dim % value.dim()
    others = [other for other in range(value.dim()) if other != dim]
    has_rows = all(index.shape[k] == value.shape[k] == source.shape[k] for k in others)
    if not others or not has_rows or any(index.stride(k) for k in others):
        return torch.scatter_add(value, dim, index, source)
    for other in reversed(others):
        index = index.select(other, 0)
    return index_add(value, dim, index, source.narrow(dim, 0, index.shape[0]))


def scatter_reduce(
    value: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    """Return a sum of elements with those of the tensor.

    Raises:
        CompileError: If the elements are combined otherwise.
    """
    if reduce != "sum" or not include_self:
        raise CompileError(f"scatter_reduce with reduce={reduce!r}, include_self={include_self} is not supported")
    return scatter_add(value, dim, index, source)


def select_scatter(value: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    """Write a slice of one element. Upstream treats a negative index into a vector as an index beyond its end."""
    index = index + value.size(dim) if index < 0 else index
    return torch.slice_scatter(value, source.unsqueeze(dim), dim, index, index + 1)


def copy(value: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return source.to(value.dtype).expand(value.shape)


def fill(value: Tensor, number: Tensor | float) -> Tensor:
    return copy(value, number) if isinstance(number, Tensor) else torch.full_like(value, number)


def linspace(
    start: float | Tensor, end: float | Tensor, steps: int, dtype: torch.dtype | None = None, *_: object
) -> Tensor:
    """Count from the start for the first half, and back from the end for the second half.

    Raises:
        CompileError: If the result has integers. Eager drops fractions there depending on how its kernel was compiled.
    """
    dtype = dtype or torch.get_default_dtype()
    if not dtype.is_floating_point:
        raise CompileError("linspace of integers is not supported")
    first, last = (torch.fill(torch.zeros((), dtype=dtype), number) for number in (start, end))
    step = (last - first) / max(steps - 1, 1)
    place = torch.arange(steps)
    forwards, backwards = first + step * place.to(dtype), last - step * (steps - 1 - place).to(dtype)
    return torch.where((place < steps // 2) | (place == 0), forwards, backwards)


# Integers below this limit are added and multiplied in float32 without an error.
_EXACT_IN_FLOAT32 = 2.0**24


def arange(start: float, end: float, dtype: torch.dtype | None = None, *_: object) -> Tensor:
    """Compute a range with step one."""
    return arange_by_step(start, end, 1, dtype)


def arange_by_step(start: float, end: float, step: float, dtype: torch.dtype | None = None, *_: object) -> Tensor:
    """Compute a range. Floats of 32 bits are computed in double precision; upstream rounds them at each step.

    Eager also uses double precision for the elements that do not fill a vector. Dtypes that are only stored are
    computed in other dtypes.
    """
    floats = [number for number in (start, step) if isinstance(number, float)]
    is_exact = all(number.is_integer() and abs(number) < _EXACT_IN_FLOAT32 for number in floats)
    result_dtype = dtype or torch.get_default_dtype()
    if result_dtype == torch.float32 and not is_exact:
        place = torch.arange(math.ceil((end - start) / step))
        return (start + step * place.double()).to(result_dtype)
    if result_dtype in COMPUTED:
        return torch.arange(start, end, step, dtype=COMPUTED[result_dtype]).to(result_dtype)
    return torch.arange(start, end, step, dtype=dtype)


def tril(value: Tensor, diagonal: int | Tensor = 0) -> Tensor:
    """Return the elements up to a diagonal, which may be known only at run time. Upstream requires a literal."""
    return torch.where(_diagonals(value) <= diagonal, value, value.new_zeros(()))


def triu(value: Tensor, diagonal: int | Tensor = 0) -> Tensor:
    """Return the elements from a diagonal on, which may be known only at run time."""
    return torch.where(_diagonals(value) >= diagonal, value, value.new_zeros(()))


def _diagonals(value: Tensor) -> Tensor:
    """Return the number of the diagonal that contains each element of a matrix."""
    rows, columns = value.shape[-2:]
    device = value.device
    return torch.arange(columns, device=device) - torch.arange(rows, device=device).unsqueeze(1)

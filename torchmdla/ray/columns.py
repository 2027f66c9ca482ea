"""Conversion between the columns of a batch in Ray and the tensors that a model receives and returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdla.errors import unknown_name

Column = NDArray[Any]
# Columns by name. A column of the dtype "object" has a separate array for each row, so rows may differ in size.
Columns = Mapping[str, Any]
Rows = slice | NDArray[np.intp]


def select_columns(columns: Columns, names: Iterable[str]) -> dict[str, Any]:
    """Return the columns with these names, in the order of the names.

    Raises:
        ValueError: a column is missing.
    """
    names = tuple(names)
    if missing := [name for name in names if name not in columns]:
        raise ValueError(f"batch: {unknown_name('column', missing[0], columns)}")
    return {name: columns[name] for name in names}


def row_count(columns: Columns) -> int:
    """Return the number of rows.

    Raises:
        ValueError: the columns differ in length, or there are not any.
    """
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"columns must have one length, got {lengths or 'no columns'}")
    return next(iter(lengths.values()))


def repeat_rows(columns: Columns, rows: int) -> dict[str, Any]:
    """Return ``rows`` rows; rows repeat from the first one if the batch has fewer."""
    chosen = np.arange(rows) % row_count(columns)
    return {name: np.asarray(column)[chosen] for name, column in columns.items()}


def column_of(values: Sequence[Any]) -> Column:
    """Return a column with one value for each row.

    It is one array if the values have the same sizes and dtype, or are scalars.
    """
    arrays = [np.asarray(value) for value in values]
    if all(array.ndim == 0 for array in arrays):
        # NumPy arrays of texts or bytes would drop trailing zeros.
        return np.array(values, dtype=object if any(array.dtype.kind in "OSU" for array in arrays) else None)
    if len({_kind(array) for array in arrays}) == 1:
        return np.stack(arrays)
    column = np.empty(len(arrays), dtype=object)
    for row, array in enumerate(arrays):
        column[row] = array
    return column


def rows_of(columns: Columns, count: int) -> list[dict[str, Any]]:
    """Return the values of each row, by column."""
    return [{name: column[row] for name, column in columns.items()} for row in range(count)]


def groups_of_equal_sizes(columns: Columns) -> list[Rows]:
    """Return groups of rows whose values have the same sizes and dtypes in every column.

    The rows of a group can become one tensor.
    """
    ragged = [column for column in columns.values() if _is_ragged(column)]
    if not ragged:
        return [slice(None)]
    groups: dict[Any, list[int]] = {}
    for row, values in enumerate(zip(*ragged, strict=True)):
        groups.setdefault(tuple(_kind(np.asarray(value)) for value in values), []).append(row)
    return [np.array(rows, dtype=np.intp) for rows in groups.values()]


def tensor_of(name: str, column: Any, rows: Rows) -> Tensor:
    """Return rows of equal sizes of a column, as one tensor.

    The tensor owns writable memory if the column's memory is read-only in Ray, so that a model may write to it.

    Raises:
        ValueError: PyTorch does not have such tensors (texts, objects).
    """
    chosen = column[rows]
    if isinstance(chosen, Tensor):
        return chosen
    try:
        array = np.stack([np.asarray(value) for value in chosen]) if _is_ragged(chosen) else np.asarray(chosen)
        if not array.flags.writeable or any(stride < 0 for stride in array.strides):
            array = array.copy()
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise ValueError(f"column {name!r} cannot become a tensor: {error}") from None


def pad_rows(tensor: Tensor, rows: int) -> Tensor:
    """Return ``tensor`` padded to ``rows`` rows with copies of its last row.

    A tensor that is long enough or empty is returned unchanged.
    """
    missing = rows - len(tensor)
    if missing <= 0 or not len(tensor):
        return tensor
    return torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])])


def name_results(results: Any, names: Sequence[str] | None) -> dict[str, Any]:
    """Return the results of a model by column name.

    Args:
        results: a tensor, a sequence of tensors, or a mapping of names to tensors.
        names: names of the columns in order, or the names to select from a mapping. The default (None) is a mapping's
            own names, or ``output``, or ``output_0``, ``output_1`` and so on.

    Raises:
        ValueError: the number of results differs from the number of names, or a name does not exist in the mapping.
        TypeError: a result is not a tensor.
    """
    if isinstance(results, Mapping):
        if missing := [name for name in names or () if name not in results]:
            raise ValueError(f"the model returned no {missing[0]!r}; it returned {', '.join(map(repr, results))}")
        tensors = {str(name): results[name] for name in (results if names is None else names)}
    else:
        values = list(results) if isinstance(results, (tuple, list)) else [results]
        if names is None:
            names = ["output"] if len(values) == 1 else [f"output_{index}" for index in range(len(values))]
        if len(names) != len(values):
            raise ValueError(
                f"outputs names {len(names)} results ({', '.join(names)}), the model returned {len(values)}"
            )
        tensors = dict(zip(names, values, strict=True))
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"the model's result {name!r} is not a tensor, but of type {type(value).__name__}")
    return tensors


def first_rows(results: Mapping[str, Tensor], computed: int, wanted: int) -> dict[str, Tensor]:
    """Return the first ``wanted`` rows of results for ``computed`` rows.

    Raises:
        ValueError: a result does not have ``computed`` rows.
    """
    for name, result in results.items():
        _check_rows(name, tuple(result.shape), computed)
    return {name: result[:wanted] for name, result in results.items()}


def as_columns(results: Columns, rows: int) -> dict[str, Column]:
    """Return results as columns of ``rows`` rows. bfloat16 becomes float32, because NumPy does not support it.

    Raises:
        ValueError: a result does not have ``rows`` rows.
    """
    columns: dict[str, Column] = {}
    for name, value in results.items():
        if isinstance(value, Tensor):
            columns[name] = (value.float() if value.dtype is torch.bfloat16 else value).numpy()
        else:
            columns[name] = column_of(value) if isinstance(value, (list, tuple)) else np.asarray(value)
        _check_rows(name, columns[name].shape, rows)
    return columns


def merge_groups(parts: Sequence[Mapping[str, Column]], groups: Sequence[Rows], rows: int) -> dict[str, Column]:
    """Return the columns of all groups of rows, in the order of the rows."""
    if len(parts) == 1 and isinstance(groups[0], slice):
        return dict(parts[0])
    return {name: column_of(_scatter_rows(name, parts, groups, rows)) for name in (parts[0] if parts else ())}


def _scatter_rows(name: str, parts: Sequence[Mapping[str, Column]], groups: Sequence[Rows], rows: int) -> list[Any]:
    values: list[Any] = [None] * rows
    for part, group in zip(parts, groups, strict=True):
        for row, value in zip(np.arange(rows)[group], part[name], strict=True):
            values[row] = value
    return values


def _check_rows(name: str, shape: tuple[int, ...], rows: int) -> None:
    if not shape or shape[0] != rows:
        raise ValueError(
            f"the result {name!r} of a batch of {rows} rows has sizes {list(shape)}; the first must be {rows}"
        )


def _is_ragged(column: Any) -> bool:
    return isinstance(column, np.ndarray) and column.dtype == object


def _kind(array: Column) -> tuple[tuple[int, ...], str]:
    return array.shape, array.dtype.str

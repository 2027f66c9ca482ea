"""NumPy arrays as tensors of the C interface."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from torchmdla_runtime.library import Tensor

Array = np.ndarray[Any, Any]

# Dtypes by their numbers in the C interface. NumPy does not support bfloat16; its bits are stored as an integer.
DTYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype(np.uint8), 1: np.dtype(np.int8), 2: np.dtype(np.int16), 3: np.dtype(np.int32), 4: np.dtype(np.int64),
    5: np.dtype(np.float16), 6: np.dtype(np.float32), 7: np.dtype(np.float64), 9: np.dtype(np.complex64),
    10: np.dtype(np.complex128), 11: np.dtype(np.bool_), 15: np.dtype(np.uint16),
}  # fmt: skip

NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


def as_array(value: Any) -> Array | None:
    """Return an array of an object's memory; None if the object is not an array.

    Objects are NumPy arrays, or in CPU memory with DLPack or the buffer protocol.
    """
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "__dlpack__"):
        array = np.from_dlpack(value)
    else:
        try:
            array = np.asarray(memoryview(value))
        except TypeError:
            return None
    # The C interface counts strides in elements, which are not negative.
    is_plain = all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
    return array if is_plain else np.ascontiguousarray(array)


def tensor_of(array: Array, number: int) -> Tensor:
    """Return a tensor that refers to the memory of an array. ``number`` is that of its dtype."""
    strides = [stride // array.itemsize for stride in array.strides]
    return new_tensor(array.ctypes.data, number, array.shape, strides)


def new_tensor(address: int, number: int, sizes: Sequence[int], strides: Sequence[int] | None) -> Tensor:
    kind = ctypes.c_int64 * len(sizes)
    return Tensor(address, number, len(sizes), kind(*sizes), None if strides is None else kind(*strides))


def copy_of(tensor: Tensor) -> Array:
    """Return a new array with the elements of a tensor."""
    dtype, sizes = DTYPES[tensor.dtype], tuple(tensor.sizes[: tensor.rank])
    if 0 in sizes:
        return np.empty(sizes, dtype)
    strides = tensor.strides[: tensor.rank]
    extent = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    memory = (ctypes.c_byte * (extent * dtype.itemsize)).from_address(tensor.data)
    flat = np.frombuffer(memory, dtype)
    view = np.lib.stride_tricks.as_strided(flat, sizes, [stride * dtype.itemsize for stride in strides])
    return view.copy()

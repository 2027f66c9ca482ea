"""Models that are called with arrays."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from torchmdla_runtime.library import API_VERSION, LIBRARY, Info, Options, Tensor, WrongTensor, check

# Dtypes by their numbers in the C interface. NumPy does not support bfloat16; its bits are stored as an integer.
_DTYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype(np.uint8), 1: np.dtype(np.int8), 2: np.dtype(np.int16), 3: np.dtype(np.int32), 4: np.dtype(np.int64),
    5: np.dtype(np.float16), 6: np.dtype(np.float32), 7: np.dtype(np.float64), 9: np.dtype(np.complex64),
    10: np.dtype(np.complex128), 11: np.dtype(np.bool_), 15: np.dtype(np.uint16),
}  # fmt: skip


class TensorInfo(NamedTuple):
    """Input or output of a model. Sizes with several possible values are given as None."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


class Model:
    """Model in this process. Any number of threads may call it at the same time.

    Args:
        path: the path of the file, which must not change while the model is used.
        threads: the number of threads of a call, including the calling one. 0 is the value of ``OMP_NUM_THREADS``, else
            one for each CPU that this process may use.
        any_owner: run the file's code without a check of its owner. Otherwise the file must belong to this user or
            root, and no other user may be able to write to it.

    Raises:
        ModelError: the file cannot be read or trusted, is damaged, or is for other processors.
    """

    def __init__(self, path: str | os.PathLike[str], threads: int = 0, *, any_owner: bool = False) -> None:
        handle = ctypes.c_void_p()
        check(LIBRARY.tmdla_load(os.fsencode(path), Options(API_VERSION, threads, any_owner), ctypes.byref(handle)))
        self._handle = handle
        weakref.finalize(self, LIBRARY.tmdla_free, handle)
        self._numbers, self.inputs = self._described(LIBRARY.tmdla_input, LIBRARY.tmdla_input_count(handle))
        self._output_numbers, self.outputs = self._described(LIBRARY.tmdla_output, LIBRARY.tmdla_output_count(handle))

    def __call__(self, *arrays: Any) -> list[np.ndarray[Any, Any]]:
        """Compute the outputs and return them as new arrays.

        Args:
            arrays: for each input an array: a NumPy array, or an object in CPU memory that supports DLPack or the
                buffer protocol. Data that is not contiguous is copied.

        Raises:
            WrongTensor: an array has another dtype, or sizes that the model does not have code for.
            TypeError: an argument is not an array.
            ModelError: the model reports an error.
        """
        operands = self._checked(arrays)
        inputs = _tensors(operands, self._numbers)
        results = [
            np.empty(shape, info.dtype) for info, shape in zip(self.outputs, self._output_shapes(inputs), strict=True)
        ]
        outputs = _tensors(results, self._output_numbers)
        check(LIBRARY.tmdla_run(self._handle, inputs, len(inputs), outputs, len(outputs)))
        return results

    def output_shapes(self, *shapes: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the outputs' shapes for these shapes of the inputs.

        Raises:
            WrongTensor: the model does not have code for them.
        """
        if len(shapes) != len(self.inputs):
            raise WrongTensor(f"the model has {len(self.inputs)} inputs, and {len(shapes)} are given", 5)
        tensors = [_tensor(0, number, shape, None) for number, shape in zip(self._numbers, shapes, strict=True)]
        return self._output_shapes((Tensor * len(tensors))(*tensors))

    def verify(self) -> None:
        """Read all weights and compare them with their checksums.

        Raises:
            ModelError: some weights are damaged.
        """
        check(LIBRARY.tmdla_verify(self._handle))

    @property
    def threads(self) -> int:
        """Return the number of threads of a call."""
        return int(LIBRARY.tmdla_threads(self._handle))

    @threads.setter
    def threads(self, threads: int) -> None:
        check(LIBRARY.tmdla_set_threads(self._handle, threads))

    def _described(self, describe: Callable[..., int], count: int) -> tuple[list[int], tuple[TensorInfo, ...]]:
        """Return the dtype numbers and descriptions of all inputs or outputs."""
        numbers, infos = [], []
        for index in range(count):
            info = Info()
            check(describe(self._handle, index, ctypes.byref(info)))
            shape = tuple(None if size < 0 else size for size in info.sizes[: info.rank])
            numbers.append(info.dtype)
            infos.append(TensorInfo(info.name.decode(), _DTYPES[info.dtype], shape))
        return numbers, tuple(infos)

    def _checked(self, arrays: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """Return the arrays as NumPy arrays, and check their dtypes. The runtime checks their shapes."""
        if len(arrays) != len(self.inputs):
            raise WrongTensor(f"the model has {len(self.inputs)} inputs, and {len(arrays)} are given", 5)
        converted = [_array(array, info) for array, info in zip(arrays, self.inputs, strict=True)]
        for number, (array, info) in enumerate(zip(converted, self.inputs, strict=True)):
            if array.dtype != info.dtype:
                raise WrongTensor(f"input {number} ({info.name}) is {info.dtype}, and {array.dtype} is given", 5)
        return converted

    def _output_shapes(self, inputs: ctypes.Array[Tensor]) -> list[tuple[int, ...]]:
        shapes = []
        for index, info in enumerate(self.outputs):
            sizes = (ctypes.c_int64 * len(info.shape))()
            check(LIBRARY.tmdla_output_sizes(self._handle, inputs, len(inputs), index, sizes))
            shapes.append(tuple(sizes))
        return shapes


def _array(value: Any, info: TensorInfo) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "__dlpack__"):
        array = np.from_dlpack(value)
    else:
        try:
            array = np.asarray(memoryview(value))
        except TypeError:
            raise TypeError(f"input {info.name} is a {type(value).__name__}, and no array") from None
    # The C interface counts strides in elements.
    return array if all(stride % array.itemsize == 0 for stride in array.strides) else np.ascontiguousarray(array)


def _tensors(arrays: Sequence[np.ndarray[Any, Any]], numbers: Sequence[int]) -> ctypes.Array[Tensor]:
    """Return tensors that refer to the memory of the arrays."""
    tensors = [
        _tensor(array.ctypes.data, number, array.shape, [stride // array.itemsize for stride in array.strides])
        for array, number in zip(arrays, numbers, strict=True)
    ]
    return (Tensor * len(tensors))(*tensors)


def _tensor(address: int, number: int, sizes: Sequence[int], strides: Sequence[int] | None) -> Tensor:
    kind = ctypes.c_int64 * len(sizes)
    return Tensor(address, number, len(sizes), kind(*sizes), None if strides is None else kind(*strides))

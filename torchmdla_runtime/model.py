"""Models, called with arrays."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from torchmdla_runtime.library import API_VERSION, LIBRARY, Info, Options, Tensor, WrongTensor, check

# By the C interface's numbers. NumPy has no bfloat16: its bits are an integer's.
_DTYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype(np.uint8), 1: np.dtype(np.int8), 2: np.dtype(np.int16), 3: np.dtype(np.int32), 4: np.dtype(np.int64),
    5: np.dtype(np.float16), 6: np.dtype(np.float32), 7: np.dtype(np.float64), 9: np.dtype(np.complex64),
    10: np.dtype(np.complex128), 11: np.dtype(np.bool_), 15: np.dtype(np.uint16),
}  # fmt: skip


class TensorInfo(NamedTuple):
    """An input or output of a model. Sizes are None where the model takes, or makes, more than one."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


class Model:
    """A model in this process. Any number of threads may call it at the same time.

    Args:
        path: of the file, which must stay as it is while the model is used.
        threads: how many threads a call uses, the calling one among them; 0: as many as ``OMP_NUM_THREADS`` says,
            else one for each CPU that this process may use.
        any_owner: run the file's code whoever may have written it. Otherwise it must be this user's or root's, and
            writable by nobody else.

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
        """The outputs, as new arrays.

        Args:
            arrays: for each input an array: NumPy's, or anything that has its memory in the CPU's and says so by DLPack
                or the buffer protocol. What is not contiguous is copied.

        Raises:
            WrongTensor: an array has another dtype, or sizes that the model has no code for.
            TypeError: one is no array.
            ModelError: the model reports an error.
        """
        given = self._checked(arrays)
        inputs = _tensors(given, self._numbers)
        results = [
            np.empty(shape, info.dtype) for info, shape in zip(self.outputs, self._output_shapes(inputs), strict=True)
        ]
        outputs = _tensors(results, self._output_numbers)
        check(LIBRARY.tmdla_run(self._handle, inputs, len(inputs), outputs, len(outputs)))
        return results

    def output_shapes(self, *shapes: Sequence[int]) -> list[tuple[int, ...]]:
        """The outputs' shapes for inputs of these.

        Raises:
            WrongTensor: the model has no code for them.
        """
        if len(shapes) != len(self.inputs):
            raise WrongTensor(f"the model has {len(self.inputs)} inputs, and {len(shapes)} are given", 5)
        given = [_tensor(0, number, shape, None) for number, shape in zip(self._numbers, shapes, strict=True)]
        return self._output_shapes((Tensor * len(given))(*given))

    def verify(self) -> None:
        """Reads all weights, and compares them with their checksums.

        Raises:
            ModelError: some are damaged.
        """
        check(LIBRARY.tmdla_verify(self._handle))

    @property
    def threads(self) -> int:
        """How many threads a call uses."""
        return int(LIBRARY.tmdla_threads(self._handle))

    @threads.setter
    def threads(self, threads: int) -> None:
        check(LIBRARY.tmdla_set_threads(self._handle, threads))

    def _described(self, describe: Callable[..., int], count: int) -> tuple[list[int], tuple[TensorInfo, ...]]:
        """Numbers of dtypes, and what there is to say, of each input or output."""
        numbers, infos = [], []
        for index in range(count):
            info = Info()
            check(describe(self._handle, index, ctypes.byref(info)))
            shape = tuple(None if size < 0 else size for size in info.sizes[: info.rank])
            numbers.append(info.dtype)
            infos.append(TensorInfo(info.name.decode(), _DTYPES[info.dtype], shape))
        return numbers, tuple(infos)

    def _checked(self, arrays: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """As NumPy's, of the dtypes that the inputs have: the runtime looks at the rest."""
        if len(arrays) != len(self.inputs):
            raise WrongTensor(f"the model has {len(self.inputs)} inputs, and {len(arrays)} are given", 5)
        found = [_array(array, info) for array, info in zip(arrays, self.inputs, strict=True)]
        for number, (array, info) in enumerate(zip(found, self.inputs, strict=True)):
            if array.dtype != info.dtype:
                raise WrongTensor(f"input {number} ({info.name}) is {info.dtype}, and {array.dtype} is given", 5)
        return found

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
    """They refer to the arrays' memory."""
    made = [
        _tensor(array.ctypes.data, number, array.shape, [stride // array.itemsize for stride in array.strides])
        for array, number in zip(arrays, numbers, strict=True)
    ]
    return (Tensor * len(made))(*made)


def _tensor(address: int, number: int, sizes: Sequence[int], strides: Sequence[int] | None) -> Tensor:
    kind = ctypes.c_int64 * len(sizes)
    return Tensor(address, number, len(sizes), kind(*sizes), None if strides is None else kind(*strides))

"""Models that are called with arrays."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from torchmdla_runtime.arrays import DTYPES, Array, as_array, new_tensor, tensor_of
from torchmdla_runtime.library import API_VERSION, LIBRARY, Info, MethodInfo, Options, Tensor, WrongTensor, check
from torchmdla_runtime.session import Session


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

        self.methods = self._described_methods()
        names = (LIBRARY.tmdla_attribute_name(handle, k) for k in range(LIBRARY.tmdla_attribute_count(handle)))
        self.attributes = tuple(name.decode() for name in names)

    def session(self) -> Session:
        """Return a new session, with the state of the file. It calls the methods of the model."""
        return Session(self)

    def __call__(self, *arrays: Any) -> list[Array]:
        """Compute the outputs of a model that is one group and return them as new arrays.

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
        tensors = [new_tensor(0, number, shape, None) for number, shape in zip(self._numbers, shapes, strict=True)]
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

    def _described_methods(self) -> dict[str, int]:
        """Return the numbers of the methods by their names."""
        methods = {}
        for number in range(LIBRARY.tmdla_method_count(self._handle)):
            info = MethodInfo()
            check(LIBRARY.tmdla_method(self._handle, number, ctypes.byref(info)))
            methods[info.name.decode()] = number
        return methods

    def _described(self, describe: Callable[..., int], count: int) -> tuple[list[int], tuple[TensorInfo, ...]]:
        """Return the dtype numbers and descriptions of all inputs or outputs."""
        numbers, infos = [], []
        for index in range(count):
            info = Info()
            check(describe(self._handle, index, ctypes.byref(info)))
            shape = tuple(None if size < 0 else size for size in info.sizes[: info.rank])
            numbers.append(info.dtype)
            infos.append(TensorInfo(info.name.decode(), DTYPES[info.dtype], shape))
        return numbers, tuple(infos)

    def _checked(self, arrays: Sequence[Any]) -> list[Array]:
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


def _array(value: Any, info: TensorInfo) -> Array:
    array = as_array(value)
    if array is None:
        raise TypeError(f"input {info.name} is a {type(value).__name__}, and no array")
    return array


def _tensors(arrays: Sequence[Array], numbers: Sequence[int]) -> ctypes.Array[Tensor]:
    """Return tensors that refer to the memory of the arrays."""
    return (Tensor * len(arrays))(*map(tensor_of, arrays, numbers))

"""C API of the accelerator for tests, by ctypes, on the emulator."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import torchmdla

EMULATOR = Path(torchmdla.__file__).parent / "devices" / "mdla" / "libtorchmdla_mdla_emulator.so"

_READERS: dict[int, Any] = {
    2: ctypes.c_bool,
    3: ctypes.c_int32,
    4: ctypes.c_int64,
    5: ctypes.c_float,
}


class MdlaError(Exception):
    """Error of a call. The text is the library's."""


def library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(EMULATOR))
    for name in ("ie_create", "ie_compile", "ie_compile_vfp", "ie_init"):
        getattr(loaded, name).restype = ctypes.c_void_p
    return loaded


class Context:
    """One network on the emulator. Methods are the functions of the C API, and raise MdlaError."""

    def __init__(self, **flags: object) -> None:
        self.library = library()
        self.handle = ctypes.c_void_p(self.library.ie_create())
        self.shapes: list[tuple[int, ...]] = []
        for name, value in flags.items():
            self.set_flag(name, value)

    def close(self) -> None:
        if self.handle:
            self.library.ie_free(self.handle)
        self.handle = ctypes.c_void_p()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def error(self) -> str:
        text = ctypes.create_string_buffer(1 << 16)
        assert self.library.ie_getinfo(self.handle, b"error", text, ctypes.c_size_t(len(text))) == 1
        return text.value.decode()

    def check(self, status: int) -> None:
        if status < 0:
            raise MdlaError(self.error())

    def set_flag(self, name: str, value: object) -> None:
        self.check(self.library.ie_setflag(self.handle, name.encode(), str(value).encode()))

    def info(self, name: str) -> Any:
        size = ctypes.c_int64()
        kind = self.library.ie_getinfo(self.handle, f"{name}_bytes".encode(), ctypes.byref(size), ctypes.c_size_t(8))
        if kind == 4:
            text = ctypes.create_string_buffer(size.value)
            assert self.library.ie_getinfo(self.handle, name.encode(), text, ctypes.c_size_t(len(text))) == 1
            return text.value.decode()
        place = ctypes.create_string_buffer(8)
        kind = self.library.ie_getinfo(self.handle, name.encode(), place, ctypes.c_size_t(8))
        self.check(kind)
        return _READERS[kind].from_buffer(place).value

    def layers(self) -> list[dict[str, Any]]:
        return json.loads(self.info("layers"))

    def compile(
        self,
        model: Path,
        binary: Path | None = None,
        shapes: str = "",
        samples: Sequence[np.ndarray] = (),
        linked: Context | None = None,
    ) -> Context:
        count, dims, sizes = self._shape_results()
        self._keep(
            self.library.ie_compile_vfp(
                self.handle,
                str(model).encode(),
                str(binary).encode() if binary else None,
                shapes.encode(),
                *map(ctypes.byref, (count, dims, sizes)),
                *_arrays(samples),
                linked.handle if linked else None,
            ),
            (count, dims, sizes),
        )
        return self

    def init(self, binary: Path, linked: Context | None = None) -> Context:
        count, dims, sizes = self._shape_results()
        handle = self.library.ie_init(
            self.handle,
            str(binary).encode(),
            *map(ctypes.byref, (count, dims, sizes)),
            linked.handle if linked else None,
        )
        self._keep(handle, (count, dims, sizes))
        return self

    @staticmethod
    def _shape_results() -> tuple[Any, Any, Any]:
        return ctypes.c_uint(), ctypes.POINTER(ctypes.c_uint)(), ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64))()

    def _keep(self, handle: int | None, results: tuple[Any, Any, Any]) -> None:
        if not handle:
            raise MdlaError(self.error())
        count, dims, sizes = results
        self.shapes = [tuple(sizes[i][j] for j in range(dims[i])) for i in range(count.value)]

    def run(self, *inputs: np.ndarray, software: bool = False) -> list[np.ndarray]:
        outputs = [np.full(shape, np.nan, np.float32) for shape in self.shapes]
        function = self.library.ie_run_sw if software else self.library.ie_run
        self.check(function(self.handle, *_arrays(inputs), *_arrays(outputs)))
        return outputs

    def put(self, inputs: Sequence[np.ndarray], user: int) -> None:
        self.check(self.library.ie_putinput(self.handle, *_arrays(inputs), ctypes.c_void_p(user)))

    def get(self) -> tuple[list[np.ndarray], int]:
        outputs = [np.full(shape, np.nan, np.float32) for shape in self.shapes]
        user = ctypes.c_void_p()
        self.check(self.library.ie_getresult(self.handle, *_arrays(outputs), ctypes.byref(user)))
        return outputs, user.value or 0

    def read_data(self, address: int, into: np.ndarray) -> None:
        pointer = into.ctypes.data_as(ctypes.c_void_p)
        self.library.ie_read_data(self.handle, ctypes.c_uint64(address), pointer, ctypes.c_uint64(into.nbytes), 0)

    def write_weights(self, weights: np.ndarray, bias: np.ndarray | None, layer: int) -> None:
        pointers = [None if values is None else values.ctypes.data_as(ctypes.c_void_p) for values in (weights, bias)]
        sizes = [0 if values is None else values.size for values in (weights, bias)]
        self.library.ie_write_weights(self.handle, *pointers, *sizes, layer)


def _arrays(arrays: Sequence[np.ndarray]) -> tuple[Any, Any, int]:
    """Return pointers, sizes and number of C-contiguous float arrays."""
    for array in arrays:
        assert array.dtype == np.float32 and array.flags.c_contiguous
    pointers = (ctypes.c_void_p * max(len(arrays), 1))(*(array.ctypes.data for array in arrays))
    sizes = (ctypes.c_uint64 * max(len(arrays), 1))(*(array.size for array in arrays))
    return pointers, sizes, len(arrays)

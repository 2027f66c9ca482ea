"""Python interface of ``libtorchmdla_runtime.so`` (``torchmdla/runtime.h``)."""

from __future__ import annotations

import ctypes
from pathlib import Path

API_VERSION = 2
_WRONG_TENSOR = 5


class ModelError(RuntimeError):
    """Error that the runtime reports; ``status`` is its number in ``torchmdla/runtime.h``."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class WrongTensor(ModelError, ValueError):
    """Error for an input whose dtype or sizes the model does not support."""


class Options(ctypes.Structure):
    _fields_ = (("api_version", ctypes.c_uint32), ("threads", ctypes.c_int32), ("any_owner", ctypes.c_int32))


class Info(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
    )


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
    )


_MODEL, _TENSORS, _COUNT = ctypes.c_void_p, ctypes.POINTER(Tensor), ctypes.c_size_t

# Result type and argument types.
_FUNCTIONS = {
    "tmdla_api_version": (ctypes.c_uint32,),
    "tmdla_last_error": (ctypes.c_char_p,),
    "tmdla_load": (ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(Options), ctypes.POINTER(_MODEL)),
    "tmdla_free": (None, _MODEL),
    "tmdla_verify": (ctypes.c_int, _MODEL),
    "tmdla_set_threads": (ctypes.c_int, _MODEL, ctypes.c_int32),
    "tmdla_threads": (ctypes.c_int32, _MODEL),
    "tmdla_input_count": (_COUNT, _MODEL),
    "tmdla_output_count": (_COUNT, _MODEL),
    "tmdla_input": (ctypes.c_int, _MODEL, _COUNT, ctypes.POINTER(Info)),
    "tmdla_output": (ctypes.c_int, _MODEL, _COUNT, ctypes.POINTER(Info)),
    "tmdla_output_sizes": (ctypes.c_int, _MODEL, _TENSORS, _COUNT, _COUNT, ctypes.POINTER(ctypes.c_int64)),
    "tmdla_run": (ctypes.c_int, _MODEL, _TENSORS, _COUNT, _TENSORS, _COUNT),
    "tmdla_provides": (ctypes.c_int, ctypes.c_char_p),
}


def _load() -> ctypes.CDLL:
    path = Path(__file__).with_name("libtorchmdla_runtime.so")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"the runtime is not built, or does not load: {error}") from error
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


LIBRARY = _load()


def check(status: int) -> None:
    """Raise an error if ``status`` is a failure.

    Raises:
        ModelError: the runtime reported a failure.
    """
    if status:
        text = LIBRARY.tmdla_last_error().decode(errors="replace")
        raise (WrongTensor if status == _WRONG_TENSOR else ModelError)(text, status)


def api_version() -> int:
    """Return the version of the C interface."""
    return int(LIBRARY.tmdla_api_version())


def provides(function: str) -> bool:
    """Return whether code in a model's file may call a function."""
    return bool(LIBRARY.tmdla_provides(function.encode()))

"""Python interface of ``libtorchmdla_runtime.so`` (``torchmdla/runtime.h``)."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

API_VERSION = 3
WRONG_PROCESSOR = 4
_WRONG_TENSOR, _RAISED, _WRONG_VALUE = 5, 10, 11


class ModelError(RuntimeError):
    """Error that the runtime reports; ``status`` is its number in ``torchmdla/runtime.h``."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class WrongTensor(ModelError, ValueError):
    """Error for an input whose dtype or sizes the model does not support."""


class WrongValue(ModelError, TypeError):
    """Error for an argument whose type a method does not accept, or for another number of arguments."""


class Raised(ModelError):
    """Exception that a program raised; ``exception`` is the qualified name of its class, such as ``ValueError``."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text, status)
        self.exception = LIBRARY.tmdla_last_exception().decode().removeprefix("builtins.")


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


class Value(ctypes.Structure):
    """Value of a program; its fields follow."""


class Content(ctypes.Union):
    _fields_ = (
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("text", ctypes.c_void_p),
        ("tensor", ctypes.POINTER(Tensor)),
        ("items", ctypes.POINTER(Value)),
    )


Value._fields_ = (
    ("kind", ctypes.c_int32),
    ("unused", ctypes.c_int32),
    ("count", ctypes.c_size_t),
    ("content", Content),
)


class MethodInfo(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("schema", ctypes.c_char_p), ("parameter_count", ctypes.c_size_t))


class ParameterInfo(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("type", ctypes.c_char_p), ("has_default", ctypes.c_int32))


_SESSION, _VALUES = ctypes.c_void_p, ctypes.POINTER(Value)
_MODEL, _TENSORS, _COUNT = ctypes.c_void_p, ctypes.POINTER(Tensor), ctypes.c_size_t

# Result type and argument types.
_FUNCTIONS = {
    "tmdla_api_version": (ctypes.c_uint32,),
    "tmdla_last_error": (ctypes.c_char_p,),
    "tmdla_load": (ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(Options), ctypes.POINTER(_MODEL)),
    "tmdla_load_device": (ctypes.c_int, ctypes.c_char_p),
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
    "tmdla_method_count": (_COUNT, _MODEL),
    "tmdla_method": (ctypes.c_int, _MODEL, _COUNT, ctypes.POINTER(MethodInfo)),
    "tmdla_parameter": (ctypes.c_int, _MODEL, _COUNT, _COUNT, ctypes.POINTER(ParameterInfo)),
    "tmdla_session_create": (ctypes.c_int, _MODEL, ctypes.POINTER(_SESSION)),
    "tmdla_session_free": (None, _SESSION),
    "tmdla_session_reset": (ctypes.c_int, _SESSION),
    "tmdla_call": (ctypes.c_int, _SESSION, _COUNT, _VALUES, _COUNT, ctypes.POINTER(_VALUES)),
    "tmdla_last_exception": (ctypes.c_char_p,),
    "tmdla_session_memory": (_COUNT, _SESSION),
    "tmdla_attribute_count": (_COUNT, _MODEL),
    "tmdla_attribute_name": (ctypes.c_char_p, _MODEL, _COUNT),
    "tmdla_get_attribute": (ctypes.c_int, _SESSION, _COUNT, ctypes.POINTER(_VALUES)),
    "tmdla_set_attribute": (ctypes.c_int, _SESSION, _COUNT, _VALUES),
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


_ERRORS = {_WRONG_TENSOR: WrongTensor, _WRONG_VALUE: WrongValue, _RAISED: Raised}


def check(status: int) -> None:
    """Raise an error if ``status`` is a failure.

    Raises:
        ModelError: the runtime reported a failure.
    """
    if status:
        text = LIBRARY.tmdla_last_error().decode(errors="replace")
        raise _ERRORS.get(status, ModelError)(text, status)


def api_version() -> int:
    """Return the version of the C interface."""
    return int(LIBRARY.tmdla_api_version())


def load_device(path: str | os.PathLike[str]) -> None:
    """Load the library of a device (``torchmdla/device.h``), so that models with code for the device load.

    Raises:
        ModelError: the library cannot be opened, or is not one of a device.
    """
    check(LIBRARY.tmdla_load_device(os.fsencode(path)))


def provides(function: str) -> bool:
    """Return whether code in a model's file may call a function, or its methods an operator."""
    return bool(LIBRARY.tmdla_provides(function.encode()))

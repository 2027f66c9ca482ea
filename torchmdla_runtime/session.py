"""Sessions: calls of a model's methods, and the state that they write."""

from __future__ import annotations

import ctypes
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from torchmdla_runtime.library import LIBRARY, Value, check
from torchmdla_runtime.values import Arguments, result_of

if TYPE_CHECKING:
    from torchmdla_runtime.model import Model


class Session:
    """State of one user of a model. One thread at a time may use it.

    ``session(…)`` calls the method ``forward``, and ``session.name(…)`` another one::

        session = model.session()
        probability = session(samples, 16000)
        session.reset_states()

    Arguments and results are arrays, numbers, strings, None, and lists, tuples and dictionaries of these.
    """

    def __init__(self, model: Model) -> None:
        handle = ctypes.c_void_p()
        check(LIBRARY.tmdla_session_create(model._handle, ctypes.byref(handle)))
        self._handle = handle
        self._model = model  # The session uses its memory.
        finalizer = weakref.finalize(self, _free, handle, model)
        finalizer.atexit = False

    def __call__(self, *arguments: Any) -> Any:
        """Call the method ``forward``; see :meth:`call`."""
        return self.call("forward", *arguments)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._model.methods:
            raise AttributeError(f"the model does not have a method {name!r}. It has: {', '.join(self._model.methods)}")
        return partial(self.call, name)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method and return its result.

        Raises:
            Raised: the program raised an exception.
            WrongValue: an argument has another type than the method accepts.
            WrongTensor: the model does not have code for a tensor's dtype or sizes.
            ModelError: the program failed.
            TypeError: an argument is not a value of programs.
            AttributeError: the model does not have the method.
        """
        number = self._model.methods.get(method)
        if number is None:
            raise AttributeError(f"the model does not have a method {method!r}")
        converted = Arguments(arguments)
        result = ctypes.POINTER(Value)()
        check(LIBRARY.tmdla_call(self._handle, number, converted.values, len(arguments), ctypes.byref(result)))
        return result_of(result.contents)

    @property
    def state(self) -> dict[str, Any]:
        """Return the attributes that methods use, by their names."""
        result = ctypes.POINTER(Value)()
        values = {}
        for number, name in enumerate(self._model.attributes):
            check(LIBRARY.tmdla_get_attribute(self._handle, number, ctypes.byref(result)))
            values[name] = result_of(result.contents)
        return values

    @state.setter
    def state(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if name not in self._model.attributes:
                raise KeyError(f"the model does not have an attribute {name!r}")
            converted = Arguments((value,))
            check(LIBRARY.tmdla_set_attribute(self._handle, self._model.attributes.index(name), converted.values))

    def reset(self) -> None:
        """Set the state to that of the file."""
        check(LIBRARY.tmdla_session_reset(self._handle))

    @property
    def memory(self) -> int:
        """Return the bytes of memory that the session has."""
        return int(LIBRARY.tmdla_session_memory(self._handle))


def _free(handle: ctypes.c_void_p, _model: Model) -> None:
    """Free a session before its model, which may have no other user."""
    LIBRARY.tmdla_session_free(handle)

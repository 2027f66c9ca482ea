"""Calls that must return eager's values, or raise eager's errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchmdla.testing.compare import assert_matches


def error_of(function: Callable[..., Any], *arguments: Any) -> Exception | None:
    """Return the exception of a call, or None."""
    try:
        function(*arguments)
    except Exception as error:
        return error
    return None


def assert_agrees(compiled: Any, eager: Any, *arguments: Any, kind: type[Exception] | None = None) -> None:
    """Check that ``compiled`` returns the values of ``eager``, or raises its error.

    Args:
        compiled: the function to check.
        eager: the reference function.
        arguments: those of both functions, which do not write to them.
        kind: the type of error that ``compiled`` raises instead of eager's. TorchScript's interpreter has one for all.
    """
    error = error_of(eager, *arguments)
    if error is None:
        assert_matches(compiled(*arguments), eager(*arguments))
        return
    with pytest.raises(kind or type(error)) as raised:
        compiled(*arguments)
    assert str(error).splitlines()[0] in str(raised.value)

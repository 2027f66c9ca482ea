"""Errors of programs, with the text that TorchScript's interpreter gives them."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from torchmdla.script.operators import ScriptException

if TYPE_CHECKING:
    from torchmdla.capture.script.source import Source

_FAILED = "The following operation failed in the TorchScript interpreter."
_TRACEBACK = "Traceback of TorchScript (most recent call last):"

# Errors that PyTorch's bindings raise before an operator runs, or Python in a function of the language.
_OF_OPERATORS = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, OverflowError, ZeroDivisionError)


def as_script_error(error: Exception, sources: Mapping[str, Source]) -> Exception:
    """Return the error that TorchScript would raise, with the places in the user's program.

    Args:
        error: the error of a function.
        sources: the functions, by the file names in tracebacks.
    """
    if isinstance(error, ScriptException):
        text = f"{error.class_name or 'RuntimeError'}: {error.message}"
        return torch.jit.Error(f"{_FAILED}\n{_lines(error, sources)}\n{text}\n")
    if isinstance(error, torch.jit.Error) or not isinstance(error, _OF_OPERATORS) or str(error).startswith(_FAILED):
        return error
    return RuntimeError(f"{_FAILED}\n{_lines(error, sources)}\nRuntimeError: {error}\n")


def _lines(error: Exception, sources: Mapping[str, Source]) -> str:
    return "\n".join([_TRACEBACK, *_frames(error, sources)])


def _frames(error: Exception, sources: Mapping[str, Source]) -> Iterator[str]:
    for frame in traceback.extract_tb(error.__traceback__):
        source = sources.get(frame.filename)
        if source is None or frame.lineno is None:
            continue
        file, _, line = source.places[frame.lineno - 1].rpartition(":")
        if not file:
            continue
        yield f'  File "{file}", line {line}, in {source.graph.name.rpartition(".")[2]}'
        text = linecache.getline(file, int(line)) if line.isdigit() else ""
        if text.strip():
            start = len(text) - len(text.lstrip())
            yield f"{text.rstrip()}\n{' ' * start}{'~' * len(text.strip())} <--- HERE"

"""Checks that a program's file, written again, is the same program for PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from script_graphs import compare_file
from torch.utils._pytree import tree_map

import torchmdla
from torchmdla.testing.compare import assert_matches


def check_written(path: Path, written: Path, inputs: Any) -> None:
    """Write a program again, and compare its graphs and results by PyTorch."""
    torchmdla.save(torchmdla.read(path), written)
    compare_file(written)
    check_results(path, torch.jit.load(written), inputs)


def check_results(path: Path, module: Any, inputs: Any) -> None:
    """Compare a call of a module with that of the file by PyTorch, errors included."""
    if inputs is None:
        return
    expected, actual = (outcome(model, inputs) for model in (torch.jit.load(path), module))
    if isinstance(expected, str) or isinstance(actual, str):
        assert isinstance(expected, str) and isinstance(actual, str), (expected, actual)
    else:
        assert_matches(actual, expected)


def outcome(module: Any, inputs: Any) -> Any:
    """Return the result of a call, or the class of its error."""
    torch.manual_seed(0)
    copies = tree_map(lambda value: value.detach().clone() if isinstance(value, torch.Tensor) else value, inputs)
    try:
        with torch.no_grad():
            return module(*copies)
    except Exception as error:
        return type(error).__name__

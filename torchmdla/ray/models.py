"""Models of an actor: loaded on its node, ready to run compiled."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

import torchmdla
from torchmdla import api

# The path of a TorchScript file, a package or an exported program; or a function that creates a model on the actor's
# node.
Source = str | os.PathLike[str] | Callable[[], Any]
Model = Callable[..., Any]


def load_model(source: Source, inputs: tuple[Tensor, ...]) -> Model:
    """Load or create a model, ready to run.

    Args:
        source: the path of the model, or the function that creates it.
        inputs: the inputs of one call, with which a plain module is traced; empty if none are known.

    Raises:
        FileNotFoundError: the file does not exist on this node.
        TypeError: ``source`` is neither a path nor a function, or the function does not return a model.
        ValueError: a plain module without inputs to trace it with.
    """
    if isinstance(source, torch.nn.Module):
        raise TypeError(
            "a module would be copied into each actor by pickle: give a function that makes it, "
            "or torchmdla.save(module, path, inputs=...) and the path"
        )
    if isinstance(source, (str, os.PathLike)):
        if not os.path.isfile(source):
            raise FileNotFoundError(
                f"no model at {os.fspath(source)} on node {socket.gethostname()}: each node of the cluster needs the "
                "file under that path, which is absolute or relative to the actor's working directory"
            )
        return torchmdla.load(source)  # type: ignore[no-any-return]
    if not callable(source):
        raise TypeError(f"a model is a path, or a function that returns a module, got {type(source).__name__}")
    return _prepare(source(), inputs)


def name_of(source: Source) -> str:
    """Return the name of a model for humans: a file's name without its ending, or a function's name."""
    if isinstance(source, (str, os.PathLike)):
        return Path(source).stem
    # functools.partial does not have a name; use the function that it calls.
    function = getattr(source, "func", source)
    return getattr(function, "__name__", type(function).__name__)


def _prepare(model: Any, inputs: tuple[Tensor, ...]) -> Model:
    if _is_compiled(model):
        return model  # type: ignore[no-any-return]
    if api.is_exported(model):
        return torchmdla.compile(model)  # type: ignore[no-any-return]
    if not isinstance(model, (torch.nn.Module, torch.jit.ScriptFunction)):
        raise TypeError(f"the function that makes the model returned no module, but a {type(model).__name__}")
    if not inputs:
        if isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
            return model
        raise ValueError(
            "a plain module is traced with an example: give examples=[...], or have the function return a program "
            "(torch.jit.script(module), torch.export.export(module, inputs))"
        )
    return torchmdla.compile(model, *inputs)  # type: ignore[no-any-return]


def _is_compiled(model: Any) -> bool:
    """Return whether the model is a result of ``torchmdla.compile`` (of an exported program) or ``torch.compile``."""
    if isinstance(model, fx.GraphModule):
        return True
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and isinstance(model, dynamo.OptimizedModule)

"""Inputs of a call on the command line, and other options that affect how a program runs."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchmdla
from torchmdla.cli import argument

# A part of the help of ``--input``, for commands that call programs.
FROM_FILES = (
    "@FILE for a tensor that torch.save (.pt) or numpy.save (.npy) wrote; =16000 or =True for a value of Python; "
)

# Arguments for the device, its options, and the random seed.
DEVICE_ARGUMENTS = (
    argument("--device", default="cpu", metavar="NAME", help="the device that groups are for (default: cpu)"),
    argument(
        "--options", default="", metavar="LIST", help="the device's own, NAME=VALUE between commas, as for enable()"
    ),
    argument("--seed", type=int, default=0, metavar="N", help="of inputs, and of each call (default: 0)"),
)


def read_inputs(texts: Sequence[str]) -> list[Any]:
    """Return the values of ``--input``: normal random numbers, or 0 for integers, which may be indices.

    Raises:
        ValueError: an input has another form, or its file does not contain a tensor.
        OSError: a file does not exist.
    """
    return [_READERS[text[0]](text[1:]) if text[:1] in _READERS else _draw_spec(text) for text in texts]


def draw(spec: Any) -> Any:
    """Return a tensor of a :class:`torchmdla.TensorSpec`, with values as in :func:`read_inputs`."""
    example = spec.example()
    return torch.randn_like(example) if spec.dtype.is_floating_point or spec.dtype.is_complex else example


def use_device(options: argparse.Namespace, **more: Any) -> None:
    """Enable the device with the options of a command line, and ``more`` options.

    Raises:
        TypeError, ValueError: the device does not exist, or does not have such options.
    """
    from torchmdla.testing.frontends import device_options

    torchmdla.enable(device=options.device, **{**device_options(options.options), **more})


def numbers(text: str) -> list[int]:
    """Parse positive integers that are separated by commas: ``1,2``."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: numbers of at least 1 are needed, between commas")
    return [int(part) for part in parts]


def number(text: str) -> int:
    """Parse one positive integer."""
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r}: a number of at least 1 is needed")
    return int(text)


def _draw_spec(text: str) -> Any:
    from torchmdla.mlir import TensorSpec

    spec = TensorSpec.parse(text)
    if None in spec.shape:
        raise ValueError(f"{text!r}: a call has known sizes; write a number in place of ?")
    return draw(spec)


def _parse_value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise ValueError(f"={text}: a value is needed, such as =16000, =0.5, =True or ='text'") from None


def _load_tensor(path: str) -> Any:
    """Read a tensor as data only, without running code in the file."""
    with Path(path).open("rb"):
        pass  # Raise an OSError that names the file.
    try:
        if path.endswith(".npy"):
            return torch.from_numpy(np.load(path, allow_pickle=False))
        value = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # Loaders raise various errors on a damaged file.
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise ValueError(
            f"{path} holds no tensor that torch.save (.pt) or numpy.save (.npy) wrote, as data alone ({reason})"
        ) from None
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{path} holds a {type(value).__name__}, not a tensor")
    return value


_READERS = {"@": _load_tensor, "=": _parse_value}

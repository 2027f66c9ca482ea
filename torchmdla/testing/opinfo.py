"""PyTorch's operator database as programs: every sample of every operator and dtype.

The database is part of PyTorch's own tests; importing it needs the package ``expecttest``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy
import torch
from torch import Tensor

from torchmdla.testing.programs import Program
from torchmdla.testing.programs.operators import grouped, on_tensors
from torchmdla.testing.programs.program import Tag, constantly
from torchmdla.testing.roads import NotAvailableError

# What is run unless asked for otherwise: the dtypes that devices take.
DTYPES = ("float32", "int64", "bool", "float64", "int32")

# Their results are memory that nobody has written.
UNWRITTEN = frozenset(
    {
        "empty",
        "empty_like",
        "empty_strided",
        "empty_permuted",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)

# Made for GPUs: eager itself does not run them on a CPU.
_PREFIX_OF_OTHER_DEVICES = "jiterator"


@lru_cache(maxsize=1)
def operators() -> dict[str, Any]:
    """PyTorch's operators by their full names in the database.

    Raises:
        NotAvailableError: ``expecttest`` is not installed.
    """
    try:
        from torch.testing._internal import common_methods_invocations as database
    except ModuleNotFoundError as error:
        raise NotAvailableError(f"PyTorch's operator database needs the package {error.name}: pip install it") from None
    # Operators that draw random numbers seed themselves there, which no capture sees; a check seeds each call.
    database.wrapper_set_seed = _called  # type: ignore[attr-defined, assignment]
    return {info.full_name: info for info in database.op_db if not info.name.startswith(_PREFIX_OF_OTHER_DEVICES)}


def _called(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return operator(*args, **kwargs)


def names(dtypes: Sequence[str]) -> list[str]:
    """``opinfo.operator.dtype`` for every operator and those of ``dtypes`` that it takes.

    Raises:
        NotAvailableError: no such dtype, or the database is not there.
    """
    for name in dtypes:
        if not isinstance(getattr(torch, name, None), torch.dtype):
            raise NotAvailableError(f"no dtype {name!r}")
    return [
        f"opinfo.{operator}.{dtype}"
        for dtype in dtypes
        for operator, info in operators().items()
        if getattr(torch, dtype) in info.supported_dtypes("cpu")
    ]


def programs(name: str, seed: int = 0, limit: int | None = None) -> Iterator[Program]:
    """One program for each sample of an operator and a dtype, ``limit`` of them evenly spread; the same each time."""
    operator, _, dtype = name.removeprefix("opinfo.").rpartition(".")
    info = operators()[operator]
    _seed(seed)
    # By itself the database seeds all devices anew for each sample, which costs more than making it.
    samples = list(info.sample_inputs("cpu", getattr(torch, dtype), requires_grad=False, set_seed=False))
    count = len(samples) if limit is None else min(limit, len(samples))
    for number in range(count):
        index = number * len(samples) // count
        yield _program(f"{name}:{index}", info, samples[index])


def _seed(seed: int) -> None:
    """Samples are drawn by PyTorch, NumPy and Python."""
    torch.default_generator.manual_seed(seed)
    numpy.random.seed(seed)
    random.seed(seed)


def _program(name: str, info: Any, sample: Any) -> Program:
    def call(arguments: Any, keywords: Any) -> Any:
        return info.op(*arguments, **keywords)

    function, tensors = on_tensors(call, ((sample.input, *sample.args), sample.kwargs))
    tags: frozenset[Tag] = frozenset({"sparse"} if "sparse" in info.name else ())
    make = constantly(grouped(_plain(function)))
    return Program(name, make, tensors, layers=_LAYERS, tags=tags, values=info.name not in UNWRITTEN)


# Samples are small; an operator such as a decomposition of a matrix has many sums behind it.
_LAYERS = 4


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Results as plain tuples, which tracing takes: operators return kinds of their own."""

    def call(*tensors: Tensor) -> Any:
        return _as_tuples(function(*tensors))

    return call


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, tuple | list) else value

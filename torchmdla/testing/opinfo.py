"""PyTorch's operator database as programs: every sample of every operator, form and dtype.

:data:`FORMS` lists the forms of an operator, which PyTorch's own tests also check. The database is part of PyTorch's
tests; importing it needs the package ``expecttest``.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy
import torch
from torch import Tensor

from torchmdla.errors import unknown_name
from torchmdla.testing.frontends import NotAvailableError
from torchmdla.testing.programs import Program
from torchmdla.testing.programs.inputs import copy_tensor
from torchmdla.testing.programs.operators import grouped, on_tensors
from torchmdla.testing.programs.program import Tag, factory_of

# The default dtypes: those that devices support.
DTYPES = ("float32", "int64", "bool", "float64", "int32", "bfloat16", "float16", "int16", "int8", "uint8")

_HALVES = (torch.float16, torch.bfloat16)

# Operators whose results are uninitialised memory.
UNINITIALISED_RESULTS = frozenset(
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

# Operators for GPUs: eager does not run them on a CPU.
_PREFIX_OF_OTHER_DEVICES = "jiterator"


@lru_cache(maxsize=1)
def operators() -> dict[str, Any]:
    """Return PyTorch's operators by their full names in the database.

    Raises:
        NotAvailableError: ``expecttest`` is not installed.
    """
    try:
        from torch.testing._internal import common_methods_invocations as database
    except ModuleNotFoundError as error:
        raise NotAvailableError(f"PyTorch's operator database needs the package {error.name}: pip install it") from None
    # The database seeds operators that draw random numbers, which no capture sees. A check seeds each call instead.
    database.wrapper_set_seed = _call  # type: ignore[attr-defined, assignment]
    return {info.full_name: info for info in database.op_db if not info.name.startswith(_PREFIX_OF_OTHER_DEVICES)}


def _call(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return operator(*args, **kwargs)


def names(dtypes: Sequence[str], forms: Sequence[str] = ("plain",)) -> list[str]:
    """Return ``opinfo.operator.dtype`` for every operator and each of ``dtypes`` that it supports.

    Forms other than "plain" add ``@form``, for the operators that have the form.

    Raises:
        NotAvailableError: a dtype or form does not exist, or the database is not installed.
    """
    for name in dtypes:
        if not isinstance(getattr(torch, name, None), torch.dtype):
            raise NotAvailableError(f"no dtype {name!r}")
    for form in forms:
        if form not in FORMS:
            raise NotAvailableError(unknown_name("form", form, FORMS))
    return [
        f"opinfo.{operator}.{dtype}" + ("" if form == "plain" else f"@{form}")
        for form in forms
        for dtype in dtypes
        for operator, info in operators().items()
        if getattr(torch, dtype) in info.supported_dtypes("cpu") and FORMS[form].exists(info)
    ]


def programs(name: str, seed: int = 0, limit: int | None = None) -> Iterator[Program]:
    """Yield one program for each sample of a name, in a reproducible order; at most ``limit``, evenly spread."""
    whole, _, form = name.partition("@")
    operator, _, dtype = whole.removeprefix("opinfo.").rpartition(".")
    info, kind = operators()[operator], FORMS[form or "plain"]
    _seed(seed)
    samples = list(kind.samples(info, getattr(torch, dtype)))
    count = len(samples) if limit is None else min(limit, len(samples))
    for number in range(count):
        index = number * len(samples) // count
        program = _program(f"{name}:{index}", info, samples[index], kind)
        if program is not None:
            yield program


def _seed(seed: int) -> None:
    """Seed PyTorch, NumPy and Python, which all draw samples."""
    torch.default_generator.manual_seed(seed)
    numpy.random.seed(seed)
    random.seed(seed)


def _program(name: str, info: Any, sample: Any, form: Form) -> Program | None:
    call = form.call(info, sample)
    if call is None:
        return None
    function, tensors = on_tensors(*call)
    tags: frozenset[Tag] = frozenset({"sparse"} if "sparse" in info.name else ())
    make = factory_of(grouped(_as_positional(function)))
    # Samples of a few elements cancel. In 16 bits, eager's own rounding makes them useless as a reference.
    is_half = any(isinstance(tensor, Tensor) and tensor.dtype in _HALVES for tensor in tensors)
    return Program(
        name,
        make,
        tensors,
        layers=_LAYERS,
        tags=tags,
        values=info.name not in UNINITIALISED_RESULTS,
        in_doubt=is_half,
        is_refused=form.is_refused,
    )


# --- forms -------------------------------------------------------------------------------------------------------

# A function of positional arguments and keywords, and its arguments.
Call = tuple[Callable[[Any, Any], Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Form:
    """Form of an operator call.

    Attributes:
        help: a description of the form.
        exists: whether an operator has it.
        samples: the samples of an operator and a dtype.
        call: the call for a sample; None if the form does not support it.
        is_refused: whether eager raises.
    """

    help: str
    exists: Callable[[Any], bool]
    samples: Callable[[Any, torch.dtype], Iterator[Any]]
    call: Callable[[Any, Any], Call | None]
    is_refused: bool = False


def _samples(info: Any, dtype: torch.dtype) -> Iterator[Any]:
    # By default the database seeds all devices for each sample, which costs more than making the sample.
    samples: Iterator[Any] = info.sample_inputs("cpu", dtype, requires_grad=False, set_seed=False)
    return samples


def _strided_samples(info: Any, dtype: torch.dtype) -> Iterator[Any]:
    for sample in _samples(info, dtype):
        yield sample.noncontiguous()


def _error_samples(info: Any, dtype: torch.dtype) -> Iterator[Any]:
    # These samples have their own dtypes, so they are the same for every dtype.
    if dtype == torch.float32:
        with suppress(NotImplementedError):
            yield from (error.sample_input for error in info.error_inputs("cpu"))


def _plain_call(info: Any, sample: Any) -> Call:
    return _as_call(info.op, sample)


def _invalid_call(info: Any, sample: Any) -> Call | None:
    call = _as_call(info.op, sample)
    return None if _is_runnable(call) else call


def _strided_call(info: Any, sample: Any) -> Call | None:
    # Some operators need contiguous inputs.
    call = _as_call(info.op, sample)
    return call if _is_runnable(call) else None


def _is_runnable(call: Call) -> bool:
    """Return whether eager runs the call on copies of its tensors; the copies do not share memory."""
    function, tensors = on_tensors(*call)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(*map(copy_tensor, tensors))
        except Exception:
            return False
    return True


def _as_call(function: Callable[..., Any], sample: Any) -> Call:
    def call(arguments: Any, keywords: Any) -> Any:
        return function(*arguments, **keywords)

    return call, ((sample.input, *sample.args), sample.kwargs)


def _in_place_call(info: Any, sample: Any) -> Call | None:
    # A result of another size or dtype does not fit into the input.
    result = _result(info, sample)
    if sample.broadcasts_input or not _is_like(result, sample.input):
        return None
    return _as_call(info.inplace_variant, sample)


def _out_call(info: Any, sample: Any) -> Call | None:
    result = _result(info, sample)
    tensors = result if isinstance(result, tuple) else (result,)
    if not tensors or not all(isinstance(tensor, Tensor) and tensor.layout == torch.strided for tensor in tensors):
        return None
    places: Any = tuple(torch.zeros_like(tensor) for tensor in tensors)

    def call(arguments: Any, keywords: Any) -> Any:
        *operands, out = arguments
        return info.op(*operands, **keywords, out=out)

    # ``out=`` determines the device.
    keywords = {name: value for name, value in sample.kwargs.items() if name != "device"}
    changed = call, ((sample.input, *sample.args, places if isinstance(result, tuple) else places[0]), keywords)
    return changed if _is_runnable(changed) else None


def _result(info: Any, sample: Any) -> Any:
    """Return the result of eager for a sample; None if eager raises."""
    with warnings.catch_warnings(), suppress(Exception), torch.no_grad():
        warnings.simplefilter("ignore")
        return info.op(sample.input, *sample.args, **sample.kwargs)
    return None


def _is_like(result: Any, other: Any) -> bool:
    if not isinstance(result, Tensor) or not isinstance(other, Tensor):
        return False
    return result.shape == other.shape and result.dtype == other.dtype and result.layout == other.layout


def _is_any(info: Any) -> bool:
    return True


FORMS: Mapping[str, Form] = {
    "plain": Form("as a function", _is_any, _samples, _plain_call),
    "inplace": Form("writing to its input", lambda info: info.inplace_variant is not None, _samples, _in_place_call),
    "out": Form("writing to what out= gives", lambda info: bool(info.supports_out), _samples, _out_call),
    # Exclude sparse tensors: PyTorch raises when it makes noncontiguous samples of them.
    "strided": Form(
        "inputs that are not contiguous", lambda info: "sparse" not in info.name, _strided_samples, _strided_call
    ),
    "errors": Form(
        "inputs that eager refuses",
        lambda info: info.error_inputs_func is not None,
        _error_samples,
        _invalid_call,
        True,
    ),
}


# Samples are small, but an operator such as a matrix decomposition chains many sums.
_LAYERS = 4


def _as_positional(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` with results as plain tuples, which tracing supports.

    Operators return their own classes.
    """

    def call(*tensors: Tensor) -> Any:
        return _as_tuples(function(*tensors))

    return call


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, tuple | list) else value

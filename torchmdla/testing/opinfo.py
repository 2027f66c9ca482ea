"""PyTorch's operator database as programs: every sample of every operator, form and dtype.

The forms of an operator are those that PyTorch's own tests check: see :data:`FORMS`. The database is part of PyTorch's
own tests; importing it needs the package ``expecttest``.
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

from torchmdla.testing.frontends import NotAvailableError
from torchmdla.testing.programs import Program
from torchmdla.testing.programs.inputs import copied
from torchmdla.testing.programs.operators import grouped, on_tensors
from torchmdla.testing.programs.program import Tag, constantly

# What is run unless asked for otherwise: the dtypes that devices take.
DTYPES = ("float32", "int64", "bool", "float64", "int32", "bfloat16", "float16", "int16", "int8", "uint8")

_HALVES = (torch.float16, torch.bfloat16)

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


def names(dtypes: Sequence[str], forms: Sequence[str] = ("plain",)) -> list[str]:
    """``opinfo.operator.dtype`` for every operator and those of ``dtypes`` that it takes, and ``…@form`` for every
    form that it has but the plain one.

    Raises:
        NotAvailableError: no such dtype or form, or the database is not there.
    """
    for name in dtypes:
        if not isinstance(getattr(torch, name, None), torch.dtype):
            raise NotAvailableError(f"no dtype {name!r}")
    for form in forms:
        if form not in FORMS:
            raise NotAvailableError(f"no form {form!r}; there are {', '.join(FORMS)}")
    return [
        f"opinfo.{operator}.{dtype}" + ("" if form == "plain" else f"@{form}")
        for form in forms
        for dtype in dtypes
        for operator, info in operators().items()
        if getattr(torch, dtype) in info.supported_dtypes("cpu") and FORMS[form].exists(info)
    ]


def programs(name: str, seed: int = 0, limit: int | None = None) -> Iterator[Program]:
    """One program for each sample of a name, ``limit`` of them evenly spread; the same each time."""
    whole, _, form = name.partition("@")
    operator, _, dtype = whole.removeprefix("opinfo.").rpartition(".")
    info, kind = operators()[operator], FORMS[form or "plain"]
    _seed(seed)
    samples = list(kind.samples(info, getattr(torch, dtype)))
    count = len(samples) if limit is None else min(limit, len(samples))
    for number in range(count):
        index = number * len(samples) // count
        made = _program(f"{name}:{index}", info, samples[index], kind)
        if made is not None:
            yield made


def _seed(seed: int) -> None:
    """Samples are drawn by PyTorch, NumPy and Python."""
    torch.default_generator.manual_seed(seed)
    numpy.random.seed(seed)
    random.seed(seed)


def _program(name: str, info: Any, sample: Any, form: Form) -> Program | None:
    found = form.call(info, sample)
    if found is None:
        return None
    function, tensors = on_tensors(*found)
    tags: frozenset[Tag] = frozenset({"sparse"} if "sparse" in info.name else ())
    make = constantly(grouped(_plain(function)))
    # Samples of a few elements cancel: what eager's own rounding leaves of these is no reference in 16 bits.
    is_half = any(isinstance(tensor, Tensor) and tensor.dtype in _HALVES for tensor in tensors)
    return Program(
        name,
        make,
        tensors,
        layers=_LAYERS,
        tags=tags,
        values=info.name not in UNWRITTEN,
        in_doubt=is_half,
        is_refused=form.is_refused,
    )


# --- forms -------------------------------------------------------------------------------------------------------

# A function of positional arguments and keywords, and these.
Call = tuple[Callable[[Any, Any], Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Form:
    """A way in which an operator may be called.

    Attributes:
        help: what it is.
        exists: whether an operator has it.
        samples: of an operator and a dtype.
        call: what a sample becomes; None: the form does not take it.
        is_refused: whether eager raises.
    """

    help: str
    exists: Callable[[Any], bool]
    samples: Callable[[Any, torch.dtype], Iterator[Any]]
    call: Callable[[Any, Any], Call | None]
    is_refused: bool = False


def _samples(info: Any, dtype: torch.dtype) -> Iterator[Any]:
    # By itself the database seeds all devices anew for each sample, which costs more than making it.
    found: Iterator[Any] = info.sample_inputs("cpu", dtype, requires_grad=False, set_seed=False)
    return found


def _strided_samples(info: Any, dtype: torch.dtype) -> Iterator[Any]:
    for sample in _samples(info, dtype):
        yield sample.noncontiguous()


def _error_samples(info: Any, dtype: torch.dtype) -> Iterator[Any]:
    # They have dtypes of their own: those of one are those of all.
    if dtype == torch.float32:
        with suppress(NotImplementedError):
            yield from (error.sample_input for error in info.error_inputs("cpu"))


def _plainly(info: Any, sample: Any) -> Call:
    return _calling(info.op, sample)


def _refused(info: Any, sample: Any) -> Call | None:
    found = _calling(info.op, sample)
    return None if _runs(found) else found


def _strided(info: Any, sample: Any) -> Call | None:
    # Some operators want their inputs contiguous.
    found = _calling(info.op, sample)
    return found if _runs(found) else None


def _runs(call: Call) -> bool:
    """Whether eager runs a call on copies of its tensors, of which none share memory."""
    function, tensors = on_tensors(*call)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(*map(copied, tensors))
        except Exception:
            return False
    return True


def _calling(function: Callable[..., Any], sample: Any) -> Call:
    def call(arguments: Any, keywords: Any) -> Any:
        return function(*arguments, **keywords)

    return call, ((sample.input, *sample.args), sample.kwargs)


def _in_place(info: Any, sample: Any) -> Call | None:
    # Results of another size or dtype than the input have no place in it.
    made = _result(info, sample)
    if sample.broadcasts_input or not _is_like(made, sample.input):
        return None
    return _calling(info.inplace_variant, sample)


def _into(info: Any, sample: Any) -> Call | None:
    made = _result(info, sample)
    tensors = made if isinstance(made, tuple) else (made,)
    if not tensors or not all(isinstance(one, Tensor) and one.layout == torch.strided for one in tensors):
        return None
    places: Any = tuple(torch.zeros_like(one) for one in tensors)

    def call(arguments: Any, keywords: Any) -> Any:
        *given, out = arguments
        return info.op(*given, **keywords, out=out)

    # The result's place says on which device it is.
    keywords = {name: value for name, value in sample.kwargs.items() if name != "device"}
    found = call, ((sample.input, *sample.args, places if isinstance(made, tuple) else places[0]), keywords)
    return found if _runs(found) else None


def _result(info: Any, sample: Any) -> Any:
    """What eager makes of a sample; None where it does not run."""
    with warnings.catch_warnings(), suppress(Exception), torch.no_grad():
        warnings.simplefilter("ignore")
        return info.op(sample.input, *sample.args, **sample.kwargs)
    return None


def _is_like(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False
    return one.shape == other.shape and one.dtype == other.dtype and one.layout == other.layout


def _always(info: Any) -> bool:
    return True


FORMS: Mapping[str, Form] = {
    "plain": Form("as a function", _always, _samples, _plainly),
    "inplace": Form("writing to its input", lambda info: info.inplace_variant is not None, _samples, _in_place),
    "out": Form("writing to what out= gives", lambda info: bool(info.supports_out), _samples, _into),
    # Sparse tensors are neither: PyTorch raises where it makes such samples of them.
    "strided": Form(
        "inputs that are not contiguous", lambda info: "sparse" not in info.name, _strided_samples, _strided
    ),
    "errors": Form(
        "inputs that eager refuses", lambda info: info.error_inputs_func is not None, _error_samples, _refused, True
    ),
}


# Samples are small; an operator such as a decomposition of a matrix has many sums behind it.
_LAYERS = 4


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Results as plain tuples, which tracing takes: operators return kinds of their own."""

    def call(*tensors: Tensor) -> Any:
        return _as_tuples(function(*tensors))

    return call


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, tuple | list) else value

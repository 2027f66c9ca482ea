"""Probe of expressions with scalars. All expressions for one dtype and scalar are one program of a frontend."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import torchmdla
from scalar_probe import table
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.frontends import variant_of

Scalar = int | float | bool

DTYPES = ("uint8", "int8", "int16", "int32", "int64", "bool", "bfloat16", "float16", "float32", "float64")
# Kinds of ``s``: a constant, a runtime scalar, or a 0-d tensor of a dtype.
KINDS = ("constant", "float", "int", *DTYPES)
# These frontends capture numbers as constants.
_CONSTANTS_ONLY = ("torchscript:trace", "export:export", "dispatch:capture")
VARIANTS = ("torchscript:script", *_CONSTANTS_ONLY, "dynamo:compile", "lazy:step", "acap:device")

_INTEGERS = (2, -3, 0, 257, 300, 2049, 70000, 2**33 + 5, True, False)
_SUBNORMAL = 1e-40
_FLOATS = (0.3, 2.5, -1.7, -0.0, 1e-7, _SUBNORMAL, 1e6, 1e39, math.nan, math.inf, -math.inf)
# Constants that are tried unless ``every`` constant is. Each constant is one program.
_FEW: dict[str, Sequence[Scalar]] = {
    **dict.fromkeys(("uint8", "int8"), (300, -3, 2.5)),
    **dict.fromkeys(("int16", "int32"), (2**33 + 5, 70000, -3)),
    **dict.fromkeys(("int64", "bool"), (2, True, 0.3)),
    **dict.fromkeys(("bfloat16", "float16"), (0.3, 2049, math.nan)),
    **dict.fromkeys(("float32", "float64"), (0.3, math.nan)),
}
_MODERATE = 1e4
_LENGTH = 64


@dataclass
class Report:
    """Counts of a comparison.

    Attributes:
        results: the number of results that were compared with eager.
        differences: descriptions of the differences.
        ambiguous: expressions for which eager's scalar code and vector code give different results.
        captured: expressions for which PyTorch's own capture gives other results.
        exempted: expressions that differ and have a reason in the table.
    """

    results: int = 0
    differences: list[str] = field(default_factory=list)
    ambiguous: set[str] = field(default_factory=set)
    captured: set[str] = field(default_factory=set)
    exempted: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Subject:
    """Subject of a probe.

    Attributes:
        way: the frontend.
        dtype: the dtype of the tensors.
        kind: the kind of the scalar, one of :data:`KINDS`.
        filter: a text that the expressions contain.
    """

    way: str
    dtype: str
    kind: str
    filter: str = ""

    def __str__(self) -> str:
        return f"{self.way} {self.dtype} {self.kind}"

    @property
    def type(self) -> str:
        """Return the scalar's type in a signature, or an empty text for constants."""
        return {"constant": "", "float": "float", "int": "int"}.get(self.kind, "Tensor")

    @property
    def exists(self) -> bool:
        return self.type in ("", "Tensor") or self.way not in _CONSTANTS_ONLY

    def scalars(self, *, every: bool) -> list[Any]:
        """Return numbers or 0-d tensors.

        Subnormal numbers are left out for bfloat16, because processor instructions flush them to zero.
        """
        floats = [number for number in _FLOATS if number != _SUBNORMAL or "bfloat16" not in (self.dtype, self.kind)]
        if self.kind == "constant":
            return [*_INTEGERS, *floats] if every else list(_FEW[self.dtype])
        if self.kind in ("float", "int"):
            return list(floats if self.kind == "float" else _INTEGERS)
        wanted: torch.dtype = getattr(torch, self.kind)
        numbers = [*_INTEGERS, *floats] if wanted.is_floating_point else _INTEGERS
        return [torch.tensor(number).to(wanted) for number in numbers]

    def expressions(self) -> list[str]:
        texts = [*table.EXACT, *table.APPROXIMATE, *table.QUANTISED]
        if self.type == "Tensor":
            texts += [*table.EXACT_WITH_TENSORS, *table.APPROXIMATE_WITH_TENSORS]
        return [text for text in texts if self.filter in text]


NAMES = ("x", "y", "z", "w", "m", "i")


def tensors_of(dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the tensors of an expression. They have special values, and fill whole vectors of eager's code."""
    if dtype.is_floating_point:
        limits = torch.finfo(dtype)
        numbers = [0.3, -0.3, 1.7, -1.7, 0.0, -0.0, 1.0, 2.5, -3.0, 255.0, 256.0, 258.0, 2048.0, 2050.0, 0.1, -0.7]
        special = [math.inf, -math.inf, math.nan, 65504.0, -65504.0, 1e-4, -1e-3, 33.0]
        largest = 1e30 if dtype == torch.bfloat16 else limits.max
        subnormal = [limits.tiny * limits.eps, -limits.tiny / 2, limits.tiny * 0.75, limits.tiny]
        if dtype == torch.bfloat16:
            subnormal = [1e-20, -1e-20, 3e20, -3e20]
        x = torch.tensor([*numbers, *special, *subnormal, 1 + limits.eps, largest, -largest, 20.5])
        x = x.double().to(dtype) if dtype != torch.float64 else torch.tensor(x.tolist(), dtype=dtype)
    elif dtype == torch.bool:
        x = torch.tensor([True, False, False, True] * 8)
    else:
        bounds = torch.iinfo(dtype)
        numbers = [0, 1, 2, 3, 5, 43, 44, 100, bounds.max, bounds.min, bounds.min + 1, bounds.max - 1, 7, 64, 8, 15]
        x = torch.tensor([*numbers, *numbers[::-1]], dtype=dtype)
    x = x.repeat(2)
    z = ((torch.arange(64) * 37 % 64 - 20) / 16).to(dtype)
    w = torch.where(x == 0, torch.ones_like(x), x)
    return dict(zip(NAMES, (x, x.roll(5), z, w, torch.arange(64) % 3 == 0, torch.tensor([3, 1])), strict=True))


def _text(scalar: Scalar) -> str:
    return repr(scalar) if math.isfinite(scalar) else f"float('{scalar}')"


def _source(expressions: Sequence[str], type_: str, value: str) -> str:
    argument, bound = (f", s: {type_}", "") if type_ else ("", f"    s = {value}\n")
    body = "".join(f"    r{n} = {text}\n" for n, text in enumerate(expressions))
    results = ", ".join(f"r{n}" for n in range(len(expressions)))
    tensors = ", ".join(f"{name}: Tensor" for name in NAMES)
    return f"def f({tensors}{argument}):\n{bound}{body}    return [{results}]\n"


@cache
def scripted(expressions: tuple[str, ...], type_: str, value: str) -> Callable[..., Any] | None:
    """Return a scripted function of ``expressions``, or None if TorchScript refuses them.

    ``s`` is an argument of ``type_``. If ``type_`` is empty, ``s`` is ``value``.
    """
    try:
        function: Callable[..., Any] = torch.jit.CompilationUnit(_source(expressions, type_, value)).f
    except RuntimeError:
        return None
    return function


def _function(subject: Subject, expressions: tuple[str, ...], scalar: Any) -> Callable[..., Any] | None:
    value = "" if subject.type else _text(scalar)
    reader = scripted if subject.way == "torchscript:script" else _python
    return reader(expressions, subject.type, value)


@cache
def _python(expressions: tuple[str, ...], type_: str, value: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"torch": torch, "Tensor": Tensor}
    exec(_source(expressions, type_, value), names)
    function: Callable[..., Any] = names["f"]
    return function


def eager(subject: Subject, expression: str, inputs: Sequence[Any], scalar: Any) -> Tensor | None:
    """Return the result of PyTorch alone, or None if PyTorch refuses the expression."""
    function = _function(subject, (expression,), scalar)
    try:
        with torchmdla.enabled(False):
            result = function(*inputs, *([scalar] if subject.type else []))[0] if function is not None else None
    except (RuntimeError, TypeError, ValueError, IndexError, ArithmeticError):
        return None
    return result if isinstance(result, Tensor) else None


class _Reads(TorchDispatchMode):
    """Dispatch mode that records whether numbers are read from tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def _reads_value(subject: Subject, expression: str, tensors: Sequence[Tensor], scalar: Any) -> bool:
    """Return whether the expression reads a number from the 0-d tensor, which a trace would capture as a constant."""
    with _Reads() as reads:
        eager(subject, expression, tensors, scalar)
    return reads.found


def is_same(actual: Tensor, expected: Tensor) -> bool:
    """Return whether two tensors have the same bits. All NaNs are equal."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    equal = (actual == expected) & (torch.signbit(actual) == torch.signbit(expected))
    return bool((equal | ((actual != actual) & (expected != expected))).all())


def _without_subnormals(halves: Tensor) -> Tensor:
    """Flush subnormals to zero, like processor instructions that round to bfloat16."""
    is_subnormal = halves.abs() < torch.finfo(torch.bfloat16).tiny
    return torch.where(is_subnormal, torch.copysign(torch.zeros_like(halves), halves), halves)


def _is_fused(expression: str, dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize > 2 and any(name in expression for name in table.FUSED)


def _compared(expression: str, actual: Tensor, expected: Tensor) -> list[Tensor]:
    """Return masks of the elements that are compared together if the result is compared with a tolerance.

    Eager's bits may depend on vector maths, on the order of a sum, or on whether a product and a sum are rounded once.
    Large elements form a separate mask, so that they do not raise the tolerance of small ones.
    """
    is_moderate = expected.abs() < _MODERATE
    is_seen = actual.isfinite() if _is_fused(expression, expected.dtype) else torch.ones_like(is_moderate)
    return [is_moderate & is_seen, ~is_moderate & is_seen]


def difference(expression: str, actual: Tensor, expected: Tensor) -> str:
    """Return how ``actual`` differs from eager's result, or an empty text."""
    if actual.dtype == expected.dtype == torch.bfloat16:
        actual, expected = _without_subnormals(actual), _without_subnormals(expected)
    if is_same(actual, expected):
        return ""
    if expression in table.QUANTISED and actual.shape == expected.shape:
        is_near = bool(((actual.double() - expected.double()).abs() <= table.ROUNDED).all())
        return "" if is_near else f"{actual} instead of {expected}"
    approximate = (*table.APPROXIMATE, *table.APPROXIMATE_WITH_TENSORS)
    if actual.shape == expected.shape and (expression in approximate or _is_fused(expression, expected.dtype)):
        try:
            for part in _compared(expression, actual, expected):
                assert_matches(actual[part], expected[part])
        except AssertionError as error:
            return str(error)
        return ""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"{actual.dtype} {tuple(actual.shape)} instead of {expected.dtype} {tuple(expected.shape)}"
    actual, expected = actual.ravel(), expected.ravel()
    places = [place for place in range(expected.numel()) if not is_same(actual[place], expected[place])]
    first = places[0]
    return f"{actual[first].item()} instead of {expected[first].item()} at {places}"


def _is_exempted(subject: Subject, expression: str, scalar: Any) -> bool:
    return any(exemption.covers(subject.way, expression, scalar) for exemption in table.EXEMPTIONS)


def _is_of_capture(
    subject: Subject,
    expressions: tuple[str, ...],
    text: str,
    actual: Tensor,
    tensors: Sequence[Tensor],
    scalars: Sequence[Any],
    place: int,
) -> bool:
    """Return whether PyTorch's own capture of the program, or of ``text`` alone, gives the same result.

    Both are tried, because Dynamo's knowledge of a number depends on all uses of the number.
    """
    for program in (expressions, (text,)):
        alone = _alone(subject, program, tensors, scalars)
        if alone is not None and is_same(actual, alone[place][program.index(text)]):
            return True
    return False


def _is_either(expression: str, actual: Tensor, vector: Tensor, scalar: Tensor) -> bool:
    """Return whether each element equals the result of eager's vector code or of its scalar code."""
    if not actual.shape == vector.shape == scalar.shape:
        return False
    elements = zip(actual, vector, scalar, strict=True)
    return all(not difference(expression, a, v) or not difference(expression, a, s) for a, v, s in elements)


def probe(subject: Subject, *, every: bool) -> Report:
    """Compare each expression with eager for the scalars of a subject."""
    report = Report()
    if not subject.exists:
        return report
    tensors = tuple(tensors_of(getattr(torch, subject.dtype)).values())
    scalars = subject.scalars(every=every)
    for group in [[scalar] for scalar in scalars] if not subject.type else [scalars]:
        batches: dict[tuple[int, ...], dict[str, list[Tensor]]] = {}
        for text in subject.expressions():
            if subject.way in _CONSTANTS_ONLY and subject.type and _reads_value(subject, text, tensors, group[0]):
                continue
            values = [eager(subject, text, tensors, scalar) for scalar in group]
            places = tuple(place for place, result in enumerate(values) if result is not None)
            batches.setdefault(places, {})[text] = [result for result in values if result is not None]
        for places, expected in batches.items():
            if places:
                _compare(subject, report, tensors, [group[place] for place in places], expected)
    return report


def _by_scalar_code(subject: Subject, expression: str, tensors: Sequence[Tensor], scalar: Any) -> Tensor | None:
    """Return eager's results for one element at a time, which use scalar code, or None if it is not elementwise."""
    single = [[tensor[n : n + 1] if len(tensor) == _LENGTH else tensor for tensor in tensors] for n in range(_LENGTH)]
    results = [eager(subject, expression, inputs, scalar) for inputs in single]
    elements = [result for result in results if result is not None and result.shape == (1,)]
    return torch.cat(elements) if len(elements) == len(results) else None


def _compare(
    subject: Subject,
    report: Report,
    tensors: Sequence[Tensor],
    scalars: Sequence[Any],
    expected: dict[str, list[Tensor]],
) -> None:
    """Compare one program with eager for each scalar. If the program raises an error, compare its halves."""
    try:
        results = _results(subject, tuple(expected), tensors, scalars)
    except Exception as error:
        if len(expected) > 1:
            items = list(expected.items())
            for half in (items[: len(items) // 2], items[len(items) // 2 :]):
                _compare(subject, report, tensors, scalars, dict(half))
            return
        (text,) = expected
        compared = [place for place, scalar in enumerate(scalars) if not _is_exempted(subject, text, scalar)]
        if len(compared) < len(scalars):
            report.exempted.add(text)
            rest = {text: [expected[text][place] for place in compared]}
            _compare(subject, report, tensors, [scalars[place] for place in compared], rest)
        elif not variant_of(subject.way).has_device and _alone(subject, (text,), tensors, scalars) is None:
            report.captured.add(text)
        else:
            report.differences.append(f"{subject} | {text} | raises {type(error).__name__}: {str(error)[:300]}")
        return
    for place, scalar in enumerate(scalars):
        for text, actual in zip(expected, results[place], strict=True):
            report.results += 1
            wanted = expected[text][place]
            if not (message := difference(text, actual, wanted)):
                continue
            if _is_exempted(subject, text, scalar):
                report.exempted.add(text)
                continue
            other = _by_scalar_code(subject, text, tensors, scalar)
            if other is not None and _is_either(text, actual, wanted, other):
                report.ambiguous.add(text)
            elif _is_of_capture(subject, tuple(expected), text, actual, tensors, scalars, place):
                report.captured.add(text)
            else:
                report.differences.append(f"{subject} | {text} | {scalar!r}: {message}")


def _alone(
    subject: Subject, expressions: tuple[str, ...], tensors: Sequence[Tensor], scalars: Sequence[Any]
) -> list[list[Tensor]] | None:
    """Return the results of PyTorch's own capture of a program for each of ``scalars``, without torchmdla.

    Return None if it raises an error, or if torchmdla cannot be switched off.
    """
    if variant_of(subject.way).has_device:
        return None
    try:
        with torchmdla.enabled(False):
            return _results(subject, expressions, tensors, scalars, alone=True)
    except Exception:
        return None


def _results(
    subject: Subject,
    expressions: tuple[str, ...],
    tensors: Sequence[Tensor],
    scalars: Sequence[Any],
    *,
    alone: bool = False,
) -> list[list[Tensor]]:
    """Return the results of a program of ``expressions`` for each of ``scalars``, after it is compiled."""
    called, device = _captured(subject, expressions, tensors, scalars[0], alone=alone)

    def given(scalar: Any) -> list[Any]:
        moved = scalar.to(device) if isinstance(scalar, Tensor) else scalar
        return [*(tensor.to(device) for tensor in tensors), *([moved] if subject.type else [])]

    # A group that is divided around an operator compiles at the fourth call.
    for scalar in [*scalars[:2], *[scalars[0]] * 4]:
        _moved_back(called(*given(scalar)))
    return [_moved_back(called(*given(scalar))) for scalar in scalars]


def _moved_back(results: Sequence[Tensor]) -> list[Tensor]:
    return [result.cpu() for result in results]


def _captured(
    subject: Subject, expressions: tuple[str, ...], tensors: Sequence[Tensor], scalar: Any, *, alone: bool
) -> tuple[Callable[..., Any], str]:
    function = _function(subject, expressions, scalar)
    assert function is not None
    variant = variant_of(subject.way)
    if subject.way == "torchscript:script":
        return function, variant.device
    variant.prepare()
    inputs = tuple(tensor.to(variant.device) for tensor in (*tensors, *([scalar] if subject.type == "Tensor" else [])))
    if subject.type in ("float", "int"):
        inputs = (*inputs, scalar)
    capture = variant.alone if alone and variant.alone is not None else variant.capture
    return capture(function, inputs, ("forward",))["forward"], variant.device

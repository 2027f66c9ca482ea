"""Numbers and 0-d tensors beside tensors of every dtype: each operator gives eager's bits.

A case is an operator, a dtype, a frontend and a scalar. The cases that eager computes for one dtype and scalar are one
program, whose results are compared one by one; those that eager refuses must raise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from graphs import warmed_up
from torch import Tensor

import torchmdla
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.frontends import variant_of

Scalar = int | float | bool

# Expressions of TorchScript in tensors ``x`` and ``y`` of one dtype, a mask ``m``, an index ``i`` and a scalar ``s``.
_EXPRESSIONS = """
x + s
x - s
s - x
x * s
s * x
x / s
s / x
x % s
x // s
torch.add(x, y, alpha=s)
torch.sub(x, y, alpha=s)
torch.rsub(x, y, alpha=s)
torch.rsub(x, s, 2)
torch.div(x, s, rounding_mode="floor")
torch.div(x, s, rounding_mode="trunc")
torch.fmod(x, s)
x == s
x != s
x < s
x <= s
x > s
x >= s
s < x
s == x
torch.clamp(x, s, None)
torch.clamp(x, None, s)
torch.clamp(x, s, 3)
torch.clamp(x, -3, s)
torch.clamp_min(x, s)
torch.clamp_max(x, s)
torch.where(m, x, s)
torch.where(m, s, x)
x.masked_fill(m, s)
torch.full_like(x, s)
torch.fill(x, s)
x.new_full([3], s)
torch.addcmul(x, y, y, value=s)
torch.addcdiv(x, y, y, value=s)
torch.lerp(x, y, s)
x & s
x | s
x ^ s
x << s
x >> s
torch.bitwise_left_shift(x, s)
torch.bitwise_right_shift(x, s)
torch.scatter(x, 0, i, s)
torch.threshold(x, s, s)
torch.threshold(x, 0.3, s)
torch.hardshrink(x, s)
torch.ops.aten.softshrink(x, s)
torch.ops.aten.hardtanh(x, -3, s)
torch.ops.aten.leaky_relu(x, s)
torch.constant_pad_nd(x, [1, 1], s)
torch.nan_to_num(x, s)
torch.nan_to_num(x, None, s)
torch.nan_to_num(x, None, None, s)
""".strip().splitlines()
# Of 0-d tensors alone.
_WITH_TENSORS = """
torch.maximum(x, s)
torch.minimum(s, x)
torch.max(x, s)
torch.logical_and(x, s)
torch.logical_xor(s, x)
torch.where(s > 1, x, y)
torch.where(m, x, s)
torch.clamp(x, s, s + 1)
torch.heaviside(x, s)
torch.addcmul(x, s, y)
torch.addcmul(x, y, s)
torch.addcmul(s, x, y)
torch.addcdiv(x, y, s)
torch.fmod(s, x)
torch.remainder(s, x)
torch.div(s, x, rounding_mode="floor")
s // x
torch.lerp(x, y, s)
""".strip().splitlines()
# Vector maths of a few units in the last place.
_APPROXIMATE = """
x ** s
s ** x
torch.ops.aten.elu(x, s)
torch.celu(x, s)
torch.ops.aten.softplus(x, s, 20)
torch.xlogy(x, s)
torch.logit(x, s)
""".strip().splitlines()
_APPROXIMATE_WITH_TENSORS = """
torch.atan2(x, s)
torch.atan2(s, x)
torch.hypot(x, s)
torch.logaddexp(x, s)
""".strip().splitlines()
_FUSED = ("alpha=", "addcmul", "addcdiv", "lerp", "rsub")

_DTYPES = [
    *("uint8", "int8", "int16", "int32", "int64", "bool"),
    *("bfloat16", "float16", "float32"),
]
_INTEGERS = (2, -3, 257, 300, 2049, 70000, 2**33 + 5, True)
_FLOATS = (0.3, 2.5, -1.7, 1e6, 1e39, math.nan, math.inf, -math.inf)
# Of numbers that are constants of a program, which are one program each, ``make test`` tries these.
_FEW: dict[str, Sequence[Scalar]] = {
    **dict.fromkeys(("uint8", "int8"), (300, -3, 2.5)),
    **dict.fromkeys(("int16", "int32"), (2**33 + 5, 70000, -3)),
    **dict.fromkeys(("int64", "bool"), (2, True, 0.3)),
    **dict.fromkeys(("bfloat16", "float16"), (0.3, 2049, math.nan)),
    "float32": (0.3, math.nan),
}
# What ``s`` is: a constant, or a number or 0-d tensor that is known at run time.
_SCALARS = ("constant", "float", "int", "uint8", "int32", "int64", "bool", "bfloat16", "float32", "float64")
_OFTEN = ("constant", "float", "int64", "bool", "float32")


def _tensors(dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the tensors of an expression: values where rules differ, as many as fill whole vectors of eager's."""
    if dtype.is_floating_point:
        numbers = [0.3, -0.3, 1.7, -1.7, 0.0, -0.0, 1.0, 2.5, -3.0, 255.0, 256.0, 258.0, 2048.0, 2050.0, 0.1, -0.7]
        special = [math.inf, -math.inf, math.nan, 65504.0, -65504.0, 1e-4, -1e-3, 33.0]
        x = torch.tensor([*numbers, *special, *numbers[:8]], dtype=torch.float64).to(dtype)
    elif dtype == torch.bool:
        x = torch.tensor([True, False, False, True] * 8)
    else:
        limits = torch.iinfo(dtype)
        numbers = [0, 1, 2, 3, 5, 43, 44, 100, limits.max, limits.min, limits.min + 1, limits.max - 1, 7, 64, 8, 15]
        x = torch.tensor([*numbers, *numbers[::-1]], dtype=dtype)
    x = x.repeat(2)
    return {"x": x, "y": x.roll(5), "m": torch.arange(64) % 3 == 0, "i": torch.tensor([3, 1])}


def _text(scalar: Scalar) -> str:
    return repr(scalar) if math.isfinite(scalar) else f"float('{scalar}')"


@cache
def _scripted(expressions: tuple[str, ...], type_: str, value: str) -> Callable[..., Sequence[Tensor]] | None:
    """Return a scripted function of ``expressions``, None where TorchScript refuses them; ``s`` is an argument of
    ``type_``, or ``value`` where that is empty."""
    argument, bound = (f", s: {type_}", "") if type_ else ("", f"    s = {value}\n")
    body = "".join(f"    r{n} = {text}\n" for n, text in enumerate(expressions))
    results = ", ".join(f"r{n}" for n in range(len(expressions)))
    source = f"def f(x: Tensor, y: Tensor, m: Tensor, i: Tensor{argument}):\n{bound}{body}    return [{results}]\n"
    try:
        return torch.jit.CompilationUnit(source).f  # type: ignore[no-any-return]
    except RuntimeError:
        return None


def _eager(expression: str, type_: str, inputs: Sequence[Any]) -> Tensor | None:
    """Return what PyTorch alone computes, None where it refuses."""
    given = inputs[:4] if not type_ else inputs
    function = _scripted((expression,), type_, "" if type_ else _text(inputs[4]))
    try:
        with torchmdla.enabled(False):
            return None if function is None else function(*given)[0]
    except RuntimeError:
        return None


def _is_same(actual: Tensor, expected: Tensor) -> bool:
    """Whether all bits are, but for those of a NaN."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    equal = (actual == expected) & (torch.signbit(actual) == torch.signbit(expected))
    return bool((equal | ((actual != actual) & (expected != expected))).all())


def _is_approximate(expression: str, dtype: torch.dtype) -> bool:
    """Whether eager's bits depend on vector maths, or on whether a product and a sum are rounded once."""
    is_fused = dtype.is_floating_point and dtype.itemsize > 2 and any(name in expression for name in _FUSED)
    return is_fused or expression in (*_APPROXIMATE, *_APPROXIMATE_WITH_TENSORS)


def _check(expression: str, scalar: object, actual: Tensor, expected: Tensor) -> None:
    if _is_same(actual, expected):
        return
    message = f"{expression} of {actual.dtype} with {scalar!r}: {actual.tolist()} instead of {expected.tolist()}"
    assert _is_approximate(expression, expected.dtype), message
    assert_matches(actual, expected)


def _scalars(dtype: str, kind: str, *, every: bool) -> list[Any]:
    """Return the scalars of a kind: numbers, or 0-d tensors."""
    if kind == "constant":
        return [*_INTEGERS, *_FLOATS] if every else list(_FEW[dtype])
    if kind in ("float", "int"):
        return list(_FLOATS if kind == "float" else _INTEGERS[: None if every else 3])
    wanted: torch.dtype = getattr(torch, kind)
    numbers = [*_INTEGERS, *_FLOATS] if wanted.is_floating_point else _INTEGERS
    return [torch.tensor(number).to(wanted) for number in numbers]


def _compare(dtype: str, kind: str, scalars: Sequence[Any]) -> int:
    """Compare every case of a dtype with eager; return how many there were. Expressions that eager computes for the
    same scalars are one program."""
    type_ = {"constant": "", "float": "float", "int": "int"}.get(kind, "Tensor")
    tensors = tuple(_tensors(getattr(torch, dtype)).values())
    expressions = [*_EXPRESSIONS, *_APPROXIMATE]
    if type_ == "Tensor":
        expressions += [*_WITH_TENSORS, *_APPROXIMATE_WITH_TENSORS]
    count = 0
    for group in [[scalar] for scalar in scalars] if not type_ else [scalars]:
        batches: dict[tuple[int, ...], dict[str, list[Tensor]]] = {}
        for text in expressions:
            made = [_eager(text, type_, (*tensors, scalar)) for scalar in group]
            places = tuple(place for place, result in enumerate(made) if result is not None)
            batches.setdefault(places, {})[text] = [result for result in made if result is not None]
        for places, expected in batches.items():
            count += _run(tuple(expected), type_, tensors, [group[place] for place in places], expected)
    return count


def _run(
    expressions: tuple[str, ...],
    type_: str,
    tensors: Sequence[Tensor],
    scalars: Sequence[Any],
    expected: Mapping[str, Sequence[Tensor]],
) -> int:
    """Compare one program with eager for each scalar."""
    if not scalars:
        return 0
    function = _scripted(expressions, type_, "" if type_ else _text(scalars[0]))
    assert function is not None
    # A group that is divided around an operator compiles at the fourth call.
    for scalar in [scalars[0]] * 5:
        function(*tensors, *([scalar] if type_ else []))
    for place, scalar in enumerate(scalars):
        results = function(*tensors, *([scalar] if type_ else []))
        for text, actual in zip(expressions, results, strict=True):
            _check(text, scalar, actual, expected[text][place])
    return len(scalars) * len(expressions)


def test_every_expression_is_one_of_torchscript() -> None:
    texts = [*_EXPRESSIONS, *_APPROXIMATE, *_WITH_TENSORS, *_APPROXIMATE_WITH_TENSORS]
    unread = [text for text in texts if not any(_scripted((text,), type_, "") for type_ in ("float", "Tensor", "int"))]
    assert unread == []


_KINDS = [kind if kind in _OFTEN else pytest.param(kind, marks=pytest.mark.full) for kind in _SCALARS]


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.usefixtures("without_gradients")
def test_scalars_of_torchscript(dtype: str, kind: str) -> None:
    assert _compare(dtype, kind, _scalars(dtype, kind, every=False)) >= 30
    assert torchmdla.stats().compiled_calls > 0


@pytest.mark.full
@pytest.mark.parametrize("kind", ["constant", "int"])
@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.usefixtures("without_gradients")
def test_every_scalar_of_torchscript(dtype: str, kind: str) -> None:
    _compare(dtype, kind, _scalars(dtype, kind, every=True))


_OTHERS = [
    (dtype, number, way)
    for dtype in ("uint8", "int16", "bfloat16", "float16")
    for number in (300, 0.3)
    for way in ("dynamo:compile", "lazy:step")
]


@pytest.mark.parametrize(("dtype", "number", "way"), _OTHERS)
@pytest.mark.usefixtures("without_gradients")
def test_scalars_of_other_frontends(dtype: str, number: Scalar, way: str) -> None:
    """A number that is a constant, and one that is a 0-d tensor."""
    variant = variant_of(way)
    variant.prepare()
    tensors = list(_tensors(getattr(torch, dtype)).values())
    for scalar, given in ((number, tensors), (torch.tensor(number), [*tensors, torch.tensor(number)])):
        texts = [text for text in _EXPRESSIONS if _python([text], scalar, given) is not None]

        def function(*inputs: Tensor, scalar: Any = scalar, texts: list[str] = texts) -> list[Tensor]:
            return [_value(text, inputs[-1] if len(inputs) > 4 else scalar, inputs) for text in texts]

        moved = tuple(tensor.to(variant.device) for tensor in given)
        called = variant.capture(function, moved, ("forward",))["forward"]
        for _ in range(3):
            results = [result.cpu() for result in called(*moved)]
        for text, actual, expected in zip(texts, results, function(*given), strict=True):
            _check(text, scalar, actual, expected)


def _value(expression: str, scalar: Any, tensors: Sequence[Tensor]) -> Tensor:
    return eval(expression, {"torch": torch, "s": scalar, **dict(zip("xymi", tensors, strict=False))})  # type: ignore[no-any-return]


def _python(expressions: Sequence[str], scalar: Any, tensors: Sequence[Tensor]) -> list[Tensor] | None:
    """Return what Python makes of ``expressions``, None where PyTorch refuses them."""
    try:
        with torchmdla.enabled(False):
            return [_value(text, scalar, tensors) for text in expressions]
    except (RuntimeError, TypeError):
        return None


_CHECKED = [
    "torch.add(x, y, alpha=s)",
    "torch.clamp(x, s, None)",
    "x.masked_fill(m, s)",
    "torch.full_like(x, s) + x",
    "torch.threshold(x, 0.3, s)",
    "torch.hardshrink(x, s)",
    "torch.ops.aten.leaky_relu(x, s)",
    "torch.addcmul(x, y, y, value=s)",
    "x ** s",
    "x * s",
]


@pytest.mark.parametrize("expression", _CHECKED)
@pytest.mark.usefixtures("without_gradients")
def test_a_number_of_run_time_beyond_the_dtype(expression: str) -> None:
    """Compiled code raises where eager does, and only there."""
    tensors = _tensors(torch.float16).values()
    function = _scripted((f"{expression} + x",), "float", "")
    assert function is not None
    for _ in range(4):
        function(*tensors, 0.5)
    calls = torchmdla.stats().compiled_calls
    assert calls > 0
    for number in (65504.0, 65505.0, 65519.0, 1e6, -1e6, 1e39, -1e300, math.inf, -math.inf, math.nan):
        expected = _eager(f"{expression} + x", "float", (*tensors, number))
        if expected is None:
            with pytest.raises(RuntimeError, match="without overflow"):
                function(*tensors, number)
        elif expression != "x ** s":
            assert _is_same(function(*tensors, number)[0], expected), number


@pytest.mark.parametrize("rows", [1, 3, 6])
@pytest.mark.parametrize("correction", [1, 2, 3, 5.5])
@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_a_correction_beyond_the_count(name: str, correction: float, rows: int) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        results = getattr(torch, name)(x + 1, 0, correction=correction)
        return tuple(one * 2 for one in (results if isinstance(results, tuple) else (results,)))

    x = torch.randn(rows, 4)
    assert_matches(warmed_up(function, x)(x), function(x))
    assert torchmdla.stats().fallbacks == {}


_BOUNDED = {
    "both": lambda x: torch.clamp(x, math.nan, 1.0),
    "least": lambda x: torch.clamp(x, min=math.nan),
    "most": lambda x: torch.clamp(x, -1, math.nan),
    "clamp_max": lambda x: torch.clamp_max(x, math.nan),
    "hardtanh": lambda x: torch.nn.functional.hardtanh(x, -1.0, math.nan),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
@pytest.mark.parametrize("name", _BOUNDED)
def test_a_bound_that_is_nan(name: str, dtype: torch.dtype) -> None:
    def function(x: Tensor) -> Tensor:
        return _BOUNDED[name](x + 1) * 2

    x = torch.arange(-4, 5).to(dtype)
    if name == "hardtanh" and not dtype.is_floating_point:
        pytest.skip("eager refuses it")
    assert_matches(warmed_up(function, x)(x), function(x))


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
@pytest.mark.usefixtures("without_gradients")
def test_what_is_no_integer_converted_to_one(dtype: torch.dtype, source: torch.dtype) -> None:
    """Constants tell the compiler which values are not finite."""

    def function(x: Tensor) -> list[Tensor]:
        floats = [x * math.inf, x / 0, x - x / 0 * 0, torch.where(x > 2, math.nan, x), x - x, -x]
        return [one.to(dtype) + 1 for one in floats]

    numbers = [math.nan, math.inf, -math.inf, 1e10, -1e10, 2.5, -2.5, 70000.0, 300.0, -300.0, 0.0]
    compiled = torch.compile(function, backend="torchmdla")
    for length in (3, 8, 37):
        x = torch.tensor((numbers * 4)[:length], dtype=source)
        for _ in range(3):
            assert_matches(compiled(x), function(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_training_with_a_factor_that_is_broadcast(dtype: torch.dtype) -> None:
    def function(x: Tensor, factor: Tensor) -> Tensor:
        return torch.tanh(torch.exp(factor) * x) * 2

    def gradients(called: Callable[..., Tensor]) -> list[Tensor | None]:
        inputs = [torch.rand(sizes, generator=torch.Generator().manual_seed(0)).to(dtype) for sizes in ((3, 5), (5,))]
        inputs = [one.requires_grad_() for one in inputs]
        called(*inputs).float().sum().backward()
        return [one.grad for one in inputs]

    scripted = torch.jit.script(function)
    for _ in range(4):
        assert_matches(gradients(scripted), gradients(function))
    assert torchmdla.stats().left_out == {}

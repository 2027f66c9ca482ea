"""Integers that vary: they keep 64 bits from the caller to the kernel, whatever is computed with them before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Optional, cast

import pytest
import torch
from lazy_device import moved
from torch import Tensor

import torchmdla
from torchmdla.testing.compare import assert_matches

# A double skips integers beyond 2**53. If 2**62 + 2**38 + 1 passes through a double, it rounds to another float32.
VALUES = (2**53 + 1, 2**60 + 7, 2**62 + 2**38 + 1, 2**63 - 1, -(2**53) - 1, -(2**63) + 5)

# From these values a group learns that the integer varies.
SMALL = (3, 5, 7, 11, 13)

# Expressions of int64 tensors ``x`` and integers ``n``.
EXPRESSIONS: Mapping[str, str] = {
    "sum": "(x + n) * 3 - x",
    "difference": "(x - n) * 3 + x",
    "difference from the number": "(n - x) * 3 + x",
    "product": "(x * n) * 3 + x",
    "multiple": "torch.add(x, x, alpha=n) * 3",
    "remainder of the number": "x * (n % 10) + 1",
    "remainder below zero": "x * (n % -10) + 1",
    "quotient of the number": "(x + n // 3) * 2",
    "quotient below zero": "(x + n // -3) * 2",
    "true quotient of the number": "x.double() * (n / 3) + 1",
    "difference of the number": "(x + (n - 4)) * 3",
    "least of numbers": "x * min(n, 7) + 1",
    "remainder": "(x % n) * 3 + x",
    "quotient": "(x // n) * 3 + x",
    "equal": "(x == n) & (x != n - 1)",
    "less": "(x < n) & (x <= n - 1)",
    "greater": "(x > n) | (x >= n - 1)",
    "largest": "x.clamp(max=n) * 3 + 1",
    "least": "x.clamp(n) * 3 + 1",
    "masked": "x.masked_fill(x > 4, n) * 3",
    "chosen": "torch.where(x > 4, n, x) * 3 + 1",
    "full": "torch.full_like(x, n) * 3 + x",
    "bits": "(x & n) * 3 + x",
    "sum with float32": "(x.float() + n) * 3",
    "product with float32": "(x.float() * 2) * n",
    "comparison with float32": "(x.float() < n) & (x.float() >= n - 1)",
    "bound of float32": "x.float().clamp(max=n) * 3 + 1",
    "sum with float64": "(x.double() + n) * 3",
    "choice": "x * 3 + 1 if n % 2 == 0 else x * 5 + 7",
}

# Intermediate integers of these need more than 64 bits. TorchScript's integers wrap, and Python's do not.
WRAPPING: Mapping[str, str] = {
    "product of numbers": "(x + (n * 2 + 5 - n)) * 3",
    "square of the number": "(x + n * n) * 3",
    "negative square of the number": "(x - n * n // 7) * 3",
}

# Results that a group computes from the number alone.
RETURNED: Mapping[str, str] = {"number": "(x * 3 + n, n + x.size(0) - 1, n // 3, n % 10, [n - 1, 2])"}


def scripted(expression: str) -> Callable[[Tensor, int], object]:
    unit = torch.jit.CompilationUnit(f"def f(x, n: int):\n    return {expression}\n")
    return unit.f  # type: ignore[no-any-return]


def around(n: int) -> Tensor:
    """Return integers next to ``n``, and small ones."""
    return torch.tensor([max(n - 1, -(2**63)), n, min(n + 1, 2**63 - 1), 0, 5, -7, n // 3])


@pytest.mark.parametrize("name", [*EXPRESSIONS, *WRAPPING, *RETURNED])
def test_scripted(name: str) -> None:
    expression = {**EXPRESSIONS, **WRAPPING, **RETURNED}[name]
    program = scripted(expression)
    with torchmdla.api.without_groups():
        alone = scripted(expression)
        expected = {n: alone(around(n), n) for n in SMALL + VALUES}
    for n in (*SMALL, *VALUES, *VALUES):
        assert_matches(program(around(n), n), expected[n])
    assert torchmdla.stats().specialisations


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.sampled(6)
def test_large_from_the_first_call_on(name: str) -> None:
    first = 2**62 + 1
    program, eager = scripted(EXPRESSIONS[name]), eval(f"lambda x, n: {EXPRESSIONS[name]}", {"torch": torch})
    for n in [*range(first, first + 5), 3]:
        assert_matches(program(around(n), n), eager(around(n), n))


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("frontend", ["compile", "lazy", "acap"])
@pytest.mark.sampled(6)
def test_other_frontends(name: str, frontend: str, request: pytest.FixtureRequest) -> None:
    eager = eval(f"lambda x, n: {EXPRESSIONS[name]}", {"torch": torch})
    torch._dynamo.reset()
    program = torch.compile(eager, backend="torchmdla", dynamic=True) if frontend == "compile" else eager
    fixture = {"lazy": "lazy_device", "acap": "dev"}.get(frontend)
    device = "cpu"
    if fixture:
        request.getfixturevalue(fixture)
        device = frontend
    for n in (*SMALL, *VALUES, *VALUES):
        assert_matches(moved(program(around(n).to(device), n)), eager(around(n), n), strides=False)


# Lists that no kernel reads: a method's argument brings them into a group.
LISTS: Mapping[str, tuple[str, str, list[list[object]]]] = {
    "integers or None": ("Optional[int]", "4", [[None, None], [2, None], [None, 5], [2, 6]]),
    "integers": ("int", "4", [[1, 2], [3, 4]]),
    "truths or None": ("Optional[bool]", "True", [[None, None], [True, False], [None, True]]),
    "floats or None": ("Optional[float]", "4.5", [[None, None], [2.5, 1.5], [2.5, 3.0]]),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_a_constant_of_a_signature(name: str) -> None:
    element, default, lists = LISTS[name]
    text = f"""
def f(x, sizes: List[{element}]):
    y = torch.relu(x * 2 + 1) @ x.t()
    n = sizes[1]
    if n is None:
        n = {default}
    return y.sum(0) * 3, n
"""
    program = torch.jit.CompilationUnit(text).f
    names: dict[str, object] = {"torch": torch, "Optional": Optional, "List": list}
    exec(text, names)
    eager, x = cast(Callable[..., object], names["f"]), torch.randn(3, 3)
    with torch.no_grad():
        for sizes in lists * 3:
            assert_matches(program(x, sizes), eager(x, sizes))
    assert torchmdla.stats().fallbacks == {}
    assert torchmdla.stats().compiled_calls


def test_the_reason_names_an_input_that_no_group_takes() -> None:
    program = torch.jit.CompilationUnit("def f(x, bias):\n    return torch.relu(x * 2 + bias) * 3\n").f
    x, bias = torch.randn(3, 3), torch.randn(3, 3, dtype=torch.complex64).conj().imag
    assert bias.is_neg()
    for _ in range(2):
        assert_matches(program(x, bias), torch.relu(x * 2 + bias) * 3)
    reason = "an input is not a plain strided CPU tensor: %bias.1 is CPUFloatType with DispatchKeySet(Negative)"
    assert torchmdla.stats().fallbacks == {reason: 2}

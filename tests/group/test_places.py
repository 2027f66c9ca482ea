"""Operators with starts, ends, lengths, dimensions or indices: values and errors are eager's.

Each row is an expression of ``y``, a tensor of two dimensions, and of two integers. It is compiled with the integers as
constants, for dynamic sizes, and with the integers as runtime scalars.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from raising import assert_agrees
from torch import Tensor

import torchmdla
from torchmdla.testing.compare import assert_matches

Pairs = list[tuple[int, int]]


def firsts(*values: int) -> Pairs:
    """Return pairs for an expression of one integer."""
    return [(value, 0) for value in values]


_DIMS = firsts(-3, -2, -1, 0, 1, 2)
_SWAPS = [(0, 1), (-1, 0), (-2, -1), (0, 2), (-3, 0), (0, 0)]
_PARTS = [(1, 0), (2, 0), (7, 0), (0, 0), (-1, 0), (2, -1), (2, 2), (4, -2)]

ROWS: dict[str, Pairs] = {
    "y.narrow(0, a, b)": [(a, b) for a in (-6, -5, -2, -1, 0, 3, 5, 6) for b in (-1, 0, 1, 2, 5)],
    "y.narrow(-1, a, b)": [(-1, 1), (-3, 3), (-3, 2), (0, 3), (3, 0), (-3, 0), (2, 2)],
    "y.narrow(a, -1, b)": [(0, 1), (-1, 1), (1, 0), (2, 1), (-3, 1), (0, 2)],
    "y[a:b]": [(a, b) for a in (-12, -5, -1, 0, 2, 5, 6) for b in (-6, -1, 0, 2, 9)],
    "y[a::b]": [(-3, 1), (-3, 2), (0, 3), (9, 2)],  # Python's error message for such a step differs
    "y[:, a:b]": [(-1, 9), (-9, -1), (0, 0), (2, 1)],
    "y.select(0, a).unsqueeze(b)": [(-6, 0), (-5, 0), (-1, 0), (0, -1), (4, 1), (5, 0), (2, -3), (2, 2)],
    "y.select(a, b)": [(0, 1), (-1, 1), (-2, 4), (1, 3), (2, 0), (-3, 0)],
    "y[..., a]": firsts(-3, -1, 0, 2),  # and so does its message for an index
    "y.unfold(0, a, b)": [(0, 1), (1, 1), (5, 1), (6, 1), (2, 3), (2, 0), (-1, 1)],
    "y.unfold(a, 2, b)": [(0, 1), (-1, 1), (-2, 3), (2, 1), (-3, 1)],
    "torch.roll(y, a)": firsts(-16, -5, -1, 0, 3, 15, 17),
    "torch.roll(y, [a], [b])": [(1, 0), (-1, -1), (7, -2), (-6, 0), (1, 2), (1, -3)],
    "torch.roll(y, [a, b], [0, 0])": [(1, 2), (-7, 7)],
    "y.diagonal(a)": firsts(-6, -5, -4, -1, 0, 2, 3, 4),
    "y.diagonal(0, a, b)": [*_SWAPS, (0, -2)],
    "torch.diag_embed(y, a, b, -1)": [(0, -2), (1, 0), (-1, 1), (2, -1), (3, 0)],
    "torch.cumsum(y, a)": _DIMS,
    "torch.cumprod(y, a)": _DIMS,
    "y.transpose(a, b)": _SWAPS,
    "torch.movedim(y, a, b)": _SWAPS,
    "torch.swapaxes(y, a, b)": _SWAPS,
    "torch.permute(y, [a, b])": _SWAPS,
    "y.flatten(a, b)": [(0, 1), (0, -1), (-2, -1), (1, 1), (1, 0), (0, 2), (-3, 0)],
    "y.unflatten(0, [a, b])": [(5, 1), (-1, 5), (5, -1), (-1, -1), (2, 2), (1, -1), (0, -1)],
    "y.view(a, b)": [(3, 5), (-1, 5), (15, -1), (-1, -1), (2, 8), (-1, 0), (-2, 5), (-1, 4)],
    "y.expand(a, b)": [(5, 3), (-1, 3), (5, -1), (4, 3), (0, 3)],
    "y.repeat(a, b)": [(1, 2), (0, 1), (2, 0), (-1, 1)],
    "y[:1].squeeze(a)": _DIMS,
    "y[:1, :1].squeeze([a, b])": [(0, 1), (-1, 0), (0, 0), (0, -2), (0, 2)],
    "y.unsqueeze(a)": firsts(-4, -3, -1, 0, 2, 3),
    "torch.flip(y, [a, b])": [(0, 1), (0, 0), (-1, 0), (2, 0), (-3, 1)],
    "torch.rot90(y, a, [0, b])": [(0, 1), (1, 1), (-1, -1), (2, 1), (5, 1), (1, 0), (1, -2), (1, 2)],
    "torch.topk(y, a, b)[0]": [(0, 0), (1, 0), (3, -1), (5, 0), (6, 0), (-1, 0), (2, 2)],
    "torch.kthvalue(y, a, b)[0]": [(1, 0), (0, 0), (5, 0), (6, 0), (3, -1), (1, 2)],
    "torch.softmax(y, a)": _DIMS,
    "torch.log_softmax(y, a)": _DIMS,
    "y.sum([a, b])": [*_SWAPS, (0, -2)],
    "y.amax([a, b])": [*_SWAPS, (0, -2)],
    "y.max(a)[0]": _DIMS,
    "y.argmax(a)": _DIMS,
    "torch.logsumexp(y, [a])": _DIMS,
    "torch.cat([y, y], a)": _DIMS,
    "torch.stack([y, y], a)": firsts(-4, -3, -1, 0, 2, 3),
    "torch.tril(y, a)": firsts(-9, -5, -1, 0, 1, 3, 9),
    "torch.nn.functional.pad(y, [a, b])": [(0, 0), (1, 2), (-1, 0), (-1, -1), (-2, -1), (-3, -1), (-4, 1), (4, -3)],
    "torch.as_strided(y, [a, 2], [b, 1])": [(2, 3), (0, 1), (5, 3), (6, 3), (2, -1), (-1, 1), (2, 0)],
    "torch.as_strided(y, [2], [1], a)": firsts(-1, 0, 5, 13, 14),
    "torch.index_select(y, a, torch.tensor([0, 1]))": _DIMS,
    "torch.gather(y, a, torch.zeros([2, 2], dtype=torch.long))": _DIMS,
    "torch.scatter(y, a, torch.zeros([2, 2], dtype=torch.long), 1.0)": _DIMS,
    "torch.select_scatter(y, torch.ones([3]), 0, a)": firsts(-6, -5, -1, 0, 4, 5),
    "torch.slice_scatter(y, y[:2], 0, a, b)": [(0, 2), (-2, 9), (-5, -3), (3, 5), (3, 4), (2, 1)],
    "torch.nn.functional.glu(y[:, :2], a)": firsts(-1, 1, 0, 2, -3),
    "torch.repeat_interleave(y, a, b)": [(2, 0), (0, 0), (1, -1), (-1, 0), (2, 2)],
    "torch.chunk(y, a, b)[0]": _PARTS,
    "torch.split(y, a, b)[-1]": _PARTS,
    "torch.split_with_sizes(y, [a, b], 0)[1]": [(2, 3), (0, 5), (5, 0), (2, 2), (6, -1), (3, 3)],
    "torch.tensor_split(y, a, b)[-1]": _PARTS,
    "torch.tensor_split(y, [a, b], 0)[1]": [(1, 3), (3, 1), (-2, 9), (0, 0), (-9, 9)],
    "torch.unbind(y, a)[0]": _DIMS,
    "torch.arange(a, b)": [(0, 5), (-2, 2), (3, 3), (5, 0)],
    "torch.nn.functional.avg_pool1d(y, a, b)": [(2, 1), (3, 3), (4, 1), (0, 1), (2, 0), (-1, 1)],
    "torch.nn.functional.max_pool1d(y, a, b)": [(2, 1), (3, 3), (4, 1), (0, 1), (2, 0), (-1, 1)],
    "torch.pow((y * 4).int(), a)": firsts(0, 1, 3, -1),
    "torch.floor_divide((y * 4).int(), a)": firsts(1, 3, -1, 0),
    "torch.remainder((y * 4).int(), a)": firsts(1, 3, -1, 0),
}


def compile_expression(expression: str, integers: str) -> tuple[Callable[..., Tensor], Any]:
    """Return the expression between compiled operators, as a Python function and as a TorchScript function."""
    source = f"def f(x: Tensor{integers}):\n    y = torch.tanh(x) * 2\n    return ({expression}) * 2 + 1\n"
    names: dict[str, Any] = {"torch": torch, "Tensor": Tensor}
    exec(source, names)
    return names["f"], torch.jit.CompilationUnit(source).f


def check_no_internal_error() -> None:
    statistics = torchmdla.stats()
    assert not [reason for reason in [*statistics.left_out, *statistics.fallbacks] if "internal error" in reason]


@pytest.mark.parametrize("expression", ROWS)
@pytest.mark.usefixtures("without_gradients")
@pytest.mark.sampled(6)
def test_integers_of_run_time(expression: str) -> None:
    function, scripted = compile_expression(expression, ", a: int, b: int")
    pairs = ROWS[expression]
    for pair in [*(pair for pair in pairs for _ in range(3)), *reversed(pairs)]:
        assert_agrees(scripted, function, torch.randn(5, 3), *pair, kind=RuntimeError)
    check_no_internal_error()


@pytest.mark.parametrize("expression", ROWS)
@pytest.mark.usefixtures("without_gradients")
@pytest.mark.sampled(1)
def test_constants(expression: str) -> None:
    pairs = ROWS[expression]
    for a, b in pairs[:: -(-len(pairs) // 6)]:
        function, scripted = compile_expression(re.sub(r"\bb\b", str(b), re.sub(r"\ba\b", str(a), expression)), "")
        for sizes in [(5, 3)] * 3 + [(7, 4), (9, 5), (6, 3)]:
            assert_agrees(scripted, function, torch.randn(sizes), kind=RuntimeError)
    check_no_internal_error()


def three_parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, b, c = (x * 2).chunk(3, 0)
    return a + 1, b.relu(), c * 1


def two_of_three_parts(x: Tensor) -> Tensor:
    a, b, _ = (x * 2).chunk(3, 0)
    return a + b.relu()


@pytest.mark.parametrize("function", [three_parts, two_of_three_parts])
@pytest.mark.usefixtures("without_gradients")
def test_fewer_parts_than_are_named(function: Callable[..., Any]) -> None:
    scripted = torch.jit.script(function)
    for rows in (3, 3, 3, 6, 9, 2, 2, 4, 4, 3):
        x = torch.randn(rows, 4)
        if rows % 3:
            with pytest.raises(RuntimeError, match="Expected chunk to return at least 3 outputs, but got only 2"):
                scripted(x)
        else:
            assert_matches(scripted(x), function(x))
    check_no_internal_error()

"""Decompositions of transposed convolutions and of gradients compute the same values as eager."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from torchmdla.importer.decompositions import convolutions
from torchmdla.testing.compare import assert_matches


@dataclass(frozen=True)
class Call:
    """Arguments of a convolution without its bias."""

    value: torch.Tensor
    weight: torch.Tensor
    options: tuple[Any, ...]  # stride, padding, dilation, transposed, output padding, groups


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Return convolutions whose results have elements."""
    spatial, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    transposed = draw(st.booleans())

    def each(least: int, most: int) -> list[int]:
        return [draw(st.integers(least, most)) for _ in range(spatial)]

    stride, padding, dilation = each(1, 5 if spatial < 3 else 3), each(0, 3), each(1, 3)
    more = [draw(st.integers(0, max(s, d) - 1)) if transposed else 0 for s, d in zip(stride, dilation, strict=True)]
    kernel, sizes = each(1, 4), each(2, 8)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    for n, r, s, p, m in zip(sizes, reach, stride, padding, more, strict=True):
        assume((n - 1) * s - 2 * p + r + m >= 0 if transposed else n + 2 * p > r)
    ins, outs = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    lead = (ins, outs // groups) if transposed else (outs, ins // groups)
    return Call(normal(2, ins, *sizes), normal(*lead, *kernel), (stride, padding, dilation, transposed, more, groups))


def normal(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, dtype=torch.float64)


@given(calls())
def test_forward(call: Call) -> None:
    expected = torch.convolution(call.value, call.weight, None, *call.options)
    bias = normal(expected.size(1))
    result = convolutions.convolution(call.value, call.weight, bias, *call.options)
    assert_matches(result.contiguous(), expected + bias.view([-1] + [1] * (expected.dim() - 2)), layers=4)


@given(calls(), st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_gradients(call: Call, mask: tuple[bool, bool, bool]) -> None:
    gradient = torch.randn_like(torch.convolution(call.value, call.weight, None, *call.options))
    arguments = (gradient, call.value, call.weight, [gradient.size(1)], *call.options, mask)
    expected = torch.ops.aten.convolution_backward(*arguments)
    gradients = convolutions.convolution_backward(*arguments)
    for ours, theirs in zip(gradients, expected, strict=True):
        if theirs is None:
            assert ours is None
        else:
            assert ours is not None
            assert_matches(ours.contiguous(), theirs.contiguous(), layers=4)

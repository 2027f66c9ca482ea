"""Mean and variance in one pass over a row: the nests that it replaces, and that its errors are not larger."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from test_patterns import rewritten
from torch import Tensor, nn

import torchmdla
from torchmdla.devices.cpu.passes.moments import MOMENTS
from torchmdla.testing.compare import assert_matches

BEFORE = """
buffer input0 : f32[2, 512]
buffer temporary0 : f32[2]
buffer temporary1 : f32[2, 512]
buffer temporary2 : f32[2]
buffer result1 : f32[2, 512]
entry {
  nest d0:2 d1:512+ {
    i0 = input0[d0, d1]
    o0 = from 0.0 : f32
    v0 : f32 = arith.addf i0, o0
    temporary0[d0] = v0
  }
  nest d0:2 d1:512 {
    i0 = input0[d0, d1]
    i1 = temporary0[d0]
    v0 : f32 = arith.divf i1, 512.0
    v1 : f32 = arith.subf i0, v0
    temporary1[d0, d1] = v1
  }
  nest d0:2 d1:512+ {
    i0 = temporary1[d0, d1]
    o0 = from 0.0 : f32
    v0 : f32 = arith.mulf i0, i0
    v1 : f32 = arith.addf v0, o0
    temporary2[d0] = v1
  }
  nest d0:2 d1:512 {
    i0 = temporary1[d0, d1]
    i1 = temporary2[d0]
    v0 : f32 = arith.mulf i0, i1
    result1[d0, d1] = v0
  }
}
"""


def test_a_norm_walks_its_rows_once_for_both() -> None:
    text = rewritten(MOMENTS, BEFORE)
    assert text.count("nest ") == 5
    loops = ["d0:2 d1:2+ d2:16+", "d0:2 d1:512+", "d0:2", "d0:2 d1:512"]
    assert [text.count(f"nest {each} {{") for each in loops] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("arith.divf i1, 512.0", "arith.divf i1, 511.0"),  # not a mean
        ("arith.mulf i0, i0", "arith.mulf i0, o0"),  # not squares
        ("    v0 : f32 = arith.addf i0, o0", "    v0 : f32 = arith.maximumf i0, o0"),  # not a sum
        (" 512", " 128"),  # short
    ],
)
def test_other_sums_than_variances_stay(old: str, new: str) -> None:
    before = BEFORE.replace(old, new)
    assert before != BEFORE
    assert rewritten(MOMENTS, before) == before.partition("entry ")[2]


def around(mean: float, deviation: float = 1.0) -> Callable[[Tensor], Tensor]:
    return lambda x: x * deviation + mean


def first(value: float, count: int = 1) -> Callable[[Tensor], Tensor]:
    """Return a function whose first elements of each row are far from the others."""
    return lambda x: torch.cat([torch.full_like(x[:, :count], value), x[:, count:]], 1)


ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "large mean": around(1e4),
    "larger mean, small deviation": around(-1e4, 0.05),
    "first is an outlier": first(1e4),
    "first part is another": first(300.0, 64),
    "last is an outlier": lambda x: first(1e4)(x).flip(1),
    "a slope": lambda x: x + torch.arange(x.shape[1]),
    "large": lambda x: x * 1e15,
    "small": lambda x: x * 1e-15,
}


@pytest.mark.parametrize("rows", ROWS)
def test_errors_are_those_of_eager(rows: str) -> None:
    x = ROWS[rows](torch.randn(8, 1024, generator=torch.Generator().manual_seed(3)))
    norm = nn.LayerNorm(1024, eps=0.0).eval()
    with torch.no_grad():
        ours, eager = torchmdla.compile(torch.jit.trace(norm, (x,)), x)(x), norm(x)
        exact = norm.double()(x.double())
    errors = [(result - exact).square().mean().sqrt() for result in (ours, eager)]
    assert errors[0] <= 2 * max(errors[1], 1e-7)


ALL, FIRST, LAST = slice(None), slice(0, 1), slice(-1, None)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        *itertools.product([0.0, 1.0, 1e4, 3.3e8, math.inf, -math.inf, math.nan], [ALL, FIRST, LAST]),
        (1e35, LAST),  # The variance is infinite. If that element comes first, eager returns NaN.
    ],
)
def test_special_rows(value: float, place: slice) -> None:
    x = torch.randn(4, 512, generator=torch.Generator().manual_seed(4))
    x[1, place] = value
    norm = nn.LayerNorm(512).eval()
    with torch.no_grad():
        result = torchmdla.compile(torch.jit.trace(norm, (x,)), x)(x)
        if place == ALL and math.isfinite(value):
            # The difference of equal numbers is the rounding error of the mean.
            assert result[1].isfinite().all()
            result[1] = norm(x)[1]
        assert_matches(result, norm(x))


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "group": (lambda: nn.GroupNorm(4, 32), (3, 32, 9, 11)),
    "group of two channels": (lambda: nn.GroupNorm(16, 32), (3, 32, 13, 17)),
    "instance": (lambda: nn.InstanceNorm2d(8, affine=True), (2, 8, 40, 40)),
    "layers of several dimensions": (lambda: nn.LayerNorm((5, 67)), (7, 5, 67)),
    "all at once": (lambda: nn.GroupNorm(1, 64), (1, 64, 80, 80)),
    "double precision": (lambda: nn.LayerNorm(300).double(), (5, 300)),
}


@pytest.mark.parametrize("name", NORMS)
def test_values(name: str) -> None:
    make, shape = NORMS[name]
    module = make().eval()
    x = torch.randn(shape, dtype=torch.float64 if "double" in name else torch.float32)
    with torch.no_grad():
        assert_matches(torchmdla.compile(torch.jit.trace(module, (x,), check_trace=False), x)(x), module(x))

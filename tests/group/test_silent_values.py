"""Values that compilers have computed wrongly and silently.

These are promotion, wrapping, rounding, NaN, empty and tiny sizes. The kinds are those of a survey of ``torch.compile``
(arXiv 2604.08720), and of the issues that PyTorch labels as silent correctness errors. The programs are our own.
"""

from __future__ import annotations

from math import inf, nan

import pytest
import torch
from silent import Exceptions, assert_as_eager
from torch import Tensor, nn, tensor
from torch.nn import functional as F  # noqa: N812

from torchmdla.testing.programs.inputs import (
    booleans,
    channels_last,
    expanded,
    integers,
    normal,
    overlapping,
    repeated,
    strided,
    transposed,
)
from torchmdla.testing.programs.program import functions, in_eval, modules, with_gradients

X, Y = normal(3, 7), normal(3, 7)
I8 = integers(4, 6, low=-128, high=128, dtype=torch.int8)
U8 = integers(4, 6, low=0, high=256, dtype=torch.uint8)
I16 = integers(4, 6, low=-(2**15), high=2**15, dtype=torch.int16)
I32 = integers(4, 6, low=-(2**31), high=2**31, dtype=torch.int32)
I64 = integers(4, 6, low=-(2**62), high=2**62)
SPECIAL = tensor([[0.0, -0.0, 1.0, -1.0], [nan, inf, -inf, 0.5], [2.5, -2.5, 1e-40, -3e38]])
ZEROS = tensor([0.0, -0.0, 1.0, -1.0])


# --- dtypes and wrapping -----------------------------------------------------------------------------------------


def int8_products(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.bmm(x[None] + 1, y.t()[None])
    return z, z * 3


def sums_of_wrapped_products(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return (x * y + x * z).sum(1) - (x * (y + z)).sum(1)


def integer_products_apart(x: Tensor, y: Tensor) -> Tensor:
    z = y.t()
    return (x @ z + x @ (z + 1)).sum(1)


def wrapped_then_widened(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    doubled = x + x
    return doubled.to(torch.int32), (x * 3).float(), (-x).to(torch.int64)


def absolute_of_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    y = -x.abs()
    return torch.cat([y, x]).sum(), (x - 1).abs().int()


def absolute_of_least(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.abs() + 0, torch.neg(x).abs().to(torch.int32)


def shifts_of_any_sign(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (x >> 3) + 1, (x << 2) ^ x, (x >> 7) & 1


def quotients_of_both_signs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    d = torch.where(y == 0, 7, y)
    d = torch.where(d == -1, 3, d)
    return x // d, torch.div(x, d, rounding_mode="trunc") + 0, x % d, torch.fmod(x, d)


def floor_of_float_quotients(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y = x.flip(1)
    return x // y, torch.remainder(x, y), torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc")


def running_sums_of_narrow(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.cumsum(1) + 1, x.cumprod(0) * 2, x.cumsum(0, dtype=torch.int8) + 1


def running_sum_of_constant(x: Tensor) -> tuple[Tensor, Tensor]:
    ones = torch.ones(3, 7, dtype=torch.bool)
    return ones.cumsum(1, dtype=torch.bfloat16) * 2, torch.full((3, 7), 2, dtype=torch.int32).cumsum(1) + x


def mantissas_and_exponents(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ldexp(x > 0, y), torch.ldexp(x.int(), y.half()) + 1, torch.ldexp(x.half(), y) * 2


def promoted_by_category(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scalar = z.sum()
    return x + scalar, y * scalar, (x > 3) + y, torch.where(x > 3, scalar, y)


def booleans_as_numbers(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return x + y, x * y, (x.sum(0) + y).sum(), x.cumsum(1), ~x ^ y


def means_of_integers(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.float().mean(1), x / 2, torch.mean(x, 1, dtype=torch.float64)


def truth_of_floats(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x.to(torch.bool), torch.logical_not(x), torch.logical_xor(x, x.flip(0)), x.to(torch.bool).any(1)


def powers_of_integers(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    small = x % 5
    return x**3, small**0, torch.pow(2, small), torch.float_power(small, 2)


def common_divisors(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.gcd(x, y) + 1, torch.lcm(x % 100, y % 100)


def numbers_chosen(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        torch.where(x > 0, 1, 0) * 2,
        torch.where(x > 0, 1.5, 0) + 1,
        torch.where(x > 0, x, 2),
        torch.where(x > 0, x.half(), -1.0) * 2,
    )


def integers_beyond_floats(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    big = x | 9007199254740993  # the least positive integer that float64 cannot represent
    return big + 1, big == big + 1, torch.maximum(big, big - 1) - big


WRAPPING = {
    "int8_products": (int8_products, I8, I8),
    "sums_of_wrapped_products": (sums_of_wrapped_products, I32, I32, I32),
    "sums_of_wrapped_shorts": (sums_of_wrapped_products, I16, I16, I16),
    "integer_products_apart": (integer_products_apart, I32, I32),
    "wrapped_bytes_widened": (wrapped_then_widened, U8),
    "wrapped_signed_bytes_widened": (wrapped_then_widened, I8),
    "absolute_of_bytes": (absolute_of_bytes, U8),
    "absolute_of_least": (absolute_of_least, tensor([-128, 127, -127, 0], dtype=torch.int8)),
    "shifts_of_bytes": (shifts_of_any_sign, I8),
    "shifts_of_words": (shifts_of_any_sign, I32),
    "quotients_of_both_signs": (quotients_of_both_signs, I32, integers(4, 6, low=-9, high=10, dtype=torch.int32)),
    "quotients_of_bytes": (quotients_of_both_signs, I8, I8),
    "floor_of_float_quotients": (floor_of_float_quotients, SPECIAL),
    "running_sums_of_bytes": (running_sums_of_narrow, I8),
    "running_sums_of_booleans": (running_sums_of_narrow, booleans(4, 6)),
    "running_sum_of_constant": (running_sum_of_constant, X),
    "mantissas_and_exponents": (mantissas_and_exponents, X, normal(3, 7)),
    "promoted_by_category": (promoted_by_category, I8, normal(4, 6, dtype=torch.float16), normal(2)),
    "promoted_by_wide_number": (promoted_by_category, I32, normal(4, 6), normal(2, dtype=torch.float64)),
    "booleans_as_numbers": (booleans_as_numbers, booleans(4, 6), booleans(4, 6)),
    "means_of_integers": (means_of_integers, I64),
    "truth_of_floats": (truth_of_floats, SPECIAL),
    "powers_of_integers": (powers_of_integers, integers(4, 6, low=-50, high=50, dtype=torch.int32)),
    "common_divisors": (common_divisors, I64, integers(4, 6, low=-60, high=60)),
    "numbers_chosen": (numbers_chosen, X),
    "integers_beyond_floats": (integers_beyond_floats, I64),
}


# --- NaN, infinities, zeros of both signs ------------------------------------------------------------------------


def limits_that_are_nan(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    low, high = x.flip(0), x.flip(1)
    return (
        x.clamp(low, high),
        x.clamp(1.0, -1.0),
        x.clamp(max=high),
        torch.clamp_min(x, 0.0),
        F.hardtanh(x, -0.5, 0.5),
    )


def larger_of_two(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y = x.flip(0)
    return torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y), torch.fmin(x, y)


def largest_of_many(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    values, places = x.max(1)
    return values, places, x.amin(0), x.argmin(0), x.argmax()


def running_largest(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    high, at_high = x.cummax(1)
    low, at_low = x.flip(0).cummin(0)
    return high * 2, at_high, low, at_low


def ties(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y = x // 3
    return y.argmax(1), y.argmin(0), y.max(1)[1], y.min(0)[1]


def sorted_with_equals(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, places = torch.sort(x, dim=1, stable=True)
    down, _ = torch.sort(x, 0, descending=True)
    return values, places + 1, down * 2


def signs(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        torch.sign(x),
        torch.signbit(x) | (x > 2),
        torch.copysign(x, -0.0),
        torch.copysign(x * 0 + 2.0, x),
        1 / torch.abs(x),
    )


def zeros_of_both_signs(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return 1 / (x * 0), 1 / (x + 0.0), 1 / (0.0 - x), 1 / -x, 1 / torch.round(x * 0.3)


def zeros_after_operators(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return 1 / x.relu(), 1 / x.sqrt(), 1 / x.trunc(), 1 / x.sin(), 1 / x.tanh()


def compared_with_nan(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    y = x.flip(1)
    return x < y, ~(x >= y), x != x, torch.isclose(x, y, equal_nan=True), (x == y) | (x > y) | (x < y)


def zero_times_anything(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x * 0, x - x, x / x, torch.where(x > 0, x, x * 0) * 0


def replaced_specials(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.nan_to_num(x), torch.nan_to_num(x.half(), nan=1.0, posinf=2.0), x.nan_to_num(neginf=-7.0) * 2


def softmax_of_nothing(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    hidden = x.masked_fill(x < 9, -inf)
    hidden[0, 0] = 1.0
    return hidden.softmax(1), hidden.log_softmax(1), hidden.logsumexp(1), torch.logaddexp(hidden, hidden)


def running_logsumexp(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.logcumsumexp(x.masked_fill(x < 0, -inf), 1), torch.logaddexp2(x, x * 0 - inf)


def zero_times_logarithm(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y = x.abs()
    return torch.xlogy(x * 0, y), torch.special.xlog1py(y, x), torch.special.entr(y), torch.sinc(x)


def edges_of_functions(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return torch.lgamma(x), torch.erf(x), torch.log1p(x), torch.expm1(x), torch.atanh(x)


def quadrants(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x.flip(0)
    return torch.atan2(x, y), torch.hypot(x, y), torch.heaviside(x, y)


def powers_at_edges(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return x**0, x**0.5, x**-1, torch.pow(0.0, x), x ** x.flip(1)


def rounded_halves(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y = x * 0.5
    return torch.round(y), torch.round(y * 0.25, decimals=1), torch.frac(-y), y.round().int() + y.trunc().int()


def activations_of_specials(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return F.relu6(x), F.softshrink(x, 0.5), F.threshold(x, 0.0, -7.0), F.elu(x, 0.3), F.logsigmoid(x)


def smooth_activations_of_specials(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return F.hardswish(x * 3), F.softplus(x, 2.0, 1.0), F.mish(x), F.celu(x, 0.7), F.gelu(x, approximate="tanh")


def norms_of_specials(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    norm = torch.linalg.vector_norm
    return norm(x, 0, 1), norm(x, inf, 1), norm(x, -inf, 0), norm(x, 3, 1)


def median_with_nan(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.median(1)[0] * 2, x.nanmedian(), x.nansum(0) + x.nanmean(1).sum()


def none_or_all(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (x * 1).any(1), (x * 1).all(0), torch.count_nonzero(x * 1, 1)


SPECIALS = {
    "limits_that_are_nan": (limits_that_are_nan, SPECIAL),
    "larger_of_two": (larger_of_two, SPECIAL),
    "larger_of_two_halves": (larger_of_two, SPECIAL.half()),
    "largest_of_many": (largest_of_many, SPECIAL),
    "running_largest": (running_largest, SPECIAL),
    "ties": (ties, integers(5, 9, high=9)),
    "sorted_with_equals": (sorted_with_equals, integers(5, 40, high=4).then(lambda x: x.float())),
    "sorted_with_specials": (sorted_with_equals, SPECIAL),
    "signs": (signs, SPECIAL),
    "zeros_of_both_signs": (zeros_of_both_signs, ZEROS),
    "zeros_after_operators": (zeros_after_operators, ZEROS),
    "compared_with_nan": (compared_with_nan, SPECIAL),
    "zero_times_anything": (zero_times_anything, SPECIAL),
    "replaced_specials": (replaced_specials, SPECIAL),
    "softmax_of_nothing": (softmax_of_nothing, X),
    "running_logsumexp": (running_logsumexp, X),
    "zero_times_logarithm": (zero_times_logarithm, SPECIAL),
    "edges_of_functions": (edges_of_functions, SPECIAL),
    "quadrants": (quadrants, SPECIAL),
    "powers_at_edges": (powers_at_edges, SPECIAL),
    "rounded_halves": (rounded_halves, integers(4, 9, low=-9, high=10).then(lambda x: x.float())),
    "activations_of_specials": (activations_of_specials, SPECIAL),
    "smooth_activations_of_specials": (smooth_activations_of_specials, SPECIAL),
    "norms_of_specials": (norms_of_specials, SPECIAL),
    "median_with_nan": (median_with_nan, SPECIAL),
    "none_or_all": (none_or_all, SPECIAL),
}


# --- rounding between operators ----------------------------------------------------------------------------------


def overflow_between(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (x * 300) * (x * 300)
    return y * 0.001, y - y


def absorbed_between(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x + 512) - 512, (x * 0.1 + 64).sub(64)


def underflow_between(x: Tensor) -> Tensor:
    return (x * 1e-6) * 1e6 + (x * 1e-3 * 1e-3)


def sums_of_halves(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.sum(1), x.mean(0), x.cumsum(1)


def conversions_between(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.half().float() - x, (x.to(torch.bfloat16) * 3).float() - x * 3


def truncation_between(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x * 9).int().float() * 2, (x * 9).to(torch.int8).to(torch.int64) - 1


ROUNDING = {
    "overflow_between": (overflow_between, normal(3, 7, dtype=torch.float16)),
    "absorbed_between": (absorbed_between, normal(3, 7, dtype=torch.bfloat16)),
    "absorbed_between_halves": (absorbed_between, normal(3, 7, dtype=torch.float16)),
    "underflow_between": (underflow_between, normal(3, 7, dtype=torch.float16)),
    "sums_of_halves": (sums_of_halves, normal(9, 70, dtype=torch.float16)),
    "conversions_between": (conversions_between, X),
    "truncation_between": (truncation_between, X),
}


# --- reductions of nothing, of one element, and over unusual dimensions -----------------------------------------------


def reductions_of_none(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    y = x[:, 3:3] * 2
    return y.sum(1), y.prod(1), y.mean(1), y.any(1), y.all(1)


def moments_of_one(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x[:1] * 2
    return y.var(0), y.std(0, correction=0), (x * 3).var(0, correction=5)


def products_over_none(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, b = x[:, :0] * 2, y.t()[:0] + 1
    return a @ b, torch.addmm(x[:, :3], a, b, beta=2.0), (a @ b).softmax(1)


def ignored_addends(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    bad = (x * 0 / 0) @ y.t()
    return torch.addmm(bad, x, y.t(), beta=0.0), torch.baddbmm(bad[None], x[None], y.t()[None], beta=0.0, alpha=0.5)


def addends_weighted_at_run_time(x: Tensor, y: Tensor, beta: float, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    bad = (x[:, :3] * 0 / 0) * 2
    return (
        torch.addmm(bad, x, y.t(), beta=beta, alpha=alpha) + 1,
        torch.addmv(bad[0], x, y[0], beta=beta) * 2,
        torch.baddbmm(bad[None], x[None], y.t()[None], beta=1.0, alpha=alpha) + x[0, 0],
    )


def joined_with_none(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.cat([x[0, :0], x[0] * 2]), torch.cat([x[:, :0] + 1, x, x[:, 7:]], 1)


def sums_of_repeated(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.sum(0) * 2, (x + 1).mean(), x.cumsum(0)


def moments_of_far(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 100
    return y.double().var(1), torch.var_mean(y.double(), 0)[0]


REDUCTIONS = {
    "reductions_of_none": (reductions_of_none, X),
    "moments_of_one": (moments_of_one, X),
    "products_over_none": (products_over_none, X, Y),
    "ignored_addends": (ignored_addends, X, Y),
    "addends_weighted_at_run_time": (addends_weighted_at_run_time, X, Y, 0.0, 0.5),
    "joined_with_none": (joined_with_none, X),
    "sums_of_repeated": (sums_of_repeated, repeated(X)),
    "sums_of_expanded": (sums_of_repeated, expanded(normal(3, 1), 3, 70)),
    "sums_of_overlapping": (sums_of_repeated, overlapping(normal(5, 6))),
    "moments_of_far": (moments_of_far, X),
}


# --- places ------------------------------------------------------------------------------------------------------


def rolled_and_flipped(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.roll(9, 1) * 2, x.roll([-1, 2], [0, 1]) + 1, x.flip([0, 1]).roll(-8) * 3


def diagonals(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x.diagonal(2) * 2, x.diagonal(-3) * 2, torch.diag_embed(x, 1, 0, 2) + 1, torch.diag_embed(x, -1, -1, 0) * 2


def triangles(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.tril(-1) * 2, x.triu(3) + 1, (x / 0).tril(-9) + x


def added_at_equal_places(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.zeros(4, 7).index_add(0, at, x)
    z = torch.zeros(4, 7).index_put((at,), x * 2, accumulate=True)
    return y * 2, z, torch.zeros(1, 7).scatter_add(0, (at * 0)[:, None].expand(3, 7), x)[at * 0]


def reduced_at_equal_places(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    places = at[:, None].expand(3, 7)
    base = torch.zeros(5, 7)
    return (
        base.scatter_reduce(0, places, x, "amax", include_self=False),
        base.scatter_reduce(0, places, x, "mean", include_self=False) * 2,
        base.scatter_reduce(0, places, x, "prod") + 1,
        base.index_reduce(0, at, x, "amin", include_self=True),
    )


def doubled_at_equal_places(x: Tensor, at: Tensor) -> Tensor:
    y = x * 1
    y[at * 0] += y[at * 0]
    return y + 1


def looked_up_backwards(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * 2
    return y[-1 - at % 3], y[:, at - 3], y[at % 3, :, None][:, at]


def apart_in_brackets(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    y = x.view(3, 1, 7) * 2
    return y[at % 3, :, at], y[:, [0, 0], at[:2]]


def boundaries(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    edges = torch.linspace(-1, 1, 5)
    return torch.bucketize(x, edges), torch.bucketize(x, edges, right=True), torch.searchsorted(edges, x.round())


def counted_up(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    steps = torch.arange(0.0, 0.7, 0.1) + x
    return steps, torch.linspace(-3, 7, 7, dtype=torch.int64) * 2 + (x > 0), torch.arange(7, 0, -1) * x


def windows(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.unfold(1, 3, 2) * 2
    return y + 1, F.fold(F.unfold(x[None, None], 2, dilation=2, padding=1) + 1, (3, 7), 2, dilation=2, padding=1)


def slices_of_one_stacked(x: Tensor) -> Tensor:
    y = x[..., 5]
    a, b = F.softplus(y) + 1e-3, torch.lgamma(F.softplus(y) + 2)
    return torch.stack([a, torch.erf(y), torch.xlogy(a, b.abs() + 1)], -1)


PLACES = {
    "rolled_and_flipped": (rolled_and_flipped, X),
    "diagonals": (diagonals, X),
    "triangles": (triangles, X),
    "added_at_equal_places": (added_at_equal_places, X, integers(3, high=2)),
    "reduced_at_equal_places": (reduced_at_equal_places, X, integers(3, high=2)),
    "doubled_at_equal_places": (doubled_at_equal_places, X, integers(3)),
    "looked_up_backwards": (looked_up_backwards, X, integers(4, high=3)),
    "apart_in_brackets": (apart_in_brackets, X, integers(3, high=3)),
    "boundaries": (boundaries, SPECIAL),
    "counted_up": (counted_up, X),
    "windows": (windows, X),
    "slices_of_one_stacked": (slices_of_one_stacked, X),
}


# --- layers at their edges ---------------------------------------------------------------------------------------

IMAGE = normal(2, 4, 7, 6)


def pools_over_the_edge(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        F.max_pool2d(x, 3, 2, 1, ceil_mode=True) + 1,
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False) * 2,
        F.avg_pool2d(x, (3, 2), 3, (1, 1), ceil_mode=True) * 2,
        F.avg_pool2d(x, 2, ceil_mode=True, divisor_override=3) * 2,
    )


def pools_of_specials(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x.masked_fill(x < 0, -inf)
    values, places = F.max_pool2d(y, 2, 2, return_indices=True)
    return values, places, F.max_pool2d(x / x.round(), 3, 1, 1) * 2


def uneven_pools(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return F.adaptive_avg_pool2d(x, (3, 4)) * 2, F.adaptive_max_pool2d(x, 5) + 1, F.lp_pool2d(x.abs(), 3.0, 2) * 2


def resized(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        F.interpolate(x, (3, 11), mode="nearest") * 2,
        F.interpolate(x, (3, 11), mode="nearest-exact") * 2,
        F.interpolate(x, (1, 9), mode="bilinear", align_corners=True) * 2,
        F.interpolate(x, scale_factor=1.3, mode="bicubic", recompute_scale_factor=True) * 2,
    )


def resized_without_ringing(x: Tensor) -> tuple[Tensor, Tensor]:
    small = F.interpolate(x, (3, 4), mode="bilinear", antialias=True)
    return small * 2, F.interpolate(x * 2, scale_factor=[0.6, 1.7], mode="bilinear") + 1


def normalised_over_one(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return F.layer_norm(x[..., :1], (1,)) + 1, F.group_norm(x, 4) * 2, F.layer_norm(x * 0 + 3, (7, 6)) + x


def lengths_of_zero(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * (x > 0)
    y[0] = 0
    return F.normalize(y, dim=1), F.cosine_similarity(y, x, 1), torch.cdist(y, y * 1, p=1.0)


def attention_of_nothing(x: Tensor) -> tuple[Tensor, Tensor]:
    q = x.view(1, 1, 3, 7)
    seen = torch.ones(3, 3, dtype=torch.bool).tril(-1)
    return F.scaled_dot_product_attention(q, q * 2, q, attn_mask=seen), (q @ q.mT).masked_fill(~seen, -inf).softmax(-1)


def attention_of_other_lengths(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    q, k = x[None, None, :2] * 2, y[None, None]
    return F.scaled_dot_product_attention(q, k, k, is_causal=True), F.scaled_dot_product_attention(k, q, q, scale=0.3)


def losses_of_ignored(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * 2
    none = at * 0 - 100
    return F.cross_entropy(y, none), F.cross_entropy(y, none, reduction="sum"), F.nll_loss(y, at, ignore_index=0)


def losses_at_edges(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    p = (x > 0).float()
    return (
        F.binary_cross_entropy(p, 1 - p),
        F.binary_cross_entropy_with_logits(x * 200, p, pos_weight=p[0] + 1),
        F.smooth_l1_loss(x, p, beta=0.0),
        F.kl_div(x, p, reduction="batchmean") + F.huber_loss(x, p, delta=0.1),
    )


def repeated_letters(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x[:, :3] * 2
    return torch.einsum("ii->i", y), torch.einsum("ii,ij->j", y, x), torch.einsum("...j,kj->...k", y, y)


LAYERS = {
    "pools_over_the_edge": (pools_over_the_edge, IMAGE),
    "pools_of_specials": (pools_of_specials, IMAGE),
    "uneven_pools": (uneven_pools, IMAGE),
    "resized": (resized, IMAGE),
    "resized_channels_last": (resized, channels_last(IMAGE)),
    "resized_without_ringing": (resized_without_ringing, IMAGE),
    "normalised_over_one": (normalised_over_one, IMAGE),
    "lengths_of_zero": (lengths_of_zero, X),
    "attention_of_nothing": (attention_of_nothing, X),
    "attention_of_other_lengths": (attention_of_other_lengths, X, normal(5, 7)),
    "losses_of_ignored": (losses_of_ignored, X, integers(3, high=2)),
    "losses_at_edges": (losses_at_edges, X),
    "repeated_letters": (repeated_letters, X),
}


def convolving(*arguments: object, **options: object):
    return lambda: nn.Sequential(nn.Conv2d(4, *arguments, **options), nn.Tanh())


MODULES = {
    "even_kernel_same": (convolving(6, (2, 4), padding="same", dilation=(1, 2)), IMAGE),
    "around_the_edge": (convolving(4, 3, padding=2, padding_mode="circular", groups=2), IMAGE),
    "mirrored_at_the_edge": (convolving(3, 3, padding=(1, 2), padding_mode="reflect", stride=2), strided(IMAGE)),
    "of_no_images": (convolving(3, 3), IMAGE.then(lambda x: x[:0])),
    "of_one_image": (convolving(8, 1, stride=3, groups=4), IMAGE.then(lambda x: x[0])),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, 3, 1, (2, 0), 2, bias=False, dilation=2), IMAGE),
    "transposed_repeated": (lambda: nn.ConvTranspose1d(4, 2, 2, 2, 1, 1), expanded(normal(4, 1), 4, 5)),
    "batch_of_one": (lambda: nn.Sequential(nn.BatchNorm1d(7), nn.ReLU()), normal(1, 7)),
    "one_per_group": (lambda: nn.Sequential(nn.InstanceNorm2d(4, affine=True), nn.GELU()), IMAGE),
    "embedded_padding": (lambda: nn.Sequential(nn.Embedding(5, 3, padding_idx=-2), nn.Tanh()), integers(2, 4, high=5)),
    "bags_of_most": (lambda: nn.Sequential(nn.EmbeddingBag(5, 3, mode="max"), nn.Tanh()), integers(2, 4, high=5)),
}


# --- gradients ---------------------------------------------------------------------------------------------------


def broadcast_back(x: Tensor, y: Tensor) -> Tensor:
    return (x[:, None, None] * y[0, :1] + y[None]) / (1 + x[:1] * x[:1])


def used_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.tanh(x)
    return y * y.sum(0), y + y.t().t()


def largest_back(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = (x * 2).round()
    z = y - y.detach() + torch.sign(x)
    return z.amax(1), z.max(0)[0], z.max() * 2


def clamped_back(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.clamp(-0.5, 0.5), F.relu(x - x) + F.hardtanh(x), torch.where(x > 0, x.abs().sqrt(), x)


def placed_back(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z = x * 2
    return (
        torch.diagonal_scatter(z, y[:, 0], 1),
        torch.select_scatter(z, y[0] * 3, 0, -1),
        torch.slice_scatter(z, y[:, :3], 1, 1, 7, 2),
    )


def stopped(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.sigmoid(x)
    with torch.no_grad():
        scale = y.sum() * 2
    return y * scale, y.detach() * x


def means_of_masked(x: Tensor) -> Tensor:
    seen = x > 0
    return (x * seen).sum(0) / seen.sum(0).clamp(min=1) + (x - 1e9 * ~seen).logsumexp(0).exp()


GRADIENTS = {
    "broadcast_back": (broadcast_back, normal(3), normal(4, 3)),
    "used_twice": (used_twice, X),
    "largest_back": (largest_back, X),
    "clamped_back": (clamped_back, X),
    "placed_back": (placed_back, X, Y),
    "stopped": (stopped, X),
    "means_of_masked": (means_of_masked, transposed(X)),
}


# Differences between PyTorch's own frontends and eager.
_TRACED = "a trace holds no modes of gradients"
EXCEPTIONS: Exceptions = {("torchscript:trace", "gradients.stopped:gradients"): ("pytorch", _TRACED)}

PROGRAMS = [
    *functions("wrapping", WRAPPING),
    *functions("specials", SPECIALS),
    *functions("rounding", ROUNDING),
    *functions("reductions", REDUCTIONS),
    *functions("places", PLACES),
    *functions("layers", LAYERS),
    *in_eval(modules("modules", MODULES)),
    *with_gradients(functions("gradients", GRADIENTS)),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
@pytest.mark.usefixtures("lazy_device")
@pytest.mark.sampled(4)
def test_as_eager(program):
    assert_as_eager(program, EXCEPTIONS)

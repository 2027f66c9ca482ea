"""Floats times weights of few bits, in integers: which products are such, values of any numbers on all processors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_running import host_target
from test_integer_products import OTHERS, WITH_WORDS, seeded, steps_of
from torch import Tensor
from torch.nn import functional
from written_programs import Builder, Executable, Value, check, normal

from torchmdla.devices.cpu.lowering import lower
from torchmdla.devices.cpu.parser import parse_program
from torchmdla.devices.cpu.printer import program_text
from torchmdla.importer.types import dtype_number

# As few as come from memory, by the second cache of the largest of the processors.
COUNT = 1024 * 512


class Written:
    """A product of some rows with weights of int8, with a scale for each ``group`` of them and, if there are any, zero
    points."""

    def __init__(
        self, x: Tensor, columns: int, bits: int = 4, group: int | None = 32, zeros: bool = True, bias: bool = False
    ) -> None:
        self.b = Builder()
        terms = x.shape[1]
        groups = 1 if group is None else terms // group
        limit = 1 << (bits - 1)
        integers = torch.randint(-limit, limit, (columns, groups, terms // groups), dtype=torch.int8, generator=seeded())
        scales = normal(columns, groups, 1).abs() + 0.1
        points = torch.randint(-3, 4, (columns, groups, 1), dtype=torch.int8, generator=seeded())
        value = self._cast(self.b.input(integers, "parameter", bits % 8), torch.float32)
        if zeros:
            point = self._cast(self.b.input(points, "parameter"), torch.float32)
            value = self.b.op("aten.sub.Tensor", [value, point, 1], value.tensor - point.tensor)
        scale = self.b.input(scales, "parameter")
        value = self.b.op("aten.mul.Tensor", [value, scale], value.tensor * scales)
        weight = self.b.op("aten.view", [value, [columns, terms]], value.tensor.view(columns, terms))
        self.weight = weight.tensor
        added = self.b.input(normal(columns), "parameter") if bias else None
        made = functional.linear(x, weight.tensor, added.tensor if added else None)
        self.result = self.b.op("aten.linear", [self.b.input(x), weight, added], made)

    def _cast(self, x: Value, dtype: torch.dtype) -> Value:
        return self.b.op("aten.to.dtype", [x, dtype_number(dtype), False, False, None], x.tensor.to(dtype))

    def run(self) -> Tensor:
        status, (result,) = Executable(lower(self.b.program([self.result], host_target())))(self.b.values)
        assert status == 0
        return result


# How many products of a digit with a word there are, which features of it have.
@pytest.mark.parametrize(
    ("rows", "bits", "group", "products"),
    [(1, 4, 32, 8), (2, 4, 32, 8), (3, 4, 32, 0), (1, 4, None, 8), (3, 4, None, 8), (1, 8, None, 4), (9, 8, None, 0)],
)
def test_which_products_are_of_digits(rows: int, bits: int, group: int | None, products: int) -> None:
    w = Written(normal(rows, 512), 1024, bits, group)
    for features in WITH_WORDS.values():
        text = program_text(steps_of(w, [w.result], *features))  # type: ignore[arg-type]
        assert text.count("i32 = dot ") == products
        assert program_text(parse_program(text)) == text
    for features in OTHERS.values():
        assert "= dot " not in program_text(steps_of(w, [w.result], *features))  # type: ignore[arg-type]


def test_two_weights_of_four_bits_lie_in_a_byte() -> None:
    w = Written(normal(1, 512), 1024)
    packs = [packing.buffer for packing in steps_of(w, [w.result], *WITH_WORDS["AVX_VNNI"]).packings]  # type: ignore[arg-type]
    assert max(buffer.bytes for buffer in packs) == COUNT // 2


@pytest.mark.parametrize("features", [(), *WITH_WORDS.values(), *OTHERS.values()], ids=["native", *WITH_WORDS, *OTHERS])
@pytest.mark.parametrize(("rows", "bits", "group"), [(1, 4, 32), (2, 4, 64), (3, 4, None), (1, 8, None), (1, 8, 128)])
def test_values(rows: int, bits: int, group: int | None, features: tuple[str, ...]) -> None:
    available = host_target().features.split(",")
    if any(feature and feature not in available for feature in features):
        pytest.skip("this machine lacks the target's features")
    w = Written(normal(rows, 512), 1024, bits, group, bias=True)
    check(w.b, [w.result], host_target(*features))


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 3),
    groups=st.integers(1, 5),
    terms=st.integers(1, 12).map(lambda n: 8 * n),
    more=st.integers(0, 40),
    bits=st.sampled_from([4, 8]),
    zeros=st.booleans(),
)
def test_values_of_any_shape(rows: int, groups: int, terms: int, more: int, bits: int, zeros: bool) -> None:
    columns = COUNT // (groups * terms) + more
    w = Written(normal(rows, groups * terms), columns, bits, terms if groups > 1 else None, zeros)
    check(w.b, [w.result], host_target())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [None, 32])
@pytest.mark.parametrize("outlier", [1.0, 1e3, 1e6])
def test_errors_are_no_larger_than_those_of_float32(bits: int, group: int | None, outlier: float) -> None:
    """Of rows in which one number is so many times as large as the others."""
    x = normal(1, 512)
    x[0, 17] *= outlier
    w = Written(x, 1024, bits, group, zeros=False)
    exact = x.double() @ w.weight.double().t()
    # What a sum in float32 may be wrong by of eight products.
    bound = 8 * 2.0**-24 * (x.abs().double() @ w.weight.abs().double().t())
    assert ((w.run() - exact).abs() <= bound).all()


def test_rows_of_special_numbers() -> None:
    rows = [torch.zeros(512), normal(512) * 1e-33, normal(512) * 1e30, normal(512), normal(512)]
    rows[3][5], rows[4][7] = torch.inf, torch.nan
    w = Written(torch.stack(rows), 1024, group=None, zeros=False)
    zero, small, large, infinite, nan = w.run()
    expected = w.result.tensor
    assert torch.equal(zero, expected[0])
    assert ((small - expected[1]).abs() <= 1e-4 * expected[1].abs().max()).all()
    assert ((large - expected[2]).abs() <= 1e-5 * expected[2].abs().max()).all()
    assert torch.equal(infinite.isnan(), expected[3].isnan())
    assert torch.equal(infinite[~infinite.isnan()], expected[3][~infinite.isnan()])
    assert nan.isnan().all()

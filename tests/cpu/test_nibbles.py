"""Weights of 4 bits, two in a byte: the products that read them, and values of any shape on all processors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_running import host_target
from nest_samples import available_target
from test_integer_products import OTHERS, WITH_WORDS, seeded
from torch import Tensor
from torch.nn import functional
from written_programs import Builder, Executable, check, normal

from torchmdla.compiler.sizes import static
from torchmdla.devices.cpu.ir.loop_program import LoopProgram
from torchmdla.devices.cpu.ir.parser import parse_program
from torchmdla.devices.cpu.ir.printer import program_text
from torchmdla.devices.cpu.lowering import lower

PROCESSORS = {**WITH_WORDS, **OTHERS}

# The smallest number of weights that exceeds the second-level cache of the largest of the processors.
TERMS, COLUMNS = 512, 1024


class Written:
    """Program of a product of some rows with int8 weights.

    The weights use ``bits`` bits, and their declaration specifies it. Each ``group`` of weights has a scale and, if
    ``zeros``, a zero point.
    """

    def __init__(
        self, x: Tensor, columns: int = COLUMNS, bits: int = 4, group: int | None = 32, zeros: bool = True
    ) -> None:
        self.b = Builder()
        terms = x.shape[1]
        groups = 1 if group is None else terms // group
        sizes, limit = (columns, groups, terms // groups), 1 << (bits - 1)
        integers = torch.randint(-limit, limit, sizes, dtype=torch.int8, generator=seeded())
        points = torch.randint(-3, 4, (columns, groups, 1), dtype=torch.int8, generator=seeded())
        scales = self.b.input(normal(columns, groups, 1).abs() + 0.1, "parameter")
        value = self.b.cast(self.b.input(integers, "parameter", bits % 8), torch.float32)
        if zeros:
            point = self.b.cast(self.b.input(points, "parameter"), torch.float32)
            value = self.b.op("aten.sub.Tensor", [value, point, 1], value.tensor - point.tensor)
        value = self.b.op("aten.mul.Tensor", [value, scales], value.tensor * scales.tensor)
        weight = self.b.op("aten.view", [value, [columns, terms]], value.tensor.view(columns, terms))
        bias = self.b.input(normal(columns), "parameter")
        operands = self.b.input(x), weight, bias
        self.result = self.b.op("aten.linear", operands, functional.linear(*(o.tensor for o in operands)))

    def steps(self, *features: str) -> LoopProgram:
        return self.b.steps([self.result], *features)


@pytest.mark.parametrize("features", [PROCESSORS[name] for name in ("AVX512_VNNI", "AVX-512 without it", "AVX2")])
@pytest.mark.parametrize(
    ("rows", "bits", "group", "are_shared"),
    [(1, 4, 32, True), (2, 4, 32, True), (2, 4, None, True), (3, 4, 32, False), (1, 8, 32, False), (1, 4, 4, False)],
)
def test_two_weights_lie_in_a_byte(
    rows: int, bits: int, group: int | None, are_shared: bool, features: tuple[str, ...]
) -> None:
    steps = Written(normal(rows, TERMS), bits=bits, group=group).steps(*features)
    largest = max(static(packing.buffer.bytes) for packing in steps.packings)
    assert (largest == COLUMNS * TERMS // 2) == are_shared
    # No sums of groups are stored: they would take as much memory as the scales.
    written = [static(b.bytes) for step in steps.nests() for b in step.writes if b.kind == "temporary"]
    assert not are_shared or max(written) <= 4 * rows * COLUMNS
    text = program_text(steps)
    assert program_text(parse_program(text)) == text


@pytest.mark.parametrize("features", [(), *PROCESSORS.values()], ids=["native", *PROCESSORS])
@pytest.mark.parametrize(("rows", "group"), [(1, 32), (2, 64), (1, None), (2, None)])
def test_values(rows: int, group: int | None, features: tuple[str, ...]) -> None:
    w = Written(normal(rows, TERMS), group=group)
    check(w.b, [w.result], available_target(*features))


@settings(max_examples=25)
@given(
    rows=st.integers(1, 3),
    groups=st.integers(1, 5),
    terms=st.integers(1, 80).map(lambda n: 8 * n),
    more=st.integers(0, 40),
    zeros=st.booleans(),
)
@pytest.mark.sampled(0)
def test_values_of_any_shape(rows: int, groups: int, terms: int, more: int, zeros: bool) -> None:
    columns = COLUMNS * TERMS // (groups * terms) + more
    w = Written(normal(rows, groups * terms), columns, group=terms if groups > 1 else None, zeros=zeros)
    check(w.b, [w.result], host_target())


def test_a_row_with_numbers_of_all_sizes() -> None:
    """Check a row with numbers of all magnitudes.

    Terms with a zero weight, or with a very different weight, do not reduce the precision of the other products.
    """
    x = normal(1, TERMS)
    x[0, ::7] *= 1e6
    w = Written(x, zeros=False)
    integers = w.b.arguments[1].tensor
    integers.view(COLUMNS, TERMS)[:, ::7] = 0
    scales, weights, bias, _ = (v.double() for v in w.b.values if isinstance(v, Tensor))
    exact = functional.linear(x.double(), (weights * scales).view(COLUMNS, TERMS), bias)
    status, (result,) = Executable(lower(w.b.program([w.result], host_target())))(w.b.values)
    assert status == 0
    torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-4)


def test_values_of_a_single_column() -> None:
    w = Written(normal(1, COLUMNS * TERMS), columns=1)
    check(w.b, [w.result], host_target())

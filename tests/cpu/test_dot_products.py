"""Sums of products of words: kernels, products that use pairs of bfloat16, and their values on all processors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_running import Kernel, host_target
from nest_samples import TARGETS, available_target, operand, target_with
from test_tile_fusion import all_nests
from test_winograd import convolve
from written_programs import Builder, Value, check, normal

from torchmdla.devices.cpu.ir.expressions import constant, operation
from torchmdla.devices.cpu.ir.kernel_spec import KernelSpec, Operand
from torchmdla.devices.cpu.ir.loop_program import LoopProgram, is_copy
from torchmdla.devices.cpu.ir.parser import parse_program
from torchmdla.devices.cpu.ir.printer import nest_text, program_text
from torchmdla.devices.cpu.passes.copies import merge_copies, shrink_broadcasts
from torchmdla.devices.cpu.passes.narrow.formats import drop_roundings
from torchmdla.devices.cpu.passes.narrow.sums import add_to_sum

# Features of processors with the instruction, and of processors that compute in float32. They do not depend on this
# machine.
WITH_PAIRS = ("+avx512f", "+avx512bw", "+avx512dq", "+avx512vl", "+avx512bf16", "+avx2", "+fma")
OTHERS = {
    "AVX-512 without it": ("+avx512f", "+avx512bw", "+avx512dq", "+avx512vl", "+avx2", "+fma", "+f16c"),
    "AVX2": ("+avx2", "+fma", "+f16c"),
    "AVX2 without conversions": ("+avx2", "+fma"),
    "baseline": ("",),
}


# Kernels.


def pairs(generator: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ``count`` words of two bfloat16 each, and their values.

    Values are small integers, so that sums are exact.
    """
    values = generator.integers(-4, 5, (count, 2)).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.int32).reshape(-1), values


def fours(generator: np.random.Generator, count: int, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ``count`` words of four integers of 8 bits each, from ``least`` on, and their values."""
    values = generator.integers(least, least + 256, (count, 4)).astype(np.int32)
    return values.astype(np.uint8).view(np.int32).reshape(-1), values


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 7), (8, 48, 16), (17, 33, 9), (1, 70, 600), (12, 64, 300)])
@pytest.mark.parametrize("features", ["native", *TARGETS])
@pytest.mark.parametrize("kind", ["f32", "i32"])
def test_kernels(sizes: tuple[int, int, int], features: str, kind: str) -> None:
    rows, columns, words = sizes
    generator = np.random.default_rng(0)
    if kind == "f32":
        (left, x), (right, w) = pairs(generator, rows * words), pairs(generator, words * columns)
    else:
        (left, x), (right, w) = fours(generator, rows * words, 0), fours(generator, words * columns, -128)
    nest = KernelSpec(
        sizes=sizes,
        reduction=(False, False, True),
        inputs=(Operand("i32", (words, 0, 1)), Operand("i32", (0, 1, columns))),
        outputs=(Operand(kind, (columns, 1, 0)),),
        values=(add_to_sum(operation("dot", [operand(0, "i32"), operand(1, "i32")], kind)),),
        initial=constant(0, kind),
    )
    result = np.full(rows * columns + 16, 7, x.dtype)
    Kernel(nest, host_target() if features == "native" else target_with(features))([left, right, result])
    expected = np.einsum("rkp,kcp->rc", x.reshape(rows, words, -1), w.reshape(words, columns, -1))
    np.testing.assert_array_equal(result[: rows * columns].reshape(rows, columns), expected)
    np.testing.assert_array_equal(result[rows * columns :], 7)


# Programs.


def widened(b: Builder, x: Value) -> Value:
    return b.cast(x, torch.float32)


def rounded(b: Builder, x: Value) -> Value:
    return b.cast(x, torch.bfloat16)


def linear(b: Builder, x: Value, columns: int) -> Value:
    """Build a bfloat16 layer as the importer emits it."""
    terms = x.tensor.shape[-1]
    weight = b.input((normal(columns, terms) / terms**0.5).bfloat16(), "parameter")
    wide = widened(b, x), widened(b, weight), None
    product = torch.nn.functional.linear(wide[0].tensor, wide[1].tensor)
    return rounded(b, b.op("aten.linear", list(wide), product))


def relu(b: Builder, x: Value) -> Value:
    wide = widened(b, x)
    return rounded(b, b.op("aten.relu", [wide], wide.tensor.relu()))


def layers(b: Builder) -> list[Value]:
    x = b.input(normal(24, 64).bfloat16())
    return [linear(b, relu(b, linear(b, x, 96)), 32)]


def one_row(b: Builder) -> list[Value]:
    return [linear(b, b.input(normal(1, 64).bfloat16()), 96)]


def with_a_residual(b: Builder) -> list[Value]:
    x = b.input(normal(24, 64).bfloat16())
    wide = [widened(b, v) for v in (linear(b, x, 64), x)]
    total = rounded(b, b.op("aten.add.Tensor", [*wide, 1], wide[0].tensor + wide[1].tensor))
    return [total, linear(b, total, 96)]


def convolutions(b: Builder) -> list[Value]:
    x = b.input(normal(1, 32, 9, 9).bfloat16())
    image = relu(b, rounded(b, convolve_half(b, x, 32)))
    return [rounded(b, convolve_half(b, image, 48))]


def convolve_half(b: Builder, x: Value, filters: int, kernel: int = 3) -> Value:
    wide = widened(b, x)
    weight = b.input((normal(filters, x.tensor.shape[1], kernel, kernel) / 17).bfloat16(), "parameter")
    wide_weight, padding = widened(b, weight), [kernel // 2] * 2
    product = torch.nn.functional.conv2d(wide.tensor, wide_weight.tensor, padding=padding)
    return b.op("aten.convolution", [wide, wide_weight, None, [1, 1], padding, [1, 1], False, [0, 0], 1], product)


def flattened(b: Builder) -> list[Value]:
    """Build a layer whose channels and odd number of pixels are only even together."""
    x = b.input(normal(1, 32, 9, 9).bfloat16())
    image = rounded(b, convolve_half(b, x, 32))
    flat = b.op("aten.view", [image, [1, 32 * 81]], image.tensor.reshape(1, -1))
    return [linear(b, flat, 16)]


def odd(b: Builder) -> list[Value]:
    return [linear(b, b.input(normal(24, 63).bfloat16()), 96)]


def plain(b: Builder) -> list[Value]:
    return [convolve(b, b.input(normal(1, 32, 9, 9)), 32, [1, 1])]


Made = Callable[[Builder], "list[Value]"]

# The number of products that use pairs.
COUNTS: list[tuple[Made, int]] = [
    (layers, 2),
    (one_row, 1),
    (with_a_residual, 2),
    (convolutions, 2),
    (flattened, 2),
    (odd, 0),
    (plain, 0),
]


@pytest.mark.parametrize(("make", "count"), COUNTS)
def test_which_products_are_of_pairs(make: Made, count: int) -> None:
    b = Builder()
    results = make(b)
    text = program_text(b.steps(results, *WITH_PAIRS))
    assert text.count("= dot ") == count
    assert program_text(parse_program(text)) == text
    for features in OTHERS.values():
        assert "= dot " not in program_text(b.steps(results, *features))


@pytest.mark.parametrize("make", [make for make, _ in COUNTS])
@pytest.mark.parametrize("features", [(), *OTHERS.values()], ids=["native", *OTHERS])
@pytest.mark.sampled(6)
def test_values(make: Made, features: tuple[str, ...]) -> None:
    b = Builder()
    check(b, make(b), available_target(*features))


@settings(max_examples=15)
@given(rows=st.integers(1, 40), terms=st.integers(1, 70), columns=st.sampled_from([1, 8, 16, 33, 48, 96, 160]))
def test_values_of_any_shape(rows: int, terms: int, columns: int) -> None:
    b = Builder()
    check(b, [linear(b, b.input(normal(rows, terms).bfloat16()), columns)], host_target())


def test_weights_in_rows_are_read_where_they_lie() -> None:
    b = Builder()
    assert not b.steps(one_row(b), *WITH_PAIRS).packings


def weight_gradient(b: Builder) -> list[Value]:
    """Build a product of two computed matrices, summed over their rows."""
    x, y = (relu(b, b.input(normal(64, columns).bfloat16())) for columns in (96, 80))
    wide = widened(b, b.op("aten.t", [x], x.tensor.t())), widened(b, y)
    return [rounded(b, b.op("aten.mm", list(wide), wide[0].tensor @ wide[1].tensor))]


def test_words_in_order_are_not_copied() -> None:
    b = Builder()
    steps = b.steps(results := weight_gradient(b), *WITH_PAIRS)
    assert "= dot " in program_text(steps)
    for step in all_nests(steps):
        if is_copy(step) and step.inputs[0].word:
            read, written = (access.linearise(len(step.sizes)).factors for access in (*step.inputs, *step.outputs))
            assert read != tuple(2 * factor for factor in written)
    check(b, results, available_target(*WITH_PAIRS))


def test_products_that_store_words_read_along_pixels() -> None:
    """Check the layout of an image whose channels are in blocks, for a product whose 20 channels are not.

    Blocks have 16 channels, or 8 on processors that compute wide vectors in halves.
    """
    b = Builder()
    x = b.input(normal(1, 32, 12, 16).bfloat16())
    for filters in (64, 20, 32):
        x = relu(b, rounded(b, convolve_half(b, x, filters, 1)))
    steps = b.steps([x], *WITH_PAIRS)
    products = [step for step in all_nests(steps) if len(step.values) == 2 and "dot" in nest_text(step.kernel)]
    assert products
    for product in products:
        (_, written), *read = [
            (access.width, access.linearise(len(product.sizes)).factors)
            for access in (*product.written_accesses, *product.inputs)
        ]
        column = next(loop for loop, factor in enumerate(written) if factor == 2 and product.sizes[loop] > 1)
        assert all(factors[column] in (0, width) for width, factors in read)
    check(b, [x], available_target(*WITH_PAIRS))


# Other passes that use roundings.


def passed(text: str, function: Callable[[LoopProgram], object]) -> str:
    steps = parse_program(text)
    function(steps)
    return program_text(steps)


CHOSEN = """\
buffer input0 : f32[8]
buffer result0 : f32[8]
entry {
  nest d0:8 {
    i0 = input0[d0]
    v0 : bf16 = arith.truncf i0
    v1 : f32 = arith.extf v0
    v2 : f32 = OPERATION
    v3 : bf16 = arith.truncf v2
    v4 : f32 = arith.extf v3
    v5 : f32 = math.exp v4
    result0[d0] = v5
  }
}
"""


@pytest.mark.parametrize(
    ("chosen", "is_exact"),
    [
        ("arith.maximumf v1, 0.0", True),
        ("arith.maximumf v1, 1.00390625", False),
        ("arith.negf v1", True),
        ("arith.addf v1, 1.0", False),
        ("arith.maximumf v1, i0", False),
    ],
)
def test_selections_of_rounded_values_are_rounded(chosen: str, is_exact: bool) -> None:
    text = passed(CHOSEN.replace("OPERATION", chosen), drop_roundings)
    assert text.count("arith.truncf") == (1 if is_exact else 2)


EXPANDED = """\
buffer parameter0 : bf16[16]
buffer temporary0 : f32[4, 16]
buffer result0 : f32[4, 16]
entry {
  nest d0:4 d1:16 {
    i0 = parameter0[INDEX]
    v0 : f32 = arith.extf i0
    temporary0[d0, d1] = v0
  }
  nest d0:4 d1:16 {
    i0 = temporary0[d0, d1]
    v0 : f32 = math.exp i0
    result0[d0, d1] = v0
  }
}
"""


@pytest.mark.parametrize(("index", "sizes"), [("d1", "[1, 16]"), ("d0 * 4", "[4, 1]"), ("d0 + d1 * 0 + d1", "[4, 16]")])
def test_expanded_values_are_stored_once(index: str, sizes: str) -> None:
    text = passed(EXPANDED.replace("INDEX", index), shrink_broadcasts)
    assert f"buffer temporary0 : f32{sizes}" in text


MIRRORED = """\
buffer input0 : f32[32, 16, 9]
buffer temporary0 : f32[32, 16, 9]
buffer result0 : f32[16, 9, 32]
entry {
  nest d0:32 d1:16 d2:9 {
    i0 = input0[d0, d1, d2]
    v0 : bf16 = arith.truncf i0
    v1 : f32 = arith.extf v0
    temporary0[d0, d1, d2] = v1
  }
  nest d0:16 d1:9 d2:32 {
    i0 = temporary0[d2, d0, d1 * -1 + 8]
    result0[d0, d1, d2] = i0
  }
}
"""


def test_a_rounded_weight_is_mirrored_as_it_is_read() -> None:
    """Check that one nest rounds and mirrors a weight, and walks it along its memory."""
    steps = parse_program(MIRRORED)
    merge_copies(steps)
    (step,) = steps.nests()
    assert [buffer.kind for buffer in step.reads] == ["input"]
    assert [e.op for e in step.body.expressions] == ["load", "arith.truncf", "arith.extf"]
    assert step.inputs[0].linearise(3).factors == (9, 1, 144)
    assert step.outputs[0].indices[1].factors == (0, -1, 0)


def test_a_rounded_weight_that_is_spread_is_rounded_first() -> None:
    """Check that the elements of a weight are rounded by vectors, not one by one where they are stored far apart."""
    spread = MIRRORED.replace("buffer result0 : f32[16, 9, 32]", "buffer result0 : f32[16, 9, 32, 2]")
    steps = parse_program(spread.replace("result0[d0, d1, d2] = i0", "result0[d0, d1, d2, 0] = i0"))
    merge_copies(steps)
    assert len(steps.nests()) == 2

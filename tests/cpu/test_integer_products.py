"""Sums of products of quantised integers: the products that use words, and values on all processors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_running import host_target
from nest_samples import available_target
from torch import Tensor
from torch.nn import functional
from torch_mlir import ir
from written_programs import Builder, Executable, Value, check, normal

import torchmdla
from torchmdla.compiler.mlir import new_context
from torchmdla.compiler.program import Target
from torchmdla.devices.cpu.ir.loop_program import TileLoop
from torchmdla.devices.cpu.ir.parser import parse_program
from torchmdla.devices.cpu.ir.printer import nest_text, program_text
from torchmdla.devices.cpu.lowering import loop_program, lower
from torchmdla.devices.cpu.passes.narrow.formats import keep_floats
from torchmdla.devices.cpu.passes.narrow.stores import store_words
from torchmdla.devices.cpu.reference import validation
from torchmdla.testing.compare import assert_matches

# Features of processors with the instruction, and of processors that compute in float32. They do not depend on this
# machine.
WITH_WORDS = {
    "AVX512_VNNI": ("+avx512f", "+avx512bw", "+avx512dq", "+avx512vl", "+avx512vnni", "+avx2", "+fma"),
    "AVX_VNNI": ("+avx2", "+fma", "+avxvnni"),
}
OTHERS = {
    "AVX-512 without it": ("+avx512f", "+avx512bw", "+avx512dq", "+avx512vl", "+avx2", "+fma"),
    "AVX2": ("+avx2", "+fma"),
    "baseline": ("",),
}


# Programs. Scales are powers of two, so that float32 is exact, and ties round as in eager.


@dataclass
class Written:
    """Program of quantised tensors."""

    b: Builder = field(default_factory=Builder)

    def by_number(self, name: str, x: Value, number: float, function: Callable[[Tensor, float], Tensor]) -> Value:
        operands = [x, number, 1] if name in ("add", "sub") else [x, number]
        return self.b.op(f"aten.{name}.Scalar", operands, function(x.tensor, number))

    def dequantised(self, x: Value, scale: float, zero: int, is_signed: bool) -> Value:
        """Build the dequantisation of an ``int8`` tensor. Without a sign, the same bits represent 0 to 255."""
        wide = self.b.cast(x, torch.int32)
        if not is_signed:
            wide = self.by_number("bitwise_and", wide, 255, lambda t, n: t & int(n))
        value = self.b.cast(wide, torch.float32)
        if zero:
            value = self.by_number("sub", value, float(zero), torch.sub)
        return self.by_number("mul", value, scale, torch.mul)

    def requantised(self, x: Value, scale: float, zero: int, is_signed: bool) -> Value:
        least = -128 if is_signed else 0
        value = self.by_number("mul", x, 1 / scale, torch.mul)
        bounds = float(least - zero), float(least + 255 - zero)
        value = self.b.op("aten.clamp", [value, *bounds], value.tensor.clamp(*bounds))
        value = self.b.op("aten.round", [value], value.tensor.round())
        integer = self.b.cast(value, torch.int32)
        if zero:
            integer = self.by_number("add", integer, zero, torch.add)
        return self.dequantised(self.b.cast(integer, torch.int8), scale, zero, is_signed)

    def quantised_input(self, *sizes: int, zero: int = 0, is_signed: bool = False) -> Value:
        """Build an activation that is a float32 input, which the program quantises."""
        return self.requantised(self.b.input(normal(*sizes)), 1 / 32, zero, is_signed)

    def weights(self, *sizes: int, zeros: bool = False) -> Value:
        """Build weights with a scale for each output, and with zero points if ``zeros``."""
        integers = self.b.input(torch.randint(-128, 128, sizes, dtype=torch.int8, generator=seeded()), "parameter")
        ones = (-1, *(1 for _ in sizes[1:]))
        scales = self.b.input(2.0 ** torch.randint(-12, -8, sizes[:1], generator=seeded()).view(ones), "parameter")
        value = self.b.cast(integers, torch.float32)
        if zeros:
            points = torch.randint(-20, 20, sizes[:1], dtype=torch.int32, generator=seeded()).view(ones)
            zero_points = self.b.cast(self.b.input(points, "parameter"), torch.float32)
            value = self.b.op("aten.sub.Tensor", [value, zero_points, 1], value.tensor - zero_points.tensor)
        return self.b.op("aten.mul.Tensor", [value, scales], value.tensor * scales.tensor)

    def linear(self, x: Value, columns: int, zeros: bool = False) -> Value:
        weight = self.weights(columns, x.tensor.shape[-1], zeros=zeros)
        bias = self.b.input(normal(columns).mul(64).round() / 64, "parameter")
        return self.b.op("aten.linear", [x, weight, bias], functional.linear(x.tensor, weight.tensor, bias.tensor))

    def convolution(self, x: Value, filters: int, kernel: int = 3, groups: int = 1, zeros: bool = False) -> Value:
        weight = self.weights(filters, x.tensor.shape[1] // groups, kernel, kernel, zeros=zeros)
        padding = [kernel // 2] * 2
        product = functional.conv2d(x.tensor, weight.tensor, padding=padding, groups=groups)
        return self.b.op("aten.convolution", [x, weight, None, [1, 1], padding, [1, 1], False, [0, 0], groups], product)

    def relu(self, x: Value) -> Value:
        return self.b.op("aten.relu", [x], x.tensor.relu())

    def sum(self, left: Value, right: Value) -> Value:
        return self.b.op("aten.add.Tensor", [left, right, 1], left.tensor + right.tensor)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def layers(w: Written) -> list[Value]:
    return [w.linear(w.requantised(w.relu(w.linear(w.quantised_input(24, 64, zero=117), 96)), 1 / 4, 0, False), 32)]


def with_signs(w: Written) -> list[Value]:
    return [w.linear(w.quantised_input(24, 64, zero=-3, is_signed=True), 96)]


def with_zeros(w: Written) -> list[Value]:
    return [w.linear(w.quantised_input(24, 64, zero=117), 96, zeros=True)]


def one_row(w: Written) -> list[Value]:
    return [w.linear(w.quantised_input(1, 64, zero=7), 96)]


def with_a_residual(w: Written) -> list[Value]:
    x = w.quantised_input(24, 64)
    total = w.requantised(w.sum(w.linear(x, 64), x), 1 / 8, 30, False)
    return [w.linear(total, 96)]


def convolutions(w: Written) -> list[Value]:
    x = w.requantised(w.relu(w.convolution(w.quantised_input(1, 32, 9, 9, zero=60), 32)), 1 / 4, 0, False)
    return [w.convolution(x, 48)]


def convolutions_with_zeros(w: Written) -> list[Value]:
    return [w.convolution(w.quantised_input(2, 32, 9, 9, zero=60), 48, zeros=True)]


def images(w: Written) -> list[Value]:
    """Build a convolution of three channels, which are a part of a word."""
    return [w.convolution(w.quantised_input(1, 3, 12, 12, zero=117), 32, 5, zeros=True)]


def images_of_parts(w: Written) -> list[Value]:
    """Concatenate images of one and two channels, and weights of as many.

    No step stores such words as a whole.
    """
    parts = [w.quantised_input(1, channels, 12, 12, zero=117) for channels in (1, 2)]
    x = w.b.op("aten.cat", [parts, 1], torch.cat([part.tensor for part in parts], 1))
    integers = [
        w.b.input(torch.randint(-128, 128, (7, n, 3, 3), dtype=torch.int8, generator=seeded()), "parameter")
        for n in (1, 2)
    ]
    parts = [w.by_number("mul", w.b.cast(part, torch.float32), 1 / 64, torch.mul) for part in integers]
    scaled = w.b.op("aten.cat", [parts, 1], torch.cat([part.tensor for part in parts], 1))
    product = functional.conv2d(x.tensor, scaled.tensor, padding=1)
    return [w.b.op("aten.convolution", [x, scaled, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1], product)]


def eights(w: Written) -> list[Value]:
    """Build channels whose number is not a multiple of the vector length."""
    x = w.requantised(w.convolution(w.quantised_input(1, 16, 9, 9), 24, 1), 1 / 4, 9, False)
    return [w.convolution(x, 40, 1)]


def depthwise(w: Written) -> list[Value]:
    x = w.requantised(w.convolution(w.quantised_input(1, 16, 9, 9), 32, 1), 1 / 4, 9, False)
    x = w.requantised(w.convolution(x, 32, groups=32), 1 / 4, 0, False)
    return [w.convolution(x, 16, 1)]


def flattened(w: Written) -> list[Value]:
    """Build channels and an odd number of pixels. Only together they are whole words."""
    image = w.requantised(w.convolution(w.quantised_input(1, 32, 9, 9), 32), 1 / 4, 0, False)
    flat = w.b.op("aten.view", [image, [1, 32 * 81]], image.tensor.reshape(1, -1))
    return [w.linear(flat, 16)]


def found_in_a_call(w: Written) -> list[Value]:
    """Build a linear layer whose scale and zero point are computed in the call."""
    x = w.b.input(normal(24, 64))
    most = w.b.op("aten.amax", [x, [], False], x.tensor.amax())
    scale = w.b.op("aten.exp2", [w.b.op("aten.ceil", [most], most.tensor.ceil())], torch.exp2(most.tensor.ceil()))
    scale = w.by_number("mul", scale, 1 / 256, torch.mul)
    zero = w.b.cast(w.by_number("mul", most, 16.0, torch.mul), torch.int32)
    scaled = w.b.op("aten.div.Tensor", [x, scale], x.tensor / scale.tensor)
    rounded = w.b.cast(w.b.op("aten.round", [scaled], scaled.tensor.round()), torch.int32)
    moved = w.b.op("aten.add.Tensor", [rounded, zero, 1], rounded.tensor + zero.tensor)
    clamped = w.b.cast(w.b.op("aten.clamp", [moved, 0, 255], moved.tensor.clamp(0, 255)), torch.int8)
    wide = w.b.cast(
        w.by_number("bitwise_and", w.b.cast(clamped, torch.int32), 255, lambda t, n: t & int(n)), torch.float32
    )
    point = w.b.cast(zero, torch.float32)
    value = w.b.op("aten.sub.Tensor", [wide, point, 1], wide.tensor - point.tensor)
    return [w.linear(w.b.op("aten.mul.Tensor", [value, scale], value.tensor * scale.tensor), 48)]


def odd(w: Written) -> list[Value]:
    return [w.linear(w.quantised_input(24, 63), 96)]


def two_scales(w: Written) -> list[Value]:
    """Build rows of two scales in one tensor, which do not have one common form."""
    parts = [w.quantised_input(8, 64), w.requantised(w.b.input(normal(8, 64)), 1 / 8, 3, False)]
    joined = w.b.op("aten.cat", [parts, 0], torch.cat([part.tensor for part in parts]))
    return [w.linear(joined, 48)]


Made = Callable[[Written], "list[Value]"]

# The number of products that use words.
COUNTS: list[tuple[Made, int]] = [
    (layers, 2),
    (with_signs, 1),
    (with_zeros, 1),
    (one_row, 1),
    (with_a_residual, 2),
    (convolutions, 2),
    (convolutions_with_zeros, 1),
    (images, 1),
    (images_of_parts, 1),
    (eights, 2),
    (depthwise, 2),
    (flattened, 2),
    (found_in_a_call, 1),
    (odd, 0),
    (two_scales, 0),
]


@pytest.mark.parametrize(("make", "count"), COUNTS)
@pytest.mark.sampled(2)
def test_which_products_are_of_words(make: Made, count: int) -> None:
    w = Written()
    results = make(w)
    for features in WITH_WORDS.values():
        text = program_text(w.b.steps(results, *features))
        assert text.count("i32 = dot ") == count
        assert program_text(parse_program(text)) == text
    for features in OTHERS.values():
        assert "= dot " not in program_text(w.b.steps(results, *features))


@pytest.mark.parametrize("make", [make for make, _ in COUNTS])
@pytest.mark.parametrize("features", [(), *WITH_WORDS.values(), *OTHERS.values()], ids=["native", *WITH_WORDS, *OTHERS])
@pytest.mark.sampled(8)
def test_values(make: Made, features: tuple[str, ...]) -> None:
    w = Written()
    check(w.b, make(w), available_target(*features))


@settings(max_examples=25)
@given(
    rows=st.integers(1, 20),
    terms=st.integers(1, 40).map(lambda n: 4 * n),
    columns=st.sampled_from([1, 8, 16, 33, 48, 96]),
    zero=st.integers(0, 255),
    zeros=st.booleans(),
)
def test_values_of_any_shape(rows: int, terms: int, columns: int, zero: int, zeros: bool) -> None:
    w = Written()
    check(w.b, [w.linear(w.quantised_input(rows, terms, zero=zero), columns, zeros)], host_target())


@settings(max_examples=25)
@given(
    channels=st.sampled_from([2, 3, 8, 16, 24, 32]),
    filters=st.sampled_from([3, 8, 16, 24, 40]),
    size=st.integers(3, 12),
    kernel=st.sampled_from([1, 3]),
    zero=st.integers(0, 255),
)
@pytest.mark.sampled(0)
def test_values_of_any_image(channels: int, filters: int, size: int, kernel: int, zero: int) -> None:
    w = Written()
    x = w.requantised(
        w.convolution(w.quantised_input(1, channels, size, size + 1, zero=zero), filters, kernel), 1 / 4, 3, False
    )
    check(w.b, [x, w.convolution(x, 16, 1)], host_target())


# Winograd's algorithm in integers of 16 bits.


def with_algorithms(algorithms: str, *features: str) -> Target:
    target = available_target(*features)
    return replace(target, features=f"{target.features},algorithms={algorithms}")


def has_words(target: Target) -> bool:
    return any("vnni" in feature for feature in target.features.split(","))


@pytest.mark.parametrize("features", [(), *WITH_WORDS.values()], ids=["native", *WITH_WORDS])
@pytest.mark.parametrize("algorithms", ["winograd2", "winograd4"])
@pytest.mark.parametrize("make", [convolutions, convolutions_with_zeros, images_of_parts])
@pytest.mark.sampled(4)
def test_values_of_fewer_products(make: Made, algorithms: str, features: tuple[str, ...]) -> None:
    w = Written()
    results, target = make(w), with_algorithms(algorithms, *features)
    assert has_words(target) == ("{i16}" in program_text(w.b.steps(results, *target.features.split(","))))
    check(w.b, results, target)


@settings(max_examples=16)
@given(
    algorithms=st.sampled_from(["winograd2", "winograd4"]),
    images=st.integers(1, 2),
    channels=st.sampled_from([4, 8, 16, 24, 32]),
    filters=st.sampled_from([3, 8, 16, 24, 40]),
    size=st.tuples(st.integers(3, 13), st.integers(3, 13)),
    kernel=st.sampled_from([3, 4]),
    zero=st.integers(0, 255),
)
@pytest.mark.sampled(0)
def test_values_of_fewer_products_of_any_image(algorithms, images, channels, filters, size, kernel, zero) -> None:
    w = Written()
    x = w.quantised_input(images, channels, *size, zero=zero)
    x = w.requantised(w.convolution(x, filters, kernel), 1 / 4, 3, False)
    check(w.b, [w.convolution(x, 16, 1)], with_algorithms(algorithms))


# Channels: the most for which the simple points for four results are exact, one block more, and the most of all points.
@pytest.mark.parametrize("channels", [112, 128, 1824], ids=["simple points", "other points", "most channels"])
@pytest.mark.parametrize("algorithms", ["winograd2", "winograd4"])
def test_fewer_products_of_the_largest_integers_are_exact(algorithms: str, channels: int) -> None:
    """Check the least and the largest integers, for filters with each combination of signs along a dimension."""
    w = Written()
    images = torch.stack([torch.ones(channels, 6, 5), torch.randint(2, (channels, 6, 5), generator=seeded())])
    x = w.requantised(w.b.input((images - 0.5) * 1e6), 1.0, 0, False)
    signs = torch.tensor([-128, 127], dtype=torch.int8)
    lines = torch.cartesian_prod(signs, signs, signs)
    filters = torch.cat([lines.view(8, 1, 1, 3).expand(8, 1, 3, 3), lines.view(8, 1, 3, 1).expand(8, 1, 3, 3)])
    integers = w.b.input(filters.expand(16, channels, 3, 3).contiguous(), "parameter")
    weight = w.by_number("mul", w.b.cast(integers, torch.float32), 2.0**-10, torch.mul)
    exact = functional.conv2d(x.tensor.double(), weight.tensor.double(), padding=1).float()
    operands = [x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1]
    result = w.b.op("aten.convolution", operands, exact)
    target = with_algorithms(algorithms)
    assert has_words(target) == ("{i16}" in program_text(w.b.steps([result], *target.features.split(","))))
    status, (actual,) = Executable(lower(w.b.program([result], target)))(w.b.values)
    assert status == 0 and torch.equal(actual, exact)


# Channels and the size of the image, and the number of products of the chosen tile (0: a plain sum).
CHOICES = {
    "it fits the cache": (64, 56, 6 * 6),
    "weights come from memory": (128, 28, 6 * 6),
    "tiles of four do not divide it": (256, 14, 4 * 6),
    "weights take longer to fetch": (512, 7, 0),
    "it is soon done": (16, 9, 0),
}


@pytest.mark.parametrize(("channels", "size", "places"), CHOICES.values(), ids=CHOICES.keys())
def test_choice_of_fewer_products(channels: int, size: int, places: int) -> None:
    w = Written()
    results = [w.convolution(w.quantised_input(1, channels, size, size), channels)]
    zen5 = replace(host_target(*WITH_WORDS["AVX512_VNNI"]), cpu="znver5")
    with new_context(), ir.Location.unknown():
        steps = loop_program(w.b.program(results, zen5), {})[0]
    members = [member for step in steps.steps if isinstance(step, TileLoop) for member in step.members]
    products = [step for step in [*steps.nests(), *members] if "{i16}" in nest_text(step.kernel)]
    assert sum(step.sizes[0] for step in products) == places


# Stores of whole words.

BYTES = """\
buffer input0 : i8[4, 8]
buffer input1 : i8[4, 8]
buffer result0 : i8[8, 1, 4]
buffer result1 : i8[4, 8]
entry {{
  nest {loops} {{
    i0 = input0[d0, d1]
    i1 = input1[d0, d1]
{start}    v0 : i8 = arith.xori i0, {other}
{more}    {stored} = v0
  }}
}}
"""
TABLE = """\
    t0 = table input1 [32] strides [1] offset 0
    v1 : i64 = arith.index_cast d0
    v2 : i8 = gather t0, v1
"""
IS_STORED = {"loops": "d0:4 d1:8", "start": "", "other": "i1", "more": "", "stored": "result0[d1, 0, d0]"}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"loops": "d0:3 d1:8"}, id="a part of a word"),
        pytest.param({"stored": "result0[d1, 0, d0] = v0\n    result1[d0, d1]"}, id="two results"),
        pytest.param({"start": TABLE, "other": "v2"}, id="a table"),
        pytest.param({"more": "    v1 : i1 = arith.cmpi v0, 9 {predicate = 6 : i64}\n    check v1\n"}, id="a check"),
        pytest.param({"start": "    o0 = result0[d1, 0, d0]\n", "other": "o0"}, id="the old value"),
        pytest.param({"loops": "d0:4 d1:8 d2:2+", "start": "    o0 = from 0 : i8\n", "other": "o0"}, id="a sum"),
        pytest.param({"stored": "result0[d1, 0, d0 * -1 + 3]"}, id="a word in reverse"),
        pytest.param({"loops": "d0:4 d1:1", "stored": "result0[d0, 0, d0]"}, id="a diagonal"),
    ],
)
def test_a_step_stores_a_word_if_it_computes_each_of_its_bytes_alone(change: dict[str, str]) -> None:
    steps = parse_program(BYTES.format(**IS_STORED | change))
    before, check = program_text(steps), validation.Check(steps)
    (step,) = steps.nests()
    assert store_words(step, step.outputs[0].buffer, 4) == (not change)
    assert (program_text(steps) == before) == bool(change)
    check.finish("the store", steps, is_exact=True)


# Values that are quantised and read immediately.

READ_AT_ONCE = """\
buffer input0 : f32[8]
buffer result0 : f32[8]
entry {
  nest d0:8 {
    i0 = input0[d0]
    v0 : f32 = arith.maximumf i0, LEAST
    v1 : f32 = arith.minimumf v0, 197.0
    v2 : f32 = math.roundeven v1
    v3 : i32 = arith.fptosi v2
    v4 : i32 = arith.addi v3, 58
    v5 : i8 = arith.trunci v4
    v6 : i32 = arith.extsi v5
    v7 : i32 = arith.andi v6, 255
    v8 : f32 = arith.sitofp v7
    v9 : f32 = arith.subf v8, ZERO
    v10 : f32 = arith.mulf v9, 0.5
    result0[d0] = v10
  }
}
"""


@pytest.mark.parametrize(
    ("least", "zero", "stays"),
    [("-58.0", "58.0", True), ("-3.0", "58.0", True), ("-59.0", "58.0", False), ("-58.0", "57.0", False)],
)
def test_integers_that_are_read_immediately_stay_float(least: str, zero: str, stays: bool) -> None:
    steps = parse_program(READ_AT_ONCE.replace("LEAST", least).replace("ZERO", zero))
    keep_floats(steps)
    assert ("arith.fptosi" not in program_text(steps)) == stays


def test_values_that_stay_float_have_no_negative_zero() -> None:
    def function(x: Tensor) -> Tensor:
        integers = (x * 16).clamp(-128, 127).round().to(torch.int8)
        return 1 / (integers.to(torch.float32) * 0.0625)

    x = torch.tensor([-0.01, 0.01, -1.0, 9.0] * 8)
    compiled = torchmdla.compile(torch.jit.trace(function, x), x)
    assert_matches(compiled(x), function(x))
    assert torchmdla.stats().fallbacks == {}


# Weights that are read as 8-bit integers although no product is of integers: a few rows read many weights.


def few_rows(w: Written, rows: int = 3) -> list[Value]:
    return [w.linear(w.b.input(normal(rows, 1024)), 1024)]


def few_rows_with_zeros(w: Written) -> list[Value]:
    return [w.linear(w.b.input(normal(3, 1024)), 1024, zeros=True)]


def few_rows_in_groups(w: Written, rows: int = 3) -> list[Value]:
    """Build a linear layer with a scale and a zero point for every 32 weights of an output."""
    x = w.b.input(normal(rows, 1024))
    integers = w.b.input(torch.randint(-8, 8, (1024, 32, 32), dtype=torch.int8, generator=seeded()), "parameter")
    scales, zeros = (
        w.b.input(normal(1024, 32, 1).abs(), "parameter"),
        w.b.input(torch.randint(-3, 3, (1024, 32, 1), dtype=torch.int8, generator=seeded()), "parameter"),
    )
    wide = [w.b.cast(v, torch.int32) for v in (integers, zeros)]
    differences = w.b.cast(w.b.op("aten.sub.Tensor", [*wide, 1], wide[0].tensor - wide[1].tensor), torch.float32)
    value = w.b.op("aten.mul.Tensor", [differences, scales], differences.tensor * scales.tensor)
    weight = w.b.op("aten.view", [value, [1024, 1024]], value.tensor.view(1024, 1024))
    return [w.b.op("aten.linear", [x, weight, None], functional.linear(x.tensor, weight.tensor))]


def many_rows(w: Written) -> list[Value]:
    return few_rows(w, rows=64)


@pytest.mark.parametrize(
    ("make", "is_narrow"),
    [(few_rows, True), (few_rows_with_zeros, True), (few_rows_in_groups, True), (many_rows, False)],
)
def test_weights_of_few_rows_stay_narrow(make: Made, is_narrow: bool) -> None:
    w = Written()
    results = make(w)
    for features in (*WITH_WORDS.values(), OTHERS["AVX2"]):
        packs = [packing.buffer for packing in w.b.steps(results, *features).packings]
        assert ("i8" in {buffer.element for buffer in packs if buffer.count == 1024 * 1024}) == is_narrow
    check(w.b, results, host_target())


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_values_of_weights_in_groups(rows: int) -> None:
    w = Written()
    check(w.b, few_rows_in_groups(w, rows), host_target())


def test_sums_of_the_largest_integers_are_exact() -> None:
    """Check sums of as many terms as fit into 32 bits, all of one sign.

    float32 is not exact for them.
    """
    w = Written()
    terms = 4096
    x = w.requantised(w.b.input(torch.full((3, terms), 1000.0)), 1.0, 0, False)
    integers = w.b.input(torch.full((16, terms), -128, dtype=torch.int8), "parameter")
    wide = w.b.cast(integers, torch.float32)
    product = w.b.op("aten.linear", [x, wide, None], torch.full((3, 16), -128.0 * 255 * terms))
    _, (result,) = Executable(lower(w.b.program([product], host_target())))(w.b.values)
    assert torch.equal(result, product.tensor)

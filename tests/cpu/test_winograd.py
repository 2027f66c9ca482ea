"""Convolutions by Winograd's algorithm: transforms, values at all kinds of edges, blocks of tiles, and the choice."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_running import host_target
from nest_samples import AVX512
from torch import nn
from torch.nn import functional
from torch_mlir import ir
from written_programs import Builder, Value, check, normal

import torchmdla
from torchmdla.compiler.mlir import new_context
from torchmdla.compiler.program import Target
from torchmdla.devices.cpu.ir.expressions import Expression, constant, numbered_value
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, TileLoop
from torchmdla.devices.cpu.lowering import loop_program
from torchmdla.devices.cpu.passes.bilinear_maps import (
    KIND,
    WHOLE,
    Matrix,
    apply_matrices,
    has_transforms,
    integer_transforms,
    restore,
    transforms,
)
from torchmdla.testing import checking
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.frontends import variant_of
from torchmdla.testing.programs import PROGRAMS
from torchmdla.testing.runner import check_outcome

TILES = (2, 4, 6)

# Results of a tile, and taps.
SIZES = [(results, taps) for results in TILES for taps in range(2, 8) if has_transforms(results, taps)]


def target(algorithms: str, *features: str) -> Target:
    host = host_target(*features)
    return replace(host, features=f"{host.features},algorithms={algorithms}")


def times(matrix: Matrix, vector: list[Fraction]) -> list[Fraction]:
    return [sum((a * b for a, b in zip(row, vector, strict=True)), Fraction()) for row in matrix]


@pytest.mark.parametrize("is_shorter", [False, True], ids=["all taps", "one less"])
@pytest.mark.parametrize(("results", "taps"), SIZES)
@settings(max_examples=10)
@given(st.data())
def test_transforms_are_exact(results: int, taps: int, is_shorter: bool, data: st.DataObject) -> None:
    matrices = transforms(results, taps)
    if is_shorter:
        matrices, taps = matrices.drop_tap(), taps - 1
    number = st.integers(-100, 100).map(Fraction)
    image = data.draw(st.lists(number, min_size=matrices.products, max_size=matrices.products))
    filters = data.draw(st.lists(number, min_size=taps, max_size=taps))
    products = [a * b for a, b in zip(times(matrices.taps, filters), times(matrices.inputs, image), strict=True)]
    sums = [sum(image[k + tap] * filters[tap] for tap in range(taps)) for k in range(results)]
    assert times(matrices.outputs, [*products, *[Fraction()] * is_shorter]) == sums


@pytest.mark.parametrize("is_shorter", [False, True], ids=["all taps", "one less"])
@pytest.mark.parametrize(("results", "taps"), [(m, r) for m in TILES for r in range(2, 5) if integer_transforms(m, r)])
def test_transforms_of_integers_have_no_fractions(results: int, taps: int, is_shorter: bool) -> None:
    for matrices in integer_transforms(results, taps):
        chosen, count = (matrices.drop_tap(), taps - 1) if is_shorter else (matrices, taps)
        rows = [*chosen.inputs, *chosen.taps, *chosen.outputs]
        assert all(number.denominator == 1 for row in rows for number in row)
        for image, filters in itertools.product(basis(chosen.products), basis(count)):
            products = [a * b for a, b in zip(times(chosen.taps, filters), times(chosen.inputs, image), strict=True)]
            sums = [sum(image[k + tap] * filters[tap] for tap in range(count)) for k in range(results)]
            multiples = [matrices.divisor * total for total in sums]
            assert times(chosen.outputs, [*products, *[Fraction()] * is_shorter]) == multiples


def basis(size: int) -> list[list[Fraction]]:
    """Return the vectors with a single one: a bilinear map is its values for these."""
    return [[Fraction(int(k == place)) for k in range(size)] for place in range(size)]


@pytest.mark.parametrize("divisor", [1, 4, 9, 576, 900])
def test_products_with_a_divisor_are_restored(divisor: int) -> None:
    power = (divisor & -divisor).bit_length() - 1
    for number in (0, 1, -1, 2 ** (31 - power) - 1, -(2 ** (31 - power)), 123_456, -654_321):
        multiple = (number * divisor + 2**31) % 2**32 - 2**31
        value = restore(constant(multiple, WHOLE), divisor)
        restored = evaluate_integers(value)
        assert restored == number


def evaluate_integers(expression: Expression) -> int:
    """Return the value of products and shifts of constants of 32 bits."""
    if expression.op == "constant":
        return expression.payload
    left, right = map(evaluate_integers, expression.operands)
    value = left * right if expression.op == "arith.muli" else left >> right
    return (value + 2**31) % 2**32 - 2**31


_OPS = {
    "arith.addf": lambda a, b: a + b,
    "arith.subf": lambda a, b: a - b,
    "arith.mulf": lambda a, b: a * b,
    "math.fma": lambda a, b, c: a * b + c,
}


def evaluate(expression: Expression, operands: Sequence[Any]) -> Any:
    """Return the value of sums and products of numbered operands."""
    if expression.op == "operand":
        return operands[expression.payload]
    if expression.op == "constant":
        return expression.payload
    return _OPS[expression.op](*(evaluate(each, operands) for each in expression.operands))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dimensions", [1, 2])
@pytest.mark.parametrize("matrix", ["inputs", "outputs"])
@pytest.mark.parametrize(("results", "taps"), SIZES)
def test_expressions_are_the_matrix(results: int, taps: int, matrix: str, dimensions: int, fused: bool) -> None:
    chosen: Matrix = getattr(transforms(results, taps), matrix)
    places = list(itertools.product(range(len(chosen[0])), repeat=dimensions))
    leaves = {place: numbered_value("operand", KIND, k) for k, place in enumerate(places)}
    numbers = torch.randn(len(places), dtype=torch.float64)
    values = apply_matrices([chosen] * dimensions, leaves, fused).values()
    actual = [evaluate(value, numbers.tolist()) for value in values]
    alone = torch.tensor([[float(number) for number in row] for row in chosen], dtype=torch.float64)
    whole = torch.kron(alone, alone) if dimensions == 2 else alone
    torch.testing.assert_close(torch.tensor(actual, dtype=torch.float64), whole @ numbers)


def convolve(
    b: Builder,
    x: Value,
    filters: int,
    padding: list[int],
    groups: int = 1,
    kernel: Sequence[int] = (3, 3),
    stride: Sequence[int] = (1, 1),
) -> Value:
    channels, dims = x.tensor.shape[1] // groups, x.tensor.dim() - 2
    weight = b.input(normal(filters, channels, *kernel) / (channels * math.prod(kernel)) ** 0.5, "parameter")
    bias = b.input(normal(filters), "parameter")
    by_dims = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
    product = by_dims[dims](x.tensor, weight.tensor, bias.tensor, list(stride), padding, groups=groups)
    ones, zeros = [1] * dims, [0] * dims
    return b.op("aten.convolution", [x, weight, bias, list(stride), padding, ones, False, zeros, groups], product)


def residual(b: Builder, x: Value) -> list[Value]:
    """Build two convolutions of a residual network with the operators after them.

    The image of the second convolution is the result of the first.
    """
    first = convolve(b, x, x.tensor.shape[1], [1, 1])
    rectified = b.op("aten.relu", [first], first.tensor.relu())
    second = convolve(b, rectified, x.tensor.shape[1], [1, 1])
    total = b.op("aten.add.Tensor", [second, x, 1], second.tensor + x.tensor)
    return [b.op("aten.relu", [total], total.tensor.relu())]


@pytest.mark.parametrize("features", [(), ("+avx2", "+fma"), ("",)], ids=["widest", "avx2", "baseline"])
@pytest.mark.parametrize("size", [(8, 8), (7, 5), (2, 9), (1, 4)], ids=str)
@pytest.mark.parametrize("results", TILES)
@pytest.mark.sampled(2)
def test_values_of_a_residual_network(results: int, size: tuple[int, int], features: tuple[str, ...]) -> None:
    b = Builder()
    check(b, residual(b, b.input(normal(2, 16, *size))), target(f"winograd{results}", *features))


@settings(max_examples=12)
@given(
    results=st.sampled_from(TILES),
    images=st.integers(1, 3),
    groups=st.integers(1, 2),
    channels=st.integers(2, 20),
    filters=st.integers(1, 20),
    size=st.tuples(st.integers(1, 11), st.integers(1, 11)),
    padding=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
@pytest.mark.sampled(0)
def test_values_of_any_shape(results, images, groups, channels, filters, size, padding) -> None:
    b = Builder()
    x = b.input(normal(images, channels * groups, *size))
    check(b, [convolve(b, x, filters * groups, list(padding), groups)], target(f"winograd{results}"))


@settings(max_examples=16)
@given(
    results=st.sampled_from(TILES),
    channels=st.sampled_from([2, 3, 16]),
    size=st.tuples(st.integers(7, 20), st.integers(7, 20)),
    kernel=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
@pytest.mark.sampled(0)
def test_values_of_any_window(results, channels, size, kernel, stride, padding) -> None:
    b = Builder()
    x = b.input(normal(2, channels, *size))
    check(b, [convolve(b, x, 16, list(padding), 1, kernel, stride)], target(f"winograd{results}"))


# Taps and stride of each dimension, and the number of products of a tile of four results, or of 4×4, for one channel. 0
# means direct convolution.
WINDOWS = {
    "three taps, stride two": ((3, 3), (2, 2), 9 * 9),
    "a stem": ((7, 7), (2, 2), 13 * 13),
    "five taps": ((5, 5), (1, 1), 8 * 8),
    "eleven taps, stride four": ((11, 11), (4, 4), 23 * 23),
    "along one dimension": ((1, 3), (1, 1), 6),
    "along one, strided along both": ((3, 1), (2, 2), 9),
    "other taps along the other": ((2, 3), (1, 1), 5 * 6),
    "too many taps": ((7, 7), (1, 1), 0),
    "patches": ((4, 4), (4, 4), 0),
}


@pytest.mark.parametrize(("kernel", "stride", "terms"), WINDOWS.values(), ids=WINDOWS.keys())
@pytest.mark.sampled(1)
def test_values_of_windows(kernel: tuple[int, int], stride: tuple[int, int], terms: int) -> None:
    """Check windows whose results fill tiles, with a plain and with a blocked image.

    The number of products is the minimum.
    """
    for channels in (3, 32):
        b = Builder()
        sizes = [taps + step * 7 for taps, step in zip(kernel, stride, strict=True)]
        x = b.input(normal(2, channels, *sizes))
        rectified = b.op("aten.relu", [x], x.tensor.relu())
        results = [convolve(b, rectified, 16, [0, 0], 1, kernel, stride)]
        steps = steps_of(b, results, target("winograd4"))
        factors = [step.sizes for step in steps.nests() if any(step.reduction)]
        tiles = 2 * math.prod(2 if taps > step else 8 for taps, step in zip(kernel, stride, strict=True))
        if terms:
            assert sum(map(math.prod, factors)) == terms * tiles * channels * 16
        else:
            assert len(factors) == 1 and math.prod(factors[0]) == 2 * 8 * 8 * channels * 16 * math.prod(kernel)
        check(b, results, target("winograd4"))


@pytest.mark.parametrize("results", TILES)
@pytest.mark.parametrize(("size", "stride"), [((19,), 1), ((19,), 2), ((4, 6, 6), 1)], ids=["one", "strided", "three"])
def test_values_of_other_dimensions(results: int, size: tuple[int, ...], stride: int) -> None:
    b = Builder()
    x, dims = b.input(normal(2, 16, *size)), len(size)
    result = convolve(b, x, 16, [1] * dims, 1, [3] * dims, [stride] * dims)
    check(b, [result], target(f"winograd{results}"))


def steps_of(b: Builder, results: list[Value], target: Target) -> LoopProgram:
    with new_context(), ir.Location.unknown():
        return loop_program(b.program(results, target), {})[0]


def places_of(steps: LoopProgram) -> int:
    """Return the number of products of a tile, or the number of images for direct convolutions."""
    members = [member for step in steps.steps if isinstance(step, TileLoop) for member in step.members]
    return sum(step.sizes[0] for step in [*steps.nests(), *members] if any(step.reduction))


def has_places(step: LoopNest, results: int) -> bool:
    return any(step.reduction) and step.sizes[0] == (results + 2) ** 2


# Channels, height and width, taps, stride, and the number of products of the chosen tile (1: direct convolution).
CHOICES = {
    "tiles of six divide it, of too large an error": (128, 48, 3, 1, 6 * 6),
    "tiles of four divide it": (128, 28, 3, 1, 6 * 6),
    "weights take longer to fetch": (512, 7, 3, 1, 4 * 4),
    "stride two": (128, 56, 3, 2, 5 * 5),
    "stride two, of fourteen results": (128, 28, 3, 2, 3 * 3),
    "more weights than products save": (512, 14, 3, 2, 1),
    "five taps": (64, 28, 5, 1, 6 * 6),
    "a stem": (3, 224, 7, 2, 5 * 7),
    "a stem, of few products": (3, 224, 3, 2, 1),
    "it is soon done": (16, 9, 3, 1, 1),
}


@pytest.mark.parametrize(("channels", "size", "taps", "stride", "places"), CHOICES.values(), ids=CHOICES.keys())
def test_choice_of_the_algorithm(channels: int, size: int, taps: int, stride: int, places: int) -> None:
    b = Builder()
    x, padding = b.input(normal(1, channels, size, size)), [taps // 2] * 2
    result = convolve(b, x, max(channels, 64), padding, 1, [taps] * 2, [stride] * 2)
    zen5 = replace(target("fast", *AVX512), cpu="znver5")
    assert places_of(steps_of(b, [result], zen5)) == places


def test_many_tiles_are_run_in_blocks() -> None:
    """Check images that exceed the second-level cache, with a batch.

    The weights are packed, and the last rows have a separate block.
    """
    b = Builder()
    results = [convolve(b, b.input(normal(2, 64, 54, 56)), 64, [1, 1])]
    steps = steps_of(b, results, target("winograd4", *AVX512))
    loops = [step for step in steps.steps if isinstance(step, TileLoop)]
    assert [loop.extents for loop in loops] == [(2, 13, 14), (2, 1, 14)]
    assert all(any(has_places(member, 4) for member in loop.members) for loop in loops)
    assert not [step for step in steps.nests() if any(step.reduction)]
    assert len(steps.packings) == 1
    check(b, results, target("winograd4"))


@pytest.mark.parametrize("features", [(), ("+avx2", "+fma")], ids=["widest", "avx2"])
@pytest.mark.parametrize("results", TILES)
def test_weights_of_a_call_are_transformed_in_it(results: int, features: tuple[str, ...]) -> None:
    b = Builder()
    x, weight = b.input(normal(2, 32, 14, 13)), b.input(normal(48, 32, 3, 3) / 17)
    product = functional.conv2d(x.tensor, weight.tensor)
    operands = [x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    outcome = [b.op("aten.convolution", operands, product)]
    steps = steps_of(b, outcome, target(f"winograd{results}", *features))
    assert places_of(steps) % (results + 2) ** 2 == 0 and not steps.packings
    check(b, outcome, target(f"winograd{results}", *features))


@settings(max_examples=16)
@given(
    part=st.sampled_from(TILES),
    images=st.integers(1, 3),
    channels=st.integers(1, 20),
    filters=st.integers(1, 20),
    results=st.tuples(st.integers(2, 4), st.integers(1, 5)),
    kernel=st.tuples(st.integers(4, 13), st.integers(1, 13)),
)
@pytest.mark.sampled(0)
def test_values_of_long_windows(part, images, channels, filters, results, kernel) -> None:
    """Check filters with more taps than results, which are the gradients in a gradient of weights."""
    b = Builder()
    x = b.input(normal(channels, images, *(n + m - 1 for n, m in zip(results, kernel, strict=True))))
    check(b, [convolve(b, x, filters, [0, 0], kernel=kernel)], target(f"winograd{part}"))


# Channels, size of the image, and the number of products of a part of the taps (1: direct convolution).
GRADIENTS = {
    "parts of four divide it": (64, 56, 6 * 6),
    "parts of four do not divide it": (256, 14, 6 * 6),
    "more results than products save": (512, 7, 1),
}


@pytest.mark.parametrize(("channels", "size", "places"), GRADIENTS.values(), ids=GRADIENTS.keys())
def test_choice_for_a_gradient_of_weights(channels: int, size: int, places: int) -> None:
    b = Builder()
    x, gradient = b.input(normal(channels, 4, size + 2, size + 2)), b.input(normal(channels, 4, size, size))
    operands = [x, gradient, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    result = b.op("aten.convolution", operands, functional.conv2d(x.tensor, gradient.tensor))
    zen5 = replace(target("fast", *AVX512), cpu="znver5")
    assert places_of(steps_of(b, [result], zen5)) == (channels if places == 1 else places)


# The largest allowed root mean square error of "fast" against float64, relative to the result's.
MOST_ERROR = 1e-5


@pytest.mark.parametrize(
    ("results", "taps", "stride"), [(2, 3, 1), (4, 3, 1), (6, 3, 1), (4, 5, 1), (2, 7, 1), (6, 3, 2), (4, 7, 2)]
)
@pytest.mark.parametrize("channels", [16, 256])
@pytest.mark.sampled(1)
def test_error_against_float64(channels: int, results: int, taps: int, stride: int) -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(channels, 32, taps, stride, padding=1).eval()
    x = torch.randn(1, channels, 16, 16)
    torchmdla.enable(algorithms=f"winograd{results}")
    try:
        compiled = torchmdla.compile(model, x)
        with torch.no_grad():
            actual, exact = compiled(x).double(), model.double()(x.double())
        assert float((actual - exact).norm() / exact.norm()) < MOST_ERROR
    finally:
        torchmdla.enable()


def check_program(name: str, algorithms: str) -> None:
    """Check a program of the registry with forced algorithms."""
    torchmdla.enable(algorithms=algorithms)
    try:
        failure = checking.check(PROGRAMS[name], "torchscript:trace", variant_of("torchscript:trace"))
    finally:
        torchmdla.enable()
    assert failure is None or check_outcome(failure).expected, failure


@pytest.mark.parametrize(
    ("name", "algorithms"),
    zip(
        [name for name in PROGRAMS if name.startswith("convolutions.")],
        itertools.cycle(["winograd2", "winograd4", "winograd6", "direct"]),
    ),
)
@pytest.mark.sampled(8)
def test_programs(name: str, algorithms: str) -> None:
    """Check each program with one algorithm.

    ``python -m torchmdla.testing --options algorithms=winograd2`` checks each program.
    """
    check_program(name, algorithms)


@pytest.mark.parametrize("algorithms", ["direct", "winograd2", "winograd4", "fast"])
@pytest.mark.sampled(0)
def test_one_program_takes_batches_of_any_size(algorithms: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)).eval()
    torchmdla.enable(algorithms=algorithms, strict=True)
    try:
        traced = torch.jit.freeze(torch.jit.trace(model, torch.randn(1, 3, 33, 34)))
        torchmdla.reset_stats()
        with torch.no_grad():
            for images in (2, 3, 5, 4, 7, 3):
                x = torch.randn(images, 3, 33, 34)
                assert_matches(traced(x), model(x), layers=2)
        assert torchmdla.stats().dynamic == 1, torchmdla.stats().not_dynamic
    finally:
        torchmdla.enable()


def test_a_wrong_choice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown algorithms 'slow' \(choose from fast, winograd, direct"):
        torchmdla.enable(algorithms="slow")

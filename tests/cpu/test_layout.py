"""Passes over steps: layouts, panels, packs, padding and joining in place, by their values and their effects."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from nest_running import host_target
from torch.nn import functional
from written_programs import Builder, Executable, Value, check, normal

from torchmdla.compiler.program import Target
from torchmdla.compiler.records import MACHINE
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.expressions import accumulator, constant, load, operation
from torchmdla.devices.cpu.linalg.views import regroup
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, is_bijective, split_loop
from torchmdla.devices.cpu.lowering import lower
from torchmdla.devices.cpu.passes.layout import block_channels

TARGETS = {"widest": host_target(), "avx2": host_target("+avx2", "+fma"), "baseline": host_target("")}


def convolve(
    b: Builder, x: Value, filters: int, kernel: int, groups: int = 1, rectified: bool = True, **options: int
) -> Value:
    """Build a convolution whose weights and bias are parameters, then a rectifier if ``rectified``."""
    channels = x.tensor.shape[1]
    scale = (2 / (channels // groups * kernel**2)) ** 0.5
    weight = b.input(normal(filters, channels // groups, kernel, kernel) * scale, "parameter")
    bias = b.input(normal(filters), "parameter")
    stride, padding, dilation = (options.get(name, default) for name, default in DEFAULTS)
    expected = functional.conv2d(x.tensor, weight.tensor, bias.tensor, stride, padding, dilation, groups)
    pairs = ([stride] * 2, [padding] * 2, [dilation] * 2)
    operands = [x, weight, bias, *pairs, False, [0, 0], groups]
    summed = b.op("aten.convolution", operands, expected)
    return b.op("aten.relu", [summed], torch.relu(expected)) if rectified else summed


DEFAULTS = (("stride", 1), ("padding", 0), ("dilation", 1))


def pool(b: Builder, x: Value) -> Value:
    expected = functional.max_pool2d(x.tensor, 3, 2, 1)
    return b.op("aten.max_pool2d", [x, [3, 3], [2, 2], [1, 1], [1, 1], False], expected)


def linear(b: Builder, x: Value, columns: int) -> Value:
    weight = b.input(normal(columns, x.tensor.shape[-1]) * 0.1, "parameter")
    bias = b.input(normal(columns), "parameter")
    expected = functional.linear(x.tensor, weight.tensor, bias.tensor)
    return b.op("aten.linear", [x, weight, bias], expected)


def flatten(b: Builder, x: Value) -> Value:
    return b.op("aten.flatten.using_ints", [x, 1, -1], x.tensor.flatten(1))


def join(b: Builder, parts: Sequence[Value], dim: int) -> Value:
    items = b.value(list(parts))
    return b.op("aten.cat", [items, dim], torch.cat([part.tensor for part in parts], dim))


def residual_network(b: Builder) -> list[Value]:
    """Build every edge of the blocked layout.

    The edges are an image of 3 channels, a pooling, a residual, and a classifier on its mean.
    """
    x = pool(b, convolve(b, b.input(normal(2, 3, 19, 23)), 32, 7, stride=2, padding=3))
    y = convolve(b, convolve(b, x, 32, 3, padding=1), 32, 3, padding=1)
    total = b.op("aten.add.Tensor", [x, y, 1], x.tensor + y.tensor)
    last = convolve(b, total, 48, 1, stride=2)
    mean = b.op("aten.mean.dim", [last, [2, 3], False, None], last.tensor.mean((2, 3)))
    return [linear(b, mean, 10)]


def separable_network(b: Builder) -> list[Value]:
    x = convolve(b, b.input(normal(1, 16, 9, 11)), 16, 3, groups=16, padding=1)
    return [convolve(b, convolve(b, x, 64, 1), 64, 3, groups=64, stride=2, padding=1)]


def grouped_network(b: Builder) -> list[Value]:
    x = convolve(b, b.input(normal(1, 16, 8, 9)), 32, 3, padding=1)
    return [convolve(b, convolve(b, x, 32, 3, groups=4, padding=1), 16, 1)]


def dilated_network(b: Builder) -> list[Value]:
    x = convolve(b, b.input(normal(1, 16, 15, 13)), 32, 3, padding=2, dilation=2)
    return [convolve(b, x, 24, 3, padding=1)]


def dense_network(b: Builder) -> list[Value]:
    """Build a concatenation of channels in whole blocks and in partial ones.

    A convolution reads it, and it is a result.
    """
    x = convolve(b, b.input(normal(1, 3, 10, 10)), 16, 3, padding=1)
    y = join(b, [x, convolve(b, x, 32, 3, padding=1)], 1)
    z = join(b, [y, convolve(b, y, 8, 1)], 1)
    return [convolve(b, z, 16, 3, padding=1), z]


def transposed_network(b: Builder) -> list[Value]:
    """Build a transposed convolution. Its image is spread into a larger one with zeros in between."""
    x = convolve(b, b.input(normal(1, 3, 6, 7)), 16, 3, padding=1)
    weight = b.input(normal(16, 8, 3, 3) * 0.1, "parameter")
    expected = functional.conv_transpose2d(x.tensor, weight.tensor, None, stride=2, padding=1, output_padding=1)
    operands = [x, weight, None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1]
    return [b.op("aten.convolution", operands, expected)]


def flattened_network(b: Builder) -> list[Value]:
    """Build a product over channels and pixels."""
    return [linear(b, flatten(b, convolve(b, b.input(normal(4, 3, 6, 5)), 32, 3)), 12)]


def lone_convolutions(b: Builder) -> list[Value]:
    """Build convolutions that are results of the program. One is read again."""
    x = convolve(b, b.input(normal(1, 16, 9, 11)), 32, 3, rectified=False, padding=1)
    y = convolve(b, x, 32, 3, groups=32, rectified=False, stride=2)
    return [x, y, pool(b, b.input(normal(1, 16, 9, 8)))]


def products(b: Builder) -> list[Value]:
    x = b.input(normal(7, 40))
    return [linear(b, linear(b, linear(b, x, 96), 64), 33)]


def products_with_one_weight(b: Builder) -> list[Value]:
    """Build products with parts of one parameter, as in attention, and with one part used twice."""
    x = b.input(normal(6, 24))
    weight = b.input(normal(96, 24), "parameter")
    results = []
    for start in (0, 48, 0):
        part = weight.tensor[start : start + 48]
        rows = b.op("aten.slice.Tensor", [weight, 0, start, start + 48, 1], part)
        results.append(b.op("aten.linear", [x, rows, None], functional.linear(x.tensor, part)))
    return results


NETWORKS = (
    residual_network,
    separable_network,
    grouped_network,
    dilated_network,
    dense_network,
    transposed_network,
    flattened_network,
    lone_convolutions,
    products,
    products_with_one_weight,
)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_networks(network: object, target: Target) -> None:
    builder = Builder()
    check(builder, network(builder), target)  # type: ignore[operator]


def mobile_network(b: Builder) -> list[Value]:
    """Build channels whose number is a multiple of half a vector."""
    x = convolve(b, b.input(normal(1, 3, 21, 23)), 24, 3, stride=2, padding=1)
    y = convolve(b, convolve(b, x, 72, 1), 72, 5, groups=72, stride=2, padding=2)
    return [convolve(b, convolve(b, y, 40, 1, rectified=False), 32, 1)]


def joined_network(b: Builder) -> list[Value]:
    """Join an image of whole vectors of channels with one of half a vector.

    Only half vectors divide the channels of the joined image.
    """
    x = convolve(b, b.input(normal(1, 3, 10, 10)), 16, 3, padding=1)
    y = join(b, [x, convolve(b, x, 8, 3, padding=1)], 1)
    return [convolve(b, y, 16, 3, padding=1), convolve(b, x, 16, 1)]


HALVES = ((MACHINE, '{"splits": true}'),)


@pytest.mark.parametrize("target", ["widest", "avx2"])
@pytest.mark.parametrize("network", [mobile_network, joined_network, dense_network, lone_convolutions])
def test_blocks_of_half_vectors(network: Callable[[Builder], list[Value]], target: str) -> None:
    builder = Builder(HALVES)
    check(builder, network(builder), TARGETS[target])


def compiled(network: object) -> Executable:
    builder = Builder()
    return check(builder, network(builder))  # type: ignore[operator]


def test_packs_hold_only_parameters() -> None:
    """Check that each weight of a convolution, and of a product with enough rows, is packed once, from itself alone."""
    manifest = compiled(residual_network).manifest
    roles = {manifest.arguments[k].role for pack in manifest.packs for k in pack.arguments}
    assert len(manifest.packs) >= 4
    assert roles == {"parameter"}


def test_weights_are_packed() -> None:
    builder = Builder()
    assert len(lower(builder.program(residual_network(builder), host_target())).manifest.packs) >= 4


def packs_of(columns: int, rows: int) -> list[str]:
    builder = Builder()
    results = [linear(builder, builder.input(normal(rows, 32)), columns)]
    return [pack.recipe for pack in lower(builder.program(results, host_target())).manifest.packs]


def test_recipes_name_the_computation() -> None:
    """Check recipes. Specialisations for other rows share a pack; weights of other sizes do not."""
    assert packs_of(96, rows=8) == packs_of(96, rows=5) != packs_of(48, rows=8)
    assert len(packs_of(96, rows=8)) == 1


def test_equal_packs_are_one_function() -> None:
    """Check that weights of equal sizes are packed by the same code, each from its own parameter."""
    builder = Builder()
    x = builder.input(normal(8, 96))
    for columns in (96, 96, 48):
        x = linear(builder, x, columns)
    packs = check(builder, [x]).manifest.packs
    first, second, third = (pack.symbol for pack in packs)
    assert first == second != third
    assert packs[0].arguments != packs[1].arguments


def kernels_of(results: list[Value], builder: Builder) -> float:
    return check(builder, results).manifest.statistics["kernels"]


def test_padding_is_computed_in_place() -> None:
    """Check that only the borders are filled between two convolutions.

    One kernel fills the rows, and one the columns.
    """
    padded, plain = Builder(), Builder()
    first = convolve(padded, convolve(padded, padded.input(normal(1, 16, 9, 9)), 16, 1), 16, 3, padding=1)
    second = convolve(plain, convolve(plain, plain.input(normal(1, 16, 9, 9)), 16, 1), 16, 3)
    assert kernels_of([first], padded) == kernels_of([second], plain) + 2


def convolution(image: Buffer, result: Buffer) -> LoopNest:
    """Return a convolution of three taps over the last dimension."""
    (_, channels, _), (_, filters, pixels) = image.sizes, result.sizes
    weight = Buffer("parameter", "f32", (filters, channels, 3))
    sample, row, pixel, channel, tap = (AffineExpr.of_loop(loop, 5) for loop in range(5))
    sliding = AffineExpr((0, 0, 1, 0, 1))
    factors = Access(image, (sample, channel, sliding)), Access(weight, (row, channel, tap))
    product = operation("arith.mulf", map(load, factors), "f32")
    return LoopNest(
        sizes=(1, filters, pixels, channels, 3),
        reduction=(False, False, False, True, True),
        outputs=(Access(result, (sample, row, pixel)),),
        values=(operation("arith.addf", [product, accumulator(0, "f32")], "f32"),),
    )


def test_a_result_is_computed_in_blocks() -> None:
    """Check that a convolution stores its result into a blocked temporary.

    Another nest copies it to the result if there is not an epilogue.
    """
    image, result = Buffer("input", "f32", (1, 32, 8)), Buffer("result", "f32", (1, 32, 6))
    step = convolution(image, result)
    steps = LoopProgram([step], {})
    block_channels(steps, (16, 8))
    assert step.outputs[0].buffer.sizes == (1, 2, 6, 16)
    copying = steps.nests()[-1]
    assert [a.buffer for a in copying.inputs] == [step.outputs[0].buffer]
    assert [a.buffer for a in copying.outputs] == [result]


@pytest.mark.parametrize(
    ("channels", "blocks"),
    [
        ((3, 32, 24, 40, 20), (16, 8, 8, 0)),
        ((20, 40, 20), (0, 0)),
        ((20, 48, 20), (16, 0)),
        ((3, 24, 24, 48), (8, 8, 16)),
    ],
    ids=str,
)
def test_blocks_of_a_chain(channels: Sequence[int], blocks: Sequence[int]) -> None:
    """Check that blocks of half vectors are only used between convolutions with blocks on all sides."""
    first, *others = (("f32", (1, count, 20 - 2 * k)) for k, count in enumerate(channels))
    images = [Buffer("input", *first), *(Buffer("temporary", *other) for other in others)]
    chain = [convolution(*pair) for pair in itertools.pairwise(images)]
    block_channels(LoopProgram(list(chain), {}), (16, 8))
    results = [step.outputs[0].buffer.sizes for step in chain]
    assert [sizes[3] if len(sizes) > 3 else 0 for sizes in results] == list(blocks)


def test_groups_of_channels_are_no_windows() -> None:
    """Check that a group norm does not change the layout. Its mean is over adjacent channels."""
    builder = Builder()
    x = builder.input(normal(2, 64, 6, 5))
    grouped = builder.op("aten.view", [x, [2, 16, 4, 6, 5]], x.tensor.view(2, 16, 4, 6, 5))
    mean = builder.op("aten.mean.dim", [grouped, [2, 3, 4], True, None], grouped.tensor.mean([2, 3, 4], keepdim=True))
    centred = builder.op("aten.sub.Tensor", [grouped, mean, 1], grouped.tensor - mean.tensor)
    squares = builder.op("aten.mul.Tensor", [centred, centred], centred.tensor.square())
    variance = squares.tensor.mean([2, 3, 4], keepdim=True)
    mean_square = builder.op("aten.mean.dim", [squares, [2, 3, 4], True, None], variance)
    factor = builder.op("aten.rsqrt", [mean_square], variance.rsqrt())
    normalised = builder.op("aten.mul.Tensor", [centred, factor], centred.tensor * factor.tensor)
    assert kernels_of([normalised], builder) == 3


def test_joining_copies_nothing() -> None:
    joined, apart = Builder(), Builder()
    x, y = joined.input(normal(4, 6, 5)), apart.input(normal(4, 6, 5))
    parts = [joined.op(f"aten.{name}", [x], getattr(torch, name)(x.tensor)) for name in ("exp", "tanh")]
    others = [apart.op(f"aten.{name}", [y], getattr(torch, name)(y.tensor)) for name in ("exp", "tanh")]
    assert kernels_of([join(joined, parts, 1)], joined) == kernels_of(others, apart)


def test_regrouped_digits() -> None:
    atoms = [(6, (4,)), (4, (1,))]
    assert regroup(atoms, [24]) == (((6, (4,)), (4, (1,))),)
    assert regroup(atoms, [3, 8]) == (((3, (8,)),), ((2, (4,)), (4, (1,))))
    assert regroup(atoms, [2, 1, 12]) == (((2, (12,)),), (), ((3, (4,)), (4, (1,))))
    assert regroup(atoms, [8, 3]) is None


def copy_of(buffer: Buffer, sizes: tuple[int, ...], factors: Sequence[tuple[int, ...]]) -> LoopNest:
    source = Access.identity(Buffer("input", "f32", sizes))
    return LoopNest.elementwise(sizes, Access(buffer, tuple(map(AffineExpr, factors))), load(source))


def test_covers_counts_every_element_once() -> None:
    buffer = Buffer("temporary", "f32", (6, 4))
    for sizes, factors, expected in [
        ((6, 4), ((1, 0), (0, 1)), True),
        ((4, 6), ((0, 1), (1, 0)), True),
        ((2, 3, 4), ((3, 1, 0), (0, 0, 1)), True),
        ((6, 2), ((1, 0), (0, 1)), False),
        ((6, 4), ((1, 0), (0, 0)), False),
        ((3, 3, 4), ((1, 1, 0), (0, 0, 1)), False),
    ]:
        step = copy_of(buffer, sizes, factors)
        assert is_bijective(step, step.outputs[0]) is expected


def test_a_split_loop_is_joined_again() -> None:
    step = copy_of(Buffer("temporary", "f32", (6, 4)), (6, 4), ((1, 0), (0, 1)))
    before, places = step.kernel, step.places
    split_loop(step, 0, (3, 2))
    assert step.sizes == (3, 2, 4)
    assert (before.sizes, before) == ((24,), step.kernel)
    assert [offset for _, offset in places] == [0, 0]


def test_users_keep_their_order() -> None:
    buffer = Buffer("temporary", "f32", (2,))
    access = Access(buffer, (AffineExpr.of_loop(0, 1),))
    fill = LoopNest.elementwise((2,), access, constant(0.0, "f32"))
    reader = LoopNest.elementwise((2,), Access(Buffer("result", "f32", (2,)), access.indices), load(access))
    steps = LoopProgram([fill, reader], {})
    assert steps.users(buffer) == [fill, reader]
    assert (reader.reads, fill.writes) == ([buffer], [buffer])

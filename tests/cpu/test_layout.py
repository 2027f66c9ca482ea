"""Passes over steps: layouts, panels, packs, padding and joining in place, by their values and their effects."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from nest_running import host_target
from torch import Tensor, nn
from torch.nn import functional
from written_programs import TracedProgram, normal

from torchmdla.compiler.program import Target
from torchmdla.compiler.records import MACHINE
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.expressions import accumulator, constant, load, operation
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, is_bijective, split_loop
from torchmdla.devices.cpu.linalg.views import regroup
from torchmdla.devices.cpu.lowering import lower
from torchmdla.devices.cpu.passes.layout import block_channels

TARGETS = {"widest": host_target(), "avx2": host_target("+avx2", "+fma"), "baseline": host_target("")}


def convolve(ins: int, outs: int, kernel: int, **options: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(ins, outs, kernel, **options), nn.ReLU())


def add_residual(x: Tensor, first: nn.Module, block: nn.Module, last: nn.Module, head: nn.Module) -> Tensor:
    """Return a result of every edge of the blocked layout.

    The edges are an image of 3 channels, a pooling, a residual, and a classifier on its mean.
    """
    x = first(x)
    return head(last(x + block(x)).mean((2, 3)))


def join_all(x: Tensor, first: nn.Module, second: nn.Module, third: nn.Module, last: nn.Module) -> tuple[Tensor, ...]:
    """Return a concatenation of channels in whole blocks and in partial ones, and a convolution of it."""
    x = first(x)
    for layer in (second, third):
        x = torch.cat([x, layer(x)], 1)
    return last(x), x


def join_half(x: Tensor, first: nn.Module, second: nn.Module, joined: nn.Module, last: nn.Module) -> tuple[Tensor, ...]:
    """Join an image of whole vectors of channels with one of half a vector.

    Only half vectors divide the channels of the joined image.
    """
    x = first(x)
    return joined(torch.cat([x, second(x)], 1)), last(x)


def return_convolutions(x: Tensor, image: Tensor, first: nn.Module, second: nn.Module) -> tuple[Tensor, ...]:
    """Return convolutions that are results of the program. One is read again."""
    x = first(x)
    return x, second(x), functional.max_pool2d(image, 3, 2, 1)


def round_between(x: Tensor, first: nn.Module, second: nn.Module) -> tuple[Tensor, ...]:
    """Return a rounded image that a pooling and a convolution read."""
    x = first(x).bfloat16()
    return x, second(functional.max_pool2d(x.float(), 3, 2, 1))


def transpose_convolve(x: Tensor, weight: Tensor, transposed: Tensor) -> Tensor:
    """Return a transposed convolution. Its image is spread into a larger one with zeros in between."""
    x = functional.conv2d(x, weight, padding=1).relu()
    return functional.conv_transpose2d(x, transposed, None, stride=2, padding=1, output_padding=1)


def multiply_parts(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Return products with parts of one parameter, as in attention, and with one part used twice."""
    return tuple(functional.linear(x, weight[start : start + 48]) for start in (0, 48, 0))


def program(*layers: nn.Module, sizes: Sequence[int]) -> TracedProgram:
    return TracedProgram(nn.Sequential(*layers), normal(*sizes))


RESIDUAL = TracedProgram(
    add_residual,
    normal(2, 3, 19, 23),
    weights=(
        nn.Sequential(convolve(3, 32, 7, stride=2, padding=3), nn.MaxPool2d(3, 2, 1)),
        nn.Sequential(convolve(32, 32, 3, padding=1), convolve(32, 32, 3, padding=1)),
        *(convolve(32, 48, 1, stride=2), nn.Linear(48, 10)),
    ),
)
DENSE = TracedProgram(
    join_all,
    normal(1, 3, 10, 10),
    weights=(
        *(convolve(3, 16, 3, padding=1), convolve(16, 32, 3, padding=1)),
        *(convolve(48, 8, 1), convolve(56, 16, 3, padding=1)),
    ),
)
JOINED = TracedProgram(
    join_half,
    normal(1, 3, 10, 10),
    weights=(
        *(convolve(3, 16, 3, padding=1), convolve(16, 8, 3, padding=1)),
        *(convolve(24, 16, 3, padding=1), convolve(16, 16, 1)),
    ),
)
LONE = TracedProgram(
    return_convolutions,
    *(normal(1, 16, 9, 11), normal(1, 16, 9, 8)),
    weights=(nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 32, 3, groups=32, stride=2)),
)
NETWORKS = {
    "residual": RESIDUAL,
    "separable": program(
        *(convolve(16, 16, 3, groups=16, padding=1), convolve(16, 64, 1)),
        convolve(64, 64, 3, groups=64, stride=2, padding=1),
        sizes=(1, 16, 9, 11),
    ),
    "grouped": program(
        *(convolve(16, 32, 3, padding=1), convolve(32, 32, 3, groups=4, padding=1), convolve(32, 16, 1)),
        sizes=(1, 16, 8, 9),
    ),
    "dilated": program(
        convolve(16, 32, 3, padding=2, dilation=2), convolve(32, 24, 3, padding=1), sizes=(1, 16, 15, 13)
    ),
    "dense": DENSE,
    "rounded": TracedProgram(
        round_between, normal(2, 3, 10, 9), weights=(convolve(3, 32, 3), convolve(32, 32, 3, padding=1))
    ),
    "transposed": TracedProgram(
        transpose_convolve, normal(1, 3, 6, 7), weights=(normal(16, 3, 3, 3) / 4, normal(16, 8, 3, 3) * 0.1)
    ),
    # A product over channels and pixels.
    "flattened": program(convolve(3, 32, 3), nn.Flatten(), nn.Linear(32 * 4 * 3, 12), sizes=(4, 3, 6, 5)),
    "lone convolutions": LONE,
    "products": program(nn.Linear(40, 96), nn.Linear(96, 64), nn.Linear(64, 33), sizes=(7, 40)),
    "products with one weight": TracedProgram(multiply_parts, normal(6, 24), weights=[normal(96, 24)]),
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
def test_networks(network: TracedProgram, target: Target) -> None:
    network.check(target)


# The channels of the first are a multiple of half a vector.
HALF_NETWORKS = {
    "mobile": program(
        *(convolve(3, 24, 3, stride=2, padding=1), convolve(24, 72, 1)),
        *(convolve(72, 72, 5, groups=72, stride=2, padding=2), nn.Conv2d(72, 40, 1)),
        convolve(40, 32, 1),
        sizes=(1, 3, 21, 23),
    ),
    "joined": JOINED,
    "dense": DENSE,
    "lone convolutions": LONE,
}
HALVES = ((MACHINE, '{"splits": true}'),)


@pytest.mark.parametrize("target", ["widest", "avx2"])
@pytest.mark.parametrize("network", HALF_NETWORKS)
def test_blocks_of_half_vectors(network: str, target: str) -> None:
    HALF_NETWORKS[network].check(TARGETS[target], HALVES)


def test_packs_hold_only_parameters() -> None:
    """Check that each weight of a convolution, and of a product with enough rows, is packed once, from itself alone."""
    manifest = RESIDUAL.check().manifest
    roles = {manifest.arguments[k].role for pack in manifest.packs for k in pack.arguments}
    assert len(manifest.packs) >= 4
    assert roles == {"parameter"}


def packs_of(columns: int, rows: int) -> list[str]:
    return [pack.recipe for pack in lower(program(nn.Linear(32, columns), sizes=(rows, 32)).program()).manifest.packs]


def test_recipes_name_the_computation() -> None:
    """Check recipes. Specialisations for other rows share a pack; weights of other sizes do not."""
    assert packs_of(96, rows=8) == packs_of(96, rows=5) != packs_of(48, rows=8)
    assert len(packs_of(96, rows=8)) == 1


def test_equal_packs_are_one_function() -> None:
    """Check that weights of equal sizes are packed by the same code, each from its own parameter."""
    packs = program(nn.Linear(96, 96), nn.Linear(96, 96), nn.Linear(96, 48), sizes=(8, 96)).check().manifest.packs
    first, second, third = (pack.symbol for pack in packs)
    assert first == second != third
    assert packs[0].arguments != packs[1].arguments


def kernels_of(program: TracedProgram) -> float:
    return program.check().manifest.statistics["kernels"]


def test_padding_is_computed_in_place() -> None:
    """Check that only the borders are filled between two convolutions.

    One kernel fills the rows, and one the columns.
    """
    padded, plain = (
        program(convolve(16, 16, 1), convolve(16, 16, 3, padding=padding), sizes=(1, 16, 9, 9)) for padding in (1, 0)
    )
    assert kernels_of(padded) == kernels_of(plain) + 2


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


@pytest.mark.parametrize("is_image", [True, False], ids=["image", "other"])
def test_a_result_that_steps_read_is_in_blocks(is_image: bool) -> None:
    """Check that an image between convolutions is blocked if it is a result, too, and that other results stay."""
    image, result = Buffer("input", "f32", (1, 32, 8)), Buffer("result", "bf16", (1, 32, 6))
    first, second = (Buffer("temporary", "f32", (1, 32, 6)) for _ in range(2))
    source = first if is_image else Buffer("input", "f32", (1, 32, 6))
    rounding = LoopNest.elementwise(
        result.sizes, Access.identity(result), operation("arith.truncf", [load(Access.identity(source))], "bf16")
    )
    widening = LoopNest.elementwise(
        result.sizes, Access.identity(second), operation("arith.extf", [load(Access.identity(result))], "f32")
    )
    users = [convolution(second, Buffer("temporary", "f32", (1, 32, 4)))] if is_image else []
    steps = LoopProgram([convolution(image, first), rounding, widening, *users], {})
    block_channels(steps, (16, 8))
    assert (rounding.writes == widening.reads == [result]) is not is_image
    assert len(widening.outputs[0].buffer.sizes) == 3 + is_image
    assert [result in step.writes for step in steps.nests()].count(True) == 1


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

    def norm(x: Tensor) -> Tensor:
        grouped = x.view(2, 16, 4, 6, 5)
        centred = grouped - grouped.mean([2, 3, 4], keepdim=True)
        return centred * (centred * centred).mean([2, 3, 4], keepdim=True).rsqrt()

    assert kernels_of(TracedProgram(norm, normal(2, 64, 6, 5))) == 3


def test_joining_copies_nothing() -> None:
    joined = TracedProgram(lambda x: torch.cat([x.exp(), x.tanh()], 1), normal(4, 6, 5))
    assert kernels_of(joined) == 2  # one for each part


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

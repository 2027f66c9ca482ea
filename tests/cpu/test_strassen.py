"""Products by Strassen's algorithm: the form, values of all shapes, and the products that use it."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_winograd import MOST_ERROR, check_program, convolve, evaluate, steps_of, target
from torch import Tensor, nn
from torch.nn import functional
from written_programs import Builder, Value, check, normal

import torchmdla
from torchmdla.devices.cpu.ir.expressions import numbered_value
from torchmdla.devices.cpu.ir.loop_program import LoopNest, TileLoop
from torchmdla.devices.cpu.passes import bilinear_maps
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.programs import PROGRAMS


def test_the_form_is_exact() -> None:
    left, right = torch.randint(-9, 9, (2, 6, 6)).unbind()
    places = list(itertools.product(range(2), repeat=2))

    def quarters(matrix: Tensor) -> list[Tensor]:
        return [matrix[3 * k : 3 * k + 3, 3 * j : 3 * j + 3] for k, j in places]

    leaves = {place: numbered_value("operand", "f32", k) for k, place in enumerate(places)}
    factors = [
        [evaluate(each, quarters(matrix)) for each in function(leaves)]
        for matrix, function in ((left, bilinear_maps.left_sums), (right, bilinear_maps.right_sums))
    ]
    products = [a @ b for a, b in zip(*factors, strict=True)]
    combined = bilinear_maps.result_sums([numbered_value("operand", "f32", k) for k in range(bilinear_maps.PRODUCTS)])
    for place, expected in zip(places, quarters(left @ right), strict=True):
        assert torch.equal(evaluate(combined[place], products), expected)


def linear(b: Builder, x: Value, columns: int, bias: bool = True) -> Value:
    terms = x.tensor.shape[-1]
    weight = b.input(normal(columns, terms) / terms**0.5, "parameter")
    offset = b.input(normal(columns), "parameter") if bias else None
    product = functional.linear(x.tensor, weight.tensor, offset and offset.tensor)
    return b.op("aten.linear", [x, weight, offset], product)


def layers(b: Builder, x: Value, width: int) -> list[Value]:
    """Build two layers, an operator after each, and a residual."""
    first = linear(b, x, width)
    hidden = b.op("aten.relu", [first], first.tensor.relu())
    second = linear(b, hidden, x.tensor.shape[-1], bias=False)
    return [b.op("aten.add.Tensor", [second, x, 1], second.tensor + x.tensor)]


def tile_loops(b: Builder, results: list[Value], algorithms: str = "strassen") -> list[TileLoop]:
    steps = steps_of(b, results, target(algorithms))
    return [step for step in steps.steps if isinstance(step, TileLoop) and any(map(is_product, step.members))]


def count(b: Builder, results: list[Value], algorithms: str = "strassen") -> int:
    """Return the number of products that use Strassen's algorithm."""
    alone = sum(map(is_product, steps_of(b, results, target(algorithms)).nests()))
    return alone + len(tile_loops(b, results, algorithms))


def is_product(nest: LoopNest) -> bool:
    return any(nest.reduction) and nest.sizes[0] == bilinear_maps.PRODUCTS


@pytest.mark.parametrize("features", [(), ("+avx2", "+fma"), ("",)], ids=["widest", "avx2", "baseline"])
@pytest.mark.parametrize("rows", [(64,), (7,), (3, 18), (2, 5)], ids=str)
def test_values_of_layers(rows: tuple[int, ...], features: tuple[str, ...]) -> None:
    b = Builder()
    results = layers(b, b.input(normal(*rows, 96)), 192)
    assert count(b, results) == 2
    check(b, results, target("strassen", *features))


@settings(max_examples=15)
@given(
    samples=st.integers(1, 3),
    rows=st.integers(1, 40),
    terms=st.integers(1, 40),
    columns=st.sampled_from([8, 16, 32, 33, 96, 160]),
    flat=st.booleans(),
)
def test_values_of_any_shape(samples, rows, terms, columns, flat) -> None:
    b = Builder()
    x = b.input(normal(samples * rows, terms) if flat else normal(samples, rows, terms))
    check(b, [linear(b, x, columns)], target("strassen"))


@settings(max_examples=10)
@given(
    images=st.integers(1, 2),
    channels=st.sampled_from([16, 32, 48, 64]),
    filters=st.sampled_from([16, 32, 64, 96]),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_values_of_pointwise_convolutions(images, channels, filters, size) -> None:
    b = Builder()
    x = b.input(normal(images, channels, *size))
    image = convolve(b, x, filters, [0, 0], kernel=(1, 1))
    check(b, [b.op("aten.relu", [image], image.tensor.relu())], target("strassen"))


def test_many_rows_are_run_in_tiles() -> None:
    """Check the tiles of many rows.

    The sums of weights are packed and fit into the second-level cache. They need more memory than the weights.
    """
    b = Builder()
    results = [linear(b, b.input(normal(1500, 32)), 384)]
    (loop,) = tile_loops(b, results)
    assert loop.extents == (750,) and loop.tile[0] < 750
    (packing,) = [pack for pack in steps_of(b, results, target("strassen")).packings if len(pack.buffer.sizes) > 2]
    assert packing.buffer.count == 7 * 32 * 384 // 4
    check(b, results, target("strassen"))


@pytest.mark.parametrize(("rows", "columns"), [(1501, 192), (66, 8192)], ids=["an odd number of rows", "much weight"])
@pytest.mark.sampled(1)
def test_other_rows_are_one_tile(rows: int, columns: int) -> None:
    b = Builder()
    results = [linear(b, b.input(normal(rows, 32)), columns)]
    assert count(b, results) and not tile_loops(b, results)
    check(b, results, target("strassen"))


def test_samples_are_kept_apart() -> None:
    """Check that an infinity in one sample does not affect the others."""
    torch.manual_seed(0)
    model, x = nn.Linear(64, 96).eval(), torch.randn(2, 8, 64)
    x[1, 3, 5] = float("inf")
    torchmdla.enable(algorithms="strassen")
    try:
        with torch.no_grad():
            assert_matches(torchmdla.compile(model, x)(x)[0], model(x)[0])
    finally:
        torchmdla.enable()


def test_one_program_takes_any_number_of_samples() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64)).eval()
    torchmdla.enable(algorithms="strassen", strict=True)
    try:
        traced = torch.jit.freeze(torch.jit.trace(model, torch.randn(2, 12, 64)))
        torchmdla.reset_stats()
        with torch.no_grad():
            for samples in (2, 3, 5, 4, 7, 3):
                x = torch.randn(samples, 12, 64)
                assert_matches(traced(x), model(x), layers=2)
        assert torchmdla.stats().dynamic == 1, torchmdla.stats().not_dynamic
    finally:
        torchmdla.enable()


# Rows, terms, columns, and whether Strassen's algorithm is chosen.
CHOICES = {
    "a transformer's layer": (128, 768, 3072, True),
    "of an odd number of tokens": (197, 768, 768, True),
    "the weights take longer to read": (8, 768, 3072, False),
    "it is soon done": (64, 64, 96, False),
    "no cache holds the left factor": (1024, 1024, 1024, False),
    "no cache holds the products": (3072, 256, 4096, False),
    "columns are no whole vectors": (128, 768, 1001, False),
}


@pytest.mark.parametrize(("rows", "terms", "columns", "chosen"), CHOICES.values(), ids=CHOICES.keys())
def test_choice_of_the_algorithm(rows: int, terms: int, columns: int, chosen: bool) -> None:
    b = Builder()
    results = [linear(b, b.input(normal(rows, terms)), columns)]
    assert bool(count(b, results, "fast")) == chosen
    assert not count(b, results, "winograd") and not count(b, results, "direct")


def test_weights_of_a_call_are_multiplied_plainly() -> None:
    b = Builder()
    x, weight = b.input(normal(64, 96)), b.input(normal(96, 192))
    assert not count(b, [b.op("aten.mm", [x, weight], x.tensor @ weight.tensor)])


@pytest.mark.parametrize("terms", [64, 2048])
def test_error_against_float64(terms: int) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(terms, 96).eval(), torch.randn(66, terms)
    torchmdla.enable(algorithms="strassen")
    try:
        compiled = torchmdla.compile(model, x)
        with torch.no_grad():
            actual, exact = compiled(x).double(), model.double()(x.double())
        assert float((actual - exact).norm() / exact.norm()) < MOST_ERROR
    finally:
        torchmdla.enable()


FORCED = [name for name in PROGRAMS if name.startswith(("products.", "attention.", "models."))]


@pytest.mark.parametrize("name", FORCED[::3])
@pytest.mark.sampled(2)
def test_programs(name: str) -> None:
    """Check a third of all programs.

    ``python -m torchmdla.testing --options algorithms=strassen`` checks each program.
    """
    check_program(name, "strassen")

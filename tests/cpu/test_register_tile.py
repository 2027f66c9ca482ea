"""Register tiles and blocks of products that costs choose, and their prefetches."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from nest_running import Kernel, host_target, mark_prefetches, reference, span
from nest_samples import AVX512, PRODUCT, SUM_OF_PRODUCTS, ZERO, M, N, added, target_with

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.ir.expressions import accumulator, numbered_value, operation, reduced
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest, KernelEpilogue, KernelSpec, Operand, specialise
from torchmdla.devices.cpu.passes.packing import panel_width
from torchmdla.devices.cpu.schedule import choose_schedule
from torchmdla.devices.cpu.schedule.dataflow import multiply_adds
from torchmdla.devices.cpu.target.machine import Machine

MACHINE = Machine(64, 32, embeds_broadcasts=True, has_scale=True)
PANEL = 48


def product(rows: int | Size, columns: int, depth: int, panel: int = PANEL) -> AnyNest:
    """Return a product with weights in panels. The loops are rows, panels, columns of a panel, depth."""
    return KernelSpec(
        sizes=(rows, columns // panel, panel, depth),
        reduction=(False, False, False, True),
        inputs=(Operand("f32", (depth, 0, 0, 1)), Operand("f32", (0, depth * panel, 1, panel))),
        outputs=(Operand("f32", (columns, panel, 1, 0)),),
        values=(SUM_OF_PRODUCTS,),
        initial=ZERO,
    )


def with_epilogue(nest: AnyNest, length: int) -> AnyNest:
    """Return the nest with ``length`` instructions between its results and memory."""
    value = reduced(0, "f32")
    for _ in range(length):
        value = operation("math.absf", [value], "f32")
    return replace(nest, epilogue=KernelEpilogue((), nest.outputs, (), (value,)))


def accumulators(nest: KernelSpec) -> int:
    return math.prod(choose_schedule(nest, MACHINE).tiles) // 16


@pytest.mark.parametrize(("rows", "depth"), [(128, 768), (197, 768), (197, 3072), (512, 512)])
def test_an_epilogue_of_one_instruction_changes_no_tile(rows: int, depth: int) -> None:
    plain = product(rows, 768, depth)
    assert choose_schedule(with_epilogue(plain, 1), MACHINE).tiles == choose_schedule(plain, MACHINE).tiles


@pytest.mark.parametrize(
    ("columns", "splits", "lanes"), [(40, True, 8), (40, False, 16), (48, True, 16), (60, True, 16), (8, True, 8)]
)
def test_lanes_of_half_a_vector(columns: int, splits: bool, lanes: int) -> None:
    """Check half vectors. They are chosen if fewer lanes are empty, because they take half of the time."""
    nest = product(64, columns, 96, columns)
    assert choose_schedule(nest, replace(MACHINE, splits=splits)).lanes == lanes


def test_tiles_fill_the_registers_without_broadcasts_in_instructions() -> None:
    """Check six rows of two vectors: 12 accumulators, two vectors, and one broadcast value, of 16 registers."""
    machine = Machine(32, 16, second_level=256 << 10, ways=8)
    assert choose_schedule(product(516, 512, 512, 16), machine).tiles == (6, 1, 16, 1)


@pytest.mark.parametrize(("stride", "blocks"), [(512 * 9, 1), (513 * 9, 4)])
def test_results_are_scattered_to_as_many_rows_as_the_cache_holds(stride: int, blocks: int) -> None:
    """Check rows that share cache sets, and rows that do not."""
    nest = KernelSpec(
        sizes=(64, 32, 16, 3, 3, 196),
        reduction=(False, False, False, False, False, True),
        inputs=(Operand("f32", (324, 0, 0, 9, 1, 1)), Operand("f32", (0, 3136, 1, 0, 0, 16))),
        outputs=(Operand("f32", (9, 16 * stride, stride, 3, 1, 0)),),
        values=(SUM_OF_PRODUCTS,),
        initial=ZERO,
    )
    assert choose_schedule(nest, MACHINE).tiles[1] <= blocks


@pytest.mark.parametrize("rows", [128, 197])
def test_a_long_epilogue_has_registers(rows: int) -> None:
    plain = product(rows, 3072, 768)
    assert accumulators(plain) >= 24
    assert 12 <= accumulators(with_epilogue(plain, 30)) <= 18


@pytest.mark.parametrize("rows", [64, 127, 128, 197, 512])
@pytest.mark.parametrize("length", [0, 1, 30])
def test_tiles_take_whole_panels(rows: int, length: int) -> None:
    nest = product(rows, 3072, 768)
    schedule = choose_schedule(with_epilogue(nest, length) if length else nest, MACHINE)
    assert schedule.tiles[1:3] == (1, PANEL)


def pointwise(outputs: int, height: int | Size, width: int, channels: int) -> AnyNest:
    """Return a 1x1 convolution of an image with channels in blocks of 16.

    The loops are blocks and channels of the output, rows, columns, blocks and channels of the input.
    """
    plane = 16 * height * width
    return replace(
        product(16, 16, 16, 16),
        sizes=(outputs, 16, height, width, channels, 16),
        reduction=(False, False, False, False, True, True),
        inputs=(Operand("f32", (0, 0, 16 * width, 16, plane, 1)), Operand("f32", (256 * channels, 1, 0, 0, 256, 16))),
        outputs=(Operand("f32", (plane, 1, 16 * width, 16, 0, 0)),),
    )


def stem(height: int, width: int, step: int) -> KernelSpec:
    """Return a 3x3 convolution of 3 planes.

    The loops are blocks and channels of the output, rows, columns, planes, and the window.
    """
    rows, columns = height * step + 2, width * step + 2
    return replace(
        product(16, 16, 16, 16),
        sizes=(4, 16, height, width, 3, 3, 3),
        reduction=(False, False, False, False, True, True, True),
        inputs=(
            Operand("f32", (0, 0, columns * step, step, rows * columns, columns, 1)),
            Operand("f32", (432, 1, 0, 0, 144, 48, 16)),
        ),
        outputs=(Operand("f32", (16 * height * width, 1, 16 * width, 16, 0, 0, 0)),),
    )


@pytest.mark.parametrize("step", [1, 2])
def test_shared_window_elements_are_in_registers(step: int) -> None:
    """Check registers of an unrolled window.

    Every pixel of the window is in a register, beside the sums and the weights.
    """
    blocks, _, rows, columns = choose_schedule(stem(112, 112, step), MACHINE).tiles[:4]
    assert blocks * rows * columns + blocks + rows * ((columns - 1) * step + 3) <= MACHINE.registers
    assert blocks * rows * columns >= 12


@pytest.mark.parametrize("nest", [stem(112, 112, 1), stem(112, 112, 2), pointwise(6, 112, 112, 1)])
def test_short_sums_store_runs_of_memory(nest: KernelSpec) -> None:
    """Check that a tile has a row of pixels, not a column.

    The little arithmetic of short sums does not hide the cost of each jump to another line.
    """
    _, _, rows, columns = choose_schedule(nest, MACHINE).tiles[:4]
    assert rows == 1
    assert columns >= 4


@pytest.mark.parametrize("step", [1, 2])
def test_values_of_a_stem(step: int) -> None:
    check_values(Kernel(nest := stem(9, 21, step)), nest)


def check_values(kernel: Kernel, nest: KernelSpec) -> None:
    """Compare the results of a kernel, called on three parts of its range, with the reference."""
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(span(o, nest.sizes)).astype(np.float32) for o in nest.operands]
    (expected,) = reference(nest, arrays)
    kernel(arrays, tasks=3)
    np.testing.assert_allclose(arrays[-1], expected, rtol=1e-4, atol=1e-4)


def depthwise(sizes: tuple[int, ...], *strides: tuple[int, ...]) -> KernelSpec:
    """Return a nest of 5×5 windows with a stride of two, over images of 32×32.

    The strides are those of image, weights and result.
    """
    image, weights, result = (Operand("f32", factors) for factors in strides)
    reduction = (False,) * len(sizes) + (True, True)
    return KernelSpec((*sizes, 5, 5), reduction, (image, weights), (result,), (SUM_OF_PRODUCTS,), initial=ZERO)


PLANES = depthwise((8, 14, 14), (1024, 64, 2, 32, 1), (25, 0, 0, 5, 1), (196, 14, 1, 0, 0))
BLOCKS = depthwise((8, 14, 14, 16), (16384, 1024, 32, 1, 512, 16), (400, 0, 0, 1, 80, 16), (3136, 224, 16, 1, 0, 0))


@pytest.mark.parametrize(
    ("nest", "order"),
    [
        pytest.param(PLANES, (4, 3), id="columns in vectors share rows"),
        pytest.param(BLOCKS, (4, 5), id="channels in vectors share both"),
    ],
)
def test_elements_shared_by_neighbours_are_read_in_the_innermost_loop(nest: KernelSpec, order: tuple[int, ...]) -> None:
    assert choose_schedule(nest, MACHINE).reduction == order


@pytest.mark.parametrize(("columns", "width"), [(768, 48), (2048, 32), (64, 64), (32, 32), (16, 16), (80, 16), (10, 0)])
def test_panel_width(columns: int, width: int) -> None:
    assert panel_width(columns, 16) == width


@pytest.mark.parametrize(("rows", "columns"), [(8, 3072), (32, 96), (32, 3072), (197, 3072)])
def test_weights_are_fetched_ahead(rows: int, columns: int) -> None:
    schedule = choose_schedule(product(rows, columns, 768), MACHINE)
    assert schedule.prefetch is not None
    assert schedule.prefetch.operand == 1
    assert schedule.prefetch.block == schedule.tiles[1] * 768 * PANEL * 4
    assert schedule.prefetch.parts == -(-rows // schedule.tiles[0])


def test_factors_in_memory_are_read_for_several_tiles() -> None:
    """Check the gradient of a product with a vocabulary, whose factors are in no cache."""
    nest = KernelSpec(
        sizes=(128, 768, 50257),
        reduction=(False, False, True),
        inputs=(Operand("f32", (50257, 0, 1)), Operand("f32", (0, 1, 768))),
        outputs=(Operand("f32", (768, 1, 0)),),
        values=(SUM_OF_PRODUCTS,),
        initial=ZERO,
    )
    block, of_reduction, *tiles = (level.loop for level in choose_schedule(nest, MACHINE).levels)
    assert of_reduction == 2
    assert block in tiles


def test_blocks_of_a_few_bytes_are_not_fetched_ahead() -> None:
    assert choose_schedule(product(197, 3072, 64), MACHINE).prefetch is None


@pytest.mark.parametrize(
    ("element", "depth", "rows", "distance"),
    [("f32", 2048, 4, None), ("i8", 2048, 1, 8192), ("bf16", 2048, 1, 8192), ("i8", 16384, 4, 4 * 16384)],
)
def test_a_row_reads_weights_of_few_columns_at_once(element: str, depth: int, rows: int, distance: int | None) -> None:
    """Check one row with weights in PyTorch's layout.

    The processor does not predict more streams. Narrow elements are prefetched, and read in order if the first-level
    cache holds the row.
    """
    columns = 8192
    weight = numbered_value("operand", element, 1)
    if element != "f32":
        weight = operation("arith.sitofp" if element == "i8" else "arith.extf", [weight], "f32")
    product = operation("arith.mulf", [numbered_value("operand", "f32", 0), weight], "f32")
    nest = KernelSpec(
        sizes=(columns, depth),
        reduction=(False, True),
        inputs=(Operand("f32", (0, 1)), Operand(element, (depth, 1))),
        outputs=(Operand("f32", (1, 0)),),
        values=(operation("arith.addf", [accumulator(0, "f32"), product], "f32"),),
        initial=ZERO,
    )
    schedule = choose_schedule(nest, MACHINE)
    assert schedule.tiles[0] == rows
    assert (schedule.prefetch and schedule.prefetch.distance) == distance


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_panels_of_few_rows_are_read_from_front_to_back(rows: int) -> None:
    schedule = choose_schedule(product(rows, 8192, 2048, 64), MACHINE)
    assert schedule.tiles == (rows, 1, 64, 1)
    assert schedule.prefetch is not None
    assert schedule.prefetch.operand == 1
    assert schedule.prefetch.distance == 8192


@pytest.mark.parametrize("rows", [M, 2 * M, M - 2])
def test_as_much_is_fetched_ahead_for_any_number_of_rows(rows: Size) -> None:
    """Check that the prefetch does not depend on the typical number of rows.

    The number of tiles that share a block is computed in the call.
    """
    for nest in (product(rows, 3072, 768), pointwise(16, rows, 14, 64)):
        fetched = {choose_schedule(nest, MACHINE, (typical, 2)).prefetch for typical in (16, 32, 45)}
        (prefetch,) = fetched
        static_prefetch = choose_schedule(specialise(nest, (32, 2)), MACHINE).prefetch
        assert prefetch is not None and static_prefetch is not None
        assert replace(prefetch, parts=static_prefetch.parts) == static_prefetch


@pytest.mark.parametrize(
    "nest",
    [
        pytest.param(product(197, 3072, M), id="blocks of any size"),
        pytest.param(product(M, 3072, 64), id="blocks of a few bytes"),
        pytest.param(replace(product(M, 3072, 768), sizes=(M, 64, PANEL, N)), id="blocks that are not used up"),
    ],
)
def test_operands_with_dynamic_addresses_are_not_prefetched(nest: AnyNest) -> None:
    assert choose_schedule(nest, MACHINE, (64, 768)).prefetch is None


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace prefetches by stores in kernels that are compiled."""
    mark_prefetches(monkeypatch)


def marked_lines(kernel: Kernel, nest: KernelSpec, values: tuple[int, ...] = ()) -> np.ndarray:
    """Return whether a call prefetches each line of the weights, of shape (blocks, lines).

    ``nest`` is the kernel's nest at ``values``.
    """
    prefetch = kernel.schedule.prefetch
    assert prefetch is not None
    arrays = [np.zeros(span(o, nest.sizes), np.float32) for o in nest.operands]
    used = arrays[1].nbytes
    room = np.zeros(used + 2 * prefetch.block + 64, np.uint8)
    arrays[1] = weights = room[-room.ctypes.data % 64 :]
    kernel(arrays, values=values)
    blocks = -(-used // prefetch.block)
    return weights[: prefetch.block * blocks].reshape(blocks, -1, 64).any(axis=2)


@pytest.mark.parametrize(
    "nest",
    [
        pytest.param(product(101, 480, 300), id="product"),
        pytest.param(product(32, 480, 512), id="few rows"),
        pytest.param(pointwise(16, 7, 7, 32), id="two blocks of channels in a tile"),
        pytest.param(pointwise(16, 14, 14, 64), id="tiles of one row"),
    ],
)
@pytest.mark.usefixtures("marks")
def test_every_line_of_a_block_is_fetched_before_it_is_needed(nest: KernelSpec) -> None:
    """Check that each block but the first is prefetched while the tiles of the previous block run."""
    lines = marked_lines(Kernel(nest, target_with("avx512")), nest)
    assert not lines[0].any()
    assert lines[1:].all()


@pytest.mark.parametrize("nest", [product(M, 480, 300), product(2 * M, 480, 512), pointwise(16, M, 14, 64)])
@pytest.mark.usefixtures("marks")
def test_of_a_dynamic_nest_as_well_where_enough_tiles_share_it(nest: AnyNest) -> None:
    """Check dynamic nests. If fewer tiles share a block, at most its first lines are prefetched."""
    kernel = Kernel(nest, target_with("avx512"), typical=(64, 2))
    prefetch = kernel.schedule.prefetch
    assert prefetch is not None
    inside = {level.loop: level.step for level in kernel.schedule.levels[prefetch.depth + 1 :]}
    shared = set()
    for m in (1, 2, 3, 8, 9, 16, 17, 24, 37, 100):
        there = specialise(nest, (m, 2))
        tiles = math.prod(-(-there.sizes[loop] // step) for loop, step in inside.items())
        lines = marked_lines(kernel, there, (m, 2))
        assert not lines[0].any()
        if tiles >= prefetch.parts:
            assert lines[1:].all(), m
        else:
            assert not lines[:, 4:].any(), m
        shared.add(tiles >= prefetch.parts)
    assert True in shared


@pytest.mark.parametrize("features", [AVX512, ("+avx", "+avx2", "+fma"), ("+avx", "+avx2")])
def test_products_are_added_in_one_instruction(features: tuple[str, ...]) -> None:
    text = Kernel(product(16, 96, 64), host_target(*features)).text
    fused = "+fma" in features
    assert ("math.fma" in text) is fused
    assert ("arith.mulf" in text) is not fused


def test_a_product_that_is_read_twice_is_no_part_of_a_sum() -> None:
    nest = product(16, 96, 64)
    square = operation("arith.mulf", [PRODUCT, PRODUCT], "f32")
    nest = replace(nest, values=(added(operation("arith.addf", [square, PRODUCT], "f32")),))
    assert multiply_adds(nest) == {}
    assert multiply_adds(product(16, 96, 64)) == {SUM_OF_PRODUCTS: PRODUCT}


@pytest.mark.parametrize("features", ["avx512", "avx2"])
@pytest.mark.parametrize("length", [0, 1, 30])
def test_values_of_any_number_of_rows(length: int, features: str) -> None:
    nest = product(M, 96, 192)
    nest = with_epilogue(nest, length) if length else nest
    kernel = Kernel(nest, target_with(features), typical=(64, 2))
    assert ("llvm.intr.prefetch" in kernel.text) == (features == "avx512")
    generator = np.random.default_rng(0)
    weights = generator.standard_normal((2, 192, PANEL)).astype(np.float32)
    for m in (*range(26), 37, 64, 101):
        rows, result = generator.standard_normal((m, 192)).astype(np.float32), np.ones((m + 1, 96), np.float32)
        kernel([rows, weights, result], max(1, min(3, kernel.iterations((m, 2)))), (m, 2))
        wanted = np.concatenate(list(rows @ weights), axis=1)
        np.testing.assert_allclose(result[:m], abs(wanted) if length else wanted, rtol=1e-4, atol=1e-4)
        assert (result[m:] == 1).all(), "nothing is written behind the last row"


@pytest.mark.parametrize("features", ["avx512", "avx2"])
@pytest.mark.parametrize("length", [0, 1, 30])
def test_values(length: int, features: str) -> None:
    nest = product(101, 1008, 300)
    nest = with_epilogue(nest, length) if length else nest
    kernel = Kernel(nest, target_with(features))
    assert ("llvm.intr.prefetch" in kernel.text) == (features == "avx512")
    check_values(kernel, nest)

"""Products by a matrix unit, whose instructions a software model replaces: values bit by bit, layouts, code of AMX."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from nest_running import Kernel, host_target
from nest_samples import M, N, arrays_of, bias_relu_residual, operand
from test_dot_products import linear, relu, rounded, widened
from test_integer_products import Written
from written_programs import Builder, Value, check, normal

import torchmdla
from torchmdla import devices
from torchmdla.compiler.program import Target
from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.codegen.kernels.matrix_instructions import Shape, configuration
from torchmdla.devices.cpu.ir.expressions import HALVES, constant, operation
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest, KernelEpilogue, KernelSpec, Operand, specialise
from torchmdla.devices.cpu.passes.narrow.sums import add_to_sum
from torchmdla.devices.cpu.schedule import (
    Schedule,
    ScheduleContext,
    Symbols,
    assume_typical,
    choose_schedule,
    complete_schedule,
    estimate_cycles,
)
from torchmdla.devices.cpu.schedule.blocking import Level
from torchmdla.devices.cpu.schedule.matrix_tile import MatrixBlock, MatrixTile, Registers, matrix_blocks
from torchmdla.devices.cpu.schedule.plan import Decisions, override_schedule, plan_schedules, to_json_data
from torchmdla.devices.cpu.schedule.validity import find_faults
from torchmdla.devices.cpu.target import processors
from torchmdla.devices.cpu.target.machine import CHECK_BOUNDS, Machine
from torchmdla.devices.cpu.target.matrix_units import UNITS

# Sizes with remainders of rows, columns and words, alone and together.
SIZES = [(16, 16, 16), (32, 32, 48), (1, 16, 5), (5, 3, 16), (17, 33, 9), (33, 40, 50), (29, 100, 24), (50, 17, 35)]


def with_model(target: Target) -> Target:
    return replace(target, features=f"{target.features},matrix-unit=software")


TARGET = with_model(host_target())
MACHINE = Machine.of(TARGET)
NONE = f"{host_target().features},matrix-unit=none"


def product(sizes: tuple[int, int, int], kind: str, epilogue: KernelEpilogue | None = None) -> KernelSpec:
    """Return the sum of dot products of words of a row and a column."""
    _, columns, words = sizes
    dot = operation("dot", [operand(0, "i32"), operand(1, "i32")], kind)
    return KernelSpec(
        sizes=sizes,
        reduction=(False, False, True),
        inputs=(Operand("i32", (words, 0, 1)), Operand("i32", (0, 1, columns))),
        outputs=(Operand(kind, (columns, 1, 0)),),
        values=(add_to_sum(dot),),
        initial=constant(0, kind),
        epilogue=epilogue,
    )


def schedule_of(nest: KernelSpec, block: MatrixBlock, number: int = 0) -> Schedule:
    loops = [d for d in range(len(nest.sizes)) if not nest.reduction[d]]
    levels = list(block.orders(nest, tuple(Level(d, block.points[d]) for d in loops)))[number]
    context = ScheduleContext(nest, MACHINE, matrix=block.tile)
    schedule = complete_schedule(context, block.vector, block.lanes, block.points, levels, block.cycles)
    assert not list(find_faults(nest, schedule, MACHINE))
    return schedule


# The instructions.


def flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 2.0**-126, np.copysign(0.0, x), x)


def rounded_to_normal(x: np.ndarray) -> np.ndarray:
    """Return float64 numbers rounded to float32 as AMX does: results below the least normal number are zeros."""
    with np.errstate(over="ignore"):
        scaled = (x * 2.0**64).astype(np.float32)
    return np.where(np.abs(scaled) < 2.0**-62, np.copysign(np.float32(0), scaled), x.astype(np.float32))


def multiplied_pairs(sums: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return what ``TDPBF16PS`` computes: ``left`` is [rows, words, 2] and ``right`` is [words, columns, 2].

    The product of two bfloat16 and its sum with a float32 are computed in float64. Rounding these twice is harmless: a
    result of the first rounding that is in the middle of two float32 is exact.
    """
    parts = np.zeros((*sums.shape, 2), np.float32)
    for k in range(left.shape[1]):
        products = flushed(left[:, k, None]).astype(np.float64) * flushed(right[None, k])
        parts = rounded_to_normal(parts + products)
    both = rounded_to_normal(parts[..., 0].astype(np.float64) + parts[..., 1])
    return rounded_to_normal(flushed(sums).astype(np.float64) + both)


def bfloat16(generator: np.random.Generator, shape: tuple[int, ...], exponents: tuple[int, int]) -> np.ndarray:
    """Return bfloat16 numbers, as float32, of exponents in a range. Some are zeros or below the least normal number."""
    values = generator.standard_normal(shape) * 2.0 ** generator.integers(*exponents, shape)
    values[generator.random(shape) < 0.1] *= 2.0**-120
    bits = values.astype(np.float32).view(np.uint32) & 0xFFFF0000
    return bits.view(np.float32)


def words_of(values: np.ndarray) -> np.ndarray:
    """Return pairs of bfloat16 as words."""
    halves = (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)
    return halves.view(np.int32).reshape(-1)


@pytest.mark.parametrize("sizes", SIZES)
def test_sums_of_float16_are_those_of_the_instruction(sizes: tuple[int, int, int]) -> None:
    """Check float16 with numbers below its least normal one, which are normal in float32."""
    rows, columns, words = sizes
    generator = np.random.default_rng(0)
    shapes = (rows, words, 2), (words, columns, 2)
    left, right = ((generator.standard_normal(s) * 2.0 ** generator.integers(-18, 3, s)).astype("f2") for s in shapes)
    dot = operation("dot", [operand(0, "i32"), operand(1, "i32")], "f32", HALVES)
    nest = replace(product(sizes, "f32"), values=(add_to_sum(dot),))
    for block in blocks_of(nest):
        expected = np.zeros((rows, columns), np.float32)
        for k in range(0, words, block.tile.words):
            step = slice(k, k + block.tile.words)
            expected = multiplied_pairs(expected, left[:, step].astype("f4"), right[step].astype("f4"))
        result = np.full(rows * columns + 16, 7, np.float32)
        arrays = left.view("i4").ravel(), right.view("i4").ravel(), result
        Kernel(nest, TARGET, schedule_of(nest, block))(arrays)
        np.testing.assert_array_equal(result[: rows * columns].reshape(rows, columns), expected)
        np.testing.assert_array_equal(result[rows * columns :], 7)
        Kernel(nest, replace(TARGET, features=NONE))(arrays)
        np.testing.assert_allclose(result[: rows * columns].reshape(rows, columns), expected, 1e-5, 1e-5)


@pytest.mark.parametrize("exponents", [(-3, 4), (-70, -55), (-125, 60)], ids=["usual", "tiny", "any"])
@pytest.mark.parametrize("sizes", SIZES)
def test_sums_of_pairs_are_those_of_the_instruction(sizes: tuple[int, int, int], exponents: tuple[int, int]) -> None:
    rows, columns, words = sizes
    generator = np.random.default_rng(0)
    left = bfloat16(generator, (rows, words, 2), exponents)
    right = bfloat16(generator, (words, columns, 2), exponents)
    nest = product(sizes, "f32")
    for block in matrix_blocks(nest, MACHINE):
        expected = np.zeros((rows, columns), np.float32)
        for k in range(0, words, block.tile.words):
            step = slice(k, k + block.tile.words)
            expected = multiplied_pairs(expected, left[:, step], right[step])
        result = np.full(rows * columns + 16, 7, np.float32)
        Kernel(nest, TARGET, schedule_of(nest, block))([words_of(left), words_of(right), result], tasks=2)
        np.testing.assert_array_equal(
            result[: rows * columns].reshape(rows, columns).view(np.int32), expected.view(np.int32)
        )
        np.testing.assert_array_equal(result[rows * columns :], 7)


@pytest.mark.parametrize("unsigned", [0, 1], ids=["unsigned rows", "unsigned columns"])
@pytest.mark.parametrize("sizes", SIZES)
def test_sums_of_bytes_are_exact(sizes: tuple[int, int, int], unsigned: int) -> None:
    rows, columns, words = sizes
    generator = np.random.default_rng(0)
    factors = [
        generator.integers(0, 256, shape) - (0 if k == unsigned else 128)
        for k, shape in enumerate([(rows, words, 4), (words, columns, 4)])
    ]
    nest = product(sizes, "i32")
    if unsigned:
        dot = operation("dot", [operand(1, "i32"), operand(0, "i32")], "i32")
        nest = replace(nest, values=(add_to_sum(dot),))
    arrays = [factor.astype(np.uint8).view(np.int32).reshape(-1) for factor in factors]
    expected = np.einsum("rkp,kcp->rc", *factors)
    for block in matrix_blocks(nest, MACHINE):
        result = np.full(rows * columns + 16, 7, np.int32)
        Kernel(nest, TARGET, schedule_of(nest, block))([*arrays, result])
        np.testing.assert_array_equal(result[: rows * columns].reshape(rows, columns), expected)
        np.testing.assert_array_equal(result[rows * columns :], 7)


def test_the_registers_are_configured() -> None:
    data = configuration({0: Shape(16, 16), 7: Shape(3, 5)})
    assert len(data) == 64
    assert data[0] == 1
    assert [data[16], data[17], data[48]] == [64, 0, 16]
    assert [data[30], data[31], data[55]] == [20, 0, 3]
    assert sum(map(bool, data)) == 5


# Intel's encodings of the instructions: a VEX prefix of three bytes, the opcode, and ModRM with registers or memory.
MEMORY, REGISTERS = rb"[\x00-\xbf]", rb"[\xc0-\xff]"
ENCODINGS = {
    "ldtilecfg": rb"\xc4[\x62\xe2\xc2\x42]\x78\x49[\x00-\xbf]",
    "tilerelease": rb"\xc4\xe2\x78\x49\xc0",
    "tilezero": rb"\xc4\xe2\x7b\x49" + REGISTERS,
    "tileloadd": rb"\xc4[\x62\xe2\xc2\x42\xa2\x22\x82\x02]\x7b\x4b" + MEMORY,
    "tilestored": rb"\xc4[\x62\xe2\xc2\x42\xa2\x22\x82\x02]\x7a\x4b" + MEMORY,
    "tdpbf16ps": rb"\xc4\xe2[\x42\x4a\x52\x5a\x62\x6a\x72\x7a]\x5c" + REGISTERS,
    "tdpfp16ps": rb"\xc4\xe2[\x43\x4b\x53\x5b\x63\x6b\x73\x7b]\x5c" + REGISTERS,
    "tdpbusd": rb"\xc4\xe2[\x41\x49\x51\x59\x61\x69\x71\x79]\x5e" + REGISTERS,
}
SAPPHIRE_RAPIDS = (
    "+avx +avx2 +fma +avx512f +avx512bw +avx512dq +avx512vl +avx512bf16 +avx512vnni +amx-tile +amx-bf16 +amx-int8"
)


@pytest.mark.parametrize(
    ("kind", "attributes", "multiply"),
    [("f32", "", "tdpbf16ps"), ("f32", HALVES, "tdpfp16ps"), ("i32", "", "tdpbusd")],
    ids=["bfloat16", "float16", "bytes"],
)
def test_code_has_the_instructions(kind: str, attributes: str, multiply: str) -> None:
    """Check that each kernel configures registers before all loops, and releases them once."""
    features = [*SAPPHIRE_RAPIDS.split(), *(["+amx-fp16"] if attributes else [])]
    target = replace(host_target(*features), cpu="sapphirerapids")
    dot = operation("dot", [operand(0, "i32"), operand(1, "i32")], kind, attributes)
    nest = replace(product((64, 64, 72), kind), values=(add_to_sum(dot),))
    kernel = Kernel(nest, target)
    assert kernel.schedule.matrix
    counts = {name: len(re.findall(code, kernel.object, re.DOTALL)) for name, code in ENCODINGS.items()}
    assert counts["ldtilecfg"] == counts["tilerelease"] == 1
    assert counts["tilezero"] == counts["tilestored"] == 4
    # The words of a row are four steps of 16, and 8 at the end.
    assert counts[multiply] == 8
    assert counts["tileloadd"] == 10
    assert sum(count for name, count in counts.items() if name.startswith("tdp")) == 8
    unit = UNITS[0] if attributes else UNIT
    assert Machine.of(target) == replace(Machine.of(with_model(target)), matrix=unit)


# The unit of Sapphire Rapids.
UNIT = replace(UNITS[0], elements=tuple(pair for pair in UNITS[0].elements if pair[0] != "f16"))


# Kernels.


def blocks_of(nest: KernelSpec, machine: Machine = MACHINE, unknown: frozenset[int] = frozenset()) -> list[MatrixBlock]:
    """Return the widest, the tallest and the cheapest block for each choice of loops, without and with parts."""
    groups: dict[tuple[int, MatrixTile, bool], list[MatrixBlock]] = {}
    for block in matrix_blocks(nest, machine, unknown):
        groups.setdefault((block.vector, block.tile, block.part is not None), []).append(block)
    return [
        block
        for group in groups.values()
        for block in {max(group, key=lambda b: b.points[b.vector]), min(group, key=lambda b: b.cycles), group[-1]}
    ]


def check_blocks(nest: KernelSpec, scalars: Sequence[float] = (), blocks: Sequence[MatrixBlock] | None = None) -> None:
    """Check the results of a nest with several blocks of tiles against those without a matrix unit."""
    blocks = blocks_of(nest) if blocks is None else blocks
    plain = replace(MACHINE, matrix=None)
    arrays = arrays_of(nest, 0, scalars)
    generator = np.random.default_rng(1)
    for number, factor in enumerate(nest.inputs):
        values = generator.integers(-4, 5, (arrays[number].size, 2)).astype(np.float32)
        arrays[number] = words_of(values)
        assert factor.element == "i32"
    expected = [array.copy() for array in arrays]
    Kernel(nest, host_target(), choose_schedule(nest, plain))(expected)
    assert blocks
    for block, number in itertools.product(blocks, (0, -1)):
        results = [array.copy() for array in arrays]
        Kernel(nest, TARGET, schedule_of(nest, block, number))(results, tasks=2)
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("sizes", SIZES)
def test_epilogues(sizes: tuple[int, int, int]) -> None:
    epilogue = bias_relu_residual((sizes[1], 1, 0), (0, 1, 0))
    check_blocks(product(sizes, "f32", epilogue), scalars=(0.5,))


@pytest.mark.parametrize("sizes", [(33, 40, 50), (16, 100, 9), (5, 20, 16)])
def test_results_that_lie_across(sizes: tuple[int, int, int]) -> None:
    """Check results that are contiguous along rows of tiles, with gaps between columns."""
    check_blocks(replace(product(sizes, "f32"), outputs=(Operand("f32", (1, sizes[0] + 1, 0)),)))


def convolution(channels: int, filters: int, height: int, width: int, window: int, stride: int) -> KernelSpec:
    """Return a convolution of blocks of channels. Words have two channels."""
    words, rows, columns = channels // 2, (height - 1) * stride + window, (width - 1) * stride + window
    image = (0, stride * columns * words, stride * words, columns * words, words, 1)
    weights = (1, 0, 0, window * words * filters, words * filters, filters)
    dot = operation("dot", [operand(0, "i32"), operand(1, "i32")], "f32")
    assert rows > 0
    return KernelSpec(
        sizes=(filters, height, width, window, window, words),
        reduction=(False, False, False, True, True, True),
        inputs=(Operand("i32", image), Operand("i32", weights)),
        outputs=(Operand("f32", (1, width * filters, filters, 0, 0, 0)),),
        values=(add_to_sum(dot),),
        initial=constant(-0.0, "f32"),
    )


@pytest.mark.parametrize(
    ("channels", "filters", "height", "width", "window", "stride"),
    [(32, 16, 7, 7, 1, 1), (16, 40, 5, 28, 3, 1), (24, 8, 6, 9, 3, 2), (40, 33, 3, 17, 2, 2)],
)
def test_convolutions(channels: int, filters: int, height: int, width: int, window: int, stride: int) -> None:
    check_blocks(convolution(channels, filters, height, width, window, stride))


def test_batches() -> None:
    nest = product((20, 24, 18), "f32")
    check_blocks(
        replace(
            nest,
            sizes=(3, *nest.sizes),
            reduction=(False, *nest.reduction),
            inputs=(Operand("i32", (20 * 18, 18, 0, 1)), Operand("i32", (18 * 24, 0, 1, 24))),
            outputs=(Operand("f32", (20 * 24, 24, 1, 0)),),
        )
    )


@pytest.mark.parametrize(
    ("nest", "cache"),
    [
        pytest.param(product((64, 64, 90), "f32"), 4 << 10, id="a product"),
        pytest.param(
            product((48, 1056, 40), "f32", bias_relu_residual((1056, 1, 0), (0, 1, 0))), 4 << 10, id="an epilogue"
        ),
        pytest.param(convolution(48, 32, 4, 14, 3, 1), 20 << 10, id="a convolution"),
    ],
)
def test_parts_of_a_reduction(nest: KernelSpec, cache: int) -> None:
    """Check parts between which partial sums are stored, also for more rows or columns than are stored at once."""
    machine = replace(MACHINE, matrix=replace(UNIT, first_level=cache))
    blocks = [block for block in blocks_of(nest, machine) if block.part]
    assert blocks
    check_blocks(nest, [0.5] if nest.epilogue else [], blocks)


@pytest.mark.parametrize("typical", [(16, 64), (64, 64), (100, 100)])
@pytest.mark.parametrize("sizes", [(M, 40, 35), (M + N, 16, 16), (2 * M, 7, 48)])
@pytest.mark.parametrize("is_across", [False, True])
def test_any_number_of_rows(sizes: tuple[Size, int, int], typical: tuple[int, int], is_across: bool) -> None:
    """Check rows whose number is known only at run time, from none to more than a block of tiles has."""
    rows, columns, words = sizes
    epilogue = bias_relu_residual((columns, 1, 0), (0, 1, 0))
    if is_across:
        epilogue = replace(epilogue, outputs=(Operand("f32", (1, rows + 3, 0)), epilogue.outputs[1]))
    nest = replace(product((1, columns, words), "f32", epilogue), sizes=sizes)
    known, unknown = assume_typical(nest, typical)
    plain = Kernel(nest, replace(TARGET, features=NONE), typical=typical)
    assert plain.schedule.matrix is None
    assert choose_schedule(nest, MACHINE, typical).matrix or rows != M or typical[0] < 64
    for block in blocks_of(known, MACHINE, unknown):
        for levels in list(block.orders(known, tuple(Level(d, block.points[d]) for d in (0, 1))))[::3]:
            context = ScheduleContext(nest, MACHINE, typical, matrix=block.tile)
            schedule = complete_schedule(context, block.vector, block.lanes, block.points, levels, block.cycles)
            assert not list(find_faults(nest, schedule, MACHINE))
            kernel = Kernel(nest, TARGET, schedule)
            for values in [(0, 0), (1, 2), (7, 8), (8, 9), (16, 1), (17, 50), (70, 31)]:
                check_rows(nest, kernel, plain, values)


def check_rows(nest: AnyNest, kernel: Kernel, plain: Kernel, values: tuple[int, int]) -> None:
    """Check the results of a dynamic kernel against those of another one."""
    arrays, generator = arrays_of(specialise(nest, values), 0, [0.5]), np.random.default_rng(0)
    for number in (0, 1):
        arrays[number] = words_of(generator.integers(-4, 5, (arrays[number].size, 2)).astype(np.float32))
    results, expected = ([array.copy() for array in arrays] for _ in range(2))
    kernel(results, max(1, min(2, kernel.iterations(values))), values)
    plain(expected, 1, values)
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, wanted, err_msg=f"at {values}")


# Choices.


@pytest.mark.parametrize(
    ("sizes", "is_used"),
    [
        pytest.param((128, 768, 384), True, id="a layer of BERT"),
        pytest.param((4096, 64, 32), True, id="a convolution of single pixels"),
        pytest.param((1, 768, 384), False, id="one row"),
        pytest.param((4, 4, 4), False, id="less than a tile"),
    ],
)
@pytest.mark.parametrize("kind", ["f32", "i32"])
def test_large_products_use_the_unit(sizes: tuple[int, int, int], kind: str, is_used: bool) -> None:
    nest = product(sizes, kind)
    assert (choose_schedule(nest, MACHINE).matrix is not None) == is_used
    assert choose_schedule(nest, replace(MACHINE, matrix=None)).matrix is None
    only = replace(UNIT, elements=tuple(pair for pair in UNIT.elements if (pair[0] == "bf16") == (kind == "i32")))
    assert choose_schedule(nest, replace(MACHINE, matrix=only)).matrix is None


@pytest.mark.parametrize(("kind", "words"), [("f32", 512), ("i32", 256)])
def test_a_large_product_reaches_the_peak(kind: str, words: int) -> None:
    """Check the cost model: a product of 1024³ takes at most 1 ÷ 0.69 times as long as its instructions.

    Its right factor is in panels of 32 columns. The time includes cache misses.
    """
    dot = operation("dot", [operand(0, "i32"), operand(1, "i32")], kind)
    nest = KernelSpec(
        sizes=(1024, 32, 32, words),
        reduction=(False, False, False, True),
        inputs=(Operand("i32", (words, 0, 0, 1)), Operand("i32", (0, 32 * words, 1, 32))),
        outputs=(Operand(kind, (1024, 32, 1, 0)),),
        values=(add_to_sum(dot),),
        initial=constant(0, kind),
    )
    instructions = 64 * 64 * (words // 16) * 16
    assert instructions <= estimate_cycles(nest, MACHINE) <= instructions / 0.69


def test_tiles_have_registers() -> None:
    """Check that each step multiplies the tiles that it loaded last, and that registers are not used twice."""
    for rows, columns, rest in [(r, c, rest) for r in range(1, 5) for c in range(1, 5) for rest in (False, True)]:
        registers = Registers.of(rows, columns, UNITS[0], rest)
        if registers is None:
            assert rows * columns + 2 + 2 * rest > UNITS[0].registers
            continue
        sums = {registers.sums(row, column) for row in range(rows) for column in range(columns)}
        used = []
        for is_rest in (False, True) if rest else (False,):
            held: dict[int, int] = {}
            pairs = []
            for step in registers.steps(rows, columns, is_rest=is_rest):
                held |= {step.left: step.row} if step.loads_left else {}
                held |= {step.right: -1 - step.column} if step.loads_right else {}
                assert (held[step.left], held[step.right]) == (step.row, -1 - step.column)
                pairs.append((step.row, step.column))
            assert len(set(pairs)) == len(pairs) == rows * columns
            used.append(frozenset(held))
        assert len(sums | frozenset().union(*used)) == len(sums) + sum(map(len, used)) <= UNITS[0].registers


def test_schedules_are_kept_as_data() -> None:
    nest = product((64, 64, 32), "f32")
    plain = replace(MACHINE, matrix=None)
    schedule, other = choose_schedule(nest, MACHINE), choose_schedule(nest, plain)
    assert override_schedule(nest, other, data_of(schedule), MACHINE) == schedule
    assert override_schedule(nest, schedule, data_of(other), MACHINE) == other
    for fault, machine in (({}, plain), ({"unroll": [1, 1, 2]}, MACHINE), ({"lanes": 8}, MACHINE)):
        with pytest.raises(ValueError, match="matrix unit"):
            override_schedule(nest, schedule, data_of(schedule) | fault, machine)
    for levels in ([[0, 32], [2, 8], [1, 32]], [[0, 32], [2, 24], [1, 32]]):
        with pytest.raises(ValueError, match="blocks of a reduction divide"):
            override_schedule(nest, schedule, data_of(schedule) | {"levels": levels}, MACHINE)
    for change in ({"height": 17}, {"words": 17}, {"rows": 1}, {"depth": 0}, {"rows": 7}, {"stack": 1}):
        data = data_of(schedule)
        with pytest.raises(ValueError, match="matrix unit"):
            override_schedule(nest, schedule, data | {"matrix": data["matrix"] | change}, MACHINE)


def data_of(schedule: Schedule) -> dict[str, Any]:
    return dict(json.loads(json.dumps(to_json_data(schedule))))


def test_an_unknown_unit_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"unknown matrix_unit 'gpu' \(choose from native, software, none\)"):
        torchmdla.enable(matrix_unit="gpu")


# Programs.


def two_layers(b: Builder) -> list[Value]:
    """Build layers whose sizes leave remainders of rows, columns and words, with a function between them."""
    return [linear(b, relu(b, linear(b, b.input(normal(50, 200).bfloat16()), 100)), 72)]


def convolutions(b: Builder) -> list[Value]:
    """Build convolutions with windows of 1 and 3, strides of 1 and 2, and a residual."""
    x = rounded(b, convolve(b, b.input(normal(1, 32, 18, 18).bfloat16()), 64, window=1))
    y = relu(b, rounded(b, convolve(b, x, 64)))
    wide = [widened(b, value) for value in (x, y)]
    total = rounded(b, b.op("aten.add.Tensor", [*wide, 1], wide[0].tensor + wide[1].tensor))
    return [rounded(b, convolve(b, total, 96, stride=2))]


def convolve(b: Builder, x: Value, filters: int, window: int = 3, stride: int = 1) -> Value:
    wide, channels = widened(b, x), x.tensor.shape[1]
    weight = b.input((normal(filters, channels, window, window) / (window * channels**0.5)).bfloat16(), "parameter")
    wide_weight, padding = widened(b, weight), window // 2
    product = torch.nn.functional.conv2d(wide.tensor, wide_weight.tensor, stride=stride, padding=padding)
    settings = [[stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1]
    return b.op("aten.convolution", [wide, wide_weight, None, *settings], product)


def in_bytes(make: Callable[[Written], list[Value]]) -> Callable[[Builder], list[Value]]:
    return lambda b: make(Written(b))


def signed_layers(w: Written) -> list[Value]:
    x = w.linear(w.quantised_input(50, 200, zero=-3, is_signed=True), 100, zeros=True)
    return [w.linear(w.requantised(w.relu(x), 1 / 4, 5, True), 72)]


def unsigned_layers(w: Written) -> list[Value]:
    return [w.linear(w.requantised(w.relu(w.linear(w.quantised_input(50, 200, zero=117), 100)), 1 / 4, 0, False), 72)]


def convolutions_of_bytes(w: Written) -> list[Value]:
    x = w.requantised(w.relu(w.convolution(w.quantised_input(1, 64, 18, 18, zero=60), 64)), 1 / 4, 0, False)
    return [w.convolution(x, 96, 1)]


def layers_of_float16(b: Builder) -> list[Value]:
    x = b.cast(b.input(normal(50, 128).half()), torch.float32)
    weight = b.cast(b.input((normal(100, 128) / 16).half(), "parameter"), torch.float32)
    product = torch.nn.functional.linear(x.tensor, weight.tensor)
    return [b.cast(b.op("aten.linear", [x, weight, None], product), torch.float16)]


@pytest.mark.parametrize(
    ("make", "count"),
    [
        pytest.param(two_layers, 2, id="layers"),
        pytest.param(layers_of_float16, 1, id="float16"),
        pytest.param(convolutions, 3, id="convolutions"),
        pytest.param(in_bytes(signed_layers), 2, id="signed bytes"),
        pytest.param(in_bytes(unsigned_layers), 2, id="unsigned bytes"),
        pytest.param(in_bytes(convolutions_of_bytes), 2, id="convolutions of bytes"),
    ],
)
def test_programs(make: Callable[[Builder], list[Value]], count: int) -> None:
    """Check results, and how many kernels use the unit. A checked program finds accesses outside of buffers."""
    b = Builder()
    results = make(b)
    plan = plan_schedules(b.steps(results, *TARGET.features.split(",")), MACHINE, Symbols(), Decisions())
    assert sum(kernel.schedule.matrix is not None for kernel in plan.kernels.values()) == count
    check(b, results, TARGET)
    check(b, results, replace(TARGET, features=f"{TARGET.features},{CHECK_BOUNDS}"))


# Permission.


@pytest.mark.parametrize("granted", [True, False])
def test_the_unit_is_used_if_the_system_permits(granted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_target(*SAPPHIRE_RAPIDS.split())
    permitted = {"amx-tile", "amx-bf16", "amx-int8"} if granted else set()
    monkeypatch.setattr(processors, "_known_host", host)
    monkeypatch.setattr(torchmdla._C, "host_features", lambda: {"avx2", *permitted})
    device = devices.get("cpu")
    device.configure()
    target = device.target()
    assert Machine.of(target).matrix == (UNIT if granted else None)
    assert permitted == set(device.features(target)) & {"amx-tile", "amx-bf16", "amx-int8"}
    device.configure(matrix_unit="none")
    assert Machine.of(device.target()).matrix is None


def test_packages_have_a_level_with_the_unit() -> None:
    device = devices.get("cpu")
    device.configure()
    target = device.target_for("x86-64-v4-amx")
    assert Machine.of(target).matrix == UNIT
    assert {"amx-tile", "amx-bf16", "amx-int8", "avx512f"} <= set(device.features(target))
    assert Machine.of(device.target_for("x86-64-v4")).matrix is None


def test_checked_code_uses_the_model() -> None:
    host = host_target(*SAPPHIRE_RAPIDS.split())
    assert Machine.of(replace(host, features=f"{host.features},{CHECK_BOUNDS}")).matrix == replace(
        UNIT, is_modelled=True
    )

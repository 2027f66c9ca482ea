"""Fused steps (epilogues) and tile loops (chains): which steps form them, which do not, and their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_running import host_target
from torch import nn
from torch.nn import functional
from written_programs import TracedProgram, normal

import torchmdla
from torchmdla.compiler.program import Target
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.expressions import Expression, accumulator, constant, load, operation
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, Step, TileLoop, is_copy
from torchmdla.devices.cpu.passes.epilogue import merge_epilogues
from torchmdla.devices.cpu.passes.tile_fusion import fuse_by_tiles
from torchmdla.devices.cpu.schedule.plan import Decisions
from torchmdla.devices.cpu.schedule.tile_loops import MemberPrefetches, plan_prefetches
from torchmdla.devices.cpu.target.machine import Machine
from torchmdla.testing.compare import assert_matches

MACHINE = replace(Machine.of(host_target()), has_strong_prefetcher=False)


def chains(steps: LoopProgram) -> list[TileLoop]:
    return [s for s in steps.steps if isinstance(s, TileLoop)]


def all_nests(steps: LoopProgram) -> list[LoopNest]:
    return [*steps.nests(), *(member for chain in chains(steps) for member in chain.members)]


# Programs.


def softmax(*sizes: int, dim: int = -1) -> TracedProgram:
    return TracedProgram(lambda x: x.softmax(dim), normal(*sizes) * 20)


def layer_norm(rows: int, width: int) -> TracedProgram:
    inputs = normal(rows, width) + 3, normal(width), normal(width)
    return TracedProgram(lambda x, w, c: functional.gelu(functional.layer_norm(x, (width,), w, c)), *inputs)


def attention(heads: int, length: int, width: int) -> TracedProgram:
    q, k, v = (normal(heads, length, width) * scale for scale in (1.0, 1.1, 0.9))
    return TracedProgram(lambda q, k, v: torch.bmm((torch.bmm(q, k.transpose(1, 2)) / 3.0).softmax(-1), v), q, k, v)


def elementwise_and_maximum(rows: int, width: int) -> TracedProgram:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = x + y
        return (total - total.amax(1, keepdim=True)).exp()

    return TracedProgram(function, normal(rows, width), normal(width))


def product(rows: int, columns: int, inner: int, transposed: bool = False) -> TracedProgram:
    second = normal(columns, inner) if transposed else normal(inner, columns)
    return TracedProgram(lambda x, w: x @ (w.t() if transposed else w), normal(rows, inner), second)


CONVOLUTION_AND_STATISTICS = TracedProgram(
    lambda x, w: torch.var_mean(functional.conv2d(x, w, padding=1), [0, 2, 3]),
    *(normal(2, 16, 56, 56), normal(16, 16, 3, 3)),
)


LINEAR_WITH_EVERYTHING = TracedProgram(
    lambda x, w, c, r: torch.relu(functional.linear(x, w, c) + r),
    *(normal(24, 40), normal(56, 40), normal(56), normal(24, 56)),
)


@pytest.mark.parametrize(
    "program",
    [
        softmax(257, 96),
        softmax(12, 33, 40, dim=1),
        softmax(3, 5, 7),
        softmax(1, 30000),
        softmax(2048, 3),
        layer_norm(300, 512),
        layer_norm(7, 1000),
        attention(3, 37, 16),
        attention(2, 160, 32),
        attention(1, 400, 8),
        LINEAR_WITH_EVERYTHING,
        product(67, 512, 512),
        product(67, 512, 512, transposed=True),
        CONVOLUTION_AND_STATISTICS,
    ],
)
@pytest.mark.parametrize("target", [host_target(), host_target("+avx2", "+fma"), host_target("")])
@pytest.mark.sampled(6)
def test_values(program: TracedProgram, target: Target) -> None:
    program.check(target)


# Programs that become chains.


@pytest.mark.parametrize("program", [softmax(512, 96), layer_norm(300, 512), attention(4, 160, 32)])
def test_one_pass_over_memory(program: TracedProgram) -> None:
    loops = chains(program.steps())
    assert len(loops) == 1
    assert loops[0].locals
    # The memory between nests fits into the first-level cache, or into the second-level cache for matrix products.
    assert sum(b.bytes for b in loops[0].locals) <= MACHINE.second_level // 4


def test_attention_keeps_scores_in_the_chain() -> None:
    (chain,) = chains(attention(4, 160, 32).steps())
    assert len(chain.members) == 5  # scores, maximum, exponentials, their sums, results
    assert {b.kind for b in chain.writes} == {"result"}


@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_reads_panels_from_the_cache(transposed: bool) -> None:
    """Check the copy of a factor to panels, and that few rows read it in place."""
    target = host_target("+avx2", "+fma")
    (chain,) = chains(product(64, 2048, 1024, transposed).steps(target))
    copy, contraction = chain.members
    assert is_copy(copy)
    assert {b.kind for b in chain.writes} == {"result"}
    assert {b.kind for b in contraction.reads} == {"input", "local"}
    assert chains(product(2, 2048, 1024, transposed).steps(target)) == []


def test_each_product_of_layers_that_train_reads_panels_from_the_cache() -> None:
    """Check that the weights of a layer are not copied whole where the next layer reads all of its results."""

    def layers(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(x @ v.t())
        return hidden, hidden @ w.t()

    program = TracedProgram(layers, normal(64, 1024), normal(1024, 1024), normal(1024, 1024))
    steps = program.steps(host_target("+avx2", "+fma"))
    assert [[is_copy(member) for member in chain.members] for chain in chains(steps)] == [[True, False]] * 2
    assert not steps.nests()


@pytest.mark.parametrize("rows", [(64,), (4, 16)])
def test_a_factor_whose_lines_evict_each_other_is_transposed(rows: tuple[int, ...]) -> None:
    """Check a product whose factors are both read across the rows of a matrix, 8 KiB apart, in samples or not."""
    program = TracedProgram(lambda x, y: torch.einsum("...i,...j->ij", x, y), normal(*rows, 2048), normal(*rows, 2048))
    steps = program.steps(host_target("+avx2", "+fma"))
    (contraction,) = (nest for nest in all_nests(steps) if any(nest.reduction))
    assert "input" not in {buffer.kind for buffer in contraction.reads}
    program.check(host_target("+avx2", "+fma"))


def test_tiles_leave_the_vectors_of_products_whole() -> None:
    """Check that channels in vector lanes stay together where statistics follow a convolution."""
    target = host_target("+avx2", "+fma", "algorithms=direct")
    nests = all_nests(CONVOLUTION_AND_STATISTICS.steps(target))
    (convolution,) = (nest for nest in nests if sum(nest.reduction) == 4)
    flat = convolution.written_accesses[0].linearise(len(convolution.sizes)).factors
    assert [size for size, factor in zip(convolution.sizes, flat, strict=True) if factor == 1] == [8]


def test_queries_meet_transposed_keys() -> None:
    steps = attention(4, 160, 32).steps()
    product = chains(steps)[0].members[0]
    column = [access.linearise(len(product.sizes)).factors for access in product.inputs]
    (lane_loop,) = [
        d for d, factor in enumerate(product.written_accesses[0].linearise(len(product.sizes)).factors) if factor == 1
    ]
    assert sorted(factors[lane_loop] for factors in column) == [0, 1]


def structure(steps: LoopProgram) -> list[object]:
    """Return the structure that must not depend on sizes: the kinds of steps, and the parts of chains."""
    parts: list[object] = []
    for step in steps.steps:
        if isinstance(step, TileLoop):
            members = [(m.reduction, [e.op for e in m.body.expressions], m.epilogue is None) for m in step.members]
            parts.append((step.loops, members, len(step.locals)))
        else:
            parts.append(type(step))
    return parts


@pytest.mark.parametrize("make", [softmax, layer_norm, elementwise_and_maximum])
@pytest.mark.parametrize("sizes", [(3, 7), (61, 67), (67, 500), (128, 61), (1009, 96), (4096, 4096)])
def test_sizes_change_no_structure(make: Callable[[int, int], TracedProgram], sizes: tuple[int, int]) -> None:
    # One pass over long rows computes mean and variance.
    assert structure(make(*sizes).steps()) == structure(make(64, 128 if sizes[1] < 256 else 256).steps())


@pytest.mark.parametrize("length", [11, 61, 67, 197, 500])
def test_length_changes_no_structure(length: int) -> None:
    steps = attention(3, length, 16).steps()
    assert structure(steps) == structure(attention(3, 128, 16).steps())


# Tiles that do not divide an axis.


@pytest.mark.parametrize("program", [softmax(197, 700), layer_norm(197, 500), attention(3, 197, 64)])
def test_a_prime_has_tiles(program: TracedProgram) -> None:
    (chain,) = chains(program.steps())
    (tile,) = (t for t, extent in zip(chain.tile, chain.extents, strict=True) if extent == 197)
    assert 1 < tile < 197


def test_tiles_of_a_prime_are_even() -> None:
    (chain,) = chains(attention(1, 197, 64).steps())
    count = -(-197 // chain.tile[0])
    assert chain.tile[0] * count - 197 < count


odd = st.integers(1, 130).map(lambda n: 2 * n + 1)


@settings(max_examples=15)
@given(rows=odd, width=odd, dim=st.sampled_from([0, 1]))
@pytest.mark.sampled(0)
def test_softmax_of_any_size(rows: int, width: int, dim: int) -> None:
    softmax(rows, 8 * width, dim=dim).check()


@settings(max_examples=15)
@given(rows=odd, width=odd, make=st.sampled_from([layer_norm, elementwise_and_maximum]))
@pytest.mark.sampled(0)
def test_rows_of_any_size(rows: int, width: int, make: Callable[[int, int], TracedProgram]) -> None:
    make(rows, 4 * width).check()


@settings(max_examples=15)
@given(heads=st.integers(1, 3), length=odd, width=st.integers(1, 40))
@pytest.mark.sampled(0)
def test_attention_of_any_size(heads: int, length: int, width: int) -> None:
    attention(heads, length, width).check()


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_run_ragged_tiles(threads: int) -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(q @ k.transpose(1, 2) / 8.0, -1)
        return functional.layer_norm(weights @ v, (64,))

    inputs = normal(12, 197, 64), normal(12, 197, 64) + 0.1, normal(12, 197, 64)
    torch.set_num_threads(threads)
    compiled = torchmdla.compile(torch.jit.trace(function, inputs), *inputs)
    assert_matches(compiled(*inputs), function(*inputs))


# Chains with given tiles.


@pytest.mark.parametrize(
    ("make", "sizes", "tiles"),
    [
        (softmax, (61, 40), [(8,)]),
        (softmax, (67, 40), [(8,)]),
        (softmax, (5, 40), [(8,)]),
        (softmax, (8, 40), [(8,)]),
        (layer_norm, (9, 33), [(7,)]),
        (partial(attention, width=16), (3, 61), [(2, 24)]),
        (partial(attention, width=16), (2, 20), [(3, 24)]),
    ],
)
def test_given_tiles(
    make: Callable[..., TracedProgram],
    sizes: tuple[int, ...],
    tiles: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Decisions, "of", lambda program: Decisions(tiles))
    assert [chain.tile for chain in chains(make(*sizes).steps())] == tiles
    make(*sizes).check()


@pytest.mark.parametrize("tiles", [[], [(4, 4)], [(4,), (4,)]])
def test_tiles_of_other_chains(tiles: list[tuple[int, ...]]) -> None:
    x, y, z = buffer("input"), buffer(), buffer("result")
    steps = LoopProgram([row_sum(x, row(y)), elementwise([row(y)], whole(z))], {})
    with pytest.raises(ValueError, match="tile"):
        fuse_by_tiles(steps, MACHINE, tiles)
    assert len(steps.steps) == 2


def test_threads_share_tiles() -> None:
    executable = softmax(2048, 1024).check()
    assert executable.pool.chunks > 1


# Prefetches.


@pytest.mark.parametrize("make", [softmax, layer_norm])
@pytest.mark.parametrize("rows", [2048, 2039])
def test_later_tiles_are_fetched_while_one_is_computed(make: Callable[[int, int], TracedProgram], rows: int) -> None:
    (chain,) = chains(make(rows, 1024).steps())
    fetches = {}
    for position, (member, fetched) in enumerate(zip(chain.members, plan_prefetches(chain, MACHINE), strict=True)):
        places = [*fetched.beside]
        for fetch in fetched.ahead:
            origin = (position, fetch.operand) if fetch.beside is None else places[fetch.beside]
            buffer = chain.members[origin[0]].accesses[origin[1]].buffer
            assert buffer not in fetches
            fetches[buffer] = position, fetch.distance
            assert member.is_indexed_by_all_loops(member.accesses[fetch.operand])
    # Each buffer is prefetched once, by different members. Buffers that all tiles read (the norm's weights) are not.
    assert sorted(buffer.kind for buffer in fetches) == ["input", "result"]
    assert len({position for position, _ in fetches.values()}) == 2
    (distance,) = (far for buffer, (_, far) in fetches.items() if buffer.kind == "input")
    assert distance == 2 * chain.tile[0] * 1024 * 4
    make(rows, 1024).check()


def test_data_in_the_second_cache_is_not_prefetched() -> None:
    (chain,) = chains(softmax(64, 1024).steps())
    assert plan_prefetches(chain, replace(MACHINE, second_level=1 << 20)) == [MemberPrefetches()] * len(chain.members)


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (lambda: nn.LayerNorm(1024), (512, 1024)),
        (lambda: nn.GroupNorm(4, 32), (2, 32, 40, 40)),
        (lambda: nn.InstanceNorm2d(8), (2, 8, 40, 40)),
    ],
)
def test_values_with_a_large_mean_are_as_exact_as_eager_has_them(
    make: Callable[[], nn.Module], sizes: tuple[int, ...]
) -> None:
    """Check the order of operations. The mean is subtracted before the squares are computed."""
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(3)) + 1e4
    module = make().eval()
    with torch.no_grad():
        compiled = torchmdla.compile(torch.jit.trace(module, (x,), check_trace=False), x)
        results = compiled(x), module(x)
        errors = [(result - module.double()(x.double())).square().mean().sqrt() for result in results]
    assert errors[0] <= 2 * errors[1]


# Elementwise steps that become epilogues.


def test_everything_after_a_product_is_its_epilogue() -> None:
    nests = all_nests(LINEAR_WITH_EVERYTHING.steps())
    products = [s for s in nests if any(s.reduction)]
    assert len(products) == 1
    assert all(is_copy(s) for s in nests if s not in products)
    assert products[0].epilogue is not None
    assert products[0].epilogue.outputs[0].buffer.kind == "result"


def test_a_result_that_is_read_twice_stays() -> None:
    program = TracedProgram(lambda x, y: (z := torch.mm(x, y), z.relu()), normal(24, 40), normal(40, 56))
    assert all(s.epilogue is None for s in all_nests(program.steps()))
    program.check()


MANY_ROWS = MACHINE.second_level // 256


@pytest.mark.parametrize(("rows", "streams", "merged"), [(64, 3, True), (MANY_ROWS, 1, True), (MANY_ROWS, 3, False)])
def test_many_large_operands_are_read_by_whole_rows(rows: int, streams: int, merged: bool) -> None:
    """Check epilogues of a result that fits the second-level cache, and of one that exceeds it."""
    others = [normal(rows, 128) for _ in range(streams)]
    program = TracedProgram(lambda x, w, *others: sum(others, x @ w), normal(rows, 32), normal(32, 128), *others)
    nests = [nest for nest in all_nests(program.steps()) if any(nest.reduction)]
    assert [bool(nest.epilogue) for nest in nests] == [merged]


def test_a_transposing_reader_becomes_an_epilogue() -> None:
    program = TracedProgram(lambda x, y: torch.mm(x, y).t().contiguous().relu(), normal(24, 40), normal(40, 56))
    assert any(s.epilogue is not None for s in all_nests(program.steps()))
    program.check()


# Hazards, with handwritten steps.

ROWS, COLUMNS = 64, 512


def whole(buffer: Buffer) -> Access:
    return Access(buffer, (AffineExpr((1, 0)), AffineExpr((0, 1))))


def row(buffer: Buffer) -> Access:
    return Access(buffer, (AffineExpr((1, 0)), AffineExpr((0, 0))))


def turned(buffer: Buffer) -> Access:
    return Access(buffer, (AffineExpr((0, 1)), AffineExpr((1, 0))))


def elementwise(inputs: Sequence[Access], output: Access, sizes: tuple[int, ...] = (ROWS, COLUMNS)) -> LoopNest:
    value = operation("arith.addf", map(load, inputs), "f32")
    return LoopNest.elementwise(sizes, output, value)


def row_sum(source: Buffer, output: Access) -> LoopNest:
    return LoopNest((ROWS, COLUMNS), (False, True), (output,), (total(whole(source)),), constant(0.0, "f32"))


def total(access: Access) -> Expression:
    return operation("arith.addf", [load(access), accumulator(0, "f32")], "f32")


def buffer(kind: str = "temporary", sizes: tuple[int, ...] = (ROWS, COLUMNS)) -> Buffer:
    return Buffer(kind, "f32", sizes)  # type: ignore[arg-type]


def chained(*steps: Step) -> list[Step]:
    program = LoopProgram(list(steps), {})
    fuse_by_tiles(program, MACHINE)
    return program.steps


def test_rows_that_only_need_themselves_are_chained() -> None:
    x, y, z = buffer("input"), buffer(), buffer("result")
    (chain,) = chained(elementwise([whole(x)], whole(y)), elementwise([whole(y)], whole(z)))
    assert isinstance(chain, TileLoop)
    assert [b.kind for b in chain.locals] == ["local"]


def test_a_neighbour_breaks_the_axis() -> None:
    x, y, z = buffer("input"), buffer(sizes=(ROWS + 1, COLUMNS)), buffer("result")
    first = elementwise([whole(x)], whole(y), (ROWS, COLUMNS))
    later = Access(y, (AffineExpr((1, 0), 1), AffineExpr((0, 1))))
    steps = chained(first, elementwise([later], whole(z)))
    # Columns still match. A tile loop may only cut columns.
    for step in steps:
        if isinstance(step, TileLoop):
            assert [m.sizes[0] for m in step.members] == [ROWS, ROWS]


def test_lanes_of_an_image_stay_whole_beside_a_larger_one() -> None:
    """Check that tiles have all lanes of a blocked image, although the largest buffer has its channels far apart."""
    loops = [AffineExpr.of_loop(loop, 4) for loop in range(4)]
    block, lane, row, column = loops
    image, copied = (Access(buffer(sizes=(4, 64, 64, 16)), (block, row, column, lane)) for _ in range(2))
    channel, padded = AffineExpr((16, 1, 0, 0)), buffer("input", (64, 66, 66))
    first = elementwise([Access(padded, (channel, row, column))], image, (4, 16, 64, 64))
    second = elementwise([image], copied, (4, 16, 64, 64))
    sums = Access(buffer("result", (64,)), (channel,))
    third = LoopNest(first.sizes, (False, False, True, True), (sums,), (total(copied),), constant(0.0, "f32"))
    for step in chained(first, second, third):
        nests = step.members if isinstance(step, TileLoop) else [step]
        assert [nest.sizes[1] for nest in nests if isinstance(nest, LoopNest)] == [16] * len(nests)


def test_a_transposed_reader_is_cut_the_other_way() -> None:
    x, y, z = buffer("input", (512, 512)), buffer(sizes=(512, 512)), buffer("result", (512, 512))
    first = elementwise([whole(x)], whole(y), (512, 512))
    for step in chained(first, elementwise([turned(y)], whole(z), (512, 512))):
        if isinstance(step, TileLoop):
            assert step.loops[0] == tuple(1 - loop for loop in step.loops[1])


def test_overwriting_rows_that_are_still_read_breaks_the_chain() -> None:
    x, sums, y = buffer(), buffer(sizes=(COLUMNS,)), buffer("result")
    columns = Access(sums, (AffineExpr((0, 1)),))
    down = LoopNest((ROWS, COLUMNS), (True, False), (columns,), (total(whole(x)),), constant(0.0, "f32"))
    steps = chained(down, elementwise([columns], whole(y)))
    # A sum over rows ends before any row is read, so rows cannot be cut.
    for step in steps:
        if isinstance(step, TileLoop):
            assert all(member.sizes[0] == ROWS for member in step.members)


def test_unrelated_steps_move_out_of_the_way() -> None:
    x, y, z = buffer("input"), buffer(), buffer("result")
    other = elementwise([whole(buffer("input"))], whole(buffer("result")))
    steps = chained(elementwise([whole(x)], whole(y)), other, elementwise([whole(y)], whole(z)))
    assert steps[0] is other
    assert isinstance(steps[1], TileLoop)


@pytest.mark.sampled(0)
def test_a_long_row_of_nests_whose_values_are_all_needed() -> None:
    """Check that a long sequence of nests is rejected quickly.

    A chain of these nests does not have local buffers. The pass must not analyse each length of each chain.
    """
    values = [buffer("result") for _ in range(300)]
    steps = chained(*(elementwise([whole(x)], whole(y)) for x, y in pairwise(values)))
    assert len(steps) == 299


def test_a_writer_in_between_keeps_the_epilogue_away() -> None:
    x, y = buffer(), buffer(sizes=(ROWS, 1))
    result = buffer("result", (ROWS, 1))
    narrow = Access(y, (AffineExpr((1, 0)), AffineExpr((0, 0))))
    rows = (AffineExpr((1,)), AffineExpr((0,)))
    summed = row_sum(x, narrow)
    reader = LoopNest.elementwise(
        (ROWS,), Access(result, rows), operation("arith.negf", [load(Access(y, rows))], "f32")
    )
    overwriting = elementwise([whole(buffer("input"))], whole(x))
    steps = LoopProgram([summed, overwriting, reader], {})
    merge_epilogues(steps, MACHINE)
    assert len(steps.steps) == 3
    steps = LoopProgram([summed, reader, overwriting], {})
    merge_epilogues(steps, MACHINE)
    assert len(steps.steps) == 2
    assert summed.epilogue is not None

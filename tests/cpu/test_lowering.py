"""The cpu device's lowering: programs are compiled, linked and compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nest_running import host_target
from torch.nn import functional
from written_programs import Builder, TracedProgram, Value, check, normal, tensor_type

from torchmdla.compiler.artifact import Artifact
from torchmdla.devices.cpu.codegen.sizes import ALIGNMENT, Lifetime, plan
from torchmdla.devices.cpu.lowering import lower
from torchmdla.errors import CompileError
from torchmdla.testing.compare import assert_matches

# Programs.


def integers(low: int, high: int, *sizes: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes) + 2)
    return torch.randint(low, high, sizes, generator=generator).to(dtype)


def convolution(sizes: Sequence[int], weight: Sequence[int], **options: int) -> TracedProgram:
    weights = normal(*weight), normal(weight[0])
    return TracedProgram(lambda x, w, c: functional.conv2d(x, w, c, **options), normal(*sizes), weights=weights)


def repeat(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return a result with an expanded sum. It is computed once, not at its first use in the expanded result."""
    both = (x * y).sum((1, 2), keepdim=True)
    return x.sum((1, 2), keepdim=True) * y + both.expand(2, 3, 8, 5)


def multiply_slices(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return products with slices of a parameter.

    Bufferisation creates the slices one after the other in the same buffer, which tables read. One pack cannot hold
    both.
    """
    slices = (w[..., index : index + 1].permute(0, 3, 1, 2).reshape(3, 4, 2) for index in (0, 1))
    return tuple(each.flip([2]) * x for each in slices)


def choose(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    both = torch.logical_and(x > y, x < 0.5)
    return both, torch.where(both, x, y), both.any(1)


def shorten(x: torch.Tensor, y: torch.Tensor, half: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return short rows of half precision, shorter than a vector.

    Processors without instructions for these numbers convert them.
    """
    turned = half.transpose(0, 1).contiguous()
    converted = torch.mm(x, y).bfloat16(), turned.float(), half[:, ::2].float()
    return *converted, turned, half.flip(0, 1) * half, torch.cat([half, half], 1)


def reduce(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.mean((0, 2)), x.amax(1), x.argmax(1), x.prod(2), x.var(1), x.cumsum(1)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int = 3) -> torch.Tensor:
    q, k, v = (x.view(*x.shape[:2], heads, -1).transpose(1, 2) for x in (q, k, v))
    weights = torch.matmul(q, k.transpose(2, 3)).div(4.0).softmax(-1)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


CASES = {
    "elementwise": TracedProgram(lambda x, y: torch.tanh(torch.add(x, y, alpha=2) * x), normal(3, 5, 67), normal(5, 1)),
    "zero_dimensions": TracedProgram(lambda x, y: (x.exp(), x * y, y.sum()), normal(), normal(5)),
    "empty_tensors": TracedProgram(lambda x: (x.relu(), x.sum(0)), normal(0, 4)),
    "matrix_products": TracedProgram(
        lambda x, y, z: (xy := torch.mm(x, y), torch.bmm(xy.unsqueeze(0).expand(3, 37, 50), z)),
        *(normal(37, 65), normal(65, 50), normal(3, 50, 19)),
    ),
    "linear_layers": TracedProgram(
        lambda x, w, c, v: functional.linear(functional.gelu(functional.linear(x, w, c)), v),
        normal(2, 7, 65),
        weights=(normal(50, 65), normal(50), normal(9, 50)),
    ),
    "convolution_padded": convolution((2, 3, 13, 37), (10, 3, 3, 3), padding=1),
    "convolution_strided": convolution((1, 4, 17, 70), (6, 4, 3, 3), padding=1, stride=2),
    "convolution_grouped": convolution((2, 4, 9, 11), (6, 2, 3, 3), padding=1, groups=2),
    "convolution_depthwise": convolution((2, 6, 9, 35), (6, 1, 3, 3), padding=1, groups=6, stride=2),
    "convolution_dilated": convolution((1, 3, 12, 12), (5, 3, 3, 3), padding=2, dilation=2),
    "convolution_pointwise": convolution((1, 16, 7, 7), (24, 16, 1, 1)),
    "pooling": TracedProgram(
        lambda x: (functional.max_pool2d(x, 3, 2, 1), functional.avg_pool2d(x, 2)), normal(1, 3, 17, 39)
    ),
    "softmax": TracedProgram(lambda x: (x.softmax(-1), x.log_softmax(1)), normal(5, 77, 3)),
    "layer_norm": TracedProgram(
        lambda x, w, c: functional.layer_norm(x, (77,), w, c), normal(5, 77), normal(77), normal(77)
    ),
    "batch_norm": TracedProgram(
        lambda x, w, c, mean, var: functional.batch_norm(x, mean, var, w, c),
        *(normal(2, 6, 5, 5), normal(6), normal(6)),
        weights=(normal(6), normal(6).abs() + 0.5),
    ),
    "concatenation": TracedProgram(
        lambda x, y: torch.cat([x, y], 1)[:, 1:7:2].contiguous(), normal(2, 3, 5), normal(2, 4, 5)
    ),
    "repetition": TracedProgram(repeat, normal(2, 3, 8, 5), normal(2, 3, 8, 5)),
    "slices_of_a_parameter": TracedProgram(multiply_slices, normal(3, 4, 2), weights=[normal(3, 4, 2, 2)]),
    "transposition": TracedProgram(lambda x: x.permute(0, 2, 1).contiguous(), normal(2, 33, 45)),
    "table_look_up": TracedProgram(
        lambda rows, columns, table: (functional.embedding(rows, table), table.gather(1, columns)),
        *(integers(0, 20, 4, 5), integers(0, 33, 20, 6)),
        weights=[normal(20, 33)],
    ),
    "booleans": TracedProgram(choose, normal(4, 37), normal(4, 37)),
    "boolean_inputs": TracedProgram(
        lambda x, y: (torch.logical_xor(x, y), ~x), normal(70) > 0, normal(70, 1)[:, 0] > 0.3
    ),
    "integer_arithmetic": TracedProgram(
        lambda x, y: (z := x * y, torch.div(z, 7, rounding_mode="floor"), x % 5, x.sum(1)),
        *(integers(-50, 50, 4, 37), integers(-50, 50, 37)),
    ),
    "small_integers": TracedProgram(
        lambda x, y: (torch.sub(x, x, alpha=3), y + y),
        *(integers(-50, 50, 90, dtype=torch.int32), integers(-9, 9, 90, dtype=torch.int8)),
    ),
    "double_precision": TracedProgram(
        lambda x: (y := x.exp(), y.sum(1, keepdim=True)), normal(4, 37, dtype=torch.float64)
    ),
    "half_precisions": TracedProgram(
        lambda x, y: (x.tanh(), y * y), normal(4, 37, dtype=torch.float16), normal(4, 37, dtype=torch.bfloat16)
    ),
    "short_rows_of_half_precision": TracedProgram(
        shorten, normal(4, 3), normal(3, 6), normal(7, 5, dtype=torch.bfloat16)
    ),
    "conversions": TracedProgram(lambda x: (x.int(), x.long(), x.double(), x.bool()), normal(4, 37) * 10),
    "reductions": TracedProgram(reduce, normal(6, 41, 5)),
    "sort": TracedProgram(lambda x: x.sort(1)[0], normal(3, 19)),
    # It reads a computed tensor at computed indices.
    "resampling": TracedProgram(lambda x: functional.interpolate(x, size=(10, 21)), normal(2, 3, 5, 7)),
    "self_attention": TracedProgram(attend, *(normal(2, 21, 48) * scale for scale in (1.0, 0.5, 2.0))),
}


# Programs of operators that traces do not have.


def scalar_argument(b: Builder) -> list[Value]:
    x, s = b.input(normal(4, 9)), b.input(0.375)
    y = b.op("aten.mul.Scalar", [x, s], x.tensor * 0.375)
    return [y, b.op("aten.add.Scalar", [y, s, 1], y.tensor + 0.375)]


def same_value_twice_and_an_argument(b: Builder) -> list[Value]:
    x = b.input(normal(2, 3))
    y = b.op("aten.neg", [x], -x.tensor)
    return [y, x, y]


def literal(b: Builder, text: str, tensor: torch.Tensor) -> Value:
    value = Value(f"%{len(b.lines)}", tensor_type(tensor), tensor)
    b.lines.append(f'{value.name} = "torch.vtensor.literal"() {{value = {text}}} : () -> {value.type}')
    return value


def literals(b: Builder) -> list[Value]:
    x, constant = b.input(normal(2, 3)), torch.tensor([[1.0, 2.5, -3.0]])
    numbers = literal(b, "dense<[[1.0, 2.5, -3.0]]> : tensor<1x3xf32>", constant)
    mask = literal(b, "dense<[true, false, true]> : tensor<3xi1>", torch.tensor([True, False, True]))
    flipped = b.op("aten.flip", [numbers, [1]], constant.flip(1))
    return [
        b.op("aten.mul.Tensor", [x, numbers], x.tensor * constant),
        b.op("aten.add.Tensor", [x, flipped, 1], x.tensor + flipped.tensor),
        b.op("aten.where.self", [mask, x, numbers], torch.where(mask.tensor, x.tensor, constant)),
        literal(b, "dense<1.5> : tensor<f32>", torch.tensor(1.5)),
    ]


TARGETS = {"host": host_target(), "avx2": host_target("+avx2", "+fma"), "no vectors named": host_target("")}


@pytest.mark.parametrize("name", CASES)
def test_equals_eager(name: str) -> None:
    CASES[name].check()


@pytest.mark.parametrize("function", [scalar_argument, same_value_twice_and_an_argument, literals])
def test_written_programs_equal_eager(function: Callable[[Builder], list[Value]]) -> None:
    builder = Builder()
    check(builder, function(builder))


@pytest.mark.parametrize("target", [name for name in TARGETS if name != "host"])
@pytest.mark.parametrize(
    "name",
    [
        *("elementwise", "matrix_products", "linear_layers", "convolution_strided", "softmax", "reductions"),
        *("booleans", "half_precisions", "short_rows_of_half_precision"),
    ],
)
def test_equals_eager_with_narrow_vectors(name: str, target: str) -> None:
    CASES[name].check(TARGETS[target])


@pytest.mark.parametrize(
    ("program", "is_shared"),
    [
        *((TracedProgram(lambda x: x.exp() * x, normal(*sizes)), True) for sizes in [(300, 1000), (1 << 19,)]),
        (TracedProgram(lambda x: x.exp() * x, normal(3, 100_003)), True),
        (convolution((1, 32, 30, 50), (30, 32, 3, 3), padding=1), True),
        (TracedProgram(torch.mm, normal(197, 131), normal(131, 211)), True),
        (TracedProgram(torch.exp, normal(8, 8)), False),
    ],
)
def test_large_work_is_shared_and_chunks_may_run_in_any_order(program: TracedProgram, is_shared: bool) -> None:
    chunks = program.check().pool.chunks
    assert chunks > 1 if is_shared else chunks == 0


def multiply_in_turn(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(accumulate(weights, torch.mm, initial=x))[1:]


def test_equal_kernels_are_compiled_once() -> None:
    program = TracedProgram(multiply_in_turn, normal(9, 16), weights=[normal(16, 16) / 4 for _ in range(5)])
    statistics = program.check().manifest.statistics
    assert statistics["kernels"] >= 2 * statistics["distinct_kernels"]


def test_reuses_workspace() -> None:
    """Check the size of the workspace. A chain of matrix products needs two intermediates at a time."""
    program = TracedProgram(
        lambda x, w: multiply_in_turn(x, *[w] * 8)[-1], normal(64, 64), weights=[normal(64, 64) / 8]
    )
    assert program.check().manifest.workspace_bytes <= 3 * 64 * 64 * 4


def test_an_index_out_of_bounds_is_a_status() -> None:
    table, rows = normal(20, 33), torch.tensor([3, 19, 0])
    executable = TracedProgram(functional.embedding, rows, table).check()
    for wrong in (20, -1, 1 << 40):
        status, _ = executable([torch.tensor([3, wrong, 0]), table])
        assert status != 0
    status, results = executable([rows, table])
    assert status == 0
    assert_matches(results[0], functional.embedding(rows, table))


def test_does_the_same_on_every_call() -> None:
    program = CASES["self_attention"]
    executable = program.check()
    first, second = executable(program.values)[1], executable(program.values)[1]
    assert torch.equal(first[0], second[0])


def test_the_artifact_is_a_function_of_the_program() -> None:
    programs = [TracedProgram(lambda x: x.softmax(-1), normal(5, 77, 3)).program() for _ in range(2)]
    first, second = map(lower, programs)
    assert first.object_code == second.object_code
    assert first.manifest.program == programs[0].key


def lower_one(name: str, operands: Sequence[object], x: torch.Tensor) -> Artifact:
    """Lower a program of one operator."""
    builder = Builder()
    result = builder.op(name, [builder.input(x), *operands], x)
    return lower(builder.program([result], host_target()))


def test_an_op_that_the_dialect_does_not_have_is_named() -> None:
    with pytest.raises(CompileError) as caught:
        lower_one("aten.no_such_op", [], normal(3, 3))
    assert caught.value.op == "aten::no_such_op"
    assert caught.value.diagnostic


def test_an_integer_power_is_refused_by_name() -> None:
    with pytest.raises(CompileError) as caught:
        lower_one("aten.pow.Tensor_Scalar", [2], integers(-5, 5, 7))
    assert caught.value.op == "aten::pow.Tensor_Scalar"
    assert caught.value.source.startswith("model.py:")


def test_unsigned_bytes_are_refused() -> None:
    with pytest.raises(CompileError, match="ui8"):
        lower_one("aten.mul.Scalar", [3], integers(0, 9, 7).to(torch.uint8))


def test_code_does_not_depend_on_earlier_compiles() -> None:
    """Check that earlier compiles do not change the code.

    The programs of a thread share an MLIR context, also after failures. Another thread has a separate context.
    """

    def code(name: str) -> bytes:
        return lower(CASES[name].program()).object_code

    before = code("elementwise")
    code("zero_dimensions")
    test_unsigned_bytes_are_refused()
    with ThreadPoolExecutor(1) as other_thread:
        assert code("elementwise") == before == other_thread.submit(code, "elementwise").result()


lifetimes = st.builds(
    lambda size, first, length: Lifetime(size, first, first + length),
    st.integers(0, 5000),
    st.integers(0, 20),
    st.integers(0, 10),
)


@given(st.lists(lifetimes, max_size=30))
def test_planned_buffers_never_meet(buffers: list[Lifetime]) -> None:
    offsets, total = plan(buffers)
    for k, buffer in enumerate(buffers):
        assert offsets[k] % ALIGNMENT == 0
        assert offsets[k] + buffer.size <= total
        for j, other in enumerate(buffers[:k]):
            together = buffer.first <= other.last and other.first <= buffer.last
            apart = offsets[k] + buffer.size <= offsets[j] or offsets[j] + other.size <= offsets[k]
            assert not together or apart or not buffer.size or not other.size

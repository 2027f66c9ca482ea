"""The cpu device's lowering: programs written as text, compiled, linked and compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nest_running import host_target
from torch.nn import functional
from written_programs import Builder, Value, check, normal, tensor_type

from torchmdla.devices.cpu.lowering import lower
from torchmdla.devices.cpu.workspace import ALIGNMENT, Lifetime, plan
from torchmdla.errors import CompileError
from torchmdla.testing.compare import assert_matches

# Programs.

Case = Callable[[Builder], "list[Value]"]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def integers(low: int, high: int, *sizes: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes) + 2)
    return torch.randint(low, high, sizes, generator=generator).to(dtype)


def special() -> torch.Tensor:
    inf, nan = float("inf"), float("nan")
    return torch.tensor([nan, 0.0, -0.0, 1.0, -1.0, inf, -inf, 1e-40, 2.0, -3.0] * 7)


@case
def elementwise(b: Builder) -> list[Value]:
    x, y = b.input(normal(3, 5, 67)), b.input(normal(5, 1))
    total = b.op("aten.add.Tensor", [x, y, 2], torch.add(x.tensor, y.tensor, alpha=2))
    product = b.op("aten.mul.Tensor", [total, x], total.tensor * x.tensor)
    return [b.op("aten.tanh", [product], torch.tanh(product.tensor))]


@case
def zero_dimensions(b: Builder) -> list[Value]:
    x, y = b.input(normal()), b.input(normal(5))
    return [
        b.op("aten.exp", [x], torch.exp(x.tensor)),
        b.op("aten.mul.Tensor", [x, y], x.tensor * y.tensor),
        b.op("aten.sum", [y, None], y.tensor.sum()),
    ]


@case
def empty_tensors(b: Builder) -> list[Value]:
    x = b.input(normal(0, 4))
    return [
        b.op("aten.relu", [x], x.tensor.relu()),
        b.op("aten.sum.dim_IntList", [x, [0], False, None], x.tensor.sum(0)),
    ]


@case
def scalar_argument(b: Builder) -> list[Value]:
    x, s = b.input(normal(4, 9)), b.input(0.375)
    y = b.op("aten.mul.Scalar", [x, s], x.tensor * 0.375)
    return [y, b.op("aten.add.Scalar", [y, s, 1], y.tensor + 0.375)]


@case
def same_value_twice_and_an_argument(b: Builder) -> list[Value]:
    x = b.input(normal(2, 3))
    y = b.op("aten.neg", [x], -x.tensor)
    return [y, x, y]


@case
def matrix_products(b: Builder) -> list[Value]:
    x, y, z = b.input(normal(37, 65)), b.input(normal(65, 50)), b.input(normal(3, 50, 19))
    xy = b.op("aten.mm", [x, y], x.tensor @ y.tensor)
    batch = b.op("aten.unsqueeze", [xy, 0], xy.tensor.unsqueeze(0))
    wide = b.op("aten.expand", [batch, [3, 37, 50], False], batch.tensor.expand(3, 37, 50))
    return [xy, b.op("aten.bmm", [wide, z], torch.bmm(wide.tensor, z.tensor))]


@case
def linear_layers(b: Builder) -> list[Value]:
    x, w, c = b.input(normal(2, 7, 65)), b.input(normal(50, 65), "parameter"), b.input(normal(50), "parameter")
    y = b.op("aten.linear", [x, w, c], functional.linear(x.tensor, w.tensor, c.tensor))
    y = b.op("aten.gelu", [y, b._constant("str", '"none"', "!torch.str")], functional.gelu(y.tensor))
    v = b.input(normal(9, 50), "parameter")
    return [b.op("aten.linear", [y, v, None], functional.linear(y.tensor, v.tensor))]


def convolution(b: Builder, sizes: Sequence[int], weight: Sequence[int], **options: int) -> list[Value]:
    stride, padding = options.get("stride", 1), options.get("padding", 0)
    dilation, groups = options.get("dilation", 1), options.get("groups", 1)
    x, w = b.input(normal(*sizes)), b.input(normal(*weight), "parameter")
    c = b.input(normal(weight[0]), "parameter")
    expected = functional.conv2d(x.tensor, w.tensor, c.tensor, stride, padding, dilation, groups)
    operands = [x, w, c, [stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], groups]
    return [b.op("aten.convolution", operands, expected)]


@case
def convolution_padded(b: Builder) -> list[Value]:
    return convolution(b, (2, 3, 13, 37), (10, 3, 3, 3), padding=1)


@case
def convolution_strided(b: Builder) -> list[Value]:
    return convolution(b, (1, 4, 17, 70), (6, 4, 3, 3), padding=1, stride=2)


@case
def convolution_grouped(b: Builder) -> list[Value]:
    return convolution(b, (2, 4, 9, 11), (6, 2, 3, 3), padding=1, groups=2)


@case
def convolution_depthwise(b: Builder) -> list[Value]:
    return convolution(b, (2, 6, 9, 35), (6, 1, 3, 3), padding=1, groups=6, stride=2)


@case
def convolution_dilated(b: Builder) -> list[Value]:
    return convolution(b, (1, 3, 12, 12), (5, 3, 3, 3), padding=2, dilation=2)


@case
def convolution_pointwise(b: Builder) -> list[Value]:
    return convolution(b, (1, 16, 7, 7), (24, 16, 1, 1))


@case
def pooling(b: Builder) -> list[Value]:
    x = b.input(normal(1, 3, 17, 39))
    largest = functional.max_pool2d(x.tensor, 3, 2, 1)
    mean = functional.avg_pool2d(x.tensor, 2)
    return [
        b.op("aten.max_pool2d", [x, [3, 3], [2, 2], [1, 1], [1, 1], False], largest),
        b.op("aten.avg_pool2d", [x, [2, 2], [2, 2], [0, 0], False, True, None], mean),
    ]


@case
def softmax(b: Builder) -> list[Value]:
    x = b.input(normal(5, 77, 3))
    last = b.op("aten.softmax.int", [x, -1, None], x.tensor.softmax(-1))
    return [last, b.op("aten.log_softmax.int", [x, 1, None], x.tensor.log_softmax(1))]


@case
def layer_norm(b: Builder) -> list[Value]:
    x, w, c = b.input(normal(5, 77)), b.input(normal(77)), b.input(normal(77))
    expected = functional.layer_norm(x.tensor, (77,), w.tensor, c.tensor)
    return [b.op("aten.layer_norm", [x, [77], w, c, 1e-5, True], expected)]


@case
def batch_norm(b: Builder) -> list[Value]:
    x, w, c = b.input(normal(2, 6, 5, 5)), b.input(normal(6)), b.input(normal(6))
    mean, var = b.input(normal(6), "parameter"), b.input(normal(6).abs() + 0.5, "parameter")
    expected = functional.batch_norm(x.tensor, mean.tensor, var.tensor, w.tensor, c.tensor)
    return [b.op("aten.batch_norm", [x, w, c, mean, var, False, 0.1, 1e-5, True], expected)]


@case
def concatenation(b: Builder) -> list[Value]:
    x, y = b.input(normal(2, 3, 5)), b.input(normal(2, 4, 5))
    both = b.raw("prim.ListConstruct", [x, y], "!torch.list<vtensor>")
    joined = b.op("aten.cat", [both, 1], torch.cat([x.tensor, y.tensor], 1))
    return [b.op("aten.slice.Tensor", [joined, 1, 1, 7, 2], joined.tensor[:, 1:7:2])]


@case
def repetition(b: Builder) -> list[Value]:
    """Build an expanded sum. It is computed once, not at its first use in the expanded result."""
    x, y = b.input(normal(2, 3, 8, 5)), b.input(normal(2, 3, 8, 5))

    def total(value: Value) -> Value:
        return b.op("aten.sum.dim_IntList", [value, [1, 2], True, None], value.tensor.sum((1, 2), keepdim=True))

    scaled = b.op("aten.mul.Tensor", [total(x), y], x.tensor.sum((1, 2), keepdim=True) * y.tensor)
    both = total(b.op("aten.mul.Tensor", [x, y], x.tensor * y.tensor))
    repeated = b.op("aten.expand", [both, [2, 3, 8, 5], False], both.tensor.expand(2, 3, 8, 5))
    return [b.op("aten.add.Tensor", [scaled, repeated, 1], scaled.tensor + repeated.tensor)]


@case
def slices_of_a_parameter(b: Builder) -> list[Value]:
    """Build products with slices of a parameter.

    Bufferisation creates the slices one after the other in the same buffer, which tables read. One pack cannot hold
    both.
    """
    w, x = b.input(normal(3, 4, 2, 2), "parameter"), b.input(normal(3, 4, 2))

    def product(index: int) -> Value:
        part = w.tensor[..., index : index + 1]
        sliced = b.op("aten.slice.Tensor", [w, 3, index, index + 1, 1], part)
        moved = b.op("aten.permute", [sliced, [0, 3, 1, 2]], part.permute(0, 3, 1, 2))
        plain = b.op("aten.view", [moved, [3, 4, 2]], moved.tensor.reshape(3, 4, 2))
        flipped = b.op("aten.flip", [plain, [2]], plain.tensor.flip([2]))
        return b.op("aten.mul.Tensor", [flipped, x], flipped.tensor * x.tensor)

    return [product(0), product(1)]


@case
def transposition(b: Builder) -> list[Value]:
    x = b.input(normal(2, 33, 45))
    return [b.op("aten.permute", [x, [0, 2, 1]], x.tensor.permute(0, 2, 1).contiguous())]


@case
def table_look_up(b: Builder) -> list[Value]:
    table, rows = b.input(normal(20, 33), "parameter"), b.input(integers(0, 20, 4, 5))
    embedded = b.op("aten.embedding", [table, rows, -1, False, False], functional.embedding(rows.tensor, table.tensor))
    columns = b.input(integers(0, 33, 20, 6))
    return [embedded, b.op("aten.gather", [table, 1, columns, False], table.tensor.gather(1, columns.tensor))]


@case
def booleans(b: Builder) -> list[Value]:
    x, y = b.input(normal(4, 37)), b.input(normal(4, 37))
    more = b.op("aten.gt.Tensor", [x, y], x.tensor > y.tensor)
    low = b.op("aten.lt.Scalar", [x, 0.5], x.tensor < 0.5)
    both = b.op("aten.logical_and", [more, low], more.tensor & low.tensor)
    chosen = b.op("aten.where.self", [both, x, y], torch.where(both.tensor, x.tensor, y.tensor))
    return [both, chosen, b.op("aten.any.dim", [both, 1, False], both.tensor.any(1))]


@case
def boolean_inputs(b: Builder) -> list[Value]:
    x, y = b.input(normal(70) > 0), b.input(normal(70, 1)[:, 0] > 0.3)
    return [b.op("aten.logical_xor", [x, y], x.tensor ^ y.tensor), b.op("aten.logical_not", [x], ~x.tensor)]


@case
def integer_arithmetic(b: Builder) -> list[Value]:
    x, y = b.input(integers(-50, 50, 4, 37)), b.input(integers(-50, 50, 37))
    product = b.op("aten.mul.Tensor", [x, y], x.tensor * y.tensor)
    quotient = torch.div(product.tensor, 7, rounding_mode="floor")
    mode = b._constant("str", '"floor"', "!torch.str")
    return [
        product,
        b.op("aten.div.Scalar_mode", [product, 7, mode], quotient),
        b.op("aten.remainder.Scalar", [x, 5], x.tensor % 5),
        b.op("aten.sum.dim_IntList", [x, [1], False, None], x.tensor.sum(1)),
    ]


@case
def small_integers(b: Builder) -> list[Value]:
    x, y = b.input(integers(-50, 50, 90, dtype=torch.int32)), b.input(integers(-9, 9, 90, dtype=torch.int8))
    return [
        b.op("aten.sub.Tensor", [x, x, 3], x.tensor - 3 * x.tensor),
        b.op("aten.add.Tensor", [y, y, 1], y.tensor + y.tensor),
    ]


@case
def double_precision(b: Builder) -> list[Value]:
    x = b.input(normal(4, 37, dtype=torch.float64))
    e = b.op("aten.exp", [x], x.tensor.exp())
    return [e, b.op("aten.sum.dim_IntList", [e, [1], True, None], e.tensor.sum(1, keepdim=True))]


@case
def half_precisions(b: Builder) -> list[Value]:
    x, y = b.input(normal(4, 37, dtype=torch.float16)), b.input(normal(4, 37, dtype=torch.bfloat16))
    return [b.op("aten.tanh", [x], x.tensor.tanh()), b.op("aten.mul.Tensor", [y, y], y.tensor * y.tensor)]


@case
def short_rows_of_half_precision(b: Builder) -> list[Value]:
    """Build short rows of half precision, shorter than a vector.

    Processors without instructions for these numbers convert them.
    """
    x, y = b.input(normal(4, 3)), b.input(normal(3, 6))
    half = b.input(normal(7, 5, dtype=torch.bfloat16))
    product = b.op("aten.mm", [x, y], x.tensor @ y.tensor)
    turned = b.op("aten.transpose.int", [half, 0, 1], half.tensor.mT)
    flipped = b.op("aten.flip", [half, [0, 1]], half.tensor.flip(0, 1))
    every_second = b.op("aten.slice.Tensor", [half, 1, 0, 5, 2], half.tensor[:, ::2])
    return [
        b.op("aten.to.dtype", [product, 15, False, False, None], product.tensor.bfloat16()),
        b.op("aten.to.dtype", [turned, 6, False, False, None], turned.tensor.float()),
        b.op("aten.to.dtype", [every_second, 6, False, False, None], every_second.tensor.float()),
        b.op("aten.clone", [turned, None], turned.tensor.clone()),
        b.op("aten.mul.Tensor", [flipped, half], flipped.tensor * half.tensor),
        b.op("aten.cat", [[half, half], 1], torch.cat([half.tensor] * 2, 1)),
    ]


@case
def conversions(b: Builder) -> list[Value]:
    x = b.input(normal(4, 37) * 10)
    codes = {3: torch.int32, 4: torch.int64, 7: torch.float64, 11: torch.bool}
    return [b.op("aten.to.dtype", [x, code, False, False, None], x.tensor.to(d)) for code, d in codes.items()]


@case
def reductions(b: Builder) -> list[Value]:
    x = b.input(normal(6, 41, 5))
    return [
        b.op("aten.mean.dim", [x, [0, 2], False, None], x.tensor.mean((0, 2))),
        b.op("aten.amax", [x, [1], False], x.tensor.amax(1)),
        b.op("aten.argmax", [x, 1, False], x.tensor.argmax(1)),
        b.op("aten.prod.dim_int", [x, 2, False, None], x.tensor.prod(2)),
        b.op("aten.var.dim", [x, [1], True, False], x.tensor.var(1)),
        b.op("aten.cumsum", [x, 1, None], x.tensor.cumsum(1)),
    ]


@case
def scan_and_sort(b: Builder) -> list[Value]:
    x = b.input(normal(3, 19))
    values, _ = x.tensor.sort(1)
    dim, descending = b.value(1), b.value(False)
    name = f"%{len(b.lines)}"
    index = tensor_type(torch.empty(3, 19, dtype=torch.int64))
    b.lines.append(
        f'{name}:2 = "torch.aten.sort"({x.name}, {dim.name}, {descending.name}) : '
        f"({x.type}, !torch.int, !torch.bool) -> ({x.type}, {index})"
    )
    return [Value(f"{name}#0", x.type, values)]


@case
def special_values(b: Builder) -> list[Value]:
    x, y = b.input(special()), b.input(special().flip(0))
    unary = ("relu", "log", "sqrt", "rsqrt", "exp", "sigmoid", "tanh", "abs", "floor", "isnan")
    results = [b.op(f"aten.{name}", [x], getattr(torch, name)(x.tensor)) for name in unary]
    results.append(b.op("aten.clamp", [x, -1.0, 1.0], x.tensor.clamp(-1, 1)))
    binary = ("maximum", "minimum", "atan2")
    results += [b.op(f"aten.{name}", [x, y], getattr(torch, name)(x.tensor, y.tensor)) for name in binary]
    results.append(b.op("aten.amax", [x, [0], False], x.tensor.amax(0)))
    results.append(b.op("aten.eq.Tensor", [x, y], x.tensor == y.tensor))
    return results


@case
def library_functions(b: Builder) -> list[Value]:
    x = b.input(normal(70).abs() * 0.9 + 0.05)
    names = ("sin", "cos", "tan", "atan", "sinh", "cosh", "erf", "log1p", "expm1", "log2", "log10", "exp2")
    results = [b.op(f"aten.{name}", [x], getattr(torch, name)(x.tensor)) for name in names]
    results.append(b.op("aten.pow.Tensor_Scalar", [x, 3], x.tensor**3))
    results.append(b.op("aten.pow.Tensor_Scalar", [x, 9], x.tensor**9))
    results.append(b.op("aten.pow.Tensor_Tensor", [x, x], x.tensor**x.tensor))
    return results


@case
def literals(b: Builder) -> list[Value]:
    x = b.input(normal(2, 3))
    constant = torch.tensor([[1.0, 2.5, -3.0]])
    name = f"%{len(b.lines)}"
    kind = tensor_type(constant)
    b.lines.append(
        f'{name} = "torch.vtensor.literal"() {{value = dense<[[1.0, 2.5, -3.0]]> : tensor<1x3xf32>}} : () -> {kind}'
    )
    literal = Value(name, kind, constant)
    mask = Value(f"%{len(b.lines)}", "!torch.vtensor<[3],i1>", torch.tensor([True, False, True]))
    dense = "dense<[true, false, true]> : tensor<3xi1>"
    b.lines.append(f'{mask.name} = "torch.vtensor.literal"() {{value = {dense}}} : () -> {mask.type}')
    flipped = b.op("aten.flip", [literal, [1]], constant.flip(1))
    return [
        b.op("aten.mul.Tensor", [x, literal], x.tensor * constant),
        b.op("aten.add.Tensor", [x, flipped, 1], x.tensor + flipped.tensor),
        b.op("aten.where.self", [mask, x, literal], torch.where(mask.tensor, x.tensor, constant)),
    ]


@case
def constant_result(b: Builder) -> list[Value]:
    name = f"%{len(b.lines)}"
    b.lines.append(
        f'{name} = "torch.vtensor.literal"() {{value = dense<1.5> : tensor<f32>}} : () -> !torch.vtensor<[],f32>'
    )
    return [Value(name, "!torch.vtensor<[],f32>", torch.tensor(1.5))]


@case
def resampling(b: Builder) -> list[Value]:
    """Build a resampling, which reads a computed tensor at computed indices."""
    x = b.input(normal(2, 3, 5, 7))
    expected = functional.interpolate(x.tensor, size=(10, 21))
    return [b.op("aten.upsample_nearest2d", [x, [10, 21], None, None], expected)]


def attention(b: Builder, batch: int, length: int, heads: int, width: int) -> list[Value]:
    shape = (batch, length, heads * width)
    q, k, v = (b.input(normal(*shape) * scale) for scale in (1.0, 0.5, 2.0))

    def split(x: Value) -> Value:
        sizes = [batch, length, heads, width]
        parts = b.op("aten.view", [x, sizes], x.tensor.view(sizes))
        return b.op("aten.transpose.int", [parts, 1, 2], parts.tensor.transpose(1, 2))

    qs, ks, vs = split(q), split(k), split(v)
    kt = b.op("aten.transpose.int", [ks, 2, 3], ks.tensor.transpose(2, 3))
    scores = b.op("aten.matmul", [qs, kt], qs.tensor @ kt.tensor)
    scaled = b.op("aten.div.Scalar", [scores, float(width) ** 0.5], scores.tensor / width**0.5)
    weights = b.op("aten.softmax.int", [scaled, -1, None], scaled.tensor.softmax(-1))
    mixed = b.op("aten.matmul", [weights, vs], weights.tensor @ vs.tensor)
    return [b.op("aten.transpose.int", [mixed, 1, 2], mixed.tensor.transpose(1, 2).contiguous())]


@case
def self_attention(b: Builder) -> list[Value]:
    return attention(b, 2, 21, 3, 16)


TARGETS = {
    "host": host_target(),
    "avx2": host_target("+avx2", "+fma"),
    "no vectors named": host_target(""),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_eager(name: str) -> None:
    builder = Builder()
    check(builder, CASES[name](builder))


@pytest.mark.parametrize("target", [name for name in TARGETS if name != "host"])
@pytest.mark.parametrize(
    "name",
    [
        *("elementwise", "matrix_products", "linear_layers", "convolution_strided", "softmax", "reductions"),
        *("booleans", "half_precisions", "short_rows_of_half_precision"),
    ],
)
def test_equals_eager_with_narrow_vectors(name: str, target: str) -> None:
    builder = Builder()
    check(builder, CASES[name](builder), TARGETS[target])


@pytest.mark.parametrize("sizes", [(300, 1000), (1 << 19,), (3, 100_003)])
def test_large_work_is_shared_and_chunks_may_run_in_any_order(sizes: tuple[int, ...]) -> None:
    builder = Builder()
    x = builder.input(normal(*sizes))
    y = builder.op("aten.exp", [x], x.tensor.exp())
    executable = check(builder, [builder.op("aten.mul.Tensor", [y, x], y.tensor * x.tensor)])
    assert executable.pool.chunks > 1


def test_large_convolutions_are_shared() -> None:
    builder = Builder()
    results = convolution(builder, (1, 32, 30, 50), (30, 32, 3, 3), padding=1)
    assert check(builder, results).pool.chunks > 1


def test_large_products_with_sizes_that_no_tile_divides_are_shared() -> None:
    builder = Builder()
    x, y = builder.input(normal(197, 131)), builder.input(normal(131, 211))
    assert check(builder, [builder.op("aten.mm", [x, y], x.tensor @ y.tensor)]).pool.chunks > 1


def test_small_work_is_not_shared() -> None:
    builder = Builder()
    x = builder.input(normal(8, 8))
    assert check(builder, [builder.op("aten.exp", [x], x.tensor.exp())]).pool.chunks == 0


def test_equal_kernels_are_compiled_once() -> None:
    builder = Builder()
    x = builder.input(normal(9, 16))
    results = []
    for _ in range(5):
        w = builder.input(normal(16, 16) / 4, "parameter")
        x = builder.op("aten.mm", [x, w], x.tensor @ w.tensor)
        results.append(x)
    statistics = check(builder, results).manifest.statistics
    assert statistics["kernels"] >= 2 * statistics["distinct_kernels"]


def test_reuses_workspace() -> None:
    """Check the size of the workspace. A chain of matrix products needs two intermediates at a time."""
    builder = Builder()
    x = builder.input(normal(64, 64))
    w = builder.input(normal(64, 64) / 8, "parameter")
    for _ in range(8):
        x = builder.op("aten.mm", [x, w], x.tensor @ w.tensor)
    assert check(builder, [x]).manifest.workspace_bytes <= 3 * 64 * 64 * 4


def test_an_index_out_of_bounds_is_a_status() -> None:
    builder = Builder()
    table, rows = builder.input(normal(20, 33)), builder.input(torch.tensor([3, 19, 0]))
    operands = [table, rows, -1, False, False]
    result = builder.op("aten.embedding", operands, functional.embedding(rows.tensor, table.tensor))
    executable = check(builder, [result])
    for wrong in (20, -1, 1 << 40):
        status, _ = executable([table.tensor, torch.tensor([3, wrong, 0])])
        assert status != 0
    status, results = executable(builder.values)
    assert status == 0
    assert_matches(results[0], result.tensor)


def test_does_the_same_on_every_call() -> None:
    builder = Builder()
    executable = check(builder, self_attention(builder))
    first, second = executable(builder.values)[1], executable(builder.values)[1]
    assert torch.equal(first[0], second[0])


def test_the_artifact_is_a_function_of_the_program() -> None:
    programs = []
    for _ in range(2):
        builder = Builder()
        programs.append(builder.program(softmax(builder), host_target()))
    first, second = lower(programs[0]), lower(programs[1])
    assert first.object_code == second.object_code
    assert first.manifest.program == programs[0].key


def test_an_op_that_the_dialect_does_not_have_is_named() -> None:
    builder = Builder()
    x = builder.input(normal(3, 3))
    result = builder.op("aten.no_such_op", [x], x.tensor)
    with pytest.raises(CompileError) as caught:
        lower(builder.program([result], host_target()))
    assert caught.value.op == "aten::no_such_op"
    assert caught.value.diagnostic


def test_an_integer_power_is_refused_by_name() -> None:
    builder = Builder()
    x = builder.input(integers(-5, 5, 7))
    result = builder.op("aten.pow.Tensor_Scalar", [x, 2], x.tensor**2)
    with pytest.raises(CompileError) as caught:
        lower(builder.program([result], host_target()))
    assert caught.value.op == "aten::pow.Tensor_Scalar"
    assert caught.value.source.startswith("model.py:")


def test_unsigned_bytes_are_refused() -> None:
    builder = Builder()
    x = builder.input(integers(0, 9, 7).to(torch.uint8))
    result = builder.op("aten.add.Tensor", [x, x, 1], x.tensor + x.tensor)
    with pytest.raises(CompileError, match="ui8"):
        lower(builder.program([result], host_target()))


def test_code_does_not_depend_on_earlier_compiles() -> None:
    """Check that earlier compiles do not change the code.

    The programs of a thread share an MLIR context, also after failures. Another thread has a separate context.
    """

    def code(name: str) -> bytes:
        builder = Builder()
        return lower(builder.program(CASES[name](builder), host_target())).object_code

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

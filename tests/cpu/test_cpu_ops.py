"""Operators of the cpu device: every listed operator computes the same values as eager."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from itertools import chain, islice, repeat
from typing import Any

import pytest
import torch
from child_process import run_python
from executing import FailedCallError, execute
from single_op import Call, graph_of, graph_of_calls, schemas
from torch.utils._pytree import tree_leaves, tree_map_only

import torchmdla
from torchmdla.devices.cpu.target.ops import OPS, QUANTISED_TENSORS
from torchmdla.errors import CompileError
from torchmdla.importer import import_graph
from torchmdla.importer.interpreter import run_and_record
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.op_samples import INTS, SAMPLES, X, Y

# Graph text cannot name the first two: chunks have attributes, and the script compiler prefers another overload for a
# list. tests/group/test_quantised.py tests the operators of quantised tensors. tests/fx/test_torchao.py tests those of
# torchao, which registers its operators when it is imported.
OF_TORCHAO = {name for name in OPS if name.startswith("torchao::")}
WITHOUT_SAMPLE = {"prim::ConstantChunk", "aten::split", *QUANTISED_TENSORS, *OF_TORCHAO}
COMPUTING = [
    name for name, support in OPS.items() if support.kind not in ("shape", "item") and name not in WITHOUT_SAMPLE
]


def converted(values: Any, dtype: torch.dtype, source: torch.dtype = torch.float32) -> Any:
    """Return tensors of dtype ``source`` as ``dtype``. Integers are three times as large, so that not all are 0."""
    factor = 3 if source == torch.float32 and dtype in (torch.int64, torch.int32) else 1
    return mapped(lambda value: (value * factor).to(dtype) if value.dtype == source else value, values)


def mapped(change: Callable[[torch.Tensor], Any], values: Any) -> Any:
    """Return ``values`` with ``change`` applied to every tensor."""
    return tree_map_only(torch.Tensor, change, values)


# Tensors, or None for a result that the operator does not return.
Pair = tuple[list[Any], list[Any]]


def results_of(calls: Sequence[Call], *, runtime_floats: bool = False) -> list[Pair]:
    """Return the results of calls that are compiled as one program, and of eager: one pair for each call."""
    graph, inputs, counts = graph_of_calls(
        calls, copy=lambda name: OPS[name].kind == "view", runtime_floats=runtime_floats
    )
    expected, record = run_and_record(graph, inputs)
    computed = execute(import_graph(graph, record, ()), graph, inputs)
    assert len(computed) == len(expected)
    compiled, wanted = iter(computed), iter(expected)
    return [(list(islice(compiled, count)), list(islice(wanted, count))) for count in counts]


def check(name: str, arguments: Sequence[object]) -> None:
    check_all([Call(name, arguments)])


Comparison = Callable[[Any, Any, Call], None]


def check_match(result: Any, wanted: Any, call: Call) -> None:
    assert_matches(result, wanted)


def check_all(calls: Sequence[Call], compare: Comparison = check_match, *, runtime_floats: bool = False) -> None:
    """Compare calls with eager by ``compare``, compiled as one program.

    One program of many calls compiles almost as fast as one of a single call. If the comparison fails, each call is
    compiled alone, so that the error names the call.
    """
    try:
        pairs = results_of(calls, runtime_floats=runtime_floats) if calls else []
        for call, (computed, wanted) in zip(calls, pairs, strict=True):
            for result, expected in zip(computed, wanted, strict=True):
                compare(result, expected, call)
    except Exception:
        if len(calls) > 1:
            for call in calls:
                check_all([call], compare, runtime_floats=runtime_floats)
        raise


def eager_takes(name: str, arguments: Sequence[object], *, runtime_floats: bool = False) -> bool:
    try:
        run_and_record(*graph_of(name, arguments, copy=False, runtime_floats=runtime_floats))
    except (RuntimeError, IndexError, AssertionError):
        return False
    return True


def test_names_are_the_registrys() -> None:
    assert set(OPS) - OF_TORCHAO <= set(schemas())


def test_conditions_name_arguments() -> None:
    for name, support in OPS.items():
        if name in OF_TORCHAO:
            continue
        assert set(support.where) <= {argument.name for argument in schemas()[name].arguments}


OUT_OF_BOUNDS = {
    "put": ("aten::index_put", lambda i: (X, [i], torch.ones(2, 4))),
    "put_back": ("aten::index_put", lambda i: (X, [-i], torch.ones(2, 4), True)),
    "put_in_columns": ("aten::index_put", lambda i: (X, [None, i], torch.ones(3, 2))),
    "scatter": ("aten::scatter.src", lambda i: (X, 0, i.unsqueeze(1), torch.ones(2, 1))),
    "scatter_value": ("aten::scatter.value", lambda i: (X, 1, i.unsqueeze(0), 2)),
    "scatter_back": ("aten::scatter.value", lambda i: (X, 1, torch.where(i > 2, -1, i).unsqueeze(0), 2)),
}


@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
def test_writes_stay_within_bounds(name: str) -> None:
    """Check that the call fails. Eager raises an error for it."""
    op, arguments = OUT_OF_BOUNDS[name]
    graph, inputs = graph_of(op, arguments(torch.tensor([0, 2])), copy=False)
    imported = import_graph(graph, run_and_record(graph, inputs)[1], ())
    wrong, out_of_range = graph_of(op, arguments(torch.tensor([0, 4])), copy=False)
    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        run_and_record(wrong, out_of_range)
    with pytest.raises(FailedCallError):
        execute(imported, graph, out_of_range)


@pytest.mark.parametrize("name", COMPUTING)
@pytest.mark.sampled(120)
def test_single_precision(name: str) -> None:
    check_all([Call(name, arguments) for arguments in SAMPLES[name]])


# These are refused before they run; see ops.py.
REFUSED = {
    ("aten::pow.Tensor_Tensor", torch.int64),
    ("aten::pow.Tensor_Tensor", torch.int32),
    ("aten::mse_loss_backward", torch.int64),
    ("aten::mse_loss_backward", torch.int32),
    ("aten::max_pool3d", torch.int64),
    ("aten::max_pool3d", torch.int32),
    *((f"aten::{name}", torch.bool) for name in ("index_add", "scatter_add", "scatter_reduce.two")),
}


OTHER_DTYPES = (torch.float64, torch.int64, torch.int32, torch.bool)


def has_floats(arguments: Sequence[object]) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float32 for leaf in tree_leaves(arguments))


@pytest.mark.parametrize("name", [name for name in COMPUTING if any(map(has_floats, SAMPLES[name]))])
@pytest.mark.sampled(30)
def test_other_dtypes(name: str) -> None:
    """Check that calls that eager supports compile and are correct. The few exceptions are refused before they run."""
    calls = []
    for dtype in OTHER_DTYPES:
        for sample in filter(has_floats, SAMPLES[name]):
            arguments = converted(sample, dtype)
            if not eager_takes(name, arguments):
                continue
            if (name, dtype) in REFUSED:
                with pytest.raises(CompileError):
                    check(name, arguments)
            else:
                calls.append(Call(name, arguments))
    check_all(calls)


@pytest.mark.parametrize("name", ["embedding", "index_select", "gather", "index.Tensor", "take_along_dim"])
def test_int32_indices(name: str) -> None:
    calls = [Call(f"aten::{name}", converted(sample, torch.int32, torch.int64)) for sample in SAMPLES[f"aten::{name}"]]
    taken = [call for call in calls if eager_takes(*call)]
    check_all(taken)
    assert taken or name in ("gather", "take_along_dim")


def memory_transposed(value: torch.Tensor) -> torch.Tensor:
    return value.transpose(0, -1).contiguous().transpose(0, -1) if value.dim() > 1 else value


def strided(value: torch.Tensor) -> torch.Tensor:
    return torch.stack([value, value], -1)[..., 1] if value.dim() else value


def channels_last(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value


# Their results keep the gaps that the first argument has in memory. The layout is not dense.
KEEP_GAPS = ("aten::select_scatter", "aten::slice_scatter", "aten::copy")

# Eager's kernel reads adjacent elements of each row, whatever the strides. Its callers check these.
ADJACENT = [name for name in COMPUTING if "flash_attention" in name]


@pytest.mark.parametrize("name", [name for name in COMPUTING if name not in ADJACENT])
@pytest.mark.sampled(30)
def test_strides(name: str) -> None:
    calls = []
    for change in (memory_transposed, strided, channels_last):
        arguments = mapped(change, SAMPLES[name][0])
        if mapped(torch.Tensor.stride, arguments) == mapped(torch.Tensor.stride, SAMPLES[name][0]):
            continue
        graph, inputs = graph_of(name, arguments, copy=True)
        try:
            run_and_record(graph, inputs)
        except RuntimeError:
            continue  # eager refuses these strides, as view does
        if name in KEEP_GAPS and change is strided:
            with pytest.raises(CompileError, match="strides"):
                check(name, arguments)
        else:
            calls.append(Call(name, arguments))
    check_all(calls)


def resized(name: str, sizes: tuple[int, ...]) -> Sequence[object]:
    """Return the first sample of an operator with tensors of these sizes; others broadcast against the first one."""
    numbers = torch.linspace(0.1, 0.9, max(1, math.prod(sizes)))[: math.prod(sizes)].view(sizes)
    tensors = chain([numbers], repeat(numbers[..., :1] if sizes else numbers))

    def change(value: torch.Tensor) -> torch.Tensor:
        result = next(tensors)
        return result.to(value.dtype) if value.dtype != torch.bool else result > 0.5

    return mapped(change, SAMPLES[name][0])


@pytest.mark.parametrize("name", [name for name in COMPUTING if OPS[name].kind == "cheap"])
@pytest.mark.sampled(15)
def test_sizes(name: str) -> None:
    """Check 0-d, empty and broadcasting tensors, for every operator that eager supports with them."""
    all_arguments = [resized(name, sizes) for sizes in [(), (0,), (2, 0, 3), (1,), (5, 1, 3)]]
    check_all([Call(name, arguments) for arguments in all_arguments if eager_takes(name, arguments)])


COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
MASK9 = torch.arange(9) % 2 == 0

# Operators with a number, as a function of a tensor of nine elements and the number. Results are bitwise equal to
# eager's.
WITH_NUMBER: dict[str, Callable[[torch.Tensor, float], tuple[object, ...]]] = {
    **{
        f"aten::{name}.Scalar": lambda x, number: (x, number)
        for name in [*COMPARISONS, "add", "sub", "mul", "div", "rsub", "remainder", "floor_divide"]
    },
    "aten::div.Scalar_mode": lambda x, number: (x, number, "trunc"),
    "aten::threshold": lambda x, number: (x, number, 0.3),
    "aten::threshold_backward": lambda x, number: (x, x, number),
    "aten::hardtanh": lambda x, number: (x, -number, number),
    "aten::hardtanh_backward": lambda x, number: (x, x, -number, number),
    "aten::hardshrink": lambda x, number: (x, number),
    "aten::softshrink": lambda x, number: (x, number),
    "aten::clamp": lambda x, number: (x, -number, number),
    "aten::clamp_min": lambda x, number: (x, number),
    "aten::clamp_max": lambda x, number: (x, number),
    "aten::where.Scalar": lambda x, number: (MASK9, number, 0.7),
    "aten::where.ScalarSelf": lambda x, number: (MASK9, number, x),
    "aten::where.ScalarOther": lambda x, number: (MASK9, x, number),
    "aten::masked_fill.Scalar": lambda x, number: (x, MASK9, number),
    "aten::full_like": lambda x, number: (x, number),
    "aten::new_full": lambda x, number: (x, [2], number),
    "aten::nan_to_num": lambda x, number: (x, number, number, number),
    "aten::constant_pad_nd": lambda x, number: (x, [1, 1], number),
    "aten::leaky_relu": lambda x, number: (x, number),
    "aten::prelu": lambda x, number: (x, torch.tensor([number], dtype=x.dtype)),
}

# Operators that round intermediate results. They are compared within the tolerance.
WITH_NUMBER_ROUNDED: dict[str, Callable[[torch.Tensor, float], tuple[object, ...]]] = {
    "aten::add.Tensor": lambda x, number: (x, x.flip(0), number),
    "aten::sub.Tensor": lambda x, number: (x, x.flip(0), number),
    "aten::lerp.Scalar": lambda x, number: (x, x.flip(0), number),
    "aten::addcmul": lambda x, number: (x, x, x, number),
    "aten::addcdiv": lambda x, number: (x, x, x + 1, number),
    "aten::pow.Tensor_Scalar": lambda x, number: (x.abs(), number),
    "aten::pow.Scalar": lambda x, number: (number, x),
    "aten::elu": lambda x, number: (x, number, number, number),
    "aten::celu": lambda x, number: (x, number),
    "aten::softplus": lambda x, number: (x, number, number),
    "aten::logit": lambda x, number: (x, number),
}
NUMBERS = {**WITH_NUMBER, **WITH_NUMBER_ROUNDED}


def around(number: float, dtype: torch.dtype) -> torch.Tensor:
    """Return the number, its negative, the neighbours of both, 0, and two more values."""
    if not dtype.is_floating_point:
        return torch.tensor([0, 1, -1, 2, -2, 5, -7, 16777217, 9], dtype=dtype)
    here, infinity = torch.tensor(number, dtype=dtype), torch.tensor(math.inf, dtype=dtype)
    up, down = torch.nextafter(here, infinity), torch.nextafter(here, -infinity)
    return torch.stack([here, up, down, -here, -up, -down, here * 0, here * 3, here * -7])


def check_number(result: Any, wanted: Any, call: Call) -> None:
    assert_matches(result, wanted)
    assert call.name in WITH_NUMBER_ROUNDED or torch.equal(result, wanted)


@pytest.mark.parametrize("runtime_floats", [False, True], ids=["constant", "argument"])
@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.sampled(8)
def test_numbers(name: str, runtime_floats: bool) -> None:
    """Check that a number is rounded to the tensor's dtype, as a constant and as a run-time value."""
    calls = []
    for dtype in (torch.float32, torch.float64, torch.int64):
        for number in (0.1, 0.7, 1.3):
            arguments = NUMBERS[name](around(number, dtype), number)
            if not eager_takes(name, arguments):
                continue
            if runtime_floats and not dtype.is_floating_point and name.startswith(("aten::threshold", "aten::addcmul")):
                with pytest.raises(CompileError):
                    results_of([Call(name, arguments)], runtime_floats=True)
            else:
                calls.append(Call(name, arguments))
    check_all(calls, check_number, runtime_floats=runtime_floats)


WITHOUT = {
    "rms_norm": [(X * 1e-4, [4], None, None), (X.double() * 1e-8, [4], None, None), (X * 0, [4], None, None)],
    "logit": [(X, None)],
    "nan_to_num": [(torch.tensor([math.nan, math.inf, -math.inf, 1.0]), *rest) for rest in [(None,) * 3, (1.5, None)]],
    "clamp": [(X, None, 0.1), (X, 0.1, None)],
    "div.Tensor_mode": [(X, Y, None)],
    "var.correction": [(X, None, None), (X, [0], None)],
    "std.correction": [(X, None, None)],
    "var_mean.correction": [(X, [1], None, True)],
    **{name: [(X, None), (X, None, True)] for name in ("argmax", "argmin", "mean.dim", "sum.dim_IntList")},
    "any.dims": [(X > 0, None)],
    "aminmax": [(X,), (X, 1, True)],
    "count_nonzero": [(X, None)],
    "norm.ScalarOpt_dim": [(X, None, [1])],
    "linalg_vector_norm": [(X, 3, None)],
    "take_along_dim": [(X, INTS[:, :1], None)],
    "repeat_interleave.self_int": [(X, 2, None)],
    "slice_scatter": [(X, torch.ones(3, 4), 0, None, None)],
    "pad": [(X, [1, 1], "constant", None)],
    "scaled_dot_product_attention": [(X.view(1, 3, 4), X.view(1, 3, 4), X.view(1, 3, 4), None, 0.0, False, None)],
    "upsample_nearest2d": [(torch.randn(1, 2, 3, 4), [5, 7], None, None)],
    "upsample_bilinear2d": [(torch.randn(1, 2, 3, 4), [5, 7], False, None, 0.5)],
    "upsample_nearest2d.vec": [(torch.randn(1, 2, 3, 4), None, [1.5, 2.0]), (torch.randn(1, 2, 3, 4), [5, 7], None)],
}


@pytest.mark.parametrize("name", WITHOUT)
def test_arguments_that_are_none(name: str) -> None:
    check_all([Call(f"aten::{name}", arguments) for arguments in WITHOUT[name]])


def mask_changed_by(shape: Sequence[int], hidden: Callable[[torch.Tensor], object]) -> torch.Tensor:
    """Return a mask of zeros that ``hidden`` has changed in place."""
    mask = torch.zeros(shape)
    hidden(mask)
    return mask


HIDDEN: dict[str, Callable[[torch.Tensor], object]] = {
    "a row": lambda mask: mask[..., 2, :].fill_(-math.inf),
    "all": lambda mask: mask.fill_(-math.inf),
    "a sample": lambda mask: mask[-1].fill_(-math.inf),
    "a row, and NaN": lambda mask: mask[..., 1:3, :].fill_(-math.inf)[..., 1, 1].fill_(math.nan),
}


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("shape", [(1, 2, 5, 4), (2, 4, 16, 8), (2, 3, 33, 16), (6, 5, 4)], ids=str)
def test_attention_to_nothing_is_zero(shape: tuple[int, ...], hidden: str) -> None:
    query = torch.linspace(0, 50, math.prod(shape)).sin().view(shape)
    rows, calls = shape[-2], []
    for sizes in [(*shape[:-1], rows), (shape[0], *[1] * (len(shape) - 3), rows, rows)]:
        mask = mask_changed_by(sizes, HIDDEN[hidden])
        for variant in (mask, mask == 0, mask.double()):
            values = query.to(variant.dtype) if variant.dtype.is_floating_point else query
            calls.append(Call("aten::scaled_dot_product_attention", (values, values * 2, values, variant)))
    check_all(calls)


DTYPES = (torch.bool, torch.int32, torch.int64, torch.float32, torch.float64)
PROMOTING = ("add", "sub", "mul", "div", "remainder", "eq", "lt", "ge", "bitwise_and")


def promoting_calls(left: torch.Tensor, right: object) -> list[Call]:
    kind = "Tensor" if isinstance(right, torch.Tensor) else "Scalar"
    names = [f"aten::{name}.{kind}" for name in PROMOTING] + ["aten::floor_divide" + ".Scalar" * (kind == "Scalar")]
    calls = [Call(name, (left, right)) for name in names if name in OPS and eager_takes(name, (left, right))]
    if kind == "Scalar":
        return [*calls, Call("aten::where.ScalarOther", (torch.tensor(True), left, right))]
    calls += [Call(name, (left, right)) for name in ("aten::maximum", "aten::logical_and", "aten::atan2")]
    return [*calls, Call("aten::where.self", (torch.tensor(True), left, right))]


@pytest.mark.parametrize("left", DTYPES, ids=str)
@pytest.mark.parametrize("shapes", [((4,), (4,)), ((4,), ()), ((), (4,)), ((), ())], ids=str)
@pytest.mark.sampled(3)
def test_promotion(shapes: tuple[tuple[int, ...], tuple[int, ...]], left: torch.dtype) -> None:
    """Check pairs of tensors, and a tensor and a number, with values that the dtypes round differently."""
    value, other = (
        torch.tensor(numbers)[: math.prod(shape)].view(shape)
        for numbers, shape in zip(([3, 16777217, -5, 0], [2, 16777216, 3, -1]), shapes, strict=True)
    )
    rights = [3, 2.5, *(other.to(dtype) for dtype in DTYPES)]
    check_all([call for right in rights for call in promoting_calls(value.to(left), right)])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("name", ["floor_divide", "remainder.Tensor", "div.Tensor_mode", "fmod.Tensor"])
def test_division_of_integers(name: str, dtype: torch.dtype) -> None:
    """Check every pair of signs, and numbers that a double cannot represent."""
    large = torch.iinfo(dtype).max - 1
    values = torch.tensor([7, -7, 8, -8, large, -large], dtype=dtype).unsqueeze(1)
    divisors = torch.tensor([2, -2, 3, -3, 7], dtype=dtype)
    modes: list[tuple[object, ...]] = [("floor",), ("trunc",)] if name == "div.Tensor_mode" else [()]
    for mode in modes:
        check(f"aten::{name}", (values, divisors, *mode))
        with pytest.raises(RuntimeError, match="Zero"):
            run_and_record(*graph_of(f"aten::{name}", (values, divisors * 0, *mode), copy=False))
        graph, inputs = graph_of(f"aten::{name}", (values, divisors, *mode), copy=False)
        imported = import_graph(graph, run_and_record(graph, inputs)[1], ())
        with pytest.raises(FailedCallError):
            execute(imported, graph, [values, torch.tensor([2, 0, 3, -3, 7], dtype=dtype)])


def least_by_minus_one(dtype: torch.dtype) -> None:
    """Check vectors and single values. Eager itself ends the process if the quotient is rounded towards zero."""
    limits = torch.iinfo(dtype)
    values = torch.tensor([limits.min, limits.min + 1, limits.max, 7, -7, 0, limits.min] * 5, dtype=dtype)
    divisors = torch.tensor([-1, -1, -1, -1, -2, -1, 3] * 5, dtype=dtype)
    for name in ("floor_divide", "remainder.Tensor", "fmod.Tensor"):
        check(f"aten::{name}", (values, divisors))
        check(f"aten::{name}", (values, divisors[0]))
        check(f"aten::{name}", (values[0], divisors[0]))
    check("aten::div.Tensor_mode", (values, divisors, "floor"))
    for name in ("floor_divide", "remainder"):
        check(f"aten::{name}.Scalar", (values, -1))
    (((quotients,), _),) = results_of([Call("aten::div.Tensor_mode", (values[1:6], divisors[1:6], "trunc"))])
    assert quotients.tolist() == [limits.max, -limits.max, -7, 3, 0]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", ["aten::bitwise_left_shift.Tensor", "aten::bitwise_right_shift.Tensor"])
def test_shifts_beyond_the_width(name: str, dtype: torch.dtype) -> None:
    # Processors differ in such shifts, and one processor differs between vectors and single elements. All sizes are
    # tried.
    limits = torch.iinfo(dtype)
    negative = [-1, -5, limits.min] if dtype.is_signed else []
    values = torch.tensor([0, 1, 5, limits.max, *negative], dtype=dtype)
    counts = torch.tensor([0, 1, limits.bits - 1, limits.bits, limits.bits + 1, 100, *negative], dtype=dtype)
    single = [(value, count) for value in values[[3, -1]] for count in counts[[2, 3, 4, -1]]]
    check_all([Call(name, pair) for pair in [(values.unsqueeze(1), counts), *single]])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.sampled(0)
def test_the_least_integer_by_minus_one(dtype: str) -> None:
    """Check that the division wraps around. The processor's instruction would end the process."""
    code = f"import test_cpu_ops, torch; test_cpu_ops.least_by_minus_one(torch.{dtype})"
    done = run_python(code, PYTHONPATH=os.pathsep.join([os.path.dirname(__file__), *sys.path]))
    assert done.returncode == 0, done.stderr


SPECIAL = [
    *(math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -1e-45, -1e-38, 1e18, -1e18),
    *(1.0, -1.0, 0.5, -2.5, 9.5, -104.0, 3.0),
]

# Elements where eager's vector code returns NaN and its scalar code returns our result; see
# docs/design/values.md.
ARBITRARY: dict[str, Callable[..., torch.Tensor]] = {
    "aten::gelu": lambda x: x == math.inf,
    **dict.fromkeys(("aten::remainder.Tensor", "aten::fmod.Tensor"), lambda x, y: torch.isinf(x / y)),
}

# Operators whose sign of a zero depends, in eager, on the operand order, on the processor, or on the rounding.
EITHER_ZERO = frozenset(
    f"aten::{name}"
    for name in (
        *("maximum", "minimum", "max.other", "min.other", "clamp_min.Tensor", "clamp_max.Tensor", "lerp.Scalar"),
        "gelu",
    )
)


def spread(arguments: tuple[object, ...], values: torch.Tensor) -> tuple[object, ...]:
    """Return the arguments with float tensors replaced by ``values``. The first two contain every pair of values."""
    count = len(values)
    first = iter([values.view(count, 1).expand(count, count).contiguous()])
    others = values.expand(count, count).contiguous()
    return tuple(
        next(first, others) if isinstance(x, torch.Tensor) and x.dtype == torch.float32 else x for x in arguments
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", [name for name in COMPUTING if OPS[name].kind == "cheap"])
@pytest.mark.sampled(20)
def test_special_values(name: str, dtype: torch.dtype) -> None:
    """Check that NaN, infinities, zeros, subnormal and large numbers give eager's results, for each element."""
    arguments = spread(SAMPLES[name][0], torch.tensor(SPECIAL, dtype=dtype))
    if not eager_takes(name, arguments):
        return
    (((result,), (wanted,)),) = results_of([Call(name, arguments)])
    if name in ARBITRARY:
        compared = ~ARBITRARY[name](*(x for x in arguments if isinstance(x, torch.Tensor)))
        result, wanted = result[compared], wanted[compared]
    limits = torch.finfo(dtype)
    relative = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(result, wanted, rtol=relative, atol=4 * limits.tiny * limits.eps, equal_nan=True)
    if name not in EITHER_ZERO:
        zeros = (result == 0) & (wanted == 0)
        assert torch.equal(torch.signbit(result[zeros]), torch.signbit(wanted[zeros]))


def check_special_number(result: Any, wanted: Any, call: Call) -> None:
    torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-44, equal_nan=True)


@pytest.mark.parametrize("runtime_floats", [False, True], ids=["constant", "argument"])
@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.sampled(8)
def test_special_numbers(name: str, runtime_floats: bool) -> None:
    """Check that a choice between two values ignores the other value. A product with zero would not."""
    values = torch.tensor([2.0, -1.0, 0.0, -0.0, math.inf, -math.inf, 3.0, 1e-40, -20.5])
    calls = []
    for number in (0.0, math.inf, -math.inf, math.nan, -1.0, 1e-40):
        if name == "aten::hardtanh_backward" and math.isnan(number):
            continue  # eager's vector code and its scalar code differ
        if not runtime_floats and not math.isfinite(number):
            continue  # the text of a graph has no such constants
        arguments = NUMBERS[name](values, number)
        if eager_takes(name, arguments, runtime_floats=True):
            calls.append(Call(name, arguments))
    check_all(calls, check_special_number, runtime_floats=runtime_floats)


@pytest.mark.parametrize("numbers", [(0.0, -0.0), (-0.0, 0.0), (2, 2.0), (2.0, 2), (1, True), (True, 1.0)], ids=str)
@pytest.mark.parametrize("name", ["clamp", "clamp_min", "constant_pad_nd", "leaky_relu", "pow.Scalar", "rsub.Scalar"])
@pytest.mark.sampled(6)
def test_numbers_that_python_takes_for_equal(name: str, numbers: tuple[float, ...]) -> None:
    """Check that code of earlier programs is not reused for a program with an equal number of another type."""
    for value in (torch.tensor([2.0, -1.0, 0.0, -0.0, -20.5]), torch.tensor([2, -1, 0, 7, -20])):
        for number in numbers:
            call = Call(f"aten::{name}", NUMBERS[f"aten::{name}"](value, number))
            if name == "pow.Scalar" and (not value.is_floating_point() and isinstance(number, int)):
                continue  # refused
            if eager_takes(*call):
                check_all([call], check_sign)


def check_sign(result: Any, wanted: Any, call: Call) -> None:
    assert_matches(result, wanted)
    assert torch.equal(torch.signbit(result), torch.signbit(wanted))


ORDERED = (
    "amax amin max.dim min.dim argmax argmin aminmax sum sum.dim_IntList cumsum softmax.int log_softmax.int any all"
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", [*ORDERED.split(), "logsumexp", "adaptive_max_pool1d", "max_pool1d", "prod.dim_int"])
@pytest.mark.sampled(6)
def test_special_values_in_reductions(name: str, dtype: torch.dtype) -> None:
    rows = [
        [1.0, math.nan, 3.0, math.nan],
        [math.inf, 1.0, math.inf, 2.0],
        [-math.inf] * 4,
        [math.inf, -math.inf, 0.0, 1.0],
        [-0.0, 0.0, -0.0, 0.0],
        [1e-40, -1e-40, 1e-45, 0.0],
        [1e30, 88.7, -104.0, 1e30],
    ]
    values = torch.tensor(rows, dtype=dtype)
    shaped = values.expand(2, *values.shape) if "pool" in name else values
    check_all(
        [
            Call(f"aten::{name}", (shaped, *sample[1:]))
            for sample in SAMPLES[f"aten::{name}"]
            if sample[0].dim() != 4 and not any(isinstance(argument, torch.dtype) for argument in sample)
        ]
    )


OVER_ONE_DIMENSION = {
    **{f"{name}.int": [(0,), (-1,)] for name in ("softmax", "log_softmax")},
    **{name: [(0, False), (-1, True)] for name in ("prod.dim_int", "all.dim", "any.dim")},
    **{f"{name}.dim": [([0], False, False), ([-1], True, True)] for name in ("var", "std", "var_mean")},
    **{f"{name}.correction": [([0],), ([-1], 0, True)] for name in ("var", "std", "var_mean")},
    **{name: [(), (None, True), (0,), (-1, True)] for name in ("argmax", "argmin")},
    "count_nonzero": [(), (0,), (-1,)],
    "sum.dim_IntList": [([0],), ([-1], True), ([],)],
    "mean.dim": [([0],), ([-1], True), (None,)],
    "logsumexp": [([0],), ([-1], True)],
    "linalg_vector_norm": [(2, None), (1, [0], True), (math.inf, [-1])],
}


@pytest.mark.parametrize("value", [2.5, -math.inf, math.nan, True, 3], ids=str)
@pytest.mark.parametrize("name", OVER_ONE_DIMENSION)
@pytest.mark.sampled(10)
def test_along_a_dimension_of_a_0d_tensor(name: str, value: float) -> None:
    """Check that reductions of a 0-d tensor terminate. Upstream loops forever for softmax and crashes for variances."""
    calls = [Call(f"aten::{name}", (torch.tensor(value), *rest)) for rest in OVER_ONE_DIMENSION[name]]
    check_all([call for call in calls if eager_takes(*call)])


# Operators that upstream may fold if all operands are constants.
ON_CONSTANTS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "floor_divide": torch.floor_divide,
    "div": torch.div,
    "sub": torch.sub,
    "rsub": torch.rsub,
    "mul": torch.mul,
    "add": torch.add,
    "pow": torch.pow,
    "lt": torch.lt,
    "ge": torch.ge,
    "eq": torch.eq,
    "clamp": torch.clamp,
    "where": lambda value, number: torch.where(value < number, value, value * number),
}


@pytest.mark.parametrize("number", [-1.5, 2.0, -3, 2])
@pytest.mark.parametrize("name", ON_CONSTANTS)
@pytest.mark.sampled(6)
def test_constants(name: str, number: float) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        known = [torch.full([2], value) for value in (316.0, -5.5, 0.0, 7.0, math.inf)]
        known += [torch.full([2], value) for value in (7, -7)] if name != "pow" or number > 0 else []
        return [x * 2, *(ON_CONSTANTS[name](value, number) for value in known)]

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return function(x)

    x = torch.randn(3)
    compiled = torchmdla.compile(torch.export.export(Net(), (x,)))
    assert_matches(list(compiled(x)), function(x))


@pytest.mark.parametrize("shape", [(7,), (4, 5)])
def test_writing_at_an_index_from_the_end(shape: tuple[int, ...]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.select_scatter(x * 2, x[0], 0, -1)

    x = torch.randn(shape)
    compiled = torchmdla.compile(torch.jit.trace(function, (x,)), x)
    assert_matches(compiled(x), function(x))


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
@pytest.mark.parametrize(
    "sizes", [[0, -1], [2, 0, 1, 3], [-2, -1, 0, 3], [-2, 2, 1, -1, 0, 2], [1, 2, 3, 2, 1, 3]], ids=str
)
@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.sampled(6)
def test_padding(mode: str, sizes: list[int], batch: tuple[int, ...]) -> None:
    """Check padding. Negative sizes crop."""
    image = torch.arange(2.0 * 3 * 4**3).view(2, 3, *[4] * 3)
    image_part = image[(0,) * (1 - len(batch))].flatten(len(batch) + 1)[..., : 4 ** (len(sizes) // 2)]
    check("aten::pad", (image_part.unflatten(-1, [4] * (len(sizes) // 2)), sizes, mode))


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("interpolation", [0, 1])
@pytest.mark.parametrize("spatial", [2, 3])
def test_grid_sampler(spatial: int, interpolation: int, padding: int, align_corners: bool) -> None:
    """Check positions far outside the image too. Upstream reads memory there."""
    image = torch.linspace(0, 9, 2 * 3 * 4**spatial).sin().view(2, 3, *[4] * spatial)
    grid = torch.linspace(0, 50, 2 * 5**spatial * spatial).cos().view(2, *[5] * spatial, spatial) * 3.3
    check("aten::grid_sampler", (image, grid, interpolation, padding, align_corners))
    check("aten::grid_sampler", (image.double(), grid.double(), interpolation, padding, align_corners))


@pytest.mark.parametrize("multiple", [1, 2])
@pytest.mark.parametrize("spatial", [1, 2])
@pytest.mark.sampled(1)
def test_transposed_convolution_by_channel(spatial: int, multiple: int) -> None:
    """Check depthwise transposed convolutions. Upstream does not have a lowering for them."""
    name = "aten::conv_transpose1d" if spatial == 1 else f"aten::conv_transpose{spatial}d.input"
    image = torch.linspace(0, 9, 2 * 4 * 5**spatial).sin().view(2, 4, *[5] * spatial)
    weight = torch.linspace(0, 7, 4 * multiple * 3**spatial).cos().view(4, multiple, *[3] * spatial)
    bias = torch.arange(4.0 * multiple)
    for stride, padding, extra, dilation in [(1, 0, 0, 1), (2, 1, 1, 1), (3, 3, 2, 2), (2, 0, 0, 2)]:
        check(name, (image, weight, bias, [stride], [padding], [extra], 4, [dilation]))
        check(name, (image[0], weight, None, [stride], [padding], [extra], 4, [dilation]))
    rest = ([2] * spatial, [1] * spatial, [1] * spatial, True, [0] * spatial, 4, False, False, True, True)
    check("aten::_convolution", (image, weight, bias, *rest))


@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 1), (0, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("source", ["number", "part", "whole"])
def test_writing_at_an_index_of_no_dimensions(dims: tuple[int, ...], source: str) -> None:
    value = torch.arange(60.0).view(3, 4, 5)
    indices = [torch.tensor(1) if dim in dims else None for dim in range(max(dims) + 1)]
    whole = torch.ops.aten.index(value, indices).neg()
    written = {"number": torch.tensor(0.5), "part": whole[:1] if whole.dim() else whole, "whole": whole}[source]
    check("aten::index_put", (value, indices, written, True))


def sines(*sizes: int, turns: float = 9) -> torch.Tensor:
    return torch.linspace(0, turns, math.prod(sizes)).sin().view(sizes)


def attention(*heads: int) -> Sequence[object]:
    q, k, v = (sines(2, n, 5, 8, turns=9 * n) for n in heads)
    return q, k, v, None, 0.0, False, None, True


def fused_attention(kind: int, *shape: int) -> Sequence[object]:
    """Return the arguments of an attention that is masked in one row."""
    mask, x = torch.zeros(shape, dtype=torch.bool), torch.randn(2, 3, 8)
    mask.view(-1, 3)[0] = True
    return (
        *(x, x, x, 8, 2, torch.randn(24, 8), torch.randn(24), torch.randn(8, 8), torch.randn(8)),
        *(mask, True, False, kind),
    )


def pools(spatial: int) -> dict[str, list[Sequence[object]]]:
    """Return arguments of pools: images without a batch, and lists of one number for all dimensions."""
    image, batch = sines(3, *[7] * spatial), sines(1, 3, *[5] * spatial)
    several = [(batch, [2]), (batch, [3], [2], [1])] if spatial > 1 else []
    return {
        f"avg_pool{spatial}d": [*((image, [3], [2], [1], ceil) for ceil in (False, True)), *several],
        f"max_pool{spatial}d": [
            *((image, [3], [2], [1], [1], ceil) for ceil in (False, True)),
            *((image, [2], [1], [0], [2], ceil) for ceil in (False, True)),
            *several,
        ],
    }


NOTHING = torch.empty(0, 3)
INFINITE = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40])
QUERY, KEY = torch.linspace(-1, 1, 40).view(1, 2, 5, 4).clone(), torch.rand(1, 2, 5, 4) + 1
QUERY[:, :, 1] = -math.inf

# Calls at the edges of operators, by name.
EDGES: dict[str, list[Sequence[object]]] = {
    # Indices from the end.
    "index_put": [
        (X, [torch.tensor([-1, 0, 2]), torch.tensor([[-4], [3]])], torch.randn(2, 3), True),
        (X, [None, torch.tensor([-4, -1, -1])], torch.randn(3, 3), True),
        (torch.randn(3, 4, 5), [torch.tensor([0, 2]), None, torch.tensor([1, -1])], torch.randn(2, 4), True),
    ],
    # Joins drop empty tensors.
    "cat": [([torch.empty(0), X, torch.empty(0, 4)], 0)],
    "concat": [([torch.empty(0), X], 0)],
    "hstack": [([torch.empty(3, 0), X],)],
    # Reductions of nothing.
    **{name: [(NOTHING,)] for name in ("sum", "mean", "prod", "any", "all")},
    "sum.dim_IntList": [(NOTHING, [0])],
    "cumsum": [(NOTHING, 0)],
    "mm": [(NOTHING, torch.empty(3, 4)), (torch.empty(3, 0), torch.empty(0, 4))],
    "matmul": [
        (torch.empty(5, 5, 0), torch.empty(0, 5)),
        (torch.empty(2, 3, 0), torch.empty(0)),
        (torch.empty(2, 3, 0), torch.empty(2, 0, 4)),
    ],
    "linear": [(torch.empty(2, 3, 0), torch.empty(4, 0), torch.ones(4))],
    # Many windows.
    "adaptive_avg_pool2d": [
        (torch.randn(2, 3, 50, 41).to(dtype), sizes)
        for dtype in (torch.float32, torch.float64)
        for sizes in ([33, 40], [100, 5], [41, 1])
    ],
    # Attention to nothing is NaN.
    "_native_multi_head_attention": [
        fused_attention(0, 3, 3),
        fused_attention(1, 2, 3),
        fused_attention(2, 2, 2, 3, 3),
    ],
    # Rows of ``-inf`` without a mask, a causal mask with more rows than columns, and shared heads.
    "scaled_dot_product_attention": [
        *((QUERY, KEY, KEY, None, 0.0, is_causal) for is_causal in (False, True)),
        (KEY, KEY[:, :, :3], KEY[:, :, :3], None, 0.0, True),
        *(attention(*heads) for heads in [(6, 2, 2), (6, 1, 3), (4, 4, 4)]),
    ],
    "kl_div": [
        (INFINITE.view(8, 1).expand(8, 8).contiguous(), INFINITE.expand(8, 8).contiguous(), 0, log_target)
        for log_target in (False, True)
    ],
    **{name: arguments for spatial in (1, 2, 3) for name, arguments in pools(spatial).items()},
    "linalg_vector_norm": [(X, order, [1], False, torch.float64) for order in (0, 1, 2, 3, math.inf)],
    "gather": [
        *((torch.tensor(2.5), dim, index) for dim in (0, -1) for index in (torch.tensor(0), INTS.new_zeros(3))),
        (torch.arange(5.0), 0, torch.tensor(3)),
    ],
    # The result of integers is int64 for all sizes.
    **{
        name: [(value, []) for value in (torch.tensor(3).int(), torch.tensor(True), torch.tensor([1, 2]).int(), X)]
        for name in ("sum_to_size", "_grad_sum_to_size")
    },
    "conv2d": [(X.view(1, 1, 3, 4), X[:2, :2].reshape(1, 1, 2, 2), None, [2], [1], [1])],
    "conv3d": [(X.view(1, 2, 3, 2, 1), X.view(2, 1, 3, 2, 1), X.flatten()[:2], [1, 1, 2], [1, 1, 0], [1, 1, 1], 2)],
    # The variance of nothing.
    **{
        f"{name}{overload}": [
            (value, *rest) for value in (torch.empty(0), torch.empty(2, 0, 3), torch.empty(2, 0, dtype=torch.float64))
        ]
        for name in ("var", "std", "var_mean")
        for overload, rest in (("", ()), (".dim", ([-1], True, True)), (".correction", ([0],)))
    },
}


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.sampled(12)
def test_edges(name: str) -> None:
    check_all([Call(f"aten::{name}", arguments) for arguments in EDGES[name]])


@pytest.mark.parametrize("name", ["cumprod", "cumsum", "log_softmax.int", "softmax.int", "prod.dim_int"])
def test_dtype_of_the_result(name: str) -> None:
    values = (X, torch.float64), (X, torch.float32), (INTS, torch.float32), (torch.tensor(2), torch.float64)
    rest = (False,) if name == "prod.dim_int" else ()
    check_all([Call(f"aten::{name}", (value, -1, *rest, dtype)) for value, dtype in values])

"""Numbers and 0-d tensors beside tensors of every dtype: each operator returns eager's bits on every frontend.

``scalar_probe`` compares them. These are parts of it, of which ``make test`` runs a few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from graphs import warmed_up
from scalar_probe import table
from scalar_probe.probe import DTYPES, KINDS, VARIANTS, Subject, eager, is_same, probe, scripted, tensors_of
from torch import Tensor
from torch._dynamo.utils import counters

import torchmdla
from torchmdla import devices
from torchmdla.importer.schemas import overload_of, schema_of
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.op_samples import SAMPLES

# The subjects that ``make test`` tries.
_OFTEN = {
    "torchscript:script": (DTYPES, ("constant", "float", "int64", "bool", "float32")),
    "dynamo:compile": (("float16",), ("float64",)),
    "lazy:step": (("uint8", "float16"), ("float", "float64")),
    "acap:device": (("uint8", "float16"), ("float", "float64")),
    "torchscript:trace": (("float16",), ("float32",)),
    "export:export": (("float16",), ("float32",)),
    "dispatch:capture": (("float16",), ("float32",)),
}


def _subjects() -> Iterator[object]:
    for subject in (Subject(way, dtype, kind) for way in VARIANTS for dtype in DTYPES for kind in KINDS):
        dtypes, kinds = _OFTEN[subject.way]
        is_often = subject.dtype in dtypes and subject.kind in kinds
        if subject.exists:
            # For torch.compile, each number is a separate program, so a row takes minutes.
            seldom = [pytest.mark.sampled(0)] if subject.way == "dynamo:compile" else []
            yield pytest.param(subject, id=str(subject), marks=seldom if is_often else pytest.mark.full)


@pytest.mark.parametrize("subject", list(_subjects()))
@pytest.mark.usefixtures("without_gradients")
@pytest.mark.sampled(12)
def test_scalars(subject: Subject) -> None:
    report = probe(subject, every=False)
    assert report.differences == []
    assert report.results >= 30
    assert torchmdla.stats().compiled_calls > 0


@pytest.mark.full
@pytest.mark.parametrize("kind", ["constant", "int"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("without_gradients")
def test_every_scalar_of_torchscript(dtype: str, kind: str) -> None:
    assert probe(Subject("torchscript:script", dtype, kind), every=True).differences == []


def _operators(expression: str) -> set[str]:
    """Return the operators that TorchScript creates from an expression of a number or of a 0-d tensor."""
    names = set()
    for type_ in ("float", "int", "Tensor"):
        function = scripted((expression,), type_, "")
        nodes = function.inlined_graph.nodes() if function is not None else ()
        schemas = (torch._C.parse_schema(node.schema()) for node in nodes if node.schema() != "(no schema)")
        names |= {f"{schema.name}.{schema.overload_name}".removesuffix(".") for schema in schemas}
    return {name.removesuffix(".hacked_twin") for name in names}


def _takes_numbers(name: str) -> bool:
    types = (argument.type for argument in schema_of(name).arguments)
    kinds = {(type_.getElementType() if type_.kind() == "OptionalType" else type_).kind() for type_ in types}  # type: ignore[attr-defined]
    return not kinds.isdisjoint({"NumberType", "FloatType"})


def _takes_0d_tensors(name: str) -> bool:
    """Return whether eager accepts a 0-d tensor in place of a tensor with dimensions, beside others."""
    for sample in SAMPLES.get(name, []):
        tensors = [n for n, argument in enumerate(sample) if isinstance(argument, Tensor) and not argument.is_quantized]
        for place in tensors if len(tensors) > 1 else ():
            changed = list(sample)
            changed[place] = sample[place].ravel()[0]  # type: ignore[attr-defined]
            try:
                overload_of(name)(*changed)
            except Exception:  # Python decompositions raise errors of various types.
                continue
            return True
    return False


@pytest.mark.filterwarnings("ignore")
def test_every_operator_of_scalars_is_probed() -> None:
    texts = [*table.EXACT, *table.APPROXIMATE, *table.EXACT_WITH_TENSORS, *table.APPROXIMATE_WITH_TENSORS]
    operators = {text: _operators(text) for text in [*texts, *table.QUANTISED]}
    assert [text for text, names in operators.items() if not names] == []
    probed = set[str]().union(*operators.values())
    others = [name for name in devices.get("cpu").ops if name not in probed and not name.startswith("torchao::")]
    missing = {name for name in others if _takes_numbers(name) or _takes_0d_tensors(name)}
    assert missing == set(table.NOT_PROBED)


_CHECKED = [
    "torch.add(x, y, alpha=s)",
    "torch.clamp(x, s, None)",
    "x.masked_fill(m, s)",
    "torch.full_like(x, s) + x",
    "torch.threshold(x, 0.3, s)",
    "torch.hardshrink(x, s)",
    "torch.ops.aten.leaky_relu(x, s)",
    "torch.addcmul(x, y, y, value=s)",
    "x ** s",
    "x * s",
]


@pytest.mark.parametrize("expression", _CHECKED)
@pytest.mark.usefixtures("without_gradients")
def test_a_number_of_run_time_beyond_the_dtype(expression: str) -> None:
    """Compiled code raises an error if and only if eager does."""
    tensors = tensors_of(torch.float16).values()
    function = scripted((f"{expression} + x",), "float", "")
    subject = Subject("torchscript:script", "float16", "float")
    assert function is not None
    for _ in range(4):
        function(*tensors, 0.5)
    calls = torchmdla.stats().compiled_calls
    assert calls > 0
    for number in (65504.0, 65505.0, 65519.0, 1e6, -1e6, 1e39, -1e300, math.inf, -math.inf, math.nan):
        expected = eager(subject, f"{expression} + x", tuple(tensors), number)
        if expected is None:
            with pytest.raises(RuntimeError, match="without overflow"):
                function(*tensors, number)
        elif expression != "x ** s":
            assert is_same(function(*tensors, number)[0], expected), number


@pytest.mark.parametrize("rows", [1, 3, 6])
@pytest.mark.parametrize("correction", [1, 2, 3, 5.5])
@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_a_correction_beyond_the_count(name: str, correction: float, rows: int) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        results = getattr(torch, name)(x + 1, 0, correction=correction)
        return tuple(result * 2 for result in (results if isinstance(results, tuple) else (results,)))

    x = torch.randn(rows, 4)
    assert_matches(warmed_up(function, x)(x), function(x))
    assert torchmdla.stats().fallbacks == {}


_BEYOND_FLOAT32: dict[str, Callable[[Tensor], Tensor]] = {
    "norm": lambda x: torch.ops.aten.norm(x, 1e39, [0], False),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, -1e39),
    "group_norm": lambda x: torch.group_norm(x.view(1, 8, 8), 2, None, None, 1e39),
    "instance_norm": lambda x: torch.instance_norm(x.view(1, 8, 8), None, None, None, None, True, 0.1, 1e39, False),
    "quantized::mul": lambda x: torch.ops.quantized.mul(
        torch.quantize_per_tensor(x.float(), 0.1, 100, torch.quint8), 1e39
    ).dequantize(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", _BEYOND_FLOAT32)
def test_a_number_beyond_float32(name: str, dtype: torch.dtype) -> None:
    function = _BEYOND_FLOAT32[name]
    x = torch.randn(64).to(dtype)
    assert_matches(warmed_up(function, x)(x), function(x))
    assert name.startswith("quantized::") or torchmdla.stats().fallbacks == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("start", "end", "step"), [(-1.7, 1.3, 1.0), (-1.7, 1.3, 0.7), (5.0, -5.0, -1.1), (0.0, 2e39, 1e39)]
)
def test_a_range_by_fractions(start: float, end: float, step: float, dtype: torch.dtype) -> None:
    if end > torch.finfo(torch.float32).max and dtype != torch.float32:
        pytest.skip("eager refuses a range of halves beyond float32")
    # A trace would hold the range as a constant.
    source = f"""
def function(x):
    return torch.arange({start}, {end}, {step}, dtype=x.dtype) * x[0]
"""
    function = torch.jit.CompilationUnit(source).function
    x = torch.ones(1, dtype=dtype)
    assert is_same(warmed_up(function, x)(x), torch.arange(start, end, step, dtype=dtype))
    assert torchmdla.stats().fallbacks == {}


_BOUNDED = {
    "both": lambda x: torch.clamp(x, math.nan, 1.0),
    "least": lambda x: torch.clamp(x, min=math.nan),
    "most": lambda x: torch.clamp(x, -1, math.nan),
    "clamp_max": lambda x: torch.clamp_max(x, math.nan),
    "hardtanh": lambda x: torch.nn.functional.hardtanh(x, -1.0, math.nan),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
@pytest.mark.parametrize("name", _BOUNDED)
def test_a_bound_that_is_nan(name: str, dtype: torch.dtype) -> None:
    def function(x: Tensor) -> Tensor:
        return _BOUNDED[name](x + 1) * 2

    x = torch.arange(-4, 5).to(dtype)
    if name == "hardtanh" and not dtype.is_floating_point:
        pytest.skip("eager refuses it")
    assert_matches(warmed_up(function, x)(x), function(x))


_WITH_FACTOR: dict[str, Callable[..., Tensor]] = {
    "add": lambda x, y, factor: torch.add(x, y, alpha=factor),
    "sub": lambda x, y, factor: torch.sub(x, y, alpha=factor),
    "addcmul": lambda x, y, factor: torch.addcmul(x, y, y, value=factor),
}


@pytest.mark.parametrize(
    ("name", "dtype", "other"),
    [
        *((name, dtype, dtype) for name in _WITH_FACTOR for dtype in (torch.float16, torch.bfloat16)),
        *((name, torch.float16, torch.int32) for name in _WITH_FACTOR),
        ("addcmul", torch.int32, torch.int32),
    ],
    ids=str,
)
@pytest.mark.usefixtures("without_gradients")
def test_a_factor_that_changes(name: str, dtype: torch.dtype, other: torch.dtype) -> None:
    """Dynamo makes the factor an input when it changes."""
    function = _WITH_FACTOR[name]
    compiled = torch.compile(function, backend="torchmdla")
    x, y = tensors_of(dtype)["x"], tensors_of(other)["y"]
    row, columns = x.view(8, 8)[:1].expand(8, 8), y.view(8, 8).t()
    before = counters["stats"]["unique_graphs"]
    for factor in (0.3, 257.0, -1.7, 2049.0):
        assert is_same(compiled(x, y, factor), function(x, y, factor)), factor
        assert compiled(row, columns, factor).stride() == function(row, columns, factor).stride()
    graphs = counters["stats"]["unique_graphs"] - before
    assert graphs == 4 or not dtype.is_floating_point, "a graph for each factor"


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
@pytest.mark.usefixtures("without_gradients")
@pytest.mark.sampled(2)
def test_conversion_of_non_integers_to_integers(dtype: torch.dtype, source: torch.dtype) -> None:
    """Constants let the compiler know which values are not finite."""

    def function(x: Tensor) -> list[Tensor]:
        floats = [x * math.inf, x / 0, x - x / 0 * 0, torch.where(x > 2, math.nan, x), x - x, -x]
        return [value.to(dtype) + 1 for value in floats]

    numbers = [math.nan, math.inf, -math.inf, 1e10, -1e10, 2.5, -2.5, 70000.0, 300.0, -300.0, 0.0]
    compiled = torch.compile(function, backend="torchmdla")
    for length in (3, 8, 37):
        x = torch.tensor((numbers * 4)[:length], dtype=source)
        for _ in range(3):
            assert_matches(compiled(x), function(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_training_with_a_factor_that_is_broadcast(dtype: torch.dtype) -> None:
    def function(x: Tensor, factor: Tensor) -> Tensor:
        return torch.tanh(torch.exp(factor) * x) * 2

    def gradients(called: Callable[..., Tensor]) -> list[Tensor | None]:
        inputs = [torch.rand(sizes, generator=torch.Generator().manual_seed(0)).to(dtype) for sizes in ((3, 5), (5,))]
        inputs = [leaf.requires_grad_() for leaf in inputs]
        called(*inputs).float().sum().backward()
        return [leaf.grad for leaf in inputs]

    scripted = torch.jit.script(function)
    for _ in range(4):
        assert_matches(gradients(scripted), gradients(function))
    assert torchmdla.stats().left_out == {}

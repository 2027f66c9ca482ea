"""Tests of ``torchmdla.quantise``: values of each type and operator, patterns, data, errors, and the comparison."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchmdla
from torchmdla import devices
from torchmdla.compiler.program import Target
from torchmdla.devices import Device, Quantisation, QuantisedPattern, QuantisedType, quantised_patterns_of
from torchmdla.testing.compare import assert_matches

pytest.importorskip("torchao")

pytestmark = pytest.mark.filterwarnings("ignore")


class Undeclared(Device):
    """Device that compiles nothing and declares nothing."""

    name = "undeclared"
    ops: Mapping[str, Any] = {}
    dtypes = frozenset({"float32"})

    def target(self) -> Target:
        return Target(self.name)

    def lower(self, program: Any) -> Any:
        raise NotImplementedError

    def load(self, artifact: Any) -> Any:
        raise NotImplementedError


class Declaring(Undeclared, Quantisation):
    """Device that only declares types."""

    name = "declaring"
    quantised_patterns: Sequence[QuantisedPattern] = ()


def declare(patterns: list[QuantisedPattern]) -> str:
    device = Declaring()
    device.quantised_patterns = patterns
    devices.register(device)
    return Declaring.name


# --- values by type and operator

INT8 = QuantisedType(8)
# Types of activations, of weights, and of biases. Dynamic types are in a test of their own.
TYPES: dict[str, tuple[QuantisedType | None, QuantisedType | None, QuantisedType | None]] = {
    "int8": (INT8, INT8, None),
    "int8, by channel, bias": (INT8, QuantisedType(8, axis=0), QuantisedType(32)),
    "int8, bias": (INT8, INT8, QuantisedType(32)),
    "uint8, asymmetric": (QuantisedType(8, signed=False, symmetric=False), QuantisedType(8, axis=0), None),
    "uint8, symmetric": (QuantisedType(8, signed=False), INT8, None),
    "int8, asymmetric": (
        QuantisedType(8, symmetric=False),
        QuantisedType(8, symmetric=False, axis=0),
        QuantisedType(32),
    ),
    "int4": (QuantisedType(4, symmetric=False), QuantisedType(4, axis=0), None),
    "uint4": (QuantisedType(4, signed=False, symmetric=False), QuantisedType(4), None),
    "weights of int4": (None, QuantisedType(4, axis=0), None),
    "int16": (QuantisedType(16), QuantisedType(8, axis=0), QuantisedType(32)),
    "int12": (QuantisedType(12, symmetric=False), QuantisedType(12), None),
    "fixed point": (
        QuantisedType(16, fraction=8),
        QuantisedType(16, fraction=10),
        QuantisedType(16, fraction=8),
    ),
    "fixed point, calibrated": (
        QuantisedType(8, fraction="calibrated"),
        QuantisedType(8, fraction="calibrated", axis=0),
        QuantisedType(32),
    ),
    "fixed point, headroom": (
        QuantisedType(16, fraction="calibrated", headroom=2),
        QuantisedType(16, fraction="calibrated"),
        None,
    ),
}


class Rounding:
    """Values that integers of a type represent, with scales from these values: the definition, in plain PyTorch."""

    def __init__(self, value: Tensor, kind: QuantisedType | None) -> None:
        self.scale, self.value = torch.ones(()), value
        if kind is not None:
            lowest, highest = self._bounds(value, kind)
            self.scale, zero_point = _parameters(lowest, highest, kind)
            self.value = _represent(value, self.scale, zero_point, kind)

    @staticmethod
    def _bounds(value: Tensor, kind: QuantisedType) -> tuple[Tensor, Tensor]:
        if kind.axis is None:
            return value.min(), value.max()
        dims = [dim for dim in range(value.dim()) if dim != kind.axis]
        return value.amin(dims, keepdim=True), value.amax(dims, keepdim=True)


def _parameters(lowest: Tensor, highest: Tensor, kind: QuantisedType) -> tuple[Tensor, Tensor]:
    zero = torch.zeros_like(lowest)
    largest = torch.maximum(lowest.abs(), highest.abs())
    if isinstance(kind.fraction, int):
        return torch.full_like(lowest, 2.0**-kind.fraction), zero
    if kind.fraction is not None:
        scale = torch.zeros_like(lowest)
        for fraction in range(-8, 25):  # the largest fraction with which no value saturates
            fits = largest * 2.0**kind.headroom * 2.0**fraction <= kind.most
            scale = torch.where(fits, 2.0**-fraction, scale)
        return scale, zero
    span = float(kind.most - kind.least)
    if kind.symmetric:
        return largest / (span / 2), zero if kind.signed else torch.full_like(lowest, kind.most // 2)
    low, high = lowest.clamp(max=0), highest.clamp(min=0)
    scale = (high - low) / span
    return scale, (kind.least - torch.round(low / scale)).clamp(kind.least, kind.most)


def _represent(value: Tensor, scale: Tensor, zero_point: Tensor, kind: QuantisedType) -> Tensor:
    integers = torch.round(value * (1.0 / scale)) + zero_point
    return (integers.clamp(kind.least, kind.most) - zero_point) * scale


def _bias(value: Tensor, kind: QuantisedType | None, factors: tuple[Rounding, Rounding]) -> Tensor:
    if kind is None or kind.fraction is not None:
        return Rounding(value, kind).value
    scale = factors[0].scale.flatten() * factors[1].scale.flatten()
    return _represent(value, scale, torch.zeros_like(scale), kind)


class Layer(nn.Module):
    """Module of one function on the input and, if there are any, a weight and a bias."""

    def __init__(self, function: Callable[..., Tensor], *parameters: Tensor) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(parameters)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs, *self.weights)


def _weights(*sizes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(sizes, generator=generator) / 4, torch.randn(sizes[0], generator=generator)


IMAGE, ROWS = (2, 4, 6, 6), (3, 8)
# Operators with weights: the function, its weights, the input's sizes.
PRODUCTS: dict[str, tuple[Callable[..., Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "conv2d": (nn.functional.conv2d, (6, 4, 3, 3), IMAGE),
    "conv1d": (nn.functional.conv1d, (6, 4, 3), (2, 4, 9)),
    "linear": (nn.functional.linear, (5, 8), ROWS),
}
# Others: the function, the inputs' sizes.
OTHERS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "add.Tensor": (torch.add, (ROWS, ROWS)),
    "mul.Tensor": (torch.mul, (ROWS, ROWS)),
    "matmul": (torch.matmul, (ROWS, (8, 4))),
    "mean.dim": (lambda x: x.mean((2, 3)), (IMAGE,)),
    "avg_pool2d": (lambda x: nn.functional.avg_pool2d(x, 2), (IMAGE,)),
}


def inputs(*sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator) + 0.3 for shape in sizes)


@pytest.fixture
def cpu() -> None:
    torchmdla.enable()


def assert_compiles(module: nn.Module, arguments: tuple[Tensor, ...], expected: Tensor, step: Tensor) -> None:
    """Check compiled code of the cpu device: values may be the neighbouring integer where rounding ties."""
    torchmdla.reset_stats()
    compiled = torchmdla.compile(module, *arguments, frontend="export")
    with torch.no_grad():
        compiled(*arguments)
        result = compiled(*arguments)
    assert_matches(result, expected, others=(expected + step,))
    assert torchmdla.stats().fallbacks == {}
    assert torchmdla.stats().specialisations


@pytest.mark.parametrize("op", PRODUCTS)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.sampled(3)
def test_products(types: str, op: str, cpu: None) -> None:
    """Check that each tensor is rounded as its type specifies, and that compiled code agrees."""
    activations, weights, bias = TYPES[types]
    function, weight_sizes, sizes = PRODUCTS[op]
    layer, (x,) = Layer(function, *_weights(*weight_sizes)).eval(), inputs(sizes)
    device = declare(
        quantised_patterns_of(op, activations=activations, results=activations, weights=weights, bias=bias)
    )
    quantised = torchmdla.quantise(layer, [x], device=device, method="range")
    weight, offset = (parameter.detach() for parameter in layer.weights)
    factors = Rounding(x, activations), Rounding(weight, weights)
    # The result's scale was chosen while nothing was rounded.
    exact, rounded = function(x, weight, offset), function(*(f.value for f in factors), _bias(offset, bias, factors))
    result = Rounding(exact, activations)
    expected = _round_like(rounded, exact, activations)
    with torch.no_grad():
        assert_matches(quantised.module(x), expected)
        assert_matches(quantised.reference(x), exact)
    assert_compiles(quantised.module, (x,), expected, result.scale)


def _round_like(value: Tensor, observed: Tensor, kind: QuantisedType | None) -> Tensor:
    """Return ``value`` rounded with the scale that ``observed`` has."""
    if kind is None:
        return value
    return _represent(value, *_parameters(observed.min(), observed.max(), kind), kind)


@pytest.mark.parametrize("op", OTHERS)
@pytest.mark.parametrize("types", [name for name, (activations, _, _) in TYPES.items() if activations])
@pytest.mark.sampled(3)
def test_other_operators(types: str, op: str, cpu: None) -> None:
    kind = TYPES[types][0]
    function, sizes = OTHERS[op]
    arguments = inputs(*sizes)
    device = declare(quantised_patterns_of(op, activations=kind, results=kind))
    quantised = torchmdla.quantise(Layer(function).eval(), [arguments], device=device, method="range")
    exact = function(*arguments)
    rounded = function(*(Rounding(argument, kind).value for argument in arguments))
    expected = _round_like(rounded, exact, kind)
    with torch.no_grad():
        assert_matches(quantised.module(*arguments), expected)
    assert_compiles(quantised.module, arguments, expected, Rounding(exact, kind).scale)


def test_dynamic_types(cpu: None) -> None:
    """Check that scales are chosen in each call."""
    kind = QuantisedType(8, signed=False, symmetric=False, dynamic=True)
    device = declare(quantised_patterns_of("linear", activations=kind, weights=QuantisedType(8, axis=0)))
    layer, (x,) = nn.Linear(8, 5).eval(), inputs(ROWS)
    quantised = torchmdla.quantise(layer, [x], device=device)
    for argument in (x, 100 * x):
        weight = Rounding(layer.weight.detach(), QuantisedType(8, axis=0)).value
        expected = nn.functional.linear(Rounding(argument, kind).value, weight, layer.bias.detach())
        with torch.no_grad():
            assert_matches(quantised.module(argument), expected)
    assert_compiles(quantised.module, (x,), quantised.module(x).detach(), torch.tensor(1e-3))


WRONG_TYPES: dict[str, Callable[[], object]] = {
    "2 to 16 bits": lambda: QuantisedType(24),
    "at most 8 bits": lambda: QuantisedType(16, signed=False),
    "symmetric and signed": lambda: QuantisedType(8, symmetric=False, fraction=4),
    "a whole tensor": lambda: QuantisedType(8, axis=0, fraction=4),
    "has headroom": lambda: QuantisedType(8, headroom=1),
    "a dynamic type": lambda: QuantisedType(8, dynamic=True),
    "no operators": lambda: QuantisedPattern(()),
    "a shared scale": lambda: QuantisedPattern(("aten::cat",), shares_scale=True),
    "scale of the bias": lambda: QuantisedPattern(("aten::linear",), activations=INT8, bias=QuantisedType(32)),
    "one scale for a tensor": lambda: QuantisedPattern(("aten::relu",), activations=QuantisedType(8, axis=1)),
}


@pytest.mark.parametrize("message", WRONG_TYPES)
def test_contradicting_declarations_are_refused(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WRONG_TYPES[message]()


# --- patterns


class Residual(nn.Module):
    """Two branches of convolutions and their sum, pooling, a concatenation, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.left, self.right = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.stem(x), 2)
        x = torch.relu(self.left(x) + self.right(x))
        x = torch.cat([x, x], 1).mean((2, 3))
        return torch.softmax(self.head(x), -1)


def images(count: int = 4, batch: int = 2, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, 3, 8, 8, generator=generator) for _ in range(count)]


@pytest.fixture
def residual() -> nn.Module:
    torch.manual_seed(0)
    model = Residual()
    model.stem[1].running_mean.normal_()
    model.stem[1].running_var.uniform_(0.5, 2)
    return model.eval()


WEIGHTS = QuantisedType(8, axis=0)
PATTERN_TABLES: dict[str, tuple[list[QuantisedPattern], list[str]]] = {
    "longest chains first": (
        [
            *quantised_patterns_of(
                "conv2d conv2d+relu conv2d+add.Tensor+relu linear", activations=INT8, results=INT8, weights=WEIGHTS
            ),
            *quantised_patterns_of("max_pool2d cat", activations=INT8, shares_scale=True),
        ],
        ["stem.0 conv2d + relu", "max_pool2d max_pool2d", "left conv2d + add.Tensor + relu", "right conv2d",
         "cat cat", "head linear"],
    ),
    "shared scales are next to integers only": (
        quantised_patterns_of("linear", activations=INT8, weights=WEIGHTS)
        + quantised_patterns_of("max_pool2d cat relu", activations=INT8, shares_scale=True),
        ["head linear"],
    ),
    "shared scales before integers": (
        quantised_patterns_of("mean.dim", activations=INT8)
        + quantised_patterns_of("max_pool2d cat relu", activations=INT8, shares_scale=True),
        ["relu_1 relu", "cat cat", "mean mean.dim"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PATTERN_TABLES)
def test_patterns(name: str, residual: nn.Module) -> None:
    patterns, layers = PATTERN_TABLES[name]
    quantised = torchmdla.quantise(residual, images(), device=declare(patterns))
    assert [f"{layer.name} {layer.kind}" for layer in quantised.layers] == layers
    assert all(layer.name in str(quantised) for layer in quantised.layers)


def test_arguments_and_results_share_one_scale(residual: nn.Module) -> None:
    patterns = quantised_patterns_of("mean.dim", activations=INT8) + quantised_patterns_of(
        "cat", activations=INT8, shares_scale=True
    )
    graph = torchmdla.quantise(residual, images(), device=declare(patterns)).module.graph
    scales = [node.args[1] for node in graph.nodes if "quantize_per_tensor" in str(node.target)]
    # The argument of cat, its result, and the argument of the mean.
    assert len(scales) == 4 and len(set(scales)) == 1


@pytest.mark.parametrize("names", [("stem",), ("stem.0", "left"), ("conv2d_1",), ("head",)])
def test_layers_that_stay_float(names: tuple[str, ...], residual: nn.Module) -> None:
    everything = {layer.name for layer in torchmdla.quantise(residual, images(), device="cpu").layers}
    left = {layer.name for layer in torchmdla.quantise(residual, images(), device="cpu", float_layers=names).layers}
    missing = {"stem": "stem.0", "conv2d_1": "left"}
    assert everything - left >= {missing.get(name, name) for name in names}
    assert "right" in left


# --- the model, and data


def test_the_model_does_not_change(residual: nn.Module) -> None:
    before = {name: value.clone() for name, value in residual.state_dict().items()}
    quantised = torchmdla.quantise(residual, images(), device="cpu")
    assert_matches(residual.state_dict(), before)
    x = images()[0]
    with torch.no_grad():
        assert_matches(quantised.reference(x), residual(x), layers=4)


class Several(nn.Module):
    """Module with nested results, optional and keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor, *, scale: float = 1.0) -> dict[str, Tensor]:
        return {"sum": self.first(x) + scale * self.second(y), "difference": self.first(x) - self.second(y)}


def test_keyword_arguments_and_nested_results() -> None:
    model, (x, y) = Several().eval(), inputs((3, 8), (3, 8))
    for batch in ({"x": x, "y": y}, {"y": y, "x": x}, (x, y), (x, y, torch.zeros(3))):
        quantised = torchmdla.quantise(model, [batch], device="cpu")
        comparison = quantised.compare([batch])
        assert 0 < comparison.mean < 0.02 * comparison.largest
        with torch.no_grad():
            assert set(quantised.module(x=x, y=y)) == {"sum", "difference"}


def test_batches_of_any_size(residual: nn.Module) -> None:
    data = [*images(2, 3), *images(1, 2)]
    shapes = ({0: torch.export.Dim("batch", min=2, max=8)},)
    quantised = torchmdla.quantise(residual, data, device="cpu", dynamic_shapes=shapes)
    assert 0 < quantised.compare(images(2, 5)).maximum < 0.1
    with pytest.raises(ValueError, match=r"a batch has other sizes .*drop_last=True.*dynamic_shapes"):
        torchmdla.quantise(residual, data, device="cpu")


def test_an_exported_program(residual: nn.Module) -> None:
    program = torch.export.export(residual, (images()[0],))
    plain, exported = (torchmdla.quantise(model, images(), device="cpu") for model in (residual, program))
    with torch.no_grad():
        assert_matches(exported.module(images()[0]), plain.module(images()[0]))


def test_the_number_of_batches(residual: nn.Module) -> None:
    data = images(3)
    data[2] = 100 * data[2]
    scales = [
        next(n.args[1] for n in quantised.module.graph.nodes if "quantize_per_tensor" in str(n.target))
        for quantised in (torchmdla.quantise(residual, data, device="cpu", batches=count) for count in (2, 3))
    ]
    assert scales[1] > 10 * scales[0]


def test_the_histogram_has_smaller_errors_than_the_range() -> None:
    """Check data with one outlier, which determines the range."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1 << 14, 64, generator=generator)
    x[0, 0] = 20
    model = nn.Linear(64, 8).eval()
    error = {
        method: torchmdla.quantise(model, [x], device="cpu", method=method).compare([x]).mean
        for method in ("range", "histogram")
    }
    assert error["histogram"] < error["range"]


# --- the comparison


def test_errors_by_layer(residual: nn.Module) -> None:
    quantised = torchmdla.quantise(residual, images(), device="cpu")
    others = images(3, seed=1)
    comparison = quantised.compare(others)
    with torch.no_grad():
        pairs = [(quantised.module(x), residual(x)) for x in others]
        errors = torch.cat([(actual - expected).abs().flatten() for actual, expected in pairs])
        same = torch.cat([actual.argmax(-1) == expected.argmax(-1) for actual, expected in pairs])
    assert comparison.mean == pytest.approx(float(errors.mean()), rel=1e-3)
    assert comparison.maximum == pytest.approx(float(errors.max()), rel=1e-3)
    assert comparison.agreement == pytest.approx(float(same.double().mean()))
    kinds = [(layer.name, layer.kind) for layer in comparison.layers]
    assert kinds[0] == ("stem.0", "conv2d") and kinds[-1] == ("softmax", "softmax.int")
    assert all(0 < layer.mean <= layer.maximum < layer.largest for layer in comparison.layers)
    assert (comparison.layers[-1].mean, comparison.layers[-1].maximum) == (comparison.mean, comparison.maximum)
    assert comparison.table().row_count == len(kinds)


def test_errors_of_a_compiled_program(residual: nn.Module) -> None:
    torchmdla.enable()
    quantised = torchmdla.quantise(residual, images(), device="cpu")
    x = images()[0]
    compiled = torchmdla.compile(quantised.module, x, frontend="export")
    with torch.no_grad():
        expected = float((compiled(x) - residual(x)).abs().mean())
    assert quantised.compare([x], program=compiled).mean == pytest.approx(expected, rel=1e-3)


# --- the cpu device


@pytest.mark.parametrize("frontend", ["export", "dynamo"])
def test_the_cpu_device_runs_it_as_one_group(frontend: str, residual: nn.Module) -> None:
    torchmdla.enable()
    torch._dynamo.reset()
    quantised = torchmdla.quantise(residual, images())
    x = images()[0]
    torchmdla.reset_stats()
    compiled = (
        torchmdla.compile(quantised.module, x, frontend="export")
        if frontend == "export"
        else torch.compile(quantised.module, backend="torchmdla")
    )
    with torch.no_grad():
        compiled(x)
        # Integers that differ at ties change the probabilities by less than this.
        assert (compiled(x) - quantised.module(x)).abs().max() < 0.01
    stats = torchmdla.stats()
    assert (stats.groups, stats.fallbacks, stats.left_out) == (1, {}, {})


# --- errors


def test_a_device_without_types_is_refused(residual: nn.Module) -> None:
    devices.register(Undeclared())
    with pytest.raises(TypeError, match=r"does not inherit from torchmdla\.devices\.Quantisation"):
        torchmdla.quantise(residual, images(), device=Undeclared.name)


ERRORS: dict[str, tuple[type[Exception], Callable[[nn.Module], object]]] = {
    "data is a tensor: pass": (TypeError, lambda model: torchmdla.quantise(model, images()[0], device="cpu")),
    "no batches": (ValueError, lambda model: torchmdla.quantise(model, [], device="cpu")),
    r"training mode: call model\.eval\(\)": (
        ValueError,
        lambda model: torchmdla.quantise(model.train(), images(), device="cpu"),
    ),
    "takes a module or an exported program, got builtin_function": (
        TypeError,
        lambda model: torchmdla.quantise(torch.relu, images(), device="cpu"),  # type: ignore[arg-type]
    ),
    "no device named 'nowhere'": (ValueError, lambda model: torchmdla.quantise(model, images(), device="nowhere")),
    r"unknown method 'best' \(choose from histogram, range\)": (
        ValueError,
        lambda model: torchmdla.quantise(model, images(), device="cpu", method="best"),
    ),
    r"unknown layer in float_layers 'stam' \(choose from .*stem": (
        ValueError,
        lambda model: torchmdla.quantise(model, images(), device="cpu", float_layers=["stam"]),
    ),
    "has no quantised form of any operator of the model: relu": (
        ValueError,
        lambda model: torchmdla.quantise(nn.ReLU().eval(), images(), device="cpu"),
    ),
    "values of '.*' that are not finite": (
        ValueError,
        lambda model: torchmdla.quantise(model, [torch.full((2, 3, 8, 8), float("nan"))], device="cpu"),
    ),
    "no floating-point results": (
        ValueError,
        lambda model: torchmdla.quantise(Classes(model).eval(), images(), device="cpu").compare(images()),
    ),
}


class Classes(nn.Module):
    """Model whose results are integers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).argmax(-1)


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message: str, residual: nn.Module) -> None:
    kind, call = ERRORS[message]
    with pytest.raises(kind, match=message):
        call(residual)


def test_without_torchao(residual: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torchmdla.quantisation.quantizer", raising=False)
    monkeypatch.setitem(sys.modules, "torchao.quantization.pt2e", None)
    with pytest.raises(ImportError, match=r"needs the package torchao: pip install 'torchmdla\[quantise\]'"):
        torchmdla.quantise(residual, images(), device="cpu")

"""TorchScript programs that eager-mode and FX quantisation produce: values are those of PyTorch's quantised kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
import torch.ao.quantization as quantisation
from torch import Tensor, nn
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx
from torch.nn import functional

import torchmdla
from torchmdla.devices.cpu.target.ops import QUANTISED_TENSORS
from torchmdla.testing.compare import assert_matches

ENGINES = torch.backends.quantized.supported_engines
quantized = torch.ops.quantized

pytestmark = [
    pytest.mark.skipif("x86" not in ENGINES, reason="this build of PyTorch has no quantised kernels for x86"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def engine() -> Any:
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "x86"
    yield
    torch.backends.quantized.engine = before


def frozen(function: Any, *inputs: Tensor) -> Any:
    """Return a frozen trace of `function`, after the calls that the profiling executor needs."""
    module = function if isinstance(function, nn.Module) else _Module(function)
    scripted = torch.jit.freeze(torch.jit.trace(module.eval(), inputs, check_trace=False))
    torchmdla.reset_stats()
    for _ in range(4):
        scripted(*inputs)
    return scripted


class _Module(nn.Module):
    """A function of the inputs, and of packed weights if there are any. Packed weights must be an attribute."""

    def __init__(self, function: Callable[..., Any], packed: Any = None) -> None:
        super().__init__()
        self.function, self.packed = function, packed

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs) if self.packed is None else self.function(self.packed, *inputs)


def assert_within_steps(result: Tensor, wanted: Tensor, step: float, steps: int = 1, share: float = 0.02) -> None:
    """Check that values differ by at most ``steps`` quantisation steps, and in at most a ``share`` of elements."""
    differences = (result - wanted).abs() / step
    assert differences.max() <= steps + 1e-3
    assert (differences > 1e-3).double().mean() <= share


def assert_compiled_whole() -> None:
    stats = torchmdla.stats()
    assert not stats.fallbacks
    assert not stats.left_out
    assert stats.groups == 1
    assert all(group.compiled_calls for group in stats.by_group)


# Each operator alone, between its quantised operands and the dequantisation of its result.


def made(x: Tensor, scale: float = 0.0523, zero: int = 60) -> Tensor:
    return torch.quantize_per_tensor(x, scale, zero, torch.quint8)


def packed(weight: Tensor, bias: Tensor | None, dims: int, per_channel: bool = True, groups: int = 1) -> Any:
    """Return weights packed for a linear layer if ``dims`` is 0, else for a convolution of ``dims`` dimensions."""
    if per_channel:
        scales = torch.rand(len(weight), generator=torch.Generator().manual_seed(1)) / 100 + 0.005
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        quantised = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
    else:
        quantised = torch.quantize_per_tensor(weight, 0.01, 0, torch.qint8)
    if not dims:
        return quantized.linear_prepack(quantised, bias)
    numbers = [2] * dims, [1] * dims, [1] * dims, groups
    return getattr(quantized, f"conv{dims}d_prepack")(quantised, bias, *numbers)


def weights(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0)) / math.sqrt(math.prod(sizes[1:]))


X, Y = (torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
ROWS = X.flatten(2).flatten(0, 1)
# The scales have little in common, so that sums and products rarely tie.
SCALE, ZERO = 0.0371, 33
CUBE = torch.randn(1, 8, 4, 5, 6, generator=torch.Generator().manual_seed(0))
MEAN, VARIANCE, BIAS = torch.linspace(-1, 1, 8), torch.linspace(0.5, 1.5, 8), torch.linspace(-1, 1, 10)


def of_weights(name: str) -> Callable[..., Tensor]:
    return lambda weights, x: getattr(quantized, name)(made(x), weights, SCALE, ZERO)


def of_norm(name: str, x: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: getattr(quantized, name)(made(x), MEAN, MEAN, MEAN, VARIANCE, 1e-5, SCALE, ZERO)


def linear() -> Any:
    return packed(weights(10, 36), BIAS[:10], 0)


def convolution(dims: int) -> Any:
    return packed(weights(6, 8, *[3] * dims), BIAS[:6], dims)


# By operator with packed weights: a function of the weights and a float tensor, a maker of the weights, and the float
# tensor. PyTorch's kernels store in the weights whether they were called with a ReLU, so each test makes its own.
PRODUCTS: Mapping[str, tuple[Callable[..., Tensor], Callable[[], Any], Tensor]] = {
    **{
        f"quantized::conv{dims}d{relu}{'' if dims == 1 else '.new'}": (
            of_weights(f"conv{dims}d{relu}"),
            partial(convolution, dims),
            x,
        )
        for dims, x in ((1, X.flatten(2)), (2, X), (3, CUBE))
        for relu in ("", "_relu")
    },
    **{f"quantized::linear{relu}": (of_weights(f"linear{relu}"), linear, ROWS) for relu in ("", "_relu")},
    **{
        f"quantized::linear{relu}_dynamic": (
            lambda weights, x, name=f"linear{relu}_dynamic": made(getattr(quantized, name)(x, weights), SCALE, ZERO),
            linear,
            ROWS,
        )
        for relu in ("", "_relu")
    },
    "depthwise": (of_weights("conv2d"), lambda: packed(weights(8, 1, 3, 3), None, 2, per_channel=False, groups=8), X),
}

# By any other operator: a function of float tensors, which it quantises, and these tensors.
CALLS: Mapping[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "aten::quantize_per_tensor": (lambda x: torch.quantize_per_tensor(x, SCALE, -3, torch.qint8), (X,)),
    "aten::quantize_per_tensor.tensor_qparams": (
        lambda x: torch.quantize_per_tensor(x, torch.tensor(SCALE), torch.tensor(ZERO), torch.quint8),
        (X,),
    ),
    "aten::dequantize.self": (lambda x: made(x), (X,)),
    "quantized::matmul": (lambda x, y: quantized.matmul(made(x), made(y, 0.0317, 9), 0.2, ZERO), (X, Y)),
    **{
        f"quantized::{name}{relu}": (
            lambda x, y, name=name + relu: getattr(quantized, name)(made(x), made(y, 0.0317, 9), SCALE, ZERO),
            (X, Y),
        )
        for name in ("add", "mul")
        for relu in ("", "_relu")
    },
    **{
        f"quantized::{name}{relu}{overload}": (
            lambda x, name=name + relu, form=overload[1:] or "default": getattr(getattr(quantized, name), form)(
                made(x), 0.5
            ),
            (X,),
        )
        for name, overload in (("add_scalar", ""), ("mul_scalar", ""), ("add", ".Scalar"), ("mul", ".Scalar"))
        for relu in ("", "_relu")
    },
    **{
        f"quantized::mul{relu}.Scalar2": (
            lambda x, name=f"mul{relu}": getattr(quantized, name).Scalar2(0.5, made(x)),
            (X,),
        )
        for relu in ("", "_relu")
    },
    **{
        f"quantized::cat{relu}": (
            lambda x, y, relu=relu: getattr(quantized, f"cat{relu}")([made(x), made(y, 0.0317, 9)], 1, SCALE, ZERO),
            (X, Y),
        )
        for relu in ("", "_relu")
    },
    **{
        f"quantized::batch_norm{dims}{relu}": (of_norm(f"batch_norm{dims}{relu}", x), (x,))
        for dims, x in (("", X), ("1d", X.flatten(2)), ("2d", X), ("3d", CUBE))
        for relu in ("", "_relu")
    },
    "quantized::layer_norm": (
        lambda x: quantized.layer_norm(made(x), [6], MEAN[:6], VARIANCE[:6], 1e-5, SCALE, ZERO),
        (X,),
    ),
    "quantized::softmax": (lambda x: quantized.softmax(made(x), 1, 1 / 256, 0), (X,)),
    "quantized::hardswish": (lambda x: quantized.hardswish(made(x), SCALE, ZERO), (X,)),
    "quantized::sigmoid": (lambda x: quantized.sigmoid(made(x), 1 / 256, 0), (X,)),
    "quantized::elu": (lambda x: quantized.elu(made(x), SCALE, ZERO, 0.5), (X,)),
    "quantized::dropout": (lambda x: quantized.dropout(made(x), SCALE, ZERO, 0.5, False), (X,)),
    "quantized::relu6": (lambda x: quantized.relu6(made(x), False), (X,)),
    "quantized::leaky_relu": (lambda x: quantized.leaky_relu(made(x), 0.1, False, SCALE, ZERO), (X,)),
}

# Operators that move or compute quantised tensors and do not have "quantized" in their names.
OTHERS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: torch.relu(made(x)),
    "hardtanh": lambda x: functional.hardtanh(made(x)),
    "max_pool2d": lambda x: functional.max_pool2d(made(x), 3, 2, 1),
    "avg_pool2d": lambda x: functional.avg_pool2d(made(x), 2),
    "adaptive_avg_pool2d": lambda x: functional.adaptive_avg_pool2d(made(x), 2),
    "mean": lambda x: made(x).mean((2, 3)),
    "sigmoid": lambda x: torch.sigmoid(made(x)),
    "tanh": lambda x: torch.tanh(made(x)),
    "interpolate": lambda x: functional.interpolate(made(x), scale_factor=2.0, mode="nearest"),
    "flatten": lambda x: made(x).flatten(1),
    "reshape": lambda x: made(x).reshape(2, 4, 2, 36),
    "permute": lambda x: made(x).permute(0, 2, 3, 1),
    "slice": lambda x: made(x)[:, 2:5],
    "select": lambda x: made(x)[:, 2],
    "chunk": lambda x: made(x).chunk(2, 1)[1],
    "contiguous": lambda x: made(x).permute(0, 2, 3, 1).contiguous(),
}


def test_every_operator_is_called() -> None:
    assert {*CALLS, *PRODUCTS} >= QUANTISED_TENSORS.keys()


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    function, make, x = PRODUCTS[name]
    weights = make()
    wanted = function(weights, x)
    scripted = frozen(_Module(lambda *arguments: torch.neg(function(*arguments).dequantize()), weights), x)
    assert_within_steps(-scripted(x), wanted.dequantize(), wanted.q_scale())
    assert_compiled_whole()


@pytest.mark.parametrize("name", [*CALLS, *OTHERS])
def test_operators(name: str) -> None:
    function, inputs = CALLS[name] if name in CALLS else (OTHERS[name], (X,))
    wanted = function(*inputs)
    # An operator follows, so that the whole is large enough for a group.
    scripted = frozen(lambda *arguments: torch.neg(function(*arguments).dequantize()), *inputs)
    # PyTorch's own kernels of averages round ties differently, by layout and zero point.
    share = 0.3 if "avg" in name or name == "mean" else 0.02
    assert_within_steps(-scripted(*inputs), wanted.dequantize(), wanted.q_scale(), share=share)
    assert_compiled_whole()


# --- models -----------------------------------------------------------------------------------------------------------


class Network(nn.Module):
    """Convolutions with a residual and a pooling, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.branch = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16))
        self.down = nn.Sequential(nn.Conv2d(16, 24, 1, stride=2), nn.Hardswish())
        self.last = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.stem(x), 2)
        x = self.down(torch.relu(self.branch(x) + x))
        return self.last(x.mean((2, 3)))


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 96), nn.Linear(96, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


def quantised_by_fx(module: nn.Module, x: Tensor) -> nn.Module:
    prepared = prepare_fx(module.eval(), quantisation.get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    return convert_fx(prepared)


def quantised_eagerly(module: nn.Module, x: Tensor) -> nn.Module:
    wrapped = quantisation.QuantWrapper(module.eval())
    wrapped.qconfig = quantisation.get_default_qconfig("x86")
    quantisation.prepare(wrapped, inplace=True)
    wrapped(x)
    return quantisation.convert(wrapped)


def quantised_dynamically(module: nn.Module, x: Tensor) -> nn.Module:
    return quantisation.quantize_dynamic(module.eval(), {nn.Linear}, dtype=torch.qint8)


IMAGE, MATRIX = (torch.randn(*s, generator=torch.Generator().manual_seed(0)) for s in ((2, 3, 16, 16), (12, 64)))


@pytest.mark.parametrize(
    ("quantise", "build", "x"),
    [
        (quantised_by_fx, Network, IMAGE),
        (quantised_by_fx, Rows, MATRIX),
        (quantised_eagerly, Rows, MATRIX),
        (quantised_dynamically, Network, IMAGE),
        (quantised_dynamically, Rows, MATRIX),
        (quantised_dynamically, Rows, torch.zeros(3, 64)),
        (quantised_dynamically, Rows, -MATRIX.abs()),
    ],
)
def test_models(quantise: Callable[[nn.Module, Tensor], nn.Module], build: Callable[[], nn.Module], x: Tensor) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        model = quantise(build(), x)
        wanted = model(x)
        scripted = frozen(model, x)
        # A tie that rounds differently in one layer is a difference of one step in the next layer.
        step = wanted.abs().max().item() / 64 or 1.0
        assert_within_steps(scripted(x), wanted, step, steps=3, share=1.0)
        assert (scripted(x) - wanted).abs().mean() <= step / 4
    assert_compiled_whole()


def test_weights_that_are_attributes_stay_with_pytorch() -> None:
    with torch.no_grad():
        model = quantised_by_fx(Rows(), MATRIX)
        traced = torch.jit.trace(model, MATRIX, check_trace=False)
        for _ in range(3):
            assert_matches(traced(MATRIX), model(MATRIX))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)])
@pytest.mark.parametrize("dtype", [torch.quint8, torch.qint8])
def test_quantised_tensors_from_outside(dtype: torch.dtype, order: tuple[int, ...]) -> None:
    """Inputs and results are quantised tensors. Each scale has a specialisation."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(quantized.add(x, y, SCALE, 3)).permute(order)

    def inputs(scale: float) -> tuple[Tensor, Tensor]:
        return tuple(torch.quantize_per_tensor(x, scale, 5, dtype) for x in (X, Y))  # type: ignore[return-value]

    scripted = frozen(function, *inputs(0.0523))
    assert_compiled_whole()
    for scale in (0.0523, 0.0317, 0.0523):
        result, wanted = scripted(*inputs(scale)), function(*inputs(scale))
        for _ in range(3):
            result = scripted(*inputs(scale))
        assert (result.dtype, result.q_scale(), result.q_zero_point()) == (
            dtype,
            wanted.q_scale(),
            wanted.q_zero_point(),
        )
        assert result.stride() == wanted.stride()
        assert_within_steps(result.dequantize(), wanted.dequantize(), wanted.q_scale())
    assert torchmdla.stats().specialisations == 2
    assert not torchmdla.stats().fallbacks


def test_operators_outside_of_groups_are_between_groups() -> None:
    """A transposed convolution stays with PyTorch, between two groups."""
    module = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.ConvTranspose2d(16, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    torch.backends.quantized.engine = "qnnpack"
    prepared = prepare_fx(module.eval(), quantisation.get_default_qconfig_mapping("qnnpack"), (X,))
    prepared(X)
    with torch.no_grad():
        model = convert_fx(prepared)
        scripted = frozen(model, X)
        wanted = model(X)
        assert_within_steps(scripted(X), wanted, wanted.abs().max().item() / 64, steps=2, share=1.0)
    stats = torchmdla.stats()
    assert not stats.fallbacks
    assert stats.groups == 2
    assert all(group.compiled_calls for group in stats.by_group)

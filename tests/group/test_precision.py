"""Precisions that PyTorch's switches set: autocast, the default dtype, and float32 products in bfloat16."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from graphs import warmed_up
from torch import Tensor, nn

import torchmdla
from torchmdla import devices
from torchmdla.testing.compare import TOLERANCES, assert_matches
from torchmdla.testing.frontends import variant_of

X = torch.randn(8, 64)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return torch.softmax(self.last(torch.cat([self.norm(x), x]).tanh()), -1)


class Image(nn.Module):
    """A convolution with a norm after it, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.Linear(32, 48)

    def forward(self, x: Tensor) -> Tensor:
        image = torch.relu(self.norm(self.conv(x.view(-1, 16, 2, 2).repeat(1, 1, 4, 4))))
        return self.last(image.mean((2, 3)))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.LSTM(16, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x.view(4, 8, 16))[0]


MODELS: list[Callable[[], nn.Module]] = [Net, Image, Network]


@contextlib.contextmanager
def mode_of_jit(enabled: bool) -> Iterator[None]:
    """Set for a ``with`` block whether TorchScript writes casts into graphs under autocast."""
    before = torch._C._jit_set_autocast_mode(enabled)
    try:
        yield
    finally:
        torch._C._jit_set_autocast_mode(before)


def traced(model: nn.Module) -> Any:
    return torch.jit.freeze(torch.jit.trace(model, (X,), check_trace=False))


@pytest.mark.parametrize("by_jit", [True, False], ids=["casts in the graph", "casts by the dispatcher"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", MODELS)
def test_autocast(make: Callable[[], nn.Module], dtype: torch.dtype, by_jit: bool) -> None:
    if make is Network and (dtype == torch.float16 or not torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        pytest.skip("eager has no such network on this processor")
    model = make().eval()
    scripted = traced(model)
    with mode_of_jit(by_jit), torch.no_grad():
        for _ in range(2):
            for _ in range(3):
                assert_matches(scripted(X), model(X), layers=4)
            for _ in range(3):
                with torch.autocast("cpu", dtype):
                    assert_matches(scripted(X), model(X), layers=4)
    assert torchmdla.stats().fallbacks == {}
    assert torchmdla.stats().specialisations == 2


def test_autocast_with_gradients() -> None:
    results = []
    for captured in (False, True):
        torch.manual_seed(1)
        model: Any = Net()
        called = torch.jit.trace(model, (X,), check_trace=False) if captured else model
        for _ in range(4):
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                result = called(X)
            result.square().sum().backward()
        results.append((result, [parameter.grad for parameter in model.parameters()]))
    assert_matches(results[1][0], results[0][0], layers=4)
    for gradient, other in zip(results[1][1], results[0][1], strict=True):
        assert (gradient - other).abs().max() <= 0.05 * other.abs().max()


# Whether matrix products, convolutions and recurrent networks are rounded, by setting of ``torch.backends.mkldnn``.
SETTINGS: dict[str, tuple[bool, bool, bool]] = {
    "all": (True, True, True),
    "matmul": (True, False, False),
    "conv": (False, True, False),
    "rnn": (False, False, True),
}


@contextlib.contextmanager
def precision(setting: str) -> Iterator[None]:
    # The attribute `fp32_precision` has the same effect. PyTorch's own tests, which others here import, forbid setting
    # it.
    torch._C._set_fp32_precision_setter("mkldnn", setting, "bf16")
    try:
        yield
    finally:
        torch._C._set_fp32_precision_setter("mkldnn", setting, "none")


def conv(x: Tensor, weight: Tensor) -> Tensor:
    return torch.relu(nn.functional.conv2d(x.view(1, 16, 8, 4), weight.view(16, 16, 1, 1))) * 2


@pytest.mark.parametrize(("setting", "rounded"), SETTINGS.items(), ids=SETTINGS)
def test_products_of_float32(setting: str, rounded: tuple[bool, bool, bool]) -> None:
    takes = devices.require(devices.get("cpu"), devices.Arithmetic).multiplies_bf16
    network = Network().eval()
    calls: list[tuple[Any, tuple[Tensor, ...]]] = [
        (torch.jit.script(matmul), (X, torch.randn(64, 32))),
        (torch.jit.script(conv), (X, torch.randn(256))),
        (traced(network), (X,)),
    ]
    with torch.no_grad():
        exact = [warmed_up(function, *inputs)(*inputs) for function, inputs in calls]
        with precision(setting):
            reduced = [[function(*inputs) for _ in range(3)][-1] for function, inputs in calls]
        again = [function(*inputs) for function, inputs in calls]
    for was, now, later, is_rounded in zip(exact, reduced, again, rounded, strict=True):
        error = (now - was).abs().max() / was.abs().max()
        least = TOLERANCES[torch.float32].relative
        assert (least < error < TOLERANCES[torch.bfloat16].relative) if takes and is_rounded else error < least
        assert torch.equal(was, later)


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    return torch.relu(x @ weight) * 2


@pytest.mark.parametrize("make", MODELS)
def test_medium_precision_of_models(make: Callable[[], nn.Module]) -> None:
    model = make().eval()
    scripted = torch.jit.trace(model, (X,), check_trace=False)
    with torch.no_grad(), precision("all"):
        result = [scripted(X) for _ in range(3)][-1]
    exact = model.double()(X.double())
    error = (result - exact).abs().max() / exact.abs().max()
    assert error < TOLERANCES[torch.bfloat16].relative
    assert torchmdla.stats().fallbacks == {}


def test_the_setting_of_a_call_counts(queue: list[Callable[[], None]]) -> None:
    """The setting at the time of the call counts, not the setting at the later compilation."""

    def product(x: Tensor, weight: Tensor) -> Tensor:
        return torch.tanh(x @ weight) * 2

    weight = torch.randn(64, 32)
    scripted = warmed_up(torch.jit.script(product), X, weight)
    exact = scripted(X, weight)
    torchmdla.enable(background=True)
    with torch.no_grad(), precision("all"):
        scripted(X, weight)
    with torch.no_grad():
        (compile_it,) = queue
        compile_it()
    with torch.no_grad(), precision("all"):
        result = scripted(X, weight)
    assert torch.equal(result, exact) is not devices.require(devices.get("cpu"), devices.Arithmetic).multiplies_bf16
    assert torch.equal(scripted(X, weight), exact)


def test_it_is_a_setting_of_torch() -> None:
    """``set_float32_matmul_precision`` has the same effect."""
    before = torch.get_float32_matmul_precision()
    weight = torch.randn(64, 32)
    with torch.no_grad():
        function = warmed_up(torch.jit.script(matmul), X, weight)
        exact = function(X, weight)
        torch.set_float32_matmul_precision("medium")
        try:
            result = [function(X, weight) for _ in range(3)][-1]
        finally:
            torch.set_float32_matmul_precision(before)
            # The call above sets more than before. It leaves a setting for matmul, which the general setting does not
            # reset.
            torch._C._set_fp32_precision_setter("mkldnn", "matmul", "none")
    assert torch.equal(result, exact) is not devices.require(devices.get("cpu"), devices.Arithmetic).multiplies_bf16


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def floats_of_integers(x: Tensor, y: Tensor) -> list[Tensor]:
    quotient = x / y
    quotient += x
    return [quotient * 2 + 1, torch.sin(x) * 2, x * 0.5 + y, torch.logsumexp(x.exp(), 0) * 2 + x, torch.exp(x / y)]


INTEGERS = torch.arange(8), torch.arange(1, 9)
VARIANTS = ["torchscript:trace", "torchscript:script", "dynamo:compile", "export:export", "dispatch:capture"]


@pytest.mark.parametrize("way", [*VARIANTS, "lazy:step", "acap:device"])
def test_the_default_dtype_is_part_of_a_specialisation(way: str) -> None:
    variant = variant_of(way)
    variant.prepare()
    inputs = tuple(x.to(variant.device) for x in INTEGERS)
    function = variant.capture(floats_of_integers, inputs, ("forward",))["forward"]
    with torch.no_grad():
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
            with default_dtype(dtype):
                results = [function(*inputs) for _ in range(3)][-1]
                assert_matches([x.cpu() for x in results], floats_of_integers(*INTEGERS), layers=2)
    assert torchmdla.stats().fallbacks == {}


def test_the_default_dtype_of_a_call_counts(queue: list[Callable[[], None]]) -> None:
    """A background compilation may run while another default dtype is set."""
    scripted = warmed_up(torch.jit.script(floats_of_integers), *INTEGERS)
    torchmdla.enable(background=True)
    for _ in range(2):
        with torch.no_grad(), default_dtype(torch.float64):
            results, wanted = scripted(*INTEGERS), floats_of_integers(*INTEGERS)
        assert_matches(results, wanted)
        assert len(queue) == 1
        queue.pop()()
    with torch.no_grad(), default_dtype(torch.float64):
        scripted(*INTEGERS)
        queue.pop()()
        assert_matches(scripted(*INTEGERS), wanted)
    assert torchmdla.stats().specialisations == 2

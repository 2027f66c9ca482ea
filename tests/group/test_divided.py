"""Groups with an op that does not compile: they are divided around it, and the rest runs compiled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fragile_device import FragileDevice
from torch import Tensor, nn
from torch.nn import functional

import torchmdla
from torchmdla import devices
from torchmdla.capture import refusals, specialise
from torchmdla.errors import CompileError
from torchmdla.testing.compare import assert_matches

X = torch.randn(8, 6)
IMAGE = torch.randn(1, 3, 8, 8)


pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture(autouse=True)
def clear_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specialise, "_warned", set())


@pytest.fixture
def fragile() -> Iterator[None]:
    devices.register(FragileDevice())
    torchmdla.enable(device="fragile")
    yield
    torchmdla.enable()


class Around(nn.Module):
    """An op between two blocks with weights."""

    def __init__(self, op: Callable[..., Tensor], features: int) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.LayerNorm(features), nn.Linear(features, features), nn.GELU())
        self.after = nn.Sequential(nn.Linear(features, features), nn.ReLU())
        self.op = op

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.after(self.op(self.before(x), *others))


def of_integers(x: Tensor, exponents: Tensor) -> Tensor:
    return x + ((x * 10).to(torch.int64) ** exponents) % 5


def bicubic(x: Tensor, grid: Tensor) -> Tensor:
    return functional.grid_sample(x, grid, mode="bicubic", align_corners=False)


def masked(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask]


# The op, its inputs, and the start of the reason for leaving it out.
OPS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], str]] = {
    "mask": (masked, (X, X[:, 0] > 0), "aten::index.Tensor: a mask as an index"),
    "grid": (bicubic, (IMAGE, torch.rand(1, 8, 8, 2) * 2 - 1), "aten::grid_sampler: bicubic"),
    "power": (of_integers, (X, torch.randint(0, 4, (8, 6))), "aten::pow.Tensor_Tensor: a power of integers"),
}

VARIANTS: dict[str, Callable[..., Any]] = {
    "trace": lambda module, *inputs: torchmdla.compile(module, *inputs),
    "script": lambda module, *inputs: torch.jit.trace(module, inputs, check_trace=False),
    "export": lambda module, *inputs: torchmdla.compile(module, *inputs, frontend="export"),
    "dynamo": lambda module, *inputs: torch.compile(module, backend="torchmdla"),
}


def warm(compiled: Callable[..., Tensor], *inputs: Tensor) -> None:
    refusals.call_until_compiled(lambda: compiled(*inputs), least=torchmdla.api.WARM_UP_CALLS)


@pytest.mark.parametrize("way", VARIANTS)
@pytest.mark.parametrize("name", OPS)
def test_the_rest_of_the_group_is_compiled(name: str, way: str) -> None:
    op, inputs, left_out = OPS[name]
    if (name, way) in (("mask", "export"), ("mask", "dynamo"), ("grid", "dynamo")):
        pytest.skip("on this frontend no group takes the op")
    module = Around(op, inputs[0].shape[-1]).eval()
    compiled = VARIANTS[way](module, *inputs)
    warm(compiled, *inputs)
    stats = torchmdla.stats()
    assert stats.specialisations == 2
    assert [row.startswith(left_out) for row in stats.left_out] == [True]
    torchmdla.reset_stats()
    assert_matches(compiled(*inputs), module(*inputs), layers=4)
    stats = torchmdla.stats()
    assert (stats.specialisations, stats.left_out, stats.fallbacks) == (0, {}, {})


@pytest.mark.usefixtures("without_gradients")
def test_mask_that_selects_nothing_at_first_selects_later() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.exp(x[x > 0] * 2) + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(function, backend="torchmdla", fullgraph=True)
        for x in (-X.abs(), X):
            assert_matches(compiled(x), function(x))


def test_left_out_operators_are_reported_with_their_line() -> None:
    op, inputs, left_out = OPS["mask"]
    with pytest.warns(RuntimeWarning, match="an op, with compiled groups around it,") as seen:
        torchmdla.compile(Around(op, 6).eval(), *inputs)
    (told,) = [str(warning.message) for warning in seen if left_out in str(warning.message)]
    ((row, count),) = torchmdla.stats().left_out.items()
    line = re.escape(f"{__file__}:{op.__code__.co_firstlineno + 1}")
    assert re.search(rf"{line}\)$", told) and re.search(rf"{line}\)$", row)
    assert row.startswith(left_out) and count == 1


def test_strict_mode_raises_each_time() -> None:
    op, inputs, _ = OPS["power"]
    torchmdla.enable(strict=True)
    for _ in range(2):
        with pytest.raises(CompileError, match="a power of integers") as raised:
            torchmdla.compile(Around(op, 6).eval(), *inputs)
        assert raised.value.op == "aten::pow.Tensor_Tensor"
        assert "test_divided.py:" in raised.value.source


def roots(depth: int) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        for _ in range(depth):
            x = torch.relu(x @ x.t() @ x).atan() + 1
        return x

    return function


def test_an_op_fails_once_for_all_groups_and_models(fragile: None) -> None:
    first = torchmdla.compile(roots(3), X)
    assert_matches(first(X), roots(3)(X), layers=6)
    assert torchmdla.stats().failures == 1
    assert torchmdla.stats().specialisations == 3
    other = torch.randn(5, 9)
    second = torchmdla.compile(roots(2), other)
    assert_matches(second(other), roots(2)(other), layers=6)
    assert torchmdla.stats().failures == 1
    assert sum(torchmdla.stats().left_out.values()) == 5
    assert torchmdla.stats().fallbacks == {}


def test_an_op_that_ends_the_compiler_is_found(fragile: None) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.erf(torch.softmax(x * 2, 1) + 1).cumsum(0) + 1

    with pytest.warns(RuntimeWarning, match="aten::erf: the compiler process died"):
        compiled = torchmdla.compile(function, X)
    assert_matches(compiled(X), function(X))
    assert torchmdla.stats().specialisations == 2
    assert torchmdla.stats().fallbacks == {}
    deaths = torchmdla.stats().failures
    other = torch.randn(3, 4)
    assert_matches(torchmdla.compile(function, other)(other), function(other))
    assert torchmdla.stats().failures == deaths


def test_a_device_supports_operators_by_types(fragile: None) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.softmax(x, -1).exp().cumsum(0) + 1

    for x, parts in ((X, 2), (torch.randn(2, 3, 4), 1)):
        torchmdla.reset_stats()
        compiled = torchmdla.compile(function, x)
        assert_matches(compiled(x), function(x))
        stats = torchmdla.stats()
        assert (stats.specialisations, stats.failures, stats.fallbacks) == (parts, 0, {})
        assert len(stats.left_out) == parts - 1


def test_weights_stay_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = []
    compile_program = specialise.service.compile_program
    monkeypatch.setattr(
        specialise.service, "compile_program", lambda program: (programs.append(program), compile_program(program))[1]
    )
    op, inputs, _ = OPS["mask"]
    module = Around(op, 6)
    warm(torch.jit.trace(module, inputs, check_trace=False), *inputs)
    roles = [sorted(argument.role for argument in program.arguments) for program in programs]
    assert roles == [["input", *["parameter"] * 4], ["input", *["parameter"] * 2]]


def test_sizes_past_the_most_specialisations() -> None:
    op, _, _ = OPS["mask"]
    module = Around(op, 6).eval()
    torchmdla.enable(max_specialisations=3)
    compiled = torchmdla.compile(module, X, torch.arange(len(X)) % 3 != 0)
    for rows in range(3, 12):
        x = torch.randn(rows, 6)
        mask = torch.arange(rows) % 3 != 0
        assert_matches(compiled(x, mask), module(x, mask), layers=4)
    assert torchmdla.stats().dynamic >= 1
    assert torchmdla.stats().fallbacks == {}


def test_an_op_alone_falls_back() -> None:
    function = torch.jit.trace(lambda x, mask: (x.t()[mask],), (X, X[0] > 0), check_trace=False)
    for _ in range(4):
        assert_matches(function(X, X[0] > 0)[0], X.t()[X[0] > 0])
    assert torchmdla.stats().left_out == {}

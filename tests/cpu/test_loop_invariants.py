"""Work on parameters alone inside larger steps is packed, so that a norm costs no more than a bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from nest_running import host_target
from test_tile_fusion import all_nests
from torch import Tensor
from torch.nn import functional
from written_programs import TracedProgram, normal

from torchmdla.compiler.program import Target
from torchmdla.devices.cpu.ir.expressions import Contents
from torchmdla.devices.cpu.ir.loop_program import LoopNest

Program = Callable[[str], TracedProgram]


def scaled(x: Tensor, variance: Tensor, mean: Tensor, weight: Tensor) -> Tensor:
    """Return ``x * f + t`` for each channel, with ``f = rsqrt(variance + 0.5) * weight`` and ``t = -mean * f``."""
    sizes = [1, -1] + [1] * (x.dim() - 2)
    factor = (variance + 0.5).rsqrt() * weight
    return x * factor.view(sizes) + (-mean * factor).view(sizes)


def normed(role: str, channels: int, x: Tensor, *weights: Tensor, function: Callable[..., Any]) -> TracedProgram:
    """Return a program of a function of ``x``, a norm's statistics of that role and its weight, and other weights."""
    statistics = normal(channels).abs() + 0.5, normal(channels) + 1
    parameters = normal(channels), *weights
    if role == "input":
        return TracedProgram(function, x, *statistics, weights=parameters)
    return TracedProgram(function, x, weights=(*statistics, *parameters))


def after_a_convolution(
    role: str, channels: int = 32, groups: int = 1, then: Callable[..., Any] = scaled
) -> TracedProgram:
    def function(x: Tensor, variance: Tensor, mean: Tensor, weight: Tensor, kernel: Tensor) -> Any:
        return then(functional.conv2d(x, kernel, groups=groups), variance, mean, weight)

    ins = channels if groups > 1 else 16
    kernel = normal(channels, ins // groups, 3, 3) / (12 if groups == 1 else 3)
    return normed(role, channels, normal(2, ins, 9, 9), kernel, function=function)


def with_a_partial_block(role: str, then: Callable[..., Any] = scaled) -> TracedProgram:
    return after_a_convolution(role, channels=21, then=then)


def after_a_depthwise_convolution(role: str, then: Callable[..., Any] = scaled) -> TracedProgram:
    return after_a_convolution(role, groups=32, then=then)


def after_a_product(role: str, rows: int = 40, then: Callable[..., Any] = scaled) -> TracedProgram:
    def function(x: Tensor, variance: Tensor, mean: Tensor, weight: Tensor, matrix: Tensor) -> Any:
        return then(torch.mm(x, matrix), variance, mean, weight)

    return normed(role, 48, normal(rows, 24), normal(24, 48) / 5, function=function)


def alone(role: str) -> TracedProgram:
    return normed(role, 20, normal(3, 20, 5, 7), function=scaled)


def of_a_matrix(role: str) -> TracedProgram:
    return normed(role, 20, normal(33, 20), function=scaled)


AFTER_PRODUCTS = [after_a_convolution, with_a_partial_block, after_a_depthwise_convolution, after_a_product]
PROGRAMS = [*AFTER_PRODUCTS, alone, of_a_matrix]


@pytest.mark.parametrize("target", [host_target(), host_target("")], ids=["host", "narrow"])
@pytest.mark.parametrize("role", ["parameter", "input"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_results(program: Program, role: str, target: Target) -> None:
    program(role).check(target)


def nests_over_images(program: TracedProgram) -> list[LoopNest]:
    """Return the steps that a call runs over whole images."""
    return [nest for nest in all_nests(program.steps()) if torch.Size(nest.sizes).numel() > 128]


def ops_per_element(program: TracedProgram) -> set[str]:
    """Return the names of the instructions in the steps that a call runs over whole images."""
    return {e.op for s in nests_over_images(program) for body in bodies(s) for e in body.expressions if e.operands}


def bodies(step: LoopNest) -> list[Contents]:
    return [step.body, step.epilogue.body] if step.epilogue else [step.body]


@pytest.mark.parametrize("role", ["parameter", "input"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_but_a_product_and_a_sum_is_left(program: Program, role: str) -> None:
    assert ops_per_element(program(role)) == {"arith.mulf", "arith.addf"}


def test_packs_depend_on_parameters_only() -> None:
    def packs(role: str) -> int:
        manifest = alone(role).check().manifest
        assert all(manifest.arguments[k].role == "parameter" for pack in manifest.packs for k in pack.arguments)
        return len(manifest.packs)

    assert packs("parameter") > packs("input") == 0


def twice(role: str) -> TracedProgram:
    """Return two norms of convolutions with one shared weight. Each norm scales the weight by a different factor."""

    def function(x: Tensor, variance: Tensor, mean: Tensor, weight: Tensor, kernel: Tensor) -> Any:
        statistics = (variance, mean), (variance + 1, mean * 2)
        images = zip(x.split(2), statistics, strict=True)
        return tuple(scaled(functional.conv2d(image, kernel), *each, weight) for image, each in images)

    return normed(role, 32, normal(4, 16, 9, 9), normal(32, 16, 3, 3) / 12, function=function)


def squared(role: str) -> TracedProgram:
    """Return a program that reads the normalised convolution twice."""
    return after_a_convolution(role, then=lambda *operands: (result := scaled(*operands)) * result)


@pytest.mark.parametrize("role", ["parameter", "input"])
@pytest.mark.parametrize("program", [twice, squared])
def test_results_of_other_programs(program: Program, role: str) -> None:
    program(role).check()


def clamped(*operands: Tensor) -> Tensor:
    return scaled(*operands).clamp(0, 6)


@pytest.mark.parametrize("program", AFTER_PRODUCTS)
def test_weights_take_the_factor(program: Callable[..., TracedProgram]) -> None:
    """Check that the weights absorb the factor of a norm whose statistics are parameters, as in a frozen module.

    An operator after the norm does not change this. If the statistics are inputs, the factor stays in the epilogue.
    """

    def ops_after(program: TracedProgram) -> list[str]:
        epilogues = [s.epilogue for s in nests_over_images(program) if s.epilogue]
        return [e.op for epilogue in epilogues for e in epilogue.body.expressions if e.operands]

    assert ops_after(program("parameter")) == ["arith.addf"]
    assert ops_after(program("input")) == ["arith.mulf", "arith.addf"]
    assert "arith.mulf" not in ops_after(program("parameter", then=clamped))
    assert "arith.mulf" in ops_after(program("input", then=clamped))


def test_a_norm_before_a_mean_stays_with_the_convolution() -> None:
    """Check the place of a norm whose only reader is a mean, as at the end of image networks.

    In the body of the mean, the weights could not absorb the factor.
    """
    program = after_a_convolution("parameter", then=lambda *operands: clamped(*operands).mean((2, 3), keepdim=True))
    program.check()
    product, mean = (s for s in nests_over_images(program) if any(s.reduction))
    assert product.epilogue is not None
    assert "arith.mulf" not in {e.op for e in product.epilogue.body.expressions}
    assert [e.op for e in mean.body.expressions if e.operands] == ["arith.addf"]


def test_weights_that_are_used_once_stay() -> None:
    manifest = after_a_product("parameter", rows=2).check().manifest
    assert all(pack.size < 24 * 48 * 4 for pack in manifest.packs)

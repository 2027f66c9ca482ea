"""Work on parameters alone inside larger steps is packed, so that a norm costs no more than a bias."""

from __future__ import annotations

import pytest
import torch
from nest_running import host_target
from torch.nn import functional
from torch_mlir import ir
from written_programs import Builder, Value, check, normal

from torchmdla.compiler.mlir import new_context
from torchmdla.compiler.program import Target
from torchmdla.devices.cpu.expressions import Contents
from torchmdla.devices.cpu.loop_program import LoopNest, TileLoop
from torchmdla.devices.cpu.lowering import loop_program


def scaled(b: Builder, x: Value, statistics: str) -> Value:
    """Build ``x * f + t`` for each channel, with ``f = rsqrt(variance + 0.5) * weight`` and ``t = -mean * f``.

    ``statistics`` is the role of mean and variance. The weight is a parameter.
    """
    channels = x.tensor.shape[1]
    variance = b.input(normal(channels).abs() + 0.5, statistics)
    weight, mean = b.input(normal(channels), "parameter"), b.input(normal(channels) + 1, statistics)
    moved = b.op("aten.add.Scalar", [variance, 0.5, 1], variance.tensor + 0.5)
    root = b.op("aten.rsqrt", [moved], moved.tensor.rsqrt())
    factor = b.op("aten.mul.Tensor", [root, weight], root.tensor * weight.tensor)
    negative = b.op("aten.neg", [mean], -mean.tensor)
    term = b.op("aten.mul.Tensor", [negative, factor], negative.tensor * factor.tensor)
    sizes = [1, channels] + [1] * (x.tensor.dim() - 2)
    shaped = [b.op("aten.view", [v, sizes], v.tensor.view(sizes)) for v in (factor, term)]
    product = b.op("aten.mul.Tensor", [x, shaped[0]], x.tensor * shaped[0].tensor)
    return b.op("aten.add.Tensor", [product, shaped[1], 1], product.tensor + shaped[1].tensor)


def after_a_convolution(b: Builder, role: str, channels: int = 32) -> list[Value]:
    x, weight = b.input(normal(2, 16, 9, 9)), b.input(normal(channels, 16, 3, 3) / 12, "parameter")
    product = functional.conv2d(x.tensor, weight.tensor)
    operands = [x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    return [scaled(b, b.op("aten.convolution", operands, product), role)]


def with_a_partial_block(b: Builder, role: str) -> list[Value]:
    return after_a_convolution(b, role, channels=21)


def after_a_depthwise_convolution(b: Builder, role: str) -> list[Value]:
    x, weight = b.input(normal(2, 32, 9, 9)), b.input(normal(32, 1, 3, 3) / 3, "parameter")
    product = functional.conv2d(x.tensor, weight.tensor, groups=32)
    operands = [x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 32]
    return [scaled(b, b.op("aten.convolution", operands, product), role)]


def after_a_product(b: Builder, role: str) -> list[Value]:
    x, weight = b.input(normal(40, 24)), b.input(normal(24, 48) / 5, "parameter")
    return [scaled(b, b.op("aten.mm", [x, weight], x.tensor @ weight.tensor), role)]


def alone(b: Builder, role: str) -> list[Value]:
    return [scaled(b, b.input(normal(3, 20, 5, 7)), role)]


def of_a_matrix(b: Builder, role: str) -> list[Value]:
    return [scaled(b, b.input(normal(33, 20)), role)]


AFTER_PRODUCTS = [after_a_convolution, with_a_partial_block, after_a_depthwise_convolution, after_a_product]
PROGRAMS = [*AFTER_PRODUCTS, alone, of_a_matrix]


@pytest.mark.parametrize("target", [host_target(), host_target("")], ids=["host", "narrow"])
@pytest.mark.parametrize("role", ["parameter", "input"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_results(program, role: str, target: Target) -> None:
    builder = Builder()
    check(builder, program(builder, role), target)


def nests_over_images(program, role: str) -> list[LoopNest]:
    """Return the steps that a call runs over whole images."""
    builder = Builder()
    written = builder.program(program(builder, role), host_target())
    with new_context(), ir.Location.unknown():
        steps, _ = loop_program(written, {})
    nests = [s for s in steps.steps if isinstance(s, LoopNest)]
    nests += [member for s in steps.steps if isinstance(s, TileLoop) for member in s.members]
    return [s for s in nests if torch.Size(s.sizes).numel() > 128]


def ops_per_element(program, role: str) -> set[str]:
    """Return the names of the instructions in the steps that a call runs over whole images."""
    nests = nests_over_images(program, role)
    return {e.op for s in nests for body in bodies(s) for e in body.expressions if e.operands}


def bodies(step: LoopNest) -> list[Contents]:
    return [step.body, step.epilogue.body] if step.epilogue else [step.body]


@pytest.mark.parametrize("role", ["parameter", "input"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_but_a_product_and_a_sum_is_left(program, role: str) -> None:
    assert ops_per_element(program, role) == {"arith.mulf", "arith.addf"}


def test_packs_depend_on_parameters_only() -> None:
    def packs(role: str) -> int:
        builder = Builder()
        manifest = check(builder, alone(builder, role)).manifest
        assert all(manifest.arguments[k].role == "parameter" for pack in manifest.packs for k in pack.arguments)
        return len(manifest.packs)

    assert packs("parameter") > packs("input") == 0


def twice(b: Builder, role: str) -> list[Value]:
    """Build two norms of convolutions with one shared weight. Each norm scales the weight by a different factor."""
    weight = b.input(normal(32, 16, 3, 3) / 12, "parameter")
    results = []
    for _ in range(2):
        x = b.input(normal(2, 16, 9, 9))
        product = functional.conv2d(x.tensor, weight.tensor)
        operands = [x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
        results.append(scaled(b, b.op("aten.convolution", operands, product), role))
    return results


def squared(b: Builder, role: str) -> list[Value]:
    """Build a program that reads the normalised convolution twice."""
    (normed,) = after_a_convolution(b, role)
    return [b.op("aten.mul.Tensor", [normed, normed], normed.tensor * normed.tensor)]


@pytest.mark.parametrize("role", ["parameter", "input"])
@pytest.mark.parametrize("program", [twice, squared])
def test_results_of_other_programs(program, role: str) -> None:
    builder = Builder()
    check(builder, program(builder, role))


@pytest.mark.parametrize("program", AFTER_PRODUCTS)
def test_weights_take_the_factor(program) -> None:
    """Check that the weights absorb the factor of a norm whose statistics are parameters, as in a frozen module.

    An operator after the norm does not change this. If the statistics are inputs, the factor stays in the epilogue.
    """

    def clamped(b: Builder, role: str) -> list[Value]:
        (normed,) = program(b, role)
        return [b.op("aten.clamp", [normed, 0, 6], normed.tensor.clamp(0, 6))]

    def ops_after(function, role: str) -> list[str]:
        epilogues = [s.epilogue for s in nests_over_images(function, role) if s.epilogue]
        return [e.op for epilogue in epilogues for e in epilogue.body.expressions if e.operands]

    assert ops_after(program, "parameter") == ["arith.addf"]
    assert ops_after(program, "input") == ["arith.mulf", "arith.addf"]
    assert "arith.mulf" not in ops_after(clamped, "parameter")
    assert "arith.mulf" in ops_after(clamped, "input")


def pooled(b: Builder, role: str) -> list[Value]:
    """Build the mean of each channel after a norm and an activation, as at the end of image networks."""
    (normed,) = after_a_convolution(b, role)
    clamped = b.op("aten.clamp", [normed, 0, 6], normed.tensor.clamp(0, 6))
    return [b.op("aten.mean.dim", [clamped, [2, 3], True, None], clamped.tensor.mean((2, 3), keepdim=True))]


def test_a_norm_before_a_mean_stays_with_the_convolution() -> None:
    """Check the place of a norm whose only reader is a mean.

    In the body of the mean, the weights could not absorb the factor.
    """
    builder = Builder()
    check(builder, pooled(builder, "parameter"))
    product, mean = (s for s in nests_over_images(pooled, "parameter") if any(s.reduction))
    assert product.epilogue is not None
    assert "arith.mulf" not in {e.op for e in product.epilogue.body.expressions}
    assert [e.op for e in mean.body.expressions if e.operands] == ["arith.addf"]


def test_weights_that_are_used_once_stay() -> None:
    def few_rows(b: Builder, role: str) -> list[Value]:
        x, weight = b.input(normal(2, 24)), b.input(normal(24, 48) / 5, "parameter")
        return [scaled(b, b.op("aten.mm", [x, weight], x.tensor @ weight.tensor), role)]

    builder = Builder()
    manifest = check(builder, few_rows(builder, "parameter")).manifest
    assert all(pack.size < 24 * 48 * 4 for pack in manifest.packs)

"""Work on parameters alone inside of larger steps: packed, so that a norm costs no more than a bias."""

from __future__ import annotations

import pytest
import torch
from test_lowering import Builder, Value, check, host_target, narrow_target, normal
from torch.nn import functional
from torch_mlir import ir

from torchmdla.compiler.program import Target
from torchmdla.devices.cpu.buffers import bufferize
from torchmdla.devices.cpu.frontend import new_context, to_linalg
from torchmdla.devices.cpu.fusion import fuse
from torchmdla.devices.cpu.reading import read_steps
from torchmdla.devices.cpu.steps import ChainStep, NestStep
from torchmdla.devices.cpu.transforms import transform


def scaled(b: Builder, x: Value, statistics: str) -> Value:
    """``x * f + t`` for each channel, ``f = rsqrt(variance + 0.5) * weight`` and ``t = -mean * f``.

    ``statistics``: the role of mean and variance; the weight is a parameter.
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
    made = functional.conv2d(x.tensor, weight.tensor)
    operands = [x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    return [scaled(b, b.op("aten.convolution", operands, made), role)]


def with_a_partial_block(b: Builder, role: str) -> list[Value]:
    return after_a_convolution(b, role, channels=21)


def alone(b: Builder, role: str) -> list[Value]:
    return [scaled(b, b.input(normal(3, 20, 5, 7)), role)]


def of_a_matrix(b: Builder, role: str) -> list[Value]:
    return [scaled(b, b.input(normal(33, 20)), role)]


PROGRAMS = [after_a_convolution, with_a_partial_block, alone, of_a_matrix]


@pytest.mark.parametrize("target", [host_target(), narrow_target()], ids=["host", "narrow"])
@pytest.mark.parametrize("role", ["parameter", "input"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_results(program, role: str, target: Target) -> None:
    builder = Builder()
    check(builder, program(builder, role), target)


def ops_per_element(program, role: str) -> set[str]:
    """What the steps that a call runs over whole images compute, by the names of their instructions."""
    builder = Builder()
    written = builder.program(program(builder, role), host_target())
    with new_context(), ir.Location.unknown():
        module = to_linalg(written)
        fuse(module)
        steps = read_steps(bufferize(module), written)
        transform(steps, written)
    nests = [s for s in steps.steps if isinstance(s, NestStep)]
    nests += [member for s in steps.steps if isinstance(s, ChainStep) for member in s.members]
    largest = [s for s in nests if torch.Size(s.sizes).numel() > 128]
    return {i.name for s in largest for i in (*s.body, *(s.ending.body if s.ending else ()))} - {"arith.constant"}


@pytest.mark.parametrize("role", ["parameter", "input"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_but_a_product_and_a_sum_is_left(program, role: str) -> None:
    assert ops_per_element(program, role) == {"arith.mulf", "arith.addf"}


def test_what_is_packed_follows_from_parameters_alone() -> None:
    def packs(role: str) -> int:
        builder = Builder()
        manifest = check(builder, alone(builder, role)).manifest
        assert all(manifest.arguments[k].role == "parameter" for pack in manifest.packs for k in pack.arguments)
        return len(manifest.packs)

    assert packs("parameter") > packs("input") == 0

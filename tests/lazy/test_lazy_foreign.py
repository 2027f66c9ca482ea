"""Foreign operators on PyTorch's lazy device: their kernels may write in any order."""

from __future__ import annotations

import pytest
import torch
import torch._lazy
from lazy_device import X, check
from torch import Tensor

import torchmdla
from torchmdla.testing.compare import assert_matches

pytestmark = pytest.mark.usefixtures("lazy_device")

prims = torch.ops.prims


@torch.library.custom_op("torchmdla_tests::ramp", mutates_args=())
def ramp(x: Tensor, step: int) -> Tensor:
    result = torch.empty_like(x)
    result.copy_(x)
    for row in range(result.size(0)):
        result[row] += step * row
    return result


@torch.library.custom_op("torchmdla_tests::halves", mutates_args=())
def halves(parts: list[Tensor], device: torch.device) -> list[Tensor]:
    results = [torch.zeros(part.shape, device=device) for part in parts]
    for result, part in zip(results, parts, strict=True):
        result.view(-1)[::2] = part.reshape(-1)[::2]
    return results


ramp.register_fake(lambda x, step: torch.empty_like(x))
ramp.register_autograd(lambda context, gradient: (gradient * 3, None))


def test_writes_to_views_inside_are_seen():
    x = torch.randn(3, 4)
    assert_matches((ramp(x.to("lazy") * 2, 5) + 1).cpu(), ramp(x * 2, 5) + 1)


def test_results_are_on_the_device():
    assert ramp(torch.ones(2, 2, device="lazy"), 1).device.type == "lazy"


def test_lists_and_devices():
    parts = [torch.randn(2, 3), torch.randn(5)]
    results = halves([part.to("lazy") for part in parts], torch.device("lazy"))
    assert_matches([part.cpu() for part in results], halves(parts, torch.device("cpu")))


def test_gradients():
    x = torch.randn(3, 4, device="lazy", requires_grad=True)
    (ramp(x, 2) * 2).sum().backward()
    assert_matches(x.grad.cpu(), torch.full((3, 4), 6.0))


def test_it_is_counted():
    torchmdla.reset_stats()
    halves([torch.ones(2, device="lazy")], torch.device("lazy"))
    assert torchmdla.stats().lazy.eager == {"torchmdla_tests::halves": 1}


def test_one_defined_later_than_the_tensors_it_takes():
    x = torch.randn(3, 4)
    moved = x.to("lazy")

    @torch.library.custom_op("torchmdla_tests::late", mutates_args=())
    def late(x: Tensor) -> Tensor:
        result = x.clone()
        result[0] = 7
        return result

    assert_matches(late(moved).cpu(), late(x))


def test_other_devices_and_torch_compile_are_as_ever():
    x = torch.randn(3, 4)
    compiled = torch.compile(lambda value: ramp(value, 3) * 2, backend="torchmdla")
    assert_matches(compiled(x), ramp(x, 3) * 2)
    assert_matches(torch.func.functionalize(lambda value: ramp(value, 3) * 2)(x), ramp(x, 3) * 2)


PRIMS = {
    "collapse": lambda x: prims.collapse(x, 0, 1),
    "collapse_of_one": lambda x: prims.collapse(x[0], 0, 0),
    "broadcast": lambda x: prims.broadcast_in_dim(x, [5, 3, 4], [1, 2]),
    "product": lambda x: prims.mul(x, prims.tanh(x)),
    "copy_to": lambda x: prims.copy_to(torch.zeros_like(x), x),
    "copy_strided": lambda x: prims.copy_strided(x, [1, 3]),
    "scattered": lambda x: prims.as_strided_scatter(x, x[:2, :2] * 2, [2, 2], [4, 1], 0),
    "without_tensors": lambda x: prims.iota(
        4, start=0, step=1, dtype=torch.int64, device=x.device, requires_grad=False
    ),
    "view": lambda x: [prims.split_dim(x, 1, 2).mul_(2), x],
    "collapsed_view": lambda x: [prims.collapse_view(x, 0, 1).add_(1), x],
    "strides": lambda x: [prims.as_strided(x, [2, 2], [1, 2], 1).add_(1), x],
}


@pytest.mark.parametrize("name", PRIMS)
def test_prims_are_taken_apart(name):
    """PyTorch's kernels of these prims call operators of ATen, and write to views of their results."""
    torchmdla.reset_stats()
    check(PRIMS[name], X)
    assert torchmdla.stats().lazy.eager == {}


def test_pytorchs_chunked_loss():
    """PyTorch defines this operator of its own like a foreign one."""
    options = torch.nn.LinearCrossEntropyOptions()
    x, weight, target = torch.randn(40, 8), torch.randn(50, 8), torch.randint(50, (40,))

    def loss(device: str) -> list[Tensor]:
        inputs = [x.to(device).detach().requires_grad_(), weight.to(device).detach().requires_grad_()]
        value = torch.nn.functional.linear_cross_entropy(*inputs, target.to(device), options=options)
        value.backward()
        return [value.detach().cpu(), *(leaf.grad.cpu() for leaf in inputs)]

    assert_matches(loss("lazy"), loss("cpu"))

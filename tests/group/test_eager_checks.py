"""Arguments that eager's kernels refuse because of the tensors' values.

Compiled code refuses them too, with eager's own error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators of `quantized_decomposed`
from graphs import warmed_up
from raising import assert_agrees
from torch import Tensor, tensor
from torch.nn import functional

import torchmdla


@dataclass(frozen=True)
class Checked:
    """A function, arguments that eager accepts, and others of the same types, of which eager refuses at least one."""

    function: Callable[..., Tensor]
    good: Sequence[Any]
    others: Sequence[Sequence[Any]]


_generator = torch.Generator().manual_seed(0)


def floats(*sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=_generator)


def lookup(function: Callable[..., Tensor], value: Tensor, good: Tensor, *wrong: int) -> Checked:
    """Build the check of a function of a tensor and indices. One index of ``good`` becomes each of ``wrong``."""
    others = []
    for number in wrong:
        places = good.clone()
        places.view(-1)[-1] = number
        others.append((value, places))
    return Checked(function, (value, good), others)


_NAN = float("nan")
_HALVES = tensor([0.2, 0.7])
_TARGETS = tensor([0.0, 1.0])
_OUTSIDE = [tensor([0.5, number]) for number in (1.5, -0.5, _NAN, float("inf"), -0.0, 1.0)]

LOSSES = {
    "binary_cross_entropy": Checked(
        functional.binary_cross_entropy,
        (_HALVES, _TARGETS),
        [*((wrong, _TARGETS) for wrong in _OUTSIDE), *((_HALVES, wrong) for wrong in _OUTSIDE)],
    ),
    "binary_cross_entropy, weighted": Checked(
        lambda x, y: functional.binary_cross_entropy(x, y, x + 1, reduction="none"),
        (_HALVES.double(), _TARGETS.double()),
        [(wrong.double(), _TARGETS.double()) for wrong in _OUTSIDE],
    ),
    "binary_cross_entropy, bfloat16": Checked(
        functional.binary_cross_entropy,
        (_HALVES.bfloat16(), _TARGETS.bfloat16()),
        [(wrong.bfloat16(), _TARGETS.bfloat16()) for wrong in _OUTSIDE],
    ),
    "nll_loss": lookup(functional.nll_loss, floats(2, 3), tensor([0, 2]), 3, -1, -7, -100),
    "nll_loss of an image": lookup(
        functional.nll_loss, floats(2, 3, 2, 2), tensor([[[0, 2], [1, 1]], [[0, 2], [1, 0]]]), 3, -1, -100
    ),
    "nll_loss of one class": lookup(functional.nll_loss, floats(2, 1), tensor([0, 0]), 1, -1, -100),
    "cross_entropy": lookup(functional.cross_entropy, floats(2, 3), tensor([0, 2]), 3, -1, -7, -100),
    "cross_entropy, smoothed": lookup(
        lambda x, i: functional.cross_entropy(x, i, label_smoothing=0.1), floats(2, 3), tensor([0, 2]), 3, -1, -100
    ),
    "multi_margin_loss": lookup(functional.multi_margin_loss, floats(2, 3), tensor([0, 2]), 3, -1),
    "multi_margin_loss of one class": lookup(functional.multi_margin_loss, floats(2, 1), tensor([0, 0]), 1, -1),
    "multilabel_margin_loss": lookup(
        functional.multilabel_margin_loss, floats(2, 3), tensor([[0, 1, -1], [2, 1, 0]]), 3, -1, -2
    ),
    "one_hot": lookup(lambda x, i: x * functional.one_hot(i, 3), floats(2, 3), tensor([0, 2]), 3, -1),
}

LOOKUPS = {
    "index_select": lookup(lambda x, i: x.index_select(0, i), floats(4, 3), tensor([0, 2]), 4, -1, 10**9),
    "index_select of one row": lookup(lambda x, i: x.index_select(0, i), floats(1, 3), tensor([0]), 1, -1),
    "index_select of one column": lookup(lambda x, i: x.index_select(-1, i), floats(3, 1), tensor([0]), 1, -1),
    "index_select of 0-d": lookup(lambda x, i: x.index_select(0, i), tensor(3.0), tensor([0]), 1, -1, 10**9),
    "index_select at 0-d": lookup(lambda x, i: x.index_select(0, i), floats(3, 2), tensor(2), 3, -1),
    "index_select of 0-d at 0-d": lookup(lambda x, i: x.index_select(0, i), tensor(3.0), tensor(0), 1, -1),
    "gather": lookup(lambda x, i: x.gather(1, i), floats(2, 3), tensor([[0], [2]]), 3, -1),
    "gather of one column": lookup(lambda x, i: x.gather(1, i), floats(2, 1), tensor([[0], [0]]), 1, -1),
    "gather of 0-d": lookup(lambda x, i: x.gather(0, i), tensor(3.0), tensor(0), 1, -1),
    "gather at 0-d": lookup(lambda x, i: x.gather(0, i), floats(3), tensor(2), 3, -1),
    "take_along_dim": lookup(lambda x, i: torch.take_along_dim(x, i, 1), floats(2, 3), tensor([[0], [2]]), 3, -1, -4),
    "embedding": lookup(lambda x, i: functional.embedding(i, x), floats(4, 3), tensor([0, 2]), 4, -1),
    "embedding of one row": lookup(lambda x, i: functional.embedding(i, x), floats(1, 3), tensor([0]), 1, -1),
    "index": lookup(lambda x, i: x[i], floats(4, 3), tensor([0, 2]), 4, -1, -4, -5),
    "index of a later dimension": lookup(lambda x, i: x[:, i], floats(4, 3), tensor([0, 2]), 3, -1, -3, -4),
    "index of one row": lookup(lambda x, i: x[i], floats(1, 3), tensor([0, 0]), 1, -1, -2),
    "scatter": lookup(lambda x, i: x.scatter(1, i, 5.0), floats(2, 3), tensor([[0], [2]]), 3, -1),
    "scatter to one column": lookup(lambda x, i: x.scatter(1, i, 5.0), floats(2, 1), tensor([[0], [0]]), 1, -1),
    "scatter to 0-d": lookup(lambda x, i: x.scatter(0, i, 5.0), tensor(3.0), tensor(0), 1, -1),
    "take": lookup(torch.take, floats(4, 3), tensor([0, 11]), 12, -1, -12, -13),
    "put": lookup(lambda x, i: x.put(i, x[0, :2]), floats(4, 3), tensor([0, 11]), 12, -1, -12, -13),
    "index_add": lookup(lambda x, i: x.index_add(0, i, x[:2]), floats(4, 3), tensor([0, 2]), 4, -1),
    "index_copy": lookup(lambda x, i: x.index_copy(0, i, x[:2]), floats(4, 3), tensor([0, 2]), 4, -1),
    "index_fill": lookup(lambda x, i: x.index_fill(0, i, 2.0), floats(4, 3), tensor([0, 2]), 4, -1, -4, -5),
    "index_reduce": lookup(lambda x, i: x.index_reduce(0, i, x[:2], "amax"), floats(4, 3), tensor([0, 2]), 4, -1),
    "scatter_add": lookup(lambda x, i: x.scatter_add(1, i, x), floats(2, 3), tensor([[0], [2]]), 3, -1),
    "scatter_reduce": lookup(lambda x, i: x.scatter_reduce(1, i, x, "amax"), floats(2, 3), tensor([[0], [2]]), 3, -1),
    "embedding_bag": lookup(lambda x, i: functional.embedding_bag(i[None], x), floats(4, 3), tensor([0, 2]), 4, -1),
    # Decreasing offsets are not tested: eager itself reads before the first index.
    "embedding_bag, offsets": Checked(
        lambda x, i: functional.embedding_bag(tensor([0, 2, 1]), x, i),
        (floats(4, 3), tensor([0, 1])),
        [(floats(4, 3), tensor(wrong)) for wrong in ([1, 2], [0, 4], [0, 3])],
    ),
    "index_put": lookup(lambda x, i: x.index_put((i,), x.sum()), floats(4, 3), tensor([0, 2]), 4, -1, -4, -5),
}

DRAWS = {
    "bernoulli": Checked(
        lambda p: torch.bernoulli(p) * 0, (_HALVES,), [(tensor([0.5, number]),) for number in (1.5, -0.5, _NAN)]
    ),
    "multinomial": Checked(
        lambda p: torch.multinomial(p, 1) * 0,
        (_HALVES,),
        [(tensor(wrong),) for wrong in ([0.5, -0.5], [0.5, _NAN], [0.5, float("inf")], [0.0, 0.0])],
    ),
    "normal": Checked(lambda x: torch.normal(x, x) * 0, (_HALVES,), [(-_HALVES,)]),
    "poisson": Checked(lambda x: torch.poisson(x) * 0, (_HALVES,), [(-_HALVES,)]),
}

INTEGERS = {
    "floor_divide": Checked(lambda x: 10 // x, (tensor([1, 3]),), [(tensor([1, 0]),)]),
    "remainder": Checked(lambda x: 10 % x, (tensor([1, 3]),), [(tensor([1, 0]),)]),
    "fmod": Checked(lambda x: torch.fmod(x + 7, x), (tensor([1, 3]),), [(tensor([1, 0]),)]),
    "repeat_interleave": lookup(lambda x, i: x.repeat_interleave(i, 0), floats(2, 3), tensor([1, 2]), -1, 0),
    # Negative repeats with a given size are not tested: eager may write past the result before it checks them.
    "repeat_interleave to a size": Checked(
        lambda x, i: x.repeat_interleave(i, 0, output_size=3),
        (floats(2, 3), tensor([1, 2])),
        [(floats(2, 3), tensor(wrong)) for wrong in ([1, 1], [2, 2], [0, 0], [3, 0])],
    ),
    "bincount": Checked(lambda x: torch.bincount(x), (tensor([1, 3]),), [(tensor([1, -1]),)]),
}

_quantised = torch.ops.quantized_decomposed
_POINT = tensor(3)

QUANTISED = {
    "quantize_per_tensor": Checked(
        lambda x, scale: _quantised.quantize_per_tensor.tensor(x, scale, _POINT, 0, 255, torch.uint8).float(),
        (floats(2, 3), tensor(0.1)),
        [(floats(2, 3), tensor(wrong)) for wrong in (0.0, -0.0, -0.1, _NAN)],
    ),
    "zero point of quantize_per_tensor": Checked(
        lambda x, point: _quantised.quantize_per_tensor.tensor(x, tensor(0.1), point, 0, 255, torch.uint8).float(),
        (floats(2, 3), _POINT),
        [(floats(2, 3), tensor(wrong)) for wrong in (2**40, -(2**40), 2**31, -(2**31), 2**31 - 1, 2**20)],
    ),
    "zero point of dequantize_per_tensor": Checked(
        lambda x, point: _quantised.dequantize_per_tensor.tensor(
            x.to(torch.uint8), tensor(0.0), point, 0, 255, torch.uint8
        ),
        (floats(2, 3).abs(), _POINT),
        [(floats(2, 3).abs(), tensor(wrong)) for wrong in (2**40, -(2**40), 2**31)],
    ),
    "zero points of quantize_per_channel": Checked(
        lambda x, points: _quantised.quantize_per_channel(x, x[0].abs() + 1, points, 1, -128, 127, torch.int8).float(),
        (floats(2, 3), tensor([0, 3, -5])),
        [(floats(2, 3), tensor([0, 3, wrong])) for wrong in (2**40, -(2**40), 2**31)],
    ),
}

CASES = {**LOSSES, **LOOKUPS, **DRAWS, **INTEGERS, **QUANTISED}


def grouped(case: Checked) -> Callable[..., Tensor]:
    """Return the case's function between operators that always compile."""

    def call(*arguments: Any) -> Tensor:
        first, *rest = arguments
        return case.function(first * 1, *rest) * 2 + 1

    return call


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("without_gradients")
@pytest.mark.sampled(6)
def test_traced(name: str) -> None:
    """PyTorch's interpreter raises ``RuntimeError``, whichever error an operator raises."""
    case = CASES[name]
    function = grouped(case)
    traced = warmed_up(function, *case.good)
    assert torchmdla.stats().compiled_calls > 0
    for arguments in [*case.others, case.good]:
        assert_agrees(traced, function, *arguments, kind=RuntimeError)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("without_gradients")
@pytest.mark.sampled(6)
def test_compiled(name: str) -> None:
    case = CASES[name]
    function = grouped(case)
    compiled = torch.compile(function, backend="torchmdla")
    for arguments in [case.good, case.good, case.good, *case.others, case.good]:
        assert_agrees(compiled, function, *arguments)
    assert torchmdla.stats().compiled_calls > 0

"""The count of floating-point work: it agrees with manual counts and between frontends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import torchmdla
from torchmdla.testing.coverage import count_ops, groups, work_inside, work_of
from torchmdla.testing.models import MODELS


def lstm_by_hand() -> int:
    """Return the work of two layers with four gates, for 6 steps of 2 sequences.

    The layers have 16 and 32 input features. The elementwise arithmetic of the gates is not counted.
    """
    return sum(2 * 6 * 2 * 4 * 32 * (features + 32) for features in (16, 32))


@pytest.mark.parametrize(
    ("function", "shapes", "work"),
    [
        (torch.add, [(3, 4), (4,)], 12),
        (torch.exp, [(3, 4)], 12),
        (torch.sum, [(3, 4)], 12),
        (torch.matmul, [(3, 4), (4, 5)], 2 * 3 * 4 * 5),
        (functional.linear, [(3, 4), (5, 4)], 2 * 3 * 4 * 5),
        (functional.conv2d, [(1, 3, 8, 8), (4, 3, 3, 3)], 2 * 6 * 6 * 4 * 3 * 9),
        (functional.scaled_dot_product_attention, [(1, 2, 8, 4)] * 3, 2 * 2 * 2 * 8 * 8 * 4),
        (lambda x: x.view(12).unsqueeze(0), [(3, 4)], 0),
        (lambda x: torch.cat([x, x]).clone(), [(3, 4)], 0),
        (lambda x: x.argmax().long() + 1, [(1,)], 1),
    ],
)
def test_work_by_hand(function: Callable[..., Tensor], shapes: list[tuple[int, ...]], work: int) -> None:
    assert work_of(function, *(torch.randn(shape) for shape in shapes)) == work


def test_work_of_a_recurrence() -> None:
    spec = MODELS["lstm"].reduced()
    assert work_of(spec.build(), *spec.inputs()) == lstm_by_hand()


def test_work_of_the_fast_path_is_that_of_its_products() -> None:
    spec = MODELS["transformer_encoder"].reduced()
    module, inputs = spec.build(), spec.inputs()
    fast = work_of(module, *inputs)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        slow = work_of(module, *inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    # The fast path does not show its additions and norms, which are a tenth of the work of such a narrow model.
    assert 0.85 * slow < fast < slow


def test_shares_of_a_program_with_one_op_outside() -> None:
    """``sort`` is outside of the group, and the product before it is inside."""

    class Model(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.relu(x @ y).sort(-1).values

    inputs = (torch.randn(8, 16), torch.randn(16, 4))
    traced = torch.jit.trace(Model(), inputs, check_trace=False)
    with torch.no_grad():
        graph = torchmdla.graph_for(traced, *inputs)
    assert len(groups(graph)) == 1
    assert count_ops(graph) == (2, 3)
    assert work_inside(graph, traced, *inputs) == 2 * 8 * 16 * 4 + 8 * 4
    assert work_of(traced, *inputs) == work_inside(graph, traced, *inputs) + 8 * 4

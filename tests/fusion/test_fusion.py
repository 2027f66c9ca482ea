"""Nodes of TorchScript graphs inside and outside of groups.

The rules of all graphs are in ``test_grouping_rules.py``.
"""

from __future__ import annotations

from typing import Optional

import pytest
import torch
from graphs import groups, groups_of, kinds, nodes, warmed_up
from torch import Tensor

import torchmdla
from torchmdla.testing import coverage
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.coverage import GROUP

pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x.t().reshape(-1).unsqueeze(0), id="views"),
        pytest.param(lambda x: x.view(x.size(0) * x.size(1)), id="shape arithmetic"),
    ],
)
def test_unprofitable_operators_form_no_group(function):
    assert groups_of(function, torch.randn(4, 4)) == []


def test_shape_arithmetic_between_tensors_does_not_split():
    def function(x):
        y = torch.tanh(x) * 2
        z = y.view(x.size(0) // 2, 2 * x.size(1))
        return torch.relu(z) + 1

    assert len(groups_of(function, torch.randn(4, 4))) == 1


def test_chunk_and_list_unpack_stay_inside():
    def function(x):
        a, b = torch.chunk(torch.tanh(x) * 2, 2, dim=1)
        c, d = torch.split(a + b, 1, dim=0)
        return torch.cat([c * 2, d + 1], dim=1)

    (group,) = groups_of(function, torch.randn(2, 4))
    assert "prim::ListUnpack" in kinds(group)


def test_views_that_leave_are_taken_after_the_group():
    def function(x):
        y = torch.tanh(x) * 2
        return y.transpose(0, 1), y.view(-1), torch.relu(y.view(-1)) + 1

    x = torch.randn(3, 4)
    scripted = warmed_up(function, x)
    (group,) = groups(torchmdla.graph_for(scripted, x))
    assert "aten::transpose" not in kinds(group)
    transposed, flat, _ = scripted(x)
    flat.fill_(7)
    assert (transposed == 7).all()


@torch.jit.script
def _branches(x: Tensor, flag: bool, count: int) -> Tensor:
    if flag:
        y = torch.tanh(x) * 2
    else:
        y = torch.sigmoid(x) + 2
    for _ in range(count):
        y = torch.relu(y) * 1.5
    return y


def parameters_of(scripted, x):
    """Return the names of the attributes that are parameters of groups."""
    taken = coverage.groups(torchmdla.graph_for(scripted, x))
    paths = [group.ss("paths")[index] for group in taken for index in getattr(group, "is")("parameters")]
    return {path.rpartition(".")[2] for path in paths}


@pytest.mark.parametrize("bias", [True, False])
def test_a_bias_that_may_be_none_is_a_parameter(bias):
    """The bias of a scripted convolution is a parameter.

    Otherwise it would not be a constant of a following batch norm, nor of a device that embeds it.
    """
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3, bias=bias), torch.nn.ReLU()).eval()
    scripted, x = torch.jit.script(model), torch.randn(1, 2, 5, 5)
    assert parameters_of(scripted, x) == {"weight", "bias"}
    assert_matches(scripted(x), model(x), layers=1)
    if bias:
        for change in (lambda: model[0].bias.add_(1), lambda: model[0].bias.data.mul_(3)):
            change()
            assert_matches(scripted(x), model(x), layers=1)


class Remembering(torch.nn.Module):
    __annotations__ = {"last": Optional[Tensor]}  # noqa: UP045  (TorchScript reads this)

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.last = None
        self.total = torch.zeros(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        last = self.last
        y = torch.tanh(self.linear(x)) + self.total
        if last is not None:
            y = torch.sigmoid(last) * y
        self.last = y
        self.total = torch.relu(y) * 2
        return y


def test_mutated_attributes_are_not_parameters():
    model = Remembering().eval()
    scripted, x = torch.jit.script(Remembering().eval()), torch.randn(2, 4)
    scripted.load_state_dict(model.state_dict())
    for _ in range(6):
        assert_matches(scripted(x), model(x), layers=6)
    assert parameters_of(scripted, x) == {"weight", "bias"}


def test_blocks_of_control_flow_have_groups():
    x = torch.randn(4, 4)
    graph = torchmdla.graph_for(warmed_up(_branches, x, True, 3), x, True, 3)
    assert GROUP not in [node.kind() for node in graph.nodes()]
    blocks = [block for node in nodes(graph) for block in node.blocks()]
    # The JIT unrolls the loop into two blocks. Each block with something to compute has one group.
    assert len(groups(graph)) == len(blocks) == 4
    assert all([node.kind() for node in block.nodes()].count(GROUP) == 1 for block in blocks)
    for flag in (True, False):
        with torchmdla.enabled(False):
            expected = _branches(x, flag, 3)
        assert_matches(_branches(x, flag, 3), expected)


@torch.jit.script
def _counting(x: Tensor) -> Tensor:
    y = x
    for i in range(4):
        y = torch.tanh(y + i) * x[i].sum()
    return y


def test_a_loop_counter_does_not_enter_a_group():
    x = torch.randn(4, 4)
    warmed_up(_counting, x)
    assert torchmdla.stats().specialisations <= 2


def test_untaken_dtypes_stay_outside():
    """A graph that has not run has no dtypes, so a group is divided when an unsupported dtype is seen."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x + x) * x + x, torch.tanh(y) * 2 + x.abs()

    x, y = torch.ones(4, 4).to(torch.complex64), torch.randn(4, 4)
    before = torchmdla.stats().specialisations
    scripted = torch.jit.trace(function, (x, y), check_trace=False)
    for _ in range(6):
        assert_matches(scripted(x, y), function(x, y))
    assert torchmdla.stats().specialisations == before + 1
    assert torchmdla.stats().fallbacks == {}


def test_an_op_whose_argument_the_table_excludes_stays_outside():
    class Net(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.nn.functional.cross_entropy(torch.tanh(x) * 2, y, label_smoothing=0.5) + 1

    inputs = torch.randn(4, 4), torch.tensor([0, 1, 2, 3])
    assert "aten::cross_entropy_loss" in kinds(torchmdla.graph_for(warmed_up(Net(), *inputs), *inputs))


def test_ops_that_train_join_a_group_with_their_counters():
    module = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(), torch.nn.Linear(4, 2)
    )
    x = torch.randn(4, 4)
    scripted = torch.jit.trace(module, x, check_trace=False)
    scripted(x)
    assert kinds(torchmdla.graph_for(scripted, x)) == ["mdla::CompilationGroup"]
    counter = module[1].num_batches_tracked
    for grad in (False, True):
        before = int(counter)
        with torch.set_grad_enabled(grad):
            scripted(x)
        assert int(counter) == before + 1


def test_random_numbers_keep_their_order():
    def function(x):
        a = torch.rand_like(x)
        b = torch.tanh(x) * a
        c = torch.rand_like(x)
        return torch.sigmoid(b) + c, a

    x = torch.randn(4, 4)
    scripted = warmed_up(function, x)
    torch.manual_seed(1)
    actual = scripted(x)
    torch.manual_seed(1)
    assert_matches(actual, function(x))


def test_supported_ops_are_real_schemas():
    known = {
        schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        for schema in torch._C._jit_get_all_schemas()
    }
    assert {name for name in torchmdla.supported_ops() if not name.startswith("torchao::")} <= known
    assert "aten::relu" in torchmdla.supported_ops()

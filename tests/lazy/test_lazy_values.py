"""Values, random numbers and running statistics of PyTorch's lazy device: they are the CPU's."""

from __future__ import annotations

import copy

import pytest
import torch
from lazy_device import X, check, moved
from torch import nn
from torch.nn import functional
from typed_calls import CALLS, types_of

import torchmdla
from torchmdla.testing.compare import assert_matches

pytestmark = pytest.mark.usefixtures("lazy_device")

# --- values ----------------------------------------------------------------------------------------------------------

IMAGE = torch.randn(1, 8, 4, 6, generator=torch.Generator().manual_seed(2))
KERNEL = torch.randn(4, 8, 3, 3, generator=torch.Generator().manual_seed(3))


def written_through(view):
    def program(x):
        view(x).add_(1)
        return x

    return program


def masked_backward(mask):
    def program(x, weight):
        convolved = torch.ops.aten.convolution(x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        gradients = torch.ops.aten.convolution_backward(
            convolved, x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, mask
        )
        return [gradient for gradient, wanted in zip(gradients, mask, strict=True) if wanted]

    return program


# Programs that PyTorch's own lazy backend computes wrongly, or that end its graph.
PROGRAMS = {
    "pixel_shuffle": (lambda x: functional.pixel_shuffle(x, 2), IMAGE),
    "pixel_unshuffle": (lambda x: functional.pixel_unshuffle(x, 2), IMAGE),
    "pinv_of_a_batch": (lambda x: torch.linalg.pinv(x[:, :, :3, :3]), IMAGE),
    "affine_grid": (lambda x: functional.affine_grid(x, [1, 1, 3, 4], align_corners=False), X[:2, :3][None]),
    "as_strided": (lambda x: x.as_strided((2, 2), (1, 2), 1), X),
    "as_strided_of_a_transpose": (lambda x: x.t().as_strided((2, 2), (1, 2), 1), X),
    "as_strided_of_a_slice": (lambda x: x[1:].as_strided((2, 2), (1, 2), 1), X),
    "as_strided_without_an_offset": (lambda x: x[1:].as_strided((2, 2), (1, 2)), X),
    "writes_through_as_strided": (written_through(lambda x: x.t().as_strided((2, 2), (1, 2), 1)), X),
    "writes_through_views": (written_through(lambda x: x[1:].t()), X),
    "backward_of_the_weight": (masked_backward([False, True, False]), IMAGE, KERNEL),
    "backward_of_the_input": (masked_backward([True, False, False]), IMAGE, KERNEL),
    "_convolution": (
        lambda x, w: torch.ops.aten._convolution(
            x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, True, True
        ),
        IMAGE,
        KERNEL,
    ),
    "attention": (lambda x: functional.scaled_dot_product_attention(x, x, x), IMAGE),
    "where_with_a_number": (lambda x: torch.where(x > 0, x, 2.0), X),
    "numbers_compare": (
        lambda x: [x[0] == 0.1, x[0] <= 0.1, x[0].half() < 0.1, (x[0] * 0.7).sin() * 2],
        torch.tensor([0.1]),
    ),
    "numbers_are_no_tensors": (lambda x: (x.mean() * 0.1).expand(4, 1) @ x[:1], X),
    "ranges": (
        lambda x: [
            torch.arange(*ends, device=x.device) for ends in ((5,), (2, 9, 3), (7, 1, -2), (0.5, 2.0, 0.3), (0,))
        ],
        X,
    ),
    "norms": (lambda x: [x.norm(), x.norm(3, 0), functional.normalize(x, 1.0)], X),
    "numbers_promote": (lambda x: torch.arange(3, device=x.device) * 2.5 + x.sum() * 3, X),
    "split": (lambda x: [*x.split(2, 1), *x.chunk(3), *x.split([1, 2]), *x.unbind(1)], X),
    "index": (lambda x: x[torch.tensor([0, 2], device=x.device)], X),
    "index_select": (
        lambda x: [place.index_select(0, torch.zeros(1, dtype=torch.int64, device=x.device)) for place in (x, x[1, 1])],
        X,
    ),
    "backward_of_a_dropout": (lambda x: torch.ops.aten.native_dropout_backward(x.long(), x > 0, 2.0), X),
    "index_or_fill": (lambda x: torch.ops.aten._unsafe_masked_index(x, x > 0, [None, (x > 0).long()], 0.5), X[:, :4]),
    "index_every_dimension": (
        lambda x: torch.ops.aten._unsafe_masked_index(x[0], x[0] > 0, [(x[0] > 0).long()], 0.5),
        X,
    ),
    "index_by_a_mask": (lambda x: x[x > 0], X),
    "nonzero": (lambda x: (x > 0).nonzero(), X),
    "trace_of_integers": (lambda x: x.int().trace(), X),
    "filled_with_a_boolean": (lambda x: (x > 0).index_fill(0, torch.tensor([1], device=x.device), True), X),
    "composed": (lambda x: torch.logsumexp(torch.nan_to_num(x), 1) + functional.celu(x).amax(1), X),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_eagers(name):
    check(*PROGRAMS[name])


@pytest.mark.parametrize("name", CALLS)
def test_types_are_eagers(name):
    function, *inputs = CALLS[name]
    assert types_of(function(*[x.to("lazy") for x in inputs])) == types_of(function(*inputs))
    check(function, *inputs)


RANGES = {
    "arange": lambda out: torch.arange(1, 13, out=out),
    "arange_to": lambda out: torch.arange(12, out=out),
    "arange_of_others": lambda out: torch.arange(5, out=out),
    "linspace": lambda out: torch.linspace(0, 1, 12, out=out),
    "linspace_of_tensors": lambda out: torch.linspace(torch.zeros((), device=out.device), 1, 12, out=out),
    "logspace": lambda out: torch.logspace(0, 1, 12, out=out),
    "range": lambda out: torch.range(1, 12, out=out),
}


@pytest.mark.filterwarnings("ignore:.*(out tensor|torch.range).*:UserWarning")
@pytest.mark.parametrize("name", RANGES)
def test_ranges_keep_the_sizes_that_they_fill(name):
    def written(x):
        result = RANGES[name](x)
        assert result is x
        return [x * 2, RANGES[name](torch.empty(0, device=x.device))]

    check(written, torch.zeros(3, 4))
    check(lambda x: torch.arange(1, out=x), torch.zeros(()))


def test_a_range_is_written_through_views():
    def written(x):
        torch.arange(6, out=x[1].view(2, 3))
        torch.arange(6, out=x[2].view(3, 2).t())
        return x

    check(written, torch.zeros(3, 6))


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks(make):
    model = make(4, 5, batch_first=True).eval()
    on_device = copy.deepcopy(model).to("lazy")
    x = torch.randn(2, 3, 4)
    with torch.no_grad():
        for _ in range(4):
            assert_matches(moved(on_device(x.to("lazy"))), model(x), strides=False)


def test_gradients_through_recorded_operators():
    def gradients(device):
        torch.manual_seed(0)
        x = torch.randn(1, 2, 8, 4).to(device).requires_grad_()
        functional.pixel_unshuffle(functional.scaled_dot_product_attention(x, x, x), 2).square().sum().backward()
        return x.grad

    for _ in range(4):
        assert_matches(gradients("lazy").cpu(), gradients("cpu"), layers=3, strides=False)


def test_operators_without_lowering_run_eagerly_and_are_counted():
    torchmdla.reset_stats()
    check(lambda x: (x > 0).nonzero(), X, calls=1)
    assert torchmdla.stats().lazy.eager == {"aten::nonzero": 1}


def test_graphs_that_differ_in_shared_operands():
    # PyTorch's hash of a graph treats it as a tree, and does not distinguish the leaves.
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 30.0])
    check(lambda a, b: (a - b) + a, a, b)
    check(lambda a, b: (a - b) + b, a, b)
    check(lambda a, b: [a.exp(), a.exp() * b.exp()], a, b)
    check(lambda a, b: [b.exp(), a.exp() * b.exp()], a, b)


# --- random numbers --------------------------------------------------------------------------------------------------

DRAWS = {
    "rand": lambda x: torch.rand(3, 4, device=x.device),
    "randn_like": torch.randn_like,
    "randint": lambda x: torch.randint(2, 9, (5,), device=x.device),
    "randperm": lambda x: torch.randperm(7, device=x.device),
    "bernoulli": lambda x: x.sigmoid().bernoulli(),
    "bernoulli_": lambda x: x.bernoulli_(0.4),
    "normal_": lambda x: x.normal_(1, 2),
    "uniform_of_a_transpose": lambda x: x.t().uniform_(-1, 1),
    "normal_of_rows": lambda x: x[1:].normal_(),
    "exponential_": lambda x: x.exponential_(),
    "geometric_": lambda x: x.geometric_(0.3),
    "random_": lambda x: x.random_(3, 8),
    "multinomial": lambda x: torch.multinomial(x.sigmoid(), 2),
    "two": lambda x: [torch.rand_like(x), functional.dropout(x, 0.3), torch.rand_like(x)],
}


@pytest.mark.parametrize("draw", DRAWS)
def test_random_numbers_are_the_cpus(draw):
    for seed in range(3):
        torch.manual_seed(seed)
        expected = DRAWS[draw](X.clone())
        torch.manual_seed(seed)
        assert_matches(moved(DRAWS[draw](X.clone().to("lazy"))), expected, strides=False)


DROPOUTS = {
    "dropout": lambda x: functional.dropout(x, 0.3),
    "not_in_training": lambda x: functional.dropout(x, 0.3, training=False),
    "nothing_is_left": lambda x: functional.dropout(x, 1.0),
    "of_channels": lambda x: functional.dropout1d(x, 0.5),
    "alpha": lambda x: functional.alpha_dropout(x, 0.3, training=True),
    "attention": lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.3),
}


@pytest.mark.parametrize("name", DROPOUTS)
def test_gradients_are_those_of_the_numbers_that_were_drawn(name):
    def gradient(device):
        torch.manual_seed(3)
        x = X.clone().to(device).requires_grad_()
        loss = DROPOUTS[name](x).square().sum()
        looked_at = loss.item()
        loss.backward()
        return [torch.tensor(looked_at), x.grad.cpu()]

    assert_matches(gradient("lazy"), gradient("cpu"), layers=3, strides=False)


def test_a_mask_does_not_end_the_graph():
    x = X.to("lazy")
    torchmdla.reset_stats()
    pending = functional.dropout(torch.tanh(x), 0.5) * 2
    assert torchmdla.stats().lazy.runs == 0
    pending.cpu()
    assert torchmdla.stats().lazy.runs == 1


# --- running statistics ----------------------------------------------------------------------------------------------


def statistics_after(norm, look):
    def statistics(device):
        torch.manual_seed(0)
        module = norm().to(device)
        for x in (torch.randn(5, 4, 3, 2), torch.randn(5, 4, 3, 2)):
            result = module(x.to(device))
            if look == "result":
                result.cpu()
        return moved([*module.buffers(), module(torch.ones(5, 4, 3, 2).to(device))])

    return statistics


NORMS = {
    "batch": lambda: nn.BatchNorm2d(4),
    "plain": lambda: nn.BatchNorm2d(4, affine=False),
    "cumulative": lambda: nn.BatchNorm2d(4, momentum=None),
    "without_statistics": lambda: nn.BatchNorm2d(4, track_running_stats=False),
    "instance": lambda: nn.InstanceNorm2d(4, track_running_stats=True),
    "in_inference": lambda: nn.BatchNorm2d(4).eval(),
}


@pytest.mark.parametrize("look", ["result", "statistics"])
@pytest.mark.parametrize("norm", NORMS)
def test_running_statistics_are_those_of_all_calls(norm, look):
    statistics = statistics_after(NORMS[norm], look)
    assert_matches(statistics("lazy"), statistics("cpu"), layers=2, strides=False)

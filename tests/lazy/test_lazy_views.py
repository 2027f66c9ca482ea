"""Memory of tensors on PyTorch's lazy device: views, writes through them, memory formats."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
import torch._lazy
from lazy_device import X, check, moved

from torchmdla.testing.compare import assert_matches

pytestmark = pytest.mark.usefixtures("lazy_device")

# --- views -----------------------------------------------------------------------------------------------------------

VIEWS = {
    "itself": lambda x: x,
    "t": lambda x: x.t(),
    "twice": lambda x: x.t().t(),
    "transpose": lambda x: x.view(3, 2, 2).transpose(0, 2),
    "permute": lambda x: x.view(3, 2, 2).permute(1, 2, 0),
    "rows": lambda x: x[1:],
    "columns": lambda x: x[:, 1:3],
    "steps": lambda x: x[:, ::2],
    "of_a_view": lambda x: x[1:].t()[1:],
    "select": lambda x: x[:, 1],
    "diagonal": lambda x: x.diagonal(),
    "unsqueeze": lambda x: x.t().unsqueeze(1),
    "squeeze": lambda x: x[:, 1:2].squeeze(1),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "expand": lambda x: x[:1].expand(3, 4),
    "split": lambda x: x.split(2, 1)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "as_strided": lambda x: x.as_strided((2, 3), (1, 4), 1),
    "as_strided_of_a_view": lambda x: x[1:].t().as_strided((2, 3), (1, 2)),
    "view_of_a_slice": lambda x: x[1:].view(-1),
    "other_dtype": lambda x: x.t().view(torch.int32).t().view(torch.float32),
    "data": lambda x: x.t().data,
    "detached": lambda x: x.t().detach(),
    "in_place": lambda x: x[1:].t_(),
    "as_strided_in_place": lambda x: x.t().as_strided_((2, 2), (2, 1), 1),
}


def _twice(view):
    view.add_(1)
    return view.contiguous()


# Functions that depend on the layout of a view. The result is then written to, and so is the base.
LOOKS = {
    "contiguous": lambda view: view.contiguous(),
    "reshape": lambda view: view.reshape(-1),
    "reshape_back": lambda view: view.reshape(view.shape),
    "flatten": lambda view: view.flatten(),
    "ravel": lambda view: view.ravel(),
    "clone": lambda view: view.clone(),
    "as_strided": lambda view: view.as_strided((2, 2), (2, 1)),
    "as_strided_at": lambda view: view.as_strided((2, 2), (1, 3), 2),
    "view_as": lambda view: view.view_as(view),
    "after_a_write": _twice,
    "unsqueezed": lambda view: view.unsqueeze(0).contiguous(),
    "transposed": lambda view: view.unsqueeze(0).transpose(0, -1).contiguous(),
    "only_if_needed": lambda view: view if view.is_contiguous() else view.contiguous(),
}


MODES = {"grad": contextlib.nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.sampled(60)
def test_writes_alias_as_on_the_cpu(view, look, mode):
    def written(x):
        with MODES[mode]():
            base = x.clone()
            seen = VIEWS[view](base)
            result = LOOKS[look](seen)
            layout = [seen.stride(), seen.is_contiguous(), seen.storage_offset()]
            result.mul_(2)
            base.add_(1)
            result.sub_(3)
            return layout, [base, seen, result]

    if view == "expand" and look in ("after_a_write", "reshape_back", "view_as"):
        pytest.skip("a write to what lies in one place several times")
    layout, expected = written(X)
    found_layout, results = written(X.to("lazy"))
    assert_matches(moved(results), expected, strides=False)
    assert found_layout == layout


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.sampled(20)
def test_gradients_through_views(view, look):
    if view in ("data", "detached", "other_dtype", "in_place", "as_strided_in_place"):
        pytest.skip("no gradient reaches the base, or autograd refuses")
    if view in ("expand", "split", "unbind") and look == "after_a_write":
        pytest.skip("a write that autograd or the CPU refuses")

    def gradient(x):
        x = x.clone().requires_grad_()
        base = x * 1
        result = LOOKS[look](VIEWS[view](base))
        weights = torch.arange(result.numel(), dtype=torch.float32).reshape(result.shape).to(x.device)
        (result * weights).square().sum().backward()
        return x.grad

    assert_matches(gradient(X.to("lazy")).cpu(), gradient(X), layers=2, strides=False)


def test_views_keep_their_place_after_writes():
    x = X.to("lazy").clone()
    view, other = x.t(), x[1:].t()
    view.add_(1)
    other.mul_(2)
    assert (view.stride(), other.stride(), other.storage_offset()) == ((1, 4), (1, 4), 4)
    assert x.is_contiguous()
    x.contiguous().zero_()
    assert x.cpu().count_nonzero() == 0


def test_viewable_results_on_the_cpu_are_viewable():
    def written(x):
        result = (x.t() + 1).t()  # in the order of x on the CPU
        result.view(-1).mul_(2)
        return result

    check(written, X)


@pytest.mark.parametrize("function", [torch.as_strided_copy, torch.as_strided_scatter])
@pytest.mark.parametrize("view", ["itself", "t", "rows", "of_a_view"])
def test_strides_are_those_of_the_whole_memory(function, view):
    written = [torch.full((2, 2), 7.0)] if function is torch.as_strided_scatter else []
    check(lambda x, *source: function(VIEWS[view](x), *source, (2, 2), (2, 1)), X, *written, calls=1)


def test_functionalisation_of_other_devices_is_as_before():
    x = torch._to_functional_tensor(X.clone())
    view = x.t()
    view.add_(1)
    torch._sync(x)
    assert_matches(torch._from_functional_tensor(x), X + 1)


# --- memory formats --------------------------------------------------------------------------------------------------

FORMATS = {
    "clone": lambda x: x.clone(memory_format=torch.channels_last),
    "to": lambda x: x.to(memory_format=torch.channels_last),
    "as_it_is": lambda x: x.clone(memory_format=torch.channels_last).contiguous(memory_format=torch.channels_last),
    "and_back": lambda x: x.clone(memory_format=torch.channels_last).contiguous(),
    "of_a_view": lambda x: x[:, 1:].clone(memory_format=torch.channels_last),
    "written": lambda x: x.clone(memory_format=torch.channels_last).mul_(2),
    "restrided": lambda x: x.clone(memory_format=torch.channels_last).as_strided((3, 4), (4, 1), 2),
    "volumes": lambda x: x[:, None].clone(memory_format=torch.channels_last_3d),
}


@pytest.mark.parametrize("name", FORMATS)
def test_copies_lie_in_their_format(name):
    def copied(x):
        base = x + 1
        result = FORMATS[name](base)
        result.add_(1)
        return [result, base]

    x = torch.randn(2, 3, 4, 5)
    assert copied(x.to("lazy"))[0].stride() == copied(x)[0].stride()
    check(copied, x)


ORDERED = {
    "channels_last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "one_image": torch.randn(1, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "volumes": torch.randn(2, 3, 2, 4, 5).contiguous(memory_format=torch.channels_last_3d),
    "transposed": torch.randn(4, 3).t(),
    "permuted": torch.randn(2, 3, 4).permute(2, 0, 1),
}

COPIES = {
    "itself": lambda x: x,
    "clone": lambda x: x.clone(),
    "in_another_dtype": lambda x: x.double(),
    "contiguous": lambda x: x.contiguous(),
    "empty": lambda x: torch.empty_strided(x.shape, x.stride(), device=x.device).copy_(x),
    "written": lambda x: x.mul_(2),
    "parameter": lambda x: torch.nn.Parameter(x).detach(),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("order", ORDERED)
def test_an_order_of_dimensions_is_kept(order, how):
    def seen(x):
        copied = COPIES[how](x)
        return [copied, copied.as_strided((2, 3), (3, 1), 2), x + 1]

    x = ORDERED[order]
    assert COPIES[how](x.to("lazy")).stride() == COPIES[how](x.clone()).stride()
    check(seen, x)


def test_moves_may_change_the_memory_format():
    x = torch.randn(2, 3, 4, 5)
    moved_to = x.to("lazy", memory_format=torch.channels_last)
    assert moved_to.stride() == (60, 1, 15, 3)
    assert moved_to.to("cpu", memory_format=torch.contiguous_format).is_contiguous()
    assert x.to("lazy").to("cpu", memory_format=torch.channels_last).stride() == (60, 1, 15, 3)
    assert_matches(moved_to.cpu(), x, strides=False)


def test_gaps_are_not_kept():
    for x in (X[::2], X[:1].expand(3, 4)):
        assert x.to("lazy").is_contiguous()
        assert_matches(x.to("lazy").cpu(), x, strides=False)


def test_training_in_channels_last():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 4, 3))
    model = model.to(memory_format=torch.channels_last)
    on_device = copy.deepcopy(model).to("lazy")
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)

    def train(model, device):
        optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for _ in range(4):
            optimiser.zero_grad()
            model(x.to(device)).square().mean().backward()
            optimiser.step()
            torch._lazy.mark_step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    assert_matches(train(on_device, "lazy"), train(model, "cpu"), layers=8)


def test_gradients_through_a_format():
    def gradient(device):
        x = torch.arange(24.0).reshape(1, 2, 3, 4).to(device).requires_grad_()
        x.clone(memory_format=torch.channels_last).as_strided((4, 6), (6, 1)).square().sum().backward()
        return x.grad.cpu()

    assert_matches(gradient("lazy"), gradient("cpu"), strides=False)


def test_channels_last_wants_four_dimensions():
    with pytest.raises(RuntimeError, match="required rank 4 tensor to use channels_last format"):
        X.to("lazy").clone(memory_format=torch.channels_last)

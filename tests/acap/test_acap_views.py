"""Views and writes on the acap device: a write reaches the same tensors as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torchmdla
from torchmdla import _C
from torchmdla.testing.compare import assert_matches

_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "select": lambda x: x[1],
    "slice": lambda x: x[:, 2],
    "step": lambda x: x[:, ::2],
    "t": lambda x: x.t()[0],
    "permute": lambda x: x.permute(1, 0)[1:],
    "view": lambda x: x.view(-1)[3:5],
    "reshape": lambda x: x.reshape(2, 6),
    "unsafe_chunk": lambda x: x.unsafe_chunk(2)[1],
    "unbind": lambda x: x.unbind(0)[2],
    "split": lambda x: x.split(2)[0],
    "chunk": lambda x: x.chunk(2, 1)[1],
    "diagonal": lambda x: x.diagonal(),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:1].squeeze(),
    "as_strided": lambda x: x.as_strided((2, 2), (4, 1), 1),
    "bits": lambda x: x.view(torch.int32).view(torch.float32),
    "detach": lambda x: x.detach(),
    "movedim": lambda x: x.movedim(0, 1),
}

_WRITES: dict[str, Callable[[Tensor], object]] = {
    "add_": lambda x: x.add_(1.5),
    "mul_ of itself": lambda x: x.mul_(x),
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(3),
    "copy_": lambda x: x.copy_(torch.arange(x.numel(), dtype=x.dtype).view(x.shape)),
    "masked_fill_": lambda x: x.masked_fill_(x > 4, -1),
    "clamp_ out": lambda x: torch.clamp(x, 1, 5, out=x),
    "sort": lambda x: x.copy_(x.sort(-1, descending=True)[0]),
    "normal_": lambda x: x.normal_(),
}


@pytest.mark.parametrize("write", _WRITES)
@pytest.mark.parametrize("is_pending", [False, True])
@pytest.mark.sampled(6)
def test_writes_through_views(dev: torch.device, write: str, is_pending: bool) -> None:
    def run(device: torch.device) -> list[Tensor]:
        torch.manual_seed(0)
        x = torch.arange(12.0).view(3, 4).to(device)
        if is_pending:
            x = x + 1
        views = {name: take(x) for name, take in _VIEWS.items()}
        seen = []
        for view in views.values():
            _WRITES[write](view)
            seen += [tensor.cpu().clone() for tensor in (x, *views.values())]
        return seen

    assert_matches(run(dev), run(torch.device("cpu")))


def test_writes_and_gradients(dev: torch.device) -> None:
    def gradient(device: torch.device) -> Tensor:
        x = torch.arange(6.0).view(2, 3).to(device).requires_grad_()
        y = x * 2
        y[0].mul_(3)
        y[:, 1] = 7
        y.t()[2].add_(x[:, 0].sum())
        y.pow(2).sum().backward()
        assert x.grad is not None
        return x.grad.cpu()

    assert_matches(gradient(dev), gradient(torch.device("cpu")))


def test_values_read_before_a_write_stay(dev: torch.device) -> None:
    x = torch.ones(3, device=dev)
    y = x + 1  # pending, reads the present x
    x.normal_()  # runs on the CPU, in place
    assert y.tolist() == [2, 2, 2]


_PIECES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "row": lambda x, i: x[i],
    "rows": lambda x, i: x[i : i + 1],
    "number": lambda x, i: x[i, 2],
    "number of a view": lambda x, i: x.view(-1)[i],
}


@pytest.mark.parametrize("piece", _PIECES)
def test_pieces_of_data_have_one_graph(dev: torch.device, piece: str) -> None:
    x = torch.arange(12.0).view(3, 4)
    on_device = x.to(dev)
    results = [_PIECES[piece](on_device, i) * 2 for i in range(3)]
    assert len({str(torchmdla.get_mlir(result)) for result in results}) == 1
    on_device.zero_()
    assert_matches([result.cpu() for result in results], [_PIECES[piece](x, i) * 2 for i in range(3)])


def test_pieces_of_parameters_are_in_the_graph(dev: torch.device) -> None:
    parameter = torch.nn.Parameter(torch.ones(4, 2, device=dev))
    with torch.no_grad():
        assert "aten.slice" in str(torchmdla.get_mlir(parameter[2:] * 2))


def test_computed_data_is_written_to_computed_memory(dev: torch.device) -> None:
    x, row = torch.ones(3, 2, device=dev), torch.tensor([5.0, 6.0], device=dev)
    x.cpu()
    before = x * 2
    x[1] = row
    assert not torchmdla.acap.is_pending(x)
    assert [before.tolist(), x.tolist()] == [[[2, 2]] * 3, [[1, 1], [5, 6], [1, 1]]]


def test_a_long_loop_of_writes_to_parts_goes_to_memory(dev: torch.device) -> None:
    def filled(device: Any) -> Tensor:
        x, numbers = torch.zeros(7, device=device), torch.arange(300.0).to(device)
        for i in range(300):
            x[i % 7] += numbers[i]
        return x

    result = filled(dev)
    assert _C.acap.pending_nodes() < 300
    assert_matches(result.cpu(), filled("cpu"))


_OVERLAPS: dict[str, Callable[[Tensor], object]] = {
    "add_": lambda x: x[1:].add_(x[:-1]),
    "copy_": lambda x: x[1:].copy_(x[:-1]),
    "copy_ transposed": lambda x: x.view(2, 2).copy_(x.view(2, 2).t()),
    "out": lambda x: torch.exp(x[:-1], out=x[1:]),
    "cumsum": lambda x: torch.cumsum(x[:-1], 0, out=x[1:]),
    "index_put_": lambda x: x.index_put_((torch.tensor([0, 1], device=x.device),), x[:2]),
    "scatter_": lambda x: x.scatter_(0, torch.tensor([1, 0, 1, 0], device=x.device), x),
    "fill_ of an expanded": lambda x: x.expand(2, 4).fill_(2),
    "zero_ of an expanded": lambda x: x.expand(2, 4).zero_(),
    "element of an expanded": lambda x: (x * 2).expand(2, 4).t().__setitem__(0, 7),
    "in the same place": lambda x: x[:2].mul_(x[:2]),
    "beside it": lambda x: x[:2].copy_(x[2:]),
}


@pytest.mark.parametrize("write", _OVERLAPS)
def test_writes_to_read_tensors(dev: torch.device, write: str) -> None:
    def written(device: Any) -> Any:
        x = torch.arange(4.0).to(device)
        try:
            _OVERLAPS[write](x)
        except RuntimeError as error:
            return str(error), x.tolist()
        return x.tolist()

    assert written(dev) == written("cpu")


def test_gaps_in_memory(dev: torch.device) -> None:
    x = torch.empty_strided((2, 3), (5, 1), device=dev)
    assert (x.stride(), x.untyped_storage().nbytes()) == ((5, 1), 8 * 4)
    x.copy_(torch.arange(6.0).view(2, 3))
    assert x.as_strided((8,), (1,))[[0, 2, 5, 7]].tolist() == [0, 2, 3, 5]
    a, b = torch.randn(3, 4, 3), torch.randn(3, 4, 3)
    wanted = torch.linalg.lstsq(a, b).solution  # computed on the CPU, in a part of the result's memory
    solution = torch.linalg.lstsq(a.to(dev), b.to(dev)).solution
    assert solution.stride() == wanted.stride()
    assert_matches(solution.cpu(), wanted.clone(), layers=4)


def test_unsafe_views_share_memory(dev: torch.device) -> None:
    """Unsafe views share memory in eager, although their schema does not declare it."""

    def seen(device: Any) -> list[Tensor]:
        x = torch.arange(24.0).reshape(3, 2, 4).to(device) + 1
        view = torch.ops.aten._unsafe_view(x[:, 1:], [3, 4])
        strided = view.as_strided((2, 2), (8, 1), 0)
        before = strided.clone()
        view.mul_(2)
        return [before.cpu(), strided.cpu(), x.cpu(), view.cpu()]

    assert_matches(seen(dev), seen("cpu"), strides=False)


def test_metadata_in_place(dev: torch.device) -> None:
    x = torch.arange(6.0).to(dev)
    y = x.view(2, 3)
    y.t_()
    assert y.tolist() == [[0, 3], [1, 4], [2, 5]]
    y.add_(1)
    y.unsqueeze_(0)
    y[0, 1, 1] = 9
    assert x.tolist() == [1, 2, 3, 4, 9, 6]
    x.resize_(2)
    assert x.tolist() == [1, 2]
    x.resize_(7)
    assert x.tolist()[:6] == [1, 2, 3, 4, 9, 6]


def test_slices_of_storages_share_memory(dev: torch.device) -> None:
    x = torch.tensor([1, 2, 3], dtype=torch.int32, device=dev)
    storage = x.untyped_storage()
    part = storage[4:8]
    assert list(part) == [2, 0, 0, 0]
    part[1] = 1
    del part
    assert (x.tolist(), list(storage[:4])) == ([1, 258, 3], [1, 0, 0, 0])


@pytest.mark.parametrize(
    "transpose", [Tensor.t_, lambda x: x.transpose_(0, 1), lambda x: x.as_strided_((3, 3), (1, 3))]
)
def test_a_view_is_transposed_in_place(dev: torch.device, transpose: Callable[[Tensor], Tensor]) -> None:
    # The sizes of a square stay, so only the strides show that it is another view.
    def seen(device: Any) -> list[Tensor]:
        x = torch.arange(9.0).view(3, 3).to(device)
        view = x.view_as(x)
        before = view * 2
        transpose(view)
        after = view * 2
        view[0, 1] = 100
        return [tensor.cpu() for tensor in (before, after, view, x)]

    assert_matches(seen(dev), seen("cpu"), strides=False)

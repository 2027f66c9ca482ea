"""Values, dtypes and strides on the acap device: they are the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typed_calls import CALLS, types_of

import torchmdla
from torchmdla.testing.compare import assert_matches


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent(dev: torch.device, kind: type[nn.Module]) -> None:
    def run(device: torch.device) -> list[Tensor]:
        torch.manual_seed(0)
        model = kind(4, 5, 2, batch_first=True, bidirectional=True).to(device)
        x = torch.randn(2, 3, 4).to(device).requires_grad_()
        y, _ = model(x)
        (y * torch.arange(10.0, device=device)).sum().backward()
        return [tensor.detach().cpu() for tensor in (y, x.grad, *(p.grad for p in model.parameters()))]

    for result, wanted in zip(run(dev), run(torch.device("cpu")), strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-6)


def test_packed_sequences(dev: torch.device) -> None:
    def run(device: Any) -> list[Tensor]:
        torch.manual_seed(0)
        model, x = nn.LSTM(3, 4).to(device), torch.randn(5, 2, 3).to(device).requires_grad_()
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 2]))
        y, lengths = nn.utils.rnn.pad_packed_sequence(model(packed)[0])
        (y * torch.arange(8.0, device=device).view(2, 4)).sum().backward()
        assert x.grad is not None
        return [y.detach().cpu(), lengths, x.grad.cpu(), packed.batch_sizes]

    assert_matches(run(dev), run("cpu"), layers=5)


def test_values_are_there_when_asked_for(dev: torch.device) -> None:
    x = torch.tensor([1.0, 0, 2, 0], device=dev)
    assert x.nonzero().flatten().tolist() == [0, 2]
    assert bool(x.any())
    assert x[x > 0].tolist() == [1, 2]
    x[x > 1] = 5
    assert x.unique().tolist() == [0, 1, 5]
    assert x.topk(2).values.tolist() == [5, 1]
    assert torch.allclose(x, x)


def test_fallbacks_to_the_cpu_are_counted(dev: torch.device) -> None:
    torchmdla.reset_stats()
    torch.ones(3, device=dev).nonzero()
    assert torchmdla.stats().fallbacks == {"acap: aten::nonzero ran on the CPU": 1}


def test_complex_numbers(dev: torch.device) -> None:
    x = torch.view_as_complex(torch.arange(4.0).view(2, 2).to(dev))
    assert (x.conj() * 2).tolist() == [-2j, 4 - 6j]
    x.imag.zero_()
    assert x.tolist() == [0, 2]


_LAZY_BITS: dict[str, Callable[[Tensor], Tensor]] = {
    "conjugate": lambda x: x.conj().clone(),
    "of a pending one": lambda x: (x * 2).conj().resolve_conj(),
    "of a view": lambda x: (x * 2)[1:].conj().resolve_conj(),
    "negated": lambda x: x.conj().imag.clone(),
    "moved": lambda x: x.conj().imag,
    "inverse transform": lambda x: torch.fft.ifft(x.real).resolve_conj(),
    "written": lambda x: (x * 0).copy_(x.conj()),
}


@pytest.mark.parametrize("change", _LAZY_BITS)
def test_lazy_conjugates(dev: torch.device, change: str) -> None:
    x = torch.randn(3, 4, dtype=torch.complex64)
    assert_matches(_LAZY_BITS[change](x.to(dev)).cpu(), _LAZY_BITS[change](x).clone())


_BOOLEAN_NUMBERS: dict[str, Callable[[Any], Tensor]] = {
    "full": lambda device: torch.full((2,), True, device=device),
    "fill": lambda device: torch.zeros(2, dtype=torch.bool, device=device).fill_(True),
    "new_full": lambda device: torch.ones(2, device=device).new_full((2,), True, dtype=torch.bool),
    "or": lambda device: torch.zeros(2, dtype=torch.bool, device=device) | True,
    "sum": lambda device: torch.zeros(2, dtype=torch.bool, device=device) + True,
    "sum of integers": lambda device: torch.ones(2, dtype=torch.int32, device=device) + True,
    "chosen": lambda device: torch.where(torch.ones(2, device=device) > 0, True, False),
    "masked": lambda device: (torch.ones(2, device=device) > 2).masked_fill(torch.ones(2, device=device) > 0, True),
    "masked index": lambda device: torch.ops.aten._unsafe_masked_index(
        torch.ones(3, device=device),
        torch.ones(2, dtype=torch.bool, device=device),
        [torch.arange(2, device=device)],
        True,
    ),
}


@pytest.mark.parametrize("compare", [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge])
@pytest.mark.parametrize("value", [0, 1])
def test_constants_compared_with_integers(dev: torch.device, compare: Callable[..., Tensor], value: int) -> None:
    """The compiler folds such a graph completely."""

    def chosen(device: Any) -> Tensor:
        x = torch.full((3, 4), float(value), device=device)
        return x.masked_fill(compare(x, 1), -3)

    for _ in range(3):
        assert_matches(chosen(dev).cpu(), chosen("cpu"))
    assert torchmdla.stats().fallbacks == {}


@pytest.mark.parametrize("make", _BOOLEAN_NUMBERS)
def test_boolean_numbers(dev: torch.device, make: str) -> None:
    assert_matches(_BOOLEAN_NUMBERS[make](dev).cpu(), _BOOLEAN_NUMBERS[make]("cpu"))


@pytest.mark.parametrize("name", CALLS)
def test_types_are_eagers(dev: torch.device, name: str) -> None:
    function, *inputs = CALLS[name]
    wanted = function(*inputs)
    for _ in range(3):  # interpreted, recorded, compiled
        result = function(*[x.to(dev) for x in inputs])
        assert types_of(result) == types_of(wanted)
        assert_matches(torch.utils._pytree.tree_map(lambda leaf: leaf.cpu(), result), wanted)


_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "convolution": lambda x: nn.functional.conv2d(x, torch.ones(5, 4, 3, 3, device=x.device)),
    "shuffle": lambda x: nn.functional.pixel_shuffle(x, 2),
    "padding": lambda x: nn.functional.pad(x, (1, 1, 1, 1), "reflect"),
    "broadcast": lambda x: x.logical_and(x[:, 0]),
    "svd": lambda x: torch.linalg.svd(x)[0],
    "transform": lambda x: torch.fft.rfft(x),
    "norm": lambda x: nn.functional.batch_norm(x, x[0, 0, 0], x[0, 0, 0] ** 2),
}


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2), (3, 2, 1, 0)])
@pytest.mark.parametrize("op", _LAYOUTS)
def test_strides_are_the_cpus(dev: torch.device, op: str, order: tuple[int, ...]) -> None:
    x = torch.randn(4, 4, 4, 4).permute(order)
    result, wanted = _LAYOUTS[op](x.to(dev)), _LAYOUTS[op](x)
    assert result.stride() == wanted.stride()
    assert torchmdla.acap.is_pending(result)


def test_strides_of_sizes_1(dev: torch.device) -> None:
    for format in (torch.channels_last, torch.contiguous_format):
        x = torch.ones(10, 3, 1, 1).to(memory_format=format)
        assert (x.to(dev) * 5).stride() == (x * 5).stride()


def test_new_memory_of_deterministic_algorithms(dev: torch.device) -> None:
    x = torch.zeros(3, device=dev)
    torch.use_deterministic_algorithms(True)
    try:
        integers = torch.empty_strided((2, 2), (4, 1), dtype=torch.int64, device=dev)
        floats = [
            torch.empty(3, device=dev),
            torch.empty_like(x),
            x.new_empty(3),
            torch.empty_permuted((2, 3), (1, 0), device=dev),
        ]
    finally:
        torch.use_deterministic_algorithms(False)
    assert integers.eq(torch.iinfo(torch.int64).max).all()
    assert [bool(empty.isnan().all()) for empty in floats] == [True] * 4


def test_a_script_writes_to_elements_of_a_mask(dev: torch.device) -> None:
    """Check lists of optional tensors of TorchScript, whose type differs from those of Python."""

    @torch.jit.script
    def write(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
        x[mask] = value
        return x

    x = torch.tensor([1.0, 5, 2])
    result = write(x.to(dev), x.to(dev) > 3, torch.tensor(7.0, device=dev))
    assert torch.equal(result.cpu(), write(x.clone(), x > 3, torch.tensor(7.0)))

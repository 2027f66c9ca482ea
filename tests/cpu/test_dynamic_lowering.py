"""Dynamic programs: one artifact, called with many sizes, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from dynamic_programs import Draw, Dynamic, Function, Traced, program_of
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn, randn
from torch.nn import functional

from torchmdla import devices
from torchmdla.compiler.sizes import Size, is_positive
from torchmdla.devices.cpu.codegen.sizes import Lifetime, share_slots
from torchmdla.errors import CompileError
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import MODELS

SIZES = [(s,) for s in (2, 3, 15, 16, 17, 31, 100, 197, 300)]
PAIRS = [(3, 2), (2, 17), (5, 31), (7, 16), (2, 100), (17, 5), (31, 15), (3, 197)]


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def masked(x: Tensor) -> Tensor:
    later = torch.triu(torch.ones(x.size(0), x.size(0), dtype=torch.bool), 1)
    return x.masked_fill(later, -1e4).softmax(-1)


def gated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, 1)
    return first * second.sigmoid()


def with_positions(x: Tensor, positions: nn.Embedding) -> Tensor:
    return x + positions.weight[: x.size(1)]


def by_element_count(x: Tensor) -> Tensor:
    return x / x.numel() + torch.arange(x.size(1))


def channels_last(b: int) -> list[Tensor]:
    return [randn(b, 16, 10, 10).contiguous(memory_format=torch.channels_last)]


# Name: a module or a function, a function that draws its inputs, typical sizes, and the sizes to test.
CASES: dict[str, tuple[Callable[..., Any], Draw, Sequence[int], Sequence[Sequence[int]]]] = {
    "mlp": (nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10)), lambda b: [randn(b, 32)], (16,), SIZES),
    "encoder layer": (
        nn.TransformerEncoderLayer(64, 4, 128, batch_first=True),
        lambda b, s: [randn(b, s, 64)],
        (4, 32),
        PAIRS,
    ),
    "convolutions": (conv_net(), lambda b: [randn(b, 3, 20, 20)], (4,), SIZES[:-1]),
    "image": (
        nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU()),
        lambda h, w: [randn(2, 3, h, w)],
        (32, 32),
        PAIRS,
    ),
    "channels last": (nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()), channels_last, (4,), SIZES[:-2]),
    "mean of embeddings": (
        Function(lambda t, e: e(t).mean(1), nn.Embedding(50, 24)),
        lambda b, s: [torch.randint(50, (b, s))],
        (4, 16),
        PAIRS,
    ),
    "table of dynamic size": (lambda x, i: x[i], lambda n, m: [randn(n, 5), torch.randint(n, (m,))], (16, 16), PAIRS),
    "softmax": (lambda x: x.softmax(-1), lambda n: [randn(33, n)], (128,), SIZES),
    "softmax of columns": (lambda x: x.softmax(0), lambda n: [randn(n, 33)], (128,), SIZES),
    "layer norm": (lambda x: functional.layer_norm(x, (x.size(-1),)), lambda n: [randn(33, n)], (128,), SIZES),
    "variance": (lambda x: x.double().var(-1), lambda n: [randn(6, n)], (64,), SIZES),
    "concatenation": (
        lambda x, y: torch.cat([x, y.relu(), x * 2], 1),
        lambda n, m: [randn(8, n), randn(8, m)],
        (12, 20),
        PAIRS,
    ),
    "stack": (lambda x, y: torch.stack([x, y.relu()], 1), lambda n: [randn(8, n), randn(8, n)], (12,), SIZES),
    "chunks": (gated, lambda n: [randn(n, 24)], (12,), SIZES),
    "square product": (torch.matmul, lambda n: [randn(n, n), randn(n, n)], (64,), SIZES),
    "batched product": (torch.matmul, lambda n, k: [randn(n, 3, k), randn(n, k, n)], (8, 64), PAIRS),
    "broadcast": (lambda x, y, z: (x + y) * z, lambda n, m: [randn(n, 1), randn(1, m), randn(n, m)], (64, 64), PAIRS),
    "causal mask": (masked, lambda n: [randn(n, n)], (64,), SIZES),
    "counts": (by_element_count, lambda n: [randn(5, n)], (64,), SIZES),
    "total": (lambda x: (x * x).sum(), lambda n: [randn(n, 7)], (64,), SIZES),
    "transposition": (lambda x: x.transpose(1, 2).contiguous(), lambda n, m: [randn(3, n, m)], (64, 32), PAIRS),
    "positions": (Function(with_positions, nn.Embedding(512, 24)), lambda b, s: [randn(b, s, 24)], (4, 16), PAIRS),
}


def _check(
    subject: Callable[..., Any], draw: Draw, typical: Sequence[int], points: Sequence[Sequence[int]], layers: int
) -> None:
    module = subject if isinstance(subject, nn.Module) else Function(subject)
    dynamic = Dynamic.of(module, draw, typical)
    for values in points:
        result, expected = dynamic(values, draw(*values))
        assert_matches(result, expected, layers=layers)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_eager_at_many_sizes(name: str) -> None:
    _check(*CASES[name], layers=8)


def _bert_inputs(b: int, s: int) -> list[Tensor]:
    return [torch.randint(50, (b, s)), (torch.rand(b, s) > 0.2).long()]


def _bert() -> nn.Module:
    """Build the small BERT, with enough position embeddings for the samples."""
    module = MODELS["bert"].reduced().build()
    module.position = nn.Embedding(256, 32)
    return module


@pytest.mark.parametrize(
    ("build", "draw", "typical", "points"),
    [
        (_bert, _bert_inputs, (2, 16), [(3, 2), (2, 17), (5, 33), (2, 100)]),
        (MODELS["resnet18"].reduced().build, lambda b: [randn(b, 3, 64, 64)], (2,), [(2,), (3,), (7,)]),
        (MODELS["lstm"].reduced().build, lambda b: [randn(b, 6, 16)], (2,), [(2,), (3,), (17,)]),
        (lambda: Function(lambda x, cells: cells(x)[0], nn.LSTM(64, 128)), lambda b: [randn(3, b, 64)], (8,), SIZES),
    ],
    ids=["bert", "resnet18", "lstm", "wide lstm"],
)
@pytest.mark.sampled(0)
def test_models_agree_with_eager(
    build: Callable[[], nn.Module], draw: Draw, typical: Sequence[int], points: Sequence[Sequence[int]]
) -> None:
    _check(build(), draw, typical, points, layers=24)


@pytest.mark.sampled(0)
def test_two_threads_run_tiles_of_dynamic_sizes() -> None:
    """Check local buffers of a chain. Each thread has its own, and they grow with the sizes."""
    torch.set_num_threads(2)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    _check(layer, lambda s: [randn(2, s, 64)], (16,), [(16,), (500,), (17,), (900,)], layers=8)


def test_the_manifest_tells_of_symbols_and_workspace() -> None:
    traced = Traced.of(conv_net(), [randn(4, 3, 20, 20)])
    program = program_of(traced, lambda b: [randn(b, 3, 20, 20)], (4,))
    manifest = devices.get("cpu").lower(program).manifest
    assert manifest.symbols == 1
    assert manifest.workspace
    assert manifest.packs
    static = devices.get("cpu").lower(program.sample(0)).manifest
    assert (static.symbols, static.workspace) == (0, "")


@pytest.mark.parametrize(
    ("function", "draw", "reason"),
    [
        (lambda x: x.flatten().cumsum(0), lambda n: [randn(n, 3)], "an op that has no kernels"),
        (lambda x: functional.max_pool2d(x, 2), lambda n: [randn(1, 1, n, n)], "a count is not a polynomial"),
        (lambda x: x / x.size(0) ** 0.5, lambda n: [randn(n, 3)], "a number is computed from the sizes ahead"),
    ],
    ids=["scan", "rounded size", "root"],
)
def test_errors_name_the_reason_against_dynamic_sizes(function: Callable[..., Tensor], draw: Draw, reason: str) -> None:
    traced = Traced.of(Function(function), draw(16))
    with pytest.raises(CompileError, match=f"the program is not dynamic: {reason}"):
        devices.get("cpu").lower(program_of(traced, draw, (16,)))


def test_parts_that_overlap_at_some_sizes() -> None:
    """Check slices that do not overlap at the samples. The order of their writes still matters."""

    def ends(x: Tensor, first: Tensor, last: Tensor) -> Tensor:
        y = torch.slice_scatter(x.relu(), first.exp(), 1, 0, 10)
        return torch.slice_scatter(y, last.exp(), 1, x.size(1) - 10, x.size(1))

    def draw(n: int) -> list[Tensor]:
        return [randn(3, n), randn(3, 10), randn(3, 10)]

    _check(ends, draw, (64,), [(12,), (19,), (20,), (64,)], layers=1)


S, T = Size.symbol(0), Size.symbol(1)


@pytest.mark.parametrize(
    ("number", "positive"),
    [
        (1, True),
        (0, False),
        (S, True),
        (S - 1, True),
        (S - 2, False),
        (S * T - 3, True),
        (S * T - 4, False),
        (S - T, False),
    ],
)
def test_positive_numbers(number: int | Size, positive: bool) -> None:
    assert is_positive(number) is positive


@given(st.lists(st.builds(Lifetime, st.integers(1, 99), st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_buffers_share_a_slot_only_when_they_never_meet(samples: list[Lifetime]) -> None:
    lifetimes = [Lifetime(f.size, min(f.first, f.last), max(f.first, f.last)) for f in samples]
    slots = share_slots(lifetimes)
    assert sorted(k for slot in slots for k in slot) == list(range(len(lifetimes)))
    assert not any(lifetimes[a].overlaps(lifetimes[b]) for slot in slots for a in slot for b in slot if a != b)

"""Parameters that change without a new tensor version: running statistics, and writes through ``.data``."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import unfrozen_graph
from torch import Tensor, nn

import torchmdla
from torchmdla.importer import ImportedGraph, builder, import_graph
from torchmdla.importer.interpreter import run_and_record
from torchmdla.testing.compare import assert_matches

CHANNELS = 16


def net() -> nn.Module:
    """Return norms after a convolution, a depthwise convolution and a linear layer, and one norm alone."""
    return nn.Sequential(
        nn.Conv2d(3, CHANNELS, 3, bias=False),
        nn.BatchNorm2d(CHANNELS),
        nn.ReLU6(),
        nn.Conv2d(CHANNELS, CHANNELS, 3, groups=CHANNELS, bias=False),
        nn.BatchNorm2d(CHANNELS),
        nn.MaxPool2d(2),
        nn.InstanceNorm2d(CHANNELS, affine=False, track_running_stats=True),
        nn.Flatten(),
        nn.Linear(CHANNELS * 9, 12, bias=False),
        nn.BatchNorm1d(12),
    ).eval()


def image(seed: int = 0) -> Tensor:
    return torch.randn(20, 3, 10, 10, generator=torch.Generator().manual_seed(seed))


def check(compiled: Callable[..., Tensor], module: nn.Module, seed: int = 0) -> None:
    assert_matches(compiled(image(seed)), module(image(seed)), layers=6)


def norms(module: nn.Module) -> list[Any]:
    return [part for part in module.modules() if hasattr(part, "running_mean")]


pytestmark = pytest.mark.usefixtures("without_gradients")


# Functions that make a callable that shares the module's buffers.
VARIANTS: dict[str, Callable[[nn.Module], Callable[..., Tensor]]] = {
    "scripted": torch.jit.script,
    "traced": lambda module: torch.jit.trace(module, (image(),), check_trace=False),
    "torch.compile": lambda module: torch.compile(module, backend="torchmdla"),
}


def train(module: nn.Module) -> None:
    module.train()
    module(image(seed=9) * 2 + 1)
    module.eval()


def train_one_norm(module: nn.Module) -> None:
    last = norms(module)[-1]
    last.train()
    last(torch.randn(8, 12) + 1)
    last.eval()


def copy_into(module: nn.Module) -> None:
    for norm in norms(module):
        norm.running_mean.copy_(torch.randn(norm.num_features))
        norm.running_var.copy_(torch.rand(norm.num_features) + 0.5)


def write_one_element(module: nn.Module) -> None:
    norms(module)[0].running_mean[CHANNELS - 1] += 1


def write_through_data(module: nn.Module) -> None:
    for norm in norms(module):
        norm.running_mean.data.add_(1)
        norm.running_var.data.mul_(0.75)


def replace_data(module: nn.Module) -> None:
    for norm in norms(module):
        norm.running_mean.data = norm.running_mean.data + 1
        norm.running_mean.data = norm.running_mean.data + 1


def load(module: nn.Module) -> None:
    state = copy.deepcopy(module.state_dict())
    for value in state.values():
        if value.is_floating_point():
            value.mul_(1.5)
    module.load_state_dict(state)


def change_weights(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.mul_(1.25)


def change_weights_through_data(module: nn.Module) -> None:
    """Write to the weights as weight averaging and old optimisers do."""
    for parameter in module.parameters():
        parameter.data.mul_(1.25)


CHANGES = [
    train,
    train_one_norm,
    copy_into,
    write_one_element,
    write_through_data,
    replace_data,
    load,
    change_weights,
    change_weights_through_data,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("way", VARIANTS)
def test_values_after_a_change(way: str, change: Callable[[nn.Module], None]) -> None:
    module = net()
    compiled = VARIANTS[way](module)
    for seed in range(4):
        check(compiled, module, seed)
    for seed in range(3):
        change(module)
        check(compiled, module, seed)
        check(compiled, module, seed + 1)
    assert not torchmdla.stats().fallbacks


@pytest.mark.parametrize("way", VARIANTS)
def test_instances_keep_their_own_statistics(way: str) -> None:
    """Instances share packed data only while their statistics are equal."""
    first = net()
    second = copy.deepcopy(first)
    compiled = [(VARIANTS[way](module), module) for module in (first, second)]
    for _ in range(4):
        for call, module in compiled:
            check(call, module)
    for change in (train, copy_into, write_one_element):
        change(second)
        for call, module in compiled:
            check(call, module)
    assert not torchmdla.stats().fallbacks


def strided(module: nn.Module) -> None:
    for norm in norms(module):
        norm.running_mean = torch.randn(norm.num_features, 2)[:, 0]
        norm.running_var = torch.ones(1).expand(norm.num_features)


def of_inference_mode(module: nn.Module) -> None:
    with torch.inference_mode():
        for norm in norms(module):
            norm.running_mean, norm.running_var = norm.running_mean.clone(), norm.running_var.clone()


@pytest.mark.parametrize("prepare", [strided, of_inference_mode], ids=lambda prepare: prepare.__name__)
def test_other_tensors(prepare: Callable[[nn.Module], None]) -> None:
    module = net()
    prepare(module)
    scripted = torch.jit.script(module)
    for seed in range(6):
        check(scripted, module, seed)
        with torch.inference_mode(prepare is of_inference_mode):
            for norm in norms(module):
                norm.running_mean.add_(1)
    assert not torchmdla.stats().fallbacks


def test_a_weight_with_gaps() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
    module[0].weight = nn.Parameter(torch.randn(8, 3, 3, 6)[..., ::2])
    scripted = torch.jit.script(module)
    for seed in range(4):
        check(scripted, module, seed)
        module[0].weight.mul_(1.5)
    assert not torchmdla.stats().fallbacks


def test_updates_by_another_thread() -> None:
    """Results during the updates depend on a race, in eager too. Afterwards results match the statistics."""
    module = net()
    scripted = torch.jit.script(module)
    for _ in range(4):
        check(scripted, module)
    done = threading.Event()

    def update() -> None:
        for step in range(300):
            for norm in norms(module):
                norm.running_mean.data.fill_(step % 7)
        done.set()

    thread = threading.Thread(target=update)
    thread.start()
    while not done.is_set():
        scripted(image())
    thread.join()
    check(scripted, module)


def test_batches_of_any_size() -> None:
    """The decision to fold a factor is the same for all samples of a dynamic size."""
    module = nn.Sequential(nn.Linear(24, 48, bias=False), nn.BatchNorm1d(48), nn.ReLU(), nn.BatchNorm1d(48)).eval()
    scripted: Any = torch.jit.script(module)
    for batch in (10, 10, 12, 14, 14, 13, 40):
        x = torch.randn(batch, 24)
        assert_matches(scripted(x), module(x), layers=4)
        copy_into(module)
        assert_matches(scripted(x), module(x), layers=4)
    assert torchmdla.stats().dynamic == 1, torchmdla.stats().not_dynamic
    assert not torchmdla.stats().fallbacks


# --- arguments that the importer reports ------------------------------------------------------------------------------


def imported(module: nn.Module, *inputs: Tensor) -> ImportedGraph:
    graph, arguments = unfrozen_graph(module, *inputs)
    _, record = run_and_record(graph, arguments)
    return import_graph(graph, record, range(len(inputs), len(arguments)))


def roles(program: ImportedGraph) -> list[tuple[str, bool]]:
    pairs = [(a.role, b.unversioned) for a, b in zip(program.arguments, program.bindings, strict=True)]
    return sorted(pairs)


def test_statistics_are_parameters_with_a_mark() -> None:
    program = imported(nn.BatchNorm2d(4).eval(), torch.randn(2, 4, 3, 3))
    assert roles(program) == [("input", False)] + [("parameter", False)] * 2 + [("parameter", True)] * 2


def test_large_statistics_are_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing large statistics would cost more time than folding them saves."""
    monkeypatch.setattr(builder, "_MAX_UNVERSIONED_BYTES", 4 * 4)
    program = imported(nn.BatchNorm2d(4).eval(), torch.randn(2, 4, 3, 3))
    assert roles(program) == [("input", False)] * 3 + [("parameter", False)] * 2


def test_values_by_large_statistics() -> None:
    module = nn.Sequential(nn.BatchNorm1d(1 << 18), nn.ReLU()).eval()
    scripted: Any = torch.jit.script(module)
    x = torch.randn(2, 1 << 18)
    for _ in range(6):
        assert_matches(scripted(x), module(x))
        module[0].running_mean.data.add_(1)
    assert not torchmdla.stats().fallbacks

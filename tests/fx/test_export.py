"""Exported programs, and plain modules without TorchScript: they compute eager's results."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import torchmdla
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import MODELS
from torchmdla.testing.programs import PROGRAMS


@pytest.mark.parametrize("name", ["resnet18", "bert", "vit_b16", "lstm"])
@pytest.mark.sampled(1)
def test_models(name: str) -> None:
    spec = MODELS[name].reduced()
    module = spec.build()
    program = torchmdla.compile(module, *spec.inputs(), frontend="export")
    before = torchmdla.stats().specialisations
    assert before >= 1
    with torch.no_grad():
        for seed in range(2):
            inputs = spec.inputs(seed=seed)
            assert_matches(program(*inputs), module(*inputs), layers=spec.layers)
    # The first call after the compilation compiles nothing.
    assert torchmdla.stats().specialisations == before
    assert not torchmdla.stats().fallbacks


def test_training_steps_run_compiled() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 2)
    )
    x, twin = torch.randn(4, 3, 8, 8), copy.deepcopy(module)
    program = torchmdla.compile(module, x, frontend="export")
    for _ in range(4):
        torchmdla.reset_stats()
        results = []
        for each in (program, twin):
            each.zero_grad()
            result = each(x)
            result.square().sum().backward()
            results.append([result, [parameter.grad for parameter in each.parameters()], dict(each.named_buffers())])
        assert_matches(*results, layers=16)
    statistics = torchmdla.stats()
    assert (statistics.training_calls, statistics.fallbacks, statistics.not_trained) == (0, {}, {})


class Mixer(nn.Module):
    """A module with nested structures and keywords that counts its calls and updates a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, pair: tuple[Tensor, Tensor], *, scale: dict[str, Tensor]) -> dict[str, Any]:
        self.calls += 1
        first, other = pair
        hidden = torch.relu(self.linear(first) * scale["by"]) + other
        return {"made": self.norm(hidden), "again": [hidden, hidden[:, 0]], "nothing": None}


def mixer_inputs(seed: int) -> tuple[tuple[tuple[Tensor, Tensor]], dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    first, other, factor = (torch.randn(4, 6, generator=generator) for _ in range(3))
    return ((first, other),), {"scale": {"by": factor}}


def test_structures_buffers_and_state() -> None:
    module = Mixer().train()
    reference = copy.deepcopy(module)
    args, kwargs = mixer_inputs(0)
    torch.manual_seed(3)
    program = torchmdla.compile(module, *args, frontend="export", example_keywords=kwargs)
    # The preparation changed neither statistics nor random numbers.
    assert_matches(program.state_dict(), reference.state_dict())
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(3)))
    with torch.no_grad():
        for seed in range(3):
            args, kwargs = mixer_inputs(seed)
            assert_matches(program(*args, **kwargs), reference(*args, **kwargs))
        assert_matches(program.state_dict(), reference.state_dict())
        # The program uses the module's weights, and reads them in every call.
        changed = {name: value * 2 for name, value in reference.state_dict().items()}
        program.load_state_dict(changed)
        reference.load_state_dict(changed)
        assert_matches(program(*args, **kwargs), reference(*args, **kwargs))
        program.linear.weight = reference.linear.weight = nn.Parameter(torch.randn(6, 6))
        assert_matches(program(*args, **kwargs), reference(*args, **kwargs))


def test_dynamic_shapes() -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(-1)).eval()
    rows = Dim("rows", min=2, max=64)
    program = torchmdla.compile(module, torch.randn(4, 6), frontend="export", dynamic_shapes=({0: rows},))
    with torch.no_grad():
        for size in (2, 3, 5, 8, 13, 8):
            x = torch.randn(size, 6)
            assert_matches(program(x), module(x))
    with pytest.raises(Exception, match="64"):
        program(torch.randn(65, 6))
    with pytest.raises(Exception, match="6"):
        program(torch.randn(4, 7))


def test_an_example_that_is_a_view_asks_for_no_views() -> None:
    """If an example's sizes change in place, PyTorch makes the memory behind it a condition of each call."""

    class Written(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.dropout3d(x, 0.0, True, inplace=True).relu()

    program = torchmdla.compile(Written(), torch.randn(24).as_strided((4, 3, 2, 1), (6, 2, 1, 1)), frontend="export")
    with torch.no_grad():
        for argument in (torch.randn(24).as_strided((4, 3, 2, 1), (6, 2, 1, 1)), torch.randn(4, 3, 2, 1)):
            assert_matches(program(argument.clone()), Written()(argument.clone()))


def loaded(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return the program after it was saved and loaded."""
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def test_a_saved_program() -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
    x = torch.randn(4, 6)
    program = torchmdla.compile(loaded(torch.export.export(module, (x,))))
    assert torchmdla.stats().specialisations == 1
    with torch.no_grad():
        assert_matches(program(x), module(x))


def check_gradients(module: nn.Module) -> None:
    """Compare results and gradients of an exported module with eager's."""
    program = torchmdla.compile(module, torch.randn(4, 6), frontend="export")
    results = []
    for call in (program, module):
        torch.manual_seed(0)
        call.zero_grad()
        x = torch.ones(4, 6, requires_grad=True)
        result = call(x)
        result.sin().sum().backward()
        results.append((result, x.grad, [p.grad.clone() for p in call.parameters()]))
    assert_matches(*results)


def test_gradients_are_eagers() -> None:
    check_gradients(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))


def test_running_statistics_have_no_gradients() -> None:
    """Before, the statistics required gradients after the first step, and kept the graphs of all steps alive."""
    x = torch.randn(4, 3)
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    program = torchmdla.compile(copy.deepcopy(module), x, frontend="export")
    for call in (program, module):
        for _ in range(3):
            call(x).square().sum().backward()
    states = [dict(call.named_buffers()) for call in (program, module)]
    assert not any(buffer.requires_grad for buffer in states[0].values())
    assert_matches(*states)


class Written(nn.Module):
    """A module that writes to a part of a tensor with a gradient."""

    def __init__(self, write: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        doubled = x * 2
        self.write(doubled[1:])
        return doubled * x


WRITES: dict[str, Callable[[Tensor], object]] = {
    "copy": lambda part: part.copy_(torch.arange(6)),
    "normal": lambda part: part.normal_(),
    "bernoulli": lambda part: part.bernoulli_(0.3),
    "zero": lambda part: part.zero_(),
}


@pytest.mark.parametrize("name", WRITES)
def test_gradients_through_writes(name: str) -> None:
    """PyTorch's functional forms of these writes have no derivatives."""
    check_gradients(Written(WRITES[name]))


class Filled(nn.Module):
    def __init__(self, dims: tuple[int, ...]) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        filled = torch.empty(3, 4, 6, dtype=torch.float64).permute(self.dims)
        filled.copy_(torch.relu(x) + 1)
        return filled, filled * 2


@pytest.mark.parametrize("dims", list(permutations(range(3))))
def test_copies_keep_the_strides_that_they_are_written_to(dims: tuple[int, ...]) -> None:
    module, sizes = Filled(dims), [(3, 4, 6)[dim] for dim in dims]
    program = torchmdla.compile(module, torch.randn(sizes), frontend="export")
    statistics = torchmdla.stats()
    assert (statistics.groups, statistics.specialisations) == (1, 1)
    for shape in (sizes, sizes[-1:]):
        x = torch.randn(shape).expand(sizes)
        with torch.no_grad():
            assert_matches(program(x), module(x))


class Idle(nn.Module):
    """A dropout without effect: its result is its input, whichever tensor is written to."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        same, other = (nn.functional.dropout(z, 0.0 if self.training else 0.5, self.training) for z in (x, y))
        before = torch.relu(x) + y
        other.mul_(2)
        return same, before - y


@pytest.mark.parametrize("training", [False, True])
def test_idle_dropout_is_its_input(training: bool) -> None:
    module, inputs = Idle().train(training), (torch.randn(4, 6), torch.randn(4, 6))
    exported = torch.export.export(module, inputs)
    before = str(exported)
    program = torchmdla.compile(exported)
    assert str(exported) == before
    ours, eagers = copy.deepcopy(inputs), copy.deepcopy(inputs)
    with torch.no_grad():
        results = program(*ours)
        assert_matches(results, module(*eagers))
    assert_matches(ours, eagers)
    assert results[0].data_ptr() == ours[0].data_ptr()


class Writer(nn.Module):
    """A module that writes to its input, and returns views of it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        before = torch.relu(x) + 1
        x.mul_(2)
        return before[1:], (before + x).t()


def test_written_inputs() -> None:
    example = torch.ones(4, 6)
    program = torchmdla.compile(Writer(), example, frontend="export")
    assert_matches(example, torch.ones(4, 6))
    with torch.no_grad():
        ours, other = torch.randn(4, 6), torch.empty(4, 6)
        other.copy_(ours)
        for _ in range(2):
            assert_matches(program(ours), Writer()(other))
            assert_matches(ours, other)


def _of_an_input(x: Tensor, buffer: Tensor) -> Any:
    x.mul_(2)
    return x.t()


def _of_a_part(x: Tensor, buffer: Tensor) -> Any:
    part = x[1:]
    part.mul_(2)
    return part, x


def _of_a_buffer(x: Tensor, buffer: Tensor) -> Any:
    buffer.add_(x)
    return buffer.t()[1:], x + 1


def _of_neither(x: Tensor, buffer: Tensor) -> Any:
    value = x * 2
    buffer.copy_(value)
    return value, value.t(), buffer.t()


def _copies(x: Tensor, buffer: Tensor) -> Any:
    view = x.t()
    view.mul_(2)
    return view.contiguous(), view.reshape(-1), x.reshape(-1), view


def _of_several_parts(x: Tensor, buffer: Tensor) -> Any:
    first, _ = x.chunk(2)
    first.mul_(2)
    buffer.add_(x)
    return first, buffer.unbind(1)[2], x.split(3)[1]


ALIASES = [_of_an_input, _of_a_part, _of_a_buffer, _of_neither, _copies, _of_several_parts]


class WithBuffer(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.buffer: Tensor
        self.register_buffer("buffer", torch.ones(4, 6))

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.buffer)


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("function", ALIASES)
def test_views_of_written_tensors(function: Callable[[Tensor, Tensor], Any], is_loaded: bool) -> None:
    module = WithBuffer(function)
    exported = torch.export.export(copy.deepcopy(module), (torch.randn(4, 6),))
    program = torchmdla.compile(loaded(exported) if is_loaded else exported)
    seen = []
    with torch.no_grad():
        for call in (program, module):
            x = torch.arange(24.0).view(4, 6)
            results = tree_leaves(call(x))
            places = [tensor.untyped_storage().data_ptr() for tensor in (x, call.buffer, *results)]
            seen.append(([places.index(place) for place in places], results, x, call.buffer))
    assert_matches(*seen)


def test_programs_that_the_frontend_rejects() -> None:
    module, x = nn.Linear(2, 2), torch.randn(1, 2)
    exported = torch.export.export(module, (x,))
    for arguments, keywords, kind, message in [
        ((module, x), {"frontend": "bridge"}, ValueError, "unknown frontend 'bridge'"),
        ((module,), {"frontend": "export"}, TypeError, "needs example inputs"),
        ((torch.relu, x), {"frontend": "export"}, TypeError, "exported program or a plain module, got"),
        ((exported,), {"dynamic_shapes": ({0: None},)}, TypeError, "from its export"),
        ((exported,), {"frontend": "torchscript"}, TypeError, "need frontend='export'"),
        ((module, x), {"example_keywords": {"input": x}}, TypeError, "need frontend='export'"),
    ]:
        with pytest.raises(kind, match=message):
            torchmdla.compile(*arguments, **keywords)


def test_a_quantised_program_is_one_group() -> None:
    """Pairs of quantise and dequantise are part of the group, and int8 weights too."""
    module: Any = PROGRAMS["dtypes.quantised"].make()
    inputs = (torch.randn(2, 4, 9, 9),)
    program = torchmdla.compile(module, *inputs, frontend="export")
    with torch.no_grad():
        for _ in range(2):
            assert_matches(program(*inputs), module(*inputs), layers=4)
    stats = torchmdla.stats()
    assert (stats.groups, stats.specialisations, stats.fallbacks, stats.left_out) == (1, 1, {}, {})


def test_a_written_input_has_the_gradient_of_its_new_value() -> None:
    class Writing(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            y = (x + weight).exp() + 1
            x.copy_(y)
            return y * 2

    module = Writing()
    program = torchmdla.compile(torch.export.export(module, (torch.randn(4, 6), torch.randn(6))))
    for _ in range(3):
        start, values = torch.randn(4, 6), torch.randn(6)
        results = []
        for call in (program, module):
            x, weight = start.clone(), values.clone().requires_grad_()
            (call(x, weight).sum() + x.sin().sum()).backward()
            results.append((x.detach(), weight.grad))
        assert_matches(*results, layers=8)

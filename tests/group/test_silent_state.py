"""State that changes between calls: compilers have kept globals, attributes, modes or hooks of the first call.

``test_silent_values.py`` names the source of these kinds of errors. Eager runs with the same changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from silent import Exceptions, assert_as_eager
from torch import Tensor, nn
from torch.jit import _recursive

import torchmdla
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.programs.inputs import integers, normal, overlapping, strided, transposed
from torchmdla.testing.programs.program import Program, factory_of

# A function that changes the module or function. Its result may be a context for the calls until the next change.
Change = Callable[[Any], object]


@dataclass(frozen=True)
class Changing:
    """A maker of a module or a function, its arguments, and the changes before each pair of calls."""

    make: Callable[[], Any]
    arguments: Sequence[Any]
    changes: Sequence[Change]


def setting(name: str, value: Any) -> Change:
    """Set an attribute of the module."""
    return lambda subject: setattr(subject, name, value)


def unchanged(subject: Any) -> None:
    """Leave everything as it is."""


class Scaled(nn.Module):
    """Numbers, a string and a flag that decide the computation."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.count, self.kind, self.is_shifted = 2.0, 3, "tanh", False
        self.weight = nn.Parameter(torch.linspace(-1, 1, 6))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(x) if self.kind == "tanh" else torch.relu(x)
        if self.is_shifted:
            y = y + self.weight
        for _ in range(self.count):
            y = y * self.factor + 1
        return y * self.weight


class Regularised(nn.Module):
    """Layers that compute different results in training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.norm, self.layer = nn.BatchNorm1d(6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(x))
        return self.layer(y) * 2 if self.training else torch.tanh(self.layer(y))


def layer() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))


def write_unrecorded(write: Callable[[Tensor], object]) -> Change:
    """Return a change that writes to the first weight without recording it."""

    def change(subject: Any) -> None:
        with torch.no_grad():
            write(next(subject.parameters()))

    return change


def through_numpy(weight: Tensor) -> None:
    weight.detach().numpy()[0] = 7


def frozen(is_frozen: bool) -> Change:
    return lambda subject: [weight.requires_grad_(not is_frozen) for weight in subject.parameters()]


def in_evaluation(subject: Any) -> None:
    subject.eval()


def in_training(subject: Any) -> None:
    subject.train()


X = torch.linspace(-2, 2, 24).view(4, 6)

MODULES = {
    "numbers": Changing(Scaled, (X,), [setting("factor", 0.5), setting("factor", -0.0), setting("count", 0)]),
    "flags": Changing(
        Scaled, (X,), [setting("is_shifted", True), setting("kind", "relu"), setting("is_shifted", False)]
    ),
    "training": Changing(Regularised, (X,), [in_evaluation, in_training, in_evaluation]),
    "weights_written": Changing(
        layer, (X,), [write_unrecorded(lambda w: w.mul_(2)), write_unrecorded(lambda w: w[0].fill_(1))]
    ),
    "weights_as_data": Changing(
        layer, (X,), [write_unrecorded(lambda w: w.data.add_(1)), write_unrecorded(through_numpy)]
    ),
    "weights_set": Changing(layer, (X,), [write_unrecorded(lambda w: setattr(w, "data", w.data.flip(0) * 2))]),
    "weights_frozen": Changing(layer, (X,), [frozen(True), frozen(False)]),
    "modes": Changing(
        layer,
        (X,),
        [
            lambda subject: torch.no_grad(),
            lambda subject: torch.inference_mode(),
            lambda subject: torch.autocast("cpu", torch.bfloat16),
            lambda subject: torch.enable_grad(),
        ],
    ),
}

# Cases for torch.compile alone: TorchScript has a copy of this state.


def hooked_layer() -> nn.Module:
    layers = layer()
    layers[1].register_forward_hook(lambda module, inputs, result: result * len(inputs[0]))
    return layers


def replaced_layer(subject: Any) -> None:
    subject[2] = nn.Linear(6, 3, bias=False)
    nn.init.constant_(subject[2].weight, 0.25)


class Settings:
    """Globals that a function reads beside its arguments."""

    scale = 2.0
    function = staticmethod(torch.tanh)
    steps: list[int] = [1, 2]  # noqa: RUF012 as a program has it
    names: dict[str, float] = {"first": 1.0, "second": 2.0}  # noqa: RUF012


def reading_settings() -> Callable[[Tensor], Tensor]:
    Settings.scale, Settings.function = 2.0, staticmethod(torch.tanh)
    Settings.steps, Settings.names = [1, 2], {"first": 1.0, "second": 2.0}

    def function(x: Tensor) -> Tensor:
        y = Settings.function(x) * Settings.scale
        for step in Settings.steps:
            y = y * step + 1
        for place, (_, value) in enumerate(Settings.names.items()):
            y = y + value * place
        return y

    return function


def reading_closure() -> Callable[..., Any]:
    numbers = [2.0]

    def function(x: Tensor) -> Tensor:
        return torch.sigmoid(x) * numbers[0] + len(numbers)

    function.numbers = numbers
    return function


def making_numbers() -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        numbers = torch.tensor([0.1, 0.2, 0.3]) * 3
        return (torch.ones(3) * numbers).to(torch.float64).sum() + torch.arange(6.0).to(x.dtype) * x

    return function


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


def drawing() -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        torch.manual_seed(5)
        y = torch.rand(4, 6) + x * 2
        return y * torch.rand_like(x) + torch.randperm(6)

    return function


def on_error() -> Callable[..., Any]:
    seen: list[int] = []

    def function(x: Tensor) -> Tensor:
        y = x * 2
        try:
            if len(seen) % 2:
                raise ValueError("odd")
            y = torch.tanh(y)
        except ValueError:
            y = torch.relu(y) + 1
        finally:
            seen.append(1)
        return y * len(seen)

    return function


FUNCTIONS = {
    "hooks": Changing(hooked_layer, (X,), [frozen(True)]),
    "layer_replaced": Changing(layer, (X,), [replaced_layer]),
    "global_number": Changing(reading_settings, (X,), [lambda _: setattr(Settings, "scale", -1.0)]),
    "global_function": Changing(reading_settings, (X,), [lambda _: setattr(Settings, "function", torch.relu)]),
    "list_grown": Changing(
        reading_settings, (X,), [lambda _: Settings.steps.append(4), lambda _: Settings.steps.clear()]
    ),
    "dict_order": Changing(
        reading_settings, (X,), [lambda _: Settings.names.update(first=Settings.names.pop("first")), unchanged]
    ),
    "closure": Changing(
        reading_closure, (X,), [lambda f: f.numbers.append(1.0), lambda f: f.numbers.__setitem__(0, -3.0)]
    ),
    "default_dtype": Changing(making_numbers, (X,), [lambda _: default_dtype(torch.float64), unchanged]),
    "seeded": Changing(drawing, (X,), [unchanged]),
    "caught": Changing(on_error, (X,), [unchanged, unchanged]),
}


def results(subject: Any, called: Any, case: Changing) -> list[Any]:
    """Return the results of calls before and after each change, with gradients of weights where there are any."""
    values = []
    for change in [unchanged, *case.changes]:
        context = change(subject)
        with context if isinstance(context, contextlib.AbstractContextManager) else contextlib.nullcontext():
            for _ in range(2):
                result = called(*case.arguments)
                values.append(result.detach().clone())
                weights = [weight for weight in parameters(subject) if weight.requires_grad]
                if result.requires_grad:
                    gradients = torch.autograd.grad(result.float().square().sum(), weights, allow_unused=True)
                    # Under autocast, gradients are as exact as the results.
                    values += [gradient if gradient is None else gradient.to(result.dtype) for gradient in gradients]
    return values


def parameters(subject: Any) -> list[Tensor]:
    return list(subject.parameters()) if isinstance(subject, nn.Module) else []


def expected(case: Changing) -> list[Any]:
    subject = case.make()
    return results(subject, subject, case)


@pytest.mark.parametrize("name", MODULES)
def test_scripted(name):
    case = MODULES[name]
    _recursive.concrete_type_store = _recursive.ConcreteTypeStore()
    scripted = torch.jit.script(case.make())
    values = results(scripted, scripted, case)
    assert torchmdla.stats().specialisations > 0
    assert_matches(values, expected(case), layers=4)


@pytest.mark.parametrize("name", {**MODULES, **FUNCTIONS})
def test_compiled(name):
    case = {**MODULES, **FUNCTIONS}[name]
    torch._dynamo.reset()
    subject = case.make()
    values = results(subject, torch.compile(subject, backend="torchmdla"), case)
    assert torchmdla.stats().specialisations > 0
    assert_matches(values, expected(case), layers=4)


# --- calls that differ ------------------------------------------------------------------------------------------------


def halves_of_size(x: Tensor) -> tuple[Tensor, Tensor]:
    half = (x.size(0) + 1) // 2
    y = x * half + x.numel() % 3
    return y[:half].sum(0), torch.cat([y[half:], y[:half]]) * (1 if x.size(0) > 2 else 2)


def broadcast_or_not(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x * 2 + y
    return z.sum(-1), torch.where(z > 0, x, y).expand_as(z) * z


def normalised(x: Tensor) -> Tensor:
    y = x - x.mean(0, keepdim=True)
    return y / (y.square().sum(0, keepdim=True) / max(x.size(0) - 1, 1) + 1e-3).sqrt()


def numbers_of_kinds(x: Tensor, number: float, count: int, flag: bool) -> tuple[Tensor, Tensor]:
    y = x * number + count
    if flag:
        y = y // 0.5
    return 1 / (x * 0 + number), y * count


def looped(x: Tensor, count: int) -> Tensor:
    y = torch.tanh(x)
    for i in range(count):
        y = y * 0.5 + x * i
        if y.size(0) == i:
            break
    return y * 2


def looked_up(x: Tensor, at: Tensor) -> Tensor:
    return x[at].cumsum(0) * 2 + x[-1]


ROWS = tuple((normal(rows, 6),) for rows in (4, 7, 2, 1, 0))
LAYOUTS = tuple((layout(normal(5, 6)),) for layout in (transposed, strided, overlapping))
PAIRS = tuple(
    (normal(*left), normal(*right))
    for left, right in (
        ((4, 6), (4, 6)),
        ((4, 6), (1, 6)),
        ((1, 6), (5, 6)),
        ((3, 1), (6,)),
        ((), (2, 3)),
        ((7, 6), (7, 6)),
    )
)
KINDS = tuple(
    (normal(4, 6), number, count, flag)
    for number, count, flag in (
        (2.0, 1, True),
        (0.0, 1, True),
        (-0.0, 1, True),
        (-0.0, 0, False),
        (float("nan"), 1, True),
    )
)
COUNTS = tuple((normal(4, 6), count) for count in (3, 0, 6))
PLACES = tuple((normal(rows, 3), integers(2, high=rows)) for rows in (5, 3, 8, 1))
TYPES = tuple((normal(4, 6, dtype=dtype),) for dtype in (torch.float32, torch.float64, torch.bfloat16))

SERIES = {
    "halves_of_size": (halves_of_size, ROWS),
    "normalised_rows": (normalised, ROWS),
    "normalised_layouts": (normalised, LAYOUTS),
    "normalised_types": (normalised, TYPES),
    "broadcast_or_not": (broadcast_or_not, PAIRS),
    "numbers_of_kinds": (numbers_of_kinds, KINDS),
    "looped": (looped, COUNTS),
    "looked_up": (looked_up, PLACES),
}

_DECIDED = "a trace has the decisions of its first call"
EXCEPTIONS: Exceptions = {
    ("torchscript:trace", f"series.{name}"): ("pytorch", _DECIDED) for name in ("halves_of_size", "normalised_rows")
}

PROGRAMS = [
    Program(f"series.{name}", factory_of(function), calls[0], series=(*calls[:1] * 2, *calls, *calls[:1]))
    for name, (function, calls) in SERIES.items()
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
@pytest.mark.usefixtures("lazy_device")
@pytest.mark.sampled(1)
def test_series(program):
    assert_as_eager(program, EXCEPTIONS)

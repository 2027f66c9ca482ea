"""Tests of batches on the mdla device: run as a whole and in pipelined parts, they give the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from in_threads import in_threads
from torch import Tensor, nn
from torch.nn import functional

import torchmdla
from torchmdla.devices.mdla import calibration, loader, runtime_library
from torchmdla.devices.mdla.compiling import Cost
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import MODELS

onnx = pytest.importorskip("onnx")

pytestmark = pytest.mark.skipif(not runtime_library.PATH.exists(), reason="torchmdla was built without the mdla device")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of parts of the calls of each context when it is loaded."""
    seen: list[int] = []
    load = loader.load_context
    monkeypatch.setattr(loader, "load_context", lambda *arguments: seen.append(arguments[1].parts) or load(*arguments))
    return seen


class _Block(nn.Module):
    """Typical operators of convolutional networks, on images with eight channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.norm = nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.linear = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.leaky_relu(self.norm(self.conv(x)), 0.1) + x
        y = torch.cat([functional.max_pool2d(y, 2), functional.avg_pool2d(y, 2)], 1)
        y = functional.pad(self.up(y[:, 2:10]), (1, 2, 0, 1), value=0.5)
        y = functional.interpolate(y, size=(5, 7), mode="bilinear") * 1.5
        return self.linear(y.transpose(1, 2)[..., 1:]).softmax(-1).clamp(0.01, 0.5)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inner(x).chunk(3, -1)
        return torch.matmul(torch.matmul(query, key.transpose(1, 2)).softmax(-1), value).flatten(1)


class _Stepped(nn.Module):
    """Recurrence over the second axis, with a zero initial state."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.size(0), 8)
        for step in range(3):
            state = torch.tanh(self.inner(x[:, step] + state))
        return state


def _many(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.tanh(x) * y
    return z, torch.sigmoid(z + x).reshape(x.size(0), 2, -1).permute(0, 2, 1)


_Made = Callable[[], tuple[Any, tuple[Tensor, ...]]]

# Models that compute on each item separately, with a batch of six.
SEPARATE: dict[str, _Made] = {
    "block": lambda: (_Block(), (torch.randn(6, 8, 8, 8),)),
    "attention": lambda: (_Attention(), (torch.randn(6, 4, 8),)),
    "steps": lambda: (_Stepped(), (torch.randn(6, 3, 8),)),
    "linear": lambda: (nn.Linear(4, 3), (torch.randn(6, 5, 4),)),
    "conv1d": lambda: (nn.Sequential(nn.Conv1d(3, 4, 3), nn.Flatten(), nn.Linear(24, 2)), (torch.randn(6, 3, 8),)),
    "conv3d": lambda: (nn.Sequential(nn.Conv3d(1, 4, 3), nn.AdaptiveAvgPool3d(1)), (torch.randn(6, 1, 4, 4, 4),)),
    "many": lambda: (_many, (torch.randn(6, 8), torch.randn(6, 8))),
    **{
        name: lambda name=name: (MODELS[name].reduced().build(), MODELS[name].reduced().inputs(batch=6))
        for name in ("resnet18", "mobilenet_v2", "unet", "mlp")
    },
}


def _weighted(*sizes: int) -> nn.Module:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(sizes))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x) * self.weight

    return Weighted()


# Models that do not compute on each item separately, or that cannot be shown to.
MIXED: dict[str, _Made] = {
    "matmul": lambda: (lambda x: torch.tanh(x).mm(torch.tanh(x).t()), (torch.randn(6, 4),)),
    "softmax": lambda: (lambda x: torch.tanh(x).softmax(0), (torch.randn(6, 4),)),
    "concat": lambda: (lambda x: torch.cat([torch.tanh(x), torch.relu(x)]), (torch.randn(6, 4),)),
    "slice": lambda: (lambda x: torch.relu((torch.tanh(x) * x)[1:]), (torch.randn(6, 4),)),
    "pad": lambda: (lambda x: functional.pad(torch.tanh(x), (0, 0, 1, 1)), (torch.randn(6, 4),)),
    "a weight for each item": lambda: (_weighted(6, 4), (torch.randn(6, 4),)),
    "broadcast": lambda: (lambda x, y: torch.tanh(x) * y, (torch.randn(6, 6, 4), torch.randn(6, 4))),
    "turned": lambda: (lambda x: torch.tanh(x).t() + x, (torch.randn(6, 6),)),
    "joined": lambda: (lambda x: torch.relu((torch.tanh(x) * x).reshape(1, 24)), (torch.randn(6, 4),)),
    "one item": lambda: (nn.Linear(4, 3), (torch.randn(1, 4),)),
}


def _compiled(model: Any, inputs: tuple[Tensor, ...], **options: Any) -> Any:
    torchmdla.enable(device="mdla", strict=True, **options)
    return torchmdla.compile(model.eval() if isinstance(model, nn.Module) else model, *inputs)


def _same(first: Any, other: Any) -> bool:
    pairs = zip(*((result,) if isinstance(result, Tensor) else result for result in (first, other)), strict=True)
    return all(torch.equal(left, right) for left, right in pairs)


@pytest.mark.parametrize("precision", ["fixed16", "fixed8", "variable"])
@pytest.mark.parametrize("name", SEPARATE)
def test_items_give_the_batchs_bits(name: str, precision: str, parts: list[int]) -> None:
    torch.manual_seed(0)
    model, inputs = SEPARATE[name]()
    with torch.no_grad():
        if precision == "variable":
            calibration.forget()
            torchmdla.mdla.calibrate(model.eval() if isinstance(model, nn.Module) else model, [inputs])
            parts.clear()
        whole = _compiled(model, inputs, precision=precision, batches="whole")(*inputs)
        assert parts == [1]
        items = _compiled(model, inputs, precision=precision, batches="items")
        for _ in range(2):
            assert _same(items(*inputs), whole)
        assert parts == [1, 6]


@pytest.mark.parametrize("name", ["block", "attention", "steps", "resnet18"])
def test_items_in_float(name: str, parts: list[int]) -> None:
    model, inputs = SEPARATE[name]()
    with torch.no_grad():
        items = _compiled(model, inputs, precision="float32", batches="items")
        assert_matches(items(*inputs), model(*inputs), layers=30, strides=False)
    assert parts == [6]


@pytest.mark.parametrize("name", MIXED)
def test_a_batch_that_is_one_computation_is_run_as_one(name: str, parts: list[int]) -> None:
    model, inputs = MIXED[name]()
    with torch.no_grad():
        result = _compiled(model, inputs, precision="float32", batches="items")(*inputs)
        assert_matches(result, model(*inputs), layers=3, strides=False)
    assert parts == [1]


@pytest.mark.parametrize("threads", [1, 4])
def test_calls_of_threads(threads: int) -> None:
    """Check two networks that threads call item by item on one card of the emulator."""
    model, inputs = SEPARATE["block"]()
    other, other_inputs = SEPARATE["attention"]()
    with torch.no_grad():
        pairs = [
            (
                _compiled(network, arguments, batches="items"),
                _compiled(network, arguments, batches="whole")(*arguments),
                arguments,
            )
            for network, arguments in ((model, inputs), (other, other_inputs))
        ]
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(20):
            compiled, expected, arguments = pairs[(number + turn) % 2]
            with torch.no_grad():
                if not _same(compiled(*arguments), expected):
                    wrong.append(number)

    assert not in_threads(threads, work)
    assert not wrong
    assert torchmdla.stats().fallbacks == {}


# The choice of parts


def test_input_bound_programs_are_divided(parts: list[int]) -> None:
    """Check that a batch is divided if transfers take longer than computation, so that they overlap."""
    x = torch.randn(8, 4096)
    function = lambda x: torch.tanh(x) * x  # noqa: E731
    assert _same(_compiled(function, (x,))(x), _compiled(function, (x,), batches="whole")(x))
    assert parts[0] > 1
    assert parts[1] == 1


def test_weight_bound_programs_are_not_divided(parts: list[int]) -> None:
    x = torch.randn(8, 256)
    with torch.no_grad():
        _compiled(nn.Linear(256, 256), (x,))(x)
    assert parts == [1]


def test_new_weights_keep_the_choice(parts: list[int]) -> None:
    model, x = _weighted(4096), torch.randn(8, 4096)
    with torch.no_grad():
        torchmdla.enable(device="mdla", strict=True)
        traced = torch.jit.trace(model, (x,), check_trace=False)
        for _ in range(3):
            traced(x)
        model.weight.mul_(2)
        assert_matches(traced(x), model(x), layers=2, precision="fixed16")
    assert parts == [parts[0], parts[0]]
    assert parts[0] > 1


@pytest.mark.parametrize(
    ("cost", "inferences", "cycles"),
    [(Cost(10, 100, 20), 1, 130), (Cost(10, 100, 20), 4, 430), (Cost(100, 10, 20), 3, 330), (Cost(0, 0, 0), 5, 0)],
)
def test_cycles_of_a_stream(cost: Cost, inferences: int, cycles: int) -> None:
    assert cost.of_stream(inferences) == cycles


def test_parts_of_sizes() -> None:
    from torchmdla.devices.mdla.division import possible_parts

    def model(*shapes: tuple[int, ...]) -> Any:
        *inputs, output = [
            onnx.helper.make_tensor_value_info(str(place), onnx.TensorProto.FLOAT, shape)
            for place, shape in enumerate(shapes)
        ]
        return onnx.helper.make_model(onnx.helper.make_graph([], "g", inputs, [output]))

    assert list(possible_parts(model((12, 3), (12,)))) == [2, 3, 4, 6, 12]
    assert list(possible_parts(model((12, 3), (6, 2), (9,)))) == [3]
    assert list(possible_parts(model((12, 3), (7,)))) == []

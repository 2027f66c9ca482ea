"""Programs of several steps without PyTorch: control flow, containers, methods, state and exceptions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from native_programs import Branches, Containers, Stateful, Views, eager
from torch import Tensor, nn

import torchmdla
import torchmdla_runtime
from torchmdla.packages.native import _as_argument
from torchmdla.testing.compare import assert_matches


def export(module: nn.Module, calls: Any, path: Path) -> torchmdla_runtime.Model:
    torchmdla.export_native(torch.jit.script(module.eval()), calls, path)
    return torchmdla_runtime.Model(path, threads=1)


def check(result: Any, expected: Any) -> None:
    """Compare the runtime's result with eager's: tensors by the project's tolerance, all else exactly."""
    if isinstance(expected, Tensor):
        assert_matches(torch.from_numpy(result), expected, strides=False)
    elif isinstance(expected, list | tuple):
        assert type(result) is type(expected) and len(result) == len(expected)
        for left, right in zip(result, expected, strict=True):
            check(left, right)
    elif isinstance(expected, dict):
        assert list(result) == list(expected)
        check(list(result.values()), list(expected.values()))
    else:
        assert type(result) is type(expected) and result == expected


def words(*names: str) -> dict[str, Tensor]:
    return {name: torch.randn(3, 4) for name in names}


PROGRAMS = {
    "branches": (
        Branches,
        [(torch.ones(2, 8), 5), (-torch.ones(2, 8), 2, 0.5), (-torch.ones(3, 8), 0), (torch.ones(3, 8), 1)],
    ),
    "containers": (
        Containers,
        [
            (words("a", "long"), ["a", "long", "neither"], None, (2, 0.5)),
            (words("a"), ["a"], torch.ones(4), (3, 1.0)),
            ({}, [], None, (1, 0.0)),
        ],
    ),
    "views": (Views, [(torch.randn(rows, 5),) for rows in (1, 3, 4)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_match_eager(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build, calls = PROGRAMS[name]
    module = build().eval()
    session = export(module, calls, tmp_path / "model.tmdla").session()
    for arguments in calls * 2:
        native = tuple(map(_as_argument, arguments))
        check(session(*native), eager(module, arguments))


def test_sizes_that_vary(tmp_path: Path) -> None:
    module = Branches().eval()
    calls = [(-torch.ones(rows, 8), 3) for rows in (3, 4, 6)]
    session = export(module, calls, tmp_path / "model.tmdla").session()
    for rows in (5, 9, 40):
        x = -torch.rand(rows, 8)
        check(session(x.numpy(), 3), eager(module, (x, 3)))


def test_state_and_methods(counter: Stateful) -> None:
    model, module = counter.load(), counter.module()
    session, other = model.session(), model.session()
    assert set(model.methods) == {"forward", "summary", "clear"}
    for _ in range(2):
        for step in range(4):
            x = torch.full((1, 4), float(step))
            check(session(x.numpy()), eager(module, (x,)))
        assert session.summary()[0] == 8  # by the default
        check(session.summary(3), module.summary(3))
        session.clear(), module.clear()
    check(other.summary(1), (0, [], torch.zeros(1, 6)))
    assert session.state["calls"] == 0
    session.state = {"calls": 5, "hidden": torch.ones(1, 6)}
    assert session.summary(1)[0] == 5
    session.reset()
    check(session.summary(1), (0, [], torch.zeros(1, 6)))


def test_exceptions_of_the_program(counter: Stateful) -> None:
    session = counter.load().session()
    session.state = {"calls": 5}
    with pytest.raises(torchmdla_runtime.Raised, match=r"^it was called 6 times$") as raised:
        session(torch.ones(1, 4).numpy())
    assert raised.value.exception == "ValueError"
    assert session.summary(1)[0] == 6  # the state that the program left


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((), "WrongValue", r"forward\(x: Tensor\) -> Tensor needs the argument x"),
        ((1.0,), "WrongValue", "the argument x is of type float"),
        ((torch.ones(1, 4), 1), "WrongValue", "takes fewer arguments than the 2 of this call"),
        ((torch.ones(1, 5),), "WrongTensor", r"no code for the operators at .*:\d+ for inputs float32 1x5.* 1x4"),
        ((torch.ones(1, 4).double(),), "WrongTensor", "for inputs float64 1x4"),
        ((object(),), "TypeError", "methods do not take a object"),
    ],
)
def test_wrong_arguments(counter: Stateful, arguments: tuple[Any, ...], error: str, message: str) -> None:
    kind = getattr(torchmdla_runtime, error, TypeError)
    with pytest.raises(kind, match=message):
        counter.load().session()(*map(_as_argument, arguments))


def test_results_outlive_the_arguments(tmp_path: Path) -> None:
    """The session copies what it keeps of the caller's memory."""

    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.zeros(1)

        def forward(self, x: Tensor) -> Tensor:
            before = self.last
            self.last = x[1:]
            return before

    session = export(Keeps(), [(torch.ones(3),)], tmp_path / "model.tmdla").session()
    x = torch.tensor([1.0, 2.0, 3.0])
    session(x.numpy())
    x.fill_(0)
    check(session(x.numpy()), torch.tensor([2.0, 3.0]))

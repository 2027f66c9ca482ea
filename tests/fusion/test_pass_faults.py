"""Robustness of the pass that forms groups: no program fails by odd control flow or a fault in any stage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import torchmdla
from torchmdla import _C
from torchmdla.testing.compare import assert_matches


class EarlyReturns(nn.Module):
    """A flag that is undefined on one path."""

    def is_whole(self, x: Tensor) -> bool:
        if self.training:
            if x.size(0) == 1:
                return True
            if x.size(0) == 2:
                return False
        return True

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x) * 2
        return x if self.is_whole(x) else torch.relu(x) + 1


class EarlyReturnOfInteger(nn.Module):
    """A number that is undefined on one path."""

    def count(self, x: Tensor) -> int:
        if self.training:
            if x.size(0) == 1:
                return 3
            if x.size(0) == 2:
                return 4
        return 5

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x) * 2
        return torch.relu(x) + self.count(x)


class EarlyReturnOfTensor(nn.Module):
    """A tensor that is undefined on one path."""

    def part(self, x: Tensor) -> Tensor:
        if self.training:
            if x.size(0) == 2:
                return torch.tanh(x) * 2
            if x.size(0) == 3:
                return torch.sigmoid(x) + 1
        return torch.exp(x) - 1

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.part(x)) + 1


class ModeOfAString(nn.Module):
    """A chain of branches by a string, whose last branch raises an error."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mode = nn.Conv2d(2, 2, 1), "nearest"

    def forward(self, x: Tensor) -> Tensor:
        return functional.interpolate(self.conv(x[None, None].expand(1, 2, -1, -1)), scale_factor=2.0, mode=self.mode)


class RaisesByAttribute(nn.Module):
    """A value that is only defined in branches that do not raise an error."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = "tanh"

    def forward(self, x: Tensor) -> Tensor:
        x = x * 2 + 1
        if self.kind == "relu":
            y = torch.relu(x)
        elif self.kind == "tanh":
            y = torch.tanh(x)
        else:
            raise ValueError("unknown kind")
        return y * 2 + x


class BreaksAndContinues(nn.Module):
    """A loop whose iterations end early."""

    def forward(self, x: Tensor) -> Tensor:
        for i in range(4):
            x = torch.tanh(x) * 2
            if self.training and i == 1:
                continue
            if x.size(0) == i:
                break
            x = torch.relu(x) + i
        return x * 2 + 1


class DropoutBeforeRandomBranch(nn.Module):
    """A conditional draw after a dropout. The order of the draws is the program's."""

    def forward(self, x: Tensor) -> Tensor:
        x = functional.dropout(torch.tanh(x) * 2, 0.25, self.training)
        if not (self.training and torch.rand(1).item() <= 0.5):
            x = torch.relu(x) + 1
        return torch.tanh(x) * 2


class DropoutInAndOutside(nn.Module):
    """A dropout whose result is used by a group and returned by the program, with one mask for both."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = functional.dropout(torch.tanh(x) * 2, 0.5, self.training)
        return x, torch.tanh(x) * 2


class DropoutBetweenGroups(nn.Module):
    """A dropout whose result is used on both sides of an operator that cannot be in a group."""

    def forward(self, x: Tensor) -> Tensor:
        x = functional.dropout(torch.tanh(x) * 2, 0.5, self.training)
        return torch.special.i0e(x) @ x.mT + torch.sigmoid(x) @ x.mT


class ViewOfDropout(nn.Module):
    """A view of a dropout's result that leaves the group."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = functional.dropout(torch.tanh(x) * 2, 0.5, self.training).reshape(-1)
        return y, torch.exp(y) * 2


MODULES = (
    EarlyReturns,
    EarlyReturnOfInteger,
    EarlyReturnOfTensor,
    ModeOfAString,
    RaisesByAttribute,
    BreaksAndContinues,
    DropoutBeforeRandomBranch,
    DropoutInAndOutside,
    DropoutBetweenGroups,
    ViewOfDropout,
)


class EveryStage(nn.Module):
    """A program with work for every stage of the pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        parts = [torch.tanh(x)]
        parts.append(torch.relu(self.linear(x)) + 1)
        y = torch.cat(parts)
        y[0] = 1.5
        y.mul_(2)
        if self.training:
            y = torch.sigmoid(y) * 3
        return functional.dropout(self.linear(y), 0.5, self.training) + 1


def every_stage() -> nn.Module:
    """Return a module of a new class. PyTorch optimises the methods of a class only once."""
    kind: type[nn.Module] = type("EveryStage", (EveryStage,), {})
    return kind().eval()


def check(module: nn.Module, scripted: torch.jit.ScriptModule, calls: int = 4) -> None:
    """Compare calls of the scripted module with calls of the module, from the same state of the generator."""
    for call in range(calls):
        x = torch.linspace(-1, 1, 12 + 4 * (call % 2)).view(-1, 4)
        torch.manual_seed(call)
        expected = module(x)
        torch.manual_seed(call)
        assert_matches(scripted(x), expected)


@pytest.mark.parametrize("is_training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("kind", MODULES)
def test_control_flow_is_eagers(kind: type[nn.Module], is_training: bool) -> None:
    module = kind().train(is_training)
    with torch.no_grad():
        check(module, torch.jit.script(module), calls=6)
    assert not torchmdla.stats().fallbacks


def test_modes_may_change_between_calls() -> None:
    module = DropoutBeforeRandomBranch()
    scripted = torch.jit.script(module)
    with torch.no_grad():
        for is_training in (False, True, False, True):
            check(module.train(is_training), scripted.train(is_training))


@pytest.fixture
def failing_stage(request: pytest.FixtureRequest) -> Iterator[str]:
    _C.fail_pass_stage(request.param)
    yield request.param
    _C.fail_pass_stage("")


@pytest.mark.parametrize("with_gradients", [False, True], ids=["inference", "gradients"])
@pytest.mark.parametrize("failing_stage", _C.pass_stages(), indirect=True)
def test_a_fault_in_a_stage_leaves_the_program_as_it_was(failing_stage: str, with_gradients: bool) -> None:
    module = every_stage()
    scripted = torch.jit.script(module)
    with torch.set_grad_enabled(with_gradients):
        check(module, scripted)
    reasons = list(torchmdla.stats().fallbacks)
    assert any("the pass that forms groups failed" in reason and failing_stage in reason for reason in reasons), reasons


def test_explain_tells_of_a_graph_that_the_pass_failed_on() -> None:
    _C.fail_pass_stage("form-groups")
    try:
        report = torchmdla.explain(torch.jit.script(every_stage()), torch.randn(3, 4))
    finally:
        _C.fail_pass_stage("")
    assert any("the pass that forms groups failed" in reason.reason for reason in report.reasons)


def test_a_stage_has_a_name() -> None:
    with pytest.raises(ValueError, match="no stage 'find'"):
        _C.fail_pass_stage("find")

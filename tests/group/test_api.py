"""The functions that users call."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from graphs import groups
from torch import Tensor, nn

import torchmdla
from torchmdla.testing.compare import assert_matches


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def test_compile_leaves_nothing_to_compile():
    net, x = Net().eval(), torch.randn(2, 3, 8, 8)
    compiled = torchmdla.compile(net, x)
    before = torchmdla.stats()
    assert before.specialisations == before.groups == 1
    with torch.no_grad():
        assert_matches(compiled(x), net(x))
    after = torchmdla.stats()
    assert after.compiled_calls == before.compiled_calls + 1
    assert replace(after, by_group=(), compiled_calls=0) == replace(before, by_group=(), compiled_calls=0)
    assert isinstance(compiled, torch.jit.ScriptModule)


def test_groups_that_did_nothing_cost_nothing(monkeypatch):
    """Inactive groups are not queried: processes that serve models have thousands of groups."""
    asked = []
    reports = torchmdla._C.groups
    monkeypatch.setattr(torchmdla._C, "groups", lambda numbers=None: asked.append(numbers) or reports(numbers))
    x = torch.randn(2, 3, 8, 8)
    first, second = (torchmdla.compile(Net().eval(), x) for _ in range(2))
    torchmdla.reset_stats()
    with torch.no_grad():
        first(x)
        asked.clear()
        (activity,) = torchmdla.stats().by_group
        assert asked == [{activity.number}]
        assert (activity.calls, activity.compiled_calls, activity.specialisations) == (1, 1, 0)
        torchmdla.reset_stats()
        assert torchmdla.stats().by_group == ()
        second(x)
        assert [report.calls for report in torchmdla.stats().by_group if report.number != activity.number] == [1]
    assert asked[-3] == {activity.number} and asked[-2] == set() and activity.number not in asked[-1]


def test_compile_takes_scripts_functions_and_loaded_files(tmp_path):
    net, x = Net().eval(), torch.randn(2, 3, 8, 8)
    torch.jit.script(net).save(tmp_path / "model.pt")
    for script in (torch.jit.script(net), torch.jit.load(tmp_path / "model.pt")):
        with torch.no_grad():
            assert_matches(torchmdla.compile(script, x)(x), net(x))
    function = torchmdla.compile(lambda a, b: torch.tanh(a @ b) + 1, x[0, 0], x[0, 1])
    assert_matches(function(x[0, 0], x[0, 1]), torch.tanh(x[0, 0] @ x[0, 1]) + 1)


def test_compile_keeps_a_module_in_training_mode_trainable():
    net, x = Net().train(), torch.randn(2, 3, 8, 8)
    scripted = torchmdla.compile(torch.jit.script(net), x)
    scripted(x).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


@pytest.mark.parametrize(("wrong", "says"), [((3,), "got int"), ((nn.ReLU(),), "needs example inputs")])
def test_compile_rejects_wrong_arguments(wrong, says):
    with pytest.raises(TypeError, match=says):
        torchmdla.compile(*wrong)


def test_enable_and_graph_for_reject_wrong_arguments():
    with pytest.raises(TypeError, match=r"enable\(device='mdla'\)"):
        torchmdla.enable("mdla")
    with pytest.raises(TypeError, match=r"graph_for takes a TorchScript program, got ReLU: torch.jit.trace"):
        torchmdla.graph_for(nn.ReLU(), torch.randn(3))


def test_graph_for_makes_the_warm_up_calls():
    scripted = torch.jit.trace(lambda x: torch.tanh(x) * 2, torch.randn(3), check_trace=False)
    assert len(groups(torchmdla.graph_for(scripted, torch.randn(3)))) == 1


def test_optimize_for_inference_still_runs():
    """`optimize_for_inference` rewrites tensors to MKLDNN tensors, which no group can read."""
    net, x = Net().eval(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        optimised = torch.jit.optimize_for_inference(torch.jit.trace(net, x))
        for _ in range(4):
            assert_matches(optimised(x), net(x), layers=3)


def test_statistics_can_be_reset():
    torchmdla.compile(lambda x: torch.tanh(x) * 2, torch.randn(3))
    assert torchmdla.stats().groups == 1
    torchmdla.reset_stats()
    assert torchmdla.stats().groups == torchmdla.stats().specialisations == torchmdla.stats().compile_seconds == 0

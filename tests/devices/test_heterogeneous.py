"""Programs that several devices share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from picky_device import PickyDevice
from torch import Tensor, nn

import torchmdla
from torchmdla import _C, devices
from torchmdla.__main__ import main
from torchmdla.compile_service import service
from torchmdla.compiler.artifact import DevicePart
from torchmdla.errors import CompileError
from torchmdla.report.groups import executables_of
from torchmdla.testing.compare import assert_matches

sys.path.append(str(Path(__file__).parents[2] / "examples" / "devices" / "numpy"))

from far_device import FarDevice
from numpy_device import NumpyDevice
from pending_device import PendingDevice

X = torch.randn(2, 8)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for device in (NumpyDevice(), FarDevice(), PickyDevice()):
        devices.register(device)
    torchmdla.reset_stats()
    yield
    torchmdla.enable()


def build() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)
    return nn.Sequential(*layers).eval()


class Around(nn.Module):
    """An operator between two linear layers."""

    def __init__(self, op: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.before, self.after, self.op = nn.Linear(8, 8), nn.Linear(8, 8), op

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.op(self.before(x)).softmax(0))


def parts(since: set[int]) -> list[DevicePart]:
    """Return the parts of all programs of groups that are not in ``since``."""
    reports = _C.groups(_C.group_counts().keys() - since)
    return [part for report in reports for compiled in executables_of(report) for part in compiled.manifest.parts]


def run_and_list_parts(function: Any, *inputs: Tensor) -> list[DevicePart]:
    """Compare a function with eager, and return the parts of its programs."""
    before = set(_C.group_counts())
    with torch.no_grad():
        assert_matches(torchmdla.compile(function, *inputs)(*inputs), function(*inputs), layers=3)
    return parts(before)


@pytest.mark.parametrize("frontend", ["torchscript", "export", "dynamo"])
def test_values_by_frontend(frontend: Any) -> None:
    torchmdla.enable(device="picky,cpu")
    model = build()
    with torch.no_grad():
        if frontend == "dynamo":
            compiled: Any = torch.compile(model, backend="torchmdla")
        else:
            compiled = torchmdla.compile(model, X, frontend=frontend)
        assert_matches(compiled(X), model(X), layers=3)
        for weights in model.parameters():
            weights *= 0.5
        if frontend == "dynamo":  # The others have copies of the weights.
            assert_matches(compiled(X), model(X), layers=3)
    stats = torchmdla.stats()
    assert (stats.fallbacks, stats.left_out) == ({}, {})
    assert stats.devices["picky"].parts >= 2 and stats.devices["cpu"].parts >= 1


def test_parts_and_transfers_are_counted() -> None:
    torchmdla.enable(device="numpy,cpu")
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    listed = run_and_list_parts(model, X)
    assert [(part.device, part.transfers, part.bytes) for part in listed] == [
        ("numpy", 2, 4 * (16 + 32)),
        ("cpu", 0, 0),
        ("numpy", 2, 4 * (32 + 8)),
    ]
    counts = torchmdla.stats().devices
    assert counts["numpy"].parts == 2 * counts["cpu"].parts > 0
    assert counts["numpy"].transfers == 2 * counts["numpy"].parts
    assert counts["numpy"].bytes == counts["cpu"].parts * 4 * (16 + 32 + 32 + 8)
    assert "device numpy" in str(torchmdla.stats())


def test_explain_lists_devices_and_reasons() -> None:
    torchmdla.enable(device="numpy,cpu")
    explanation = torchmdla.explain(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval(), X)
    (group,) = explanation.groups
    assert [part.device for part in group.specialisations[0].parts] == ["numpy", "cpu", "numpy"]
    (reason,) = [reason for reason in explanation.reasons if reason.kind == "device"]
    assert str(reason) == "aten::gelu: it runs on device 'cpu': device 'numpy' has no such operator"
    assert "on numpy: aten::linear; 2 transfers" in str(explanation)


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        pytest.param(torch.erf, "the compiler of device 'picky' crashed", id="crash"),
        pytest.param(torch.atan, "no arcs", id="error that names the operator"),
        pytest.param(torch.sinh, "a hyperbola", id="error that does not"),
        pytest.param(torch.exp, "exp of a matrix", id="refusal"),
    ],
)
def test_a_call_that_a_device_does_not_compile_moves_to_the_next(op: Callable[[Tensor], Tensor], reason: str) -> None:
    torchmdla.enable(device="picky,cpu")
    listed = run_and_list_parts(Around(op).eval(), X)
    assert [part.device for part in listed] == ["picky", "cpu", "picky"]
    reasons = dict(listed[1].reasons)
    assert len(reasons) == 2 and any(reason in text for text in reasons.values())
    stats = torchmdla.stats()
    assert (stats.fallbacks, stats.left_out, stats.failures) == ({}, {}, 0)


def test_a_call_that_no_device_compiles_runs_by_eager() -> None:
    torchmdla.enable(device="numpy,picky")
    with pytest.warns(RuntimeWarning, match="aten::atan: no arcs"):
        listed = run_and_list_parts(lambda x: torch.mm(torch.mm(x, x.t()).atan(), x), X)
    assert {part.device for part in listed} == {"numpy"}
    assert torchmdla.stats().fallbacks == {}


def test_an_error_of_eager_is_raised_by_eager() -> None:
    torchmdla.enable(device="numpy,cpu")
    table = nn.Embedding(5, 8)
    linear = nn.Linear(8, 4)
    compiled = torch.jit.script(nn.Sequential(table, linear).eval())
    good, bad = torch.tensor([[1, 4]]), torch.tensor([[1, 5]])
    with torch.no_grad():
        for _ in range(4):
            assert_matches(compiled(good), linear(table(good)))
        assert set(torchmdla.stats().devices) == {"cpu", "numpy"}
        with pytest.raises(RuntimeError, match="index out of range"):
            compiled(bad)
        assert_matches(compiled(good), linear(table(good)))


def test_parts_of_an_asynchronous_device_are_waited_for() -> None:
    device = PendingDevice()
    devices.register(device)
    torchmdla.enable(device="pending,cpu")
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    listed = run_and_list_parts(model, X)
    assert [part.device for part in listed] == ["pending", "cpu", "pending"]
    assert device.log[:4] == [("entry", 0), ("wait",)] * 2
    device.fails = True
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="the device was unplugged"):
        assert_matches(torchmdla.compile(model, X)(X), model(X), layers=2)


def test_training_steps() -> None:
    torchmdla.enable(device="picky,cpu")
    model = build().train()
    expected = torch.autograd.grad(model(X).square().mean(), list(model.parameters()))
    compiled = torch.compile(model, backend="torchmdla")
    for _ in range(2):  # The first step is recorded, and runs by eager operators.
        assert_matches(torch.autograd.grad(compiled(X).square().mean(), list(model.parameters())), expected, layers=6)
    assert torchmdla.stats().devices.keys() == {"cpu", "picky"}
    assert torchmdla.stats().fallbacks == {}


@pytest.mark.parametrize(("names", "is_dynamic"), [("picky,cpu", True), ("numpy,cpu", False)])
def test_sizes_vary_if_all_devices_take_that(names: str, is_dynamic: bool) -> None:
    torchmdla.enable(device=names)
    model = Around(torch.tanh).eval()
    with torch.no_grad():
        compiled = torchmdla.compile(model, X)
        for rows in (3, 7, 5, 11, 2):
            x = torch.randn(rows, 8)
            assert_matches(compiled(x), model(x), layers=3)
    assert torchmdla.stats().dynamic == is_dynamic, torchmdla.stats().not_dynamic
    assert torchmdla.stats().devices.keys() == set(names.split(","))
    assert torchmdla.stats().fallbacks == {}


def test_an_artifact_on_disk_is_used_again() -> None:
    torchmdla.enable(device="numpy,cpu")
    run_and_list_parts(build(), X)
    service.reset()
    torchmdla.reset_stats()
    run_and_list_parts(build(), X)
    assert (torchmdla.stats().compiled, torchmdla.stats().cache_hits) == (0, 1)


@pytest.mark.parametrize(("width", "device"), [(8, "cpu"), (2048, "far")])
def test_a_call_stays_where_its_transfers_are_not_worth_it(width: int, device: str) -> None:
    torchmdla.enable(device="far,cpu")
    listed = run_and_list_parts(nn.Linear(width, width).eval(), torch.randn(64, width))
    assert [part.device for part in listed] == [device]
    reasons = [reason for part in listed for _, reason in part.reasons]
    assert all("transfers" in reason for reason in reasons) and len(reasons) == (device == "cpu")


def test_a_group_that_is_not_worth_its_only_device_runs_by_eager() -> None:
    torchmdla.enable(device="far")
    with pytest.warns(RuntimeWarning, match="it is not worth device 'far': .* in transfers"):
        run_and_list_parts(nn.Linear(8, 8).eval(), X)
    assert torchmdla.stats().specialisations == 0
    run_and_list_parts(nn.Linear(2048, 2048).eval(), torch.randn(64, 2048))
    assert torchmdla.stats().specialisations == 1


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("numpy,nothing", {}, ValueError, "no device named 'nothing'"),
        ("numpy,numpy", {}, ValueError, "each of them once"),
        ("numpy,cpu", {"tuned": False}, TypeError, "give each device its own options in a dict"),
        ("numpy,cpu", {"cpu": {"nothing": 1}}, TypeError, "unknown option 'nothing'"),
    ],
)
def test_wrong_lists_and_options(name: str, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        torchmdla.enable(device=name, **options)


def test_options_reach_their_device() -> None:
    torchmdla.enable(device="numpy, cpu", cpu={"algorithms": "direct"})
    assert "direct" in devices.get("numpy,cpu").target().features
    assert "direct" in devices.get("cpu").target().features


def test_strict_mode_reports_the_last_error() -> None:
    torchmdla.enable(device="numpy,picky", strict=True)
    with pytest.raises(CompileError, match="no arcs"), torch.no_grad():
        torchmdla.compile(lambda x: torch.mm(torch.mm(x, x.t()).atan(), x), X)
    torchmdla.enable(device="numpy,cpu")


def test_doctor_reports_what_each_device_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--device", "numpy,cpu"]) == 0
    assert "numpy ran" in " ".join(capsys.readouterr().out.split())

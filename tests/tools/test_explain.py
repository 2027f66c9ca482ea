"""Tests of ``torchmdla.explain`` and its command: its reports on programs, and consistency of the numbers."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fragile_device import WrongDevice
from torch import Tensor, nn

import torchmdla
from torchmdla.__main__ import main
from torchmdla.explaining.reasons import RUNS_EAGERLY
from torchmdla.report.explanation import Explanation, Reason

pytestmark = pytest.mark.usefixtures("without_gradients")


def line_of(text: str) -> str:
    """Return ``file:line`` of the only line of this file that ends with the comment ``# text``."""
    (line,) = [
        n for n, line_text in enumerate(Path(__file__).read_text().splitlines(), 1) if line_text.endswith(f"# {text}")
    ]
    return f"{__file__}:{line}"


def reason_for(report: Explanation, op: str) -> Reason:
    (match,) = [reason for reason in report.reasons if reason.op.partition(".")[0] == op]
    return match


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.linear = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.convolution(x)))
        return torch.softmax(self.linear(x.mean((2, 3))), 1)


@pytest.fixture
def image() -> Tensor:
    return torch.randn(2, 3, 32, 32)


def loaded(module: nn.Module) -> Any:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(module), file)
    file.seek(0)
    return torch.jit.load(file)


VARIANTS: dict[str, Any] = {
    "a module": lambda module, x: module,
    "scripted": lambda module, x: torch.jit.script(module),
    "loaded": lambda module, x: loaded(module),
    "frozen": lambda module, x: torch.jit.freeze(torch.jit.script(module)),
    "torch.compile": lambda module, x: torch.compile(module, backend="torchmdla"),
    "exported": lambda module, x: torch.export.export(module, (x,)),
    "compiled by export": lambda module, x: torchmdla.compile(module, x, frontend="export"),
}


@pytest.mark.parametrize("way", VARIANTS)
def test_one_group(way: str, image: Tensor) -> None:
    model = VARIANTS[way](Net().eval(), image)
    report = torchmdla.explain(model, image)
    assert report.summary.startswith("1 group, 100 % of ops and ")
    (group,) = report.groups
    assert group.ops["aten::relu"] == 1
    assert group.source.startswith(__file__) or way in ("frozen", "a module")
    (specialisation,) = group.specialisations
    assert any("float32[2, 3, 32, 32]" in text for text in specialisation.inputs)
    assert specialisation.cause == "the first call"
    assert specialisation.packed_bytes > 0
    assert report.reasons == ()


def test_lines_of_pytorch_are_others_as_well(image: Tensor) -> None:
    """Check that explain does not report operators of other models.

    A batch norm that trains leaves an operator outside of groups, at a line of PyTorch's own modules.
    """
    training = torch.jit.script(nn.BatchNorm2d(3))
    for _ in range(4):
        training(image)
    assert torchmdla.explain(torch.jit.script(Net().eval()), image).reasons == ()


def test_times_add_up(image: Tensor) -> None:
    report = torchmdla.explain(torch.jit.script(Net().eval()), image)
    (group,) = report.groups
    kernels = [kernel for specialisation in group.specialisations for kernel in specialisation.kernels]
    assert len(kernels) > 1
    assert all(kernel.seconds > 0 and kernel.bytes > 0 for kernel in kernels)
    # A call of the code also takes time outside its kernels.
    assert 0 < sum(kernel.seconds for kernel in kernels) <= group.seconds <= report.seconds
    assert report.seconds_compiled == group.seconds
    assert sum(kernel.share for kernel in kernels) <= group.share <= 1
    convolution = max(kernels, key=lambda kernel: kernel.flops)
    assert "conv2d" in convolution.ops
    # Direct convolution has 2 * 27 operations per result. Winograd's algorithm has fewer.
    assert convolution.flops >= 2 * 16 * 32 * 32 * 27
    assert convolution.gflops == pytest.approx(convolution.flops / convolution.seconds * 1e-9)


def test_nothing_is_timed_but_while_explaining(image: Tensor) -> None:
    scripted = torch.jit.script(Net().eval())
    torchmdla.explain(scripted, image)
    reports = torchmdla._C.groups()
    counts = [
        specialisation["executable"].owner.times.sums()["calls"] for specialisation in reports[-1]["specialisations"]
    ]
    scripted(image)
    assert [
        specialisation["executable"].owner.times.sums()["calls"] for specialisation in reports[-1]["specialisations"]
    ] == counts


@torch.library.custom_op("explained::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.jit.ignore
def in_python(x):  # type: ignore[no-untyped-def]
    return x.flip(0)  # flipped


class Gaps(nn.Module):
    """Module with groups between a custom operator, a Python function and an operator with a data-dependent size."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(x) + 1
        x = torch.ops.explained.twice(x)  # custom
        x = torch.tanh(x) * x
        x = in_python(x)  # python
        x = torch.sigmoid(x) + x
        indices = torch.nonzero(x > 0.5)  # data
        return torch.exp(indices.float()) + 1


def test_every_operator_outside_is_named_with_its_line() -> None:
    report = torchmdla.explain(torch.jit.script(Gaps()), torch.randn(4, 5))
    for op, mark, reason, advice in (
        ("explained::twice", "custom", "device 'cpu' has no such operator", "PyTorch's own"),
        ("prim::PythonOp", "python", "device 'cpu' has no such operator", "TorchScript"),
        ("aten::nonzero", "data", "device 'cpu' has no such operator", "torch.where"),
    ):
        match = reason_for(report, op)
        assert match.sources == (line_of(mark),)
        assert (match.kind, match.reason, match.count) == ("operator", reason, 1)
        assert advice in match.advice
    outside = {operator.op: operator for operator in report.outside}
    assert outside["explained::twice"].calls == outside["aten::nonzero"].calls == 1
    assert report.ops_compiled < report.ops
    assert "; top reasons for the rest: " in report.summary
    assert any(str(reason) in report.summary for reason in report.reasons)


def test_calls_from_python_have_a_line() -> None:
    """Check lines in a function that TorchScript leaves to Python, and between the graphs of torch.compile.

    torch.compile has one more reason in its first call, because PyTorch watches custom operators with a mode then.
    """
    report = torchmdla.explain(torch.jit.script(Gaps()), torch.randn(4, 5))
    assert reason_for(report, "aten::flip").sources == (line_of("flipped"),)
    torch._dynamo.reset()
    report = torchmdla.explain(torch.compile(Gaps(), backend="torchmdla"), torch.randn(4, 5))
    assert {reason.op for reason in report.reasons} == {"explained::twice", "aten::nonzero"}
    for op, mark in (("explained::twice", "custom"), ("aten::nonzero", "data")):
        assert reason_for(report, op).sources == (line_of(mark),)
    assert "torch.where" in reason_for(report, "aten::nonzero").advice


def test_operators_outside_through_torch_compile() -> None:
    def function(x: Tensor) -> Tensor:
        x = torch.relu(x) + 1
        x = torch.ops.explained.twice(x)  # compiled custom
        return torch.tanh(x) * x

    report = torchmdla.explain(torch.compile(function, backend="torchmdla"), torch.randn(4, 5))
    assert reason_for(report, "explained::twice").sources == (line_of("compiled custom"),)
    assert len(report.groups) == 2


def test_a_program_that_was_optimised_before() -> None:
    """Check a program whose graphs exist already and are not formed again."""
    scripted, x = torch.jit.script(Gaps()), torch.randn(4, 5)
    for _ in range(5):
        scripted(x)
    torchmdla.reset_stats()
    assert reason_for(torchmdla.explain(scripted, x), "aten::nonzero").sources == (line_of("data"),)


class Encoder(nn.Module):
    """Small BERT: embeddings, one layer of attention, and a pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.pooler = nn.Linear(32, 32)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.pooler(self.layer(self.words(ids))[:, 0]))


def test_specialisations_and_their_causes() -> None:
    scripted = torch.jit.trace(Encoder().eval(), torch.zeros(1, 7, dtype=torch.int64), check_trace=False)
    for length in (7, 7, 9, 11, 13):
        scripted(torch.randint(50, (1, length)))
    report = torchmdla.explain(scripted, torch.randint(50, (1, 17)))
    (group,) = report.groups
    first, second, dynamic = group.specialisations
    assert (first.cause, first.is_dynamic) == ("the first call", False)
    assert second.cause.startswith("size 9 of dimension 1 of ") and second.cause.endswith("in place of 7")
    assert (dynamic.cause, dynamic.is_dynamic) == ("sizes that differ between calls", True)
    assert all(kernel.seconds > 0 and kernel.bytes > 0 for kernel in dynamic.kernels)
    # Operations are counted at the sizes of the call: 17 rows by 32 × 96 weights, and 17 × 17 for each of 4 heads.
    assert sum(kernel.flops for kernel in dynamic.kernels) > 2 * 17 * 32 * (96 + 32 + 64 + 64)
    assert {kernel.seconds for kernel in (*first.kernels, *second.kernels)} == {0.0}


def test_another_dtype() -> None:
    scripted = torch.jit.script(two)
    torchmdla.explain(scripted, torch.randn(3, 4))
    (group,) = torchmdla.explain(scripted, torch.randn(3, 4, dtype=torch.float64)).groups
    assert group.specialisations[1].cause == "dtype float64 of x.1, in place of float32"


# TorchScript compiles a function once in a process, so these are not those of other tests.
def two(x: Tensor) -> Tensor:
    return torch.sigmoid(torch.relu(x))


def power_of_size(x: Tensor) -> Tensor:
    return torch.relu(x) * (-1) ** x.size(0) + 1


def test_why_it_is_not_dynamic() -> None:
    scripted = torch.jit.script(power_of_size)
    for rows in (3, 3, 4, 5, 6):
        scripted(torch.randn(rows, 4))
    report = torchmdla.explain(scripted, torch.randn(7, 4))
    (reason,) = [candidate for candidate in report.reasons if candidate.kind == "sizes"]
    assert reason.reason == next(iter(torchmdla.stats().not_dynamic))
    assert reason.reason in report.groups[0].not_dynamic
    assert "pad to a few sizes" in reason.advice


def test_lazy_graphs(lazy_device: None) -> None:
    linear = nn.Linear(8, 8).to("lazy")

    def function(x: Tensor) -> Tensor:
        return torch.relu(linear(x)) + 1

    report = torchmdla.explain(function, torch.randn(4, 8).to("lazy"))
    assert report.groups and report.seconds_compiled > 0
    assert report.graph.is_sequence
    assert {group.name for group in report.groups} == {
        operator.group for operator in report.graph.operators if operator.group
    }


@pytest.mark.parametrize("device", ["lazy", "acap"])
def test_lazily_recorded_operators_are_not_reported_as_run(lazy_device: None, device: str) -> None:
    """Check that operators that became a part of a lazy graph are not reported as run by Python."""
    chosen = torchmdla.acap_device() if device == "acap" else "lazy"
    linear = nn.Linear(8, 8).to(chosen)

    def function(x: Tensor) -> Tensor:
        positive = torch.relu(linear(x))
        selection = positive.masked_select(positive > 0.5)  # runs at once
        return torch.sigmoid(selection).sum() * 2

    report = torchmdla.explain(function, torch.randn(4, 8).to(chosen))
    (reason,) = report.reasons
    assert (reason.op, reason.reason) == ("aten::masked_select", RUNS_EAGERLY)
    assert reason.sources == (line_of("runs at once"),)
    assert "torch.where(mask, x, 0)" in reason.advice
    assert {operator.op for operator in report.outside} <= {"aten::masked_select", "aten::to", "aten::view"}
    assert {group.name for group in report.groups} == {
        operator.group for operator in report.graph.operators if operator.group
    }


def test_a_check_is_no_operator_outside_of_graphs() -> None:
    class Casts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x.to(torch.float32) @ x) + 1

    program = torch.export.export(Casts(), (torch.randn(4, 4),))
    assert any("_assert_tensor_metadata" in str(node.target) for node in program.graph.nodes)
    assert torchmdla.explain(program).reasons == ()


PROFILED = """
import torch, torchmdla
from torch.profiler import profile
scripted = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval())
print(torchmdla.explain(scripted, torch.randn(2, 4)).summary.partition(",")[0])
with profile() as found:
    try:
        torchmdla.explain(scripted, torch.randn(2, 4))
    except RuntimeError as error:
        print(error)
    torch.tanh(torch.ones(3))
print("aten::tanh" in {event.key for event in found.key_averages()})
"""


@pytest.mark.sampled(0)
def test_profiles_of_others_are_kept() -> None:
    """Check that other profiles are kept, and that PyTorch's profiler prints nothing while explain runs."""
    environment = {name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"}
    command = [sys.executable, "-W", "ignore", "-c", PROFILED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1 group",
        "explain profiles the model itself: call it outside of the block of torch.profiler",
        "True",
    ]
    assert done.stderr == ""


def test_the_summary_is_logged(image: Tensor, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "torchmdla.explain"):
        report = torchmdla.explain(torch.jit.script(Net().eval()), image)
    assert [record.message for record in caplog.records if record.name == "torchmdla.explain"] == [report.summary]


def test_forms(image: Tensor) -> None:
    report = torchmdla.explain(torch.jit.script(Gaps()), torch.randn(4, 5))
    plain = json.loads(report.to_json())
    assert plain == report.to_dict()
    assert plain["summary"] == report.summary
    assert plain["groups"][0]["specialisations"][0]["kernels"][0]["bytes"] > 0
    assert {reason["op"] for reason in plain["reasons"]} == {reason.op for reason in report.reasons}
    text = str(report)
    assert text.startswith(report.summary[:100])
    assert "GFLOP/s" in text and "torch.where(mask, x, 0)" in " ".join(text.split())
    assert report.groups[0].name in report._repr_html_()
    assert dataclasses.is_dataclass(report)


@pytest.fixture
def wrong() -> Iterator[None]:
    torchmdla.devices.register(WrongDevice())
    torchmdla.enable(device="wrong")
    yield
    torchmdla.enable(device="cpu")


ADD = {"scripted": "aten::add.Scalar", "torch.compile": "aten::add.Tensor"}


def arcs(x: Tensor) -> Tensor:
    x = torch.relu(x) + 1
    x = torch.tanh(x)  # differs
    return torch.exp(x) * 2


@pytest.mark.parametrize("way", ["scripted", "torch.compile"])
def test_the_first_operator_that_differs(way: str, wrong: None) -> None:
    model = torch.jit.script(arcs) if way == "scripted" else torch.compile(arcs, backend="torchmdla")
    report = torchmdla.explain(model, torch.randn(4, 5), compare=True)
    first = report.first_difference
    assert first is not None and report.errors is not None
    assert (first.op, first.source) == ("aten::tanh", line_of("differs"))
    assert first.error is not None and first.error > 1e-3
    assert [error.op for error in report.errors if not error.difference][:2] == ["aten::relu", ADD[way]]
    assert report.errors[-1].op == "the result of the model" and report.errors[-1].difference
    assert "the first operator that differs from eager's is aten::tanh" in str(report)


@pytest.mark.parametrize("way", ["scripted", "torch.compile"])
def test_no_operator_differs(way: str, image: Tensor) -> None:
    report = torchmdla.explain(VARIANTS[way](Net().eval(), image), image, compare=True)
    assert report.first_difference is None
    assert report.errors is not None
    assert {"aten::relu", "aten::mean.dim", "the result of the model"} <= {error.op for error in report.errors}
    assert "no operator differs" in str(report)


def test_inputs_are_kept_no_longer_than_needed(image: Tensor) -> None:
    torchmdla.explain(torch.jit.script(Net().eval()), image, compare=True)
    assert all(report["inputs"] == [] for report in torchmdla._C.groups())


def test_an_exported_program_has_its_inputs() -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor, *, y: Tensor) -> Tensor:
            return torch.relu(x) + y

    program = torch.export.export(Sum(), (torch.randn(3, 4),), {"y": torch.randn(3, 4)})
    assert torchmdla.explain(program).summary.startswith("1 group")


def test_a_step_of_training_is_called_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    compiled, x = torch.compile(model, backend="torchmdla"), torch.randn(32, 8)

    def step() -> None:
        compiled(x).sum().backward()

    report = torchmdla.explain(step)
    forward, backward = report.groups
    assert "addmm" in forward.name
    assert "threshold_backward" in backward.name
    assert not any("autograd" in operator.op for operator in report.outside)
    assert not torch.is_grad_enabled()


def test_explain_rejects_uncallable_models() -> None:
    with pytest.raises(TypeError, match="explain takes a model that can be called, got int"):
        torchmdla.explain(3)


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sign"),
    [
        (["script.pt", "--input", "2x3x4x4"], "1 group, 100 % of ops"),
        (["script.pt", "--input", "2x3x4x4:float32", "--compare"], "no operator differs"),
        (["exported.pt2"], "1 group, 100 % of ops"),
    ],
)
def test_the_command(arguments: list[str], sign: str, files: dict[str, str], capsys: Any) -> None:
    file, *options = arguments
    assert main(["explain", files[file], *options]) == 0
    assert sign in capsys.readouterr().out


def test_the_command_in_json(files: dict[str, str], capsys: Any) -> None:
    assert main(["explain", files["script.pt"], "--input", "2x3x4x4", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["summary"].startswith("1 group") and plain["groups"][0]["ops"]["aten::conv2d"] == 1


def test_an_option_that_there_is_not(capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", "model.pt", "--nosuch"])
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
    assert sys.modules["torchmdla.__main__"]

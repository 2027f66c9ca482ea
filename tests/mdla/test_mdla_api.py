"""Tests of ``torchmdla.mdla``: formats from data, errors and cycles of each layer, programs in files, the example."""

from __future__ import annotations

import json
import re
import runpy
import struct
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import run_script
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchmdla
from torchmdla import DeviceError, mdla
from torchmdla.devices.mdla import calibration, runtime_library
from torchmdla.testing import __main__ as command_line
from torchmdla.testing.compare import assert_matches

pytest.importorskip("onnx")

pytestmark = pytest.mark.skipif(not runtime_library.PATH.exists(), reason="torchmdla was built without the mdla device")

EXAMPLE = Path(__file__).parents[2] / "examples" / "mdla_conv.py"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        features = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.linear(features.flatten(1))


class Split(Net):
    """Network with two groups, and between them an operator that the device does not support."""

    def forward(self, x: Tensor) -> Tensor:
        features = torch.relu(self.conv(x)).cumsum(1)
        return self.linear(nn.functional.max_pool2d(features, 2).flatten(1))


class Several(nn.Module):
    """Module with nested results, of which one occurs twice, and with an unused input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor, unused: Tensor, y: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        z = torch.tanh(self.linear(x))
        return z, (torch.sigmoid(y) * z, z)


@pytest.fixture(autouse=True)
def in_use() -> Iterator[None]:
    calibration.forget()
    torchmdla.enable(device="mdla", strict=True)
    yield
    calibration.forget()


def image(batch: int = 1) -> Tensor:
    return torch.randn(batch, 3, 8, 8)


def batches(count: int = 4) -> DataLoader[Any]:
    """Return batches of images with labels. The model does not use the labels."""
    return DataLoader(TensorDataset(torch.randn(count, 3, 8, 8), torch.zeros(count)), batch_size=1)


def scaled(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    return torch.relu(x * scale) + scale, torch.tanh(scale) * 2


def test_tensors_without_dimensions(tmp_path: Path) -> None:
    torchmdla.enable(device="mdla", precision="float32", strict=True)
    x, scale = torch.randn(2, 3), torch.tensor(1.5)
    with torch.no_grad():
        compiled = torchmdla.compile(scaled, x, scale)
        for value in (scale, torch.tensor(-0.25)):
            assert_matches(compiled(x, value), scaled(x, value))
        assert torchmdla.stats().fallbacks == {}
        assert mdla.compare(scaled, (x, scale)).maximum < 1e-5
        with pytest.raises(ValueError, match="a dense tensor with dimensions"):
            mdla.save(scaled, (x, scale), tmp_path / "p")
        mdla.save(lambda x, scale: torch.relu(x * scale) + scale, (x, scale), tmp_path / "p")
        with mdla.load(tmp_path / "p") as loaded:
            assert_matches(loaded(x, scale), scaled(x, scale)[0])


# --- errors


@pytest.mark.parametrize("kind", ["module", "script", "frozen", "function"])
def test_errors_of_each_layer(kind: str) -> None:
    x = image()
    net = Net().eval()
    model: Any = {
        "module": lambda: net,
        "script": lambda: torch.jit.script(net),
        "frozen": lambda: torchmdla.compile(net, x),
        "function": lambda: lambda argument: torch.relu(nn.functional.avg_pool2d(argument, 2)),
    }[kind]()
    comparison = mdla.compare(model, x, precision="fixed8")
    kinds = [layer.kind for layer in comparison.layers]
    assert kinds == (["AveragePool", "Relu"] if kind == "function" else ["Conv", "Relu", "MaxPool", kinds[3], "Gemm"])
    assert all(0 < layer.mean <= layer.maximum < layer.largest for layer in comparison.layers)
    assert comparison.layers[-1].shape == tuple(model(x).shape)
    # The results are those of the last layer.
    assert comparison.maximum == pytest.approx(comparison.layers[-1].maximum, rel=1e-3)
    assert comparison.mean == pytest.approx(comparison.layers[-1].mean, rel=1e-3)
    assert str(comparison) == f"Mean/max error compared to pytorch are {comparison.mean:.6g} {comparison.maximum:.6g}"
    assert comparison.table().row_count == len(comparison.layers)


def test_compare_matches_compiled_execution() -> None:
    net, x = Net().eval(), image()
    with torch.no_grad():
        ran = torchmdla.compile(net, x)(x)
        error = (ran.double() - net(x).double()).abs()
    comparison = mdla.compare(net, x)
    assert (comparison.mean, comparison.maximum) == (
        pytest.approx(float(error.mean())),
        pytest.approx(float(error.max())),
    )


@pytest.mark.sampled(0)
def test_errors_fall_with_better_formats() -> None:
    net, x = Net().eval(), image()
    mdla.calibrate(net, [x])
    error = {
        name: mdla.compare(net, x, precision=name).maximum for name in ("fixed8", "fixed16", "variable", "float32")
    }
    assert error["fixed8"] > error["fixed16"] > error["variable"] > error["float32"]


def test_errors_of_several_groups() -> None:
    net, x = Split().eval(), image()
    comparison = mdla.compare(net, x)
    assert [layer.kind for layer in comparison.layers if layer.kind != "Reshape"][:3] == ["Conv", "Relu", "MaxPool"]
    assert comparison.layers[-1].kind == "Gemm"
    # The inputs of the second group have the errors of the first group.
    pool = next(layer for layer in comparison.layers if layer.kind == "MaxPool")
    assert pool.maximum > 2.0**-9


def test_agreement_counts_rows() -> None:
    net = nn.Linear(4, 3).eval()
    with torch.no_grad():
        net.weight.copy_(torch.eye(3, 4))
        net.bias.zero_()
    # The two largest elements of the last row differ by less than 8 fractional bits can represent.
    x = torch.tensor([[3.0, 1.0, 0.0, 0.0], [0.0, 2.0, 1.0, 0.0], [1.0, 1.0 + 2.0**-12, 0.0, 0.0]])
    assert mdla.compare(net, x).agreement == pytest.approx(2 / 3)
    assert mdla.compare(net, x, precision="float32").agreement == 1


def test_nothing_for_the_device() -> None:
    with pytest.raises(ValueError, match="the device computes nothing of this model"):
        mdla.compare(lambda x: x.cumsum(0), torch.randn(3))


def test_options_are_checked() -> None:
    with pytest.raises(TypeError, match="unknown option 'speed'"):
        mdla.compare(Net().eval(), image(), speed=1)
    with pytest.raises(ValueError, match="unknown precision 'fixed4'"):
        mdla.report(Net().eval(), image(), precision="fixed4")


def test_a_library_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"missing\.so"):
        mdla.compare(Net().eval(), image(), library=tmp_path / "missing.so")


def test_without_onnx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    net, x = Net().eval(), image()
    monkeypatch.setitem(sys.modules, "onnx", None)
    for call in (
        mdla.compare,
        mdla.report,
        lambda net, x: mdla.calibrate(net, [x]),
        partial(mdla.save, path=tmp_path / "p"),
    ):
        with pytest.raises(DeviceError, match=r"needs the package onnx: pip install 'torchmdla\[mdla\]'"):
            call(net, x)


def test_the_device_in_use_stays() -> None:
    torchmdla.enable()
    mdla.compare(Net().eval(), image())
    model, x = Net().eval(), image()
    assert 'device="cpu"' in str(torchmdla.graph_for(torchmdla.compile(model, x), x))
    torchmdla.disable()
    mdla.report(Net().eval(), image())
    assert not torchmdla.is_enabled()


# --- formats


def test_formats_from_data_serve_groups() -> None:
    net, x = Net().eval(), image()
    formats = mdla.calibrate(net, batches(5))
    assert formats.samples == 5
    assert [layer.kind for layer in formats.layers if layer.kind != "Reshape"] == ["Conv", "MaxPool", "Gemm"]
    assert all(layer.element_bytes == 2 for layer in formats.layers)
    assert all(layer.name in str(formats) for layer in formats.layers)
    torchmdla.enable(device="mdla", precision="variable", strict=True)
    with torch.no_grad():
        assert_matches(torchmdla.compile(net, x)(x), net(x), layers=2, precision="variable")
    assert torchmdla.stats().fallbacks == {}


FRONTENDS: dict[str, Any] = {
    "trace": lambda net, x: torch.jit.trace(net, x, check_trace=False),
    "script": lambda net, x: torch.jit.script(net),
    "dynamo": lambda net, x: torch.compile(net, backend="torchmdla"),
    "export": lambda net, x: torchmdla.compile(net, x, frontend="export"),
}


@pytest.mark.parametrize("frontend", FRONTENDS)
def test_formats_from_data_serve_every_frontend(frontend: str) -> None:
    """Check formats in frontends whose groups have other names and places, and other operators for a linear layer."""
    torch._dynamo.reset()
    net, x = Net().eval(), image()
    mdla.calibrate(net, batches())
    torchmdla.enable(device="mdla", precision="variable", strict=True)
    with torch.no_grad():
        compiled = FRONTENDS[frontend](net, x)
        for _ in range(4):
            result = compiled(x)
        assert_matches(result, net(x), layers=2, precision="variable")
        assert not torch.equal(result, net(x))
    assert torchmdla.stats().fallbacks == {}


def test_data_of_a_model_serves_no_other() -> None:
    x = image()
    mdla.calibrate(Net().eval(), [x])
    other = Net().eval()
    other.conv.stride = (2, 2)
    other.linear = nn.Linear(8 * 4, 5)
    with pytest.raises(DeviceError, match="calibration inputs of this group"):
        mdla.compare(other, x, precision="variable")


def test_formats_follow_the_data() -> None:
    net = Net().eval()
    small = mdla.calibrate(net, [image() / 100]).layers[0].fraction
    calibration.forget()
    large = mdla.calibrate(net, [image() * 100]).layers[0].fraction
    assert small > large


def test_the_number_of_batches() -> None:
    assert mdla.calibrate(Net().eval(), batches(5), batches=2).samples == 2
    with pytest.raises(ValueError, match="no batches"):
        mdla.calibrate(Net().eval(), [])


def test_variable_needs_data() -> None:
    with pytest.raises(DeviceError, match="needs calibration inputs"):
        mdla.compare(Net().eval(), image(), precision="variable")


# --- the quantised model of the formats


@pytest.mark.parametrize(("precision", "steps"), [("fixed16", 0), ("fixed8", 1), ("variable", 1)])
@pytest.mark.sampled(1)
def test_the_quantised_model_predicts_the_device(precision: str, steps: int) -> None:
    """Check it against the emulator, which rounds halves up, where PyTorch rounds them to even numbers."""
    pytest.importorskip("torchao")
    torch.manual_seed(0)
    net, x = Net().eval(), image()
    torchmdla.enable(device="mdla", precision=precision, strict=True)
    mdla.calibrate(net, [x])
    quantised = torchmdla.quantise(net, [x])
    assert [layer.name for layer in quantised.layers] == ["conv", "relu", "max_pool2d", "view", "linear"]
    with torch.no_grad():
        predicted, actual = quantised.module(x), torchmdla.compile(net, x)(x)
    step = torch.diff(torch.cat([predicted, actual]).unique()).min()
    assert ((predicted - actual).abs() / step).round().max() <= steps


# --- figures


def test_figures_of_each_layer() -> None:
    report = mdla.report(Net().eval(), image(2), clusters=2)
    conv = report.layers[0]
    assert (conv.kind, conv.shape, conv.macs) == ("Conv", (2, 8, 8, 8), 2 * 8 * 8 * 8 * 27)
    assert report.cycles == sum(layer.cycles for layer in report.layers)
    assert 0 < report.utilisation < 1
    assert report.milliseconds > 0
    assert "total" in str(report)
    assert f"{report.cycles:,}" in str(report)


# --- files


@pytest.mark.parametrize("precision", ["fixed16", "variable"])
def test_a_saved_program_computes_the_same(tmp_path: Path, precision: str) -> None:
    net, x, other = Net().eval(), image(), image()
    mdla.calibrate(net, [x])
    torchmdla.enable(device="mdla", precision=precision, strict=True)
    mdla.save(net, x, tmp_path / "model.bin")
    assert [file.name for file in tmp_path.iterdir()] == ["model.bin"]
    with torch.no_grad():
        compiled = torchmdla.compile(net, x)
        with mdla.load(tmp_path / "model.bin") as loaded:
            for argument in (x, other):
                assert torch.equal(loaded(argument), compiled(argument))
            assert torch.equal(loaded(other.numpy()), compiled(other))
            assert loaded.report() == mdla.report(net, x)
            with pytest.raises(ValueError, match=r"inputs of shapes \[\(1, 3, 8, 8\)\] are needed"):
                loaded(image(2))


def test_structures_and_unused_inputs(tmp_path: Path) -> None:
    model = Several().eval()
    x, unused, y = torch.randn(2, 6), torch.randn(3), torch.randn(2, 4)
    mdla.save(model, (x, unused, y), tmp_path / "model.bin", precision="float32")
    with torch.no_grad(), mdla.load(tmp_path / "model.bin") as loaded:
        assert loaded.input_shapes == ((2, 6), (3,), (2, 4))
        for _ in range(2):
            arguments = torch.randn(2, 6), unused, torch.randn(2, 4)
            assert_matches(loaded(*arguments), model(*arguments), layers=2)


@pytest.mark.sampled(0)
def test_loading_needs_neither_model_nor_onnx(tmp_path: Path) -> None:
    net, x = Net().eval(), image()
    mdla.save(net, x, tmp_path / "model.bin", precision="float32")
    torch.save((x, net(x).detach()), tmp_path / "pair.pt")
    code = (
        "import sys, torch; from torchmdla import mdla; x, y = torch.load('pair.pt')\n"
        "error = (mdla.load('model.bin')(x) - y).abs().max()\n"
        "assert error < 1e-5, error\n"
        "assert not {'onnx', 'torch_mlir'} & set(sys.modules)"
    )
    done = run_script("-c", code, folder=tmp_path, PYTHONPATH=str(Path(__file__).parents[2]))
    assert done.returncode == 0, done.stderr


DAMAGE: dict[str, tuple[Any, str]] = {
    "another file": (lambda data: b"PK" + data[2:], "not a program of the mdla device"),
    "cut short": (lambda data: data[:-1], "cut short"),
    "a weight": (lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:], "checksum"),
    "another version": (lambda data: data[:16] + struct.pack("<I", 1) + data[20:], "version 1,"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_files_are_refused(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.bin"
    mdla.save(nn.Linear(4, 4).eval(), torch.randn(2, 4), path)
    damage, message = DAMAGE[what]
    path.write_bytes(damage(path.read_bytes()))
    monkeypatch.setattr("torchmdla.mdla.files.Network", None)  # nothing may run
    with pytest.raises(mdla.DamagedProgram, match=rf"model\.bin: .*{message}.*torchmdla\.mdla\.save"):
        mdla.load(path)


def test_unsaveable_programs_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    with pytest.raises(ValueError, match=r"outside of the device: aten::cumsum"):
        mdla.save(Split().eval(), image(), path)
    with pytest.raises(ValueError, match="float32 tensors"):
        mdla.save(Net().eval(), image().double(), path)
    assert not path.exists()


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        mdla.save(nn.Linear(4, 4).eval(), torch.randn(2, 4), tmp_path / "missing" / "model.bin")


# --- the example


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    errors = [line.rpartition("are ")[2].split() for line in printed.splitlines() if "compared to pytorch" in line]
    assert len(errors) == 6
    assert all(0 < float(mean) <= float(largest) < 0.1 for mean, largest in errors)
    fixed, variable = (float(error[1]) for error in errors[-2:])
    assert variable < fixed / 5
    assert torchmdla.stats().fallbacks == {}


# --- the documentation


def test_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "mdla.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) == 4
    names: dict[str, Any] = {}
    for snippet in snippets:
        exec(compile(snippet, "docs/mdla.md", "exec"), names)
    assert "Mean/max error compared to pytorch are " in capsys.readouterr().out
    assert torchmdla.stats().fallbacks == {}


# --- the registry


def outcomes_of(options: str, frontend: str, programs: str, folder: Path) -> list[Any]:
    """Run programs of the registry on the device, and return their outcomes."""
    file = folder / "outcomes.jsonl"
    command = ["--device", "mdla", "--options", options, "--frontend", frontend, "--filter", programs, "--jobs", "1"]
    assert command_line.main([*command, "--json", str(file)]) == 0
    return [entry for entry in map(json.loads, file.read_text().splitlines()) if "status" in entry]


@pytest.mark.parametrize(
    ("precision", "programs"),
    [("fixed16", "convolutions.conv2d_grouped"), ("float32", "pooling.max"), ("fixed8", "products.linear")],
)
@pytest.mark.sampled(0)
def test_programs_of_the_registry(precision: str, programs: str, tmp_path: Path) -> None:
    outcomes = outcomes_of(f"precision={precision}", "torchscript:trace", programs, tmp_path)
    assert {outcome["precision"] for outcome in outcomes} == {precision}
    assert any(outcome["specialisations"] and not outcome["fallbacks"] for outcome in outcomes)


@pytest.mark.parametrize("frontend", ["torchscript:trace", "dynamo", "export", "dispatch", "lazy"])
@pytest.mark.sampled(0)
def test_every_frontend_runs_on_the_device(frontend: str, tmp_path: Path) -> None:
    """Check each frontend by the error of a missing library."""
    outcomes = outcomes_of(f"library={tmp_path}/missing.so", frontend, "convolutions.conv1d", tmp_path)
    assert any("missing.so" in outcome["detail"] for outcome in outcomes)
    assert all(outcome["status"] in ("ok", "fallback") for outcome in outcomes)

"""Programs that torchmdla runs itself give TorchScript's results, errors, states and gradients."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from script_programs import FAILING, PROGRAMS, Colour, Counting, Dropping, Enums, Shared, x
from torch import nn

import torchmdla
from torchmdla.capture.script.module import make_module
from torchmdla.importer.script_program import program_of
from torchmdla.testing.compare import assert_matches


def both(make: type[nn.Module]) -> tuple[Any, Any]:
    """Return the scripted module, and torchmdla's from another copy with the same values."""
    torch.manual_seed(0)
    module = make()
    return torch.jit.script(copy.deepcopy(module)), make_module(program_of(torch.jit.script(module)))


def from_graphs(scripted: Any, folder: Path) -> Any:
    return make_module(program_of(scripted))


def from_file(scripted: Any, folder: Path) -> Any:
    scripted.save(folder / "model.pt")
    return torchmdla.load(folder / "model.pt", reader="own")


def from_mapped_file(scripted: Any, folder: Path) -> Any:
    scripted.save(folder / "model.pt")
    return torchmdla.load(folder / "model.pt", reader="own", map_weights=True)


READERS = [from_graphs, from_file, from_mapped_file]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_eagers(name: str, read: Any, tmp_path: Path) -> None:
    make, calls = PROGRAMS[name]
    torch.manual_seed(0)
    eager = make()
    module = read(torch.jit.script(copy.deepcopy(eager)), tmp_path)
    for inputs in calls * 3:
        unchanged = copy.deepcopy(inputs)
        assert_matches(module(*inputs), eager(*copy.deepcopy(inputs)))
        assert_matches(inputs, unchanged)  # lists and dicts are copied, as TorchScript does
    assert_matches(module.state_dict(), eager.state_dict())


@pytest.mark.parametrize("read", READERS)
def test_enumerations_are_pythons(read: Any, tmp_path: Path) -> None:
    scripted = torch.jit.script(Enums())
    module = read(scripted, tmp_path)
    for colour in Colour:
        actual, expected = module(x(), colour), scripted(x(), colour)
        assert_matches(actual[0], expected[0])
        assert actual[1:] == expected[1:]


@pytest.mark.parametrize("name", FAILING)
def test_errors_are_torchscripts(name: str) -> None:
    make, inputs = FAILING[name]
    scripted, module = both(make)
    with pytest.raises(Exception) as expected:  # noqa: PT011  (compared below)
        scripted(*inputs)
    with pytest.raises(type(expected.value)) as actual:
        module(*inputs)
    lines = str(expected.value).rstrip().split("\n")
    actual_lines = str(actual.value).rstrip().split("\n")
    assert actual_lines[0] == lines[0]
    if lines[0].startswith("The following operation failed"):
        assert actual_lines[-1] == lines[-1]
        assert [line for line in lines if line.startswith("  File")] == [
            line for line in actual_lines if line.startswith("  File")
        ]


@pytest.mark.parametrize("read", READERS)
def test_gradients_are_torchscripts(read: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = read(torch.jit.script(Counting()), tmp_path)
    torch.manual_seed(0)
    scripted = torch.jit.script(Counting())
    for program in (scripted, module):
        for _ in range(3):
            program(x())[0].square().sum().backward()
    assert_matches(
        {name: parameter.grad for name, parameter in module.named_parameters()},
        {name: parameter.grad for name, parameter in scripted.named_parameters()},
    )


def test_state_moves_between_modules() -> None:
    scripted, module = both(Counting)
    module(x())
    scripted.load_state_dict(module.state_dict())
    assert_matches(scripted.total, module.total)
    state = {name: torch.full_like(value, 0.5) for name, value in module.state_dict().items()}
    module.load_state_dict(state)
    scripted.load_state_dict(state)
    assert_matches(module(x())[0], scripted(x())[0])


def test_exported_methods_and_attributes() -> None:
    scripted, module = both(Counting)
    for program in (scripted, module):
        program(x())
        assert program.calls == 1
        assert program.reset(5) == 1
        assert program.calls == 5
        program.calls = 9
        assert program.reset() == 9
    assert_matches(module.total, scripted.total)
    assert module.original_name == scripted.original_name


def test_training_and_evaluation_modes() -> None:
    scripted, module = both(Dropping)
    for mode in (True, False, True):
        for program in (scripted, module):
            program.train(mode)
            assert program.norm.training is mode
        for _ in range(3):
            torch.manual_seed(1)
            expected = scripted(x(4))
            torch.manual_seed(1)
            assert_matches(module(x(4)), expected)
        assert_matches(module.state_dict(), scripted.state_dict())


@pytest.mark.parametrize("convert", [nn.Module.half, nn.Module.double, lambda module: module.to(torch.bfloat16)])
def test_conversion_of_parameters(convert: Any) -> None:
    scripted, module = both(Dropping)
    for program in (scripted, module):
        program.eval()(x(3))
        convert(program)
    dtype = module.norm.weight.dtype
    assert_matches(module(x(3).to(dtype)), scripted(x(3).to(dtype)))
    assert_matches(module.state_dict(), scripted.state_dict())


def test_shared_parameters_stay_shared(tmp_path: Path) -> None:
    module = from_file(torch.jit.script(Shared()), tmp_path)
    assert module.again.weight is module.first.weight
    assert module.second.weight is module.first.weight
    clone = copy.deepcopy(module)
    assert clone.second.weight is clone.first.weight
    assert clone.second.weight is not module.first.weight
    assert_matches(clone(x()), module(x()))


def test_writes_to_weights_reach_compiled_code() -> None:
    module = make_module(program_of(torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval())))
    with torch.no_grad():
        for value in (1.0, 2.0, 3.0):
            for _ in range(3):
                result = module(x())
            weight, bias = dict(module.named_parameters()).values()
            expected = (x() @ weight.T + bias).relu()
            assert_matches(result, expected)
            weight.fill_(value)


def test_source_can_be_read() -> None:
    _, module = both(Counting)
    assert "region0(" in module.code
    assert "aten::linear" in module.graph


def test_own_reader_is_used_where_pytorch_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = torch.jit.script(Shared())
    scripted.save(tmp_path / "model.pt")
    monkeypatch.delattr(torch._C, "import_ir_module")
    module = torchmdla.load(tmp_path / "model.pt")
    assert not isinstance(module, torch.jit.ScriptModule)
    assert_matches(module(x()), scripted(x()))


def test_own_reader_is_used_where_pytorchs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = torch.jit.script(Shared())
    scripted.save(tmp_path / "model.pt")
    errors = ["torch.jit.load was removed. Use torch.export", "the file is damaged"]

    def load(path: str, device: object) -> None:
        raise RuntimeError(errors[0])

    monkeypatch.setattr(torchmdla._C, "load_with_package", load)
    assert_matches(torchmdla.load(tmp_path / "model.pt")(x()), scripted(x()))
    with pytest.raises(RuntimeError, match="was removed"):
        torchmdla.load(tmp_path / "model.pt", reader="libtorch")
    del errors[0]
    with pytest.raises(RuntimeError, match="damaged"):
        torchmdla.load(tmp_path / "model.pt")


class Mismatched(nn.Module):
    def forward(self, y: torch.Tensor) -> torch.Tensor:
        z = y + 1
        return z @ torch.ones(7, 2)


def test_errors_of_operators_have_places(tmp_path: Path) -> None:
    scripted, module = both(Mismatched)
    with pytest.raises(RuntimeError) as expected:
        scripted(x())
    with pytest.raises(RuntimeError) as actual:
        module(x())
    first, *_, last = str(expected.value).rstrip().split("\n")
    lines = str(actual.value).rstrip().split("\n")
    assert (lines[0], lines[-1]) == (first, last)
    assert any("test_running.py" in line and line.strip().startswith("File") for line in lines)


def test_unknown_reader_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown reader 'mine'"):
        torchmdla.load(tmp_path / "model.pt", reader="mine")  # type: ignore[arg-type]


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant = torch.ao.quantization.QuantStub()
        self.conv = nn.Conv2d(2, 4, 3)
        self.linear = nn.Linear(4, 3)
        self.dequant = torch.ao.quantization.DeQuantStub()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        y = self.conv(self.quant(image)).relu().mean([2, 3])
        result: torch.Tensor = self.dequant(self.linear(y))
        return result


@pytest.mark.parametrize("read", READERS)
def test_quantised_modules(read: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Quantised().eval()
    module.qconfig = torch.ao.quantization.get_default_qconfig("x86")
    prepared = torch.ao.quantization.prepare(module)
    image = torch.rand(2, 2, 6, 6)
    prepared(image)
    scripted = torch.jit.script(torch.ao.quantization.convert(prepared))
    module = read(scripted, tmp_path)
    for _ in range(3):
        assert_matches(module(image), scripted(image))


@pytest.mark.parametrize("read", READERS)
def test_dynamically_quantised_modules(read: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    quantised = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), {nn.Linear})
    scripted = torch.jit.script(quantised)
    module = read(scripted, tmp_path)
    for _ in range(3):
        assert_matches(module(torch.ones(2, 4)), scripted(torch.ones(2, 4)))

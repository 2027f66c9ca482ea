"""Programs that :func:`torchmdla.save` writes from graphs: PyTorch reads them, and computes the same."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
from script_files.checking import check_written, outcome
from script_files.language import PROGRAMS

import torchmdla
from torchmdla.script.ir import Graph, Node, Object
from torchmdla.testing.compare import assert_matches


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_written_again(name: str, tmp_path: Path) -> None:
    make, inputs = PROGRAMS[name]
    torch.jit.script(make()).save(tmp_path / "model.pt")
    check_written(tmp_path / "model.pt", tmp_path / "written.pt", inputs)


class Shared(torch.nn.Module):
    """Module whose buffers share memory, and have all kinds of strides and dtypes."""

    def __init__(self) -> None:
        super().__init__()
        base = torch.arange(12.0)
        self.register_buffer("first", base[2:8].view(2, 3))
        self.register_buffer("second", base.view(3, 4).t())
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("expanded", torch.tensor([1.0]).expand(3, 4))
        for dtype in (torch.bfloat16, torch.complex64, torch.bool, torch.int8, torch.float64):
            self.register_buffer(f"of_{str(dtype)[6:]}", torch.ones(2, dtype=dtype))
        self.register_buffer("scaled", torch.quantize_per_tensor(base, 0.5, 3, torch.quint8))
        scales, points = torch.tensor([0.1, 0.2]), torch.tensor([1, 2])
        self.register_buffer("channels", torch.quantize_per_channel(torch.ones(3, 2), scales, points, 1, torch.qint8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.first.sum() + self.scaled.dequantize().sum()


@pytest.mark.filterwarnings("ignore:torch.quantize")
def test_tensors_are_written_with_their_memory(tmp_path: Path) -> None:
    path, written = tmp_path / "model.pt", tmp_path / "written.pt"
    torch.jit.script(Shared()).save(path)
    check_written(path, written, (torch.ones(2),))
    module, expected = torch.jit.load(written), torch.jit.load(path)
    for (name, tensor), (_, other) in zip(module.named_buffers(), expected.named_buffers(), strict=True):
        assert tensor.stride() == other.stride() and tensor.dtype == other.dtype, name
        assert torch.equal(tensor, other), name
        assert not tensor.is_quantized or tensor.qscheme() == other.qscheme()
    module.first.fill_(7.0)
    assert (module.second == 7.0).any(), "the buffers no longer share memory"
    with zipfile.ZipFile(written) as archive:
        assert not archive.testzip()


@pytest.mark.filterwarnings("ignore:torch.quantize")
@pytest.mark.parametrize("name", ["containers", "objects", "mutation", "state", "enums", "quantised", "lstm"])
def test_modules_of_the_own_reader_are_written_with_their_state(name: str, tmp_path: Path) -> None:
    make, inputs = PROGRAMS[name]
    torch.jit.script(make()).save(tmp_path / "model.pt")
    modules = [torchmdla.load(tmp_path / "model.pt", reader="own"), torch.jit.load(tmp_path / "model.pt")]
    for module in modules:
        outcome(module, inputs)  # changes its state
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(2)
    assert torchmdla.save(modules[0], tmp_path / "written.pt") is None
    assert_matches(outcome(torch.jit.load(tmp_path / "written.pt"), inputs), outcome(modules[1], inputs))


def test_extra_files_are_written(tmp_path: Path) -> None:
    torch.jit.script(PROGRAMS["loops"][0]()).save(tmp_path / "model.pt")
    torchmdla.save(torchmdla.read(tmp_path / "model.pt"), tmp_path / "written.pt", extra={"notes": b"text"})
    files = {"notes": ""}
    torch.jit.load(tmp_path / "written.pt", _extra_files=files)
    assert files == {"notes": b"text"}


def test_graphs_that_were_changed_are_written(tmp_path: Path) -> None:
    torch.jit.script(PROGRAMS["constants"][0]()).save(tmp_path / "model.pt")
    program = torchmdla.read(tmp_path / "model.pt")
    graph = program.method()
    for node in graph.walk():
        if node.op == "aten::mul.Scalar":
            node.op = "aten::div.Scalar"
    torchmdla.save(program, tmp_path / "written.pt")
    x = torch.ones(3)
    assert torch.equal(torch.jit.load(tmp_path / "written.pt")(x)[0], x + torch.tensor([1.0, 2.0, 3.0]) / -1)


def test_programs_are_packaged(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    torch.jit.script(model).save(tmp_path / "model.pt")
    x = torch.ones(2, 4)
    info = torchmdla.save(torchmdla.read(tmp_path / "model.pt"), tmp_path / "package.pt", inputs=[x])
    assert info.targets
    torch.testing.assert_close(torch.jit.load(tmp_path / "package.pt")(x), model(x))


def test_unknown_operators_and_values_are_refused(tmp_path: Path) -> None:
    torch.jit.script(PROGRAMS["constants"][0]()).save(tmp_path / "model.pt")
    program = torchmdla.read(tmp_path / "model.pt")
    program.root.attributes["odd"] = {1, 2}
    with pytest.raises(torchmdla.ReadError, match="values of set cannot be written"):
        torchmdla.save(program, tmp_path / "written.pt")
    del program.root.attributes["odd"]
    graph = program.method()
    assert isinstance(graph, Graph) and isinstance(program.root, Object)
    graph.nodes.append(Node("mine::frobnicate"))
    with pytest.raises(torchmdla.ReadError, match="mine::frobnicate: the operator is not known"):
        torchmdla.save(program, tmp_path / "written.pt")
    assert not (tmp_path / "written.pt").exists()

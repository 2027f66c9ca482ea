"""Programs that :func:`torchmdla.read` reads, compared with those that libtorch's importer makes of the same files."""

from __future__ import annotations

import re
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import run_python
from script_files.language import PROGRAMS
from script_graphs import compare_file

import torchmdla
from torchmdla.script.ir import Object, Program, StoredTensor
from torchmdla.testing.models import MODELS


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_are_those_of_the_importer(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.jit.script(PROGRAMS[name][0]()).save(path)
    assert compare_file(path)


@pytest.mark.parametrize("name", [name for name, spec in MODELS.items() if spec.scriptable])
@pytest.mark.parametrize("capture", ["script", "trace"])
def test_graphs_of_models(name: str, capture: str, tmp_path: Path) -> None:
    spec = MODELS[name].small or MODELS[name]
    model, path = spec.build().eval(), tmp_path / "model.pt"
    if capture == "script":
        torch.jit.script(model).save(path)
    else:
        torch.jit.trace(model, spec.inputs(), check_trace=False, strict=False).save(path)
    assert compare_file(path)


class Changed(torch.nn.Module):
    """Module of operators whose meaning has changed."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        quotient = (x / 2).div_(y) + torch.full([2], 3) + torch.linspace(0, 1, 2)
        return x / y + quotient + torch.nn.functional.gelu(x) + torch.div(x, y, rounding_mode="floor")


@pytest.mark.parametrize("version", [2, 3, 4, 5, 8, 9])
def test_operators_of_old_versions_are_upgraded(version: int, tmp_path: Path) -> None:
    torch.jit.script(Changed()).save(tmp_path / "new.pt")
    path = tmp_path / "old.pt"
    with zipfile.ZipFile(tmp_path / "new.pt") as new, zipfile.ZipFile(path, "w") as old:
        for name in new.namelist():
            content = new.read(name)
            if name.endswith(".py"):  # the operators as old versions printed them
                content = re.sub(rb", approximate='none'|, approximate=\"none\"", b"", content)
            old.writestr(name, b"%d\n" % version if name.endswith("/version") else content)
    assert compare_file(path)


def tensors_of(value: Any) -> list[StoredTensor]:
    if isinstance(value, StoredTensor):
        return [value]
    if isinstance(value, Object):
        return [tensor for item in value.attributes.values() for tensor in tensors_of(item)]
    return [tensor for item in value for tensor in tensors_of(item)] if isinstance(value, list | tuple) else []


def numbers_of(program: Program, tensor: StoredTensor) -> torch.Tensor:
    """Return a tensor that is read from its place in the file."""
    with open(program.path, "rb") as file:
        file.seek(tensor.storage.offset)
        content = bytearray(file.read(tensor.storage.size))
    flat = torch.frombuffer(content, dtype=getattr(torch, tensor.dtype)) if content else torch.empty(0)
    return flat.as_strided(tensor.shape, tensor.strides, tensor.offset)


def test_tensors_are_at_their_places_in_the_file(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
    torch.jit.script(model).save(tmp_path / "model.pt")
    program = torchmdla.read(tmp_path / "model.pt")
    convolution = program.root.attributes["0"]
    assert isinstance(convolution, Object)
    weight = convolution.attributes["weight"]
    assert isinstance(weight, StoredTensor) and weight.is_parameter and weight.requires_grad
    assert weight.storage.offset % 64 == 0
    stored = [numbers_of(program, tensor) for tensor in tensors_of(program.root)]
    expected = [*model[0].parameters(), *model[1].parameters(), *model[1].buffers()]
    assert sorted(tensor.sum().item() for tensor in stored) == sorted(tensor.sum().item() for tensor in expected)


def test_classes_have_their_parts(tmp_path: Path) -> None:
    torch.jit.script(PROGRAMS["containers"][0]()).save(tmp_path / "model.pt")
    program = torchmdla.read(tmp_path / "model.pt")
    class_ = program.classes[program.root.class_name]
    assert class_.is_module and class_.constants == {"limit": 2} and "mean" in class_.buffers
    assert list(class_.methods) == ["forward", "both"]
    assert str(class_.attributes["names"]) == "List[str]"
    assert program.method("both").parameters == ["self", "x"]
    with pytest.raises(KeyError, match="forward, both"):
        program.method("backward")


WITHOUT_TORCH = """
import importlib.abc, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "torch":
            raise {error}

sys.meta_path.insert(0, Refuse())
import torchmdla
program = torchmdla.read(sys.argv[1])
print(program.method())
assert "torch" not in sys.modules
try:
    torchmdla.compile
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("ModuleNotFoundError('no torch', name='torch')", "is not installed"),
        ("ImportError('libtorch_cpu.so: cannot open')", "does not load (libtorch_cpu.so: cannot open)"),
    ],
)
def test_reading_does_not_need_torch(error: str, reason: str, tmp_path: Path) -> None:
    torch.jit.script(PROGRAMS["loops"][0]()).save(tmp_path / "model.pt")
    # A variable that is read when libraries are loaded, so that the process is a new one.
    code = WITHOUT_TORCH.format(error=error)
    output = run_python(code, str(tmp_path / "model.pt"), OMP_NUM_THREADS="1").stdout
    assert "prim::Loop" in output
    assert f"torchmdla.compile needs PyTorch. torchmdla needs PyTorch, which {reason}: pip install" in output


def test_methods_are_looked_up_by_several_threads(tmp_path: Path) -> None:
    torch.jit.script(MODELS["resnet50"].small.build().eval()).save(tmp_path / "model.pt")  # type: ignore[union-attr]
    program = torchmdla.read(tmp_path / "model.pt")
    expected = str(torchmdla.read(tmp_path / "model.pt"))
    barrier = threading.Barrier(4)

    def look_up(_: int) -> str:
        barrier.wait()
        return str(program)

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(look_up, range(4))) == {expected}

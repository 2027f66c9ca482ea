"""Export of models, and errors for models that cannot be exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from native_models import export
from torch import Tensor, nn

import torchmdla
import torchmdla_runtime
from torchmdla.__main__ import main
from torchmdla.errors import CaptureError, CompileError
from torchmdla.packages.native import check_native


class Written(nn.Module):
    """A module of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self._function(*inputs)


def inverted(x: Tensor) -> Tensor:
    return torch.linalg.inv(x.relu() * 2) + torch.linalg.det(x)


def test_all_operators_that_do_not_run_are_listed(tmp_path: Path) -> None:
    arguments = (torch.eye(4).double(),)
    with pytest.raises(CaptureError) as raised:
        export(Written(inverted), arguments, tmp_path / "model.tmdla")
    places = check_native(Written(inverted).eval(), arguments)
    assert [refused.op for refused in places] == ["aten::linalg_inv", "aten::linalg_det"]
    for refused in places:
        assert refused.method == "forward" and refused.source.startswith(__file__)
        assert f"{refused.op} at {refused.source}: device 'cpu' has no such operator" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_the_default_dtype_is_float32(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(CaptureError, match=r"the default dtype is torch\.float64, and the runtime"):
            torchmdla.export_native(nn.Linear(4, 4).eval(), torch.zeros(2, 4), tmp_path / "model.tmdla")
    finally:
        torch.set_default_dtype(torch.float32)


def test_weights_must_be_constants(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="a module in eval mode"):
        torchmdla.export_native(nn.Linear(4, 4).train(), torch.zeros(2, 4), tmp_path / "model.tmdla")


@pytest.mark.parametrize(
    ("inputs", "target", "message"),
    [([], "native", "needs the inputs of a call"), (torch.zeros(2, 4), "z80", "unknown processor 'z80'")],
)
def test_no_inputs_and_unknown_processors(inputs: Any, target: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        torchmdla.export_native(nn.Linear(4, 4).eval(), inputs, tmp_path / "model.tmdla", target)


def test_functions_that_the_runtime_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchmdla_runtime, "provides", lambda name: name != "mdla_parallel_for")
    with pytest.raises(CompileError, match="code calls mdla_parallel_for, which the runtime does not have"):
        torchmdla.export_native(nn.Linear(512, 512).eval(), torch.zeros(64, 512), tmp_path / "model.tmdla")


def test_no_vector_functions_of_libtorch() -> None:
    for name in ("Sleef_sinf16_u10", "system", "dlopen", ""):
        assert not torchmdla_runtime.provides(name)
    for name in ("sinf", "pow", "memcpy", "mdla_scratch"):
        assert torchmdla_runtime.provides(name)


def test_a_device_without_such_code(tmp_path: Path) -> None:
    torchmdla.enable(device="mdla")
    with pytest.raises(TypeError, match=r"device 'mdla'.*must inherit from torchmdla.devices.LibraryLoading"):
        export(nn.Linear(4, 4), (torch.zeros(2, 4),), tmp_path / "model.tmdla")


def test_the_command_line_describes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.tmdla"
    export(nn.Linear(4, 4), (torch.zeros(2, 4),), path)
    assert main(["info", str(path)]) == 0
    output = capsys.readouterr().out
    assert "input: float32 2x4" in output and "all checksums match" in output
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    assert main(["info", str(path)]) == 2
    assert "does not match its checksum" in capsys.readouterr().err

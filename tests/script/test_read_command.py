"""``python -m torchmdla read``, and ``python -m torchmdla.script`` where PyTorch is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from script_files.language import PROGRAMS

from torchmdla.__main__ import main as run_command
from torchmdla.script.__main__ import main as run_without_torch


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.jit.script(PROGRAMS["containers"][0]()).save(tmp_path / "model.pt")
    return tmp_path / "model.pt"


@pytest.mark.parametrize("run", [lambda arguments: run_command(["read", *arguments]), run_without_torch])
def test_graphs_are_printed(run: object, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(run)
    assert not run([str(model), "--method", "both"])
    assert capsys.readouterr().out.startswith("graph __torch__.script_files.language.Containers.both(%self")
    assert not run([str(model), "--summary"])
    output = capsys.readouterr().out
    assert "version" in output and "Containers.forward\n" in output
    assert not run([str(model)])
    assert "prim::CallMethod[name='forward']" in capsys.readouterr().out


def test_failures_are_reported(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["read", str(model), "--method", "backward"]) == 2
    assert capsys.readouterr().err == "error: the program does not have the method 'backward'. It has: forward, both\n"
    (tmp_path / "text.pt").write_text("text")
    assert run_command(["read", str(tmp_path / "text.pt")]) == 2
    assert "is not an archive of torch.jit.save" in capsys.readouterr().err

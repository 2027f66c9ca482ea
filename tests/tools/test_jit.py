"""Tests of the functions in place of those of ``torch.jit``, which warn: the programs are the same."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchmdla
from torchmdla.support import jit


class Shared(nn.Module):
    """Module whose only layer has two names, with a buffer that a call updates and nested results."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        self.calls.add_(1)
        return self.first(x), {"second": self.second(x)}


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Shared()
        self.list = nn.ModuleList([self.inner, nn.ReLU()])

    def forward(self, x: Tensor) -> Tensor:
        result, others = self.inner(x)
        return self.list[1](result + others["second"])  # type: ignore[no-any-return]


PROGRAMS: dict[str, Callable[[], Any]] = {
    "a module": Nested,
    "its method": lambda: Nested().forward,
    "a function": lambda: lambda x: (x.relu() + 1, x),
    "a builtin": lambda: torch.relu,
}


def text_of(traced: Any) -> str:
    """Return the graph with the scopes of its nodes, without numbers of types and lines of sources."""
    return re.sub(r"___torch_mangle_\d+\.|# .*", "", str(traced.inlined_graph))


@pytest.mark.sampled(len(PROGRAMS))
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_trace_is_pytorchs(program: str) -> None:
    subject, x = PROGRAMS[program](), torch.randn(2, 4)
    expected = torch.jit.trace(subject, (x,), check_trace=False)
    assert text_of(jit.trace(subject, (x,))) == text_of(expected)
    assert ("scope: __module." in text_of(expected)) == (program in ("a module", "its method"))


def test_a_frozen_program_is_pytorchs() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()).eval())
    frozen, expected = jit.freeze(scripted), torch.jit.freeze(scripted)
    assert type(frozen) is type(expected)
    assert text_of(frozen) == text_of(expected)


def test_files_are_pytorchs(tmp_path: Path) -> None:
    x, scripted = torch.randn(2, 4), torch.jit.script(nn.Linear(4, 4))
    file = io.BytesIO()
    jit.save(scripted, file, {"extra.txt": b"text"})
    for load in (torch.jit.load, jit.load):
        file.seek(0)
        assert torch.equal(load(file)(x), scripted(x))
    path = tmp_path / "model.pt"
    path.write_bytes(file.getvalue())
    assert torch.equal(jit.load(str(path), "cpu")(x), scripted(x))
    extra = {"extra.txt": ""}
    file.seek(0)
    torch.jit.load(file, _extra_files=extra)
    assert extra == {"extra.txt": b"text"}


def test_pytorchs_own_functions_are_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that programs compile where the functions that PyTorch deprecates raise an error."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("torch.jit is gone")

    for name in ("trace", "trace_module", "script", "freeze", "save", "load"):
        monkeypatch.setattr(torch.jit, name, refuse)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.randn(2, 4)
    torch.testing.assert_close(torchmdla.compile(model, x)(x), model(x))
    assert torchmdla.stats().specialisations == 1

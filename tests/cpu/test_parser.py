"""Text of loop programs: parsing the printed text loses nothing, at any stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dynamic_programs import Traced, program_of
from nest_running import host_target
from torch import Tensor, nn, randn
from written_programs import TracedProgram

from torchmdla.compiler.program import Program
from torchmdla.devices.cpu import lowering
from torchmdla.devices.cpu.ir.loop_program import LoopProgram
from torchmdla.devices.cpu.ir.parser import parse_program
from torchmdla.devices.cpu.ir.printer import program_text
from torchmdla.devices.cpu.passes import pipeline
from torchmdla.errors import CompileError


def static(subject: Callable[..., object], *inputs: Tensor) -> Program:
    return TracedProgram(subject, *inputs).program()


def dynamic(module: nn.Module, draw: Callable[..., list[Tensor]], typical: tuple[int, ...]) -> Program:
    return program_of(Traced.of(module, draw(*typical)), draw, typical)


IMAGE = randn(1, 3, 12, 12)

PROGRAMS: dict[str, Callable[[], Program]] = {
    "products, epilogues, packs, a table of a function": lambda: static(
        nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8)), randn(16, 24)
    ),
    "channels in blocks": lambda: static(
        nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)), IMAGE
    ),
    "tiles": lambda: static(lambda x: (x @ x.transpose(-1, -2)).softmax(-1) @ x, randn(4, 32, 16)),
    "repeated steps": lambda: static(nn.LSTM(16, 32), randn(9, 2, 16)),
    "lookups, checks": lambda: static(nn.Embedding(10, 4), torch.tensor([[1, 2], [3, 4]])),
    "scatters": lambda: static(lambda x, i: x.index_add(0, i, x[i].exp()), randn(5, 3), torch.tensor([1, 4, 1, 0, 3])),
    "regions": lambda: static(lambda x: x.sort(-1)[0].cumsum(0) * 2, randn(5, 7)),
    "constant tensors": lambda: static(lambda x: x * torch.tensor([1.0, 2.0, float("inf")]), randn(4, 3)),
    "infinity in bfloat16": lambda: static(
        lambda x: x.masked_fill(x > 0, float("-inf")), randn(4, 3, dtype=torch.bfloat16)
    ),
    "nothing": lambda: static(lambda x: torch.cat([x, torch.zeros(0, 3)]) + 1, randn(4, 3)),
    "all types": lambda: static(lambda x: ((x > 0) | (x.int() == 2)).double() + x.long() % 3, randn(4, 3)),
    "sizes that vary": lambda: dynamic(
        nn.TransformerEncoderLayer(32, 2, 48, batch_first=True), lambda b, s: [randn(b, s, 32)], (4, 32)
    ),
    "repeated steps of sizes that vary": lambda: dynamic(nn.GRU(16, 32), lambda s: [randn(s, 2, 16)], (20,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_stage_equals_its_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, stages = PROGRAMS[name](), set()
    observe, loop_program = pipeline.observe, lowering.loop_program

    def checking(stage: str, steps: pipeline.LoopProgram, sample: str = "") -> None:
        observe(stage, steps, sample)
        stages.add(stage)
        if sample in ("", "sample0"):
            assert program_text(parse_program(program_text(steps))) == program_text(steps)

    # After printing and parsing, the program compiles to the same code.
    with lowering.new_context(), lowering.ir.Location.unknown():
        code = str(lowering.generated_module(program))
        monkeypatch.setattr(pipeline, "observe", checking)

        def read_back(*arguments: Any) -> tuple[LoopProgram, pipeline.Tiles]:
            steps, tiles = loop_program(*arguments)
            return parse_program(program_text(steps)), tiles

        monkeypatch.setattr(lowering, "loop_program", read_back)
        assert str(lowering.generated_module(program)) == code
    assert stages > {each.name for each in pipeline.REWRITES}


ELEMENTS = """\
buffer input0 : i64[4, 2] fixed
buffer temporary0 : f32[] fixed
buffer result2 : i64[4]
entry {
  scalar0 : i64 = load input0 at 3
  scalar1 : i64 = constant (4)
  scalar2 : i1 = arith.cmpi scalar0, scalar1 {predicate = 2 : i64}
  assert scalar2
  scalar3 : i64 = load input0 at 1 + scalar0 * 2 + scalar1 * 1
  scalar4 : f32 = arith.truncf argument1
  store scalar4, temporary0 at 0
  scalar5 : i64 = arith.addi scalar3, integer3
  nest d0:4 {
    i0 = temporary0[]
    c0 = scalar5
    v0 : i64 = arith.fptosi i0
    v1 : i64 = arith.addi v0, c0
    v2 : i1 = arith.cmpi v1, -5 : i64 {predicate = 0 : i64}
    v3 : i64 = arith.select v2, d0, v1
    check true
    result2[d0] = v3
  }
}
"""


def test_elements_and_scalars() -> None:
    assert program_text(parse_program(ELEMENTS)) == ELEMENTS


def test_passes_run_on_text() -> None:
    text = lowering.loop_program_text(static(nn.Sequential(nn.Linear(8, 16), nn.ReLU()), randn(32, 8)))
    assert "then {" not in text
    *_, (name, steps) = lowering.run_passes(text, ["merge-epilogues"], host_target())
    assert name == "merge-epilogues"
    merged = program_text(steps)
    assert "then {" in merged and merged.count("nest ") == text.count("nest ") - 1
    every = [name for name, _ in lowering.run_passes(text, [], host_target())]
    assert every == [each.name for each in pipeline.PASSES]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("entry { nest d0:4 { i0 = input0[d0] } }", "line 1: nothing above is called input0"),
        ("buffer input0 : f32[4]\nentry {\n  nst d0:4\n}", "line 3 is not understood"),
        ("buffer input : f32[4]\nentry {}", "input is not a name"),
        ("", "line 1 is not understood"),
        ("entry { call @region_0() }", "nothing above is called region_0"),
    ],
)
def test_invalid_loop_programs_are_rejected(text: str, message: str) -> None:
    with pytest.raises(CompileError, match="not a loop program") as error:
        parse_program(text)
    assert message in str(error.value)


def test_an_unknown_pass() -> None:
    with pytest.raises(CompileError, match=r"unknown pass 'nosuch' \(choose from remove-unread, "):
        list(lowering.run_passes("entry {}", ["nosuch"], host_target()))

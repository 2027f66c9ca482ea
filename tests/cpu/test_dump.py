"""Files that ``TORCHMDLA_DUMP`` writes, and the scripts that repeat compiles."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from child_process import run_script

from torchmdla.compiler import dump
from torchmdla.compiler.program import Program, Target

PROGRAM = """
import os, sys, torch, torchmdla
from torchmdla.devices.cpu.passes import pipeline
torchmdla.enable(strict=True)
def broken(steps, machine):
    raise ValueError("a pass that fails")
def dying(steps, machine):
    os.kill(os.getpid(), 9)
broken = {"fails": broken, "dies": dying}.get(sys.argv[1])
if broken:
    pipeline.PASSES = pipeline.REWRITES = (*pipeline.REWRITES[:5], pipeline.Pass("broken", broken))
f = torch.jit.trace(lambda x, w: torch.relu(x @ w) + 1, (torch.ones(5, 4), torch.ones(4, 3)), check_trace=False)
with torch.no_grad():
    for n in (5, 5, 6, 7):
        f(torch.ones(n, 4), torch.ones(4, 3))
"""


def run(script: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {dump.VARIABLE: str(folder), "TORCHMDLA_COMPILE_IN_PROCESS": "1"}
    return run_script("-W", "ignore", "-c", script, *arguments, **environment)


@pytest.mark.sampled(0)
def test_every_stage_is_written(tmp_path: Path) -> None:
    done = run(PROGRAM, tmp_path, "works")
    assert (done.returncode, done.stderr) == (0, "")
    folders = list(tmp_path.iterdir())
    programs = [Program.from_json((folder / "program.json").read_text()) for folder in folders]
    assert {program.key[:16] for program in programs} == {folder.name for folder in folders}
    assert any(program.symbols for program in programs) and not all(program.symbols for program in programs)
    for folder, program in zip(folders, programs, strict=True):
        names = sorted(path.name for path in folder.iterdir() if path.name[0].isdigit())
        assert [int(name.split("-")[0]) for name in names] == list(range(len(names)))
        stages = [name.split("-", 1)[1] for name in names]
        wanted = ["linalg.mlir", "fused.mlir", "kernel_0.mlir", "generated.mlir", "llvm.ll", "optimised.ll", "code.o"]
        assert [stage for stage in dict.fromkeys(stages) if stage in wanted] == wanted
        assert stages[0] == ("torch-sample0.mlir" if program.symbols else "torch.mlir")
        traced = {event["name"] for event in json.loads((folder / "trace.json").read_text())["traceEvents"]}
        assert {"lower", "linalg", "merge-epilogues", "llvm", "object"} <= traced
        (optimised,) = folder.glob("*-optimised.ll")
        assert "@mdla_forward(" in optimised.read_text()
        progress = (folder / "progress.txt").read_text().split("\n")
        assert progress[0] == "linalg" and "object" in progress and progress[-2] == "image"
        steps = next(path for path in sorted(folder.glob("*.steps"), reverse=True))
        assert "arith.mulf i0, i1" in steps.read_text()


@pytest.mark.sampled(0)
def test_a_compile_is_repeated(tmp_path: Path) -> None:
    run(PROGRAM, tmp_path, "works")
    folder = next(tmp_path.iterdir())
    again = run_script(folder / "repeat.py")
    assert "bytes of code" in again.stdout, again.stderr


@pytest.mark.parametrize("how", ["fails", "dies"])
@pytest.mark.sampled(0)
def test_a_failed_compile_dumps_its_progress(tmp_path: Path, how: str) -> None:
    done = run(PROGRAM, tmp_path, how)
    assert done.returncode
    folders = list(tmp_path.iterdir())  # After a failure each call of the group is tried alone.
    for folder in folders:
        assert (folder / "progress.txt").read_text().split()[-1] == "broken"
        assert sorted(path.name for path in folder.glob("*.steps"))[0].endswith("-read-steps.steps")
        assert (folder / "repeat.py").exists()
    if how == "fails":
        assert any(f"python {folder / 'repeat.py'}" in done.stderr for folder in folders)


def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dump.VARIABLE, raising=False)
    assert dump.folder_of("0" * 64) is None
    dump.begin("a stage")
    dump.write("a.mlir", lambda: pytest.fail("text is made for nobody"))


def test_unchanged_stages_are_written_once(tmp_path: Path) -> None:
    program = Program("module {}", (), (), Target("cpu"))
    written = dump.Dump(tmp_path, program)
    for name, text in (("a", "1"), ("b", "1"), ("c", "2"), ("d", "1")):
        written.write(f"{name}.steps", text, series="steps")
    assert sorted(path.name for path in tmp_path.glob("*.steps")) == ["000-a.steps", "001-c.steps", "002-d.steps"]

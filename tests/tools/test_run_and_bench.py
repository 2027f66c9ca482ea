"""Tests of ``python -m torchmdla run`` and ``bench``: their output for each kind of program, and their errors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from program_files import TWICE, in_files
from torch import nn

from torchmdla import _C, get_mlir
from torchmdla.__main__ import main
from torchmdla.api import without_groups
from torchmdla.errors import CompileError
from torchmdla.mlir.running import MlirFunction
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.coverage import groups


@pytest.mark.parametrize(
    ("arguments", "result", "groups"),
    [
        (["script.pt", "--input", "2x3x4x4"], "float32[2, 5]", 1),
        (["frozen.pt", "--input", "2x3x4x4", "--threads", "1"], "float32[2, 5]", 1),
        (["script.pt", "--input", "@x.pt"], "float32[2, 5]", 1),
        (["script.pt", "--input", "@x.npy", "--seed", "3"], "float32[2, 5]", 1),
        (["training.pt", "--input", "2x4"], "float32[2, 4]", None),
        (["counting.pt", "--input", "2x3"], "float32[2, 3]", None),
        (["exported.pt2"], "float32[2, 5]", 1),
        (["named.pt2"], "float32[2, 3, 4, 4]", 1),
        (["pickled.pt", "--allow-pickle", "--input", "2x3x4x4"], "float32[2, 5]", 1),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_programs_run_as_eager(
    arguments: list[str], result: str, groups: int | None, files: dict[str, str], capsys: Any
) -> None:
    assert main(["run", *in_files(arguments, files), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["results"][0][1] == result
    assert report["difference"] == "" and report["layers"] >= 1
    assert 0 < report["least"] <= report["median"] and report["calls"] >= 3
    assert groups is None or len(report["statistics"]["by_group"]) == groups
    assert all(group["compiled_calls"] > report["calls"] for group in report["statistics"]["by_group"])


@pytest.mark.parametrize(
    ("arguments", "results"),
    [
        (["torch.mlir", "--input", "@x.pt"], ["float32[2, 5]"]),
        (["linalg.mlir", "--input", "@x.pt"], ["float32[2, 5]"]),
        (["twice.mlir"], ["float32[2, 3]", "float32[2, 3]"]),
    ],
)
def test_mlir_runs(arguments: list[str], results: list[str], files: dict[str, str], capsys: Any) -> None:
    assert main(["run", *in_files(arguments, files), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [type_ for _, type_, _ in report["results"]] == results
    assert report["layers"] is report["error"] is None


@pytest.mark.parametrize("output", ["torch", "linalg"])
@pytest.mark.parametrize("weights", [0, 8])
def test_mlir_matches_eager(output: str, weights: int, files: dict[str, str]) -> None:
    module = torch.load(files["pickled.pt"], weights_only=False)
    x = torch.load(files["x.pt"])
    function = get_mlir(module, x, output=output)
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    block = function.body.operations[0].regions[0].blocks[0]
    order = [str(argument.location).partition('"')[2].partition('"')[0] for argument in block.arguments][1:]
    compiled = MlirFunction(str(function)).compile(weights=weights)
    with torch.no_grad():
        assert_matches(compiled(x, *(named[name].detach() for name in order)), module(x), layers=2)


def test_results_that_are_arguments_are_copies() -> None:
    x = torch.randn(2, 3)
    doubled, same = MlirFunction(TWICE).compile()(x.t().contiguous().t())
    assert torch.equal(doubled, 2 * x) and torch.equal(same, x)
    assert same.data_ptr() != x.data_ptr()


def test_a_call_with_others_is_refused() -> None:
    compiled = MlirFunction(TWICE).compile()
    for wrong in ((), (torch.ones(2, 4),), (torch.ones(2, 3).double(),)):
        with pytest.raises((TypeError, ValueError), match="@twice"):
            compiled(*wrong)
    with pytest.raises(CompileError, match="no valid module"):
        MlirFunction("func.func @a(")


def test_random_weights_of_many_layers_keep_results_finite(tmp_path: Path, capsys: Any) -> None:
    """Check that random weights keep the results finite.

    If weights had magnitude 1, the values would grow by a factor of 200 in each of the 40 layers.
    """
    deep = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256, bias=False), nn.ReLU()) for _ in range(40)])
    path = tmp_path / "deep.mlir"
    path.write_text(str(get_mlir(deep.eval(), torch.randn(1, 256), output="linalg")))
    for options in (["--input", "1x256"], []):
        assert main(["run", str(path), "--json", *options]) == 0
        ((_, _, values),) = json.loads(capsys.readouterr().out)["results"]
        numbers = [float(value) for value in values.removesuffix(", …").split(", ")]
        assert all(map(math.isfinite, numbers)) and any(numbers)


def test_printed_output(files: dict[str, str], capsys: Any) -> None:
    assert main(["run", files["script.pt"], "--input", "2x3x4x4", "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    assert "inputs: float32[2, 3, 4, 4]" in printed
    assert "as eager PyTorch (at the tolerance for 2 layers; the largest error is " in printed
    assert "1 group formed, 1 specialisation compiled" in printed
    assert main(["run", files["torch.mlir"], "--input", "@" + files["x.pt"]]) == 0
    printed = capsys.readouterr().out
    assert "inputs: float32[2, 3, 4, 4] and 8 drawn at random" in printed
    assert "not compared: a module of MLIR has no eager reference" in printed


def test_a_difference_is_found(files: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from torchmdla.cli import programs

    compile_subject = programs.Subject.compile

    def wrong(subject: programs.Subject) -> programs.Call:
        call = compile_subject(subject)
        return lambda: call() + 1

    monkeypatch.setattr(programs.Subject, "compile", wrong)
    assert main(["run", files["script.pt"], "--input", "2x3x4x4"]) == 1
    assert "differs from eager PyTorch: result: " in capsys.readouterr().out
    assert main(["bench", files["script.pt"], "--input", "2x3x4x4"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "torchmdla differs from eager: result: " in printed.err and "nothing was timed" in printed.err


BENCH = ["--rounds", "2", "--json"]


@pytest.mark.parametrize(
    ("file", "inputs", "ways"),
    [
        ("script.pt", ["--input", "2x3x4x4"], {"eager", "frozen", "torchmdla"}),
        ("frozen.pt", ["--input", "2x3x4x4"], {"eager", "frozen", "torchmdla"}),
        ("pickled.pt", ["--input", "2x3x4x4", "--allow-pickle"], {"eager", "frozen", "torchmdla"}),
        ("training.pt", ["--input", "2x4"], {"eager", "torchmdla"}),
        ("counting.pt", ["--input", "2x3"], {"eager", "torchmdla"}),
        ("exported.pt2", [], {"eager", "torchmdla"}),
    ],
)
def test_bench(file: str, inputs: list[str], ways: set[str], files: dict[str, str], capsys: Any) -> None:
    assert main(["bench", files[file], *inputs, *BENCH, "--threads", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    (row,) = report["rows"]
    assert set(row["ms"]) == ways
    assert all(0 < times["min"] <= times["median"] for times in row["ms"].values())
    assert row["gain"]["eager"] == pytest.approx(row["ms"]["eager"]["min"] / row["ms"]["torchmdla"]["min"])
    assert (row["gain"]["frozen"] is None) == ("frozen" not in ways)
    assert row["compile_seconds"] >= 0


def test_bench_of_threads_batches_and_instances(files: dict[str, str], capsys: Any) -> None:
    options = ["--threads", "1,2", "--batches", "1,3", "--instances", "1,2"]
    assert main(["bench", files["script.pt"], "--input", "2x3x4x4", *options, *BENCH]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["batch"], row["threads"], row["instances"]) for row in rows] == [
        (batch, threads, instances) for batch in (1, 3) for threads in (1, 2) for instances in (1, 2)
    ]
    assert rows[0]["compile_seconds"] == rows[3]["compile_seconds"] != rows[4]["compile_seconds"]
    for row in rows:
        for times in row["ms"].values():
            assert times["calls_per_second"] == pytest.approx(1e3 * row["instances"] / times["median"])
    assert main(["bench", files["script.pt"], "--input", "2x3x4x4", "--rounds", "1", "--instances", "2"]) == 0
    printed = capsys.readouterr().out
    assert "compile, s" in printed and "× eager" in printed and "calls a second, of all instances together" in printed


def test_eager_and_frozen_are_pytorchs_alone(files: dict[str, str]) -> None:
    x = torch.load(files["x.pt"])
    program = torch.jit.load(files["script.pt"])
    with without_groups(), torch.no_grad():
        for _ in range(4):
            program(x)
    assert _C.is_enabled()
    with torch.no_grad():
        for _ in range(4):
            program(x)
        assert groups(program.graph_for(x)) == []
        other = torch.jit.load(files["script.pt"])
        for _ in range(4):
            other(x)
        assert len(groups(other.graph_for(x))) == 1

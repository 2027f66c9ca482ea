"""``python -m torchmdla mlir`` and ``opt``."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchmdla import get_mlir
from torchmdla.__main__ import main

MODULE = """module {
  func.func @forward(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = arith.addf %arg0, %arg0 : tensor<2xf32>
    %1 = arith.addf %arg0, %arg0 : tensor<2xf32>
    %2 = arith.mulf %0, %1 : tensor<2xf32>
    return %2 : tensor<2xf32>
  }
}
"""


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchmdla", *arguments], input=stdin, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One small network in every kind of file, and files that are none."""
    folder = tmp_path_factory.mktemp("files")
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    paths = {
        name: str(folder / name) for name in ("script.pt", "exported.pt2", "pickled.pt", "state.pt", "text.pt", "ir")
    }
    torch.jit.script(module).save(paths["script.pt"])
    torch.export.save(torch.export.export(module, (torch.randn(2, 4),)), paths["exported.pt2"])
    torch.save(module, paths["pickled.pt"])
    torch.save(module.state_dict(), paths["state.pt"])
    Path(paths["text.pt"]).write_text("hello")
    Path(paths["ir"]).write_text(MODULE)
    return paths


def test_both_commands_as_processes(files: dict[str, str], tmp_path: Path) -> None:
    written = tmp_path / "out.mlir"
    made = run("mlir", files["script.pt"], "--input", "2x4", "--output", "linalg", "-o", str(written))
    assert (made.returncode, made.stdout) == (0, "")
    assert written.read_text() == str(get_mlir(torch.jit.load(files["script.pt"]), torch.ones(2, 4), output="linalg"))
    optimised = run("opt", "--pipeline", "func.func(cse)", "--print-after-all", stdin=MODULE)
    assert optimised.returncode == 0
    assert optimised.stdout.count("arith.addf") == 1
    assert "IR Dump After" in optimised.stderr


@pytest.mark.parametrize(
    ("file", "options", "sign"),
    [
        ("script.pt", ["--input", "2x4"], "!torch.vtensor<[2,4],f32>"),
        ("script.pt", ["--input", "?x4"], "!torch.vtensor<[?,4],f32>"),
        ("script.pt", ["--input", "2x4", "--dynamic", "--output", "stablehlo"], "tensor<?x4xf32>"),
        ("script.pt", ["--input", "2x4:float32", "--weights", "literals"], "torch.vtensor.literal"),
        ("script.pt", ["--input", "2x4", "--locations"], 'loc("0.weight")'),
        ("exported.pt2", ["--output", "tosa"], "tosa.matmul"),
        ("pickled.pt", ["--input", "2x4", "--allow-pickle", "--output", "aten"], '"aten.relu"'),
    ],
)
def test_mlir(file: str, options: list[str], sign: str, files: dict[str, str], capsys: Any) -> None:
    assert main(["mlir", files[file], *options]) == 0
    assert sign in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["script.pt"], "--input is needed"),
        (["script.pt", "--input", "2x4", "--input", "2"], "takes 1 input (input), got 2"),
        (["script.pt", "--input", "2xq"], "'2xq': sizes are written as 1x3x224x224"),
        (["script.pt", "--input", "2x4:float31"], "there is no dtype 'float31'"),
        (["script.pt", "--input", "2x5"], "mat1 and mat2 shapes cannot be multiplied"),
        (["script.pt", "--input", "2x4", "-o", "/nowhere/x"], "No such file or directory"),
        (["exported.pt2", "--input", "2x4"], "has its inputs"),
        (["pickled.pt", "--input", "2x4"], "--allow-pickle"),
        (["state.pt", "--allow-pickle"], "not a module"),
        (["text.pt"], "no TorchScript archive, exported program or pickled module"),
        (["missing.pt"], "No such file or directory"),
    ],
)
def test_mlir_errors(arguments: list[str], message: str, files: dict[str, str], capsys: Any) -> None:
    file, *options = arguments
    assert main(["mlir", files.get(file, file), *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert message in printed.err


class Runs:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def replaced(data: bytes, before: str, after: str) -> bytes:
    """Of an entry that holds it once at least."""
    assert before.encode() in data
    return data.replace(before.encode(), after.encode())


def in_json(before: str, after: str) -> Any:
    return lambda data, code, run: replaced(data, before, after.replace("CODE", code))


# Of an exported program: which entry to change and into what, and what is said of it. `code` is an expression,
# `run` a pickle; both make a file.
MODEL, STRUCTURE = "models/model.json", '\\"builtins.tuple\\", \\"context\\": '
HOSTILE = {
    "a pickle": ("sample_inputs/model.pt", lambda data, code, run: run, "a pickled object"),
    "a weight": (
        "weights/model_weights_config.json",
        in_json('"use_pickle": false', '"use_pickle": true'),
        "a pickled object",
    ),
    "an opaque object": (
        "constants/model_constants_config.json",
        in_json(
            '"config": {', '"config": {"o": {"path_name": "opaque_obj_0.pt", "is_param": false, "use_pickle": true}'
        ),
        "the object 'opaque_obj_0.pt'",
    ),
    "a size": (MODEL, in_json("Symbol('s", "CODE or Symbol('s"), "the expression"),
    "a method": (MODEL, in_json("Symbol('s", "Symbol.__class__('s"), "the expression"),
    "a function": (MODEL, in_json("torch.ops.aten.linear.default", "torch.ops.load_library"), "the function"),
    "another module": (MODEL, in_json("torch.ops.aten.linear.default", "torch.os.system"), "the function"),
    "a guard": (MODEL, in_json('"guards_code": []', '"guards_code": ["CODE"]'), "the name"),
    "an argument": (MODEL, in_json('"input"', '"input=CODE"'), "the name"),
    "a comment": (MODEL, in_json("in forward", "in forward\\r CODE #"), "unprintable text"),
    "a structure": (
        MODEL,
        in_json(f'{STRUCTURE}\\"null\\"', STRUCTURE.replace("builtins.tuple", "collections.defaultdict") + "{}"),
        "no structure of tuples, lists and dicts",
    ),
    "a library": ("data/aotinductor/model/code.so", lambda data, code, run: run, "the entry"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_exported_programs_run_no_code(what: str, tmp_path: Path, capsys: Any) -> None:
    good, bad, made = tmp_path / "good.pt2", tmp_path / "bad.pt2", tmp_path / "made"
    rows = torch.export.Dim("rows", max=50)
    program = torch.export.export(nn.Linear(4, 3), (torch.randn(2, 4),), dynamic_shapes=({0: rows},))
    torch.export.save(program, good)
    pickled = io.BytesIO()
    torch.save(Runs(made), pickled)
    entry, change, message = HOSTILE[what]
    code = f"__import__('pathlib').Path('{made}').touch()"
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(bad, "w") as new:
        names = old.namelist()
        if not any(name.endswith(entry) for name in names):
            new.writestr(f"good/{entry}", pickled.getvalue())
        for name in names:
            data = old.read(name)
            if what == "a weight" and "weights/weight_" in name:
                data = pickled.getvalue()
            new.writestr(name, change(data, code, pickled.getvalue()) if name.endswith(entry) else data)
    assert main(["mlir", str(good)]) == 0
    capsys.readouterr()
    assert main(["mlir", str(bad)]) == 2
    error = capsys.readouterr().err
    assert message in error and "--allow-pickle" in error
    assert not made.exists()


def test_a_damaged_archive(files: dict[str, str], tmp_path: Path, capsys: Any) -> None:
    damaged = tmp_path / "damaged.pt"
    data = Path(files["script.pt"]).read_bytes()
    damaged.write_bytes(data[: len(data) // 3])
    assert main(["mlir", str(damaged), "--input", "2x4"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("pipeline", "ops"),
    [("func.func(cse)", 1), ("builtin.module(func.func(cse))", 1), ("canonicalize", 2)],
)
def test_opt(pipeline: str, ops: int, files: dict[str, str], capfd: Any) -> None:
    assert main(["opt", files["ir"], "--pipeline", pipeline]) == 0
    printed = capfd.readouterr()
    assert printed.out.count("arith.addf") == ops
    assert printed.err == ""


def test_loop_programs(files: dict[str, str], capfd: Any, tmp_path: Path) -> None:
    written = str(tmp_path / "model.steps")
    assert main(["mlir", files["script.pt"], "--input", "16x4", "--output", "loops", "-o", written]) == 0
    assert main(["opt", written, "--print-after", "merge-epilogues", "--stop-after", "fold-scales"]) == 0
    printed = capfd.readouterr()
    assert printed.err.startswith("// -----// after merge-epilogues")
    assert "then {" in printed.out and "result" in printed.out
    assert main(["opt", written, "--pipeline", "remove-unread", "--stop-after", "nonsense"]) == 2
    assert "no pass 'nonsense'; there are remove-unread, " in capfd.readouterr().err


@pytest.mark.parametrize(("name", "dumps"), [("cse", 1), ("canonicalize", 2)])
def test_printing_after_one_pass(name: str, dumps: int, files: dict[str, str], capfd: Any) -> None:
    options = ["--pipeline", "canonicalize,func.func(cse),canonicalize", "--print-after", name, "-o", "/dev/null"]
    assert main(["opt", files["ir"], *options]) == 0
    assert capfd.readouterr().err.count("IR Dump After") == dumps


def test_passes_of_the_aten_dialect(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    text = str(get_mlir(nn.ReLU(), torch.ones(6), output="aten"))
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["opt", "--pipeline", "aten-layer-name,aten-op-report"]) == 0
    printed = capfd.readouterr().out
    assert 'layer_name = "L0-relu-0"' in printed
    assert '">": 6' in printed


@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        ("ir", ["--pipeline", "nonsense"], "not a pass pipeline\n"),
        ("ir", [], "MLIR needs --pipeline"),
        ("ir", ["--pipeline", "cse", "--stop-after", "cse"], "--stop-after is of loop programs"),
        ("ir", ["--pipeline", "aten-nonsense"], "not a pass pipeline\n"),
        ("ir", ["--pipeline", "func.func(cse"], "not a pass pipeline\n"),
        ("text.pt", ["--pipeline", "cse"], "holds no valid module\n"),
        ("ir", ["--pipeline", "torch-backend-to-tosa-backend-pipeline,test-nothing"], "not a pass pipeline\n"),
        ("ir", ["--pipeline", "cse", "--print-after", "nonsense"], "no such pass ran; there were cse\n"),
        ("script.pt", ["--pipeline", "cse"], "is no text: opt takes MLIR"),
        ("missing", ["--pipeline", "cse"], "No such file or directory"),
        ("ir", ["--pipeline", "cse", "--print-after", "cse", "-o", "/nowhere/x"], "No such file or directory"),
    ],
)
def test_opt_errors(file: str, options: list[str], message: str, files: dict[str, str], capfd: Any) -> None:
    assert main(["opt", files.get(file, file), *options]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "error: " in printed.err
    assert message in printed.err


def test_doctor(capsys: Any) -> None:
    assert main(["doctor"]) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line.startswith(("ok", "no"))]
    assert lines == [["ok", name] for name in ("versions", "processor", "cache", "compiler", "self-test")]


def test_doctor_finds_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    doctor = [sys.executable, "-W", "ignore", "-m", "torchmdla", "doctor"]
    environment = {**os.environ, "TORCHMDLA_CACHE_DIR": str(tmp_path / "file" / "cache")}
    done = subprocess.run(doctor, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no  cache" in done.stdout
    done = subprocess.run([*doctor, "--processor", "pentium"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no processor 'pentium'")


def test_options_of_a_c_compiler(capsys: Any) -> None:
    assert main(["mdla", "--cflags", "--libs"]) == 0
    include, library, path = capsys.readouterr().out.split()
    assert Path(include.removeprefix("-I"), "microndla.h").is_file()
    assert Path(library).is_file() and path == f"-Wl,-rpath,{Path(library).parent}"
    with pytest.raises(SystemExit) as ended:
        main(["mdla"])
    assert ended.value.code == 2
    assert "error: say --cflags, --libs or both" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["mlir", "opt", "doctor", "mdla"])
def test_help_has_an_example(command: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"examples:\n  python -m torchmdla {command}" in capsys.readouterr().out

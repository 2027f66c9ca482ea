"""``python -m torchmdla mlir`` and ``opt``."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import run_python, run_script
from program_files import WRITTEN, in_files
from torch import nn

from torchmdla import get_mlir
from torchmdla.__main__ import main
from torchmdla.cli import doctor
from torchmdla.compile_service import service


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run_script("-m", "torchmdla", *arguments, stdin=stdin)


@pytest.mark.sampled(0)
def test_both_commands_as_processes(files: dict[str, str], tmp_path: Path) -> None:
    written = tmp_path / "out.mlir"
    process = run("mlir", files["linear.pt"], "--input", "2x4", "--output", "linalg", "-o", str(written))
    assert (process.returncode, process.stdout) == (0, "")
    assert written.read_text() == str(get_mlir(torch.jit.load(files["linear.pt"]), torch.ones(2, 4), output="linalg"))
    optimised = run("opt", "--pipeline", "func.func(cse)", "--print-after-all", stdin=WRITTEN["sums.mlir"])
    assert optimised.returncode == 0
    assert optimised.stdout.count("arith.addf") == 1
    assert "IR Dump After" in optimised.stderr


@pytest.mark.parametrize(
    ("file", "options", "sign"),
    [
        ("linear.pt", ["--input", "2x4"], "!torch.vtensor<[2,4],f32>"),
        ("linear.pt", ["--input", "?x4"], "!torch.vtensor<[?,4],f32>"),
        ("linear.pt", ["--input", "2x4", "--dynamic", "--output", "stablehlo"], "tensor<?x4xf32>"),
        ("linear.pt", ["--input", "2x4:float32", "--weights", "literals"], "torch.vtensor.literal"),
        ("linear.pt", ["--input", "2x4", "--locations"], 'loc("0.weight")'),
        ("linear.pt2", ["--output", "tosa"], "tosa.matmul"),
        ("pickled.pt", ["--input", "2x3x4x4", "--allow-pickle", "--output", "aten"], '"aten.relu"'),
    ],
)
def test_mlir(file: str, options: list[str], sign: str, files: dict[str, str], capsys: Any) -> None:
    assert main(["mlir", files[file], *options]) == 0
    assert sign in capsys.readouterr().out


INPUT = ["--input", "2x3x4x4"]
OF_PROGRAMS = ("mlir", "explain", "run", "bench")

# Commands, their arguments, and the error.
ERRORS: list[tuple[tuple[str, ...], list[str], str]] = [
    (OF_PROGRAMS, ["script.pt"], "--input is needed"),
    (OF_PROGRAMS, ["script.pt", "--input", "2xq"], "'2xq': sizes are written as 1x3x224x224"),
    (OF_PROGRAMS, ["script.pt", "--input", "2x3x4x4:float31"], "unknown dtype 'float31'"),
    (OF_PROGRAMS, ["text.pt"], "not a TorchScript archive, an exported program or a pickled module"),
    (OF_PROGRAMS, ["missing.pt"], "No such file or directory"),
    (("mlir", "run", "bench"), ["script.pt", "--input", "2x3x9x4"], "mat1 and mat2 shapes cannot be multiplied"),
    (("mlir",), ["script.pt", *INPUT, "--input", "2"], "takes 1 input (input), got 2"),
    (("mlir",), ["script.pt", *INPUT, "-o", "/nowhere/x"], "No such file or directory"),
    (("mlir",), ["exported.pt2", *INPUT], "has its inputs"),
    (("mlir",), ["pickled.pt", *INPUT], "--allow-pickle"),
    (("mlir",), ["state.pt", "--allow-pickle"], "not a module"),
    (("explain", "run", "bench"), ["script.pt", "--input", "?x3x4x4"], "a call has known sizes"),
    (("explain",), ["script.pt", "--input", "1x4x4x4"], "expected input"),
    (("explain",), ["script.pt", *INPUT, "--input", "1"], "forward() expected at most"),
    (("explain",), ["exported.pt2", "--input", "1x3x4x4"], "Guard failed: input.size()[0] == 2"),
    (("run", "bench"), ["script.pt", "--input", "@missing.npy"], "No such file or directory"),
    (("run", "bench"), ["script.pt", "--input", "@d.pt"], "holds a dict, not a tensor"),
    (
        ("run", "bench"),
        ["script.pt", "--input", "@script.pt"],
        "holds no tensor that torch.save (.pt) or numpy.save (.npy) wrote",
    ),
    (("run", "bench"), ["script.pt", *INPUT, "--device", "gpu"], "no device named 'gpu'"),
    (("run", "bench"), ["script.pt", *INPUT, "--options", "fast"], "'fast' is not NAME=VALUE"),
    (("run", "bench"), ["exported.pt2", "--input", "3x3x4x4"], "size"),
    (("run", "bench"), ["exported.pt2", *INPUT * 2], "the program takes 1 input, got 2"),
    (("run",), ["dynamic.mlir"], "a tensor of known dtype and sizes is needed"),
    (("run",), ["two.mlir"], "a module with one public function is needed; public in this one: @a, @b"),
    (("run",), ["bad.mlir"], "no valid module of MLIR: "),
    (("run",), ["tosa.mlir"], "the module is in tosa: what runs is a function in the Torch dialect, or in linalg"),
    (("run",), ["torch.mlir", "--input", "2x3x4x5"], "argument 0 of @forward is torch.float32 [2, 3, 4, 4], got"),
    (("run",), ["torch.mlir", *["--input", "1"] * 10], "takes 9 tensors, got 10"),
    *(
        (("bench",), [f"{name}.mlir"], "bench compares with PyTorch, which runs no MLIR")
        for name in ("dynamic", "two", "bad", "tosa", "torch")
    ),
]


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [(command, arguments, message) for commands, arguments, message in ERRORS for command in commands],
)
@pytest.mark.sampled(12)
def test_errors(command: str, arguments: list[str], message: str, files: dict[str, str], capfd: Any) -> None:
    assert main([command, *in_files(arguments, files)]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    # PyTorch's profiler writes lines if another test started it first.
    lines = [line for line in printed.err.splitlines() if not line.startswith("USDT:")]
    (line,) = [line for line in lines if line.startswith("error: ")]
    assert message in line
    assert "Traceback" not in printed.err
    assert command != "explain" or lines == [line]


class Runs:
    """Object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def replaced(data: bytes, before: str, after: str) -> bytes:
    """Return ``data`` with ``before`` replaced. ``before`` must occur at least once."""
    assert before.encode() in data
    return data.replace(before.encode(), after.encode())


def in_json(before: str, after: str) -> Any:
    return lambda data, code, run: replaced(data, before, after.replace("CODE", code))


# Hostile changes of an exported program: the entry, the change, and a part of the error message.
# `code` is an expression and `run` is a pickle. Each creates a file when it is executed.
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
    good, bad, marker = tmp_path / "good.pt2", tmp_path / "bad.pt2", tmp_path / "made"
    rows = torch.export.Dim("rows", max=50)
    program = torch.export.export(nn.Linear(4, 3), (torch.randn(2, 4),), dynamic_shapes=({0: rows},))
    torch.export.save(program, good)
    pickled = io.BytesIO()
    torch.save(Runs(marker), pickled)
    entry, change, message = HOSTILE[what]
    code = f"__import__('pathlib').Path('{marker}').touch()"
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
    assert not marker.exists()


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
    assert main(["opt", files["sums.mlir"], "--pipeline", pipeline]) == 0
    printed = capfd.readouterr()
    assert printed.out.count("arith.addf") == ops
    assert printed.err == ""


@pytest.mark.parametrize(
    ("flags", "ops"),
    [
        (["--cse"], 1),
        (["--canonicalize"], 2),
        (["--canonicalize", "--cse"], 1),
        (["--pipeline", "canonicalize", "--cse"], 1),
        (["--canonicalize=max-iterations=2"], 2),
        (["--linalg-fuse-elementwise-ops", "--cse"], 1),
    ],
)
def test_passes_are_flags(flags: list[str], ops: int, files: dict[str, str], capfd: Any) -> None:
    assert main(["opt", files["sums.mlir"], *flags]) == 0
    assert capfd.readouterr().out.count("arith.addf") == ops


@pytest.mark.parametrize("arguments", [["opt", "x", "-x"], ["opt", "x", "more"], ["mlir", "x", "--cse"]])
def test_unknown_flags_are_refused(arguments: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert f"unrecognized arguments: {arguments[-1]}" in capsys.readouterr().err


def test_loop_programs(files: dict[str, str], capfd: Any, tmp_path: Path) -> None:
    written = str(tmp_path / "model.steps")
    assert main(["mlir", files["linear.pt"], "--input", "16x4", "--output", "loops", "-o", written]) == 0
    assert main(["opt", written, "--print-after", "merge-epilogues", "--stop-after", "fold-scales"]) == 0
    printed = capfd.readouterr()
    assert printed.err.startswith("// -----// after merge-epilogues")
    assert "then {" in printed.out and "result" in printed.out
    assert main(["opt", written, "--pipeline", "remove-unread", "--stop-after", "nonsense"]) == 2
    assert "unknown pass 'nonsense' (choose from remove-unread, " in capfd.readouterr().err


@pytest.mark.parametrize(("name", "dumps"), [("cse", 1), ("canonicalize", 2)])
def test_printing_after_one_pass(name: str, dumps: int, files: dict[str, str], capfd: Any) -> None:
    options = ["--pipeline", "canonicalize,func.func(cse),canonicalize", "--print-after", name, "-o", "/dev/null"]
    assert main(["opt", files["sums.mlir"], *options]) == 0
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
        ("sums.mlir", ["--pipeline", "nonsense"], "not a pass pipeline\n"),
        ("sums.mlir", [], "MLIR needs passes"),
        ("sums.mlir", ["--nonsense"], "--nonsense: unknown option, and unknown pass\n"),
        ("sums.mlir", ["--cse=nonsense=1"], "--cse=nonsense=1: unknown option, and unknown pass\n"),
        ("sums.mlir", ["--pipeline", "cse", "--stop-after", "cse"], "--stop-after is of loop programs"),
        ("sums.mlir", ["--pipeline", "aten-nonsense"], "not a pass pipeline\n"),
        ("sums.mlir", ["--pipeline", "func.func(cse"], "not a pass pipeline\n"),
        ("text.pt", ["--pipeline", "cse"], "holds no valid module: "),
        ("sums.mlir", ["--pipeline", "torch-backend-to-tosa-backend-pipeline,test-nothing"], "not a pass pipeline\n"),
        ("sums.mlir", ["--pipeline", "cse", "--print-after", "nonsense"], "unknown pass 'nonsense' (choose from cse)"),
        ("script.pt", ["--pipeline", "cse"], "is not text: opt reads MLIR"),
        ("missing", ["--pipeline", "cse"], "No such file or directory"),
        ("sums.mlir", ["--pipeline", "cse", "--print-after", "cse", "-o", "/nowhere/x"], "No such file or directory"),
    ],
)
def test_opt_errors(file: str, options: list[str], message: str, files: dict[str, str], capfd: Any) -> None:
    assert main(["opt", files.get(file, file), *options]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "error: " in printed.err
    assert message in printed.err


@pytest.mark.sampled(0)
def test_a_reader_that_has_enough(files: dict[str, str]) -> None:
    """Check that a reader that closes the pipe early, such as ``| head``, causes no error message."""
    command = [sys.executable, "-m", "torchmdla", "mlir", files["linear.pt"], "--input", "2x4", "--weights", "literals"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.wait() == 141
        assert process.stderr.read() == b""


@pytest.mark.sampled(0)
def test_a_value_is_a_line_for_other_programs() -> None:
    lines = run("info").stdout.splitlines()
    values = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in lines)
    assert "devices" in values and "cpu: target" in values
    assert values["mdla: target"].startswith("{") and values["mdla: target"].endswith("}")


@pytest.mark.sampled(0)
def test_programs_in_files_are_read_without_warnings(files: dict[str, str]) -> None:
    """Check that PyTorch's deprecation warnings are not shown to the user."""
    done = run("explain", files["exported.pt2"])
    assert (done.returncode, done.stderr) == (0, "")


def test_doctor(capsys: Any) -> None:
    assert main(["doctor"]) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line.startswith(("ok", "no"))]
    assert lines == [
        ["ok", name] for name in ("versions", "environment", "processor", "cache", "store", "compiler", "self-test")
    ]


@pytest.mark.sampled(0)
def test_doctor_calibrates(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMDLA_CACHE_DIR", str(tmp_path))
    service.reset()
    try:
        assert main(["doctor", "--calibrate"]) == 0
        output = capsys.readouterr().out
        assert "not calibrated" in output and "memory_bytes" in output
        assert main(["doctor"]) == 0 and ", calibrated" in " ".join(capsys.readouterr().out.split())
    finally:
        service.reset()


@pytest.mark.parametrize(
    ("variables", "options", "status", "lines"),
    [
        ({"TORCHMDLA_CACHE_DIR": "/proc/nowhere"}, [], 1, ["no cache /proc/nowhere: "]),
        ({"TORCHMDLA_CACHE_SIZE": "much"}, [], 1, ["no environment TORCHMDLA_CACHE_SIZE is not a size", "no cache "]),
        ({"TORCHMDLA_CACHE_SIZE": "0"}, [], 0, ["ok cache switched off by TORCHMDLA_CACHE_SIZE"]),
        ({"TORCHMDLA_COMPILE_SECONDS": "soon"}, [], 1, ["no environment TORCHMDLA_COMPILE_SECONDS is not a duration"]),
        ({"TORCHMDLA_CACHE": "here"}, [], 1, ["no environment TORCHMDLA_CACHE is not a variable of torchmdla"]),
        ({}, ["--processor", "x86-64-v3"], 0, ["ok processor x86-64-v3, vectors of 256 bits: without AVX-512"]),
        ({}, ["--processor", "x86-64-v2"], 1, ["no processor x86-64-v2, vectors of 128 bits: kernels are made"]),
        ({}, ["--processor", "pentium"], 2, []),
    ],
)
@pytest.mark.sampled(0)
def test_doctor_finds_problems(variables: dict[str, str], options: list[str], status: int, lines: list[str]) -> None:
    done = run_script("-W", "ignore::DeprecationWarning", "-m", "torchmdla", "doctor", *options, **variables)
    assert done.returncode == status, done.stdout + done.stderr
    printed = [" ".join(line.split()) for line in done.stdout.splitlines()]
    for line in lines:
        assert any(text.startswith(line[:60]) or line.startswith(text) for text in printed if text), (line, printed)
    if status == 2:
        choices = "native, x86-64-v2, x86-64-v3, x86-64-v4, x86-64-v4-amx, armv8-a, armv8.6-a"
        assert done.stderr == f"error: unknown processor 'pentium' (choose from {choices})\n"
    else:
        assert done.stderr == ""
        duration = r"after \d+\.\d s in the compiler"
        pattern = rf"self-test a small model runs compiled, {duration}, with the results of eager PyTorch"
        assert re.search(pattern, " ".join(printed))


def test_doctor_knows_all_variables() -> None:
    reference = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
    documented = set(re.findall(r"^\| .*", reference, re.MULTILINE))
    names = {name for row in documented for name in re.findall(r"`(TORCHMDLA_\w+)`", row.split(" | ")[0])}
    assert names
    assert names <= doctor.VARIABLES


def test_doctor_tells_of_a_limit_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMDLA_MEMORY", "much")
    with pytest.raises(doctor.CheckFailure, match=r"TORCHMDLA_MEMORY is not a size in bytes .*: 'much'"):
        doctor._environment()


def test_an_unusable_requested_cache_warns_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code = """
        import torch, torchmdla, warnings
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for factor in (2.0, 3.0):
                torchmdla.compile(lambda x: torch.sigmoid(torch.relu(x) * factor), torch.randn(3, 4))
        print([str(one.message) for one in told if "torchmdla: " in str(one.message)])
    """
    folder = str(tmp_path / "file" / "cache")
    done = run_python(code, TORCHMDLA_CACHE_DIR=folder)
    assert f"nothing is kept on disk, TORCHMDLA_CACHE_DIR={folder}: Not a directory" in done.stdout, done.stderr
    assert done.stdout.count("nothing is kept") == 1


def test_options_of_a_c_compiler(capsys: Any) -> None:
    assert main(["mdla", "--cflags", "--libs"]) == 0
    include, library, path = capsys.readouterr().out.split()
    assert Path(include.removeprefix("-I"), "microndla.h").is_file()
    assert Path(library).is_file() and path == f"-Wl,-rpath,{Path(library).parent}"
    with pytest.raises(SystemExit) as ended:
        main(["mdla"])
    assert ended.value.code == 2
    assert "error: choose --cflags, --libs or both" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "bench", "package", "explain", "mlir", "opt", "doctor", "mdla"])
def test_help_has_an_example(command: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"examples:\n  python -m torchmdla {command}" in capsys.readouterr().out

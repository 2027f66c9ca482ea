"""Test wheels as a new user would: in a fresh environment without a compiler, with an empty home folder.

The test runs outside of the checkout. ``make wheel`` runs it. Each wheel is tested by the interpreter that it is for.

    python release/try_wheel.py dist/torchmdla-*.whl
    python release/try_wheel.py dist/torchmdla-*.whl --torch 2.14.1
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from environments import interpreters

PROGRAM = """\
import shutil
from pathlib import Path

import torch
import torchmdla
import torchmdla_runtime
from torch import nn

assert Path(torchmdla.__file__).is_relative_to(PREFIX), torchmdla.__file__
assert not [name for name in ("cc", "gcc", "c++", "g++", "clang", "cmake") if shutil.which(name)]

model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(6), nn.Flatten(), nn.Linear(8, 10)).eval()
x = torch.randn(2, 3, 8, 8)
with torch.no_grad():
    expected = model(x)

    def runs(what, compiled, tolerance):
        torch.testing.assert_close(compiled(x), expected, rtol=tolerance, atol=tolerance)
        stats = torchmdla.stats()
        assert stats.specialisations and not stats.fallbacks and not stats.left_out, stats
        torchmdla.reset_stats()
        print(f"ok  {what}")

    scripted = torch.jit.trace(model, x)
    assert "mdla::CompilationGroup" in str(torchmdla.graph_for(scripted, x))
    runs("TorchScript", scripted, 1e-5)
    compiled = torch.compile(model, backend="torchmdla")
    compiled(x)
    runs("torch.compile", compiled, 1e-5)
    torchmdla.export_native(model, x, "model.tmdla")
    (found,) = torchmdla_runtime.Model("model.tmdla")(x)
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-5, atol=1e-5)
    print("ok  the runtime without PyTorch")
    torchmdla.enable(device="mdla", precision="float32")
    runs("the mdla device's emulator", torchmdla.compile(model, x), 1e-4)
"""

C_PROGRAM = """\
#include <microndla.h>
#include <stdio.h>

int main(void) {
  char version[64];
  void* context = ie_create();
  if (!context || ie_getinfo(context, "version", version, sizeof version) != IE_STRING) return 1;
  printf("ok  a C program with the emulator, version %s\\n", version);
  ie_free(context);
  return 0;
}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Test wheels in fresh environments without a compiler.")
    parser.add_argument("wheels", nargs="+", type=Path, metavar="wheel")
    parser.add_argument("--torch", metavar="VERSION", help="with this version of PyTorch; default: what pip chooses")
    options = parser.parse_args()
    for wheel in options.wheels:
        with tempfile.TemporaryDirectory(prefix="torchmdla-wheel-") as folder:
            environment = Path(folder, "environment")
            subprocess.run([str(interpreter_of(wheel)), "-m", "venv", str(environment)], check=True)
            python = environment / "bin" / "python"
            wanted = [f"{wheel.resolve()}[mdla]", *([f"torch=={options.torch}"] if options.torch else [])]
            print("installing", *wanted, flush=True)
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
            check(environment, Path(folder, "elsewhere"))
    return 0


def interpreter_of(wheel: Path) -> Path:
    """Return the interpreter that a wheel is for, by the tag in its name, such as ``cp312``."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    if f"-{tag}-" in wheel.name:
        return Path(sys.executable)
    for version, path in interpreters().items():
        if f"-cp{version.replace('.', '')}-" in wheel.name:
            return path
    raise SystemExit(f"{wheel} cannot be tried: this machine has no CPython that it is for")


def check(environment: Path, folder: Path) -> None:
    """Run all checks in a virtual environment with the wheel; ``folder`` is created as the working folder.

    Raises:
        SystemExit: a check failed; its output describes the failure.
    """
    home = folder / "home"
    home.mkdir(parents=True)
    python = str(environment / "bin" / "python")
    bare = {"PATH": str(environment / "bin"), "HOME": str(home), "LANG": "C.UTF-8"}
    run([python, "-m", "torchmdla", "doctor"], folder, bare)
    (folder / "program.py").write_text(PROGRAM.replace("PREFIX", repr(str(environment))))
    run([python, "program.py"], folder, bare)
    if compiler := shutil.which(os.environ.get("CC", "cc")):
        (folder / "program.c").write_text(C_PROGRAM)
        flags = run([python, "-m", "torchmdla", "mdla", "--cflags", "--libs"], folder, bare).split()
        run([compiler, "program.c", *flags, "-o", "program"], folder, dict(os.environ))
        run([str(folder / "program")], folder, {})


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", flush=True)
    if done.returncode:
        raise SystemExit(f"ended with {done.returncode}: {shlex.join(command)}")
    return done.stdout


if __name__ == "__main__":
    raise SystemExit(main())

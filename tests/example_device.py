"""Child processes that run a device of ``examples/devices``, and a program for any asynchronous device.

A driver or a wrong kernel can end a process.
"""

from __future__ import annotations

import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path

from child_process import run_script

_ROOT = Path(__file__).resolve().parents[1]

_PRELUDE = """
import torch, torchmdla
from torchmdla.testing.compare import assert_matches
{device}
generator = torch.Generator().manual_seed(0)
x, w = torch.randn(16, 16, generator=generator), torch.randn(16, 16, generator=generator) / 4

def run(function, *arguments):
    compiled = torch.jit.script(function)
    for _ in range(3):
        compiled(*arguments)
    return compiled
"""

THREADS_AND_FORKS = """
import os
from concurrent.futures import ThreadPoolExecutor

def f(x, w):
    return torch.mm(x, w).relu() + 1

compiled = run(f, x, w)
cases = [torch.randn(16, 16) for _ in range(200)]
with ThreadPoolExecutor(4) as pool:
    for case, result in zip(cases, pool.map(lambda case: compiled(case, w), cases)):
        assert_matches(result, f(case, w))
child = os.fork()
if not child:
    assert_matches(compiled(x, w), f(x, w))  # by PyTorch's operators
    os._exit(0 if any("fork" in reason for reason in torchmdla.stats().fallbacks) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert_matches(compiled(x, w), f(x, w))
"""


@dataclass(frozen=True)
class ExampleDevice:
    """Example in a folder of ``examples/devices``, with the Python code that registers and enables its device."""

    name: str
    code: str

    @property
    def folder(self) -> Path:
        return _ROOT / "examples" / "devices" / self.name

    def run(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the folder with ``arguments``."""
        return run_script(*arguments, folder=self.folder, PYTHONPATH=f"{_ROOT}:{self.folder}", **environment)

    def check(self, program: str, folder: Path, **environment: str) -> None:
        """Run a program on the device, from a file in ``folder``, because TorchScript reads the source of functions.

        The program has the function ``run`` and the matrices ``x`` and ``w``.
        """
        file = folder / "program.py"
        file.write_text(_PRELUDE.format(device=self.code) + textwrap.dedent(program))
        done = self.run("-W", "ignore", file, **environment)
        assert done.returncode == 0, done.stdout + done.stderr

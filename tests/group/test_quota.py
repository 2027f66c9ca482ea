"""Quotas of control groups: the threads of compiled code and compilations respect them.

The programs run in a mount namespace, where a tree of the test replaces the system's quota files.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GROUPS = Path("/sys/fs/cgroup")

_PROGRAM = """
import json, sys
import torch, torchmdla
from torchmdla import _C

exec(sys.argv[1])
before = torch.get_num_threads()
program = torch.jit.freeze(torch.jit.trace(torch.nn.Sequential(torch.nn.Tanh(), torch.nn.ReLU()).eval(), torch.rand(4)))
given = torch.rand(1 << 20)
with torch.no_grad():
    results = [program(given) for _ in range(4)]
assert torchmdla.stats().specialisations == 1
assert torch.allclose(results[-1], given.tanh().relu())
print(json.dumps([_C.available_cpus(), before, torch.get_num_threads()]))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a file that allows half of a CPU."""
    folder = tmp_path_factory.mktemp("cgroup")
    (folder / "cpu.max").write_text("50000 100000\n")
    return folder


def run_with(tree: Path, statement: str, **variables: str) -> tuple[int, int, int]:
    """Return the number of usable CPUs, and the number of threads before and after compiled code ran."""
    mount = f"mount --bind {shlex.quote(str(tree))} {GROUPS}"
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    }
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("there is no mount namespace for this user")
    done = subprocess.run(
        [*command, sys.executable, "-c", _PROGRAM, statement],
        capture_output=True,
        text=True,
        env={**environment, **variables},
    )
    assert done.returncode == 0, done.stderr
    cpus, before, after = json.loads(done.stdout)
    return cpus, before, after


@pytest.mark.sampled(0)
def test_pytorchs_own_number_of_threads_is_taken_down(tree: Path) -> None:
    cpus, before, after = run_with(tree, "")
    if before == 1:
        pytest.skip("PyTorch chose one thread")
    assert (cpus, after) == (1, 1)


@pytest.mark.sampled(0)
def test_a_number_that_was_chosen_stays(tree: Path) -> None:
    cpus = os.cpu_count() or 1
    assert run_with(tree, f"torch.set_num_threads({cpus + 1})") == (1, cpus + 1, cpus + 1)
    assert run_with(tree, "", OMP_NUM_THREADS="2") == (1, 2, 2)

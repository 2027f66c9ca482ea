"""Tests of C++ units in this folder. They are built in the folder where ``make build`` has built the extension."""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from child_process import run_python

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "cmake"
NAMES = sorted(name for file in HERE.glob("*.cpp") for name in re.findall(r"^TEST\((\w+)\)", file.read_text(), re.M))

# torch is imported first, because the library needs its symbols. Each test prints a line when it ends.
RUN = """
    import ctypes, json, sys
    import torch
    run = ctypes.CDLL(sys.argv[1]).run_cxx_test
    run.restype = ctypes.c_char_p
    for name in sys.argv[2:]:
        failure = run(name.encode())
        print(json.dumps([name, failure and failure.decode()]), flush=True)
"""


@pytest.fixture(scope="session")
def library() -> Path:
    if not (BUILD / "build.ninja").exists():
        pytest.skip("the extension was not built here: make build")
    cmake = Path(sys.executable).with_name("cmake")
    command = [str(cmake) if cmake.exists() else "cmake", "--build", str(BUILD), "--target", "cxx_tests"]
    with (BUILD / "cxx_tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of pytest-xdist also build it
        built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return BUILD / "cxx_tests.so"


@pytest.fixture(scope="session")
def failures(library: Path) -> dict[str, str | None]:
    """Return the failure of each test, or None. If the process crashes, a new process runs the remaining tests."""
    ended: dict[str, str | None] = {}
    while left := [name for name in NAMES if name not in ended]:
        run = run_python(RUN, str(library), *left)
        ended |= map(json.loads, run.stdout.splitlines())
        if died_at := next((name for name in left if name not in ended), None):
            ended[died_at] = f"the process ended with {run.returncode}: {run.stderr}"
    return ended


def test_units(failures: dict[str, str | None]) -> None:
    """Check all units in one test, because two workers of pytest-xdist would wait for the same build."""
    assert [(name, failure) for name, failure in failures.items() if failure] == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(0)
def test_unit(name: str, failures: dict[str, str | None]) -> None:
    assert failures[name] is None, failures[name]

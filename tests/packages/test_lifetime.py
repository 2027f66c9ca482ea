"""Lifetime of the code of packages: it ends with that of the programs in the same file."""

from __future__ import annotations

import copy
import gc
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import output_of, run_python
from package_files import make_package
from torch.jit._recursive import wrap_cpp_module

import torchmdla
from torchmdla.testing.compare import assert_matches

pytestmark = pytest.mark.usefixtures("without_gradients")


def code() -> int:
    """Return the bytes of images and packages."""
    gc.collect()
    return torchmdla.stats().memory.code


def run(program: torch.jit.ScriptModule, expected: int) -> None:
    """Call a program, which uses ``expected`` specialisations of its package."""
    x = torch.randn(2, 8)
    before = torchmdla.stats().packaged
    for _ in range(2):
        result = program(x)
    assert torchmdla.stats().packaged - before == expected
    with torchmdla.enabled(False):
        assert_matches(result, program(x))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Return packages of different models."""
    return [make_package(tmp_path / f"{width}.pt", width) for width in (16, 20, 24, 28)]


@pytest.mark.parametrize(("load", "expected"), [(torchmdla.load, 0), (torch.jit.load, 1)])
@pytest.mark.sampled(0)
def test_the_code_of_a_package_goes_with_its_program(files: list[Path], load: Any, expected: int) -> None:
    before = code()
    for path in files:
        program = load(path)
        assert code() > before
        run(program, expected)  # torchmdla.load prepares the code
        del program
        assert code() == before


def test_loading_lets_other_threads_run(tmp_path: Path) -> None:
    """Requests go on in a thread that does not ask for Python's lock for long."""
    path = tmp_path / "large.pt"
    torch.jit.save(torch.jit.script(torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4)))), path)
    turns, ended = 0, threading.Event()

    def serve() -> None:
        nonlocal turns
        while not ended.is_set():
            turns += 1
            time.sleep(0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # the holder of the lock keeps it until it releases it
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        for _ in range(50):
            before = turns
            torchmdla._C.load_with_package(str(path), None)
            if turns - before > 10:
                return
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(interval)
    pytest.fail("it kept the lock")


@pytest.mark.sampled(0)
def test_code_loaded_twice_lives_until_the_last_unload(files: list[Path]) -> None:
    before = code()
    first, second = (torchmdla.load(files[0]) for _ in range(2))
    both = code()
    del first
    assert before < code() < both
    run(second, 0)
    del second
    assert code() == before


def test_a_copy_of_a_program_has_its_code(files: list[Path]) -> None:
    before = code()
    program = wrap_cpp_module(torchmdla._C.load_with_package(str(files[1]), None))
    copied = copy.deepcopy(program)
    del program
    assert code() > before
    run(copied, 1)
    del copied
    assert code() == before


def test_a_program_that_was_dropped_is_loaded_again(files: list[Path]) -> None:
    for _ in range(3):
        run(torch.jit.load(files[0]), 1)
        program = torchmdla.load(files[1])
        run(program, 0)
        del program
        code()


LOADER = """
import fcntl, os, sys, torch, torchmdla
locked = os.open(sys.argv[2], os.O_RDWR)
fcntl.lockf(locked, fcntl.LOCK_EX)
torch.jit.load(sys.argv[1])
child = os.fork()
if not child:  # A child does not inherit locks.
    try:
        fcntl.lockf(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os._exit(0)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_locks_of_the_process_are_kept(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "locked").touch()
    child = run_python(LOADER, str(files[0]), str(tmp_path / "locked"))
    assert child.stdout.strip() == "0", child.stderr


def test_a_file_that_is_replaced_is_kept_for_its_copy(tmp_path: Path) -> None:
    first, second = (make_package(tmp_path / f"{width}.pt", width) for width in (52, 56))
    copied = Path(shutil.copy(first, tmp_path / "copy.pt"))
    programs = [torch.jit.load(path) for path in (first, copied)]
    second.rename(first)
    run(torch.jit.load(first), 1)
    run(programs[1], 1)


@pytest.mark.sampled(0)
def test_exported_programs(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh()).eval()
    x = torch.randn(2, 8)
    torchmdla.save(torch.export.export(module, (x,)), tmp_path / "model.pt2", [x])
    before = code()
    for _ in range(3):
        program = torchmdla.load(tmp_path / "model.pt2")
        assert_matches(program(x), module(x))
        assert code() > before
        del program
        torch._dynamo.reset()
        assert code() == before


GROWTH = """
    import gc, os, sys
    import torch, torchmdla

    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    torch.set_num_threads(1)
    x, samples = torch.randn(2, 8), []
    for number in range(200):
        path = sys.argv[1 + number % (len(sys.argv) - 1)]
        with torch.no_grad():
            program = torchmdla.load(path)
            program(x)
        del program
        gc.collect()
        memory = torchmdla.stats().memory
        samples.append((memory.packed, memory.code, resident()))
    print(*samples[19], *samples[-1], torchmdla.stats().packaged)
"""


@pytest.mark.sampled(0)
def test_loading_and_dropping_does_not_grow(files: list[Path]) -> None:
    packed, code, resident, packed_at_end, code_at_end, resident_at_end, packaged = map(
        int, output_of(GROWTH, *map(str, files)).split()
    )
    assert (packed, code) == (packed_at_end, code_at_end) == (0, 0)
    assert packaged == 200
    # PyTorch keeps some kilobytes of each program that it has loaded.
    assert resident_at_end - resident < 16 << 20

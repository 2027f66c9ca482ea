"""Tests of forks while other threads run: the child lacks these threads, and still compiles and runs."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import nullcontext

import pytest
from forking import in_child

from torchmdla.support import forks
from torchmdla.support.garbage import pause_collection


class TestLocks:
    def test_a_fork_waits_for_the_holder_of_a_lock(self) -> None:
        lock, taken = forks.hold_over_fork(threading.RLock()), threading.Event()
        steps: list[str] = []

        def work() -> None:
            with lock:
                taken.set()
                for step in ("half", "whole"):
                    time.sleep(0.05)
                    steps.append(step)

        thread = threading.Thread(target=work)
        thread.start()
        taken.wait()
        assert in_child(lambda: steps == ["half", "whole"] and lock.acquire(blocking=False)) == 0
        thread.join()
        assert lock.acquire(blocking=False)

    @pytest.mark.sampled(0)
    def test_a_fork_does_not_deadlock_a_thread_that_takes_two_locks(self) -> None:
        locks = [forks.hold_over_fork(threading.RLock()) for _ in range(4)]
        stop = threading.Event()

        def work(order: list[threading.RLock]) -> None:
            while not stop.is_set():
                with order[0], order[1]:
                    pass

        threads = [threading.Thread(target=work, args=(pair,)) for pair in (locks[:2], locks[:1:-1])]
        for thread in threads:
            thread.start()
        for _ in range(20):
            assert in_child(lambda: all(lock.acquire(blocking=False) for lock in locks)) == 0
        stop.set()
        for thread in threads:
            thread.join()

    def test_the_holder_of_a_lock_may_fork(self) -> None:
        with forks.hold_over_fork(threading.RLock()):
            assert in_child(lambda: True) == 0


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_child_collects_garbage(is_paused: bool) -> None:
    with pause_collection() if is_paused else nullcontext():
        assert in_child(gc.isenabled) == 0
        assert gc.isenabled() == (not is_paused)
    assert gc.isenabled()


# The start of a child's program. A child that hangs prints its stack and exits. If a check fails, no thread of the
# parent keeps the process alive.
PROGRAM = """
    import faulthandler, os, signal, sys, threading, time, traceback, warnings
    os.environ["TORCHMDLA_CACHE_SIZE"] = "0"
    import torch, torchmdla
    from torchmdla.compile_service import service
    from torchmdla.testing.compare import assert_matches
    torch.set_num_threads(1)  # libgomp's pool does not survive a fork, with or without torchmdla

    def program(number):
        return torch.jit.trace(lambda x: torch.tanh(x * number) + 1, (torch.ones(4),), check_trace=False)

    def use(scripted, number, calls=3):
        for _ in range(calls):
            with torch.no_grad():
                result = scripted(torch.ones(4))
        assert_matches(result, torch.tanh(torch.ones(4) * number) + 1)

    def in_child(function):
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(120, exit=True)
            status = 1
            try:
                function()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def blocked(function, at, go):
        def call(*arguments):
            at.set()
            go.wait()
            return function(*arguments)
        return call

    at, go = threading.Event(), threading.Event()

    def keep_compiling():
        # Sizes, not programs: PyTorch optimises a new program under locks of its own, which do not survive a fork.
        torchmdla.enable(dynamic=False, max_specialisations=1 << 20)
        scripted = program(7.0)
        use(scripted, 7.0)

        def work():
            size = 4
            while not go.is_set():
                size += 1
                with torch.no_grad():
                    scripted(torch.ones(size))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread
"""

CASES = {
    "specialising": """
        scripted = program(3.0)
        use(scripted, 3.0, calls=1)
        service.compile_program = blocked(service.compile_program, at, go)
        thread = threading.Thread(target=use, args=(scripted, 3.0), daemon=True)
        thread.start()
        at.wait()

        def child():
            go.set()
            torchmdla.reset_stats()
            use(scripted, 3.0)
            assert torchmdla.stats().specialisations == 1, torchmdla.stats()
            assert not torchmdla.stats().fallbacks, torchmdla.stats()
    """,
    "compiling in the background": """
        torchmdla.enable(background=True)
        programs = [program(number) for number in (3.0, 4.0, 5.0, 6.0)]  # More than there are threads.
        service.compile_program = blocked(service.compile_program, at, go)
        for number, scripted in enumerate(programs, 3):
            use(scripted, float(number))
        at.wait()
        thread = threading.Thread(target=int, daemon=True)
        thread.start()

        def child():
            go.set()
            torchmdla.reset_stats()
            while torchmdla.stats().specialisations < len(programs):
                for number, scripted in enumerate(programs, 3):
                    use(scripted, float(number))
    """,
    "linking": """
        from torchmdla.devices.cpu.codegen import loader
        use(program(2.0), 2.0)
        link = loader._shared._load

        def slow(artifact):
            at.set()
            time.sleep(0.1)
            return link(artifact)

        loader._shared._load = slow
        thread = threading.Thread(target=lambda: use(program(3.0), 3.0), daemon=True)
        thread.start()
        at.wait()

        def child():
            torchmdla.reset_stats()
            use(program(4.0), 4.0)
            assert torchmdla.stats().specialisations == 1, torchmdla.stats()
    """,
    "everything": """
        shared = program(2.0)
        thread = keep_compiling()

        def child():
            use(shared, 2.0, calls=20)
            use(program(1.5), 1.5)

        for _ in range(8):
            assert in_child(child) == 0
    """,
    "computing a pending value": """
        device = torchmdla.acap_device()
        def pending(size):
            return torch.tanh(torch.ones(size, device=device) * 3.0) + 1
        for _ in range(3):
            pending(4).cpu()
        service.compile_program = blocked(service.compile_program, at, go)
        values = []
        def work():  # Its first runs at a size are PyTorch's.
            while not at.is_set():
                values.append(pending(5))
                values[-1].cpu()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        at.wait()

        def child():
            go.set()
            for result, size in ((values[-1], 5), (pending(6), 6)):
                assert_matches(result.cpu(), torch.tanh(torch.ones(size) * 3.0) + 1)
    """,
    "computing pending values all the time": """
        device = torchmdla.acap_device()
        torchmdla.enable(dynamic=False, max_specialisations=1 << 20)
        def pending(size):
            return torch.tanh(torch.ones(size, device=device) * 3.0) + 1
        for _ in range(3):
            pending(4).cpu()
        def work():
            size = 4
            while not go.is_set():
                size += 1
                pending(size).cpu()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()

        def child():
            for _ in range(3):
                assert_matches(pending(2).cpu(), torch.tanh(torch.ones(2) * 3.0) + 1)

        for _ in range(3):
            assert in_child(child) == 0
    """,
    "a data loader's workers": """
        from torch.utils.data import DataLoader
        scripted = program(3.0)
        use(scripted, 3.0)

        class Transformed:
            def __len__(self): return 8
            def __getitem__(self, index):
                with torch.no_grad():
                    for _ in range(2):
                        result = scripted(torch.full((index + 1,), 0.5))
                return result.sum()

        thread = keep_compiling()
        loader = DataLoader(Transformed(), num_workers=2, multiprocessing_context="fork", timeout=300)
        for index, value in enumerate(loader):
            wanted = (torch.tanh(torch.full((index + 1,), 0.5) * 3.0) + 1).sum()
            assert_matches(value[0], wanted)

        def child():
            pass
    """,
}

END = """
    assert in_child(child) == 0
    go.set()
    thread.join()
    print("fine")
"""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(1)
def test_a_child_of_a_process_that_is(case: str) -> None:
    code = "".join(textwrap.dedent(part) for part in (PROGRAM, CASES[case], END))
    command = [sys.executable, "-W", "ignore", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.stdout.strip() == "fine", result.stderr

"""Compiler processes and their service: errors, crashes, threads, forks, interrupts."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from child_process import run_script
from forking import in_child as exit_status_in_child
from nest_running import host_target
from written_programs import Builder, normal

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripted_device import scripted_artifact, scripted_program

from torchmdla.compile_service import failures, messages
from torchmdla.compile_service import service as service_module
from torchmdla.compile_service.cache import DiskCache
from torchmdla.compile_service.lower import lower
from torchmdla.compile_service.service import CompilerService
from torchmdla.compile_service.worker import Worker, WorkerPool
from torchmdla.compiler.program import Program, Target
from torchmdla.errors import CompileError
from torchmdla.support.limits import Limits, duration, size

MODULES = ["scripted_device"]


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(size=2, modules=MODULES, cpus=lambda: 4)
    yield pool
    pool.end()


@pytest.fixture
def single() -> Iterator[WorkerPool]:
    """Yield a pool of one process. If the pool lost the process, the test would hang."""
    pool = WorkerPool(size=1, modules=MODULES)
    yield pool
    pool.end()


@pytest.fixture
def service(pool: WorkerPool, tmp_path: Path) -> CompilerService:
    return CompilerService(pool=pool, cache=DiskCache(tmp_path / "cache"), in_process=False)


def code(pool: WorkerPool, text: str) -> bytes:
    return pool.compile(scripted_program(text)).object_code


def started(folder: Path) -> int:
    """Wait for a ``hang`` compile, and return the id of its process."""
    while not (folder / "pid").exists():
        time.sleep(0.005)
    return int((folder / "pid").read_text())


def in_thread(function: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run ``function`` in a thread. Its result or exception is appended to the returned list."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


class TestCompile:
    def test_artifact_is_the_one_of_the_program(self, pool: WorkerPool) -> None:
        program = scripted_program("echo hello")
        assert pool.compile(program) == scripted_artifact(program, b"hello")

    def test_one_process_serves_many_programs(self, tmp_path: Path) -> None:
        worker = Worker(MODULES)
        (tmp_path / "go").touch()
        for count in range(3):
            (tmp_path / "pid").unlink(missing_ok=True)
            worker.compile(scripted_program(f"echo {count}"))
            assert worker.usable
        worker.compile(scripted_program(f"hang {tmp_path}"))
        assert started(tmp_path) == worker.pid
        worker.end()
        assert not worker.usable

    @pytest.mark.parametrize("size", [65_536, 65_537, 3_000_000])
    def test_big_messages_pass_both_ways(self, pool: WorkerPool, size: int) -> None:
        answer = code(pool, f"big {size} {'x' * size}")
        assert len(answer) == size
        assert len(set(answer)) == 1

    def test_text_beyond_ascii(self, pool: WorkerPool) -> None:
        assert code(pool, "echo π → 😀") == "π → 😀".encode()

    def test_process_has_no_torch(self, pool: WorkerPool) -> None:
        assert code(pool, "modules") == b"[]"

    def test_process_has_no_classes_of_operations(self, single: WorkerPool) -> None:
        """Classes of operations take longer to import than the rest of the compiler, which reads operations by name."""
        builder = Builder()
        x = builder.input(normal(4, 5))
        results = [builder.op("aten.relu", [x], torch.relu(x.tensor)), builder.op("aten.t", [x], x.tensor.t())]
        assert single.compile(builder.program(results, host_target())).object_code
        assert code(single, "modules") == b"[]"

    def test_native_output_does_not_touch_the_messages(self, pool: WorkerPool) -> None:
        assert code(pool, "noise 200000") == b"quiet"
        assert code(pool, "echo after") == b"after"

    def test_compiler_cannot_read_the_requests(self, pool: WorkerPool) -> None:
        assert code(pool, "stdin") == b""

    def test_prestart_starts_one_process_that_is_then_used(self, single: WorkerPool) -> None:
        single.prestart()
        [worker] = single._idle
        single.prestart()
        assert single._idle == [worker]
        code(single, "echo x")
        assert single._idle == [worker]

    @pytest.mark.parametrize(("size", "cpus", "wanted"), [(2, 4, 2), (2, 1, 1), (1, 4, 1)])
    def test_prestart_starts_as_many_processes_as_compile_at_once(self, size: int, cpus: int, wanted: int) -> None:
        pool = WorkerPool(size=size, modules=MODULES, cpus=lambda: cpus)
        pool.prestart()
        pool.prestart(2)
        processes = list(pool._idle)
        pool.prestart(2)
        assert pool._idle == processes and len(processes) == wanted
        pool.end()


class TestErrors:
    def test_compile_error_arrives_whole(self, pool: WorkerPool) -> None:
        with pytest.raises(CompileError) as caught:
            code(pool, "fail “twice”")
        error = caught.value
        assert (error.reason, error.op, error.source) == ("no such luck", "aten::add.Tensor", "model.py:7")
        assert error.diagnostic == "word for word\n“twice”"
        assert code(pool, "echo after") == b"after"

    def test_other_exceptions_become_compile_errors_with_the_traceback(self, pool: WorkerPool) -> None:
        with pytest.raises(CompileError, match="KeyError: 'missing'") as caught:
            code(pool, "bug missing")
        assert "in _bug" in caught.value.diagnostic

    def test_unknown_device(self, pool: WorkerPool) -> None:
        with pytest.raises(CompileError, match="no device named 'absent'"):
            pool.compile(Program("", (), (), Target("absent")))

    def test_artifact_of_another_program_is_refused(self, pool: WorkerPool) -> None:
        with pytest.raises(CompileError, match="another program"):
            code(pool, "wrong")

    def test_process_that_cannot_start(self) -> None:
        pool = WorkerPool(size=1, modules=["no_such_module"])
        for _ in range(2):
            with pytest.raises(CompileError, match="did not start") as caught:
                code(pool, "echo x")
            assert "exit status 1" in caught.value.diagnostic
            assert "No module named 'no_such_module'" in caught.value.diagnostic

    def test_no_interpreter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "")
        with pytest.raises(CompileError, match="did not start"):
            code(WorkerPool(size=1), "echo x")

    def test_interpreter_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        with pytest.raises(CompileError, match="FileNotFoundError"):
            code(WorkerPool(size=1), "echo x")


class TestCrashes:
    def test_segmentation_fault_costs_that_compile_only(self, single: WorkerPool) -> None:
        with pytest.raises(CompileError, match="the compiler process died") as caught:
            code(single, "segfault")
        assert caught.value.diagnostic.startswith("SIGSEGV\n")
        assert "about to fail" in caught.value.diagnostic
        assert "in _segfault" in caught.value.diagnostic
        assert code(single, "echo after") == b"after"

    def test_killed_from_outside(self, single: WorkerPool, tmp_path: Path) -> None:
        thread, outcome = in_thread(lambda: code(single, f"hang {tmp_path}"))
        os.kill(started(tmp_path), signal.SIGKILL)
        thread.join()
        assert isinstance(outcome[0], CompileError)
        assert outcome[0].diagnostic.startswith("SIGKILL")
        assert code(single, "echo after") == b"after"

    def test_program_that_killed_a_process_is_not_sent_again(self, single: WorkerPool, tmp_path: Path) -> None:
        for _ in range(2):
            with pytest.raises(CompileError, match="died") as caught:
                code(single, f"crash {tmp_path / 'lines'}")
            assert caught.value.retry_after is None
        assert (tmp_path / "lines").read_text() == "compiled\n"

    @pytest.mark.parametrize("size", [0, 3_000_000])  # The first fits in a pipe, the second waits to be read.
    @pytest.mark.sampled(1)
    def test_idle_process_that_is_stopped_is_replaced(self, size: int) -> None:
        pool = WorkerPool(size=1, modules=MODULES, limits=Limits(seconds=2, memory=0))
        code(pool, "echo x")
        [worker] = pool._idle
        os.kill(worker.pid, signal.SIGSTOP)
        assert len(code(pool, f"big 1 {'x' * size}")) == 1
        assert pool._idle != [worker]
        with pytest.raises(ProcessLookupError):
            os.kill(worker.pid, 0)
        pool.end()

    def test_half_a_message(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        with pytest.raises(TimeoutError):
            messages.write_message(writer, {}, b"x" * 3_000_000, until=time.monotonic())
        with pytest.raises(TimeoutError):
            messages.read_message(reader, until=time.monotonic())
        os.close(reader)
        os.close(writer)

    def test_idle_process_that_died_is_replaced(self, single: WorkerPool) -> None:
        code(single, "echo x")
        [worker] = single._idle
        os.kill(worker.pid, signal.SIGKILL)
        assert code(single, "echo y") == b"y"

    def test_process_that_dies_before_it_takes_the_program_is_not_the_programs_fault(
        self, single: WorkerPool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        code(single, "echo x")
        [worker] = single._idle
        os.kill(worker.pid, signal.SIGKILL)
        worker._process.wait()
        # The process looked alive when it was selected.
        monkeypatch.setattr(type(worker), "usable", property(lambda self: self._between_messages))
        assert code(single, "echo y") == b"y"

    def test_ending_a_pool_ends_a_compile_under_way(self, single: WorkerPool, tmp_path: Path) -> None:
        thread, outcome = in_thread(lambda: code(single, f"hang {tmp_path}"))
        started(tmp_path)
        single.end()
        thread.join()
        assert isinstance(outcome[0], CompileError)
        assert "ended" in outcome[0].reason
        assert code(single, "echo after") == b"after"


class TestThreads:
    def test_eight_threads_share_two_processes(self, pool: WorkerPool) -> None:
        texts = [f"echo {number}" for number in range(40)]
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda text: code(pool, text), texts))
        assert answers == [str(number).encode() for number in range(40)]
        assert len(pool._idle) <= 2

    def test_two_processes_compile_at_the_same_time(self, pool: WorkerPool, tmp_path: Path) -> None:
        folders = [tmp_path / name for name in ("a", "b")]
        threads = []
        for folder in folders:
            folder.mkdir()
            threads.append(in_thread(lambda folder=folder: code(pool, f"hang {folder}")))
        assert started(folders[0]) != started(folders[1])
        for folder in folders:
            (folder / "go").touch()
        for thread, outcome in threads:
            thread.join()
            assert outcome == [b"went"]

    def test_a_thread_that_waits_for_its_compile_may_ask_for_another(self, tmp_path: Path) -> None:
        pool = WorkerPool(size=1, modules=MODULES, cpus=lambda: 1)
        answers = []

        def handle(*_: object) -> None:
            answers.append(code(pool, "echo in between"))
            (tmp_path / "go").touch()

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            main = threading.get_ident()
            interrupter = threading.Thread(
                target=lambda: (started(tmp_path), signal.pthread_kill(main, signal.SIGUSR1))
            )
            interrupter.start()
            assert code(pool, f"hang {tmp_path}") == b"went"
            interrupter.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
            pool.end()
        assert answers == [b"in between"]

    def test_crashes_in_some_threads_leave_the_others_alone(self, pool: WorkerPool) -> None:
        def attempt(number: int) -> object:
            try:
                return code(pool, f"{'segfault' if number % 4 == 0 else 'echo'} {number}")
            except CompileError as error:
                return error.reason

        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(attempt, range(16)))
        expected = [b"%d" % n if n % 4 else "the compiler process died" for n in range(16)]
        assert answers == expected


class TestInterrupts:
    def test_interrupted_compile_ends_its_process_and_is_not_held_against_the_program(
        self, single: WorkerPool, tmp_path: Path
    ) -> None:
        thread, _ = in_thread(lambda: (started(tmp_path), os.kill(os.getpid(), signal.SIGINT)))
        with pytest.raises(KeyboardInterrupt):
            code(single, f"hang {tmp_path}")
        thread.join()
        with pytest.raises(ProcessLookupError):
            os.kill(started(tmp_path), 0)
        (tmp_path / "go").touch()
        assert code(single, f"hang {tmp_path}") == b"went"

    def test_interrupted_while_waiting_for_a_process(self, single: WorkerPool, tmp_path: Path) -> None:
        thread, outcome = in_thread(lambda: code(single, f"hang {tmp_path}"))
        started(tmp_path)
        interrupter = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            code(single, "echo x")
        (tmp_path / "go").touch()
        thread.join()
        assert outcome == [b"went"]
        assert code(single, "echo x") == b"x"

    def test_process_ignores_the_interrupt_itself(self, single: WorkerPool, tmp_path: Path) -> None:
        thread, outcome = in_thread(lambda: code(single, f"hang {tmp_path}"))
        os.kill(started(tmp_path), signal.SIGINT)
        (tmp_path / "go").touch()
        thread.join()
        assert outcome == [b"went"]

    def test_another_thread_takes_over_an_interrupted_compile(self, service: CompilerService, tmp_path: Path) -> None:
        program = scripted_program(f"hang {tmp_path}")

        def wait_and_interrupt() -> object:
            started(tmp_path)
            waiter, outcome = in_thread(lambda: service.compile(program).artifact.object_code)
            (tmp_path / "pid").unlink()
            os.kill(os.getpid(), signal.SIGINT)
            started(tmp_path)
            (tmp_path / "go").touch()
            waiter.join()
            return outcome[0]

        thread, outcome = in_thread(wait_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            service.compile(program)
        thread.join()
        assert outcome == [b"went"]
        assert service.statistics()["compiled"] == 1


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class TestFork:
    def test_child_compiles_while_the_parent_does(self, single: WorkerPool, tmp_path: Path) -> None:
        thread, outcome = in_thread(lambda: code(single, f"hang {tmp_path}"))
        started(tmp_path)
        assert exit_status_in_child(lambda: code(single, "echo child") == b"child") == 0
        (tmp_path / "go").touch()
        thread.join()
        assert outcome == [b"went"]

    def test_child_leaves_the_parents_idle_process_alone(self, single: WorkerPool) -> None:
        code(single, "echo parent")
        [worker] = single._idle
        inherited = [pipe.fileno() for pipe in (worker._requests, worker._replies, worker._errors.pipe)]

        def in_child() -> bool:
            # An open end would keep the process alive after the parent.
            closed = not any(is_open(descriptor) for descriptor in inherited)
            fresh = single._idle == []
            single.end()
            return closed and fresh

        assert exit_status_in_child(in_child) == 0
        assert code(single, "echo still") == b"still"
        assert single._idle == [worker]

    def test_service_in_the_child_of_a_busy_process(self, service: CompilerService, tmp_path: Path) -> None:
        held = scripted_program(f"hang {tmp_path}")
        cached = scripted_program("echo kept")
        service.compile(cached)
        thread, outcome = in_thread(lambda: service.compile(held).source)
        started(tmp_path)

        def in_child() -> bool:
            from_memory = service.compile(cached).source == "memory"
            (tmp_path / "go").touch()
            # The thread that compiles this does not exist in the child, which must not wait for it.
            return from_memory and service.compile(held).artifact.object_code == b"went"

        assert exit_status_in_child(in_child) == 0
        thread.join()
        assert outcome == ["compiled"]


_PARENT = """
import os, signal, sys, threading
from pathlib import Path
sys.path[:0] = {path!r}
from scripted_device import scripted_program
from test_worker import started
from torchmdla.compile_service.worker import WorkerPool
pool = WorkerPool(size=1, modules=["scripted_device"])
{start}
{end}
"""


class TestExit:
    @pytest.mark.parametrize("is_killed", [False, True], ids=["normally", "killed"])
    @pytest.mark.parametrize("is_compiling", [False, True], ids=["idle", "compiling"])
    @pytest.mark.sampled(0)
    def test_process_ends_with_its_parent(self, tmp_path: Path, is_killed: bool, is_compiling: bool) -> None:
        start = f"pool.compile(scripted_program('hang {tmp_path}'))"
        if is_compiling:
            start = f"threading.Thread(target=lambda: {start}, daemon=True).start(); started(Path('{tmp_path}'))"
        else:
            (tmp_path / "go").touch()
        end = "os.kill(os.getpid(), signal.SIGKILL)" if is_killed else ""
        result = run_script("-c", _PARENT.format(path=sys.path, start=start, end=end))
        assert result.returncode == (-signal.SIGKILL if is_killed else 0), result.stderr
        with open(tmp_path / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # The lock is free once the process has ended.


class TestService:
    def test_sources_and_counts(self, service: CompilerService, pool: WorkerPool) -> None:
        program = scripted_program("echo x")
        assert service.compile(program).source == "compiled"
        assert service.compile(program).source == "memory"
        another = CompilerService(pool=pool, cache=service.cache)
        outcome = another.compile(program)
        assert (outcome.source, outcome.artifact.object_code) == ("disk", b"x")
        counts = service.statistics()
        assert counts.pop("seconds") > 0
        assert counts == {"compiled": 1, "disk_hits": 0, "store_hits": 0, "memory_hits": 1, "failures": 0}
        assert another.statistics()["disk_hits"] == 1

    def test_threads_that_want_the_same_program_compile_it_once(self, service: CompilerService, tmp_path: Path) -> None:
        program = scripted_program(f"count {tmp_path / 'lines'}")
        barrier = threading.Barrier(8)

        def attempt(_: int) -> str:
            barrier.wait()
            return service.compile(program).source

        with ThreadPoolExecutor(8) as threads:
            sources = list(threads.map(attempt, range(8)))
        assert sorted(sources) == ["compiled"] + ["memory"] * 7
        assert (tmp_path / "lines").read_text() == "compiled\n"

    def test_failure_is_raised_again_without_compiling(self, service: CompilerService, tmp_path: Path) -> None:
        def failure() -> CompileError:
            with pytest.raises(CompileError) as caught:
                service.compile(scripted_program("fail x"))
            return caught.value

        first, second, third = failure(), failure(), failure()
        # They are different objects, since each exception holds the variables of its stack frames.
        assert len({id(first), id(second), id(third)}) == 3
        assert (str(first), first.op) == (str(second), second.op) == (str(third), third.op)
        assert service.statistics()["failures"] == 1

    def test_compile_whose_process_was_killed_is_tried_again(self, service: CompilerService, tmp_path: Path) -> None:
        program = scripted_program(f"hang {tmp_path}")
        thread, outcome = in_thread(lambda: service.compile(program))
        os.kill(started(tmp_path), signal.SIGKILL)
        thread.join()
        assert isinstance(outcome[0], CompileError)
        assert outcome[0].retry_after == 0
        (tmp_path / "go").touch()
        assert service.compile(program).source == "compiled"

    def test_artifact_that_is_of_no_use(self, service: CompilerService, pool: WorkerPool) -> None:
        program = scripted_program("echo x")
        service.compile(program)
        service.forget(program.key)
        assert CompilerService(pool=pool, cache=service.cache).compile(program).source == "compiled"
        assert service.compile(program).source == "disk"

    def test_memory_is_bounded(self, pool: WorkerPool, tmp_path: Path) -> None:
        service = CompilerService(pool=pool, cache=DiskCache(tmp_path, limit=0), memory_bytes=250)
        programs = [scripted_program(f"big 100 {number}") for number in range(3)]
        for program in programs:
            service.compile(program)
        assert [service.compile(program).source for program in reversed(programs)] == ["memory", "memory", "compiled"]

    def test_in_process(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("TORCHMDLA_COMPILE_IN_PROCESS", "1")
        service = CompilerService(cache=DiskCache(tmp_path))
        (tmp_path / "go").touch()
        service.prestart()
        service.compile(scripted_program(f"hang {tmp_path}"))
        assert started(tmp_path) == os.getpid()
        with pytest.raises(CompileError, match="KeyError"):
            service.compile(scripted_program("bug x"))

    def test_default_service_reads_the_environment_at_first_use(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        service_module.reset()
        monkeypatch.setenv("TORCHMDLA_COMPILE_IN_PROCESS", "1")
        monkeypatch.setenv("TORCHMDLA_CACHE_DIR", str(tmp_path / "chosen"))
        program = scripted_program("echo default")
        try:
            assert service_module.compile_program(program).source == "compiled"
            assert service_module.default_service().statistics()["compiled"] == 1
        finally:
            service_module.reset()
        assert (tmp_path / "chosen" / f"{program.key}.artifact").exists()

    def test_prestart_does_not_raise(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(sys, "executable", "")
        service = CompilerService(cache=DiskCache(tmp_path), in_process=False)
        service.prestart()
        with pytest.raises(CompileError, match="did not start"):
            service.compile(scripted_program("echo x"))

    def test_prestart_with_malformed_limits(self, monkeypatch: pytest.MonkeyPatch, service: CompilerService) -> None:
        monkeypatch.setenv("TORCHMDLA_COMPILE_MEMORY", "4 elephants")
        with pytest.warns(RuntimeWarning, match="TORCHMDLA_COMPILE_MEMORY is not a size .*'4 elephants'"):
            service.prestart()
        assert service.compile(scripted_program("echo x")).source == "compiled"


class TestFailures:
    """Retries after failures, and their pauses, by a clock that the test sets."""

    @pytest.fixture
    def now(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [1000.0]
        monkeypatch.setattr(failures.time, "monotonic", lambda: now[0])
        return now

    @staticmethod
    def pauses(errors: Sequence[CompileError], seconds: float) -> list[float | None]:
        known = failures.Failures()
        for error in errors:
            known.add("key", error, seconds)
        return [error.retry_after for error in errors]

    def test_for_good(self, now: list[float]) -> None:
        known = failures.Failures()
        known.add("key", CompileError("cannot be"), 1.0)
        now[0] += 1e9
        with pytest.raises(CompileError, match="cannot be"):
            known.check("key")

    @pytest.mark.parametrize(
        ("seconds", "pauses"), [(0.01, [0, 0, 0, 1.0, 1.0]), (10.0, [0, 400.0, 600.0, 800.0]), (1000.0, [0, 3600.0])]
    )
    def test_passing(self, now: list[float], seconds: float, pauses: list[float]) -> None:
        errors = [CompileError("killed", retry_after=0.0) for _ in pauses]
        assert self.pauses(errors, seconds) == pauses
        assert errors[-1].retry_after

    def test_until_the_pause_is_over(self, now: list[float]) -> None:
        known = failures.Failures()
        for _ in range(2):
            known.check("key")
            known.add("key", CompileError("killed", retry_after=0.0), 1.0)
        now[0] += 39
        with pytest.raises(CompileError, match="killed") as caught:
            known.check("key")
        assert caught.value.retry_after == 1
        now[0] += 1
        known.check("key")


def test_lower_keeps_the_devices_own_error() -> None:
    with pytest.raises(CompileError) as caught:
        lower(scripted_program("fail x"))
    assert caught.value.op == "aten::add.Tensor"


class TestLimits:
    @pytest.fixture
    def limited(self) -> Iterator[WorkerPool]:
        pool = WorkerPool(size=1, modules=MODULES, limits=Limits(seconds=2, memory=1 << 30))
        yield pool
        pool.end()

    def test_time(self, limited: WorkerPool, tmp_path: Path) -> None:
        with pytest.raises(CompileError, match="more than 2 seconds"):
            code(limited, f"hang {tmp_path}")
        assert code(limited, "echo after") == b"after"

    @pytest.mark.parametrize(
        ("read", "text", "value"),
        [
            (size, "0", 0),
            (size, "4G", 4 << 30),
            (size, "512M", 512 << 20),
            (size, "1GiB", 1 << 30),
            (size, "much", None),
            (size, "-1", None),
            (size, "1e9", None),
            (duration, "0", 0),
            (duration, "600", 600),
            (duration, "0.5", 0.5),
            (duration, "90s", 90),
            (duration, "10m", 600),
            (duration, "1 H", 3600),
            (duration, "-1", None),
            (duration, "nan", None),
            (duration, "4G", None),
        ],
    )
    def test_text(
        self, monkeypatch: pytest.MonkeyPatch, read: Callable[[str], float], text: str, value: object
    ) -> None:
        name, field = {size: ("MEMORY", "memory"), duration: ("SECONDS", "seconds")}[read]
        default = getattr(Limits.from_environment(), field)
        monkeypatch.setenv(f"TORCHMDLA_COMPILE_{name}", text)
        with nullcontext() if value is not None else pytest.warns(RuntimeWarning, match=f"_{name} is not .*'{text}'"):
            assert getattr(Limits.from_environment(), field) == (default if value is None else value)

    def test_memory_beyond_any_machine(self) -> None:
        pool = WorkerPool(size=1, modules=MODULES, limits=Limits(seconds=0, memory=1 << 80))
        assert code(pool, "echo x") == b"x"
        pool.end()

    def test_memory(self, limited: WorkerPool) -> None:
        with pytest.raises(CompileError, match="MemoryError"):
            code(limited, f"eat {1 << 31}")
        assert code(limited, "echo after") == b"after"

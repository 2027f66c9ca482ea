"""The CPUs of compiler processes: their number, their choice, and the priority of the processes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from child_process import output_of
from scripted_device import scripted_program

from torchmdla.compile_service import worker
from torchmdla.compile_service.worker import WorkerPool

MODULES = ["scripted_device"]


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(modules=MODULES, cpus=lambda: 3)
    yield pool
    pool.end()


def check_processes(pool: WorkerPool, number: int, rank: int) -> None:
    """Compile a program that three processes share, and compare their priorities and CPUs."""
    items = json.loads(pool.compile(scripted_program(f"share 3 {number}")).object_code)
    processes, ranks, cpus = zip(*items, strict=True)
    assert len(set(processes)) == 3
    assert set(ranks) == {min(rank, 19)}
    assert cpus == (sorted(os.sched_getaffinity(0)),) * 3


def in_background(check: Callable[[], None]) -> None:
    """Run ``check`` in a thread for background compiles."""

    def task() -> None:
        worker.lower_priority()
        check()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(task).result()


def test_compiles_that_a_call_waits_for_have_its_priority(pool: WorkerPool) -> None:
    priority = os.nice(0)
    check_processes(pool, 0, priority)
    [process] = pool._idle
    assert os.listdir(f"/proc/{process.pid}/task") == [str(process.pid)]
    in_background(lambda: check_processes(pool, 1, priority + 10))
    assert pool._idle == [process]
    check_processes(pool, 2, priority)
    assert process in pool._idle and len(pool._idle) == 2
    in_background(lambda: check_processes(pool, 3, priority + 10))
    check_processes(pool, 4, priority)
    assert len(pool._idle) == 2


@pytest.mark.parametrize("cpus", [1, 2, 3, 5])
def test_compiles_at_once_take_no_more_cpus_than_there_are(cpus: int, tmp_path: Path) -> None:
    pool, log = WorkerPool(modules=MODULES, cpus=lambda: cpus), tmp_path / "log"
    programs = [scripted_program(f"note 6 {log} {number}") for number in range(8)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(pool.compile, programs))
    pool.end()
    running = most = 0
    for line in log.read_text().split():
        running += 1 if line == "+" else -1
        most = max(most, running)
    assert running == 0
    assert 1 <= most <= cpus


def test_one_compile_leaves_cpus_for_another() -> None:
    pool = WorkerPool(modules=MODULES, cpus=lambda: 8)
    items = json.loads(pool.compile(scripted_program("share 8")).object_code)
    pool.end()
    processes = [process for process, *_ in items]
    assert len(set(processes[:4])) == 4
    assert processes[4] == processes[0]


def test_a_compile_takes_the_cpus_that_another_one_leaves(tmp_path: Path) -> None:
    pool = WorkerPool(modules=MODULES, cpus=lambda: 2)
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(pool.compile, scripted_program(f"hang {tmp_path}"))
        while not (tmp_path / "pid").exists():
            time.sleep(0.005)
        beside = json.loads(pool.compile(scripted_program("share 2 beside")).object_code)
        (tmp_path / "go").touch()
        other.result()
    alone = json.loads(pool.compile(scripted_program("share 2 alone")).object_code)
    pool.end()
    assert [len({process for process, *_ in items}) for items in (beside, alone)] == [1, 2]


# Runs statements, compiles in four threads that run ``begin`` first, and prints the number of available CPUs, and the
# processes, priorities and CPUs of these compiles.
_COMPILES = """
    import json, os, sys
    from concurrent.futures import ThreadPoolExecutor
    import torch, torchmdla
    from scripted_device import scripted_program
    from torchmdla import _C
    from torchmdla.compile_service.worker import WorkerPool, lower_priority

    begin = None
    exec(sys.argv[1])
    pool = WorkerPool(modules=["scripted_device"])
    with ThreadPoolExecutor(4, initializer=begin) as threads:
        made = threads.map(pool.compile, [scripted_program(f"share 4 {number}") for number in range(4)])
        items = [json.loads(artifact.object_code) for artifact in made]
    pool.end()
    print(json.dumps([_C.available_cpus(), len(set(map(len, items))), sum(items, [])]))
"""


@pytest.mark.parametrize(
    ("statement", "variables"),
    [
        ("os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})", {}),
        ("torch.set_num_threads(1); begin = lower_priority", {}),
        ("begin = lower_priority", {"OMP_NUM_THREADS": "1"}),
    ],
)
@pytest.mark.sampled(1)
def test_compiles_in_the_background_use_the_cpus_of_the_program(statement: str, variables: dict[str, str]) -> None:
    _, kinds, items = json.loads(output_of(_COMPILES, statement, PYTHONPATH=os.pathsep.join(sys.path), **variables))
    processes, _, cpus = zip(*items, strict=True)
    assert kinds == 1 and len(processes) == 16
    assert len(set(processes)) == 1
    mask = os.sched_getaffinity(0)
    assert cpus == (([max(mask)] if "affinity" in statement else sorted(mask)),) * 16


def test_compiles_that_a_program_of_one_thread_waits_for_use_all_cpus() -> None:
    cpus, _, items = json.loads(output_of(_COMPILES, "torch.set_num_threads(1)", PYTHONPATH=os.pathsep.join(sys.path)))
    assert len({process for process, *_ in items}) >= min(cpus, 2)

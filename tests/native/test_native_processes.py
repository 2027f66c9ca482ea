"""Models in several threads and processes, and in processes without PyTorch."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from child_process import output_of
from native_models import Exported

from torchmdla.packages.native_file import info_of
from torchmdla.testing.models import MODELS

# The start of a child's program, which imports like a user without PyTorch.
WITHOUT_TORCH = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchmdla"):
            raise ModuleNotFoundError(f"{name} is refused")

sys.meta_path.insert(0, Refused())
import numpy as np
import torchmdla_runtime
"""


def test_eight_threads_at_once(any_batch: Exported) -> None:
    spec, model = MODELS["mlp"].reduced(), any_batch.load(3)
    calls = [spec.inputs(batch=batch, seed=batch) for batch in range(2, 10)]

    def check(number: int) -> None:
        for _ in range(20):
            any_batch.check(model, calls[number])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(check, range(8)))


def test_large_ranges_in_eight_threads(large: Exported) -> None:
    model, rows = large.load(4), large.inputs[0].numpy()
    (expected,) = model(rows)
    with ThreadPoolExecutor(8) as threads:
        for (result,) in threads.map(lambda _: model(rows), range(64)):
            assert np.array_equal(result, expected)
    large.check(model)


def test_numpy_is_enough(mlp: Exported, tmp_path: Path) -> None:
    rows = tmp_path / "rows.npy"
    np.save(rows, mlp.inputs[0].numpy())
    code = f"""{WITHOUT_TORCH}
(result,) = torchmdla_runtime.Model(sys.argv[1])(np.load(sys.argv[2]))
np.save(sys.argv[2], result)
assert not {{"torch", "torchmdla"}} & set(sys.modules)
"""
    output_of(code, str(mlp.path), str(rows))
    assert np.allclose(np.load(rows), mlp.expected()[0].numpy(), atol=1e-5)


def test_forks(large: Exported) -> None:
    code = f"""{WITHOUT_TORCH}
import os
model = torchmdla_runtime.Model(sys.argv[1], threads=3)
rows = np.random.default_rng(0).standard_normal((8, 2048)).astype(np.float32)
(expected,) = model(rows)
for _ in range(10):
    child = os.fork()
    if child == 0:
        same = np.array_equal(model(rows)[0], expected)
        same &= np.array_equal(torchmdla_runtime.Model(sys.argv[1], threads=2)(rows)[0], expected)
        os._exit(0 if same else 1)
    assert np.array_equal(model(rows)[0], expected)
    assert os.waitpid(child, 0)[1] == 0
"""
    output_of(code, str(large.path))


def test_forks_while_others_load_and_call(large: Exported) -> None:
    code = f"""{WITHOUT_TORCH}
import os, threading
rows = np.random.default_rng(0).standard_normal((8, 2048)).astype(np.float32)
model, done = torchmdla_runtime.Model(sys.argv[1], threads=2), threading.Event()
(expected,) = model(rows)

def load_and_call():
    while not done.is_set():
        torchmdla_runtime.Model(sys.argv[1], threads=2)(rows)

threads = [threading.Thread(target=load_and_call) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(torchmdla_runtime.Model(sys.argv[1])(rows)[0], expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
done.set()
for thread in threads:
    thread.join()
"""
    output_of(code, str(large.path))


# Prints the default numbers of threads on one CPU.
_DEFAULT_THREADS = f"""{WITHOUT_TORCH}
import os
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
model = torchmdla_runtime.Model(sys.argv[1])
print(model.threads)
model.threads = 5
model.threads = 0
print(model.threads)
"""


@pytest.mark.parametrize(("variable", "threads"), [("", 1), ("3", 3), ("4,2", 4), ("many", 1), ("-2", 1)])
def test_threads_follow_the_variable_or_the_cpus(mlp: Exported, variable: str, threads: int) -> None:
    assert output_of(_DEFAULT_THREADS, str(mlp.path), OMP_NUM_THREADS=variable).split() == [str(threads)] * 2


# Calls a model, prints "ready", and prints its share of the file's memory on request.
SHARING = f"""{WITHOUT_TORCH}
model = torchmdla_runtime.Model(sys.argv[1], threads=1)
model(np.zeros((8, 2048), np.float32))
print("ready", flush=True)
sys.stdin.readline()
shares, inside = {{"Rss": 0, "Pss": 0}}, False
for line in open("/proc/self/smaps"):
    words = line.split()
    if not words[0].endswith(":"):
        inside = line.rstrip().endswith(sys.argv[1])
    elif inside and words[0][:-1] in shares:
        shares[words[0][:-1]] += int(words[1]) * 1024
print(shares["Rss"], shares["Pss"], flush=True)
sys.stdin.readline()
"""


def test_processes_share_weights(large: Exported) -> None:
    info = info_of(large.path)
    assert info.weight_bytes > 16 << 20
    command = [sys.executable, "-c", SHARING, str(large.path)]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
        shares = [_answer(child) for child in children]
    finally:
        for child in children:
            child.communicate("\n")
    assert all(resident >= info.weight_bytes for resident, _ in shares)
    assert sum(share for _, share in shares) < 1.1 * info.weight_bytes


def _answer(child: subprocess.Popen[str]) -> tuple[int, int]:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    resident, share = map(int, child.stdout.readline().split())
    return resident, share


def test_nothing_is_writable_and_executable(mlp: Exported) -> None:
    code = f"""{WITHOUT_TORCH}
before = open("/proc/self/maps").read().splitlines()
model = torchmdla_runtime.Model(sys.argv[1])
maps = [line.split() for line in open("/proc/self/maps")]
assert not [line for line in maps if "w" in line[1] and "x" in line[1]]
# Code is a copy: of the file there are weights alone, for reading.
assert {{line[1] for line in maps if line[-1] == sys.argv[1]}} == {{"r--s"}}
assert sum("x" in line[1] and len(line) == 5 for line in maps) == 1
"""
    output_of(code, str(mlp.path))

"""Models in files that are replaced while they are served."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import run_python
from torch import nn

import torchmdla
from torchmdla import reloading
from torchmdla.reloading import ReloadingModel


class Version(nn.Module):
    """A model that adds its number, so that results identify the version that computed them."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x)) * 0.0 + self.number


def save(path: Path, number: float, *, package: bool = False) -> None:
    """Replace the version in the file by another."""
    beside = path.with_name("beside.pt")
    model = Version(number).eval()
    if package:
        torchmdla.save(model, beside, inputs=[torch.randn(4, 8)])
    else:
        torch.jit.trace(model, torch.randn(4, 8)).save(str(beside))
    os.replace(beside, path)


def number_of(result: torch.Tensor) -> float:
    assert (result == result.flatten()[0]).all()
    return float(result.detach().flatten()[0])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(tmp_path / "model.pt", 1.0)
    return tmp_path / "model.pt"


X = torch.randn(4, 8)


def until(holds: Any) -> None:
    while not holds():
        time.sleep(0.01)


@pytest.mark.parametrize("package", [False, True])
def test_a_reload_is_the_new_version(path: Path, package: bool) -> None:
    save(path, 1.0, package=package)
    model = ReloadingModel(path, inputs=[(X,)])
    assert number_of(model(X)) == 1.0
    save(path, 2.0, package=package)
    assert number_of(model(X)) == 1.0
    model.reload()
    assert number_of(model(X)) == 2.0
    assert model.statistics() == reloading.ReloadStatistics(str(path), 2, 0, "")


def test_a_version_is_warm_before_it_serves(path: Path) -> None:
    model = ReloadingModel(path, inputs=[(X,)])
    with torch.no_grad():
        model(X)
    before = torchmdla.stats()
    with torch.no_grad():
        model(X)
    after = torchmdla.stats()
    assert before.specialisations == after.specialisations == 1
    assert after.compiled_calls > before.compiled_calls


def test_a_failed_load_keeps_the_previous_version(path: Path) -> None:
    model = ReloadingModel(path)
    path.write_bytes(b"no archive")
    with pytest.raises(RuntimeError):
        model.reload()
    assert number_of(model(X)) == 1.0
    statistics = model.statistics()
    assert (statistics.version, statistics.failures) == (1, 1)
    assert statistics.problem.startswith("RuntimeError")


def test_a_failed_warm_up_keeps_the_previous_version(path: Path) -> None:
    model = ReloadingModel(path, inputs=[(X,)])
    torch.jit.trace(nn.Linear(3, 3), torch.randn(1, 3)).save(str(path))
    with pytest.raises(RuntimeError):
        model.reload()
    assert number_of(model(X)) == 1.0


def test_the_first_must_load(tmp_path: Path) -> None:
    with pytest.raises((OSError, RuntimeError, ValueError)):
        ReloadingModel(tmp_path / "missing.pt")


def test_a_watched_file(path: Path) -> None:
    model = ReloadingModel(path, watch=0.02)
    for number in (2.0, 3.0):
        save(path, number)
        until(lambda number=number: number_of(model(X)) == number)
    path.unlink()
    time.sleep(0.1)
    assert number_of(model(X)) == 3.0
    path.write_bytes(b"no archive")
    until(lambda: model.statistics().failures == 1)
    time.sleep(0.2)
    assert model.statistics().failures == 1  # The unchanged file is not loaded again.
    save(path, 4.0)
    until(lambda: number_of(model(X)) == 4.0)
    assert model.statistics().problem == ""
    model.close()


def test_the_watching_ends_with_the_model(path: Path) -> None:
    model = ReloadingModel(path, watch=0.02)
    thread = next(candidate for candidate in threading.enumerate() if candidate.name == "torchmdla-reload")
    del model
    thread.join(30)
    assert not thread.is_alive()


def test_calls_go_on_while_a_version_is_loaded(path: Path) -> None:
    calls: list[float] = []
    loading, load_on = threading.Event(), threading.Event()

    def slowly(name: str) -> Any:
        if calls:
            loading.set()
            load_on.wait()
        return torchmdla.load(name)

    model = ReloadingModel(path, load=slowly)
    calls.append(number_of(model(X)))
    save(path, 2.0)
    thread = threading.Thread(target=model.reload)
    thread.start()
    loading.wait()
    calls += [number_of(model(X)) for _ in range(20)]
    load_on.set()
    thread.join()
    assert calls == 21 * [1.0]
    assert number_of(model(X)) == 2.0


def test_many_threads_and_many_reloads(path: Path) -> None:
    """Each thread sees versions in order, and each result comes from one version."""
    model = ReloadingModel(path)
    done = threading.Event()
    seen: list[list[float]] = [[] for _ in range(4)]

    def call(results: list[float]) -> None:
        while not done.is_set():
            results.append(number_of(model(X)))

    threads = [threading.Thread(target=call, args=(results,)) for results in seen]
    for thread in threads:
        thread.start()
    for number in range(2, 12):
        save(path, float(number))
        model.reload()
    done.set()
    for thread in threads:
        thread.join()
    assert all(results == sorted(results) for results in seen)
    assert number_of(model(X)) == 11.0


def test_versions_that_are_gone_hold_no_memory() -> None:
    """After twenty versions, only the packed weights and groups of one remain."""
    done = run_python(
        """
        import os, tempfile, torch, torchmdla
        from torch import nn
        from torchmdla.reloading import ReloadingModel

        path, x = os.path.join(tempfile.mkdtemp(), "model.pt"), torch.randn(64, 64)
        model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)).eval()
        torch.jit.freeze(torch.jit.trace(model, x)).save(path)
        # PyTorch keeps what was traced in this process.
        traced = len(torchmdla._C.groups())
        model = ReloadingModel(path, inputs=[(x,)])
        one = torchmdla._C.memory_use()["packed"]
        assert one > 0
        for _ in range(20):
            model.reload()
        print(torchmdla._C.memory_use()["packed"] // one, len(torchmdla._C.groups()) - traced)
        """
    )
    assert done.stdout.split() == ["1", "1"], done.stderr

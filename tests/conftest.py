"""What every test starts from: its own cache folder, counters at zero, a fixed seed."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator

import pytest

_cache = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full-size", action="store_true", help="also run the tests marked full_size (minutes)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full_size: takes a model at its real size; only with --full-size")
    # Before any test imports torchmdla, and inherited by worker processes: nothing is read from a user's cache.
    config.stash[_cache] = tempfile.TemporaryDirectory(prefix="torchmdla-tests-")
    os.environ["TORCHMDLA_CACHE_DIR"] = config.stash[_cache].name


def pytest_unconfigure(config: pytest.Config) -> None:
    if _cache in config.stash:
        config.stash[_cache].cleanup()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full-size"):
        return
    for item in items:
        if item.get_closest_marker("full_size"):
            item.add_marker(pytest.mark.skip(reason="needs --full-size"))


@pytest.fixture(autouse=True)
def clean_state() -> Iterator[None]:
    """Switched on, nothing counted, PyTorch's generator seeded; threads and switch put back afterwards.

    Tests of what needs no PyTorch (compiler, cache, worker) run without it: this loads nothing.
    """
    if "torchmdla._C" not in sys.modules:
        yield
        return
    import torch

    import torchmdla

    threads = torch.get_num_threads()
    torch.manual_seed(0)
    torchmdla.enable()
    torchmdla.reset_stats()
    yield
    torchmdla.enable()
    torch.set_num_threads(threads)

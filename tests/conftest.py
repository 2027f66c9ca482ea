"""What every test starts from: its own cache folder, counters at zero, a fixed seed. At the end, what checks of values
have counted."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

COUNTS = "TORCHMDLA_VERIFY_COUNTS"

# Rows of a test that run where the whole suite does and no mark ``sampled(count)`` says another number.
ROWS_OF_A_TEST = 4

_cache = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rows",
        metavar="sampled|all|K/N",
        help=f"of tests with parameters: {ROWS_OF_A_TEST} rows, or as many as their mark sampled(count) says; all; or "
        "the K-th of N parts of the other rows alone (sampled where the whole suite runs, all where tests are named)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.rows is None:  # workers of pytest-xdist inherit it
        is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword
        config.option.rows = "sampled" if is_whole else "all"
    part = re.fullmatch(r"(\d+)/(\d+)", config.option.rows)
    if config.option.rows not in ("sampled", "all") and not (part and int(part[1]) < int(part[2])):
        raise pytest.UsageError(f"--rows {config.option.rows}: choose from sampled, all, or a part from 0/8 to 7/8")
    # Before any test imports torchmdla, and inherited by worker processes: nothing is read from a user's cache.
    if not hasattr(config, "workerinput"):
        config.stash[_cache] = tempfile.TemporaryDirectory(prefix="torchmdla-tests-")
        os.environ["TORCHMDLA_CACHE_DIR"] = config.stash[_cache].name
    os.environ.setdefault("TORCHMDLA_VERIFY", "1")
    # Inherited by processes that run tests or compile: all of them write to one file.
    os.environ.setdefault(COUNTS, str(Path(os.environ["TORCHMDLA_CACHE_DIR"]) / "verified"))
    # How long an example takes says nothing on machines that are shared.
    hypothesis.settings.register_profile("tests", deadline=None)
    hypothesis.settings.load_profile("tests")
    # Shells have what runs in the background ignore interrupts, and some tests send them.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _cache in config.stash:
        config.stash[_cache].cleanup()


def _verified() -> Counter[str]:
    """The lines that checks of values have left, and how often."""
    path = Path(os.environ[COUNTS])
    return Counter(path.read_text(encoding="utf-8").splitlines()) if path.exists() else Counter()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A group whose program a pass has changed falls back, and its test may pass: the session does not."""
    if not hasattr(session.config, "workerinput") and any(line.startswith("wrong ") for line in _verified()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    lines = _verified()
    if not lines:
        return
    kinds: Counter[str] = Counter()
    for line, count in lines.items():
        kinds[line.split()[0]] += count
    terminalreporter.section("values before and after passes")
    terminalreporter.line(
        f"{kinds['program']} programs: {kinds['checked']} passes that changed a program were checked, "
        f"{kinds['unchanged']} changed nothing, {kinds['skipped']} were skipped"
    )
    for line, count in sorted(lines.items()):
        if line.startswith(("skipped ", "wrong ")):
            terminalreporter.line(f"{count} {line}", red=line.startswith("wrong "))


@pytest.fixture(autouse=True)
def verify(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold each pass to what it computes in the tests of the cpu device; ``make test-all`` does so in all."""
    if request.path.parent.name == "cpu":
        monkeypatch.setenv("TORCHMDLA_VERIFY", "values")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the rows of ``--rows``. Tests marked ``full`` run only where a marker expression was given."""
    if config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="needs -m full"))
    if config.option.rows == "all":
        return
    others = rows_that_are_not_sampled(items)
    if config.option.rows == "sampled":
        left_out = others
    else:
        part, count = map(int, config.option.rows.split("/"))
        left_out = {item for item in items if item not in others or _hash(item) % count != part}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def pytest_collection_finish() -> None:
    """Take what collection has made from the garbage collector: two million objects are a second for each pass."""
    gc.collect()
    gc.freeze()


def rows_that_are_not_sampled(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the rows of tests beyond those that are sampled. Rows whose names hash lowest are sampled: a new row
    changes little."""
    rows: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("full"):
            mark = item.get_closest_marker("sampled")
            rows[item.nodeid.partition("[")[0], mark.args[0] if mark else ROWS_OF_A_TEST].append(item)
    return {item for (_, count), of_test in rows.items() for item in sorted(of_test, key=_hash)[count:]}


def _hash(item: pytest.Item) -> int:
    return zlib.crc32(item.nodeid.encode())


def pytest_collectstart(collector: pytest.Collector) -> None:
    """What a module draws when it is imported does not depend on the modules that are collected before it."""
    if isinstance(collector, pytest.Module) and "torch" in sys.modules:
        import torch

        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def clean_state() -> Iterator[None]:
    """Switched on, nothing counted, PyTorch's generator seeded; threads, switch and options put back afterwards.

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
    torchmdla.capture.refusals.forget()
    yield
    torchmdla.enable()
    torchmdla.devices.get("mdla").configure()  # command lines leave theirs
    torch.set_num_threads(threads)


@pytest.fixture
def without_gradients() -> Iterator[None]:
    """No gradients, and nothing left of what ``torch.compile`` knows."""
    import torch

    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def lazy_device() -> Iterator[None]:
    """PyTorch's lazy device as ``initialize`` leaves it."""
    from torchmdla import lazy

    lazy.initialize()
    yield
    lazy.set_backend(None)
    lazy.set_verbose(False)


@pytest.fixture(scope="session")
def dev() -> Any:
    """The acap device, a ``torch.device``."""
    import torchmdla

    return torchmdla.acap_device()


@pytest.fixture(scope="session")
def context() -> Any:
    """An ``ir.Context`` that has the torch and the aten dialects: to register them costs a few tenths of a second."""
    from torch_mlir import ir
    from torch_mlir.dialects import torch as torch_dialect

    from torchmdla import aten

    context = ir.Context()
    torch_dialect.register_dialect(context)
    aten.register(context)
    return context

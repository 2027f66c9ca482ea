"""Initial state of every test: a separate cache folder, counters at zero, a fixed seed.

At the end of a session, the counts of the value checks are reported.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

COUNTS = "TORCHMDLA_VERIFY_COUNTS"

# The number of rows of a test that run in the whole suite, unless a mark ``sampled(count)`` specifies another number.
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
    # This runs before any test imports torchmdla, and worker processes inherit it: nothing is read from a user's cache.
    if not hasattr(config, "workerinput"):
        config.stash[_cache] = tempfile.TemporaryDirectory(prefix="torchmdla-tests-")
        os.environ["TORCHMDLA_CACHE_DIR"] = config.stash[_cache].name
    os.environ.setdefault("TORCHMDLA_VERIFY", "1")
    # Results of tests must not depend on times. Tests of the comparison switch it on.
    os.environ.setdefault("TORCHMDLA_CHECK_SPEED", "0")
    # Processes that run tests or compile inherit the variable. All of them write to one file.
    os.environ.setdefault(COUNTS, str(Path(os.environ["TORCHMDLA_CACHE_DIR"]) / "verified"))
    # The time of an example is not meaningful on shared machines.
    hypothesis.settings.register_profile("tests", deadline=None)
    hypothesis.settings.load_profile("tests")
    # Shells make background processes ignore interrupts, and some tests send interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _cache in config.stash:
        config.stash[_cache].cleanup()


def _verified() -> Counter[str]:
    """Return the lines that value checks have written, and their counts."""
    path = Path(os.environ[COUNTS])
    return Counter(path.read_text(encoding="utf-8").splitlines()) if path.exists() else Counter()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session if a pass has changed a value.

    The group of such a program falls back, so its test may pass.
    """
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
    """Check the values of each pass in the tests of the cpu device. ``make test-all`` checks them in all tests."""
    if request.path.parent.name == "cpu":
        monkeypatch.setenv("TORCHMDLA_VERIFY", "values")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the rows of ``--rows``. Tests marked ``full`` run only if a marker expression is given."""
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
    """Exclude the objects of collection from garbage collection. Two million objects cost a second in each pass."""
    gc.collect()
    gc.freeze()


def rows_that_are_not_sampled(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the rows of tests that are not sampled.

    The rows whose names have the lowest hashes are sampled, so that a new row changes few others.
    """
    rows: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("full"):
            mark = item.get_closest_marker("sampled")
            rows[item.nodeid.partition("[")[0], mark.args[0] if mark else ROWS_OF_A_TEST].append(item)
    return {item for (_, count), of_test in rows.items() for item in sorted(of_test, key=_hash)[count:]}


def _hash(item: pytest.Item) -> int:
    return zlib.crc32(item.nodeid.encode())


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Seed PyTorch's generator, so that random values of a module do not depend on the modules collected before."""
    if isinstance(collector, pytest.Module) and "torch" in sys.modules:
        import torch

        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def clean_state() -> Iterator[None]:
    """Enable torchmdla, reset the counters and seed PyTorch's generator.

    Restore threads, switch and options afterwards.

    Tests of components that do not need PyTorch (compiler, cache, worker) run without it. This fixture does not import
    it.
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
    torchmdla.devices.get("mdla").configure()  # command lines leave their options
    torch.set_num_threads(threads)


@pytest.fixture
def without_gradients() -> Iterator[None]:
    """Disable gradients, and reset the state of ``torch.compile``."""
    import torch

    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def broken_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every compilation fail at the first op of the group, with an error like the compiler's."""
    from torchmdla.capture import specialise
    from torchmdla.compile_service import service
    from torchmdla.errors import CompileError

    def fail(program: object) -> None:
        raise CompileError("cannot be lowered", diagnostic='loc("aten::tanh"("graph":0:0)): no such thing')

    monkeypatch.setattr(service, "compile_program", fail)
    specialise._warned.clear()


@pytest.fixture
def queue() -> Iterator[list[Callable[[], None]]]:
    """Yield the list of background tasks. The test runs them."""
    from torchmdla import _C
    from torchmdla.capture import background

    tasks: list[Callable[[], None]] = []
    _C.set_submit(tasks.append)
    yield tasks
    _C.set_submit(background.submit)


@pytest.fixture
def lazy_device() -> Iterator[None]:
    """Yield with PyTorch's lazy device in the state after ``initialize``."""
    from torchmdla import lazy

    lazy.initialize()
    yield
    lazy.set_backend(None)
    lazy.set_verbose(False)


@pytest.fixture(scope="session")
def dev() -> Any:
    """Return the acap device, a ``torch.device``."""
    import torchmdla

    return torchmdla.acap_device()


@pytest.fixture(scope="session")
def context() -> Any:
    """Return an ``ir.Context`` with the torch and the aten dialects.

    Their registration takes a few tenths of a second.
    """
    from torch_mlir import ir
    from torch_mlir.dialects import torch as torch_dialect

    from torchmdla import aten

    context = ir.Context()
    torch_dialect.register_dialect(context)
    aten.register(context)
    return context

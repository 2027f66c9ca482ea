"""Faults: they cause a fallback and one warning, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import warnings
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from child_process import output_of, run_python
from graphs import warmed_up
from in_threads import in_threads

import torchmdla
from torchmdla import devices
from torchmdla.capture import script_subgraph, specialise
from torchmdla.compile_service import service
from torchmdla.compiler.artifact import Artifact
from torchmdla.testing.compare import assert_matches


def chain(x):
    return torch.sigmoid(torch.tanh(x) * 2 + 1)


# --- compilation fails -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("broken_compiler")
def test_a_failed_compile_falls_back_and_warns_once():
    x = torch.randn(4, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scripted = warmed_up(chain, x)
        assert_matches(scripted(x), chain(x))
        other = torch.randn(2, 2)
        assert_matches(scripted(other), chain(other))
    messages = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    assert len(messages) == 1
    assert "aten::tanh: cannot be lowered" in messages[0]
    assert Path(__file__).name in messages[0]
    (reason,) = torchmdla.stats().fallbacks
    assert "cannot be lowered" in reason
    assert torchmdla.stats().fallbacks[reason] == 2  # the call that divided the group was recorded


@pytest.mark.usefixtures("broken_compiler")
def test_strict_raises_each_time_and_recovers():
    torchmdla.enable(strict=True)
    x = torch.randn(4, 4)
    scripted = torch.jit.trace(chain, (x,), check_trace=False)
    scripted(x)
    for _ in range(3):
        with pytest.raises(torchmdla.CompileError, match="cannot be lowered") as caught:
            scripted(x)
        assert caught.value.op == "aten::tanh"
        assert Path(__file__).name in caught.value.source
        assert "no such thing" in caught.value.diagnostic
    torchmdla.enable(strict=False)
    assert_matches(scripted(x), chain(x))


@pytest.mark.usefixtures("broken_compiler")
def test_strict_raises_the_same_on_each_of_many_threads():
    torchmdla.enable(strict=True)
    x = torch.randn(4, 4)
    scripted = torch.jit.trace(chain, (x,), check_trace=False)
    scripted(x)
    raised: set[type] = set()

    def call(_: int) -> None:
        for _ in range(1000):
            try:
                scripted(x)
            except Exception as error:
                raised.add(type(error))

    assert not in_threads(8, call)
    assert raised == {torchmdla.CompileError}


def test_a_fault_of_ours_is_not_the_users(monkeypatch):
    monkeypatch.setattr(script_subgraph, "import_graph", lambda *_: 1 / 0)
    specialise._warned.clear()
    x = torch.randn(4, 4)
    with pytest.warns(RuntimeWarning, match="internal error: ZeroDivisionError"):
        scripted = warmed_up(chain, x)
    assert_matches(scripted(x), chain(x))


def test_an_interrupted_compile_is_tried_again_and_errors_keep_their_torchscript_traceback(monkeypatch):
    """The path by which interrupts and strict errors pass the interpreter must be closed afterwards."""
    x = torch.randn(4, 4)
    scripted = torch.jit.trace(chain, (x,), check_trace=False)
    scripted(x)

    with monkeypatch.context() as patch:
        patch.setattr(service, "compile_program", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            scripted(x)
    scripted(x)
    assert torchmdla.stats().specialisations == 1
    assert torchmdla.stats().fallbacks == {}
    scripted = torch.jit.trace(lambda x, y: x @ y, (torch.randn(4, 4), torch.randn(4, 4)), check_trace=False)
    with pytest.raises(RuntimeError, match="The following operation failed in the TorchScript interpreter"):
        scripted(torch.randn(4, 4), torch.randn(5, 5))


def test_a_dying_worker_costs_one_compile():
    code = """
        import os, signal, sys, torch, torchmdla, warnings
        from torchmdla.compile_service import worker
        from torchmdla.testing.compare import assert_matches
        warnings.simplefilter("ignore")
        start = worker.Worker.compile
        victims = []
        def killing(self, program, *others):
            if not victims:
                victims.append(program.key)
                os.kill(self._process.pid, signal.SIGKILL)
            return start(self, program, *others)
        worker.Worker.compile = killing
        def first(x): return torch.sigmoid(torch.tanh(x) * 2)
        def second(x): return torch.relu(torch.tanh(x) * 3)
        x = torch.randn(4, 4)
        for function in (first, second):
            scripted = torch.jit.trace(function, (x,), check_trace=False)
            for _ in range(4):
                assert_matches(scripted(x), function(x))
        stats = torchmdla.stats()
        assert victims, "no worker was killed"
        assert stats.specialisations >= 1, stats
    """
    output_of(code, TORCHMDLA_CACHE_SIZE="0")


@pytest.mark.sampled(0)
def test_a_compile_that_found_no_descriptors_is_tried_again():
    code = """
        import os, resource, torch, torchmdla, warnings
        from torchmdla.compile_service import service
        warnings.simplefilter("ignore")
        def program(number):
            return torch.jit.trace(lambda x: torch.tanh(x * number) + 1, (torch.ones(4),), check_trace=False)
        def use(scripted, calls=4):
            torchmdla.reset_stats()
            for _ in range(calls):
                scripted(torch.ones(4))
            return torchmdla.stats()
        use(program(2.0))  # What is needed is imported.
        service.default_service().pool.end()
        first, second = program(3.0), program(3.0)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = os.open(os.devnull, os.O_RDONLY)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        without = use(first, calls=2)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert without.fallbacks == {} and without.specialisations == 0, without
        assert use(first, calls=2).specialisations == 1, torchmdla.stats()
        assert use(second).specialisations == 1, torchmdla.stats()
    """
    output_of(code, TORCHMDLA_CACHE_SIZE="0")


@pytest.mark.sampled(0)
def test_leaving_while_compiles_are_queued(tmp_path):
    """The queued compilations never end, and the interpreter does not wait for them."""
    code = """
        import sys, torch, torchmdla
        sys.path.insert(0, sys.argv[1])
        from scripted_device import scripted_program
        from torchmdla.compile_service import service
        from torchmdla.compile_service.worker import WorkerPool
        pool = WorkerPool(size=1, modules=["scripted_device"])
        service._default = service.CompilerService(pool=pool)
        service.compile_program = lambda program: service.default_service().compile(scripted_program(
            f"hang {sys.argv[2]}"))
        torchmdla.enable(background=True, dynamic=False)
        x = torch.ones(4)
        scripted = torch.jit.trace(lambda x: torch.tanh(x * 2) + 1, (x,), check_trace=False)
        for size in range(4, 24):
            scripted(torch.ones(size))
        while not (__import__("pathlib").Path(sys.argv[2]) / "pid").exists():
            pass
        print(torchmdla.stats().specialisations)
    """
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code)]
    arguments = [str(Path(__file__).parents[1]), str(tmp_path)]
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=1200)
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, "0", "")


# --- caches and processes ----------------------------------------------------------------------------------

RUN_ONE = """
    import json, sys, torch, torchmdla
    from torchmdla.testing.compare import assert_matches
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    def chain(x): return torch.sigmoid(torch.tanh(x) * 2 + 1).sum(1)
    scripted = torch.jit.trace(chain, (x,), check_trace=False)
    for _ in range(4):
        assert_matches(scripted(x), chain(x))
    stats = torchmdla.stats()
    print(json.dumps([stats.specialisations, stats.compiled, stats.cache_hits, stats.fallbacks]))
"""


def test_a_damaged_artifact_is_compiled_anew(tmp_path):
    cache = tmp_path / "cache"
    run_python(RUN_ONE, TORCHMDLA_CACHE_DIR=str(cache))
    files = [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size > 1000]
    assert files
    for path in files:
        data = bytearray(path.read_bytes())
        data[-100] ^= 0xFF
        path.write_bytes(data)
    again = run_python(RUN_ONE, TORCHMDLA_CACHE_DIR=str(cache))
    assert again.stdout.strip() == "[1, 1, 0, {}]", again.stderr


@pytest.mark.sampled(0)
def test_an_artifact_that_cannot_be_linked_is_compiled_anew(tmp_path):
    cache = tmp_path / "cache"
    run_python(RUN_ONE, TORCHMDLA_CACHE_DIR=str(cache))
    (file,) = cache.glob("*.artifact")
    artifact = Artifact.from_bytes(file.read_bytes())
    file.write_bytes(replace(artifact, object_code=b"no object code").to_bytes())
    again = run_python(RUN_ONE, TORCHMDLA_CACHE_DIR=str(cache))
    assert again.stdout.strip() == "[1, 1, 1, {}]", again.stderr
    assert Artifact.from_bytes(file.read_bytes()).object_code == artifact.object_code


@pytest.mark.parametrize("kind", ["missing parent", "a file", "writable by all"])
@pytest.mark.sampled(1)
def test_an_unusable_cache_is_no_error(tmp_path, kind):
    path = tmp_path / "cache"
    if kind == "missing parent":
        path = Path("/proc/none/such")
    elif kind == "a file":
        path.write_text("not a folder")
    else:
        path.mkdir()
        path.chmod(0o777)
    result = run_python(RUN_ONE, TORCHMDLA_CACHE_DIR=str(path))
    assert result.stdout.strip() == "[1, 1, 0, {}]", result.stderr
    (told,) = [line for line in result.stderr.splitlines() if "Warning" in line]
    assert f"nothing is kept on disk, TORCHMDLA_CACHE_DIR={path}: " in told


@pytest.mark.sampled(0)
def test_two_processes_at_once_share_a_cache(tmp_path):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(RUN_ONE)]
    environment = {**os.environ, "TORCHMDLA_CACHE_DIR": str(tmp_path / "cache")}
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        output, _ = process.communicate()
        specialisations, compiled, hits, fallbacks = json.loads(output)
        assert (specialisations, compiled + hits, fallbacks) == (1, 1, {})


def test_a_forked_child_runs_and_compiles():
    code = """
        import os, torch, torchmdla
        from torchmdla.testing.compare import assert_matches
        torch.set_num_threads(1)  # libgomp's pool does not survive a fork, with or without torchmdla
        def chain(x): return torch.sigmoid(torch.tanh(x) * 2 + 1)
        scripted = torch.jit.trace(chain, (torch.randn(4, 4),), check_trace=False)
        for _ in range(4): scripted(torch.randn(4, 4))
        child = os.fork()
        for shape in [(4, 4), (3, 5)]:
            x = torch.randn(shape)
            for _ in range(2): assert_matches(scripted(x), chain(x))
        assert torchmdla.stats().specialisations == 2, torchmdla.stats()
        if child == 0:
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    output_of(code)


def test_importing_without_turning_on():
    code = """
        import torch, torchmdla
        def chain(x): return torch.sigmoid(torch.tanh(x) * 2 + 1)
        x = torch.randn(4, 4)
        scripted = torch.jit.trace(chain, (x,), check_trace=False)
        print(torchmdla.is_enabled(), "mdla" in str(torchmdla.graph_for(scripted, x)))
    """
    assert run_python(code, TORCHMDLA_ENABLE="0").stdout.split() == ["False", "False"]


BEFORE = """
    import warnings
    import torch, torchmdla
    from torchmdla.testing.coverage import groups

    def chain(x): return torch.sigmoid(torch.tanh(x) * 2 + 1)
    x = torch.randn(4, 4)
    function = torch.jit.trace(chain, (x,), check_trace=False)
    training = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Sigmoid()))
    frozen = torch.jit.freeze(torch.jit.script(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid()).eval()))
    programs = (function, training, frozen)
    with torch.no_grad():
        for program in programs:
            for _ in range(3): program(x)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            torchmdla.enable()
            torchmdla.enable()
        assert len(told) == 1 and "stay without groups: torchmdla.compile" in str(told[0].message), told
        assert told[0].filename == "<string>"
        for program in programs:
            program(x)
            assert not groups(program.graph_for(x))
"""


@pytest.mark.parametrize(
    "call",
    [
        "torchmdla.compile(program, x)",
        "torchmdla.graph_for(program, x)",
        "assert torchmdla.explain(program, x).summary.startswith('1 group, 100 % of ops')",
    ],
    ids=["compile", "graph_for", "explain"],
)
@pytest.mark.sampled(1)
def test_programs_that_ran_before_it_was_turned_on_are_optimised_anew(call: str) -> None:
    code = f"""{textwrap.dedent(BEFORE)}
    for program in programs:
        expected = program(x)
        {call}
        assert len(groups(program.graph_for(x))) == 1
        torch.testing.assert_close(program(x), expected)
    assert not torchmdla.stats().fallbacks
"""
    output_of(code, TORCHMDLA_ENABLE="0")


def test_groups_stay_where_a_program_is_compiled_again() -> None:
    """Only plans without groups are dropped: a second warm-up compiles nothing."""
    x = torch.randn(4, 4)
    program = torch.jit.trace(lambda x: torch.sigmoid(torch.tanh(x) * 2 + 1), (x,), check_trace=False)
    torchmdla.compile(program, x)
    before = torchmdla.stats()
    torchmdla.compile(program, x)
    torchmdla.graph_for(program, x)
    assert torchmdla.stats().groups == before.groups
    assert torchmdla.stats().specialisations == before.specialisations


def test_leaving_while_groups_are_alive():
    """Groups outlive the interpreter in PyTorch's caches. Their destruction must not touch Python then."""
    code = """
        import torch, torchmdla
        torch.chain = torch.jit.trace(lambda x: torch.sigmoid(torch.tanh(x) * 2), torch.randn(4, 4), check_trace=False)
        for _ in range(4): torch.chain(torch.randn(4, 4))
        assert torchmdla.stats().specialisations == 1
    """
    output_of(code)


# --- devices -----------------------------------------------------------------------------------------------


def test_a_device_of_ones_own():
    class Renamed(devices.get("cpu").__class__):
        name = "renamed"

        def target(self):
            return replace(super().target(), device="renamed")

    devices.register(Renamed())
    try:
        torchmdla.enable(device="renamed")
        assert "renamed" in devices.names()
        x = torch.randn(4, 4)
        scripted = warmed_up(chain, x)
        assert_matches(scripted(x), chain(x))
        assert torchmdla.stats().specialisations == 1
        assert torchmdla.stats().fallbacks == {}
    finally:
        torchmdla.enable(device="cpu")

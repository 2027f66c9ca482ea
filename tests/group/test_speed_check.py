"""Comparison of groups with PyTorch's operators: slow code is replaced, in this process and in later ones.

Kernels sleep, so that no result depends on the speed of a machine.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import output_of
from forking import in_child
from in_threads import in_threads
from torch import Tensor, nn
from torch.nn import functional

import torchmdla
from torchmdla import _C, devices, lazy
from torchmdla.capture import refusals
from torchmdla.capture.fx.group import FxSubgraph
from torchmdla.devices.cpu import CpuDevice
from torchmdla.report.explanation import Comparison
from torchmdla.report.groups import calls_by_group, groups_called_since
from torchmdla.testing.compare import assert_matches

# Seconds that a slow kernel sleeps, far more than any operator of these tests takes.
DELAY = 0.05

X = torch.randn(16, 24, generator=torch.Generator().manual_seed(0))

REASON = "PyTorch's operators took less time than the compiled code"


@pytest.fixture(autouse=True)
def checked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compare groups without a limit on the time, on one thread and without gradients.

    Each test has a machine of its own, so that it finds no results of others on disk.
    """
    identity = f"{_C.processor_identity()} {request.node.nodeid} {os.getpid()}"
    monkeypatch.setattr(CpuDevice, "host_identity", identity)
    torch._dynamo.reset()
    torch.set_num_threads(1)
    _C.set_check_speed(True, budget=math.inf)
    with torch.no_grad():
        yield
    _C.slow_down_kernels("", 0)


class Function(nn.Module):
    """A function as a module, for export."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def on_device(device: torch.device, function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *inputs: function(*(x.to(device) for x in inputs)).cpu()


def on_lazy(function: Callable[..., Any]) -> Callable[..., Any]:
    lazy.initialize()
    return on_device(torch.device("lazy"), function)


FRONTENDS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "trace": lambda function: torch.jit.trace(function, (X,), check_trace=False),
    "compile": lambda function: torchmdla.compile(function, X),
    "dynamo": lambda function: torch.compile(function, backend="torchmdla"),
    "export": lambda function: torchmdla.compile(Function(function), X, frontend="export"),
    "acap": lambda function: on_device(torchmdla.acap_device(), function),
    "lazy": on_lazy,
}


def call_until_checked(function: Callable[..., Any], *inputs: Any) -> Any:
    refusals.call_until_compiled(lambda: function(*inputs), least=torchmdla.api.WARM_UP_CALLS)
    return function(*inputs)


def comparisons() -> list[Comparison]:
    """Return the comparisons that replaced code, of all groups."""
    return [entry for group in torchmdla.stats().slower for entry in group.slower]


def fused(x: Tensor) -> Tensor:
    return torch.tanh(x * 2) + 1


def before_and_after(x: Tensor) -> Tensor:
    """Return a result of a fast kernel, a slow one and a fast one."""
    return torch.sigmoid(torch.cumsum(torch.exp(x * 0.1), 0)) * 3


class TestOutcomes:
    @pytest.mark.parametrize("frontend", FRONTENDS)
    def test_operators_replace_a_slow_group(self, frontend: str) -> None:
        _C.slow_down_kernels("tanh", DELAY)
        function = FRONTENDS[frontend](fused)
        assert_matches(call_until_checked(function, X), fused(X))
        (comparison,) = comparisons()
        assert (comparison.choice, comparison.threads) == ("eager", 1)
        assert comparison.compiled_seconds >= DELAY > comparison.eager_seconds > 0
        statistics = torchmdla.stats()
        assert (statistics.replaced, statistics.speed_checks) == (1, 1)
        assert statistics.speed_check_seconds >= 6 * DELAY
        torchmdla.reset_stats()
        assert_matches(function(X), fused(X))
        statistics = torchmdla.stats()
        assert (statistics.compiled_calls, statistics.speed_checks) == (0, 0)
        assert statistics.fallbacks == {REASON: 1}

    @pytest.mark.parametrize("frontend", ["dynamo", "export"])
    def test_a_group_is_divided_at_its_slow_kernel(self, frontend: str, monkeypatch: pytest.MonkeyPatch) -> None:
        # Each operator takes longer than the fast kernels, and less time than the slow kernel.
        monkeypatch.setattr(
            FxSubgraph, "time_nodes", lambda self, *inputs: [DELAY / 10 for _ in self.module.graph.nodes]
        )
        _C.slow_down_kernels("cumsum", DELAY)
        function = FRONTENDS[frontend](before_and_after)
        assert_matches(call_until_checked(function, X), before_and_after(X))
        first, *_ = comparisons()
        assert first.choice == "divided"
        assert "aten::cumsum" in first.left_out and "aten::exp" not in first.left_out
        torchmdla.reset_stats()
        assert_matches(function(X), before_and_after(X))
        statistics = torchmdla.stats()
        assert statistics.specialisations == statistics.speed_checks == 0
        names = [group.name for group in statistics.by_group]
        assert any("exp" in name and "cumsum" not in name for name in names), names

    def test_scripts_are_divided_without_python(self) -> None:
        def chain(x: Tensor) -> Tensor:
            for _ in range(40):
                x = torch.exp(x * 0.5) - 0.75
            return torch.cumsum(x, 0)

        x = torch.randn(1000, 500)  # Forty operators that each read and write memory take longer than one kernel.
        _C.slow_down_kernels("cumsum", 1.0)
        function = torch.jit.trace(chain, (x,), check_trace=False)
        assert_matches(call_until_checked(function, x), chain(x), layers=40)
        assert comparisons()[0].choice == "divided"
        assert set(comparisons()[0].left_out) == {"aten::cumsum"}

    def test_a_fast_group_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = FxSubgraph.run
        monkeypatch.setattr(FxSubgraph, "run", lambda self, *inputs: (time.sleep(10 * DELAY), run(self, *inputs))[1])
        _C.slow_down_kernels("tanh", DELAY)
        function = torch.compile(fused, backend="torchmdla")
        before = calls_by_group()
        call_until_checked(function, X)
        (report,) = groups_called_since(before)
        (entry,) = report["specialisations"][0]["speed"]
        assert entry["choice"] == "compiled"
        assert entry["eager_seconds"] >= 10 * DELAY > entry["compiled_seconds"] >= DELAY
        torchmdla.reset_stats()
        function(X)
        statistics = torchmdla.stats()
        assert (statistics.compiled_calls, statistics.replaced, statistics.fallbacks) == (1, 0, {})

    def test_short_calls_are_not_compared(self) -> None:
        call_until_checked(torch.compile(lambda x: torch.tanh(x) + 2, backend="torchmdla"), torch.randn(2))
        # On a machine where this call takes longer than 50 µs, there is a comparison.
        assert torchmdla.stats().speed_checks in (0, 1)

    def test_parts_of_a_program_are_compared_apart(self) -> None:
        def program(x: Tensor) -> Tensor:
            y = torch.tanh(x * 2) + 1
            return torch.relu(y[torch.nonzero(y[:, 0]).flatten()] * 3) - 1

        _C.slow_down_kernels("tanh", DELAY)
        assert_matches(call_until_checked(torch.jit.script(program), X), program(X))
        assert torchmdla.stats().replaced == 1

    def test_code_of_a_package(self, tmp_path: Path) -> None:
        torchmdla.enable(check_speed=False)
        torchmdla.save(torch.jit.trace(fused, (X,)), tmp_path / "program.pt", inputs=[(X,)])
        _C.set_check_speed(True, budget=math.inf)
        _C.slow_down_kernels("tanh", DELAY)
        torchmdla.reset_stats()
        program = torchmdla.load(tmp_path / "program.pt")
        for _ in range(3):
            assert_matches(program(X), fused(X))
        assert torchmdla.stats().packaged == torchmdla.stats().replaced == 1
        assert comparisons()[0].choice == "eager"
        _C.set_packages(False)


class TestGradients:
    def test_training(self) -> None:
        def step(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
            x = x.clone().requires_grad_()
            functional.mse_loss(model(x), torch.ones_like(x)).backward()
            assert x.grad is not None
            return x.grad

        _C.slow_down_kernels("tanh", DELAY)
        function = torch.compile(fused, backend="torchmdla")
        with torch.enable_grad():
            call_until_checked(lambda x: step(function, x), X)
            assert_matches(step(function, X), step(fused, X))
        assert torchmdla.stats().replaced >= 1

    def test_gradients_without_backward(self) -> None:
        _C.slow_down_kernels("tanh", DELAY)
        function = torch.jit.trace(fused, (X,), check_trace=False)
        call_until_checked(function, X)
        x, y = (X.clone().requires_grad_() for _ in range(2))
        with torch.enable_grad():
            for _ in range(4):
                result = function(x)
            result.sum().backward()
            fused(y).sum().backward()
        assert_matches(x.grad, y.grad)
        assert torchmdla.stats().replaced == 1


class TestKeys:
    def test_each_number_of_threads_has_a_result(self) -> None:
        _C.slow_down_kernels("tanh", DELAY)
        function = torch.jit.trace(fused, (X,), check_trace=False)
        for threads in (1, 2, 1, 2):
            torch.set_num_threads(threads)
            call_until_checked(function, X)
        assert [entry.threads for entry in comparisons()] == [1, 2]
        assert torchmdla.stats().speed_checks == 2

    def test_sizes_of_one_magnitude_share_a_result(self) -> None:
        _C.slow_down_kernels("tanh", DELAY)
        function = torch.jit.trace(lambda x: torch.tanh(x * 3) + 1, (X,), check_trace=False)
        for rows in (5, 6, 7):
            call_until_checked(function, X[:rows])
        assert torchmdla.stats().dynamic == 1
        before = torchmdla.stats().speed_checks
        for rows, checks in ((4, 0), (8, 1), (15, 1), (16, 2)):
            assert_matches(call_until_checked(function, X[:rows]), torch.tanh(X[:rows] * 3) + 1)
            assert torchmdla.stats().speed_checks == before + checks


# Programs whose effects a comparison, which runs their groups several times, must not repeat.
EFFECTS: dict[str, Callable[[Tensor], Any]] = {
    "writes an argument": lambda x: torch.tanh(x.mul_(1.5) * 2) + 1,
    "writes after the group": lambda x: x.add_((torch.tanh(x * 2) + 1).sum()),
    "writes an intermediate result": lambda x: (torch.tanh(x) * 2).add_(1).mul_(x).view(-1).neg_(),
    "writes a view": lambda x: ((torch.tanh(x * 2) + 1).view(-1).mul_(3), x + 1),
    "draws": lambda x: functional.dropout(torch.tanh(x * 2) + 1, 0.5, True),
    "draws first": lambda x: torch.tanh(x * torch.rand_like(x)) + 1,
}


class TestEffects:
    @pytest.mark.parametrize("frontend", ["trace", "dynamo"])
    @pytest.mark.parametrize("name", EFFECTS)
    def test_inputs_and_random_numbers(self, name: str, frontend: str) -> None:
        program = EFFECTS[name]
        _C.slow_down_kernels("tanh", DELAY)
        function = FRONTENDS[frontend](program)

        def run(function: Callable[[Tensor], Any]) -> tuple[Any, Tensor, Tensor]:
            torch.manual_seed(3)
            x = X.clone()
            return function(x), x, torch.get_rng_state()

        for _ in range(torchmdla.api.WARM_UP_CALLS + 3):
            assert_matches(run(function), run(program))
        assert torchmdla.stats().replaced >= 1


class TestSwitch:
    def test_off(self) -> None:
        torchmdla.enable(check_speed=False)
        _C.slow_down_kernels("tanh", DELAY / 10)
        call_until_checked(torch.jit.trace(fused, (X,), check_trace=False), X)
        statistics = torchmdla.stats()
        assert (statistics.speed_checks, statistics.replaced, statistics.fallbacks) == (0, 0, {})
        assert statistics.compiled_calls > 0

    def test_code_runs_again_after_it_is_switched_off(self) -> None:
        _C.slow_down_kernels("tanh", DELAY)
        function = torch.jit.trace(fused, (X,), check_trace=False)
        call_until_checked(function, X)
        for on, compiled in ((False, 1), (True, 0)):
            torchmdla.reset_stats()
            _C.set_check_speed(on)
            assert_matches(function(X), fused(X))
            assert torchmdla.stats().compiled_calls == compiled

    @pytest.mark.parametrize(("value", "is_on"), [("0", False), ("1", True), ("", True)])
    def test_variable(self, value: str, is_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TORCHMDLA_CHECK_SPEED", value)
        torchmdla.enable()
        assert _C.is_check_speed_on() is is_on
        torchmdla.enable(check_speed=not is_on)
        assert _C.is_check_speed_on() is not is_on

    def test_the_budget_is_a_limit(self) -> None:
        _C.set_check_speed(True, budget=-math.inf)
        _C.slow_down_kernels("tanh", DELAY / 10)
        function = torch.jit.trace(fused, (X,), check_trace=False)
        call_until_checked(function, X)
        assert torchmdla.stats().speed_checks == torchmdla.stats().speed_check_seconds == 0
        _C.set_check_speed(True, budget=math.inf)
        function(X)
        assert torchmdla.stats().replaced == 1

    def test_rounds_wait_for_the_budget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torchmdla.enable(check_speed=False)
        function = torch.compile(fused, backend="torchmdla")
        call_until_checked(function, X)
        run, runs = FxSubgraph.run, []

        def run_and_spend(subgraph: FxSubgraph, *inputs: Any) -> Any:
            runs.append(inputs)
            _C.set_check_speed(True, budget=-math.inf)
            return run(subgraph, *inputs)

        monkeypatch.setattr(FxSubgraph, "run", run_and_spend)
        _C.slow_down_kernels("tanh", DELAY / 2)
        rounds = 6
        for _ in range(rounds):
            assert torchmdla.stats().replaced == 0
            _C.set_check_speed(True, budget=math.inf)
            function(X)
        assert torchmdla.stats().replaced == torchmdla.stats().speed_checks == 1
        assert len(runs) == rounds + 1  # PyTorch's operators ran the last call, too

    def test_a_profiler_is_not_part_of_the_times(self) -> None:
        _C.slow_down_kernels("tanh", DELAY / 10)
        function = torch.jit.trace(fused, (X,), check_trace=False)
        with torch.autograd.profiler.profile():
            call_until_checked(function, X)
        assert torchmdla.stats().speed_checks == 0
        function(X)
        assert torchmdla.stats().speed_checks == 1

    def test_a_device_apart_does_not_compete(self) -> None:
        class Apart(CpuDevice):
            name = "apart"
            competes_with_eager = False  # type: ignore[assignment]

        devices.register(Apart())
        torchmdla.enable(device="apart", check_speed=True)
        _C.slow_down_kernels("tanh", DELAY / 10)
        call_until_checked(torch.jit.trace(fused, (X,), check_trace=False), X)
        statistics = torchmdla.stats()
        assert (statistics.speed_checks, statistics.fallbacks) == (0, {})


class TestConcurrency:
    def test_one_thread_compares(self) -> None:
        torchmdla.enable(check_speed=False)
        function = torch.jit.trace(fused, (X,), check_trace=False)
        call_until_checked(function, X)
        _C.set_check_speed(True, budget=math.inf)
        _C.slow_down_kernels("tanh", DELAY)

        def work(number: int) -> None:
            torch.set_num_threads(1)
            with torch.no_grad():
                for _ in range(3):
                    assert_matches(function(X + number), fused(X + number))

        assert in_threads(4, work) == []
        assert torchmdla.stats().speed_checks == torchmdla.stats().replaced == 1

    def test_a_fork_compares_itself(self) -> None:
        torchmdla.enable(check_speed=False)
        function = torch.jit.trace(fused, (X,), check_trace=False)
        call_until_checked(function, X)
        _C.set_check_speed(True, budget=math.inf)
        _C.slow_down_kernels("tanh", DELAY)

        def is_replaced() -> bool:
            assert_matches(function(X), fused(X))
            return torchmdla.stats().replaced == 1

        assert in_child(is_replaced) == 0
        assert torchmdla.stats().replaced == 0


# Prints the number of comparisons that this process measured, and the results.
PROCESS = """
    import json, math
    import torch, torchmdla
    from torchmdla import _C

    torch.set_num_threads(1)
    torchmdla.enable()
    _C.slow_down_kernels("tanh", 0.05)
    x = torch.ones(16, 24)
    with torch.no_grad():
        function = torchmdla.compile(lambda x: torch.tanh(x * 2) + 1, x)
        function(x)
    stats = torchmdla.stats()
    (group,) = stats.slower
    (entry,) = group.slower
    print(json.dumps([stats.speed_checks, stats.replaced, entry.choice, entry.compiled_seconds, entry.eager_seconds]))
"""


class TestLaterProcesses:
    @pytest.fixture
    def run(self, tmp_path: Path) -> Callable[[], list[Any]]:
        return lambda: json.loads(output_of(PROCESS, TORCHMDLA_CACHE_DIR=str(tmp_path), TORCHMDLA_CHECK_SPEED="1"))

    def test_they_do_not_measure(self, run: Callable[[], list[Any]]) -> None:
        checks, *first = run()
        assert (checks, first[:2]) == (1, [1, "eager"])
        assert run() == [0, *first]

    @pytest.mark.parametrize("damage", ["content", "mode", "nodes"])
    def test_a_file_that_is_not_trusted(self, damage: str, run: Callable[[], list[Any]], tmp_path: Path) -> None:
        run()
        (path,) = tmp_path.glob("*.speed")
        data = path.read_bytes()
        if damage == "content":
            path.write_bytes(data[:-20] + b"x" * 20)
        elif damage == "mode":
            path.chmod(0o666)
        else:
            path.write_bytes(_with_unknown_nodes(data))
        checks, *_ = run()
        assert checks == 1


def _with_unknown_nodes(data: bytes) -> bytes:
    from torchmdla.compile_service import records

    raw = records._COMPARISON_FORMAT.open(data, lambda raw, _: raw)
    return records._COMPARISON_FORMAT.seal({**raw, "choice": "divided", "left_out": [10_000]}, b"")


class TestReports:
    def test_both_times_are_shown(self) -> None:
        _C.slow_down_kernels("tanh", DELAY)
        report = torchmdla.explain(torch.jit.trace(fused, (X,), check_trace=False), X)
        (comparison,) = report.groups[0].specialisations[0].comparisons
        assert comparison.choice == "eager" and comparison.compiled_seconds >= DELAY > comparison.eager_seconds
        assert REASON in [reason.reason for reason in report.reasons]
        for text in (str(report), str(torchmdla.stats())):
            assert "PyTorch's operators" in text and f"{comparison.compiled_seconds * 1e3:.3g} ms" in text

    def test_a_log_line(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "torchmdla.fallback")
        _C.slow_down_kernels("tanh", DELAY)
        call_until_checked(torch.jit.trace(lambda x: torch.tanh(x) * 5 - 2, (X,), check_trace=False), X)
        (line,) = [record.message for record in caplog.records if "the operators replace it" in record.message]
        assert "ms compiled" in line

    def test_tuning_measures_slow_code(self) -> None:
        from torchmdla import tuning

        _C.slow_down_kernels("tanh", DELAY)
        function = torch.jit.trace(fused, (X,), check_trace=False)
        call_until_checked(function, X)
        assert tuning._timed_programs(lambda: function(X))
        assert _C.is_check_speed_on()

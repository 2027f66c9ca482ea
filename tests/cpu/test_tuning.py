"""Tuner: all candidates compute the same, the fastest is recorded and used, and invalid records are ignored."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from nest_running import host_target
from nest_samples import check, contractions, matmul, others
from torch import Tensor, nn

import torchmdla
from torchmdla import devices, tuning
from torchmdla.__main__ import main
from torchmdla.capture import specialise
from torchmdla.compile_service import records as kept
from torchmdla.compile_service import service
from torchmdla.compile_service.records import Records
from torchmdla.compiler.program import Program
from torchmdla.compiler.records import MACHINE as MACHINE_OPTION
from torchmdla.compiler.records import OPTION, Constant, Record, TunedKernel
from torchmdla.devices.cpu import lowering
from torchmdla.devices.cpu import tuning as cpu_tuning
from torchmdla.devices.cpu.ir.kernel_spec import KernelSpec
from torchmdla.devices.cpu.ir.loop_program import Contraction
from torchmdla.devices.cpu.lowering import loop_program
from torchmdla.devices.cpu.schedule import Schedule, Symbols, choose_schedule, plan
from torchmdla.devices.cpu.schedule.plan import Decisions, Plan, plan_schedules
from torchmdla.devices.cpu.schedule.validity import find_faults
from torchmdla.devices.cpu.target.machine import Machine
from torchmdla.devices.cpu.tuning import algorithms, measuring, search
from torchmdla.devices.cpu.tuning.measuring import Bench, Unmeasurable
from torchmdla.devices.cpu.tuning.search import STAGES, Search
from torchmdla.devices.cpu.tuning.whole import RunningProgram, measure_in_turn
from torchmdla.errors import CompileError
from torchmdla.testing.compare import assert_matches
from torchmdla.tuning import process

MACHINE = Machine.of(host_target())
PROGRAM = Program("", (), (), host_target())
PRODUCT = matmul(48, 64, 40)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a separate cache for each test, and one thread. The tuner also measures with one thread."""
    monkeypatch.setenv("TORCHMDLA_CACHE_DIR", str(tmp_path / "cache"))
    service.reset()
    torch.set_num_threads(1)
    yield
    service.reset()


# Candidates.


@settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.data())
@pytest.mark.sampled(0)
def test_candidates_compute_the_same(data: st.DataObject) -> None:
    """Check the first valid candidate of each stage."""
    nest = data.draw(contractions() | others())
    assume(math.prod(nest.sizes) <= 5_000)
    best = choose_schedule(nest, MACHINE)
    for stage in STAGES:
        candidates = [c for c in itertools.islice(stage(nest, MACHINE, best), 3) if c != best]
        valid = [c for c in candidates if not list(find_faults(nest, c, MACHINE))]
        for schedule in valid[:1]:
            check(nest, host_target(), (3.0,) * len(nest.all_scalars), 2, schedule)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_each_stage_changes_something(stage: Callable[..., Iterator[Schedule]]) -> None:
    best = choose_schedule(PRODUCT, MACHINE)
    changed = {
        f.name for c in stage(PRODUCT, MACHINE, best) for f in dataclasses.fields(c) if f.name in _differing(c, best)
    }
    wanted = {"vectors": "lanes", "tiles": "tiles", "orders": "levels", "unrolling": "unroll", "prefetch": ""}
    field = wanted[stage.__name__.removeprefix("_change_")]
    assert not field or field in changed


def _differing(first: Schedule, other: Schedule) -> set[str]:
    return {f.name for f in dataclasses.fields(first) if getattr(first, f.name) != getattr(other, f.name)}


# Searching.


def run_search(nest: KernelSpec, chosen: Schedule, seconds: float = 60) -> search.SearchResult:
    return Search(nest, chosen, PROGRAM, Bench(nest, (1,)), time.monotonic() + seconds).run()


def scalar_schedule(nest: KernelSpec) -> Schedule:
    """Return a schedule that a cost model would not choose: one scalar at a time."""
    tiles = (1,) * len(nest.sizes)
    chosen = choose_schedule(nest, MACHINE)
    levels = tuple(dataclasses.replace(level, step=1) for level in chosen.levels)
    plain = {"vector": -1, "lanes": 1, "ranged": 0, "iterations": 1, "grain": 0, "prefetch": None}
    return dataclasses.replace(chosen, levels=levels, tiles=tiles, unroll=tiles, **plain)


def test_a_bad_choice_is_improved() -> None:
    outcome = run_search(PRODUCT, scalar_schedule(PRODUCT))
    assert outcome.best != outcome.chosen and outcome.best_seconds < outcome.chosen_seconds
    assert outcome.best.lanes > 1 and outcome.finished


def test_no_time_is_no_search() -> None:
    chosen = choose_schedule(PRODUCT, MACHINE)
    outcome = run_search(PRODUCT, chosen, seconds=0)
    assert outcome.best == chosen and not outcome.finished


def test_noise_is_no_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a candidate must also win a second measurement."""
    monkeypatch.setattr(search, "NOISE", 0.0)
    outcome = run_search(PRODUCT, scalar_schedule(PRODUCT))
    assert outcome.best == outcome.chosen


def test_wrong_candidates_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "are_different", lambda results, expected: True)
    assert run_search(PRODUCT, scalar_schedule(PRODUCT)).best == scalar_schedule(PRODUCT)


def test_lookups_are_not_measured() -> None:
    with pytest.raises(Unmeasurable):
        Bench(dataclasses.replace(PRODUCT, checks=PRODUCT.values), ())


@pytest.mark.parametrize(("factor", "differs"), [(1.0, False), (1 + 1e-6, False), (1.01, True)])
def test_results_are_compared(factor: float, differs: bool) -> None:
    results = [np.linspace(1, 2, 9, dtype=np.float32)]
    assert measuring.are_different([results[0] * np.float32(factor)], results) is differs


# Records in a program.


def product(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y).relu()


X, Y = torch.randn(48, 40), torch.randn(40, 64)


def program_of(function: Callable[..., Tensor] = product, *inputs: Tensor) -> Program:
    """Return the compiled program of a group, with the records of this machine."""
    compiled = torchmdla.compile(torch.jit.trace(function, inputs or (X, Y), check_trace=False), *(inputs or (X, Y)))
    owners = [s["executable"].owner for r in torchmdla._C.groups() for s in r["specialisations"] if s["executable"]]
    assert compiled is not None and isinstance(owners[-1], specialise.Compiled)
    return Program.from_bytes(owners[-1].program)


def plan_of(program: Program) -> Plan:
    with lowering.new_context(), lowering.ir.Location.unknown():
        steps, _ = loop_program(program, {})
        return plan_schedules(steps, Machine.of(program.target), Symbols(0, ()), Decisions.of(program))


def decided(program: Program) -> dict[str, Any]:
    kernels: dict[str, Any] = json.loads(plan_of(program).to_json([]))["kernels"]
    return kernels


def record(kernel: str, decisions: Any) -> Record:
    return Record(kernel, "", decisions if isinstance(decisions, str) else json.dumps(decisions), 2.0, 1.0, 5, True)


def other_unroll(kernel: dict[str, Any]) -> dict[str, Any]:
    unroll = [3 if times > 1 else 1 for times in kernel["unroll"]]
    assert unroll != kernel["unroll"]
    return {"unroll": unroll}


def test_records_are_used_and_change_the_key() -> None:
    plain = program_of()
    assert OPTION not in dict(plain.options)
    (name, kernel), *_ = decided(plain).items()
    assert Records(devices.get("cpu")).add([record(name, other_unroll(kernel))])
    tuned = program_of()
    assert tuned.key != plain.key and tuned.mlir == plain.mlir
    assert decided(tuned)[name]["unroll"] == other_unroll(kernel)["unroll"]
    artifact = devices.get("cpu").lower(tuned)
    assert artifact.manifest.statistics["measured_kernels"] == 1
    torchmdla.enable(tuned=False)
    assert program_of().key == plain.key


def test_results_with_records_are_eagers() -> None:
    name, kernel = next(iter(decided(program_of()).items()))
    Records(devices.get("cpu")).add([record(name, other_unroll(kernel))])
    compiled = torchmdla.compile(product, X, Y)
    assert_matches(compiled(X, Y), product(X, Y))


def test_that_the_cost_model_was_right_changes_no_key() -> None:
    plain = program_of()
    Records(devices.get("cpu")).add([record(next(iter(decided(plain))), "")])
    assert program_of().key == plain.key


@pytest.mark.parametrize(
    "decisions",
    [
        {"lanes": 3},
        {"tiles": [0]},
        {"tiles": "many"},
        {"levels": [[9, 1]]},
        {"levels": 7},
        {"unroll": [1, 1, 100000]},
        {"prefetch": {"operand": "x"}},
        {"prefetch": [1]},
        {"vector": None},
    ],
    ids=str,
)
@pytest.mark.sampled(1)
def test_invalid_schedules_are_ignored(decisions: Any, caplog: pytest.LogCaptureFixture) -> None:
    plain = program_of()
    name = next(iter(decided(plain)))
    Records(devices.get("cpu")).add([record(name, decisions)])
    tuned = program_of()
    assert decided(tuned) == decided(plain)
    assert name in plan_of(tuned).ignored
    assert "records do not fit" in caplog.text


@pytest.mark.parametrize("text", ["{", "[1]", '"x"', '{"k": 3}'])
@pytest.mark.sampled(1)
def test_an_option_that_holds_no_records(text: str) -> None:
    plain = program_of()
    assert decided(dataclasses.replace(plain, options=((OPTION, text),))) == decided(plain)


# Records on disk.


def file_of_records() -> Path:
    (path,) = service.default_service().cache.path.glob("*.records")
    return path


@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: data[:-1], lambda data: data[:-9] + b"x" + data[-8:], lambda data: b"{}"],
    ids=["empty", "cut", "altered", "other"],
)
def test_a_damaged_block_counts_for_nothing(damage: Callable[[bytes], bytes]) -> None:
    records = Records(devices.get("cpu"))
    records.add([record("0" * 16, {"lanes": 8})])
    assert records.load()
    file_of_records().write_bytes(damage(file_of_records().read_bytes()))
    assert records.load() == {} and kept.options_for(devices.get("cpu")) == ()
    assert records.add([record("1" * 16, {})]) and len(records.load()) == 1


@pytest.mark.parametrize(
    "change", [{"decisions": "{"}, {"decisions": "[]"}, {"best_seconds": "fast"}, {"kernel": None}]
)
def test_of_several_records_the_readable_ones_count(change: dict[str, Any]) -> None:
    raw = record("0" * 16, {"lanes": 8}).to_raw()
    damaged = {name: value for name, value in {**raw, **change}.items() if value is not None}
    assert [entry.kernel for entry in kept._parse_records([damaged, raw, {}])] == ["0" * 16]


def test_others_may_not_write_records() -> None:
    records = Records(devices.get("cpu"))
    records.add([record("0" * 16, {})])
    file_of_records().chmod(0o666)
    assert records.load() == {}


def test_records_are_of_a_machine_and_stay_when_artifacts_go(capsys: pytest.CaptureFixture[str]) -> None:
    cpu = devices.get("cpu")
    Records(cpu).add([record("0" * 16, {})])
    cpu.configure(processor="x86-64-v2")
    assert Records(cpu).load() == {}
    cpu.configure()
    assert main(["cache", "clear"]) == 0 and len(Records(cpu).load()) == 1
    assert main(["cache", "clear", "--records"]) == 0 and Records(cpu).load() == {}


# Constants of the machine.


def constants(**values: float) -> list[Constant]:
    return [Constant(name, value, getattr(MACHINE, name), "") for name, value in values.items()]


def test_constants_are_kept_beside_records() -> None:
    cpu = devices.get("cpu")
    records = Records(cpu)
    assert not records.is_calibrated
    records.add([record("0" * 16, {"lanes": 8})])
    assert records.calibrate(constants(memory_bytes=3.0)) and records.is_calibrated
    records.add([record("1" * 16, {})])
    options = dict(kept.options_for(cpu))
    assert json.loads(options[MACHINE_OPTION]) == {"memory_bytes": 3.0} and len(json.loads(options[OPTION])) == 2
    cpu.configure(tuned=False)
    assert kept.options_for(cpu) == ()
    cpu.configure()


def test_calibration_equal_to_the_default_changes_no_program() -> None:
    before = program_of().key
    Records(devices.get("cpu")).calibrate(constants(splits=MACHINE.splits, ways=MACHINE.ways))
    assert program_of().key == before
    Records(devices.get("cpu")).calibrate(constants(splits=not MACHINE.splits))
    assert program_of().key != before


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ('{"splits": true, "memory_bytes": 6}', {"splits": True, "memory_bytes": 6.0}),
        ('{"second_level": 2097152, "ways": 8}', {"second_level": 2 << 20, "ways": 8}),
        ('{"memory_bytes": 0, "ways": "8", "registers": 4}', {}),
        ("[1]", {}),
        ("{", {}),
    ],
)
def test_the_machine_is_as_measured(text: str, fields: dict[str, Any]) -> None:
    assert Machine.of(host_target(), ((MACHINE_OPTION, text),)) == dataclasses.replace(MACHINE, **fields)


def test_constants_are_measured() -> None:
    measurements = {name: measure() for name, measure in devices.get("cpu").calibration().items()}
    assert measurements.keys() >= {"splits", "memory_bytes"} and all(
        name == measurement.name for name, measurement in measurements.items()
    )
    measured = {name: measurement.value for name, measurement in measurements.items()}
    machine = Machine.of(host_target(), ((MACHINE_OPTION, json.dumps(measured)),))
    assert measured == {name: getattr(machine, name) for name in measured}


# A program.


def tuned_kernels(monkeypatch: pytest.MonkeyPatch) -> list[TunedKernel]:
    """Return the tuner's reports for a program with one kernel, for which costs choose badly."""
    program = program_of()
    monkeypatch.setattr(plan, "choose_schedule", lambda nest, *rest: scalar_schedule(nest))
    return list(cpu_tuning.tune(program, [1.0], 20, {}, (), lambda kernel, tried, gain: None))


@pytest.mark.sampled(0)
def test_winners_are_measured_in_the_whole_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(programs: Sequence[RunningProgram], rounds: int) -> list[list[float]]:
        """Return times without noise, after both programs have run."""
        assert all(seconds > 0 for times in measure_in_turn(programs, 1) for seconds in times)
        return [[2.0], [1.0]]

    monkeypatch.setattr(cpu_tuning, "measure_in_turn", timed)
    alone, among_others = tuned_kernels(monkeypatch)
    assert alone.record and among_others.record and not alone.record.gain_among_others
    assert among_others.record.gain_among_others == 2 and among_others.record.decisions == alone.record.decisions


@pytest.mark.sampled(0)
def test_winners_in_isolation_only_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_tuning, "measure_in_turn", lambda programs, rounds: [[1.0], [1.0]])
    alone, among_others = tuned_kernels(monkeypatch)
    assert alone.record and alone.record.decisions
    assert among_others.record == alone.record.without_decisions and not among_others.saved


# Algorithms.


class Convolution(nn.Module):
    """Module of a convolution that is large enough for costs to choose Winograd's algorithm."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(32, 32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu()


IMAGE = torch.randn(1, 32, 30, 30)


def contractions_of(program: Program) -> dict[str, Contraction]:
    with lowering.new_context(), lowering.ir.Location.unknown():
        return loop_program(program, {})[0].contractions


def taken(program: Program) -> str:
    """Return the algorithm of the only contraction of a program."""
    (contraction,) = contractions_of(program).values()
    return contraction.algorithm


@pytest.mark.parametrize("algorithm", ["direct", "winograd2"])
@pytest.mark.sampled(1)
def test_a_measured_algorithm_is_taken(algorithm: str) -> None:
    module = Convolution().eval()
    plain = program_of(module, IMAGE)
    assert taken(plain) == "winograd4"
    Records(devices.get("cpu")).add([record(*contractions_of(plain), {"algorithm": algorithm})])
    tuned = program_of(module, IMAGE)
    assert tuned.key != plain.key and taken(tuned) == algorithm
    with torch.no_grad():
        assert_matches(torchmdla.compile(module, IMAGE)(IMAGE), module(IMAGE))
    torchmdla.enable(algorithms="direct")
    assert taken(program_of(module, IMAGE)) == "direct"


@pytest.mark.parametrize("algorithm", ["fewest", 4, None], ids=str)
@pytest.mark.sampled(1)
def test_invalid_algorithms_are_ignored(algorithm: Any) -> None:
    plain = program_of(Convolution().eval(), IMAGE)
    option = OPTION, json.dumps({next(iter(contractions_of(plain))): {"algorithm": algorithm}})
    assert taken(dataclasses.replace(plain, options=(option,))) == "winograd4"


@pytest.mark.parametrize(
    ("algorithm", "differs"),
    [
        ("direct", True),
        ("winograd2", True),
        pytest.param("winograd4", False, id="the cost model's"),
        pytest.param("winograd6", False, id="one with larger errors"),
    ],
)
@pytest.mark.sampled(0)
def test_an_algorithm_is_timed_where_it_is_another(algorithm: Any, differs: bool) -> None:
    program = program_of(Convolution().eval(), IMAGE)
    trials = dict(algorithms._compare_algorithm(algorithm, program, RunningProgram(program), contractions_of(program)))
    assert len(trials) == differs
    assert all(
        trial.algorithm == algorithm and min(trial.seconds, trial.chosen_seconds) > 0 for trial in trials.values()
    )


@pytest.mark.parametrize(
    ("alone", "together", "seconds", "decisions"),
    [(0.5, 0.5, 99, ['{"algorithm": "direct"}']), (0.5, 100.0, 99, [""]), (0.98, 0.5, 99, [""]), (0.5, 0.5, 0, [])],
)
@pytest.mark.sampled(0)
def test_an_algorithm_must_win_twice(
    monkeypatch: pytest.MonkeyPatch, alone: float, together: float, seconds: float, decisions: list[str]
) -> None:
    program = program_of(Convolution().eval(), IMAGE)
    with lowering.new_context(), lowering.ir.Location.unknown():
        steps, _ = loop_program(program, {})

    def by(algorithm: str, *rest: Any) -> Iterator[tuple[str, algorithms._Trial]]:
        return ((name, algorithms._Trial("direct", 1.0, alone)) for name in steps.contractions if algorithm == "direct")

    def timed(programs: Sequence[RunningProgram], rounds: int) -> list[list[float]]:
        return [[each] * len(item.kernels) for item, each in zip(programs, (10.0, together), strict=True)]

    monkeypatch.setattr(algorithms, "_compare_algorithm", by)
    monkeypatch.setattr(algorithms, "measure_in_turn", timed)

    def tune_with_records(known: Mapping[str, Record]) -> list[TunedKernel]:
        until = time.monotonic() + seconds
        return list(algorithms.tune_algorithms(program, steps, 0.1, until, known, (), lambda kernel, tried, gain: None))

    first = tune_with_records({})
    records = [item.record for item in first if item.record]
    assert [item.decisions for item in records] == decisions
    monkeypatch.setattr(algorithms, "_measure_algorithms", None)  # A finished search is not measured again.
    assert not records or tune_with_records({item.kernel: item for item in records}) == first


# The tuner's process.


def test_a_kernel_that_ends_the_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the next process skips the kernel, and that earlier results are reported once."""
    first, second = (TunedKernel(name, "", 1, 1.0, record(name, "")) for name in "ab")

    def run(
        program: Program, places: object, seconds: float, known: Any, skip: Any, progress: Any
    ) -> Iterator[TunedKernel]:
        yield first
        if "b" not in skip:
            raise process._ProcessDied("b", "SIGSEGV")
        yield dataclasses.replace(second, record=None, reason="measuring it has ended the process")

    monkeypatch.setattr(process, "_run", run)
    kernels = list(process.measure_kernels(PROGRAM, [], 9, {}, lambda *step: None))
    assert [(kernel.kernel, kernel.record is None) for kernel in kernels] == [("a", False), ("b", True)]


def test_candidates_that_crash_the_whole_program_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: Any) -> Iterator[TunedKernel]:
        yield TunedKernel("a", "", 1, 1.0, record("a", {"lanes": 8}))
        raise process._ProcessDied("", "SIGSEGV")

    monkeypatch.setattr(process, "_run", run)
    kernels = process.measure_kernels(PROGRAM, [], 9, {}, lambda *step: None)
    assert [bool(kernel.record and kernel.record.decisions) for kernel in itertools.islice(kernels, 2)] == [True, False]
    with pytest.raises(CompileError, match="died"):
        next(kernels)


def test_a_process_that_dies_at_once_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.sys, "executable", "/bin/false")
    with pytest.raises(CompileError, match="the tuner's process died"):
        list(process.measure_kernels(PROGRAM, [], 9, {}, lambda *step: None))


@pytest.mark.sampled(0)
def test_a_program_that_cannot_be_compiled_is_an_error() -> None:
    with pytest.raises(CompileError):
        list(process.measure_kernels(dataclasses.replace(PROGRAM, mlir="no program"), [], 5, {}, lambda *step: None))


# All of it.


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 14 * 14, 10)).eval()


@pytest.mark.parametrize("frontend", ["torchscript", "export"])
@pytest.mark.sampled(0)
def test_compile_tunes(frontend: Any) -> None:
    module, x = model(), torch.randn(1, 3, 16, 16)
    compiled = torchmdla.compile(module, x, tune=10.0, frontend=frontend)
    with torch.no_grad():
        assert_matches(compiled(x), module(x), layers=3)
    records = Records(devices.get("cpu")).load()
    assert records and all(entry.chosen_seconds > 0 and entry.best_seconds > 0 for entry in records.values())


@pytest.mark.sampled(0)
def test_complete_measurements_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torchmdla.compile(product, X, Y)
    report = tuning.tune(lambda: compiled(X, Y), 20)
    (kernel,) = (entry for entry in report.kernels if entry.record)
    assert kernel.record and kernel.record.finished and report.covered > 0.5
    assert 0 <= report.distance < 1 and str(report).startswith("1 kernel measured")
    again = tuning.tune(lambda: compiled(X, Y), 20)
    assert [entry.record for entry in again.kernels] == [entry.record for entry in report.kernels]


def test_there_may_be_nothing_to_tune() -> None:
    with pytest.raises(ValueError, match="nothing to tune"):
        tuning.tune(lambda: X + 1, 1)
    compiled = torchmdla.compile(product, X, Y)
    torchmdla.enable(processor="x86-64-v2")
    with pytest.raises(ValueError, match="nothing to tune"):
        tuning.tune(lambda: compiled(X, Y), 1)
    torchmdla.enable(tuned=False)
    with pytest.warns(RuntimeWarning, match="nothing to tune"):
        torchmdla.compile(product, X, Y, tune=1)


@pytest.mark.sampled(0)
def test_programs_for_any_sizes_are_left_to_the_cost_model() -> None:
    compiled = torchmdla.compile(product, X, Y)
    for rows in (5, 7, 9, 11):
        compiled(X[:rows], Y)
    report = tuning.tune(lambda: compiled(X[:13], Y), 5)
    assert report.reasons == ("kernels for any sizes are left to the cost model",) and not report.kernels


@pytest.mark.sampled(0)
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "model.pt")
    torch.jit.trace(model(), torch.randn(1, 3, 16, 16), check_trace=False).save(path)
    assert main(["tune", path, "--input", "1x3x16x16", "--seconds", "3", "--threads", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["measured"] >= 1 and report["before"] > 0 and report["after"] > 0
    assert main(["cache", "info"]) == 0
    assert f"measured kernels  {report['measured'] + report['algorithms']}" in capsys.readouterr().out


def test_the_command_refuses_mlir(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.mlir"
    path.write_text("module {}")
    assert main(["tune", str(path)]) == 2
    assert "no MLIR" in capsys.readouterr().err

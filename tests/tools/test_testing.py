"""Tests of the checks against eager: they find differences, describe them, and survive crashes."""

from __future__ import annotations

import ctypes
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count, islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchmdla
from torchmdla.testing import __main__ as command_line
from torchmdla.testing import expected, runner
from torchmdla.testing.checking import PASSING, STATUSES, Outcome, check
from torchmdla.testing.frontends import (
    FRONTENDS,
    NotAvailableError,
    Variant,
    check_device,
    device_options,
    variant_names,
    variant_of,
)
from torchmdla.testing.programs import PROGRAMS, Program
from torchmdla.testing.programs.inputs import copy_tensor, draw_inputs, expanded, integers, normal, strided, transposed
from torchmdla.testing.record import Record, write_table
from torchmdla.testing.runner import CheckedOutcome, Job, check_outcome, run

X = normal(3, 4)


def outcome(function: Callable[..., Any], captured: Callable[..., Any], *inputs: Any, **options: Any) -> Outcome:
    """Return the outcome for a frontend that captures ``function`` as ``captured`` if torchmdla is switched on."""
    alone = options.pop("alone", function)

    def run_captured(*args: Any) -> Any:
        return (captured if torchmdla.is_enabled() else alone)(*args)

    program = Program("test.program", lambda: function, inputs or (X,), **options)
    result = check(
        program, "test:frontend", Variant(lambda subject, args, methods: {"forward": run_captured}, lambda *_: True)
    )
    assert result is not None
    return result


# --- reports of differences --------------------------------------------------------------------------------------


def double(x: Tensor) -> Tensor:
    return x * 2


def written(x: Tensor) -> Tensor:
    return x.mul_(2)


DIFFERENT: Mapping[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "values": (double, lambda x: x * 2 + (torch.arange(12).view(3, 4) == 5), r"call 0, outputs: .* at \(1, 1\)"),
    "dtype": (double, lambda x: (x * 2).double(), "dtype torch.float64, expected torch.float32"),
    "sizes": (double, lambda x: (x * 2)[None], r"sizes \(1, 3, 4\), expected \(3, 4\)"),
    "strides": (double, lambda x: (x * 2).t().contiguous().t(), "strides"),
    "kind": (double, lambda x: [x * 2], "a tensor was expected, got list"),
    "later call": (double, lambda x, calls=[]: x * (2 + (calls.append(0) or len(calls) > 2)), "call 2, outputs"),
    "mutation missed": (written, lambda x: x * 2, "inputs afterwards|sharing"),
    "mutation made up": (double, lambda x: x.mul_(2) * 1, "inputs afterwards"),
    "sharing": (lambda x: x.view(-1), lambda x: x.view(-1).clone(), "sharing"),
    "random numbers": (torch.rand_like, lambda x: (torch.rand(1), torch.rand_like(x))[1], "outputs"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_differences_are_found(name: str) -> None:
    function, captured, detail = DIFFERENT[name]
    result = outcome(function, captured)
    assert result.status == "wrong"
    assert re.search(detail, result.detail)


def test_agreement_is_found() -> None:
    for function, *_ in DIFFERENT.values():
        assert outcome(function, function).status == "ok"


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:
        return grad


def test_an_index_out_of_range_is_reported_if_its_selection_is_used() -> None:
    def selected(x: Tensor, index: Tensor) -> Tensor:
        return x[index]

    def sized(x: Tensor, index: Tensor) -> Tensor:
        return x * x[index].size(0)

    def unchecked(x: Tensor, index: Tensor) -> Tensor:
        return x[index.clamp(max=x.size(0) - 1)]

    # The second call's index is beyond its tensor.
    series = tuple((normal(rows, 4), integers(5, low=2, high=3)) for rows in (3, 2))
    options = {"series": series, "in_doubt": True}
    assert outcome(sized, lambda x, index: x * index.size(0), *series[0], **options).status == "ok"
    result = outcome(selected, unchecked, *series[0], **options)
    assert (result.status, result.detail[:22]) == ("wrong", "call 1, raises: nothin")


_TRACEBACK = "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript:\n  x / 0\n"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (IndexError("no such place\nat all"), "ok"),
        (IndexError("no such row"), "wrong"),
        (ValueError("no such place"), "wrong"),
        (RuntimeError(f"{_TRACEBACK}RuntimeError: no such place\nat all"), "ok"),
        (RuntimeError(f"{_TRACEBACK}RuntimeError: IndexError: no such place\n\nAt:\n  file"), "ok"),
        (RuntimeError(f"{_TRACEBACK}RuntimeError: no such row"), "wrong"),
        (RuntimeError("cannot allocate"), "wrong"),
    ],
)
def test_errors_have_eagers_class_and_message(error: Exception, status: str) -> None:
    def refusing(x: Tensor) -> Tensor:
        if x.shape[0] > 3:
            raise IndexError("no such place\nat all")
        return x

    def captured(x: Tensor) -> Tensor:
        if x.shape[0] > 3:
            raise error
        return x

    series = ((X,), (normal(4, 4),))
    assert outcome(refusing, captured, X, series=series, errors=True).status == status
    assert outcome(refusing, captured, X, series=series).status == "ok"


def test_wrong_gradients_are_found() -> None:
    assert outcome(double, double, mode="gradients").status == "ok"
    result = outcome(double, _Halved.apply, mode="gradients")
    assert (result.status, result.detail[:17]) == ("wrong", "call 0, gradients")


def test_wrong_training_is_found() -> None:
    class Off(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.layer, self.factor = nn.Linear(4, 1), factor

        def forward(self, x: Tensor) -> Tensor:
            return (self.layer(x) * self.factor).square().sum()

    def capture(subject: Any, inputs: Any, methods: Any) -> Any:
        subject.factor = 1.01 if torchmdla.is_enabled() else 1.0
        return {"forward": subject}

    def sgd(parameters: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.01)

    program = Program("test.training", lambda: Off(1.0), (X,), mode="training", optimiser=sgd)
    honest = Variant(lambda subject, inputs, methods: {"forward": subject}, lambda *_: True)
    right, wrong = (check(program, "test:frontend", Variant(c, honest.takes)) for c in (honest.capture, capture))
    assert right is not None and right.status == "ok"
    assert wrong is not None and wrong.status == "wrong"


def test_buffers_count() -> None:
    def capture(subject: Any, inputs: Any, methods: Any) -> Any:
        def call(x: Tensor) -> Tensor:
            mean, variance = (None, None) if torchmdla.is_enabled() else (subject.running_mean, subject.running_var)
            return nn.functional.batch_norm(x, mean, variance, subject.weight, subject.bias, True)

        return {"forward": call}

    program = Program("test.norm", lambda: nn.BatchNorm1d(4), (X,))
    result = check(program, "test:frontend", Variant(capture, lambda *_: True))
    assert result is not None and (result.status, result.detail[:13]) == ("wrong", "call 0, state")


def test_exceptions_are_errors_unless_they_are_pytorchs() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ValueError("too compiled")

    result = outcome(double, fails)
    assert (result.status, result.detail) == ("error", "ValueError: too compiled")
    assert outcome(double, fails, alone=fails).status == "not captured"
    assert outcome(fails, double).status == "no reference"


def test_failures_of_disabled_groups_are_not_pytorch_faults() -> None:
    class Products(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x) * 2 + 1

    def failing(subject: Any, inputs: Any, methods: Any) -> Any:
        scripted = variant_of("torchscript:script").capture(subject, inputs, methods)["forward"]

        def call(x: Tensor) -> Tensor:
            result = scripted(x)
            if "CompilationGroup" in str(torch.jit.last_executed_optimized_graph()):
                raise RuntimeError("INTERNAL ASSERT FAILED")
            return result

        return {"forward": call}

    checked = check(Program("test.program", Products, (X,)), "test:frontend", Variant(failing, lambda *_: True))
    assert checked is not None and checked.status == "error"
    assert torchmdla.graph_for(torch.jit.script(Products().eval()), torch.ones(3, 4)).findNode("mdla::CompilationGroup")


def test_differences_of_pytorch_without_torchmdla_are_not_blamed() -> None:
    assert outcome(double, lambda x: x * 3, alone=lambda x: x * 3).status == "pytorch"
    # The result is wrong without torchmdla, and differently wrong with it.
    assert outcome(double, lambda x: x * 4, alone=lambda x: x * 3).status == "wrong"
    # PyTorch alone may draw random numbers in another order than eager does. Beside groups, the order may differ again.
    random = frozenset({"random"})
    assert outcome(double, lambda x: x * 4, alone=lambda x: x * 3, tags=random).status == "pytorch"
    assert outcome(double, lambda x: x * 4, tags=random).status == "wrong"


def test_an_error_of_pytorchs_executor_may_come_in_another_call_beside_groups() -> None:
    def raise_in_calls(*calls: int, of: int) -> Callable[..., Any]:
        calls_so_far = count()

        def call(x: Tensor) -> Tensor:
            if next(calls_so_far) % of in calls:
                raise RuntimeError("no such derivative")
            return double(x)

        return call

    cases = (((1,), (2,), "pytorch"), ((1, 2), (2,), "pytorch"), ((1,), (6,), "pytorch"), ((1,), (), "wrong"))
    for ours, alone, status in cases:
        captured, uncaptured = raise_in_calls(*ours, of=4), raise_in_calls(*alone, of=8)
        result = outcome(double, captured, X, alone=uncaptured, series=((X,),) * 4, in_doubt=True)
        assert result.status == status


def test_errors_of_a_frontend_are_not_pytorch_faults() -> None:
    def tripled(*_: Any) -> Any:
        return {"forward": lambda x: x * 3}

    program = Program("test.program", lambda: double, (X,))
    for alone, status in ((tripled, "pytorch"), (lambda *_: {"forward": double}, "wrong")):
        result = check(program, "test:frontend", Variant(tripled, lambda *_: True, alone=alone))
        assert result is not None and result.status == status


def on_acap(function: Callable[..., Any], captured: Callable[..., Any], *inputs: Any) -> Outcome:
    """Return the outcome for a frontend that has its own device."""
    device = Variant(lambda *_: {"forward": captured}, lambda *_: True, device="acap", prepare=torchmdla.acap_device)
    result = check(Program("test.program", lambda: function, inputs), "test:frontend", device)
    assert result is not None
    return result


def test_errors_of_a_device_are_not_pytorch_faults() -> None:
    assert on_acap(double, double, X).status == "ok"
    assert on_acap(double, lambda x: x * 3, X).status == "wrong"


def test_strides_on_a_device() -> None:
    every_other = lambda x: x.t()[::2]  # noqa: E731
    assert on_acap(every_other, every_other, X).status == "ok"
    result = on_acap(every_other, lambda x: every_other(x).contiguous(), X)
    assert (result.status, result.detail[:15]) == ("wrong", "call 0, outputs")


@pytest.mark.parametrize("draw", [strided(X), expanded(normal(1, 4), 3, 4), transposed(X)])
def test_inputs_move_to_a_device_as_copies(draw: Any) -> None:
    assert on_acap(lambda x: x, lambda x: x, draw).status == "ok"


def test_fallbacks_have_their_reasons() -> None:
    torchmdla.enable(max_specialisations=0)
    result = check(PROGRAMS["elementwise.polynomial"], "torchscript:trace", variant_of("torchscript:trace"))
    torchmdla.enable()
    assert result is not None and (result.status, result.groups, result.specialisations) == ("fallback", 1, 0)
    (reason,) = result.fallbacks
    assert "too many specialisations" in reason and result.detail == reason


def test_unwritten_memory_is_compared_without_values() -> None:
    assert outcome(double, lambda x: x * 2.5, values=False).status == "ok"
    assert outcome(double, lambda x: (x * 2).double(), values=False).status == "wrong"


# --- inputs ------------------------------------------------------------------------------------------------------


def test_inputs_are_drawn_from_the_seed() -> None:
    inputs = ({"a": [X, integers(5)]}, 3, strided(X))
    first, same, other = draw_inputs(inputs, 1), draw_inputs(inputs, 1), draw_inputs(inputs, 2)
    assert torch.equal(first[0]["a"][0], same[0]["a"][0]) and not torch.equal(first[0]["a"][0], other[0]["a"][0])
    assert first[1] == 3
    assert first[2].stride() == (8, 2)


@pytest.mark.parametrize(
    "change", [lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[:1].expand(5, 4), lambda x: x[1:]]
)
def test_copies_keep_strides(change: Callable[[Tensor], Tensor]) -> None:
    tensor = change(torch.randn(5, 4))
    copy = copy_tensor(tensor)
    assert torch.equal(copy, tensor) and copy.stride() == tensor.stride()
    assert copy.data_ptr() != tensor.data_ptr()


def test_layouts_match_their_names() -> None:
    assert draw_inputs((transposed(X),), 0)[0].stride() == (1, 3)


# --- processes ---------------------------------------------------------------------------------------------------


@pytest.mark.sampled(0)
def test_crashes_time_outs_and_exceptions_cost_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job("test_testing", name, "torchscript:trace") for name in ("crash", "sleep", "fine", "raise")]
    results = [event for event in run(jobs, processes=2, timeout=20) if isinstance(event, CheckedOutcome)]
    statuses = {result.outcome.program: result.outcome.status for result in results}
    assert statuses == {
        "test.crash": "crash",
        "test.sleep": "time-out",
        "test.fine": "ok",
        "raise": "crash",
        "test.after": "ok",
    }
    details = {result.outcome.program: result.outcome.detail for result in results}
    assert details["test.crash"] == "SIGSEGV"


@pytest.mark.sampled(0)
def test_a_program_takes_no_more_memory_than_it_may() -> None:
    events = run([Job("test_testing", "large", "torchscript:trace")], memory=4 << 30)
    (result,) = (event for event in events if isinstance(event, CheckedOutcome))
    assert result.outcome.status == "no reference" and "allocate" in result.outcome.detail


def _large(x: Tensor) -> Tensor:
    return torch.zeros(8 << 30, dtype=torch.uint8)[: x.numel()]


def _crash(x: Tensor) -> Tensor:
    ctypes.string_at(0)
    return x


def _sleep(x: Tensor) -> Tensor:
    time.sleep(600)
    return x


def programs(name: str, seed: int, limit: int | None) -> Any:
    """Yield the programs of a job of the tests above. Each program of a job runs even if the previous one crashed."""
    if name == "raise":
        raise ValueError("no such programs")
    function = {"crash": _crash, "sleep": _sleep, "fine": double, "large": _large}[name]
    yield Program(f"test.{name}", lambda: function, (X,))
    if name == "crash":
        yield Program("test.after", lambda: double, (X,))


# --- expected failures -------------------------------------------------------------------------------------------


def test_expected_failures_are_checked_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected, "EXPECTED_FAILURES", {("frontend", "test.listed"): ("wrong", "known")})
    assert check_outcome(Outcome("test.listed", "frontend", "wrong")) == CheckedOutcome(
        Outcome("test.listed", "frontend", "wrong"), True, "known"
    )
    for status in STATUSES:
        assert check_outcome(Outcome("test.other", "frontend", status)).expected == (status in PASSING)
        assert check_outcome(Outcome("test.listed", "frontend", status)).expected == (status == "wrong")


def test_failures_of_a_number_format_are_of_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {program for _, program in expected.FORMAT_FAILURES} <= set(PROGRAMS)
    monkeypatch.setattr(expected, "FORMAT_FAILURES", {("fixed16", "test.listed"): "rounded"})
    for status, precision, is_expected in (
        ("wrong", "fixed16", True),
        ("ok", "fixed16", True),
        ("error", "fixed16", False),
        ("wrong", "float32", False),
        ("wrong", None, False),
    ):
        outcome = Outcome("test.listed", "frontend", status, precision=precision)  # type: ignore[arg-type]
        assert check_outcome(outcome).expected == is_expected


def test_expected_failures_name_programs_and_ways() -> None:
    for way, program in expected.EXPECTED_FAILURES:
        frontend, _, variant = way.partition(":")
        assert variant in FRONTENDS[frontend].variants
        assert program in PROGRAMS or program.startswith("opinfo.")


# --- frontends -------------------------------------------------------------------------------------------------------


def test_ways() -> None:
    names = [f"torchscript:{name}" for name in ("trace", "script", "freeze", "own")]
    assert variant_names("torchscript") == names
    assert variant_names("torchscript:script,export") == ["torchscript:script", "export:export"]


@pytest.mark.parametrize(
    ("frontend", "message"),
    [
        ("abacus", r"unknown frontend 'abacus' \(choose from torchscript, "),
        ("torchscript:guess", r"unknown variant 'guess' \(choose from trace, script, freeze, own\)"),
    ],
)
def test_unknown_frontends(frontend: str, message: str) -> None:
    with pytest.raises(NotAvailableError, match=message):
        variant_names(frontend)


def test_unknown_devices() -> None:
    with pytest.raises(NotAvailableError, match="no device named 'abacus'"):
        check_device("abacus", "", [])


def test_options_of_a_device() -> None:
    assert device_options("precision=fixed8,clusters=2") == {"precision": "fixed8", "clusters": 2}
    assert device_options("") == {}
    check_device("mdla", "precision=fixed8,clusters=2", variant_names("torchscript,dynamo,export,dispatch,lazy"))
    for device, options, message in (
        ("mdla", "precision=fixed4", "unknown precision 'fixed4'"),
        ("mdla", "speed=1", "unknown option 'speed'"),
        ("mdla", "precision", "'precision' is not NAME=VALUE"),
        ("cpu", "precision=fixed8", "unknown option 'precision'"),
    ):
        with pytest.raises(NotAvailableError, match=message):
            check_device(device, options, [])


# `rounded` also rounds when torchmdla is switched off.
@pytest.mark.parametrize(("precision", "status"), [("fixed16", "ok"), (None, "pytorch")])
def test_results_are_held_to_the_number_format(precision: str | None, status: str) -> None:
    def rounded(x: Tensor) -> Tensor:
        return (x * 256).round() / 256

    program = Program("test.identity", lambda: torch.clone, (X,))
    variant = Variant(lambda subject, args, methods: {"forward": rounded}, lambda *_: True)
    result = check(program, "test:frontend", variant, precision=precision)
    assert result is not None
    assert (result.status, result.precision) == (status, precision)


# --- the command -------------------------------------------------------------------------------------------------


@pytest.mark.sampled(0)
def test_command(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.jsonl"
    arguments = ["--frontend", "torchscript:trace", "--filter", "elementwise.relu6", "--jobs", "1", "--json", str(file)]
    assert command_line.main([*arguments, "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert "elementwise.relu6:gradients on torchscript:trace" in shown
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(entry["program"], entry["status"], entry["expected"]) for entry in entries if "program" in entry] == [
        ("elementwise.relu6", "ok", True),
        ("elementwise.relu6:gradients", "ok", True),
    ]
    assert [entry["done"]["name"] for entry in entries if "done" in entry] == [
        "elementwise.relu6",
        "elementwise.relu6:gradients",
    ]


FIRST, SECOND = (Job("test_testing", name, "torchscript:trace") for name in ("first", "second"))


def _judged(job: Job, status: Any = "ok") -> CheckedOutcome:
    return check_outcome(Outcome(job.name, job.way, status, fallbacks={"a reason": 2}))


def test_record_is_taken_up_again(tmp_path: Any) -> None:
    file = tmp_path / "results.jsonl"
    interrupted = Record(file)  # never closed
    for event in (_judged(FIRST), FIRST, _judged(SECOND, "wrong")):
        interrupted.add(event)
    with file.open("a") as stream:
        stream.write('{"done": {"sou')
    with Record(file, resumed=True) as record:
        assert record.results() == [_judged(FIRST), _judged(SECOND, "wrong")]
        assert record.unfinished([FIRST, SECOND]) == [SECOND]
        record.add(_judged(SECOND))
        record.add(SECOND)
    with Record(file, resumed=True) as record:
        assert record.results() == [_judged(FIRST), _judged(SECOND)]
        assert record.unfinished([FIRST, SECOND]) == []
    with Record(file) as record:
        assert record.results() == [] and file.read_text() == ""


def test_record_leaves_other_files_alone(tmp_path: Any) -> None:
    file = tmp_path / "model"
    file.write_text("[\n{}\n]")
    with pytest.raises(ValueError, match="line 1: not written by --json"):
        Record(file, resumed=True)
    assert file.read_text() == "[\n{}\n]"


def test_runs_are_compared_by_code(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before.jsonl", tmp_path / "after.jsonl"
    same, changed, fails = (
        Outcome(name, "torchscript:trace", "ok", code=("1", "2")) for name in ("same", "changed", "fails")
    )
    for file, outcomes in (
        (before, [same, changed, fails, replace(same, program="gone")]),
        (after, [same, replace(changed, code=("1", "3")), replace(fails, status="wrong")]),
    ):
        with Record(file) as record:
            for outcome in outcomes:
                record.add(check_outcome(outcome))
    assert command_line.main(["--compare", str(before), str(after)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "1 programs with the same code",
        "other code: changed on torchscript:trace",
        "ends otherwise: fails on torchscript:trace",
        "of one run: gone on torchscript:trace",
    ]
    assert command_line.main(["--compare", str(before), str(before)]) == 0
    with pytest.raises(SystemExit, match="2"):
        command_line.main(["--compare", str(before), str(tmp_path / "none")])


def test_table_of_results(tmp_path: Any) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Models\n\n## Results\n\nwhat was here before\n")
    outcomes = [
        Outcome("a.net", "trace", "ok"),
        Outcome("b.net", "script", "fallback", "x | y"),
        Outcome("a.net:gradients", "trace", "fallback", "x | y"),
        Outcome("b.net", "trace", "ok"),
        Outcome("b.net:gradients", "trace", "ok"),
    ]
    write_table([check_outcome(outcome) for outcome in outcomes], page)
    assert page.read_text().splitlines() == [
        "# Models",
        "",
        "## Results",
        "",
        "| way | ok | fallback |",
        "| --- | --- | --- |",
        "| trace | 3 | 1 |",
        "| script |  | 1 |",
        "",
        "| program | trace | script |",
        "| --- | --- | --- |",
        "| a.net | ok / fallback |  |",
        "| b.net | ok | fallback |",
        "",
        "| programs | ended as | reason |",
        "| --- | --- | --- |",
        "| 2 | fallback | x \\| y |",
    ]


def test_code_is_the_same_each_time() -> None:
    program = PROGRAMS["convolutions.conv2d"]
    way = variant_of("torchscript:trace")
    first, second = (check(program, "torchscript:trace", way) for _ in range(2))
    assert first and second and first.code == second.code
    assert len(first.code) >= first.specialisations > 0


@pytest.mark.sampled(0)
def test_command_resumes(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.jsonl"
    name = "elementwise.relu6"
    done = Job("torchmdla.testing.programs", name, "torchscript:trace")
    with Record(file) as record:
        record.add(_judged(done, "wrong"))
        record.add(done)
    arguments = ["--frontend", done.way, "--filter", name, "--jobs", "1", "--json", str(file), "--resume", "--verbose"]
    assert command_line.main(arguments) == 1, "what stands in the file counts"
    shown = capsys.readouterr().out
    assert f"{name}:gradients on" in shown and f"{name} on" not in shown


@pytest.mark.sampled(0)
def test_command_fails_where_one_does(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    listed = {("torchscript:trace", "elementwise.relu6"): ("wrong", "it was wrong once")}
    monkeypatch.setattr(expected, "EXPECTED_FAILURES", listed)
    arguments = [
        "--frontend",
        "torchscript:trace",
        "--filter",
        "elementwise.relu6",
        "--skip",
        "gradients",
        "--jobs",
        "1",
    ]
    assert command_line.main(arguments) == 1
    assert "! ok" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--frontend", "acap:guess"], "unknown variant 'guess'"),
        (["--frontend", "abacus"], "unknown frontend 'abacus'"),
        (["--resume"], "--resume needs --json"),
        (["--device", "mdlaa"], "no device named 'mdlaa'"),
        (
            ["--device", "mdla", "--frontend", "dynamo,acap"],
            "acap:device compiles for device 'cpu' alone: leave --device mdla",
        ),
        (["--filter", "no such program"], "no program has such a name"),
        (["--programs", "no_such_module"], "--programs no_such_module cannot be imported"),
        (["--opinfo", "--dtype", "float31"], "no dtype 'float31'"),
        (["--jobs", "0"], "not a number of at least 1"),
        (["--update-baseline"], "--update-baseline needs --baseline"),
        (["--baseline", "absent.json"], "No such file or directory: 'absent.json'"),
        (["--quick", "--opinfo"], "--quick runs samples of the device's operators"),
    ],
)
def test_command_refuses(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        command_line.main(arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--list"]) == 0
    names = capsys.readouterr().out.split()
    samples = [name for name in names if name.startswith("samples.")]
    assert "samples.relu" in samples
    assert [*samples, *(name for name, program in PROGRAMS.items() if program.family != "operators")] == names
    assert len(names) == len(set(names))
    assert command_line.main(["--list", "--quick"]) == 0
    assert capsys.readouterr().out.split() == samples
    assert command_line.main(["--list", "--programs", "torchmdla.testing.programs"]) == 0
    assert capsys.readouterr().out.split() == list(PROGRAMS)


# --- programs ----------------------------------------------------------------------------------------------------


# Every `every`-th program of each family.
@pytest.mark.parametrize(
    ("way", "every"), [("torchscript:trace", 12), ("torchscript:script", 36), ("torchscript:freeze", 36)]
)
@pytest.mark.sampled(0)
def test_some_programs(way: str, every: int) -> None:
    """Check some programs of each family. ``python -m torchmdla.testing`` runs all programs."""
    families: dict[str, list[Program]] = {}
    for program in PROGRAMS.values():
        families.setdefault(program.family, []).append(program)
    tried = set()
    for family, programs in families.items():
        rest = iter(programs)
        for program in rest:
            checked = check(program, way, variant_of(way))
            if checked is not None:
                tried.add(family)
                result = runner.check_outcome(checked)
                assert result.expected, f"{checked}: {result.reason}"
                # Skip some programs. Programs that this frontend does not support are not counted.
                for _ in islice(rest, every - 1):
                    pass
    assert way != "torchscript:trace" or tried == set(families)


# Each of these programs once gave a wrong result or was not compiled.
MENDED = [
    "reductions.mean",
    "products.gram",
    "indexing.select",
    "indexing.roll_far",
    "dtypes.equal_to_itself_unless_nan",
    "dtypes.negated_large_integers",
    "dtypes.booleans_filled_with_a_number",
    *(name for name in PROGRAMS if name.endswith("any_byte") or "any_byte_" in name),
]


@pytest.mark.parametrize("name", MENDED)
def test_mended(name: str) -> None:
    result = check(PROGRAMS[name], "torchscript:trace", variant_of("torchscript:trace"))
    assert result is not None and (result.status, result.specialisations) == ("ok", 1)


@pytest.mark.parametrize("name", ["dtypes.sum_in_booleans", "dtypes.booleans_added_at_indices"])
def test_sums_in_booleans_fall_back(name: str) -> None:
    """Check that sums in booleans are not compiled, because the upstream lowering adds bits."""
    result = check(PROGRAMS[name], "torchscript:trace", variant_of("torchscript:trace"))
    assert result is not None and result.status == "fallback"
    assert list(result.fallbacks) == ["a sum in booleans is not supported"]


def test_scatter_from_the_last_dimension() -> None:
    """Check a scatter whose dimension is negative. Its lowering once crashed the compiler process.

    Only dispatch capture keeps the dimension as the program wrote it.
    """
    result = check(PROGRAMS["indexing.one_hot"], "dispatch:capture", variant_of("dispatch:capture"))
    assert result is not None and (result.status, result.specialisations) == ("ok", 1)


def test_masks_as_indices_run_eagerly() -> None:
    """Check that indexing by a mask runs eagerly. Its compilation once did not terminate.

    The size of the result depends on the mask's values.
    """
    outcome = check(PROGRAMS["indexing.boolean_mask"], "torchscript:trace", variant_of("torchscript:trace"))
    assert outcome is not None and (outcome.status, outcome.specialisations) == ("ok", 0)

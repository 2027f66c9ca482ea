"""Tests of the score of a device: its samples, what ran on it, the score, the baseline, and the choice of frontends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from fragile_device import FragileDevice, WrongDevice

import torchmdla
from torchmdla import devices
from torchmdla.devices import Device, OpSupport
from torchmdla.testing import frontends, runner, samples
from torchmdla.testing.baseline import Baseline, read_baseline, write_baseline
from torchmdla.testing.checking import Outcome, Status, check, dispatched_operators
from torchmdla.testing.frontends import AUTOMATIC, variant_of
from torchmdla.testing.programs import PROGRAMS
from torchmdla.testing.record import Record
from torchmdla.testing.reporting import write_page
from torchmdla.testing.runner import check_outcome
from torchmdla.testing.samples import SampleCall, declared_calls, operator_of
from torchmdla.testing.score import failure_of, is_right, score_of

# --- samples ------------------------------------------------------------------------------------------------------


def declared(op: str, support: OpSupport, *dtypes: str, **others: OpSupport) -> list[SampleCall]:
    """Return the sample calls of an operator for a device that declares ``others`` of the namespace ``aten``, too."""

    class Declaring(Device):
        name = "declaring"
        ops: Mapping[str, OpSupport] = {op: support, **{f"aten::{name}": other for name, other in others.items()}}

        target = lower = load = None  # type: ignore[assignment]

    Declaring.dtypes = frozenset(dtypes)  # type: ignore[assignment, method-assign]
    Declaring.__abstractmethods__ = frozenset()
    return list(declared_calls(op, Declaring()))  # type: ignore[abstract]


CHEAP, VIEW = OpSupport("cheap"), OpSupport("view")


@pytest.mark.parametrize(
    ("op", "support", "dtypes", "forms"),
    [
        ("aten::clamp", CHEAP, ("float32",), ["float32:0", "float32:1", "float32:2"]),
        # All samples in the first dtype, one in each other dtype.
        ("aten::clamp", CHEAP, ("float16", "float64"), ["float16:0", "float64:0", "float16:1", "float16:2"]),
        # Eager does not have this operator for integers.
        ("aten::celu", CHEAP, ("int8", "float32"), ["float32:0"]),
        ("aten::relu", CHEAP, ("int8",), ["int8:0"]),
        ("aten::isnan", CHEAP, ("float32",), []),
        ("aten::isnan", CHEAP, ("float32", "bool"), ["float32:0"]),
        ("aten::bitwise_not", CHEAP, ("int32", "bool"), ["int32:0", "bool:1"]),
        ("aten::embedding", CHEAP, ("float32",), []),
        ("aten::dropout", OpSupport("cheap", {"train": False}), ("float32",), ["float32:0"]),
        ("aten::dropout", OpSupport("cheap", {"train": True}), ("float32",), []),
        ("aten::gelu", OpSupport("cheap", {"approximate": "tanh"}), ("float32",), ["float32:1"]),
        ("acme::conv", CHEAP, ("float32",), []),
    ],
)
def test_samples_are_those_that_the_device_declares(
    op: str, support: OpSupport, dtypes: tuple[str, ...], forms: list[str]
) -> None:
    assert [f"{call.dtype}:{call.index}" for call in declared(op, support, *dtypes)] == forms


def test_a_view_is_used_by_an_operator_of_the_device() -> None:
    assert declared("aten::t", VIEW, "float32") == []
    (call,) = declared("aten::t", VIEW, "float32", neg=CHEAP)
    (x,) = call.arguments
    assert torch.equal(call.use(x.t()), -x.t())
    (call,) = declared("aten::t", VIEW, "float32", mul=VIEW, **{"mul.Tensor": CHEAP})
    assert torch.equal(call.use(x.t()), x.t() * x.t())


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("samples.relu", "aten::relu"),
        ("samples.add.Tensor", "aten::add.Tensor"),
        ("samples.relu.float32:0", "aten::relu"),
        ("samples.add.Tensor.bfloat16:12", "aten::add.Tensor"),
        ("samples.acme::conv", "acme::conv"),
        ("samples.acme::conv.out.int8:3", "acme::conv.out"),
        ("elementwise.relu:gradients", ""),
    ],
)
def test_names_of_samples(name: str, op: str) -> None:
    assert operator_of(name) == op


def test_weights_of_a_sample_are_buffers() -> None:
    program = next(samples.programs("samples.linear", limit=1))
    module: Any = program.make()
    names = [name for name, _ in module.named_buffers()]
    assert len(program.inputs) == 1 and names[0] == "weight"
    expected = torch.nn.functional.linear(program.inputs[0], *module.buffers())
    assert torch.equal(module(*program.inputs)[0], expected)


def test_samples_are_programs_of_the_device_in_use() -> None:
    cpu = devices.get("cpu")
    assert "samples.relu" in samples.names(cpu) and "samples.size" not in samples.names(cpu)
    program, *others = samples.programs("samples.relu", limit=3)
    assert program.name == "samples.relu.float32:0" and len(others) == 2
    x, y = program.inputs
    assert torch.equal(x, y) and x.data_ptr() != y.data_ptr()
    assert all(map(torch.equal, program.make()(x, y), (x.relu(), x.relu())))


# --- what runs on the device --------------------------------------------------------------------------------------


@pytest.fixture
def fragile() -> Iterator[None]:
    for device in (FragileDevice(), WrongDevice()):
        devices.register(device)
    yield
    torchmdla.enable(device="cpu")


def checked_sample(device: str, op: str) -> Outcome:
    torchmdla.enable(device=device)
    way = "torchscript:trace"
    outcome = check(next(samples.programs(f"samples.{op}")), way, variant_of(way))
    assert outcome is not None
    return outcome


@pytest.mark.usefixtures("fragile")
@pytest.mark.parametrize(
    ("device", "op", "status", "reason"),
    [
        ("fragile", "relu", "ok", ""),
        ("fragile", "t", "ok", ""),
        ("fragile", "exp", "fallback", "device 'fragile' does not take it: exp of a matrix"),
        ("fragile", "atan", "fallback", "no arcs"),
        ("fragile", "erf", "not compiled", "the compiler process died"),
        ("wrong", "tanh", "wrong", "wrong: call 2, outputs"),
    ],
)
def test_an_operator_that_does_not_run_has_a_reason(device: str, op: str, status: str, reason: str) -> None:
    outcome = checked_sample(device, op)
    assert outcome.status == status
    assert failure_of(outcome).startswith(reason) and is_right(outcome) == (not reason)
    assert (outcome.compiled_calls > 0) == (reason == "" or status == "wrong")


def test_a_group_that_is_not_called_did_not_run() -> None:
    """Check that a group of TorchScript whose training steps are not compiled does not count."""
    torchmdla.enable(max_specialisations=0)
    outcome = check(PROGRAMS["elementwise.polynomial"], "torchscript:trace", variant_of("torchscript:trace"))
    torchmdla.enable()
    assert outcome is not None and (outcome.groups, outcome.compiled_calls) == (1, 0)
    assert set(outcome.operators) == {"aten::pow.Tensor_Scalar", "aten::div.Scalar", "aten::add.Tensor"}
    assert all("too many specialisations" in reason for reason in outcome.operators.values())


def test_gradients_run_by_a_frontend_that_compiles_them() -> None:
    outcome = runner._check_on_first(PROGRAMS["products.linear:gradients"], 0, devices.get("cpu"))
    assert outcome is not None and (outcome.way, outcome.status) == ("dynamo:compile", "ok")
    assert outcome.compiled_calls and outcome.operators["aten::addmm"] == ""


@pytest.mark.parametrize(
    ("op", "way"), [("conv2d", "torchscript:script"), ("relu", "torchscript:trace"), ("addmm", "dynamo:compile")]
)
def test_a_sample_runs_on_the_frontend_that_captures_its_operator(op: str, way: str) -> None:
    program = next(samples.programs(f"samples.{op}"))
    outcome = runner._check_on_first(program, 0, devices.get("cpu"))
    assert outcome is not None and (outcome.way, outcome.status) == (way, "ok")
    assert is_right(outcome)


RAN: Any = {"compiled_calls": 2}
CAPTURED: Any = {"operators": {"aten::relu": "alone"}}
NOTHING: Any = {}


@pytest.mark.parametrize(
    ("outcomes", "chosen"),
    [
        ([("ok", RAN)], 0),
        ([("ok", CAPTURED), ("ok", RAN), ("ok", RAN)], 1),
        ([None, ("ok", NOTHING), ("fallback", RAN)], 2),
        ([("not captured", NOTHING), ("wrong", NOTHING)], 1),
        ([("ok", NOTHING), ("ok", CAPTURED), ("ok", CAPTURED)], 1),
        ([("ok", NOTHING), ("ok", NOTHING), None], 0),
        ([None, None, None], None),
    ],
)
def test_a_program_runs_on_the_first_frontend_that_runs_it_on_the_device(
    outcomes: list[tuple[Status, dict[str, Any]] | None], chosen: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    coming = iter(outcomes)

    def check_next(program: Any, way: str, *_: Any) -> Outcome | None:
        entry = next(coming)
        return None if entry is None else Outcome("test.program", way, entry[0], **entry[1])

    monkeypatch.setattr(runner, "check", check_next)
    program = PROGRAMS["elementwise.relu"]
    outcome = runner._check_on_first(program, 0, devices.get("cpu"))
    ways = frontends.variants_for("inference")
    assert (outcome and outcome.way) == (None if chosen is None else ways[chosen])


def test_operators_that_pytorch_dispatches() -> None:
    variant = variant_of("dynamo:compile")
    operators = dispatched_operators(PROGRAMS["products.linear_relu:gradients"], variant, 0)
    assert {"aten::addmm", "aten::relu", "aten::threshold_backward"} <= operators and "aten::linear" not in operators
    assert "aten::mul.Tensor" in dispatched_operators(PROGRAMS["mutation.in_place_chain"], variant, 0)


# --- the score ----------------------------------------------------------------------------------------------------

ALONE = "it is alone: a group of it would save nothing"
OUTCOMES = [
    Outcome("samples.relu.float32:0", "trace", "ok", "", {}, 1, 1, 2, {"aten::relu": ""}),
    Outcome("samples.relu.float16:0", "trace", "ok", "", {}, 0, 0, 0, {"aten::relu": ALONE}),
    Outcome("samples.relu.int8:0", "trace", "wrong", "call 0", {}, 1, 1, 2, {"aten::relu": ""}),
    # Another operator of the program ran.
    Outcome("samples.t.float32:0", "trace", "ok", "", {}, 1, 1, 2, {"aten::neg": "", "aten::t": ALONE}),
    Outcome("samples.mm.float32:0", "auto", "crash", "SIGSEGV"),
    Outcome("samples.silu.float32:0", "trace", "ok"),
    Outcome("elementwise.relu", "trace", "fallback", "odd", {"odd": 1}, 1, 1, 2, {"aten::relu": "", "aten::t": "odd"}),
    Outcome("elementwise.abs", "trace", "ok", "", {}, 1, 0, 0, {"aten::abs": ALONE}),
    Outcome("elementwise.tan", "trace", "ok"),
    Outcome("elementwise.relu:gradients", "dynamo", "wrong", "call 1", {}, 1, 1, 2, {"aten::relu": ""}),
]


def test_score() -> None:
    score = score_of("npu", ["aten::relu", "aten::t", "aten::mm", "aten::silu", "acme::conv"], OUTCOMES)
    assert {
        op: (entry.samples, entry.compiled, entry.right, entry.reasons) for op, entry in score.operators.items()
    } == {
        "aten::relu": (3, 2, 1, {ALONE: 1, "wrong: call 0": 1}),
        "aten::t": (1, 0, 0, {ALONE: 1}),
        "aten::mm": (1, 0, 0, {"crash: SIGSEGV": 1}),
        "aten::silu": (0, 0, 0, {"capture replaces it by other operators": 1}),
        "acme::conv": (0, 0, 0, {}),
    }
    names = ("programs", "declared", "formed", "compiled", "ran", "right", "fell_back")
    assert {way: [getattr(entry, name) for name in names] for way, entry in score.ways.items()} == {
        "trace": [3, 2, 2, 1, 1, 1, 1],
        "dynamo": [1, 1, 1, 1, 1, 0, 0],
    }
    assert score.reasons[f"aten::relu: {ALONE}"] == 1 and score.reasons["aten::t: odd"] == 1
    assert str(score) == ("score of npu: 20.0 % (1 of 5 samples of 3 declared operators ran on it and were right)")
    assert json.loads(json.dumps(score.to_dict()))["score"] == 20.0


def test_a_score_of_100_percent_is_complete() -> None:
    right = [
        Outcome(f"samples.relu.float32:{k}", "trace", "ok", compiled_calls=1, operators={"aten::relu": ""})
        for k in range(1999)
    ]
    assert score_of("npu", [], right).percent == 100.0
    assert score_of("npu", [], [*right, OUTCOMES[1]]).percent == 99.9
    assert score_of("npu", [], []).percent == 0.0


# --- the baseline -------------------------------------------------------------------------------------------------

EMPTY = Baseline("npu", "", AUTOMATIC)
NOT_RUN = "does not run on the device:"


def outcome(name: str, *ops: str, status: Status = "ok", **refused: str) -> Outcome:
    """Return the outcome of a program in which ``ops`` ran on the device, and ``refused`` did not."""
    operators = {**dict.fromkeys(ops, ""), **{f"aten::{op}": reason for op, reason in refused.items()}}
    return Outcome(
        name, "trace", status, "call 0" if status != "ok" else "", compiled_calls=len(ops), operators=operators
    )


def test_baseline_holds_what_is_right_on_the_device(tmp_path: Path) -> None:
    assert EMPTY.with_run(OUTCOMES).right == {"elementwise.relu": "aten::relu", "samples.relu.float32:0": "aten::relu"}
    earlier = Baseline(
        "npu",
        "",
        AUTOMATIC,
        {"elementwise.relu": "aten::relu aten::t", "a": "aten::mm", "elementwise.tan": "aten::tan"},
    )
    updated = earlier.with_run(OUTCOMES)
    assert updated.right == {"a": "aten::mm", "elementwise.relu": "aten::relu", "samples.relu.float32:0": "aten::relu"}
    write_baseline(updated, tmp_path / "baseline.json")
    assert read_baseline(tmp_path / "baseline.json", EMPTY) == updated


@pytest.mark.parametrize(
    ("now", "regressions", "improvements"),
    [
        (outcome("a", "aten::mm", "aten::relu"), [], []),
        (outcome("a", "aten::mm", "aten::relu", "aten::neg"), [], ["a"]),
        (outcome("a", "aten::mm", relu=ALONE), [f"a: aten::relu {NOT_RUN} {ALONE}"], []),
        (
            outcome("a", "aten::mm"),
            ["a: aten::relu does not run on the device: the program does not contain it any more"],
            [],
        ),
        (outcome("a", "aten::mm", "aten::relu", status="wrong"), ["a: wrong: call 0"], []),
        (outcome("a", mm=ALONE, relu=ALONE), ["a: no declared operator ran on the device"], []),
        (outcome("b", "aten::mm"), [], ["b"]),
        (outcome("b", mm=ALONE), [], []),
    ],
)
def test_changes_since_a_baseline(now: Outcome, regressions: list[str], improvements: list[str]) -> None:
    baseline = Baseline("npu", "", AUTOMATIC, {"a": "aten::mm aten::relu"})
    changes = baseline.compare([now], ["aten::mm", "aten::relu"])
    assert (changes.regressions, changes.improvements) == (regressions, improvements)


def test_an_operator_that_is_not_declared_any_more_is_a_regression() -> None:
    right = {f"samples.relu.{dtype}:0": "aten::relu" for dtype in ("float32", "int8")}
    baseline = Baseline("npu", "", AUTOMATIC, {**right, "samples.mm.float32:0": "aten::mm"})
    assert baseline.compare([], ["aten::mm"]).regressions == ["aten::relu: the device does not declare it any more"]


def test_named_frontends_have_their_own_lines() -> None:
    baseline = Baseline("npu", "", "dynamo", {"a on trace": "aten::mm"})
    assert baseline.compare([outcome("a", status="wrong")], []).regressions == ["a on trace: wrong: call 0"]
    assert baseline.compare([Outcome("a", "dynamo:compile", "wrong")], []).regressions == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "not written by --update-baseline"),
        ("{", "not written by --update-baseline"),
        ('{"device": "gpu", "options": "", "frontend": "auto"}', "is the baseline of --device gpu, not of npu"),
        (
            '{"device": "npu", "options": "a=1", "frontend": "auto"}',
            r"of --options a=1, not of \(none\)",
        ),
    ],
)
def test_files_that_are_not_the_baseline(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_baseline(file, EMPTY)


# --- files --------------------------------------------------------------------------------------------------------


def test_a_summary_is_not_an_outcome(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    with Record(file) as record:
        record.add(check_outcome(OUTCOMES[0]))
        record.add_summary(score_of("npu", [], OUTCOMES[:1]).to_dict())
    assert json.loads(file.read_text().splitlines()[-1])["summary"]["score"] == 100.0
    with Record(file, resumed=True) as record:
        assert [result.outcome for result in record.results()] == OUTCOMES[:1]


def test_page(tmp_path: Path) -> None:
    bad = "</script><script>alert(1)</script>"
    outcomes = [*OUTCOMES, Outcome(bad, "trace", "wrong", bad)]
    changes = EMPTY.compare(OUTCOMES, [])
    write_page(
        [check_outcome(entry) for entry in outcomes], score_of("npu", [], outcomes), changes, tmp_path / "page.html"
    )
    text = (tmp_path / "page.html").read_text()
    assert "script-src 'sha256-" in text and "alert(1)</script>" not in text
    assert '"regressed":[]' in text and "20.0 %" in text

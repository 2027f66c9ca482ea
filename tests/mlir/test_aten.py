"""Tests of the aten dialect: its ops and their verifier, its pipelines and documentation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from aten_modules import ops_of, parsed, shared_context
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_mlir import ir

from torchmdla import aten
from torchmdla.aten import constants, schemas

ACAP = """module {
  func.func @graph(%arg0: tensor<1x2x3xf32>, %arg1: tensor<1x2x3xf32>) -> tensor<1x2x3xf32> {
    %0 = "aten.constant"() {value = 1 : i32} : () -> i32
    %1 = "aten.add"(%arg0, %arg1, %0) : (tensor<1x2x3xf32>, tensor<1x2x3xf32>, i32) -> tensor<1x2x3xf32>
    return %1 : tensor<1x2x3xf32>
  }
}
"""


# The dialect


def test_acap_form_reads_and_prints_as_it_is(context: ir.Context) -> None:
    assert str(aten.parse(ACAP, context)).strip() == ACAP.strip()


def test_every_schema_is_an_op(context: ir.Context) -> None:
    registered = {
        (schema.name, schema.overload_name)
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::") and "..." not in str(schema)
    }
    names = [op.name for op in schemas.registry().values()]
    assert len(names) == len(set(names)) == len(registered) > 3000
    assert all(context.is_registered_operation(name) for name in names)


@pytest.mark.parametrize(
    ("qualified", "name"),
    [
        ("aten::add.Tensor", "aten.add"),
        ("aten::add.Scalar", "aten.add.Scalar"),
        ("aten::add", "aten.add.default"),
        ("aten::add.int", "aten.add.int"),
        ("aten::relu", "aten.relu"),
        ("aten::max", "aten.max"),
        ("aten::max.dim", "aten.max.dim"),
        ("aten::softmax.int", "aten.softmax"),
        ("aten::__and__.Tensor", "aten.__and__"),
        ("aten::mT", "aten.mT"),
    ],
)
def test_names(qualified: str, name: str) -> None:
    assert schemas.registry()[qualified].name == name
    assert schemas.by_op()[name].qualified == qualified


def test_registering_twice_is_fine(context: ir.Context) -> None:
    aten.register(context)
    aten.register(context)
    assert aten.parse(ACAP, context)


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        ('%0 = "aten.relu"() : () -> tensor<2x3xf32>', ["'aten.relu'", "expects 1 operands (self)", "got 0"]),
        (
            '%0 = "aten.add"(%a, %a) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>',
            ["'aten.add'", "3 operands (self, other, alpha)", "aten::add.Tensor", "got 2"],
        ),
        (
            '%0 = "aten.mm"(%a, %i) : (tensor<2x3xf32>, i32) -> tensor<2x3xf32>',
            ["'aten.mm'", "argument 'mat2'", "to be a tensor", "got i32"],
        ),
        (
            '%0 = "aten.permute"(%a, %a) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>',
            ["argument 'dims'", "a tuple with each element an integer", "got tensor<2x3xf32>"],
        ),
        (
            '%0 = "aten.sum.dim_IntList"(%a, %n, %i, %n) : (tensor<2x3xf32>, none, i32, none) -> tensor<f32>',
            ["argument 'keepdim'", "to be i1", "got i32"],
        ),
        ('%0 = "aten.relu"(%a) : (tensor<2x3xf32>) -> i32', ["result 0", "to be a tensor", "got i32"]),
        (
            '%0:2 = "aten.relu"(%a) : (tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)',
            ["expects 1 results", "got 2"],
        ),
        ('%0 = "aten.no_such_op"(%a) : (tensor<2x3xf32>) -> i32', ["unregistered operation 'aten.no_such_op'"]),
        ('%0 = "aten.constant"() : () -> i32', ["'aten.constant'", "expects an attribute 'value'"]),
        ('%0 = "aten.constant"() {value = 1 : i64} : () -> i32', ["a literal of type i32", "got 1 : i64"]),
        ('%0 = "aten.constant"() {value = array<i64: 1>} : () -> tuple<i32, i32>', ["tuple<i32, i32>"]),
        ('%0 = "aten.constant"() {value = "x"} : () -> f32', ["a literal of type f32"]),
        ('%0 = "aten.constant"() {value = dense<1.0> : tensor<2xf32>} : () -> tensor<3xf32>', ["tensor<3xf32>"]),
        ('%0 = "aten.constant"() {type = "f32", value = 1 : i32} : () -> i32', ["'type'", 'to be "i32", got "f32"']),
        ('%0 = "aten.constant"(%i) {value = 1 : i32} : (i32) -> i32', ["expects no operands and one result"]),
        ("%0 = this is no MLIR", ["the module is not valid"]),
    ],
)
def test_malformed_ops_are_explained(body: str, messages: list[str], context: ir.Context) -> None:
    with pytest.raises(aten.AtenError) as raised:
        parsed(body, context, "%a: tensor<2x3xf32>, %i: i32, %n: none")
    for message in messages:
        assert message in str(raised.value)


def test_optional_arguments_and_repeated_numbers(context: ir.Context) -> None:
    body = """
    %n = "aten.constant"() {value} : () -> none
    %i = "aten.constant"() {value = 2 : i32} : () -> i32
    %f = "aten.constant"() {value = false} : () -> i1
    %e = "aten.constant"() {value = array<i64>} : () -> tuple<>
    %0 = "aten.clamp"(%a, %i, %n) : (tensor<2x3xf32>, i32, none) -> tensor<2x3xf32>
    %1 = "aten.max_pool1d"(%a, %i, %e, %i, %i, %f) : (tensor<2x3xf32>, i32, tuple<>, i32, i32, i1) -> tensor<2x2xf32>
    """
    assert len(ops_of(parsed(body, context))) == 7


_numbers = st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats() | st.text() | st.none()
_lists = (
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5)
    | st.lists(st.booleans(), max_size=5)
    | st.lists(st.floats(), max_size=5)
)


@given(_numbers | _lists)
@settings(max_examples=200)
def test_literals_read_back(value: object) -> None:
    context = shared_context()
    with context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            constant = constants.constant(value)
        again = aten.parse(str(module), context).body.operations[0].operation
        for op in (constant.owner, again):
            assert repr(constants.read(op)) == repr(value)


@pytest.mark.parametrize(
    ("value", "type_"),
    [(1, "i32"), (2**31, "i64"), (0.5, "f32"), (0.1, "f64"), (1e300, "f64"), (True, "i1"), (None, "none")],
)
def test_types_of_literals(value: object, type_: str, context: ir.Context) -> None:
    with context:
        assert str(constants.literal(value)[1]) == type_


def test_no_literal_for_objects(context: ir.Context) -> None:
    with context, pytest.raises(TypeError, match="no literal"):
        constants.literal(object())


_HOSTILE = """
import random, sys
from torchmdla import aten
from torchmdla.aten.dialect import new_context

text = sys.stdin.read()
context, source = new_context(), random.Random(0)
refused = 0
for _ in range(300):
    start = source.randrange(len(text))
    garbled = text[:start] + source.choice(["", "%9", "i32", "tensor<", "none", "(", '"', "x", "-1"]) + text[
        start + source.randrange(12) :
    ]
    try:
        module = aten.parse(garbled, context)
        for step in (aten.layer_names, aten.op_report, aten.liveness_report, aten.lower_to_std):
            step(module)
    except aten.AtenError:
        refused += 1
print(refused)
"""


@pytest.mark.sampled(0)
def test_garbled_text_never_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", _HOSTILE], input=ACAP, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


# Pipelines


def test_pipelines_mix_passes(context: ir.Context, tmp_path: Path) -> None:
    module = aten.from_module(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(2, 4), context=context)
    operations, liveness = tmp_path / "operations.json", tmp_path / "liveness.txt"
    aten.run(
        module,
        f"builtin.module(aten-layer-name, func.func(cse,canonicalize), aten-op-report{{output={operations}}},"
        f"aten-liveness-report{{format=table function=forward output={liveness}}},"
        "aten-return-elimination,aten-to-std,canonicalize)",
    )
    assert json.loads(operations.read_text())["layers"]["L1-relu-0"]["counts"] == {">": 6}
    assert "L0-linear-0" in liveness.read_text()
    assert "call @aten_relu__f32r2__f32r2" in str(module)


def test_a_report_goes_to_standard_output(context: ir.Context, capsys: pytest.CaptureFixture[str]) -> None:
    module = aten.from_module(nn.ReLU(), torch.randn(6), context=context)
    aten.run(module, "builtin.module(aten-op-report)")
    assert json.loads(capsys.readouterr().out)["total"]["counts"] == {">": 6}


def test_pass_managers_print_ir(context: ir.Context, capfd: pytest.CaptureFixture[str]) -> None:
    module = aten.from_module(nn.ReLU(), torch.randn(6), context=context)
    manager = aten.pipeline("builtin.module(aten-lower-to-std)", context)
    manager.enable_ir_printing()
    manager.run(module.operation)
    assert "IR Dump After aten-lower-to-std" in capfd.readouterr().err


def test_the_table_names_every_pass() -> None:
    assert set(aten.PASSES) >= {
        "aten-layer-name",
        "aten-op-report",
        "aten-liveness-report",
        "aten-return-elimination",
        "aten-to-std",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("aten-to-std", "a pipeline is builtin.module"),
        ("builtin.module(no-such-pass)", "no-such-pass"),
        ("builtin.module(aten-layer-name{x=1})", "no option 'x=1'"),
        ("builtin.module(aten-op-report{format=xml})", "json or table"),
        ("builtin.module(aten-op-report{format=json)", "not closed"),
        ("builtin.module(canonicalize))", "bracket too many"),
        ("builtin.module(aten-op-report{function=nowhere})", "@nowhere"),
        ("builtin.module(aten-op-report{output=/no/such/folder/file})", "No such file"),
    ],
)
def test_pipelines_that_fail_say_why(text: str, message: str, context: ir.Context) -> None:
    module = aten.from_module(nn.ReLU(), torch.randn(6), context=context)
    with pytest.raises(aten.AtenError, match=message):
        aten.run(module, text)


# The documentation


@pytest.mark.sampled(0)
def test_the_example_runs() -> None:
    example = Path(__file__).parents[2] / "examples" / "aten_report.py"
    done = subprocess.run([sys.executable, str(example)], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "6,422,528" in done.stdout
    assert "aten_relu__f32r4__f32r4" in done.stdout


@pytest.mark.sampled(0)
def test_the_documentation_runs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "aten.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        done = subprocess.run([sys.executable, "-c", block], text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


def test_public_names_exist() -> None:
    assert all(getattr(aten, name) is not None for name in aten.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        aten.no_such_name  # noqa: B018

"""The aten dialect: its ops and their verifier, conversions into it, its passes and reports."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from aten_runtime import execute
from graphs import groups_of
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import run_and_record
from rich.console import Console
from single_op import graph_of
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.flop_counter import FlopCounterMode
from torch_mlir import ir
from torch_mlir.dialects import torch as torch_dialect

import torchmdla
from torchmdla import aten
from torchmdla.aten import constants, dialect, schemas
from torchmdla.aten.work import KINDS, rule_of
from torchmdla.importer import import_graph
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import MODELS
from torchmdla.testing.op_samples import SAMPLES

ACAP = """module {
  func.func @graph(%arg0: tensor<1x2x3xf32>, %arg1: tensor<1x2x3xf32>) -> tensor<1x2x3xf32> {
    %0 = "aten.constant"() {value = 1 : i32} : () -> i32
    %1 = "aten.add"(%arg0, %arg1, %0) : (tensor<1x2x3xf32>, tensor<1x2x3xf32>, i32) -> tensor<1x2x3xf32>
    return %1 : tensor<1x2x3xf32>
  }
}
"""


@pytest.fixture(scope="module")
def context() -> ir.Context:
    """Registering the dialect costs a few tenths of a second."""
    context = ir.Context()
    torch_dialect.register_dialect(context)
    aten.register(context)
    return context


def parsed(body: str, context: ir.Context, arguments: str = "%a: tensor<2x3xf32>") -> ir.Module:
    return aten.parse(f"func.func @f({arguments}) {{\n{body}\nreturn\n}}", context)


def ops_of(module: ir.Module) -> list[Any]:
    return [op.operation for op in module.body.operations[0].regions[0].blocks[0].operations]


def report_of(module: Any, *inputs: Any, context: ir.Context) -> aten.OpReport:
    return aten.op_report(aten.from_module(module, *inputs, context=context))


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
@settings(max_examples=200, deadline=None)
def test_literals_read_back(value: object) -> None:
    context = _shared_context()
    with context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            made = constants.constant(value)
        again = aten.parse(str(module), context).body.operations[0].operation
        for op in (made.owner, again):
            assert repr(constants.read(op)) == repr(value)


@lru_cache(maxsize=1)
def _shared_context() -> ir.Context:
    return dialect.new_context()


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


def test_importing_loads_no_mlir() -> None:
    code = "import sys, torchmdla, torchmdla.aten; sys.exit('torch_mlir' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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


def test_garbled_text_never_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", _HOSTILE], input=ACAP, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


# From the Torch dialect


@lru_cache(maxsize=1)
def imported_samples() -> dict[str, str]:
    """The importer's text for one call of each op that it takes."""
    texts = {}
    for name, samples in SAMPLES.items():
        graph, inputs = graph_of(name, samples[0], copy=True)
        _, record = run_and_record(graph, inputs)
        try:
            texts[name] = import_graph(graph, record, []).mlir
        except torchmdla.CompileError:
            continue
    return texts


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_from_torch_keeps_ops_and_types(name: str, context: ir.Context) -> None:
    if name not in imported_samples():
        pytest.skip("the importer refuses it")
    with context:
        source = ir.Module.parse(imported_samples()[name])
    module = aten.from_torch(source)
    before = [op for op in ops_of(source) if op.name.startswith("torch.aten.")]
    after = [op for op in ops_of(module) if op.name.startswith("aten.") and op.name != "aten.constant"]
    # It stands for prim.NumToTensor, too.
    before = [op for op in before if op.name != "torch.aten.scalar_tensor"]
    after = [op for op in after if op.name != "aten.scalar_tensor"]
    assert [op.name.removeprefix("torch.aten.") for op in before] == [
        schemas.by_op()[op.name].qualified.removeprefix("aten::") for op in after
    ]
    for old, new in zip(before, after, strict=True):
        assert str(old.location) == str(new.location)
        for was, is_ in zip(old.results, new.results, strict=True):
            if str(was.type).startswith("!torch.vtensor"):
                sizes, _, element = str(was.type)[len("!torch.vtensor<[") : -1].partition("],")
                expected = "x".join([*filter(None, sizes.split(",")), element.replace("si", "i")])
                assert str(is_.type) == f"tensor<{expected}>"


def test_from_torch_of_a_group(context: ir.Context) -> None:
    x = torch.randn(2, 3, 8, 8)
    scripted = torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()))
    (group,) = groups_of(scripted, x)
    _, record = run_and_record(group, [x])
    module = aten.from_torch(import_graph(group, record, []).mlir)
    names = [op.name for op in ops_of(module) if op.name not in ("aten.constant", "func.return")]
    assert names == ["aten.conv2d", "aten.relu"] or names == ["aten.convolution", "aten.relu"]
    assert str(ir.StringAttr(module.body.operations[0].attributes["sym_name"]).value) == "forward"


def test_from_torch_keeps_declarations() -> None:
    text = "func.func private @f(!torch.vtensor<[2],si64>) -> !torch.int"
    assert "func.func private @f(tensor<2xi64>) -> i64" in str(aten.from_torch(text))


def test_from_torch_of_numbers_and_marked_arguments(context: ir.Context) -> None:
    text = """func.func @f(%a: !torch.vtensor<[2],f32> {torch.type_bound = !torch.vtensor<[2],f32>, aten.parameter})
        -> (!torch.vtensor<[2],f32>, !torch.int) {
      %i = torch.constant.int 3
      return %a, %i : !torch.vtensor<[2],f32>, !torch.int
    }"""
    printed = str(aten.from_torch(text))
    assert "@f(%arg0: tensor<2xf32> {aten.parameter}) -> (tensor<2xf32>, i32)" in printed
    assert aten.parse(printed)


def _torch_function(body: str, arguments: str = "%a: !torch.vtensor<[2],f32>") -> str:
    return f"module {{ func.func @f({arguments}) {{\n{body}\nreturn }} }}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_torch_function('%0 = "torch.prims.iota"() : () -> !torch.vtensor<[2],f32>'), "not valid"),
        (_torch_function("%0 = torch.prim.dtype %a : !torch.vtensor<[2],f32> -> !torch.int"), "torch.prim.dtype"),
        (_torch_function("", "%a: !torch.dict<str, int>"), "type !torch.dict<str, int>"),
        (
            _torch_function(
                "%0 = torch.aten.unbind.int %a, %i : !torch.vtensor<[2],f32>, !torch.int -> !torch.list<vtensor>",
                "%a: !torch.vtensor<[2],f32>, %i: !torch.int",
            ),
            "length of the list that torch.aten.unbind.int makes",
        ),
        ("func.func @f() { cf.br ^a\n^a:\n return }", "control flow"),
        ("not MLIR at all", "not valid"),
    ],
)
def test_from_torch_explains_what_it_refuses(text: str, message: str) -> None:
    with pytest.raises(aten.AtenError, match=message):
        aten.from_torch(text)


def test_from_torch_takes_numbers_lists_and_sizes_that_vary(context: ir.Context) -> None:
    text = """func.func @f(%a: !torch.vtensor<[?,4],si64>, %b: !torch.vtensor<[],ui8>) -> !torch.vtensor<[?,2],si64> {
      %d = torch.constant.int 0
      %n = torch.aten.size.int %a, %d : !torch.vtensor<[?,4],si64>, !torch.int -> !torch.int
      %t = torch.constant.int 2
      %one = torch.constant.int 1
      %pieces = torch.aten.split.Tensor %a, %t, %one
        : !torch.vtensor<[?,4],si64>, !torch.int, !torch.int -> !torch.list<vtensor>
      %p:2 = torch.prim.ListUnpack %pieces
        : !torch.list<vtensor> -> !torch.vtensor<[?,2],si64>, !torch.vtensor<[?,2],si64>
      %sizes = torch.prim.ListConstruct %n, %t : (!torch.int, !torch.int) -> !torch.list<int>
      %v = torch.aten.view %p#0, %sizes
        : !torch.vtensor<[?,2],si64>, !torch.list<int> -> !torch.vtensor<[?,2],si64>
      return %v : !torch.vtensor<[?,2],si64>
    }"""
    printed = str(aten.from_torch(text))
    assert "@f(%arg0: tensor<?x4xi64>, %arg1: tensor<ui8>) -> tensor<?x2xi64>" in printed
    assert "tuple<tensor<?x2xi64>, tensor<?x2xi64>>" in printed
    assert '"aten.view"' in printed and "tuple<i64, i32>" in printed


# From PyTorch's graphs


def layers_of(module: ir.Module) -> list[str]:
    return [layer.op for layer in aten.op_report(module).layers]


def test_ops_stay_whole(context: ir.Context) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 5, batch_first=True)
            self.norm = nn.LayerNorm(5)

        def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return F.gelu(self.norm(self.lstm(x, state)[0]))

    state = (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5))
    module = aten.from_module(torch.jit.script(Model()), torch.randn(2, 3, 4), state, context=context)
    assert layers_of(module) == ["aten::lstm.input", "aten::layer_norm", "aten::gelu"]
    assert str(module).count("{aten.parameter}") == 6


def test_control_flow_is_what_was_executed(context: ir.Context) -> None:
    @torch.jit.script
    def function(x: torch.Tensor, count: int) -> torch.Tensor:
        for i in range(count):
            x = x.sin() if i % 2 == 0 else x + i
        return x

    module = aten.from_module(function, torch.randn(3), 3, context=context)
    assert layers_of(module) == ["aten::sin", "aten::add.Scalar", "aten::sin"]


def test_a_tensor_given_twice_is_two_arguments(context: ir.Context) -> None:
    x = torch.randn(3)
    module = aten.from_module(torch.jit.script(_sum), x, x, context=context)
    assert len(ops_of_function(module).arguments) == 2


def _sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def test_a_run_changes_neither_buffers_nor_the_generator(context: ir.Context) -> None:
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    generator = torch.get_rng_state()
    aten.from_module(module, torch.randn(4, 3), context=context)
    torch.randn(4, 3)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    torch.set_rng_state(generator)
    expected = torch.rand(1)
    torch.set_rng_state(generator)
    x = torch.zeros(4, 3)
    aten.from_module(module, x, context=context)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: aten.from_graph(torch.jit.script(F.relu).inlined_graph, []), "takes 2 inputs, got 0"),
        (lambda: aten.from_module(_raising, torch.ones(1)), "the program raises"),
        (lambda: aten.from_module(torch.jit.script(_complex_half), torch.ones(1)), "complex32"),
    ],
)
def test_graphs_that_are_refused(run: Callable[[], object], message: str) -> None:
    with pytest.raises(aten.AtenError, match=message):
        run()


@torch.jit.script
def _raising(x: torch.Tensor) -> torch.Tensor:
    if x.size(0) == 1:
        raise ValueError("no")
    return x


def _complex_half(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.complex32)


def test_what_cannot_be_traced_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="got int"):
        aten.from_module(3)


class Exported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("shift", torch.ones(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = x.split(2, 1)
        return torch.cat([first, self.linear(x) + self.shift]), second.max(1).values


def test_exported_programs(context: ir.Context) -> None:
    program = torch.export.export(Exported(), (torch.randn(6, 4),), dynamic_shapes=({0: torch.export.Dim("n")},))
    module = aten.from_fx(program, context=context)
    printed = str(module)
    assert printed.count("{aten.parameter}") == 3
    assert "tensor<?x4xf32>" in printed
    assert '"aten.linear"' in printed and '"aten.max.dim"' in printed and '"aten.split' in printed


def test_fx_graphs_without_types_are_refused() -> None:
    graph = torch.fx.symbolic_trace(Exported())
    with pytest.raises(aten.AtenError, match=r'node x: it has no meta\["val"\]'):
        aten.from_fx(graph)


# Layer names


def test_layer_names(context: ir.Context) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    module = aten.from_module(model, torch.randn(2, 4), context=context)
    names = ["L0-linear-0", "L1-relu-0", "L2-linear-1", "L3-relu-1"]
    assert aten.layer_names(module) == names
    assert aten.layer_names(module) == names
    attributes = [op.attributes["layer_name"].value for op in ops_of(module) if "layer_name" in op.attributes]
    assert attributes == names
    assert [layer.name for layer in aten.op_report(module).layers] == names


# The op report


FIGURES: list[tuple[nn.Module, tuple[int, ...], dict[str, object]]] = [
    (
        nn.Conv2d(2, 16, 7, stride=2, padding=3),
        (1, 2, 128, 128),
        {
            "activations_in": 32768,
            "activations_out": 65536,
            "parameters_in": 1584,
            "reads": 34352,
            "writes": 65536,
            "counts": {"MAC": 6422528, "+": 65536},
        },
    ),
    (nn.Linear(1024, 16), (1, 1024), {"reads": 17424, "writes": 16, "counts": {"MAC": 16384, "+": 16}}),
    (
        nn.MaxPool2d(3, stride=2, padding=1),
        (1, 8, 32, 32),
        {"activations_in": 8192, "activations_out": 2048, "counts": {">": 16384}},
    ),
    (
        nn.BatchNorm2d(123, track_running_stats=False),
        (1, 123, 28, 30),
        {"activations_in": 103320, "counts": {"*": 310206, "+": 413280, "-": 123, "/": 123, "sqrt": 123}},
    ),
    (nn.ReLU(), (6,), {"reads": 6, "writes": 6, "counts": {">": 6}}),
]


@pytest.mark.parametrize(("module", "shape", "figures"), FIGURES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("road", ["trace", "script", "export"])
def test_known_figures(
    module: nn.Module, shape: tuple[int, ...], figures: dict[str, object], road: str, context: ir.Context
) -> None:
    x = torch.randn(shape)
    if road == "export":
        made = aten.from_fx(torch.export.export(module, (x,)), context=context)
    else:
        made = aten.from_module(torch.jit.script(module) if road == "script" else module, x, context=context)
    (layer,) = aten.op_report(made).layers
    assert {name: getattr(layer, name) for name in figures} == figures


def test_every_op_of_the_cpu_device_has_a_rule() -> None:
    taken = [name for name in torchmdla.supported_ops() if name.startswith("aten::")]
    missing = [name for name in taken if rule_of(schemas.registry()[name]) is None]
    assert missing == []
    assert len(taken) > 350


# Ops that are worth a kernel and count nothing: they move data, or have nothing to do for these arguments.
_MOVING = ("upsample_nearest", "index_put", "dropout")


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_every_op_is_reported(name: str, context: ir.Context) -> None:
    for sample in SAMPLES[name]:
        graph, inputs = graph_of(name, sample, copy=False)
        module = aten.from_graph(graph, inputs, context=context)
        layer = aten.op_report(module).layers[0]
        assert layer.op == name
        assert layer.counts is not None
        assert set(layer.counts) <= set(KINDS)
        assert all(number > 0 for number in layer.counts.values())
        assert layer.reads == layer.activations_in + layer.parameters_in
        support = torchmdla.supported_ops()[name]
        base = name.removeprefix("aten::")
        if support.kind == "compute" and not base.startswith(_MOVING):
            assert layer.counts or layer.writes == 0 or layer.reads <= 1, (name, sample)
        point = aten.liveness_report(module).points[0]
        assert point.bytes > 0 or not inputs


@pytest.mark.parametrize("name", ["sum_to_size", "_grad_sum_to_size"])
def test_sums_to_the_same_size_are_free(name: str, context: ir.Context) -> None:
    graph, inputs = graph_of(f"aten::{name}", (torch.randn(3, 4), [3, 4]), copy=False)
    assert aten.op_report(aten.from_graph(graph, inputs, context=context)).layers[0].counts == {}


def macs(function: Callable[..., Any], *inputs: Any, context: ir.Context) -> tuple[int, int]:
    """Ours, and half of the floating point operations that PyTorch's counter finds."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        function(*inputs)
    report = report_of(function, *inputs, context=context)
    return (report.total.counts or {}).get("MAC", 0), counter.get_total_flops() // 2


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_convolutions_count_as_pytorch_counts(data: st.DataObject) -> None:
    dims, groups = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    transposed = data.draw(st.booleans())
    cls = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dims}d")
    module = cls(
        groups * data.draw(st.integers(1, 3)),
        groups * data.draw(st.integers(1, 3)),
        kernel_size=data.draw(st.integers(1, 3)),
        stride=data.draw(st.integers(1, 3)),
        padding=data.draw(st.integers(0, 1)),
        dilation=data.draw(st.integers(1, 2)),
        groups=groups,
        bias=data.draw(st.booleans()),
    )
    x = torch.randn(2, module.in_channels, *[data.draw(st.integers(6, 8)) for _ in range(dims)])
    ours, theirs = macs(module, x, context=_shared_context())
    assert ours == theirs > 0


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, True)])
def test_gradients_of_convolutions(transposed: bool, mask: tuple[bool, ...], context: ir.Context) -> None:
    x = torch.randn(2, 4, 9, 9)
    weight = torch.randn(4, 3, 3, 3) if transposed else torch.randn(6, 2, 3, 3)
    out = torch.convolution(x, weight, None, [2, 2], [1, 1], [1, 1], transposed, [0, 0], 2)
    arguments = (out, x, weight, [out.size(1)], [2, 2], [1, 1], [1, 1], transposed, [0, 0], 2, list(mask))
    graph, inputs = graph_of("aten::convolution_backward", arguments, copy=False)
    forward = out.numel() * weight[0].numel() if not transposed else x.numel() * weight[0].numel()
    report = aten.op_report(aten.from_graph(graph, inputs, context=context))
    expected = {"MAC": forward * sum(mask[:2])} | ({"+": out.numel()} if mask[2] else {})
    assert report.layers[0].op == "aten::convolution_backward"
    assert report.layers[0].counts == expected


# From 2 on: of a size of 1 PyTorch makes elementwise products.
@given(st.integers(2, 6), st.integers(2, 6), st.integers(2, 6), st.integers(2, 4))
@settings(max_examples=15, deadline=None)
def test_products_count_as_pytorch_counts(m: int, k: int, n: int, b: int) -> None:
    left, right = torch.randn(m, k), torch.randn(k, n)
    batch_left, batch_right = torch.randn(b, m, k), torch.randn(b, k, n)
    heads = torch.randn(2, b, m, k), torch.randn(2, b, n, k), torch.randn(2, b, n, k)
    context = _shared_context()
    for function, inputs in [
        (torch.mm, (left, right)),
        (torch.matmul, (batch_left, right)),
        (torch.bmm, (batch_left, batch_right)),
        (torch.addmm, (torch.randn(m, n), left, right)),
        (torch.baddbmm, (torch.randn(b, m, n), batch_left, batch_right)),
        (F.linear, (batch_left, right.t().contiguous())),
        (lambda x, y: torch.tensordot(x, y, 1), (left, right)),
        (lambda x, y: torch.einsum("bij,jk->bik", x, y), (batch_left, right)),
    ]:
        ours, theirs = macs(function, *inputs, context=context)
        assert ours == theirs == m * k * n * (b if inputs[0] is batch_left or inputs[-1] is batch_right else 1)
    ours, _ = macs(F.scaled_dot_product_attention, *heads, context=context)
    assert ours == 2 * b * m * n * 2 * k


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenet_v3_large", "densenet121", "unet", "bert", "mlp"])
def test_models_count_as_pytorch_counts(name: str, context: ir.Context) -> None:
    spec = MODELS[name].small or MODELS[name]
    model = spec.architecture().eval()
    inputs = spec.draw(spec.batch, spec.sizes[0], torch.Generator().manual_seed(0))
    ours, theirs = macs(model, *inputs, context=context)
    assert ours == theirs > 0


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)], {"MAC": 24}),
        ("ij,jk", [(2, 3), (3, 4)], {"MAC": 24}),
        ("...ij,...jk->...ik", [(5, 2, 3), (5, 3, 4)], {"MAC": 120}),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)], {"MAC": 24 + 40}),
        ("ij->i", [(2, 3)], {"+": 6}),
        ("ij->ji", [(2, 3)], {}),
        ("i,j->ij", [(2,), (3,)], {"MAC": 6}),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]], expected: dict[str, int], context: ir.Context) -> None:
    report = report_of(lambda *x: torch.einsum(equation, *x), *map(torch.randn, shapes), context=context)
    assert report.layers[0].op == "aten::einsum"
    assert report.layers[0].counts == expected


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(7, 3), (8, 4), (5, 5), (2, 3)])
def test_pooling_adds_what_reaches_a_result(dims: int, sizes: tuple[int, int], context: ir.Context) -> None:
    """Elements that have a gradient, over all results."""
    x = torch.randn(1, 1, *[sizes[0]] * dims)
    pool = getattr(nn, f"AdaptiveAvgPool{dims}d")(sizes[1])
    jacobian = torch.autograd.functional.jacobian(pool, x)
    counts = report_of(pool, x, context=context).layers[0].counts
    assert counts == {"+": int(torch.count_nonzero(jacobian)), "*": pool(x).numel()}


@pytest.mark.parametrize(
    ("function", "inputs", "expected"),
    [
        (lambda x, y: x + y, [(3, 4), (4,)], {"+": 12}),
        (lambda x, y: torch.add(x, y, alpha=2), [(3, 4), (4,)], {"MAC": 12}),
        (lambda x: x.relu_(), [(3, 4)], {">": 12}),
        (lambda x: x**2, [(3, 4)], {"*": 12}),
        (lambda x: x**0.3, [(3, 4)], {"pow": 12}),
        (lambda x: x.clamp(min=0), [(3, 4)], {">": 12}),
        (lambda x: x.clamp(0, 1), [(3, 4)], {">": 24}),
        (lambda x: x.sum(), [(3, 4)], {"+": 12}),
        (lambda x: x.mean(1), [(3, 4)], {"+": 12, "*": 3}),
        (lambda x: x.amax(1), [(3, 4)], {">": 9}),
        (lambda x: x.softmax(-1), [(3, 4)], {">": 9, "-": 12, "exp": 12, "+": 12, "/": 12}),
        (lambda x: F.layer_norm(x, [4]), [(3, 4)], {"*": 24 + 6, "+": 36, "-": 3, "/": 3, "sqrt": 3}),
        (lambda x: F.group_norm(x, 2), [(3, 4)], {"*": 24 + 12, "+": 36, "-": 6, "/": 6, "sqrt": 6}),
        (lambda x: F.avg_pool1d(x, 2), [(3, 4)], {"+": 12, "*": 6}),
        (lambda x: x.t(), [(3, 4)], {}),
        (lambda x: torch.cat([x, x]), [(3, 4)], {}),
    ],
)
def test_counts(
    function: Callable[..., Any], inputs: list[tuple[int, ...]], expected: dict[str, int], context: ir.Context
) -> None:
    report = report_of(function, *map(torch.randn, inputs), context=context)
    assert report.total.counts == expected


def test_inference_of_a_batch_norm_uses_running_statistics(context: ir.Context) -> None:
    layer = report_of(nn.BatchNorm2d(4).eval(), torch.randn(2, 4, 3, 3), context=context).layers[0]
    assert layer.counts == {"*": 72 + 8, "+": 72 + 4, "-": 4, "/": 4, "sqrt": 4}


def test_recurrent_networks_are_the_sum_of_their_cells(context: ir.Context) -> None:
    for network, cell in [(nn.LSTM(4, 5), nn.LSTMCell(4, 5)), (nn.GRU(4, 5), nn.GRUCell(4, 5))]:
        state = torch.zeros(2, 5)
        hidden = (state, state) if isinstance(cell, nn.LSTMCell) else state
        one = report_of(torch.jit.script(cell), torch.randn(2, 4), hidden, context=context).total.counts
        several = [layer for layer in report_of(network, torch.randn(3, 2, 4), context=context).layers if layer.counts]
        assert several[0].counts == {kind: 3 * number for kind, number in (one or {}).items()}


def test_views_touch_no_data_and_stay_parameters(context: ir.Context) -> None:
    x, weight = torch.randn(2, 4), nn.Parameter(torch.randn(3, 4))
    module = aten.from_module(_Product(weight), x, context=context)
    view, product = aten.op_report(module).layers
    assert (view.op, view.reads, view.writes) == ("aten::t", 0, 0)
    assert (product.activations_in, product.parameters_in) == (8, 12)


class _Product(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mm(self.weight.t())


def test_embeddings_read_the_rows_that_they_look_up(context: ir.Context) -> None:
    layer = report_of(nn.Embedding(1000, 8), torch.tensor([1, 2, 3]), context=context).layers[0]
    assert (layer.activations_in, layer.parameters_in, layer.writes) == (3, 24, 24)


def test_without_marks_parameters_are_what_schemas_call_so(context: ir.Context) -> None:
    body = """
    %0 = "aten.linear"(%a, %w, %b) : (tensor<2x3xf32>, tensor<4x3xf32>, tensor<4xf32>) -> tensor<2x4xf32>
    """
    module = parsed(body, context, "%a: tensor<2x3xf32>, %w: tensor<4x3xf32>, %b: tensor<4xf32>")
    (layer,) = aten.op_report(module).layers
    assert (layer.activations_in, layer.parameters_in) == (6, 16)


def test_ops_without_a_rule_are_named(context: ir.Context) -> None:
    report = report_of(lambda x: torch.linalg.inv(x), torch.eye(3), context=context)
    assert report.uncounted == ("aten::linalg_inv",)
    assert report.layers[0].counts is None
    assert json.loads(report.to_json())["uncounted"] == ["aten::linalg_inv"]
    assert "not known" in rendered(report)


def rendered(report: object) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(report)
    return capture.get()


def test_op_report_as_json_and_table(context: ir.Context) -> None:
    report = report_of(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(2, 4), context=context)
    read = json.loads(report.to_json())
    assert read["function"] == "forward"
    assert list(read["layers"]) == ["L0-linear-0", "L1-relu-0"]
    assert read["layers"]["L0-linear-0"]["counts"] == {"MAC": 24, "+": 6}
    assert read["total"]["counts"] == {"MAC": 24, "+": 6, ">": 6}
    assert read["total"]["reads"] == 8 + 15 + 6
    table = rendered(report)
    assert "L1-relu-0" in table and "MAC 24, + 6, > 6" in table


@pytest.mark.parametrize("report", [aten.op_report, aten.liveness_report])
def test_reports_need_known_sizes_and_one_function(report: Callable[..., object], context: ir.Context) -> None:
    dynamic = parsed('%0 = "aten.relu"(%a) : (tensor<?xf32>) -> tensor<?xf32>', context, "%a: tensor<?xf32>")
    with pytest.raises(aten.AtenError, match="sizes of %arg0"):
        report(dynamic)
    two = aten.parse("func.func @f() { return }\nfunc.func @g() { return }", context)
    with pytest.raises(aten.AtenError, match="the module has @f, @g"):
        report(two)
    assert report(two, "g")
    with pytest.raises(aten.AtenError, match="function @h expected"):
        report(two, "h")
    branches = aten.parse("func.func @f() { cf.br ^a\n^a:\n return }", context)
    with pytest.raises(aten.AtenError, match="control flow"):
        report(branches)
    foreign = parsed("%0 = arith.constant 1 : i32", context)
    with pytest.raises(aten.AtenError, match=r"arith\.constant is no op of the aten dialect"):
        report(foreign)


# The liveness report


def held(point: aten.LivenessPoint) -> dict[str, int]:
    return {value.name: value.bytes for value in point.values}


def test_liveness_of_a_chain(context: ir.Context) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        a = x.relu()
        b = a.t()
        c = b.exp()
        return c.sum()

    module = aten.from_module(function, torch.randn(2, 4), context=context)
    report = aten.liveness_report(module)
    assert [held(point) for point in report.points] == [
        {"%arg0": 32, "L0-relu-0": 32},
        {"L0-relu-0": 32},  # the view is no memory of its own
        {"L0-relu-0": 32, "L2-exp-0": 32},  # the view keeps what it is a view of
        {"L2-exp-0": 32, "L3-sum-0": 4},
    ]
    assert report.peak is not None
    assert (report.peak.layer, report.peak.bytes) == ("L0-relu-0", 64)


def test_liveness_of_parameters_residuals_and_results(context: ir.Context) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.first(x)
            return self.second(y.relu()) + x, y

    module = aten.from_module(Residual(), torch.randn(2, 4), context=context)
    report = aten.liveness_report(module)
    parameters = 4 * (32 + 8 + 32 + 4)
    assert {point.bytes_of("parameter") for point in report.points} == {parameters}
    activations = [{value.name for value in point.values if value.role != "parameter"} for point in report.points]
    assert activations == [
        {"%arg0", "L0-linear-0"},
        {"%arg0", "L0-linear-0", "L1-relu-0"},
        {"%arg0", "L0-linear-0", "L1-relu-0", "L2-linear-1"},
        {"%arg0", "L0-linear-0", "L2-linear-1", "L3-add-0"},
    ]
    read = json.loads(report.to_json())
    assert read["peak"]["layer"] == "L2-linear-1"
    assert read["peak"]["bytes"] == parameters + 32 + 64 + 64 + 32
    assert "L2-linear-1" in rendered(report)


def test_liveness_of_in_place_ops_and_several_results(context: ir.Context) -> None:
    body = """
    %i = "aten.constant"() {value = 1 : i32} : () -> i32
    %f = "aten.constant"() {value = false} : () -> i1
    %0 = "aten.exp"(%a) : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %1 = "aten.relu_"(%0) : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %2:2 = "aten.max.dim"(%1, %i, %f) : (tensor<2x3xf32>, i32, i1) -> (tensor<2xf32>, tensor<2xi64>)
    """
    report = aten.liveness_report(parsed(body, context))
    assert held(report.points[1]) == {"L0-exp-0": 24}
    assert held(report.points[2]) == {"L0-exp-0": 24, "L2-max-0#0": 8, "L2-max-0#1": 16}


def test_liveness_of_nothing(context: ir.Context) -> None:
    report = aten.liveness_report(parsed("", context))
    assert report.peak is None
    assert json.loads(report.to_json())["peak"] is None


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_liveness_is_what_reference_counts_keep(edges: list[tuple[int, int]]) -> None:
    """Of random graphs of additions: a value is held from its layer to the last that uses it."""
    names, lines = ["%a"], ['%one = "aten.constant"() {value = 1 : i32} : () -> i32']
    uses = []
    for number, (left, right) in enumerate(edges):
        pair = left % len(names), right % len(names)
        uses.append(pair)
        operands = f"{names[pair[0]]}, {names[pair[1]]}"
        lines.append(
            f'%v{number} = "aten.add"({operands}, %one) : (tensor<3xf32>, tensor<3xf32>, i32) -> tensor<3xf32>'
        )
        names.append(f"%v{number}")
    report = aten.liveness_report(parsed("\n".join(lines), _shared_context(), "%a: tensor<3xf32>"))
    for number, point in enumerate(report.points):
        wanted = {index for pair in uses[number:] for index in pair if index <= number} | {number + 1}
        if number == 0:
            wanted.add(0)
        assert point.bytes == 12 * len(wanted)


# Return elimination and aten-to-std


class _Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(F.gelu(self.norm(x)))
        return y, x.argmax(1)


def _pieces(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    first, second = x.split(2, 0)
    both = torch.cat([first * 2.5, second + y], 1)
    return both, both, x


def _indexed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[torch.tensor([0, 3, 1])].masked_fill(y > 0, math.inf)


PROGRAMS: list[tuple[Any, list[tuple[int, ...]]]] = [
    (
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()).eval(),
        [(1, 2, 8, 8)],
    ),
    (_Norms(), [(4, 6)]),
    (nn.LSTM(4, 5, 2), [(3, 2, 4)]),
    (_pieces, [(4, 3), (3,)]),
    (_indexed, [(4, 3), (3,)]),
    (lambda x: x.new_zeros(2, 0), [(2,)]),
    (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), [(1, 2, 3, 4)]),
    (lambda x: F.conv2d(x, torch.ones(2, 2, 3, 3), padding="same"), [(1, 2, 4, 4)]),
]


@pytest.mark.parametrize(("program", "shapes"), PROGRAMS, ids=lambda value: getattr(value, "__name__", ""))
def test_lowered_modules_compute_eagers_values(
    program: Any, shapes: list[tuple[int, ...]], context: ir.Context
) -> None:
    inputs = [torch.randn(shape) for shape in shapes]
    module = aten.from_module(program, *inputs, context=context)
    weights = _arguments_of(program, module, len(inputs))
    aten.lower_to_std(module)
    text = str(module)
    assert '"aten.' not in text and "tensor<" not in text.replace("initial_value", "")
    with torch.no_grad():
        eager = program(*inputs)
    flat = torch.utils._pytree.tree_leaves(eager)
    outputs = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in flat]
    execute(module, [*inputs, *weights], outputs)
    for got, expected in zip(outputs, flat, strict=True):
        assert_matches(got, expected.contiguous())


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_every_op_is_lowered(name: str, context: ir.Context) -> None:
    graph, inputs = graph_of(name, SAMPLES[name][0], copy=False)
    module = aten.from_graph(graph, inputs, context=context)
    aten.lower_to_std(module)
    expected, _ = run_and_record(graph, inputs)
    flat = [tensor for tensor in torch.utils._pytree.tree_leaves(expected) if isinstance(tensor, torch.Tensor)]
    outputs = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in flat]
    given = [tensor.contiguous() for tensor in torch.utils._pytree.tree_leaves(inputs)]
    execute(module, given, outputs)
    for got, wanted in zip(outputs, flat, strict=True):
        assert_matches(got, wanted.contiguous())


def _arguments_of(program: Any, module: ir.Module, inputs: int) -> list[torch.Tensor]:
    """The weights in the order of the module's arguments, found by the order of their first use."""
    count = len(ops_of_function(module).arguments) - inputs
    if not isinstance(program, nn.Module):
        return [torch.tensor([0, 3, 1]) if program is _indexed else torch.ones(2, 2, 3, 3)][:count]
    values = [*program.parameters(), *program.buffers()]
    tensors = [value.detach() for value in values if value.dtype.is_floating_point]
    assert len(tensors) == count
    return tensors


def ops_of_function(module: ir.Module) -> Any:
    return module.body.operations[0].regions[0].blocks[0]


def test_results_become_trailing_arguments(context: ir.Context) -> None:
    module = aten.from_module(_pieces, torch.randn(4, 3), torch.randn(3), context=context)
    aten.return_elimination(module)
    function = module.body.operations[0]
    assert str(function.attributes["function_type"]) == (
        "(tensor<4x3xf32>, tensor<3xf32>, memref<2x6xf32>, memref<2x6xf32>, memref<4x3xf32>) -> ()"
    )
    assert str(module).count("bufferization.materialize_in_destination") == 3
    assert aten.op_report(module).layers[-1].op == "aten::cat"


def test_numbers_are_returned_in_memory_and_none_is_dropped(context: ir.Context) -> None:
    module = aten.parse(
        """func.func @f(%a: tensor<?xf32>) -> (i64, none) {
        %0 = "aten.constant"() {value = 0 : i32} : () -> i32
        %1 = "aten.size.int"(%a, %0) : (tensor<?xf32>, i32) -> i64
        %2 = "aten.constant"() {value} : () -> none
        return %1, %2 : i64, none
        }""",
        context,
    )
    aten.lower_to_std(module)
    text = str(module)
    assert "@f(%arg0: memref<?xf32>, %arg1: memref<i64>)" in text
    assert "call @aten_size_int__f32r1_i64__i64(" in text
    assert "memref.store" in text


def test_memory_results_become_arguments_too(context: ir.Context) -> None:
    module = aten.from_module(_pieces, torch.randn(4, 3), torch.randn(3), context=context)
    aten.aten_to_std(module)
    assert "-> (memref<2x6xf32>, memref<2x6xf32>, memref<4x3xf32>)" in str(module)
    aten.return_elimination(module)
    text = str(module)
    assert text.count("memref.copy") == 2
    assert text.count("memref.alloc(") == text.count("memref.dealloc") == 4


def test_every_allocation_is_freed_once_after_its_last_use(context: ir.Context) -> None:
    module = aten.from_module(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(3, 4))
    aten.lower_to_std(module)
    names = [op.name for op in ops_of(module) if op.name in ("memref.alloc", "memref.dealloc", "func.call")]
    assert names == [
        *("memref.alloc", "func.call"),
        *("memref.alloc", "func.call", "memref.dealloc"),
        *("func.call", "memref.dealloc"),
    ]


def test_in_place_ops_write_their_argument(context: ir.Context) -> None:
    body = '%0 = "aten.relu_"(%a) : (tensor<2x3xf32>) -> tensor<2x3xf32>'
    module = parsed(body, context)
    aten.aten_to_std(module)
    assert "call @aten_relu___f32r2__(%cast)" in str(module)
    assert "memref.alloc" not in str(module)


@pytest.mark.parametrize(
    ("body", "arguments", "message"),
    [
        (
            """%0 = "aten.t"(%a) : (tensor<2x3xf32>) -> tensor<3x2xf32>
            %1 = "aten.relu_"(%0) : (tensor<3x2xf32>) -> tensor<3x2xf32>""",
            "%a: tensor<2x3xf32>",
            "aten::relu_ writes to what is a view, or has one, by aten::t",
        ),
        (
            """%0 = "aten.t"(%a) : (tensor<2x3xf32>) -> tensor<3x2xf32>
            %1 = "aten.relu_"(%a) : (tensor<2x3xf32>) -> tensor<2x3xf32>""",
            "%a: tensor<2x3xf32>",
            "aten::relu_ writes to what is a view, or has one, by aten::t",
        ),
        (
            """%i = "aten.constant"() {value = 1 : i32} : () -> i32
            %0 = "aten.unbind"(%a, %i) : (tensor<2x1xf32>, i32) -> tuple<tensor<2xf32>>
            %1 = builtin.unrealized_conversion_cast %0 : tuple<tensor<2xf32>> to tensor<2xf32>
            %2 = "aten.relu_"(%1) : (tensor<2xf32>) -> tensor<2xf32>""",
            "%a: tensor<2x1xf32>",
            "aten::relu_ writes to what is a view, or has one, by aten::unbind.int",
        ),
        ('%0 = "aten.relu"(%a) : (tensor<?xf32>) -> tensor<?xf32>', "%a: tensor<?xf32>", "sizes of a result"),
        ("%0 = arith.constant 1 : i32", "%a: tensor<2xf32>", "arith.constant is no op"),
    ],
)
def test_what_cannot_be_lowered_leaves_the_module(body: str, arguments: str, message: str, context: ir.Context) -> None:
    module = parsed(
        '%z = "aten.constant"() {value = dense<0.0> : tensor<2xf32>} : () -> tensor<2xf32>\n' + body, context, arguments
    )
    before = str(module)
    with pytest.raises(aten.AtenError, match=message):
        aten.aten_to_std(module)
    assert str(module) == before
    module.operation.verify()


def test_functions_that_are_called_keep_their_results(context: ir.Context) -> None:
    module = aten.parse(
        """func.func @f(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }
        func.func @g(%a: tensor<2xf32>) -> tensor<2xf32> {
          %0 = func.call @f(%a) : (tensor<2xf32>) -> tensor<2xf32>
          return %0 : tensor<2xf32>
        }""",
        context,
    )
    with pytest.raises(aten.AtenError, match="@f is called"):
        aten.return_elimination(module)


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


# Words in the documentation


def test_the_example_runs() -> None:
    example = Path(__file__).parent.parent / "examples" / "aten_report.py"
    done = subprocess.run([sys.executable, str(example)], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "6,422,528" in done.stdout
    assert "aten_relu__f32r4__f32r4" in done.stdout


def test_the_documentation_runs() -> None:
    text = (Path(__file__).parent.parent / "docs" / "aten.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        done = subprocess.run([sys.executable, "-c", block], text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


def test_public_names_exist() -> None:
    assert all(getattr(aten, name) is not None for name in aten.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        aten.no_such_name  # noqa: B018

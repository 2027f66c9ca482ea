"""Tests of imports into the aten dialect, from the Torch dialect and from PyTorch's graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from aten_modules import ops_of, ops_of_function
from graphs import groups_of
from single_op import graph_of
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch_mlir import ir

import torchmdla
from torchmdla import aten
from torchmdla.aten import schemas
from torchmdla.importer import import_graph
from torchmdla.importer.interpreter import run_and_record
from torchmdla.importer.script_graph import convert_graph
from torchmdla.testing.op_samples import SAMPLES

# From the Torch dialect


def imported(name: str) -> str | None:
    """Return the importer's text for one call of an op, or None if the importer refuses it."""
    graph, inputs = graph_of(name, SAMPLES[name][0], copy=True)
    _, record = run_and_record(graph, inputs)
    try:
        return import_graph(graph, record, []).mlir
    except torchmdla.CompileError:
        return None


@pytest.mark.parametrize("name", sorted(SAMPLES))
@pytest.mark.sampled(30)
def test_from_torch_keeps_ops_and_types(name: str, context: ir.Context) -> None:
    text = imported(name)
    if text is None:
        pytest.skip("the importer refuses it")
    with context:
        source = ir.Module.parse(text)
    module = aten.from_torch(source)
    before = [op for op in ops_of(source) if op.name.startswith("torch.aten.")]
    after = [op for op in ops_of(module) if op.name.startswith("aten.") and op.name != "aten.constant"]
    # aten.scalar_tensor also represents prim.NumToTensor.
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
    graph = convert_graph(group)
    _, record = run_and_record(graph, [x])
    module = aten.from_torch(import_graph(graph, record, []).mlir)
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
def test_from_torch_explains_refusals(text: str, message: str) -> None:
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


def test_control_flow_is_the_executed_path(context: ir.Context) -> None:
    @torch.jit.script
    def function(x: torch.Tensor, count: int) -> torch.Tensor:
        for i in range(count):
            x = x.sin() if i % 2 == 0 else x + i
        return x

    module = aten.from_module(function, torch.randn(3), 3, context=context)
    assert layers_of(module) == ["aten::sin", "aten::add.Scalar", "aten::sin"]


def test_results_may_be_literals(context: ir.Context) -> None:
    @torch.jit.script
    def function(x: torch.Tensor) -> tuple[torch.Tensor, int, list[torch.Tensor], str, tuple[float, bool]]:
        y = x.relu()
        return y, 3, [y, x], "a", (2.5, True)

    module = aten.from_module(function, torch.ones(3), context=context)
    types = "(tensor<3xf32>, i32, tensor<3xf32>, tensor<3xf32>, !aten.str, f32, i1)"
    assert f"@forward(%arg0: tensor<3xf32>) -> {types}" in str(module)


def test_numbers_of_a_trace_are_literals_of_the_op_that_was_called(context: ir.Context) -> None:
    module = aten.from_module(lambda x: x * 2 + x.size(0), torch.randn(3), context=context)
    assert layers_of(module) == ["aten::mul.Tensor", "aten::scalar_tensor", "aten::add.Tensor"]
    assert "dense<2> : tensor<i64>" in str(module)
    assert len(ops_of_function(module).arguments) == 1


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


def test_an_untraceable_program_is_a_type_error() -> None:
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

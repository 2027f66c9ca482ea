"""Tests of the counts in the op report of the aten dialect."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from aten_modules import parsed, rendered, report_of, shared_context
from hypothesis import given, settings
from hypothesis import strategies as st
from single_op import graph_of
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.flop_counter import FlopCounterMode
from torch_mlir import ir

import torchmdla
from torchmdla import aten
from torchmdla.aten import schemas
from torchmdla.aten.op_counts import KINDS, rule_of
from torchmdla.devices.cpu.target.ops import QUANTISED_TENSORS
from torchmdla.testing.models import MODELS
from torchmdla.testing.op_samples import SAMPLES

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
@pytest.mark.parametrize("frontend", ["trace", "script", "export"])
def test_known_figures(
    module: nn.Module, shape: tuple[int, ...], figures: dict[str, object], frontend: str, context: ir.Context
) -> None:
    x = torch.randn(shape)
    if frontend == "export":
        imported = aten.from_fx(torch.export.export(module, (x,)), context=context)
    else:
        imported = aten.from_module(torch.jit.script(module) if frontend == "script" else module, x, context=context)
    (layer,) = aten.op_report(imported).layers
    assert {name: getattr(layer, name) for name in figures} == figures


def test_every_op_of_the_cpu_device_has_a_rule() -> None:
    taken = {name for name in torchmdla.supported_ops() if name.startswith("aten::")} - QUANTISED_TENSORS.keys()
    missing = [name for name in taken if rule_of(schemas.registry()[name]) is None]
    assert missing == []
    assert len(taken) > 350


# Ops that need a kernel but have no counts: they move data, or do nothing for these arguments.
_MOVING = ("upsample_nearest", "_upsample_nearest_exact", "index_put", "dropout")


@pytest.mark.parametrize("name", sorted(name for name in SAMPLES if name.startswith("aten::")))
@pytest.mark.sampled(30)
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
    """Return the report's number of MACs, and half of the floating point operations that PyTorch counts."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        function(*inputs)
    report = report_of(function, *inputs, context=context)
    return (report.total.counts or {}).get("MAC", 0), counter.get_total_flops() // 2


@given(st.data())
@settings(max_examples=25)
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
    ours, theirs = macs(module, x, context=shared_context())
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


# Sizes start at 2, because PyTorch computes elementwise products for size 1.
@given(st.integers(2, 6), st.integers(2, 6), st.integers(2, 6), st.integers(2, 4))
@settings(max_examples=15)
def test_products_count_as_pytorch_counts(m: int, k: int, n: int, b: int) -> None:
    left, right = torch.randn(m, k), torch.randn(k, n)
    batch_left, batch_right = torch.randn(b, m, k), torch.randn(b, k, n)
    heads = torch.randn(2, b, m, k), torch.randn(2, b, n, k), torch.randn(2, b, n, k)
    context = shared_context()
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
@pytest.mark.sampled(3)
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
def test_pooling_counts_elements_that_reach_a_result(dims: int, sizes: tuple[int, int], context: ir.Context) -> None:
    """Check the number of additions: the number of elements with a gradient, over all results."""
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
        cell_counts = report_of(torch.jit.script(cell), torch.randn(2, 4), hidden, context=context).total.counts
        several = [layer for layer in report_of(network, torch.randn(3, 2, 4), context=context).layers if layer.counts]
        assert several[0].counts == {kind: 3 * number for kind, number in (cell_counts or {}).items()}


@pytest.mark.parametrize("view", ["moveaxis.int", "swapdims", "ravel"])
def test_views_of_schemas_touch_no_data(view: str, context: ir.Context) -> None:
    arguments = {"moveaxis.int": (0, 1), "swapdims": (0, 1)}
    graph, inputs = graph_of(f"aten::{view}", (torch.randn(3, 4), *arguments.get(view, ())), copy=False)
    (layer,) = aten.op_report(aten.from_graph(graph, inputs, context=context)).layers
    assert (layer.counts, layer.reads, layer.writes) == ({}, 0, 0)


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


def test_without_marks_parameters_follow_from_schemas(context: ir.Context) -> None:
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
    with pytest.raises(aten.AtenError, match=r"arith\.constant is not an op of the aten dialect"):
        report(foreign)

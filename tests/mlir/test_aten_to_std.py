"""Tests of return elimination in the aten dialect, and of its lowering to loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from aten_modules import ops_of, ops_of_function, parsed
from aten_runtime import execute
from single_op import graph_of
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch_mlir import ir

from torchmdla import aten
from torchmdla.importer.interpreter import run_and_record
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.op_samples import SAMPLES


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


@pytest.mark.parametrize("name", sorted(name for name in SAMPLES if name.startswith("aten::")))
@pytest.mark.sampled(30)
def test_every_op_is_lowered(name: str, context: ir.Context) -> None:
    graph, inputs = graph_of(name, SAMPLES[name][0], copy=False)
    module = aten.from_graph(graph, inputs, context=context)
    aten.lower_to_std(module)
    expected, _ = run_and_record(graph, inputs)
    flat = [tensor for tensor in torch.utils._pytree.tree_leaves(expected) if isinstance(tensor, torch.Tensor)]
    outputs = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in flat]
    arguments = [tensor.contiguous() for tensor in torch.utils._pytree.tree_leaves(inputs)]
    execute(module, arguments, outputs)
    for actual, wanted in zip(outputs, flat, strict=True):
        assert_matches(actual, wanted.contiguous())


def _arguments_of(program: Any, module: ir.Module, inputs: int) -> list[torch.Tensor]:
    """Return the weights in the order of the module's arguments, which is the order of their first use."""
    count = len(ops_of_function(module).arguments) - inputs
    if not isinstance(program, nn.Module):
        return [torch.tensor([0, 3, 1]) if program is _indexed else torch.ones(2, 2, 3, 3)][:count]
    values = [*program.parameters(), *program.buffers()]
    tensors = [value.detach() for value in values if value.dtype.is_floating_point]
    assert len(tensors) == count
    return tensors


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
        ("%0 = arith.constant 1 : i32", "%a: tensor<2xf32>", "arith.constant is not an op"),
    ],
)
def test_a_failed_lowering_keeps_the_module(body: str, arguments: str, message: str, context: ir.Context) -> None:
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

"""Both readers of graphs with each builder: one computation gives the same text from each kind of graph."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch_mlir import ir

from torchmdla import aten
from torchmdla.importer import import_graph
from torchmdla.importer.function import FunctionWriter
from torchmdla.importer.fx import import_fx, read_fx
from torchmdla.importer.graph import read_graph
from torchmdla.importer.interpreter import run_and_record
from torchmdla.importer.script_graph import convert_graph, types_of
from torchmdla.importer.types import record_value

SCRIPT = """
graph(%x : Float(4, 3, strides=[3, 1], requires_grad=0, device=cpu)):
  %parts : Tensor[] = aten::split_with_sizes(%x, %sizes, %dim)
  %a : Float(1, 3, strides=[3, 1]), %b : Float(3, 3, strides=[3, 1]) = prim::ListUnpack(%parts)
  %list : Tensor[] = prim::ListConstruct(%b, %a, %weight)
  %y : Float(6, 3, strides=[3, 1]) = aten::cat(%list, %dim)
  %z : Float(6, 3, strides=[3, 1]) = aten::add(%y, %one, %factor)
  %values : Float(6, strides=[1]), %indices : Long(6, strides=[1]) = aten::max(%z, %last, %keep)
  return (%values, %indices)
"""

X = torch.randn(4, 3)
WEIGHT = torch.randn(2, 3)


def computed(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = torch.ops.aten.split_with_sizes(x, [1, 3], 0)
    z = torch.ops.aten.add.Scalar(torch.ops.aten.cat([b, a, WEIGHT], 0), 1.5, 1)
    values, indices = torch.ops.aten.max.dim(z, 1)
    return values, indices


def typed_graph() -> torch._C.Graph:
    head, *rest = SCRIPT.strip().splitlines()
    names = ", ".join(f"%{name} : {kind}" for name, (kind, _) in CONSTANTS.items())
    graph: Any = torch._C.parse_ir("\n".join([head.replace("):", f", {names}):"), *rest]))
    for value, (_, constant) in zip(list(graph.inputs())[1:], CONSTANTS.values(), strict=True):
        constant_value = graph.insertConstant(constant)
        constant_value.node().moveBefore(value.uses()[0].user)
        value.replaceAllUsesWith(constant_value)
    for index in range(len(CONSTANTS), 0, -1):
        graph.eraseInput(index)
    return graph


CONSTANTS = {
    "sizes": ("int[]", [1, 3]),
    "dim": ("int", 0),
    "weight": ("Tensor", WEIGHT),
    "one": ("float", 1.5),
    "factor": ("int", 1),
    "last": ("int", 1),
    "keep": ("bool", False),
}


def fx_graph() -> fx.GraphModule:
    return make_fx(computed)(X)


def is_registered(name: str) -> bool:
    return True


def functions(context: ir.Context) -> list[str]:
    script, module = typed_graph(), fx_graph()
    record = {node.name: record_value(node.meta.get("val", WEIGHT)) for node in module.graph.nodes}
    return [
        read_graph(convert_graph(script), FunctionWriter("f", types_of(script), is_registered))[0],
        read_fx(module.graph, FunctionWriter("f", record, is_registered))[0],
    ]


def aten_functions(context: ir.Context) -> list[str]:
    modules = aten.from_typed_graph(typed_graph(), context=context), aten.from_fx(fx_graph(), context=context)
    return [str(module) for module in modules]


def programs(context: ir.Context) -> list[str]:
    script, module = convert_graph(typed_graph()), fx_graph()
    record = {node.name: record_value(node.meta.get("val", WEIGHT)) for node in module.graph.nodes}
    return [import_graph(script, run_and_record(script, [X])[1], ()).mlir, import_fx(module.graph, record, ()).mlir]


@pytest.mark.parametrize("build", [functions, aten_functions, programs])
def test_both_kinds_of_graph_give_one_text(build: Callable[[ir.Context], list[str]], context: ir.Context) -> None:
    # Places and the numbers of nodes differ.
    script, module = (re.sub(r"loc\(.*?\)(?= |$)|%constant\d+", "", text, flags=re.M) for text in build(context))
    assert script == module
    assert "max" in script

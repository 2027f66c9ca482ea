"""Helpers for tests of modules in the aten dialect: they parse, report and render modules."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from rich.console import Console
from torch_mlir import ir

from torchmdla import aten
from torchmdla.aten import dialect


@lru_cache(maxsize=1)
def shared_context() -> ir.Context:
    return dialect.new_context()


def parsed(body: str, context: ir.Context, arguments: str = "%a: tensor<2x3xf32>") -> ir.Module:
    return aten.parse(f"func.func @f({arguments}) {{\n{body}\nreturn\n}}", context)


def ops_of_function(module: ir.Module) -> Any:
    return module.body.operations[0].regions[0].blocks[0]


def ops_of(module: ir.Module) -> list[Any]:
    return [op.operation for op in ops_of_function(module).operations]


def report_of(module: Any, *inputs: Any, context: ir.Context) -> aten.OpReport:
    return aten.op_report(aten.from_module(module, *inputs, context=context))


def rendered(report: object) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(report)
    return capture.get()

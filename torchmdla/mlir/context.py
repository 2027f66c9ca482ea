"""The MLIR context of every module that is handed out: all dialects of torch-mlir are known there."""

from __future__ import annotations

import re

from torch_mlir import ir
from torch_mlir.dialects import torch as torch_dialect
from torch_mlir.passmanager import PassManager

# The bindings cannot register a dialect by name, but a pipeline loads what it writes.
_LOADS_STABLEHLO = "builtin.module(torch-backend-to-stablehlo-backend-pipeline)"
_LOADS_CONVERSION = "builtin.module(torch-backend-to-linalg-on-tensors-backend-pipeline)"


def new_context() -> ir.Context:
    """A context in which the text of every output parses."""
    context = ir.Context()
    context.enable_multithreading(False)
    torch_dialect.register_dialect(context)
    with context, ir.Location.unknown():
        for pipeline in (_LOADS_STABLEHLO, _LOADS_CONVERSION):
            # Of any module: one without functions is refused, and nothing but what is loaded counts.
            empty = ir.Module.parse("func.func @nothing() { return }")
            PassManager.parse(pipeline).run(empty.operation)
    return context


# How MLIR tells what is wrong with a text, and where.
_ERROR = re.compile(r'error: "[^"]*":(?P<line>\d+):\d+: (?P<what>.*)')


def first_of(error: Exception) -> str:
    """The first thing that MLIR's parser does not take, to follow what it is of; empty where it does not say."""
    found = _ERROR.search(str(error))
    return f": {found['what']} (line {found['line']})" if found else ""

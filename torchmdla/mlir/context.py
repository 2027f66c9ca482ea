"""MLIR context of every module that is returned to users; it has all dialects of torch-mlir."""

from __future__ import annotations

import re

from torch_mlir import ir
from torch_mlir.dialects import torch as torch_dialect
from torch_mlir.passmanager import PassManager

# The bindings cannot register a dialect by name, but a pipeline loads its output dialects.
_LOADS_STABLEHLO = "builtin.module(torch-backend-to-stablehlo-backend-pipeline)"
_LOADS_CONVERSION = "builtin.module(torch-backend-to-linalg-on-tensors-backend-pipeline)"


def new_context() -> ir.Context:
    """Return a context in which the text of every output parses."""
    context = ir.Context()
    context.enable_multithreading(False)
    torch_dialect.register_dialect(context)
    with context, ir.Location.unknown():
        for pipeline in (_LOADS_STABLEHLO, _LOADS_CONVERSION):
            # The run only loads dialects. A module without functions is rejected, so it has one.
            empty = ir.Module.parse("func.func @nothing() { return }")
            PassManager.parse(pipeline).run(empty.operation)
    return context


# Format of MLIR's parse errors.
_ERROR = re.compile(r'error: "[^"]*":(?P<line>\d+):\d+: (?P<what>.*)')


def first_error(error: Exception) -> str:
    """Return the first error of MLIR's parser as a suffix of a message, or an empty string if it has none."""
    match = _ERROR.search(str(error))
    return f": {match['what']} (line {match['line']})" if match else ""

"""Table of the passes by name, and pipelines that mix them with MLIR's own passes.

MLIR's Python bindings run passes written in Python, but a textual pipeline cannot name them. Pipelines are therefore
split here. An element of ``builtin.module(…)`` that is in this table is added as a Python pass. MLIR parses every other
element.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from torchmdla.aten.calls import layer_names
from torchmdla.aten.dialect import AtenError, diagnostics_as_error, register
from torchmdla.aten.reports import LivenessReport, OpReport, liveness_report, op_report
from torchmdla.aten.returns import return_elimination
from torchmdla.aten.to_std import aten_to_std, lower_to_std


def _report_pass(report: Callable[..., OpReport | LivenessReport]) -> Callable[..., None]:
    def run(module: Any, function: str = "", format: str = "json", output: str = "-") -> None:
        if format not in ("json", "table"):
            raise AtenError(f"format must be json or table, got {format!r}")
        result = report(module, function or None)
        if format == "json":
            text = result.to_json() + "\n"
        else:
            from rich.console import Console

            console = Console(width=200)
            with console.capture() as capture:
                console.print(result)
            text = capture.get()
        if output == "-":
            print(text, end="")
        else:
            Path(output).write_text(text, encoding="utf-8")

    return run


# Each function has the module as its argument, and its options as keyword arguments.
PASSES: Mapping[str, Callable[..., object]] = {
    "aten-layer-name": layer_names,
    "aten-op-report": _report_pass(op_report),
    "aten-liveness-report": _report_pass(liveness_report),
    "aten-return-elimination": return_elimination,
    "aten-to-std": aten_to_std,
    "aten-lower-to-std": lower_to_std,
}

_REPORT_OPTIONS = ("function", "format", "output")


def pipeline(text: str, context: ir.Context) -> PassManager:
    """Return a pass manager for a textual pipeline.

    An example is ``builtin.module(aten-layer-name,canonicalize,func.func(cse))``. The reports have options:
    ``aten-op-report{format=table function=forward output=report.txt}``. ``format`` is ``json`` or ``table``. ``output``
    is a file, or ``-`` for standard output. The pass manager is MLIR's, so ``enable_ir_printing`` works. The passes of
    this table work on modules only.

    Raises:
        AtenError: the text is not a pipeline, a pass is unknown, or a pass does not have such an option.
    """
    text = text.strip()
    if not text.startswith("builtin.module(") or not text.endswith(")"):
        raise AtenError(f"a pipeline is builtin.module(…), got {text!r}")
    register(context)
    manager = PassManager("builtin.module", context)
    for element in _elements(text[len("builtin.module(") : -1]):
        name, _, options = element.partition("{")
        if name in PASSES:
            manager.add(_runner(name, _options(name, options)), name=name, argument=name)
        else:
            try:
                manager.add(element)
            except ValueError as error:
                raise AtenError(f"{element}: {error}") from None
    return manager


def run(module: ir.Module, text: str) -> None:
    """Run a pipeline over a module, in place.

    Raises:
        AtenError: as :func:`pipeline`, or a pass fails; the message has the reason.
    """
    manager = pipeline(text, module.context)
    with diagnostics_as_error("the pipeline failed"):
        manager.run(module.operation)


def _runner(name: str, options: Mapping[str, str]) -> Callable[[Any, Any], None]:
    function = functools.partial(PASSES[name], **options)

    def run(op: Any, pass_: Any) -> None:
        # An exception must not cross MLIR's frames.
        try:
            function(op.opview if isinstance(op, ir.Operation) else op)
        except Exception as error:
            op.location.emit_error(f"{name}: {error}")
            pass_.signal_pass_failure()

    return run


def _options(name: str, text: str) -> dict[str, str]:
    """Return the options of ``name{key=value key=value}``."""
    if not text:
        return {}
    if not text.endswith("}"):
        raise AtenError(f"{name}: its options lack their closing brace")
    options = {}
    for item in text[:-1].split():
        key, equals, value = item.partition("=")
        if not equals or not name.endswith("-report") or key not in _REPORT_OPTIONS:
            raise AtenError(f"{name}: no option {item!r}")
        options[key] = value
    return options


def _elements(text: str) -> Iterator[str]:
    """Yield the elements between commas that are not in brackets."""
    depth, start = 0, 0
    for index, character in enumerate(text):
        depth += (character in "({[<") - (character in ")}]>")
        if depth < 0:
            raise AtenError(f"a bracket too many in {text!r}")
        if character == "," and not depth:
            yield text[start:index].strip()
            start = index + 1
    if depth:
        raise AtenError(f"a bracket is not closed in {text!r}")
    if text[start:].strip():
        yield text[start:].strip()

"""Operations that calls of ATen operators become in the programs of a device, found with the importer.

The sample calls of :mod:`torchmdla.testing.op_samples` are imported for a device, and converted to its level. Each call
is also imported with tensors whose memory has another order of dimensions, and with numbers in place of tensors.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from torchmdla.capture import refusals
from torchmdla.capture.fx.group import FxSubgraph
from torchmdla.compile_service import service
from torchmdla.compile_service.versions import producers
from torchmdla.compiler.program import Program, Target
from torchmdla.devices import Device, Layouts, Legalisation, Level, OpSupport
from torchmdla.devices.levels import composite_ops_of
from torchmdla.errors import CompileError
from torchmdla.importer import ImportedGraph, ImportOptions
from torchmdla.testing.level_probe import LevelProbe, target_of
from torchmdla.testing.op_samples import SAMPLES
from torchmdla.testing.programs.operators import operator


@dataclass
class Legalised:
    """Operations that an operator's calls become.

    Attributes:
        op: schema name of the operator, with overload.
        always: operations of every imported sample.
        sometimes: other operations of some samples.
        refused: why samples do not compile, with the number of samples. Samples that the device refuses by their types
            or arguments are not imported.
        samples: number of samples.
    """

    op: str
    always: frozenset[str] = frozenset()
    sometimes: frozenset[str] = frozenset()
    refused: dict[str, int] = field(default_factory=dict)
    samples: int = 0

    @property
    def operations(self) -> frozenset[str]:
        return self.always | self.sometimes


def legalise_op(op: str, level: Level = "torch") -> Legalised:
    """Return the operations that calls of ``op`` become at a level, for a device that keeps no composite operators.

    Raises:
        ValueError: samples of the operator do not exist.
    """
    return _collect(op, _programs_of(op, ImportOptions(composite_ops_of(level))), level, Layouts())


def legalise_device(device: Device, ops: Collection[str] = ()) -> Iterator[Legalised]:
    """Yield the operations that the operators of a device become at its level, and which samples it does not compile.

    Args:
        device: the device.
        ops: operators of the device to examine; all that have samples if it is empty.

    Raises:
        ValueError: the device does not have one of ``ops``, or samples of it do not exist.
    """
    if missing := [op for op in ops if op not in device.ops]:
        raise ValueError(f"device {device.name!r} does not have the operator {missing[0]!r}")
    level: Level = "torch"
    layouts, composite_ops = Layouts(), frozenset[str]()
    if isinstance(device, Legalisation):
        level, layouts, composite_ops = device.level, device.layouts, device.composite_ops

    for op in ops or sorted(device.ops.keys() & SAMPLES.keys()):
        yield _collect(op, _programs_of(op, ImportOptions(composite_ops), device), level, layouts, device)


def _collect(
    op: str, programs: Iterator[Callable[[], Program]], level: Level, layouts: Layouts, device: Device | None = None
) -> Legalised:
    """Return the operations of programs at a level, and why some are refused: by the level, or by ``device``."""
    collected: list[frozenset[str]] = []
    refused: dict[str, int] = defaultdict(int)
    samples = 0
    for program in programs:
        samples += 1
        try:
            imported = program()
            collected.append(_operations_of(imported, level, layouts))
            if device is not None:
                service.compile_program(_program_for(imported, device, device.target()))
        except CompileError as error:
            refused[error.reason] += 1
    always = frozenset.intersection(*collected) if collected else frozenset[str]()
    return Legalised(op, always, frozenset[str]().union(*collected) - always, dict(refused), samples)


# Operations of the Torch dialect in the importer's text, without constants and lists.
_OPERATION = re.compile(r"(?<![!\w.])torch\.(?!constant|prim\.ListConstruct|vtensor)[\w.]+")


def _operations_of(program: Program, level: Level, layouts: Layouts) -> frozenset[str]:
    if level == "torch":
        return frozenset(_OPERATION.findall(program.mlir))
    probed = _program_for(program, LevelProbe(), target_of(level, layouts))
    return frozenset(json.loads(service.compile_program(probed).artifact.object_code))


def _program_for(program: Program, device: Device, target: Target) -> Program:
    return replace(program, target=target, versions=producers(device))


# Programs of one call


def _programs_of(op: str, options: ImportOptions, device: Device | None = None) -> Iterator[Callable[[], Program]]:
    """Yield functions that import the samples of an operator; with a device, those that it takes."""
    called = operator(op)
    if called is None or op not in SAMPLES:
        raise ValueError(f"operator {op!r} does not have samples")
    for arguments in SAMPLES[op]:
        for variant in _VARIANTS:
            if (subgraph := _subgraph_of(called, variant(arguments))) is None:
                continue
            module, inputs = subgraph
            if device is not None and not _takes(device, op, module, inputs):
                continue
            yield lambda module=module, inputs=inputs: _import(module, inputs, options)  # type: ignore[misc]


def _takes(device: Device, op: str, subgraph: FxSubgraph, inputs: Sequence[Tensor]) -> bool:
    support: OpSupport = device.ops[op]
    _, record = subgraph.run_and_record(*inputs)
    (call,) = [call for call in subgraph.calls(record) if call.node.op == op]
    is_met = all(call.node.values.get(name) == value for name, value in support.where.items())
    try:
        refusals.check(subgraph, record, device)
    except CompileError:
        return False
    return is_met


def _import(subgraph: FxSubgraph, inputs: Sequence[Tensor], options: ImportOptions) -> Program:
    _, record = subgraph.run_and_record(*inputs)
    imported: ImportedGraph = subgraph.import_program(record, (), options)
    return Program(imported.mlir, imported.arguments, imported.results, target_of("torch", Layouts()))


def _permute(arguments: Any) -> Any:
    """Return arguments whose tensors have the memory of their transposes."""
    if isinstance(arguments, Tensor):
        return arguments.mT.contiguous().mT if arguments.dim() > 1 else arguments
    return type(arguments)(map(_permute, arguments)) if isinstance(arguments, list | tuple) else arguments


def _with_numbers(arguments: Any) -> Any:
    """Return arguments whose tensors after the first are constants without dimensions."""
    first, *rest = arguments or (None,)
    return (first, *(torch.tensor(2, dtype=a.dtype) if isinstance(a, Tensor) else a for a in rest))


_VARIANTS: Sequence[Callable[[Any], Any]] = (lambda arguments: arguments, _permute, _with_numbers)


def _subgraph_of(called: Any, arguments: Sequence[Any]) -> tuple[FxSubgraph, list[Tensor]] | None:
    """Return the graph of one call and its inputs; None if eager does not support the call."""
    graph, root, inputs = fx.Graph(), nn.Module(), list[Tensor]()

    def operand(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [operand(item) for item in value]
        if not isinstance(value, Tensor):
            return value
        if value.dim() == 0:
            name = f"_tensor_constant{len(list(root.buffers()))}"
            root.register_buffer(name, value)
            return graph.get_attr(name)
        inputs.append(value)
        return graph.placeholder(f"input{len(inputs)}")

    schema = called._schema.arguments[: len(arguments)]
    values = list(zip(schema, map(operand, arguments), strict=True))
    call = graph.call_function(
        called,
        tuple(value for argument, value in values if not argument.kwarg_only),
        {argument.name: value for argument, value in values if argument.kwarg_only},
    )
    try:
        with torch.no_grad():
            results = called(
                *(value for argument, value in zip(schema, arguments, strict=True) if not argument.kwarg_only),
                **{a.name: value for a, value in zip(schema, arguments, strict=True) if a.kwarg_only},
            )
    except Exception:
        return None
    outputs: Sequence[fx.Node] = [call]
    if isinstance(results, list | tuple):
        places = [place for place, result in enumerate(results) if isinstance(result, Tensor)]
        outputs = [graph.call_function(getitem, (call, place)) for place in places]
    graph.output(tuple(outputs))
    return FxSubgraph(fx.GraphModule(root, graph), graph), inputs


# The page

_HEADING = "## Operators\n"

# Gradients and recurrent steps, whose formulas are in programs, and forms that only PyTorch's functions call are not on
# the page.
_NOT_SHOWN = re.compile(r"backward|^torchmdla::|^aten::_(?!softmax|log_softmax|convolution)")

# Operations of any program: they restore the order of dimensions of its inputs.
_ANYWHERE = frozenset({"torch.aten.permute"})


def write_table(page: Path) -> None:
    """Write the operations of operators below the heading ``Operators`` of a page in Markdown."""
    before, _, _ = page.read_text(encoding="utf-8").partition(_HEADING)
    text = "\n".join([before.rstrip("\n"), "", _HEADING, *_table(op for op in SAMPLES if not _NOT_SHOWN.search(op))])
    page.write_text(f"{text}\n", encoding="utf-8")


def _table(ops: Iterable[str]) -> Iterator[str]:
    by_operations: dict[str, list[str]] = defaultdict(list)
    for op in ops:
        by_operations[operations_text(legalise_op(op))].append(short_name(op))
    yield "These operators stay one operation of the same name:"
    yield "\n```text"
    yield from textwrap.wrap(" ".join(by_operations.pop("")), 118, break_long_words=False, break_on_hyphens=False)
    yield "```\n\nThe others become:\n\n```text"
    yield from (f"{' '.join(names)} → {operations}" for operations, names in by_operations.items())
    yield "```"


def operations_text(result: Legalised) -> str:
    """Return the page's text of the operations; empty if the operator stays one operation of its name."""
    always, sometimes = (
        " ".join(map(short_name, sorted(names - _ANYWHERE))) for names in (result.always, result.sometimes)
    )
    if always == short_name(result.op) and not sometimes:
        return ""
    return " ".join(filter(None, [always, sometimes and f"({sometimes})"])) or "no operation"


def short_name(name: str) -> str:
    """Return the name of an operator or operation without its dialect or namespace."""
    return name.removeprefix("aten::").removeprefix("torch.aten.")

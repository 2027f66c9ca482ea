"""Extraction of the only group of a program, and of its inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from torchmdla import _C
from torchmdla.capture.script_subgraph import ScriptSubgraph
from torchmdla.capture.specialise import Compiled
from torchmdla.errors import CaptureError
from torchmdla.importer.script_graph import convert_graph
from torchmdla.packages.compiling import compiling_groups, reload_and_call
from torchmdla.support import jit

_GROUP = "mdla::CompilationGroup"
_LISTS = frozenset({"prim::TupleConstruct", "prim::ListConstruct"})


@dataclass(frozen=True)
class GroupCode:
    """Specialisation of the group.

    It has the compiled program and the signature of its inputs. For code for any sizes, ``symbols`` contains the number
    of symbols, and the symbol of each entry of the signature.
    """

    compiled: Compiled
    signature: Sequence[int]
    symbols: tuple[int, Sequence[int]] | None


@dataclass(frozen=True)
class Group:
    """The only group of a program.

    Attributes:
        subgraph: the computation of the group.
        codes: its specialisations.
        inputs, outputs: names and dtypes of the program's inputs and outputs.
        input_numbers: for each input of the group, the index of the program's input.
        output_numbers: for each output of the program, the index of the group's output.
        call: the inputs of the first call.
    """

    subgraph: ScriptSubgraph
    codes: Sequence[GroupCode]
    inputs: Sequence[tuple[str, torch.dtype]]
    outputs: Sequence[tuple[str, torch.dtype]]
    input_numbers: Sequence[int]
    output_numbers: Sequence[int]
    call: Sequence[torch.Tensor]


def extract_group(scripted: Any, calls: Sequence[tuple[Any, ...]]) -> Group:
    """Call a program and return its only group.

    Raises:
        CaptureError: the program is not one group, or the group is not compiled.
    """
    graph, reports, reasons = _call_copy(scripted, calls)
    node = _check_form(graph, reasons)
    _check_boundary(graph, node)
    _check_types(graph, calls)
    # If the group was divided, the inner groups have higher numbers.
    report = min(reports, key=lambda entry: entry["number"])
    codes = [_code_of(entry, report["subgraph"]) for entry in report["specialisations"]]
    names = [value.debugName() for value in graph.inputs() if not _is_module(value)]
    produced = [value.debugName() for value in node.outputs()]
    returned = [value.debugName() for value in _flatten(graph.outputs())]
    dtypes = [tensor_output(output)[1] for output in codes[0].compiled.outputs]
    return Group(
        subgraph=ScriptSubgraph(convert_graph(report["subgraph"])),
        codes=codes,
        inputs=[(_strip_number(name), tensor.dtype) for name, tensor in zip(names, calls[0], strict=True)],
        outputs=[(_strip_number(name, f"output{k}"), dtypes[produced.index(name)]) for k, name in enumerate(returned)],
        input_numbers=[names.index(value.debugName()) for value in node.inputs()],
        output_numbers=[produced.index(name) for name in returned],
        call=calls[0],
    )


def _call_copy(
    scripted: Any, calls: Sequence[tuple[Any, ...]]
) -> tuple[torch._C.Graph, list[_C.GroupReport], dict[str, str]]:
    """Call a copy of the program, whose groups are new.

    Return its optimised graph, its groups, and for each operator outside of groups the reason.
    """
    ungrouped = Counter(_C.ungrouped())
    program, reports = reload_and_call(partial(jit.save, scripted), jit.load, calls)
    with compiling_groups(), torch.no_grad():
        graph: torch._C.Graph = program.graph_for(*calls[0])
    return graph, reports, {op: reason for op, reason, *_ in Counter(_C.ungrouped()) - ungrouped}


def _check_form(graph: torch._C.Graph, reasons: Mapping[str, str]) -> torch._C.Node:
    """Return the node of the only group."""
    nodes = [node for node in graph.nodes() if node.kind() not in _LISTS and node.kind() != "prim::Constant"]
    groups = [node for node in nodes if node.kind().startswith(_GROUP)]
    outside = dict.fromkeys(_operator(node) for node in nodes if node not in groups)
    if "prim::GetAttr" in outside or any(_is_module(value) for group in groups for value in group.inputs()):
        raise CaptureError("weights are not constants of the program: export a module in eval mode")
    if outside:
        listed = "; ".join(f"{op}{f' ({reasons[op]})' if op in reasons else ''}" for op in outside)
        raise CaptureError(f"only a program that is one group can be exported, and outside of groups it has {listed}")
    if len(groups) != 1:
        raise CaptureError(f"only a program that is one group can be exported, and this one has {len(groups)}")
    return groups[0]


def _check_boundary(graph: torch._C.Graph, group: torch._C.Node) -> None:
    """Check the inputs and outputs of the group."""
    available, produced = ({value.debugName() for value in values} for values in (graph.inputs(), group.outputs()))
    if any(value.debugName() not in available for value in group.inputs()):
        raise CaptureError("the program's group takes constants, which are not its own")
    if any(value.debugName() not in produced for value in _flatten(graph.outputs())):
        raise CaptureError("the program returns an input or a constant, which is not a result of its group")


def _is_module(value: torch._C.Value) -> bool:
    return bool(value.type().kind() == "ClassType")


def _operator(node: torch._C.Node) -> str:
    schema = node.schema()
    if schema == "(no schema)":
        return str(node.kind())
    return schema.partition("(")[0]


def _check_types(graph: torch._C.Graph, calls: Sequence[tuple[Any, ...]]) -> None:
    for value in graph.inputs():
        if value.type().kind() not in ("ClassType", "TensorType"):
            raise CaptureError(
                f"input {_strip_number(value.debugName())} is a {value.type().annotation_str}, and inputs are tensors"
            )
    for call in calls:
        if not all(isinstance(value, torch.Tensor) for value in call):
            raise CaptureError("inputs are tensors")
        if [value.dtype for value in call] != [value.dtype for value in calls[0]]:
            raise CaptureError("an input is of one dtype in all calls")


def _flatten(values: Any) -> Iterator[torch._C.Value]:
    for value in values:
        if value.node().kind() in _LISTS:
            yield from _flatten(value.node().inputs())
        else:
            yield value


def _code_of(report: _C.SpecialisationReport, subgraph: Any) -> GroupCode:
    """Return the code of a specialisation."""
    if report["executable"] is not None:
        return GroupCode(report["executable"].owner, report["signature"], report["symbols"])
    if report["left_out"] is None:
        raise CaptureError(f"the program's group is not compiled: {report['failure']}")
    nodes = list(subgraph.nodes())
    ops = dict.fromkeys(_operator(nodes[number]) for number in report["left_out"])
    raise CaptureError(f"the device does not take these calls of {', '.join(ops)}, which are outside of groups")


def _strip_number(name: str, otherwise: str = "") -> str:
    """Return a value's name without its unique number.

    If the name is only a number, return ``otherwise`` instead.
    """
    return otherwise if otherwise and name.isdigit() else name.partition(".")[0]


def tensor_output(output: tuple[str, Any]) -> tuple[int, torch.dtype, Sequence[Any], Sequence[Any]]:
    """Return the number of the program's result, its dtype, sizes and strides.

    Raises:
        CaptureError: the output is not a plain tensor.
    """
    kind, value = output
    if kind != "tensor" or value[4] is not None:
        raise CaptureError("the program returns something else than plain tensors")
    result, dtype, sizes, strides, _ = value
    return result, dtype, sizes, strides

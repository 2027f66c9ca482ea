"""Finds the only group of a program, and what it is called with."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from torchmdla import _C, api
from torchmdla.capture import refusals
from torchmdla.capture.script_subgraph import ScriptSubgraph
from torchmdla.capture.specialise import Compiled
from torchmdla.errors import CaptureError
from torchmdla.packages.compiling import compiling_groups
from torchmdla.report import progress

_GROUP = "mdla::CompilationGroup"
_LISTS = frozenset({"prim::TupleConstruct", "prim::ListConstruct"})


class Group:
    """The only group of a program.

    Attributes:
        inputs, outputs: of the program; names and dtypes.
        compiled: for each of its specialisations what its code was made of.
        signatures: for each the signature of the inputs, and the symbols that stand in it.
        number_of_input: which input of the program each of the group's is.
        number_of_output: which output of the group each of the program's is.
    """

    def __init__(self, node: torch._C.Node, report: _C.GroupReport, graph: torch._C.Graph, call: Sequence[Any]) -> None:
        self.subgraph = ScriptSubgraph(report["subgraph"])
        self.compiled: list[Compiled] = []
        self.signatures: list[tuple[list[int], tuple[int, list[int]] | None]] = []
        for one in report["specialisations"]:
            if one["executable"] is None:
                raise _not_compiled(one, report["subgraph"])
            self.compiled.append(one["executable"].owner)
            self.signatures.append((one["signature"], one["symbols"]))
        values = [value for value in graph.inputs() if not _is_module(value)]
        names = [value.debugName() for value in values]
        self.call = call
        self.inputs = [(_plain(name), tensor.dtype) for name, tensor in zip(names, call, strict=True)]
        self.number_of_input = [names.index(value.debugName()) for value in node.inputs()]
        made = [value.debugName() for value in node.outputs()]
        returned = [value.debugName() for value in _flattened(graph.outputs())]
        self.number_of_output = [made.index(name) for name in returned]
        dtypes = [tensor_output(output)[1] for output in self.compiled[0].outputs]
        self.outputs = [(_plain(name, f"output{k}"), dtypes[made.index(name)]) for k, name in enumerate(returned)]


def only_group(scripted: Any, calls: Sequence[tuple[Any, ...]]) -> Group:
    """
    Raises:
        CaptureError: the program is not one group.
        CompileError: the group does not compile.
    """
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    before = {report["number"] for report in _C.groups()}
    ungrouped = Counter(_C.ungrouped())
    # A copy, whose groups are new.
    with compiling_groups(), torch.no_grad(), progress.compiling(_C.statistics):
        program = torch.jit.load(io.BytesIO(buffer.getvalue()))
        for call in calls:
            refusals.call_until_whole(partial(program, *call), api.WARM_UP_CALLS)
        graph: torch._C.Graph = program.graph_for(*calls[0])
        reports = [report for report in _C.groups() if report["number"] not in before]
    reasons = {op: reason for op, reason, *_ in Counter(_C.ungrouped()) - ungrouped}
    node = _check_form(graph, reasons)
    _check_types(graph, calls)
    # Groups within it, where it was divided, come after it.
    return Group(node, min(reports, key=lambda one: one["number"]), graph, calls[0])


def _check_form(graph: torch._C.Graph, reasons: Mapping[str, str]) -> torch._C.Node:
    """The node of the only group.

    Raises:
        CaptureError: there are others, or something else that computes.
    """
    nodes = [node for node in graph.nodes() if node.kind() not in _LISTS and node.kind() != "prim::Constant"]
    groups = [node for node in nodes if node.kind().startswith(_GROUP)]
    outside = dict.fromkeys(_operator(node) for node in nodes if node not in groups)
    if "prim::GetAttr" in outside or any(_is_module(value) for group in groups for value in group.inputs()):
        raise CaptureError("weights are no constants of the program: a module in eval mode can be exported")
    if outside:
        listed = "; ".join(f"{op}{f' ({reasons[op]})' if op in reasons else ''}" for op in outside)
        raise CaptureError(f"only a program that is one group can be exported, and outside of groups it has {listed}")
    if len(groups) != 1:
        raise CaptureError(f"only a program that is one group can be exported, and this one has {len(groups)}")
    known = {value.debugName() for value in (*graph.inputs(), *groups[0].outputs())}
    for value in (*groups[0].inputs(), *_flattened(graph.outputs())):
        if value.debugName() not in known:
            raise CaptureError(f"the program's {_operator(value.node())} is outside of its group")
    own = {value.debugName() for value in groups[0].outputs()}
    if any(value.debugName() not in own for value in _flattened(graph.outputs())):
        raise CaptureError("the program returns one of its inputs, which is no result of its group")
    return groups[0]


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
                f"input {_plain(value.debugName())} is a {value.type().annotation_str}, and inputs are tensors"
            )
    for call in calls:
        if not all(isinstance(value, torch.Tensor) for value in call):
            raise CaptureError("inputs are tensors")
        if [value.dtype for value in call] != [value.dtype for value in calls[0]]:
            raise CaptureError("an input is of one dtype in all calls")


def _flattened(values: Any) -> Iterator[torch._C.Value]:
    for value in values:
        if value.node().kind() in _LISTS:
            yield from _flattened(value.node().inputs())
        else:
            yield value


def _not_compiled(report: _C.SpecialisationReport, subgraph: Any) -> CaptureError:
    if report["left_out"] is None:
        return CaptureError(f"the program's group is not compiled: {report['failure']}")
    nodes = list(subgraph.nodes())
    ops = dict.fromkeys(_operator(nodes[number]) for number in report["left_out"])
    return CaptureError(f"the device does not take these calls of {', '.join(ops)}, which are outside of groups")


def _plain(name: str, otherwise: str = "") -> str:
    """A value's name without the number that makes it unique; ``otherwise`` where it is but a number."""
    return otherwise if otherwise and name.isdigit() else name.partition(".")[0]


def tensor_output(output: tuple[str, Any]) -> tuple[int, torch.dtype, Sequence[Any], Sequence[Any]]:
    """Number of the program's result, dtype, sizes and strides.

    Raises:
        CaptureError: it is no plain tensor.
    """
    kind, value = output
    if kind != "tensor" or value[4] is not None:
        raise CaptureError("the program returns something else than plain tensors")
    result, dtype, sizes, strides, _ = value
    return result, dtype, sizes, strides

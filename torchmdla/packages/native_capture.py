"""Capture of whole programs for the runtime without libtorch: graphs of methods, groups, attributes."""

from __future__ import annotations

import copy
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from torchmdla import _C, api
from torchmdla.capture import refusals
from torchmdla.capture.script_subgraph import ScriptSubgraph
from torchmdla.capture.specialise import Compiled
from torchmdla.errors import CaptureError
from torchmdla.importer.script_graph import convert_graph
from torchmdla.packages.compiling import compiling_groups
from torchmdla.report.observing import show_progress, without_comparisons
from torchmdla.script.ir import Graph, Node, Value
from torchmdla.support import jit

GROUP = "mdla::CompilationGroup"

# The calls of each method, in order.
Calls = Mapping[str, Sequence[tuple[Any, ...]]]


@dataclass(frozen=True)
class GroupCode:
    """Specialisation of a group.

    It has the compiled program and the signature of its inputs. For code for any sizes, ``symbols`` contains the number
    of symbols, and the symbol of each entry of the signature.
    """

    compiled: Compiled
    signature: Sequence[int]
    symbols: tuple[int, Sequence[int]] | None


@dataclass(frozen=True)
class Group:
    """Compiled group, with its place in the user's program.

    ``refused`` has the reason of each specialisation that is not compiled.
    """

    subgraph: ScriptSubgraph
    inputs: int
    outputs: int
    codes: Sequence[GroupCode]
    refused: Sequence[str]
    source: str


@dataclass(frozen=True)
class Captured:
    """Program whose calls compiled its groups.

    Attributes:
        module: a copy of the program with the state of the file.
        methods: the optimised graph of each method.
        schemas: the schema of each method.
        groups: the groups.
        numbers: for each node of a group its number among the groups.
        reasons: why operators are outside of groups.
    """

    module: Any
    methods: Mapping[str, Graph]
    schemas: Mapping[str, Any]
    groups: Sequence[Group]
    numbers: Mapping[Node, int]
    reasons: Mapping[str, str]


def frozen_program(model: Any, calls: Calls) -> Any:
    """Return a program of the methods of ``calls``, frozen if it is a module in eval mode.

    Raises:
        TypeError: ``model`` is not a program and cannot be converted to one.
        CaptureError: the program does not have a method, its module is in training mode, or the default dtype is not
            float32.
    """
    if torch.get_default_dtype() != torch.float32:
        raise CaptureError(f"the default dtype is {torch.get_default_dtype()}, and the runtime's is torch.float32")
    scripted = api.as_torchscript(model, calls.get("forward", [()])[0])
    if not isinstance(scripted, torch.jit.ScriptModule):
        return scripted
    if missing := [name for name in calls if not scripted._c._has_method(name)]:  # type: ignore[attr-defined]
        raise CaptureError(f"the program does not have a method {missing[0]}")
    if getattr(scripted, "training", True):
        raise CaptureError("weights are not constants of the program: export a module in eval mode")
    frozen = jit.freeze(scripted, [name for name in calls if name != "forward"])
    for name in calls:
        _pass_as_tensors(frozen._c._get_method(name).graph)
    return frozen


# Arithmetic of a tensor and a number. With a tensor as the second operand it is another overload.
_ARITHMETIC = frozenset({"aten::add.Scalar", "aten::sub.Scalar", "aten::mul.Scalar", "aten::div.Scalar"})


def _pass_as_tensors(graph: Any, *, in_loop: bool = False, block: Any = None) -> None:
    """Let arithmetic in loops take integers as tensors, which code takes as arguments, and not as constants."""
    for node in list((block or graph).nodes()):
        for inner in node.blocks():
            _pass_as_tensors(graph, in_loop=in_loop or node.kind() == "prim::Loop", block=inner)
        if not in_loop or node.schema().partition("(")[0] not in _ARITHMETIC:
            continue
        number = node.inputsAt(1)
        if number.type().kind() == "IntType" and number.node().kind() != "prim::Constant":
            tensor = graph.create("prim::NumToTensor", [number], 1)
            tensor.insertBefore(node)
            node.replaceInput(1, tensor.output())


def capture(scripted: Any, calls: Calls) -> Captured:
    """Call a copy of the program, whose groups are new."""
    buffer = io.BytesIO()
    jit.save(scripted, buffer)
    ungrouped, before = Counter(_C.ungrouped()), _C.group_counts().keys()
    with compiling_groups(), _lone_groups(), without_comparisons(), torch.no_grad(), show_progress(_C.statistics):
        program, pristine = (jit.load(io.BytesIO(buffer.getvalue())) for _ in range(2))
        _call_all(program, calls)
        plans = {name: _optimised_graph(program, name, several) for name, several in calls.items()}
        methods = {name: convert_graph(plan, name) for name, plan in plans.items()}
        # Calls from the first state again, which the first calls saw before groups were formed.
        if state := {place for graph in methods.values() for place in attributes_of(graph)}:
            _restore(program, pristine, state)
            _call_all(program, calls)
    groups, numbers = _match_groups(plans, methods, _C.groups(_C.group_counts().keys() - before))
    reasons = {op: reason for op, reason, *_ in Counter(_C.ungrouped()) - ungrouped}
    schemas = {name: getattr(program, name).schema for name in calls}
    return Captured(pristine, methods, schemas, groups, numbers, reasons)


@contextmanager
def _lone_groups() -> Iterator[None]:
    """Form groups of single operators, too, within the block."""
    _C.set_lone_groups(True)
    try:
        yield
    finally:
        _C.set_lone_groups(False)


def _call_all(program: Any, calls: Calls) -> None:
    for name, several in calls.items():
        for arguments in several:
            call = partial(_call, getattr(program, name), arguments)
            refusals.call_until_compiled(call, api.WARM_UP_CALLS)


def _call(method: Any, arguments: tuple[Any, ...]) -> None:
    """Call a method. Exceptions that the program raises are results, too."""
    with suppress(torch.jit.Error):
        method(*copy.deepcopy(arguments))


def attributes_of(graph: Graph) -> set[tuple[str, str]]:
    """Return path and name of the attributes that a method reads or writes, other than modules."""
    paths = object_paths(graph)
    return {
        (paths[node.inputs[0]], str(node.attributes["name"]))
        for node in graph.walk()
        if node.op in ("prim::GetAttr", "prim::SetAttr")
        and node.inputs[0] in paths
        and not any(output in paths for output in node.outputs)
    }


def object_paths(graph: Graph) -> dict[Value, str]:
    """Return the path of each value that is a module of the program. The program itself has an empty one."""
    paths = {graph.inputs[0]: ""} if graph.inputs and graph.inputs[0].type.kind == "Class" else {}
    for node in graph.walk():
        if node.op == "prim::GetAttr" and node.inputs[0] in paths and node.outputs[0].type.kind == "Class":
            paths[node.outputs[0]] = f"{paths[node.inputs[0]]}.{node.attributes['name']}".strip(".")
    return paths


def _restore(program: Any, pristine: Any, state: Iterable[tuple[str, str]]) -> None:
    """Give a program the attributes of another copy."""
    for path, name in state:
        module_at(program, path).setattr(name, copy.deepcopy(module_at(pristine, path).getattr(name)))


def module_at(program: Any, path: str) -> Any:
    """Return the module at a path, as PyTorch's object of C++."""
    module = program._c
    for name in path.split(".") if path else ():
        module = module.getattr(name)
    return module


def _optimised_graph(program: Any, name: str, calls: Sequence[tuple[Any, ...]]) -> torch._C.Graph:
    """Return the graph that PyTorch runs for a method. Only its latest call has one."""
    method = getattr(program, name)
    for arguments in calls:
        with suppress(torch.jit.Error):
            method(*copy.deepcopy(arguments))
            return torch._C._last_executed_optimized_graph()  # type: ignore[no-any-return]
    raise CaptureError(f"all calls of {name} raise exceptions, so it was not optimised")


def _match_groups(
    plans: Mapping[str, torch._C.Graph], methods: Mapping[str, Graph], reports: Sequence[_C.GroupReport]
) -> tuple[list[Group], dict[Node, int]]:
    """Return the groups of all methods, and the number of each node's group.

    Nodes with the same operators and weights share a group.
    """
    of_same_code: dict[object, list[_C.GroupReport]] = {}
    for report in reports:
        if isinstance(report["subgraph"], torch._C.Graph):
            of_same_code.setdefault(_identity(report["subgraph"], report["device"]), []).append(report)
    groups: list[Group] = []
    known: dict[object, int] = {}
    numbers: dict[Node, int] = {}
    for name, graph in methods.items():
        nodes = [node for node in graph.walk() if node.kind == GROUP]
        for node, original in zip(nodes, _group_nodes(plans[name]), strict=True):
            identity = _identity(original.g("Subgraph"), original.s("device"))
            if identity not in known:
                known[identity] = len(groups)
                groups.append(_group(original, _source_of(node), of_same_code.get(identity, [])))
            numbers[node] = known[identity]
    return groups, numbers


def _identity(subgraph: Any, device: str) -> object:
    """Return a key that is equal for subgraphs with the same operators and weights."""
    constants = (node.output().toIValue() for node in subgraph.nodes() if node.kind() == "prim::Constant")
    weights = tuple(value.data_ptr() for value in constants if isinstance(value, torch.Tensor))
    return _C.structure(subgraph, device, []), weights


def _source_of(group: Node) -> str:
    """Return the place of the first operator of a group."""
    subgraph = group.attributes["Subgraph"]
    assert isinstance(subgraph, Graph)
    return next((node.source for node in subgraph.nodes if node.source and node.op != "prim::Constant"), group.source)


def _group_nodes(block: Any) -> list[Any]:
    nodes = []
    for node in block.nodes():
        if node.kind().startswith(GROUP):
            nodes.append(node)
        for inner in node.blocks():
            nodes += _group_nodes(inner)
    return nodes


def _group(node: Any, source: str, reports: Sequence[_C.GroupReport]) -> Group:
    subgraph = reports[0]["subgraph"] if reports else node.g("Subgraph")
    codes: dict[tuple[int, ...], GroupCode] = {}
    refused = []
    for report in (entry for group in reports for entry in group["specialisations"]):
        if report["executable"] is not None:
            key = (report["symbols"] is not None, *report["signature"])
            codes[key] = GroupCode(report["executable"].owner, report["signature"], report["symbols"])
        elif report["left_out"] is not None:
            nodes = list(subgraph.nodes())
            ops = dict.fromkeys(nodes[number].kind() for number in report["left_out"])
            refused.append(f"the device does not take these calls of {', '.join(ops)}")
        else:
            refused.append(report["failure"])
    inputs, outputs = len(list(node.inputs())), len(list(node.outputs()))
    return Group(ScriptSubgraph(convert_graph(subgraph)), inputs, outputs, list(codes.values()), refused, source)

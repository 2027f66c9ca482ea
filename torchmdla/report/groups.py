"""Conversion of the extension's group reports to parts of an :class:`~torchmdla.report.explanation.Explanation`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from torchmdla import _C
from torchmdla.capture.specialise import Compiled, ops_of
from torchmdla.capture.ungrouped import Ungrouped
from torchmdla.compiler.artifact import Count, KernelCall
from torchmdla.compiler.sizes import Size
from torchmdla.importer.fx import name_of_call, source_of_node
from torchmdla.importer.script_graph import convert_graph
from torchmdla.report.explanation import Comparison, Graph, Group, Kernel, Part, Specialisation

# Nodes that the importer numbers but that compute nothing.
_NO_OPS = frozenset({"prim::Constant", "prim::ListConstruct", "placeholder", "get_attr", "output"})


def calls_by_group() -> dict[int, int]:
    """Return the number of calls of each group of the process, compiled or not, by group number."""
    return {number: calls for number, (calls, _, _) in _C.group_counts().items()}


def groups_called_since(before: Mapping[int, int]) -> list[_C.GroupReport]:
    """Return the groups whose number of calls differs from ``before`` (see :func:`calls_by_group`)."""
    return _C.groups({number for number, calls in calls_by_group().items() if before.get(number) != calls})


def reset_times(reports: Collection[_C.GroupReport]) -> None:
    """Reset the kernel times of groups."""
    for report in reports:
        for times in _times_of(report):
            times.reset()


def timed_ops(report: _C.GroupReport) -> int:
    """Return the number of operators that the timed calls of a group computed in compiled code."""
    return sum(times.sums()["calls"] for times in _times_of(report)) * ops_of_group(report).total()


def activity_of(report: _C.GroupReport) -> GroupActivity:
    """Return the activity of a group since it was created."""
    compiled = executables_of(report)
    return GroupActivity(
        number=report["number"],
        name=report["name"],
        source=_source_in(report["subgraph"]),
        compiled_calls=report["compiled_calls"],
        recorded_calls=report["recorded_calls"],
        training_calls=report["training_calls"],
        fallbacks=sum(report["fallbacks"].values()),
        specialisations=len(_times_of(report)),
        compile_seconds=sum(entry.seconds for entry in compiled),
        slower=tuple(
            comparison
            for specialisation in report["specialisations"]
            for comparison in _comparisons(specialisation)
            if comparison.choice != "compiled"
        ),
    )


def _source_in(subgraph: Any) -> str:
    """Return the line of the first operator."""
    if isinstance(subgraph, torch._C.Graph):
        sources = (node.source for node in convert_graph(subgraph).nodes if not node.op.startswith("prim::"))
    else:
        sources = (source_of_node(node) for node in subgraph.module.graph.nodes if node.op == "call_function")
    return next(filter(None, sources), "")


def programs_of(reports: Collection[_C.GroupReport]) -> dict[str, tuple[bytes, tuple[KernelCall, ...]]]:
    """Return the compiler's inputs for the groups and their kernels, by key."""
    executables = (compiled for report in reports for compiled in executables_of(report))
    return {
        executable.manifest.program: (executable.program, executable.manifest.kernels) for executable in executables
    }


def weights_of(report: _C.GroupReport) -> frozenset[int]:
    """Return the indices of a group's inputs that are weights."""
    pairs = (
        pair
        for executable in executables_of(report)
        for pair in zip(executable.arguments, executable.bindings, strict=True)
    )
    return frozenset(
        binding.index for argument, binding in pairs if argument.role == "parameter" and binding.source == "input"
    )


def explain_group(
    report: _C.GroupReport, calls: int, seconds: float, graph: Graph, numbers: Mapping[int, int]
) -> Group:
    """Return the explanation of a group after ``calls`` timed calls of the model.

    The fastest of them took ``seconds``. ``numbers`` maps the group's nodes to the numbers of the operators in its
    ``graph``.
    """
    # The time if each call had been as fast as the fastest. Other programs on the machine therefore do not affect it.
    sums = [times.sums() for times in _times_of(report)]
    spent = sum(entry["calls"] * entry["entry"][1] * 1e-9 for entry in sums) / calls
    return Group(
        name=report["name"],
        device=report["device"],
        ops=dict(ops_of_group(report).most_common()),
        source=_source_in(report["subgraph"]),
        compiled_calls=report["compiled_calls"],
        recorded_calls=report["recorded_calls"],
        training_calls=report["training_calls"],
        fallbacks=report["fallbacks"],
        not_dynamic=report["not_dynamic"],
        specialisations=_specialisations(report, calls, seconds, numbers),
        seconds=spent,
        share=spent / seconds,
        graph=graph,
    )


def _times_of(report: _C.GroupReport) -> list[_C.KernelTimes]:
    """Return the kernel times of all specialisations that have code, including packaged code."""
    executables = [entry["executable"] for entry in report["specialisations"]]
    return [entry.times for entry in executables if entry is not None and entry.times is not None]


def executables_of(report: _C.GroupReport) -> list[Compiled]:
    """Return the retained data of each compiled specialisation of a group."""
    candidates = (_compiled_of(specialisation) for specialisation in report["specialisations"])
    return [compiled for compiled in candidates if compiled is not None]


def _compiled_of(report: _C.SpecialisationReport) -> Compiled | None:
    """Return the retained data of a compiled specialisation.

    A specialisation that is not compiled, or that came in a package, does not have such data.
    """
    executable = report["executable"]
    compiled: Compiled | None = None if executable is None else executable.owner
    return compiled


def _comparisons(report: _C.SpecialisationReport) -> tuple[Comparison, ...]:
    compiled = _compiled_of(report)
    return tuple(
        Comparison(
            entry["threads"],
            entry["compiled_seconds"],
            entry["eager_seconds"],
            entry["choice"],
            tuple(compiled.ops[node] for node in entry["left_out"]) if compiled else (),
        )
        for entry in report["speed"]
    )


def ops_of_group(report: _C.GroupReport) -> Counter[str]:
    """Return the operators of a group's subgraph."""
    subgraph = report["subgraph"]
    if isinstance(subgraph, torch._C.Graph):
        names = [node.op for node in convert_graph(subgraph).nodes]
    else:
        names = list(map(name_of_call, subgraph.module.graph.nodes))
    return Counter(name for name in names if name not in _NO_OPS)


def _specialisations(
    report: _C.GroupReport, calls: int, seconds: float, numbers: Mapping[int, int]
) -> tuple[Specialisation, ...]:
    result: list[Specialisation] = []
    earlier: list[list[_Input]] = []
    for specialisation in report["specialisations"]:
        compiled, executable = _compiled_of(specialisation), specialisation["executable"]
        is_dynamic, failure = specialisation["is_dynamic"], specialisation["failure"]
        if compiled is None:
            result.append(
                Specialisation((), is_dynamic, "", "", 0.0, 0, 0, failure, ())
                if executable is None
                else _packaged_specialisation(specialisation, executable, calls, seconds)
            )
            continue
        inputs = _inputs(compiled)
        result.append(
            Specialisation(
                inputs=tuple(map(str, inputs)),
                is_dynamic=is_dynamic,
                cause=_cause(inputs, earlier, is_dynamic),
                origin=compiled.origin,
                seconds=compiled.seconds,
                packed_bytes=sum(pack.size for pack in compiled.manifest.packs),
                workspace_bytes=compiled.manifest.workspace_bytes,
                failure=failure,
                kernels=_kernels(compiled, calls * seconds, numbers),
                key=compiled.manifest.program,
                comparisons=_comparisons(specialisation),
                parts=_parts(compiled),
            )
        )
        earlier.append(inputs)
    return tuple(result)


def _packaged_specialisation(
    report: _C.SpecialisationReport, executable: _C.Executable, calls: int, seconds: float
) -> Specialisation:
    """Return the explanation of packaged code, which has only the names of its kernels."""
    sums = executable.times.sums() if executable.times else None
    names = executable.times.names if executable.times else []
    kernels = []
    for name, (_, least) in zip(names, sums["kernels"] if sums else (), strict=True):
        symbol, _, ops = name.partition(" ")
        share = least * 1e-9 * sums["calls"] / (calls * seconds) if sums else 0.0
        kernels.append(Kernel(symbol, tuple(filter(None, ops.split("+"))), "", "", 0, 0, least * 1e-9, share))
    return Specialisation(
        inputs=(),
        is_dynamic=report["is_dynamic"],
        cause="its package",
        origin="package",
        seconds=0.0,
        packed_bytes=0,
        workspace_bytes=0,
        failure="",
        kernels=tuple(kernels),
        comparisons=_comparisons(report),
    )


def _kernels(compiled: Compiled, whole_seconds: float, numbers: Mapping[int, int]) -> tuple[Kernel, ...]:
    sums = compiled.times.sums()
    return tuple(
        Kernel(
            symbol=kernel.symbol,
            ops=ops_of(kernel, compiled.ops),
            source=next((compiled.sources[node] for node in kernel.nodes if compiled.sources[node]), ""),
            loops=kernel.loops,
            flops=_evaluate(kernel.flops, sums["symbols"]),
            bytes=_evaluate(kernel.bytes, sums["symbols"]),
            seconds=least * 1e-9,
            share=least * 1e-9 * sums["calls"] / whole_seconds,
            operators=tuple(dict.fromkeys(numbers[node] for node in kernel.nodes if node in numbers)),
            after=kernel.after,
            is_result=kernel.is_result,
        )
        for kernel, (_, least) in zip(compiled.manifest.kernels, sums["kernels"], strict=True)
    )


def _parts(compiled: Compiled) -> tuple[Part, ...]:
    symbols = compiled.times.sums()["symbols"]
    return tuple(
        Part(
            part.device,
            dict(Counter(compiled.ops[node] for node in part.nodes).most_common()),
            part.transfers,
            _evaluate(part.bytes, symbols),
        )
        for part in compiled.manifest.parts
    )


def moved_ops(reports: Collection[_C.GroupReport]) -> Counter[Ungrouped]:
    """Return the operators that run on another device than the first of several, with the reasons and counts."""
    return Counter(
        Ungrouped(compiled.ops[node], f"it runs on device {part.device!r}: {reason}", compiled.sources[node])
        for report in reports
        for compiled in executables_of(report)
        for part in compiled.manifest.parts
        for node, reason in part.reasons
    )


def _evaluate(count: Count, symbols: Sequence[int]) -> int:
    """Return the value of a count; 0 for a dynamic kernel whose symbols have no values yet."""
    if isinstance(count, int):
        return count
    return Size(count).at(symbols) if symbols else 0


@dataclass(frozen=True)
class GroupActivity:
    """A group in :class:`torchmdla.Statistics`.

    Attributes:
        number: sequential number in this process.
        name: name in PyTorch's profiles.
        source: line of the first operator (``file:line``); empty if unknown.
        compiled_calls: calls that ran compiled.
        recorded_calls: calls that ran by eager operators, to be compiled.
        training_calls: calls that ran as PyTorch runs a program in training.
        fallbacks: calls that ran in PyTorch's interpreter.
        specialisations: number of input types with code.
        compile_seconds: time for compiling or finding that code.
        slower: comparisons in which PyTorch's operators took less time than the code.
    """

    number: int
    name: str
    source: str
    compiled_calls: int
    recorded_calls: int
    training_calls: int
    fallbacks: int
    specialisations: int
    compile_seconds: float
    slower: tuple[Comparison, ...] = ()

    def since(self, before: GroupActivity) -> GroupActivity:
        """Return the activity after ``before``; for specialisations, the increase in their number."""
        numbers = {
            field.name: max(getattr(self, field.name) - getattr(before, field.name), 0)
            for field in fields(self)
            if field.name not in ("number", "name", "source", "slower")
        }
        return replace(self, **numbers, slower=tuple(entry for entry in self.slower if entry not in before.slower))

    @property
    def calls(self) -> int:
        """Return the number of all calls."""
        return self.compiled_calls + self.recorded_calls + self.training_calls + self.fallbacks


@dataclass(frozen=True)
class _Input:
    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


def _inputs(compiled: Compiled) -> list[_Input]:
    """Return the inputs as the group gets them; a binding specifies the order of their dimensions in memory."""
    inputs = []
    for argument, binding in zip(compiled.arguments, compiled.bindings, strict=True):
        if argument.role == "input":
            shape = list(argument.shape)
            for place, dim in enumerate(binding.permutation):
                shape[dim] = argument.shape[place]
            inputs.append(_Input(binding.name, argument.dtype, tuple(shape)))
    return inputs


def _cause(inputs: Sequence[_Input], earlier: Sequence[Sequence[_Input]], is_dynamic: bool) -> str:
    """Return the differences of ``inputs`` from the most similar earlier inputs."""
    if is_dynamic:
        return "sizes that differ between calls"
    if not earlier:
        return "the first call"
    differences = min((_differences(inputs, others) for others in earlier), key=len)
    return "; ".join(differences) or "an integer, or the layout of an input"


def _differences(inputs: Sequence[_Input], others: Sequence[_Input]) -> list[str]:
    differences = []
    for input_, other in zip(inputs, others, strict=False):
        if input_.dtype != other.dtype:
            differences.append(f"dtype {input_.dtype} of {input_.name}, in place of {other.dtype}")
        if len(input_.shape) != len(other.shape):
            differences.append(f"{len(input_.shape)} dimensions of {input_.name}, in place of {len(other.shape)}")
            continue
        for dim, (size, before) in enumerate(zip(input_.shape, other.shape, strict=True)):
            if size != before:
                differences.append(f"size {size} of dimension {dim} of {input_.name}, in place of {before}")
    return differences

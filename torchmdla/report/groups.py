"""What the extension tells of groups, as the parts of an :class:`~torchmdla.report.explanation.Explanation`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from torchmdla import _C
from torchmdla.capture.specialise import Compiled, ops_of
from torchmdla.compiler.artifact import Count, KernelCall
from torchmdla.compiler.program import Argument
from torchmdla.compiler.sizes import Size
from torchmdla.importer.fx import name_of_call, source_of_node
from torchmdla.importer.graph import name_of
from torchmdla.importer.sources import source_of
from torchmdla.importer.types import Binding
from torchmdla.report.explanation import Graph, Group, Kernel, Specialisation

# What the importer numbers, but nothing computes.
_NO_OPS = frozenset({"prim::Constant", "prim::ListConstruct", "placeholder", "get_attr", "output"})


def calls_by_group() -> dict[int, int]:
    """The calls of each group of the process, however they ran, by number."""
    return {number: calls for number, (calls, _, _) in _C.group_counts().items()}


def groups_called_since(before: Mapping[int, int]) -> list[_C.GroupReport]:
    """Those with other numbers of calls than ``before``, of :func:`calls_by_group`."""
    return _C.groups({number for number, calls in calls_by_group().items() if before.get(number) != calls})


def reset_times(reports: Collection[_C.GroupReport]) -> None:
    """Kernels are timed from here on."""
    for report in reports:
        for times in _times_of(report):
            times.reset()


def timed_ops(report: _C.GroupReport) -> int:
    """The operators that the timed calls of a group computed in compiled code."""
    return sum(times.sums()["calls"] for times in _times_of(report)) * _ops(report).total()


def activity_of(report: _C.GroupReport) -> GroupActivity:
    """What a group did since it was made."""
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
        compile_seconds=sum(one.seconds for one in compiled),
    )


def _source_in(subgraph: Any) -> str:
    """The line of its first operator."""
    if isinstance(subgraph, torch._C.Graph):
        sources = (source_of(node) for node in subgraph.nodes() if not node.kind().startswith("prim::"))
    else:
        sources = (source_of_node(node) for node in subgraph.module.graph.nodes if node.op == "call_function")
    return next(filter(None, sources), "")


def programs_of(reports: Collection[_C.GroupReport]) -> dict[str, tuple[bytes, tuple[KernelCall, ...]]]:
    """What the compiler was given for the groups, and its kernels, by key."""
    found = (compiled for report in reports for compiled in executables_of(report))
    return {one.manifest.program: (one.program, one.manifest.kernels) for one in found}


def weights_of(report: _C.GroupReport) -> frozenset[int]:
    """The inputs of a group that are weights."""
    pairs = (pair for one in executables_of(report) for pair in zip(one.arguments, one.bindings, strict=True))
    return frozenset(
        binding.index for argument, binding in pairs if argument.role == "parameter" and binding.source == "input"
    )


def explain_group(
    report: _C.GroupReport, calls: int, seconds: float, graph: Graph, numbers: Mapping[int, int]
) -> Group:
    """A group as people read of it, after ``calls`` timed calls of the model, the fastest of ``seconds``. ``numbers``:
    of the group's nodes → those of the operators in its ``graph``."""
    spent = sum(map(_least_seconds, _times_of(report))) / calls
    return Group(
        name=report["name"],
        device=report["device"],
        ops=dict(_ops(report).most_common()),
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
    """Of all specialisations that have code, wherever it came from."""
    executables = [one["executable"] for one in report["specialisations"]]
    return [one.times for one in executables if one is not None and one.times is not None]


def _least_seconds(times: _C.KernelTimes) -> float:
    """Of all timed calls, had each been the fastest of them: what else ran on the machine costs them nothing."""
    sums = times.sums()
    return sums["calls"] * sums["entry"][1] * 1e-9


def executables_of(report: _C.GroupReport) -> list[Compiled]:
    """What is kept of each specialisation of a group that is compiled."""
    kept = (_kept(one) for one in report["specialisations"])
    return [compiled for compiled in kept if compiled is not None]


def _kept(report: _C.SpecialisationReport) -> Compiled | None:
    """None of one that is not compiled, or that came in a package, where what it was made of is not kept."""
    executable = report["executable"]
    compiled: Compiled | None = None if executable is None else executable.owner
    return compiled


def _ops(report: _C.GroupReport) -> Counter[str]:
    """The operators of a group's subgraph."""
    subgraph = report["subgraph"]
    if isinstance(subgraph, torch._C.Graph):
        names = list(map(name_of, subgraph.nodes()))
    else:
        names = list(map(name_of_call, subgraph.module.graph.nodes))
    return Counter(name for name in names if name not in _NO_OPS)


def _specialisations(
    report: _C.GroupReport, calls: int, seconds: float, numbers: Mapping[int, int]
) -> tuple[Specialisation, ...]:
    made: list[Specialisation] = []
    earlier: list[list[_Input]] = []
    for one in report["specialisations"]:
        compiled = _kept(one)
        if compiled is None and one["executable"] is not None:
            made.append(_packaged(one, one["executable"], calls, seconds))
            continue
        inputs = _inputs(compiled) if compiled else []
        made.append(
            Specialisation(
                inputs=tuple(map(str, inputs)),
                is_dynamic=one["is_dynamic"],
                cause=_cause(inputs, earlier, one["is_dynamic"]) if compiled else "",
                origin=compiled.origin if compiled else "",
                seconds=compiled.seconds if compiled else 0.0,
                packed_bytes=sum(pack.size for pack in compiled.manifest.packs) if compiled else 0,
                workspace_bytes=compiled.manifest.workspace_bytes if compiled else 0,
                failure=one["failure"],
                kernels=_kernels(compiled, calls, seconds, numbers) if compiled else (),
                key=compiled.manifest.program if compiled else "",
            )
        )
        if compiled:
            earlier.append(inputs)
    return tuple(made)


def _packaged(report: _C.SpecialisationReport, executable: _C.Executable, calls: int, seconds: float) -> Specialisation:
    """One whose code came in a package, which has no more of it than the names of its kernels."""
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
    )


def _kernels(compiled: Compiled, calls: int, seconds: float, numbers: Mapping[int, int]) -> tuple[Kernel, ...]:
    sums = compiled.times.sums()
    return tuple(
        _kernel(compiled, kernel, least * 1e-9, sums, calls * seconds, numbers)
        for kernel, (_, least) in zip(compiled.manifest.kernels, sums["kernels"], strict=True)
    )


def _kernel(
    compiled: Compiled,
    kernel: KernelCall,
    seconds: float,
    sums: _C.KernelSums,
    whole_seconds: float,
    numbers: Mapping[int, int],
) -> Kernel:
    return Kernel(
        symbol=kernel.symbol,
        ops=ops_of(kernel, compiled.ops),
        source=next((compiled.sources[node] for node in kernel.nodes if compiled.sources[node]), ""),
        loops=kernel.loops,
        flops=_at(kernel.flops, sums["symbols"]),
        bytes=_at(kernel.bytes, sums["symbols"]),
        seconds=seconds,
        share=seconds * sums["calls"] / whole_seconds,
        operators=tuple(dict.fromkeys(numbers[node] for node in kernel.nodes if node in numbers)),
        after=kernel.after,
        is_result=kernel.is_result,
    )


def _at(count: Count, symbols: Sequence[int]) -> int:
    """0 of a dynamic kernel whose symbols no call has given a value."""
    if isinstance(count, int):
        return count
    return Size(count).at(symbols) if symbols else 0


@dataclass(frozen=True)
class GroupActivity:
    """A group in :class:`torchmdla.Statistics`.

    Attributes:
        number: counted up in this process.
        name: in PyTorch's profiles.
        source: the line of its first operator (``file:line``); empty when unknown.
        compiled_calls, recorded_calls, training_calls, fallbacks: calls, by how they ran: compiled; by eager operators,
            to be compiled; as PyTorch runs a program that trains; in PyTorch's interpreter.
        specialisations: for how many types of inputs there is code.
        compile_seconds: what compiling these, or finding them, took.
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

    def since(self, before: GroupActivity) -> GroupActivity:
        """What it did after ``before``; of specialisations that are there, what there are more."""
        numbers = {
            one.name: max(getattr(self, one.name) - getattr(before, one.name), 0)
            for one in fields(self)
            if one.name not in ("number", "name", "source")
        }
        return replace(self, **numbers)

    @property
    def calls(self) -> int:
        """However they ran."""
        return self.compiled_calls + self.recorded_calls + self.training_calls + self.fallbacks


@dataclass(frozen=True)
class _Input:
    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


def _inputs(compiled: Compiled) -> list[_Input]:
    pairs = zip(compiled.arguments, compiled.bindings, strict=True)
    return [_input(argument, binding) for argument, binding in pairs if argument.role == "input"]


def _input(argument: Argument, binding: Binding) -> _Input:
    """As the group gets it: ``binding`` says in which order it lies in memory."""
    shape = list(argument.shape)
    for place, dim in enumerate(binding.permutation):
        shape[dim] = argument.shape[place]
    return _Input(binding.name, argument.dtype, tuple(shape))


def _cause(inputs: Sequence[_Input], earlier: Sequence[Sequence[_Input]], is_dynamic: bool) -> str:
    """How ``inputs`` differ from the earlier ones that they differ least from."""
    if is_dynamic:
        return "sizes that differ between calls"
    if not earlier:
        return "the first call"
    differences = min((_differences(inputs, others) for others in earlier), key=len)
    return "; ".join(differences) or "an integer, or how an input lies in memory"


def _differences(inputs: Sequence[_Input], others: Sequence[_Input]) -> list[str]:
    found = []
    for one, other in zip(inputs, others, strict=False):
        if one.dtype != other.dtype:
            found.append(f"dtype {one.dtype} of {one.name}, in place of {other.dtype}")
        if len(one.shape) != len(other.shape):
            found.append(f"{len(one.shape)} dimensions of {one.name}, in place of {len(other.shape)}")
            continue
        for dim, (size, before) in enumerate(zip(one.shape, other.shape, strict=True)):
            if size != before:
                found.append(f"size {size} of dimension {dim} of {one.name}, in place of {before}")
    return found

"""Result of :func:`torchmdla.explain` as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torchmdla.compiler.artifact import KernelCall


@dataclass(frozen=True)
class Peak:
    """Peak performance of this machine, measured with as many threads as PyTorch uses.

    ``gflops`` is measured with fused multiply-adds of float32 in registers (GFLOP/s). ``gigabytes`` is measured with a
    copy in memory, and counts bytes read and written (GB/s).
    """

    threads: int
    gflops: float
    gigabytes: float


@dataclass(frozen=True)
class Operator:
    """A node of a graph that runs an operator or a compiled group.

    Attributes:
        op: the operator (``aten::conv2d``), or the name of the group.
        source: line of the operator (``file:line``); empty if unknown.
        inputs: results that it reads, as pairs: the number of the operator in the graph, or -1 for the graph's own
            inputs, and the number of the result.
        seconds: time in a call of the model; 0 inside groups, where kernels have times.
        group: name of the group that it runs; empty for an operator.
    """

    op: str
    source: str
    inputs: tuple[tuple[int, int], ...]
    seconds: float = 0.0
    group: str = ""


@dataclass(frozen=True)
class Graph:
    """Operators in order, and the results of the graph in the form of :attr:`Operator.inputs`.

    ``is_sequence`` means that the program has no graph. The operators are then those observed in a call, and each
    follows the one before.
    """

    operators: tuple[Operator, ...]
    results: tuple[tuple[int, int], ...]
    is_sequence: bool = False


@dataclass(frozen=True)
class Kernel:
    """A place in a group's code that runs a kernel.

    Attributes:
        symbol: the kernel's name in the code; equal kernels share one.
        ops: the operators that it computes, without namespaces.
        source: line of the first of them (``file:line``); empty if unknown.
        loops: sizes of its loop nests, such as ``64x56x56 reduce 576``.
        flops: floating-point operations in a call of the group.
        bytes: bytes read and written in a call; each element counts once.
        seconds: shortest time in a call of the group.
        share: share of the model's time.
        operators: numbers of the computed operators in the group's graph.
        after: numbers of the earlier kernels whose results it reads, -1 for inputs of the group.
        is_result: whether it writes a result of the group.
    """

    symbol: str
    ops: tuple[str, ...]
    source: str
    loops: str
    flops: int
    bytes: int
    seconds: float
    share: float
    operators: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    is_result: bool = False

    @property
    def gflops(self) -> float:
        """Return the GFLOP/s, or 0 if no time was measured."""
        return self.flops / self.seconds * 1e-9 if self.seconds else 0.0

    @property
    def gigabytes(self) -> float:
        """Return the GB/s, or 0 if no time was measured."""
        return self.bytes / self.seconds * 1e-9 if self.seconds else 0.0


@dataclass(frozen=True)
class Comparison:
    """Comparison of a group's code with PyTorch's operators.

    Attributes:
        threads: number of threads that PyTorch used.
        compiled_seconds, eager_seconds: least time of some calls of either.
        choice: ``"compiled"``, the code stays. ``"divided"``, groups around its slow kernels replace it. ``"eager"``,
            PyTorch's operators replace it.
        left_out: operators that a division leaves to PyTorch.
    """

    threads: int
    compiled_seconds: float
    eager_seconds: float
    choice: Literal["compiled", "divided", "eager"]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """A part of a specialisation that runs on one of several devices, in the order in which they run.

    Attributes:
        device: name of the device.
        ops: operator → number of its occurrences.
        transfers: tensors that move between the memory of the device and that of the host in a call, without weights.
        bytes: bytes of these tensors; 0 if sizes vary and no call has been timed.
    """

    device: str
    ops: dict[str, int]
    transfers: int
    bytes: int


@dataclass(frozen=True)
class Specialisation:
    """A group compiled for the types of its inputs, or the reason why it is not compiled.

    Attributes:
        inputs: types of the inputs, ``x: float32[1, 3, 224, 224]``; weights are left out.
        is_dynamic: whether the code supports any sizes; the sizes of ``inputs`` are then the typical ones.
        cause: the difference from earlier specialisations that required this one: a size or a dtype.
        origin: origin of the code: ``"compiled"``, ``"disk"``, ``"memory"``, or ``"package"``; empty without code. Only
            the names of a package's kernels are known.
        seconds: time for compiling or finding it.
        packed_bytes: bytes of weights in the order in which its kernels read them.
        workspace_bytes: bytes of intermediate results; for dynamic code only the bytes that packs need.
        failure: reason for missing code, or the operators that the code leaves out; empty otherwise.
        kernels: kernels of the code, in order. Kernels of code that ran have times.
        key: name of the program in logs and in ``TORCHMDLA_DUMP``'s folders; empty without code.
        comparisons: comparisons with PyTorch's operators, one for each number of threads and magnitude of sizes.
        parts: parts on several devices; empty for code of one device.
    """

    inputs: tuple[str, ...]
    is_dynamic: bool
    cause: str
    origin: str
    seconds: float
    packed_bytes: int
    workspace_bytes: int
    failure: str
    kernels: tuple[Kernel, ...]
    key: str = ""
    comparisons: tuple[Comparison, ...] = ()
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Group:
    """A group that the model called.

    Attributes:
        name: name in PyTorch's profiles.
        device: name of the device.
        ops: operator → number of its occurrences.
        source: line of the first operator (``file:line``); empty if unknown.
        compiled_calls: compiled calls since the group was created.
        recorded_calls: calls that eager operators ran, to be compiled.
        training_calls: calls that PyTorch ran as in training, because backward was expected.
        fallbacks: reason → number of calls in PyTorch's interpreter.
        not_dynamic: reason → number of attempts to compile the group for any sizes.
        specialisations: specialisations of the group.
        seconds: shortest time in its code in a call of the model.
        share: share of the model's time.
        graph: its operators.
    """

    name: str
    device: str
    ops: dict[str, int]
    source: str
    compiled_calls: int
    recorded_calls: int
    training_calls: int
    fallbacks: dict[str, int]
    not_dynamic: dict[str, int]
    specialisations: tuple[Specialisation, ...]
    seconds: float
    share: float
    graph: Graph = Graph((), ())


@dataclass(frozen=True)
class Outside:
    """An operator that ran outside of compiled groups.

    It has ``calls`` in a call of the model. They took ``seconds`` together, which is ``share`` of the time of all
    operators when they are profiled.
    """

    op: str
    calls: int
    seconds: float
    share: float


@dataclass(frozen=True)
class DeviceWork:
    """Kernels or transfers of one name that a device has run in a stream (``mdla_record_event``).

    There were ``calls`` of them in a call of the model, which took ``seconds`` together.
    """

    stream: str
    name: str
    calls: int
    seconds: float


@dataclass(frozen=True)
class Reason:
    """A reason why something does not run compiled, or not for any sizes.

    Attributes:
        kind: ``"operator"``, outside of groups; ``"left out"``, an operator of a group that could not be compiled with
            it; ``"device"``, an operator of a group that runs on another device than the first; ``"not compiled"``, a
            group that failed because of the operator; ``"call"``, of a group that ran in PyTorch's interpreter; or
            ``"sizes"``, which need other specialisations.
        op: the operator (``aten::nonzero``); empty for calls and sizes.
        reason: the reason itself.
        count: number of graphs with the operator outside, of specialisations without it, of calls, or of attempts.
        sources: lines of the user's program, ``file:line``.
        advice: advice on the reason.
    """

    kind: str
    op: str
    reason: str
    count: int
    sources: tuple[str, ...]
    advice: str

    def __str__(self) -> str:
        return f"{self.op}: {self.reason}" if self.op else self.reason


@dataclass(frozen=True)
class OpError:
    """Error of an operator's result, relative to eager's result.

    Attributes:
        op: the operator.
        source: its line (``file:line``).
        group: name of its group.
        error: largest error, relative to the largest element of the result. It has the value None if one result is
            infinite or NaN and the other is not.
        difference: difference beyond the tolerance (:mod:`torchmdla.testing.compare`); empty if the results match.
    """

    op: str
    source: str
    group: str
    error: float | None
    difference: str


@dataclass(frozen=True)
class Activity:
    """Activity of a thread while the model was explained.

    Attributes:
        name: name of the activity.
        kind: kind of the activity. ``"explain"`` is a part of explaining. In compiling it is ``"specialise"``, the
            whole, ``"import"``, ``"compile"``, ``"lower"``, ``"stage"``, ``"pass"`` or ``"load"``. In calls it is
            ``"run"``, a group, ``"device"``, an event that a device recorded, ``"record"``, a group's first run by
            eager operators, or ``"pack"``, the packing of its weights. Other calls are ``"fall back"``, a run in
            PyTorch's interpreter, and ``"operator"``, outside of groups.
        thread: name of the thread, with the name of the process if it is another one.
        start: seconds since the beginning.
        seconds: duration.
    """

    name: str
    kind: str
    thread: str
    start: float
    seconds: float


@dataclass(frozen=True)
class MemoryUse:
    """Memory use at ``seconds`` after the beginning, in bytes.

    ``resident`` is that of the process (0 where the system does not report it). ``packed`` weights and the
    ``workspace`` of threads are parts of it.
    """

    seconds: float
    resident: int
    packed: int
    workspace: int


@dataclass(frozen=True)
class Explanation:
    """Compiled groups, kernels and times of a model and a call.

    ``print`` shows it as tables; notebooks show it too.

    Attributes:
        groups: groups that the call used, in the order in which they were formed.
        outside: operators outside of compiled groups, the slowest first.
        device_work: what devices have recorded, by stream and name.
        reasons: all reasons once, the most costly first.
        ops_compiled: number of operators of one call that ran in compiled groups.
        ops: number of all operators of one call.
        seconds: shortest time of a call of the model.
        seconds_compiled: time in compiled code.
        calls: number of timed calls.
        peak: peak performance of the machine.
        errors: error of every operator in groups against eager, if requested; None otherwise.
        graph: the model's operators outside of groups, and its groups.
        timeline: activities of threads, by start time.
        memory: memory use, in order.
        model: name of the model.
        programs: the compiler's inputs and the kernel calls of their code, by key, for :meth:`save`; :meth:`to_dict`
            leaves them out.
    """

    groups: tuple[Group, ...]
    outside: tuple[Outside, ...]
    reasons: tuple[Reason, ...]
    ops_compiled: int
    ops: int
    seconds: float
    seconds_compiled: float
    calls: int
    peak: Peak
    device_work: tuple[DeviceWork, ...] = ()
    errors: tuple[OpError, ...] | None = None
    graph: Graph = Graph((), ())
    timeline: tuple[Activity, ...] = ()
    memory: tuple[MemoryUse, ...] = ()
    model: str = ""
    programs: Mapping[str, tuple[bytes, tuple[KernelCall, ...]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def first_difference(self) -> OpError | None:
        """Return the first operator whose result differs from eager's beyond the tolerance."""
        return next((error for error in self.errors or () if error.difference), None)

    @property
    def summary(self) -> str:
        """Return a summary in one line."""
        compiled = [group for group in self.groups if group.seconds]
        text = f"{len(compiled)} group{'' if len(compiled) == 1 else 's'}"
        text += f", {_percent(self.ops_compiled, self.ops)} of ops and"
        text += f" {_percent(self.seconds_compiled, self.seconds)} of time compiled"
        costly = [str(reason) for reason in self.reasons if reason.kind != "sizes"][:3]
        return f"{text}; top reasons for the rest: {'; '.join(costly)}" if costly else text

    def to_dict(self) -> dict[str, Any]:
        """Return the contents as dictionaries, lists, strings and numbers."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(replace(self, programs={}))))
        del plain["programs"]
        return {"summary": self.summary, **plain}

    def to_json(self, indent: int | None = None) -> str:
        """Return :meth:`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent)

    def save(self, path: str | Path) -> None:
        """Write a page about the model to ``path``: one HTML file that needs no network.

        Every program is compiled once more, for the text of each stage.

        Raises:
            OSError: ``path`` cannot be written.
            RuntimeError: this copy of torchmdla was built without the library that lays graphs out. The message has
                instructions.
        """
        from torchmdla.report.page import save

        save(self, path)

    def __str__(self) -> str:
        from torchmdla.report.rendering import as_text, tables

        return as_text(tables(self))

    def _repr_html_(self) -> str:
        from torchmdla.report.rendering import as_html, tables

        return as_html(tables(self))


def _percent(part: float, whole: float) -> str:
    """Return the percentage, rounded down so that 100 % means all."""
    return f"{int(part / whole * 1000) / 10:g} %" if whole else "0 %"
